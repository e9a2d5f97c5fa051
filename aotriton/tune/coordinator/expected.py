"""From a kernel's description to what it says of configs before they are compiled: rounds, steps and work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt

from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.kernel import Functional
from aotriton.rules.work import TERMS, Work, terms
from aotriton.tune.problem.family import types_at_level
from aotriton.tune.problem.problems import scalars_of
from aotriton.tune.search.space import COST, WARP, Config

ROUNDS, STEPS, SHARE = map(TERMS.index, ("rounds", "steps of the rounds", "steps of all programs, by multiprocessor"))
EDGE = 4096  # keeps traffic for each product above 1, where facts count by their logarithm


def expected(
    functional: Functional, sizes: Mapping[str, int], configs: Iterable[Config]
) -> dict[Config, dict[str, float]]:
    """For each config: ``rounds`` of programs that fill the GPU, ``steps`` of all rounds one after the other, ``work``
    of these steps and the ``share`` of it that is useful (elements of tiles x depth), elements of a ``tile`` and of a
    ``warp``'s part of it, and what is loaded for each product (``edge``). ``cost`` lies between what takes a kernel's
    time where it waits for its products, which is the work, and where it waits for its loads: edge x work.

    ``sizes`` are the operator's. Nothing of a kernel that does not describe its work.
    """
    work = functional.kernel.work
    if work is None:
        return {}
    scalars, multiprocessors = scalars_of(functional, sizes), functional.arch_spec.multiprocessors
    types, decisive = types_at_level(functional), work.tunables
    by_tile: dict[Config, dict[str, float]] = {}  # hundreds of configs have some ten tiles
    found = {}
    for config in configs:
        tile = tuple(pair for pair in config if pair[0] in decisive)
        if tile not in by_tile:
            environment = Environment(sizes, scalars, dict(tile), multiprocessors=multiprocessors, other_dtypes=types)
            by_tile[tile] = _of_tile(work, environment)
        facts = by_tile[tile]
        found[config] = {**facts, WARP: facts["tile"] / dict(config).get("num_warps", 1)}
    return found


def _of_tile(described: Work, environment: Environment) -> dict[str, float]:
    values = terms(described, environment, 1)
    rows, columns, depth = (
        evaluate(one, environment) for one in (described.row_tile, described.column_tile, described.depth_tile)
    )
    tile, edge = float(rows * columns), EDGE / rows + EDGE / columns
    work = values[STEPS] * tile * depth
    return {
        "rounds": values[ROUNDS],
        "steps": values[STEPS],
        "work": work,
        "share": values[SHARE] * tile * depth,
        "tile": tile,
        "edge": edge,
        COST: work * sqrt(edge),
    }
