"""Rows of options in which every two options have every pair of their values."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

Row = dict[str, Any]
TRIES = 300  # random rows, of which the best is taken


def pairwise(
    options: Mapping[str, tuple[Any, ...]], possible: Callable[[Row], bool] = lambda row: True, seed: int = 3
) -> list[Row]:
    """Rows in which every two options have every possible pair of their values, chosen greedily among random ones."""
    choose, names = random.Random(seed), list(options)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    missing = {(a, x, b, y) for a, b in pairs for x in options[a] for y in options[b] if possible({a: x, b: y})}
    made: list[Row] = []
    while missing:
        tried = [{name: choose.choice(values) for name, values in options.items()} for _ in range(TRIES)]
        covered = [{(a, row[a], b, row[b]) for a, b in pairs} & missing if possible(row) else set() for row in tried]
        best = max(range(len(tried)), key=lambda i: len(covered[i]))
        missing -= covered[best]
        if covered[best]:
            made.append(tried[best])
    return made
