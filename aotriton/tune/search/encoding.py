"""From configs to the rows of numbers that models learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import TYPE_CHECKING

from aotriton.tune.search.space import Config

if TYPE_CHECKING:
    import numpy as np


def scaled(value: float) -> float:
    """Numbers by their logarithm, as twice a tile, a depth or a problem is one step; 0 and less lie below 1."""
    return log2(value) if value >= 1 else value - 1


def rows(
    configs: Sequence[Config], facts: Mapping[Config, Mapping[str, float]], names: Sequence[str], width: int
) -> np.ndarray:
    """Float32, configs x (``width`` parameters + ``names`` of facts), scaled; NaN where a fact is not known."""
    import numpy as np

    found = np.full((len(configs), width + len(names)), np.nan, np.float32)
    for row, config in zip(found, configs, strict=True):
        row[:width] = [scaled(value) for _, value in config]
        known = facts.get(config, {})
        for column, name in enumerate(names, width):
            if name in known:
                row[column] = scaled(known[name])
    return found
