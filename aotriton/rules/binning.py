"""Tuning keys: from a runtime quantity to its bin."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from aotriton.rules.checked import identifier
from aotriton.rules.expression import Expression, constant


@dataclass(frozen=True)
class TuningKey:
    """A runtime quantity and the representatives of its bins, in ascending order.

    The bin of a value is the first one whose representative is not smaller; the last bin is open. ``quantity`` computes
    the value from a call, and may differ between kernels of one operator. ``option`` is the key's name in commands, by
    default the same name.
    """

    name: str
    representatives: tuple[int, ...]
    quantity: Expression = field(default=constant(0), compare=False)
    option: str = ""

    def __post_init__(self) -> None:
        identifier("a tuning key's name", self.name)
        if not self.representatives or list(self.representatives) != sorted(set(self.representatives)):
            raise ValueError(f"{self.name}: representatives must ascend strictly, got {self.representatives}")
        object.__setattr__(self, "option", self.option or self.name.replace("_", "-"))

    def bin_of(self, value: int) -> int:
        """The index of the bin of ``value``."""
        return min(bisect_left(self.representatives, value), len(self.representatives) - 1)


def bin_text(keys: Sequence[TuningKey], cell: Sequence[int]) -> str:
    """The text of a cell in messages and in the database: ``rows=512 waves=8``."""
    return " ".join(f"{key.name}={representative}" for key, representative in zip(keys, cell, strict=True))
