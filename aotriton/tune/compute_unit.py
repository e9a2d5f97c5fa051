"""A compute unit of an MI300X, for guesses where no GPU is: how much it does in a cycle, and how much it holds.

Of one unit at 2.1 GHz, after AMD's CDNA 3 white paper; rates are per cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aotriton.rules.image import ImageSpec

CYCLES = 2100  # in a microsecond
SIMDS = 4
REGISTERS = 512  # of a lane, vector and accumulation registers together; the waves of a SIMD share them
REGISTER_GRANULE = 8
MOST_WAVES = 8  # of a SIMD
MATRIX_FLOPS = 512  # of a SIMD
VECTOR_LANES = 16  # of a SIMD
SHARED_BYTES = 128  # from local memory
CACHE_BYTES = 64  # from the L2 cache
MEMORY_BYTES = 8  # 5.3 TB/s among 304 units
LATENCY = 1000  # cycles from a load to its use, barriers included, in a loop that prefetches nothing


@dataclass(frozen=True)
class Candidate:
    """A config and what is known of its image; ``shared`` is in bytes."""

    config: Mapping[str, int]
    registers: int
    shared: int

    @classmethod
    def of(cls, spec: ImageSpec, metadata: Mapping[str, Any]) -> Candidate:
        return cls(dict(spec.psels + spec.copts), int(metadata["registers"]), int(metadata["shared"]))


def resident_programs(candidate: Candidate, shared_limit: int) -> int:
    """Programs that a compute unit holds at once; at least 1, even of an image that does not fit."""
    held = -(-max(candidate.registers, 1) // REGISTER_GRANULE) * REGISTER_GRANULE
    waves = min(MOST_WAVES, REGISTERS // held) * SIMDS
    by_shared = shared_limit // candidate.shared if candidate.shared else waves
    return max(1, min(waves // candidate.config["num_warps"], by_shared))
