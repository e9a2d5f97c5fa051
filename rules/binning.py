"""Tuning keys: from a runtime quantity to the bin that it falls in."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TuningKey:
    """A runtime quantity and the representatives of its bins, in ascending order.

    A value falls in the first bin whose representative is not smaller; the last bin is open-ended.
    """

    name: str
    representatives: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.representatives or list(self.representatives) != sorted(set(self.representatives)):
            raise ValueError(f"{self.name}: representatives must ascend strictly, got {self.representatives}")

    def bin_of(self, value: int) -> int:
        """Index of the bin that ``value`` falls in."""
        return min(bisect_left(self.representatives, value), len(self.representatives) - 1)


REFERENCE_TILE = 128  # rows of the tile that `waves` counts; fixed, so that the key does not depend on the candidate


def waves(batch: int, heads: int, seqlen: int, multiprocessors: int) -> int:
    """How often batch x heads x tiles fill the GPU, rounded up: how full the GPU is, in waves of reference tiles."""
    tiles = batch * heads * -(-seqlen // REFERENCE_TILE)
    return -(-tiles // multiprocessors)


def bin_text(keys: Sequence[TuningKey], cell: Sequence[int]) -> str:
    """A cell as people and the database read it: ``max_seqlen_q=512 max_seqlen_k=512 waves=8``."""
    return " ".join(f"{key.name}={representative}" for key, representative in zip(keys, cell, strict=True))


MAX_SEQLEN_Q = TuningKey("max_seqlen_q", (64, 512, 2048, 8192))
MAX_SEQLEN_K = TuningKey("max_seqlen_k", (64, 512, 2048, 8192))
WAVES = TuningKey("waves", (1, 8))
