"""Searches that learn nothing: every config in the description's order, or in a random one."""

from __future__ import annotations

from aotriton.tune.search.space import Config, SearchSpace
from aotriton.tune.search.strategy import StrategyBase


class Exhaustive(StrategyBase):
    """Every config, in the order of the space."""

    def __init__(self, space: SearchSpace, seed: int = 0, budget: int | None = None) -> None:
        super().__init__(space, seed, budget)
        self._order = self.order()

    def order(self) -> list[Config]:
        return list(self.space.configs)

    def propose(self, count: int) -> list[Config]:
        self._order = [config for config in self._order if self.new(config)]
        found, self._order = self._order[:count], self._order[count:]
        return found

    @property
    def done(self) -> bool:
        return not any(map(self.new, self._order))


class Random(Exhaustive):
    """Every config, in a random order."""

    def order(self) -> list[Config]:
        return self.draw.sample(self.space.configs, len(self.space.configs))
