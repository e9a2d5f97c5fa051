"""The strategies by name, and how many trials each may ask for."""

from __future__ import annotations

from aotriton.tune.search.lfbo import Lfbo
from aotriton.tune.search.pattern import Pattern
from aotriton.tune.search.space import SearchSpace
from aotriton.tune.search.strategy import Strategy, StrategyBase
from aotriton.tune.search.sweep import Exhaustive, Random
from aotriton.tune.search.transfer import Transfer

STRATEGIES: dict[str, type[StrategyBase]] = {
    "exhaustive": Exhaustive,
    "random": Random,
    "pattern": Pattern,
    "lfbo": Lfbo,
    "transfer": Transfer,
}
DEFAULT = "transfer"

BUDGETS: dict[str, dict[str, int | None]] = {
    "quick": {"exhaustive": None, "random": 200, "pattern": 200, "lfbo": 200, "transfer": 48},
    "full": {"exhaustive": None, "random": 1000, "pattern": None, "lfbo": None, "transfer": None},
}


def strategy(name: str, space: SearchSpace, seed: int = 0, budget: int | None = None) -> Strategy:
    """The strategy of this name; ``budget`` is the most trials that it asks for. ValueError where there is none."""
    if name not in STRATEGIES:
        raise ValueError(f"no strategy {name!r}, only {', '.join(STRATEGIES)}")
    return STRATEGIES[name](space, seed, budget)
