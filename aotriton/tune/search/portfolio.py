"""The few configs that are worth trying first on a new problem, from other problems of its kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf, log

from aotriton.tune.search.encoding import scaled
from aotriton.tune.search.space import Config, Past, SearchSpace

FAR = 6.0  # doublings
UNKNOWN = log(2)  # the slowdown that a config is charged where it was not measured, or is slower than that


def closeness(features: Mapping[str, float], history: Sequence[Past]) -> list[float]:
    """How close each problem of the history is to one with ``features``: 1 where they are equal, and e times less for
    each FAR doublings by which the features differ in sum.
    """
    names = sorted(features)
    own = [scaled(features[name]) for name in names]
    apart = [
        sum(abs(scaled(past.features.get(name, 0.0)) - mine) for name, mine in zip(names, own, strict=True))
        for past in history
    ]
    return [exp(-distance / FAR) for distance in apart]


def slowdowns(past: Past) -> dict[Config, float]:
    """log(time / least time) of each config that has a time."""
    least = min(past.medians.values(), default=inf)
    return {config: log(time / least) for config, time in past.medians.items()}


def portfolio(space: SearchSpace, size: int) -> list[Config]:
    """Up to ``size`` configs of the space, so that each problem of the history has a fast one among the first few.

    Greedy, as for the facilities of a location problem: the next config is the one that reduces the mean slowdown most,
    a problem counting as much as it is close. So the first one has the best mean, and those after it win where it is
    slow. Ends early when no config reduces it.
    """
    weights = closeness(space.features, space.history)
    tables = [slowdowns(past) for past in space.history]
    known = sorted({config for table in tables for config in table} & space.known)
    left = [UNKNOWN] * len(tables)
    chosen: list[Config] = []

    def taken_off(config: Config) -> float:
        each = zip(weights, tables, left, strict=True)
        return sum(weight * max(0.0, now - table.get(config, inf)) for weight, table, now in each)

    while known and len(chosen) < size:
        best = max(known, key=taken_off)
        if taken_off(best) <= 0:
            break
        chosen.append(best)
        left = [min(now, table.get(best, inf)) for now, table in zip(left, tables, strict=True)]
    return chosen
