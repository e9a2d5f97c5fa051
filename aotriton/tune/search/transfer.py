"""The default: begins with what won on other problems, then measures what a model of all of them expects to be fast.

1. Start: a portfolio of configs that won elsewhere, the default config and random ones, more of them where nothing is
   known; the other half are those that should cost least by what is known of configs beforehand.
2. Rounds: a model scores all configs that were not tried, and the most promising ones are measured, until that gains
   nothing any more.
3. Scan: of each of the lowest costs the most promising config. A fast config may lie where nothing was tried.
4. Polish: all configs that differ from the best one in a single parameter. A value may be good where its neighbours are
   not, and a model that saw it in slow configs alone does not say so. Also, around the best config of another tile, the
   most promising ones of those that differ in one parameter, or in two by one step each.
5. Check, together with the polish: one config of each of the tiles that may be good by how much the model's trees
   disagree. A config that is fast alone is in none of the lists before. There are two checks at least: the second one
   knows what the first one has seen of the tiles.
6. Last round: what the model expects most of when it has seen the last check. The check tries another config of a tile
   than the best one, and so it is what tells the model of that one.

After a gain it goes on with 2, until polish, check and last round gain nothing.

While the first rounds wait for trials, there is another look at random configs of the lowest costs: rounds stay where
something was fast, and compilers have nothing else to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import zip_longest
from math import inf

from aotriton.tune.search.model import LUCK, Model
from aotriton.tune.search.portfolio import portfolio
from aotriton.tune.search.space import COST, WARP, Config, SearchSpace, Trial
from aotriton.tune.search.strategy import StrategyBase

PORTFOLIO = 8
COLD, WARM = 16, 10  # trials of the start, without a history and with one
BATCH = 4  # trials of a round
AHEAD = 2  # trials that the next round does not wait for
GAIN = 0.005  # what counts as one, relatively: less is noise
PATIENCE = 8  # trials of the rounds without a gain, after which they end
POLISH = 6  # trials around the best config of another tile
CHECKS = 2  # at least; one more after a gain
TILES = 8  # trials of a check: one of each of the tiles that may be good
TRUST = 1.0  # a check's LUCK of tiles: there the model is less sure than it is of what is near the best
LIKELY = 8  # configs of each kind that may be next: of the next round, and of the polish
COSTS = 8  # the lowest ones, which the other look and the scan take configs of
LOOK = 20  # trials of the other look
MOST_SCORED = 6000  # configs; of more, those around the best and a random choice


class Transfer(StrategyBase):
    def __init__(self, space: SearchSpace, seed: int = 0, budget: int | None = None) -> None:
        super().__init__(space, seed, budget)
        known, some = portfolio(space, PORTFOLIO), self.draw.sample(space.configs, min(len(space.configs), COLD))
        size = WARM if known else COLD
        blind = list(dict.fromkeys([*known[:1], space.default, *known[1:], *some]))[:size]
        likely = self._least(size // 2, size // 2)
        self._planned = list(dict.fromkeys([*blind[: size - len(likely)], *likely, *blind]))[:size]
        self._scanned = False
        self._lined: set[Config] = set()  # the best ones, whose lines were measured
        self._polished: set[Config] = set()  # the others that were polished
        self._checked, self._checks = inf, 0  # the best time in µs at the last check, and how many there were
        self._ended = inf  # the best time in µs at the last round
        self._best, self._since = inf, -size  # the time of the last gain in µs, and the trials since then
        self._model = Model(space)
        self._ranked: list[Config] = []  # what the last round could have asked for, the most promising first
        self._next: list[Config] = []  # what the next check may ask for, once rounds have ended
        self._look: list[Config] | None = None  # what is left of the other look; None before it
        self._looking: set[Config] = set()

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
            self._since += 1
            if self.time(trial.config) < self._best * (1 - GAIN):
                self._best, self._since = self.time(trial.config), min(self._since, 0)

    def propose(self, count: int) -> list[Config]:
        found = self._plan()[:count]
        self._planned = self._planned[len(found) :]
        if not found:
            found = self._other_look()[:count]
            self._looking.update(found)
        return found

    @property
    def done(self) -> bool:
        return not (self._plan() or self._other_look() or self.pending)

    @property
    def likely(self) -> list[Config]:
        """What the next round, the polish or the next check may ask for, by what the last one knew."""
        fresh = [config for config in self._ranked if self.new(config)]
        lines = [config for best in self._best_two()[:1] for config in self.space.lines(best) if self.new(config)]
        near = {config for other in self._best_two()[1:] for config in self._around(other)}
        around = [config for config in fresh if config in near]
        of_costs = [] if self._scanned else self._first_of_each_cost(fresh)
        checked = [config for config in self._next if self.new(config)]
        return list(dict.fromkeys([*checked, *fresh[:LIKELY], *of_costs, *lines, *around[:LIKELY]]))

    def _plan(self) -> list[Config]:
        """The configs to be measured next; none where they depend on pending ones."""
        self._planned = [config for config in self._planned if self.new(config)]
        if not self._planned and self._since < PATIENCE and len(self.pending - self._looking) <= AHEAD:
            self._ranked, self._next = self._promising(self._fresh()), []
            self._planned = self._ranked[:BATCH]
        if not self._planned and not self.pending:
            self._planned = self._scan() or list(dict.fromkeys([*self._polish(), *self._check()])) or self._last_round()
        return self._planned

    def _other_look(self) -> list[Config]:
        """What is left of the other look, which begins with the first call."""
        if self._look is None:
            fresh = list(filter(self.new, self.space.configs))
            self._look = self._least(LOOK, COSTS) or self.draw.sample(fresh, min(LOOK, len(fresh)))
        self._look = list(filter(self.new, self._look))
        return self._look

    def _scan(self) -> list[Config]:
        """Of each of the lowest costs the most promising new config, once."""
        if self._scanned:
            return []
        self._scanned = True
        return self._first_of_each_cost(self._promising(self._fresh()))

    def _first_of_each_cost(self, configs: Iterable[Config]) -> list[Config]:
        """The first config of each of the lowest COSTS that these configs have."""
        first: dict[float, Config] = {}
        for config in configs:
            if (cost := self._cost(config)) is not None:
                first.setdefault(cost, config)
        return [first[cost] for cost in sorted(first)[:COSTS]]

    def _polish(self) -> list[Config]:
        """The lines of the best config, and the most promising ones around the best of another tile; each once."""
        found: list[Config] = []
        for best in self._best_two()[:1]:
            if best not in self._lined:
                self._lined.add(best)
                found += filter(self.new, self.space.lines(best))
        for other in self._best_two()[1:]:
            if other not in self._lined | self._polished:
                self._polished.add(other)
                found += self._promising(filter(self.new, self._around(other)))[:POLISH]
        return list(dict.fromkeys(found))

    def _check(self) -> list[Config]:
        """The first config of each of the tiles that may be good; again after a gain, and CHECKS times at least.

        The most promising configs may all be of one tile; and tiles of one cost hide each other from the scan.
        """
        if self._checks >= CHECKS and not self._best < self._checked * (1 - GAIN):
            return []
        self._checked, self._checks = self._best, self._checks + 1
        tiles = self._first_of_each_tile()
        self._next = [*tiles[TILES : 2 * TILES], *self._promising(self._fresh())[:BATCH]]
        return tiles[:TILES]

    def _last_round(self) -> list[Config]:
        """The most promising configs; again after a gain."""
        if not self._best < self._ended * (1 - GAIN):
            return []
        self._ended = self._best
        return self._promising(self._fresh())[:BATCH]

    def _first_of_each_tile(self) -> list[Config]:
        """The new config of each tile, and way to compute it, that may be the best one, the most promising ones first.

        A config that is fast alone, among slow ones of its tile, is one that the trees disagree about.
        """
        first: dict[Config, Config] = {}
        for config in self._promising(self._fresh(), TRUST):
            first.setdefault(self._way(config), config)
        return [*first.values()]

    def _cost(self, config: Config) -> float | None:
        """What the config should cost by the kernel's description, where that says it."""
        return self.space.facts.get(config, {}).get(COST)

    def _tile(self, config: Config) -> object:
        """What configs of one tile have in common: what is known of them beforehand, but for a warp's part. There is
        one tile where nothing is known.
        """
        facts = self.space.facts.get(config, {})
        return tuple(value for name, value in sorted(facts.items()) if name != WARP)

    def _way(self, config: Config) -> Config:
        """The tile of the config, and how it is computed: the values of those parameters that tiles depend on. One tile
        may be the work of two consumers together, or of one where two take turns.
        """
        return tuple(pair for pair in config if pair[0] in self._decisive)

    @cached_property
    def _decisive(self) -> frozenset[str]:
        """The names of the parameters that tiles depend on."""
        found = set()
        for index, name in enumerate(self.space.parameters):
            tiles: dict[Config, object] = {}  # by what else a config has
            for config in self.space.configs:
                tile = self._tile(config)
                if tiles.setdefault((*config[:index], *config[index + 1 :]), tile) != tile:
                    found.add(name)
                    break
        return frozenset(found)

    def _best_two(self) -> list[Config]:
        """The best config, and the best one of another tile."""
        best = self.ranked()[:1]
        return best + [config for config in self.ranked() if self._tile(config) != self._tile(best[0])][:1]

    def _around(self, config: Config) -> list[Config]:
        return [*self.space.lines(config), *self.space.diagonal(config)]

    def _promising(self, configs: Iterable[Config], luck: float = LUCK) -> list[Config]:
        """The configs, those first that the model expects to be fastest, with so many standard deviations of luck."""
        if not (fresh := list(configs)):
            return []
        scores = self._model.scores(self.trials, fresh, self.draw.getrandbits(31), luck)
        return [fresh[index] for index in scores.argsort(kind="stable")]

    def _fresh(self) -> list[Config]:
        """All configs that were not tried; of a large space a random choice, and the surroundings of the best."""
        fresh = [config for config in self.space.configs if self.new(config)]
        if len(fresh) <= MOST_SCORED:
            return fresh
        near = [config for best in self.ranked()[:BATCH] for config in self._around(best) if self.new(config)]
        return list(dict.fromkeys([*near, *self.draw.sample(fresh, MOST_SCORED)]))
