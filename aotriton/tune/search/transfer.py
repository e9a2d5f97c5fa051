"""The default: begins with what won on other problems, then measures what a model of all of them expects to be fast.

1. Start: a portfolio of configs that won elsewhere, the default config and random ones, more of them where nothing is
   known; the other half are those that should cost least by what is known of configs beforehand.
2. Rounds: a model scores all configs that were not tried, and the most promising ones are measured, until that gains
   nothing any more.
3. Scan: of each of the lowest costs the most promising config. A fast config may lie where nothing was tried.
4. Polish: around the best two configs that have little in common, the most promising ones of those that differ in one
   parameter, or in two by one step each; the first time with another scan. Then again from 2, if something was
   gained, until the best ones stay.
5. Generations of LFBO (``lfbo.py``) that begin with all of these trials.

While the first rounds wait for trials, there is another look at random configs of the lowest costs: rounds stay where
something was fast, and compilers have nothing else to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from math import inf

from aotriton.tune.search.lfbo import Generations
from aotriton.tune.search.model import Model
from aotriton.tune.search.portfolio import portfolio
from aotriton.tune.search.space import COST, Config, SearchSpace, Trial
from aotriton.tune.search.strategy import StrategyBase

PORTFOLIO = 8
COLD, WARM = 16, 10  # trials of the start, without a history and with one
BATCH = 4  # trials of a round
AHEAD = 2  # trials that the next round does not wait for
GAIN = 0.005  # what counts as one, relatively: less is noise
PATIENCE = 8  # trials of the rounds without a gain, after which they end
POLISH, FAMILIES = 8, 2  # trials around each of the best, and how many of these
LIKELY = 8  # configs of each kind that may be next: of the next round, and of the polish
COSTS = 8  # the lowest ones, which the other look and a scan take configs of
LOOK = 20  # trials of the other look
SCANS = 2  # the third step, and what the first polish brings along
MOST_SCORED = 6000  # configs; of more, those around the best and a random choice


class Transfer(StrategyBase):
    def __init__(self, space: SearchSpace, seed: int = 0, budget: int | None = None) -> None:
        super().__init__(space, seed, budget)
        known, some = portfolio(space, PORTFOLIO), self.draw.sample(space.configs, min(len(space.configs), COLD))
        size = WARM if known else COLD
        blind = list(dict.fromkeys([*known[:1], space.default, *known[1:], *some]))[:size]
        likely = self._least(size // 2, size // 2)
        self._planned = list(dict.fromkeys([*blind[: size - len(likely)], *likely, *blind]))[:size]
        self._scans = SCANS  # that are left
        self._polished: set[Config] = set()
        self._best, self._since = inf, -size  # the time of the last gain in µs, and the trials since then
        self._model = Model(space)
        self._ranked: list[Config] = []  # what the last round could have asked for, the most promising first
        self._look: list[Config] | None = None  # what is left of the other look; None before it
        self._looking: set[Config] = set()
        self._generations: Generations | None = None

    def _least(self, count: int, costs: int) -> list[Config]:
        """Up to ``count`` new configs of the lowest ``costs``, random ones: one of each cost, then a second one, and so
        on.
        """
        by_cost: dict[float, list[Config]] = {}
        for config in filter(self.new, self.space.configs):
            if (cost := self._cost(config)) is not None:
                by_cost.setdefault(cost, []).append(config)
        least = [by_cost[cost] for cost in sorted(by_cost)[:costs]]
        for configs in least:
            self.draw.shuffle(configs)
        return [config for turn in zip_longest(*least) for config in turn if config is not None][:count]

    def tell(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            super().tell([trial])
            if self._generations:
                self._generations.tell([trial])
            self._since += 1
            if self.time(trial.config) < self._best * (1 - GAIN):
                self._best, self._since = self.time(trial.config), min(self._since, 0)

    def propose(self, count: int) -> list[Config]:
        if generations := self._last_stage():
            return generations.ask(count)
        found = self._plan()[:count]
        self._planned = self._planned[len(found) :]
        if not found:
            found = self._other_look()[:count]
            self._looking.update(found)
        return found

    @property
    def done(self) -> bool:
        generations = self._last_stage()
        return generations is not None and generations.finished

    def _last_stage(self) -> Generations | None:
        """The generations, once nothing else is left."""
        if self._generations is None and not (self._plan() or self._other_look() or self.pending):
            self._generations = Generations(self.space, self.draw.getrandbits(31))
            self._generations.tell(self.trials.values())
        return self._generations

    @property
    def likely(self) -> list[Config]:
        """What the next round or the polish may ask for, by what the last round knew."""
        if self._generations:
            return []
        fresh = [config for config in self._ranked if self.new(config)]
        near = {config for best in self._families() for config in self._around(best)}
        around = [config for config in fresh if config in near]
        of_costs = self._first_of_each_cost(fresh) if self._scans else []
        return list(dict.fromkeys([*fresh[:LIKELY], *of_costs, *around[:LIKELY]]))

    def _plan(self) -> list[Config]:
        """The configs to be measured next; none where they depend on pending ones."""
        self._planned = [config for config in self._planned if self.new(config)]
        if not self._planned and self._since < PATIENCE and len(self.pending - self._looking) <= AHEAD:
            self._ranked = self._promising(self._fresh())
            self._planned = self._ranked[:BATCH]
        if not self._planned and not self.pending and self._scans == SCANS:
            self._planned = self._scan()
        if not self._planned and not self.pending and (polish := self._polish()):
            self._planned = list(dict.fromkeys([*polish, *self._scan()]))
        return self._planned

    def _other_look(self) -> list[Config]:
        """What is left of the other look, which begins with the first call."""
        if self._look is None:
            fresh = list(filter(self.new, self.space.configs))
            self._look = self._least(LOOK, COSTS) or self.draw.sample(fresh, min(LOOK, len(fresh)))
        self._look = list(filter(self.new, self._look))
        return self._look

    def _scan(self) -> list[Config]:
        """Of each of the lowest costs the most promising new config; none when all scans are over."""
        if not self._scans:
            return []
        self._scans -= 1
        return self._first_of_each_cost(self._promising(self._fresh()))

    def _first_of_each_cost(self, configs: Iterable[Config]) -> list[Config]:
        """The first config of each of the lowest COSTS that these configs have."""
        first: dict[float, Config] = {}
        for config in configs:
            if (cost := self._cost(config)) is not None:
                first.setdefault(cost, config)
        return [first[cost] for cost in sorted(first)[:COSTS]]

    def _polish(self) -> list[Config]:
        """The most promising configs around those of the best whose surroundings were not measured."""
        found: list[Config] = []
        for best in self._families():
            if best not in self._polished:
                self._polished.add(best)
                found += self._promising(filter(self.new, self._around(best)))[:POLISH]
        return list(dict.fromkeys(found))

    def _cost(self, config: Config) -> float | None:
        """What the config should cost by the kernel's description, where that says it."""
        return self.space.facts.get(config, {}).get(COST)

    def _families(self) -> list[Config]:
        """The fastest configs that differ from each other in more than two parameters."""
        found: list[Config] = []
        for config in self.ranked():
            if all(sum(one != other for one, other in zip(config, best, strict=True)) > 2 for best in found):
                found.append(config)
            if len(found) == FAMILIES:
                break
        return found

    def _around(self, config: Config) -> list[Config]:
        return [*self.space.lines(config), *self.space.diagonal(config)]

    def _promising(self, configs: Iterable[Config]) -> list[Config]:
        """The configs, those first that the model expects to be fastest."""
        if not (fresh := list(configs)):
            return []
        scores = self._model.scores(self.trials, fresh, self.draw.getrandbits(31))
        return [fresh[index] for index in scores.argsort(kind="stable")]

    def _fresh(self) -> list[Config]:
        """All configs that were not tried; of a large space a random choice, and the surroundings of the best."""
        fresh = [config for config in self.space.configs if self.new(config)]
        if len(fresh) <= MOST_SCORED:
            return fresh
        near = [config for best in self.ranked()[:BATCH] for config in self._around(best) if self.new(config)]
        return list(dict.fromkeys([*near, *self.draw.sample(fresh, MOST_SCORED)]))
