"""The default: begins with what won on other problems, then measures what a model of all of them expects to be fast.

1. Start: a portfolio of configs that won elsewhere, the default config, and random ones, more of them where nothing is
   known.
2. Rounds: a model scores all configs that were not tried, and the most promising ones are measured, until that gains
   nothing any more.
3. Polish: all neighbours of the best configs that are not each other's neighbours, until none of them is faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from aotriton.tune.search.model import Model
from aotriton.tune.search.portfolio import portfolio
from aotriton.tune.search.space import Config, SearchSpace, Trial
from aotriton.tune.search.strategy import Search

PORTFOLIO = 8
COLD, WARM = 24, 12  # trials of the start, without a history and with one
BATCH = 8  # one of them is random
AHEAD = 8  # trials that a round does not wait for
GAIN = 0.005  # what counts as one, relatively: less is noise
PATIENCE = 16  # trials of the rounds without a gain, after which they end
FAMILIES = 2  # how many of the best are polished
MOST_SCORED = 6000  # configs; of more, those around the best and a random choice


class Transfer(Search):
    def __init__(self, space: SearchSpace, seed: int = 0, budget: int | None = None) -> None:
        super().__init__(space, seed, budget)
        known, some = portfolio(space, PORTFOLIO), self.draw.sample(space.configs, min(len(space.configs), COLD))
        size = WARM if known else COLD
        self._planned = list(dict.fromkeys([*known[:1], space.default, *known[1:], *some]))[:size]
        self._polishing = False
        self._best, self._since = inf, -size  # the time of the last gain in µs, and the trials since then
        self._model = Model(space)

    def tell(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            super().tell([trial])
            self._since += 1
            if self.time(trial.config) < self._best * (1 - GAIN):
                self._best, self._since = self.time(trial.config), min(self._since, 0)

    def propose(self, count: int) -> list[Config]:
        found = self._plan()[:count]
        self._planned = self._planned[len(found) :]
        return found

    @property
    def done(self) -> bool:
        return not self.under_way and not self._plan()

    def _plan(self) -> list[Config]:
        """What is to be measured next; nothing where that depends on what is under way."""
        self._planned = [config for config in self._planned if self.new(config)]
        if not self._planned and not self._polishing and len(self.under_way) <= AHEAD:
            self._planned = [] if self._since >= PATIENCE else self._round()
            self._polishing = not self._planned
        if not self._planned and self._polishing:
            near = (config for best in self._families() for config in self.space.neighbours(best))
            self._planned = [config for config in dict.fromkeys(near) if self.new(config)]
        return self._planned

    def _round(self) -> list[Config]:
        """The most promising configs, and a random one."""
        fresh = self._fresh()
        if not fresh:
            return []
        scores = self._model.scores(self.trials, fresh, self.draw.getrandbits(31))
        chosen = [fresh[place] for place in scores.argsort(kind="stable")[: BATCH - 1]]
        return list(dict.fromkeys([*chosen, self.draw.choice(fresh)]))

    def _fresh(self) -> list[Config]:
        """All configs that were not tried; of a large space a random choice, and the surroundings of the best."""
        fresh = [config for config in self.space.configs if self.new(config)]
        if len(fresh) <= MOST_SCORED:
            return fresh
        around = [[*self.space.neighbours(best), *self.space.diagonal(best)] for best in self.ranked()[:BATCH]]
        near = [config for configs in around for config in configs if self.new(config)]
        return list(dict.fromkeys([*near, *self.draw.sample(fresh, MOST_SCORED)]))

    def _families(self) -> list[Config]:
        """The fastest configs that are not each other's neighbours."""
        found: list[Config] = []
        for config in self.ranked():
            if all(sum(one != other for one, other in zip(config, best, strict=True)) > 1 for best in found):
                found.append(config)
            if len(found) == FAMILIES:
                break
        return found
