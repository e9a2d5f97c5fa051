"""What a compute unit holds of an image's programs, for guesses where no GPU is; its rates are in rules/arch.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aotriton.rules.arch import STATIC, ArchSpec, ComputeUnit
from aotriton.rules.image import ImageSpec


@dataclass(frozen=True)
class Candidate:
    """A config and what is known of its image; ``shared`` is in bytes."""

    config: Mapping[str, int]
    registers: int
    shared: int

    @classmethod
    def of(cls, spec: ImageSpec, metadata: Mapping[str, Any]) -> Candidate:
        return cls(dict(spec.tunables + spec.compile_options), int(metadata["registers"]), int(metadata["shared"]))


def unit_of(arch: ArchSpec) -> ComputeUnit:
    """The compute unit of an arch that the static model describes; ValueError for one that it does not."""
    if arch.compute_unit is None:
        raise ValueError(f"the static model describes {', '.join(STATIC)}, not {arch.arch}: measure there")
    return arch.compute_unit


def resident_programs(candidate: Candidate, arch: ArchSpec) -> int:
    """Programs that a compute unit holds at once; at least 1, even of an image that does not fit."""
    unit = unit_of(arch)
    held = -(-max(candidate.registers, 1) // unit.register_granule) * unit.register_granule
    waves = min(unit.most_waves, unit.registers // held) * unit.simds
    by_shared = arch.shared_limit // candidate.shared if candidate.shared else waves
    return max(1, min(waves // candidate.config["num_warps"], by_shared))
