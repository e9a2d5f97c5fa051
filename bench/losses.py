"""How far losses of trainings are from each other. A training has a list of losses, of its steps, for each seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

Losses = Sequence[Sequence[float]]


def spread(one: Sequence[float], other: Sequence[float]) -> float:
    """The mean distance of two lists of numbers."""
    return fmean(abs(a - b) for a, b in zip(one, other, strict=True))


def apart(ones: Losses, others: Losses) -> list[float]:
    """Of two trainings, by seed."""
    return [spread(one, other) for one, other in zip(ones, others, strict=True)]


def between_seeds(losses: Losses) -> list[float]:
    """Of each two seeds of a training."""
    return [spread(*pair) for pair in combinations(losses, 2)]


def at_the_end(losses: Losses) -> float:
    """The mean of the last tenth of the steps, of all seeds."""
    return fmean(loss for of_seed in losses for loss in of_seed[-math.ceil(len(of_seed) / 10) :])


def numbers(many: Sequence[float]) -> str:
    return ", ".join(f"{one:.2g}" for one in many)
