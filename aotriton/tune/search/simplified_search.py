"""A search and what follows it: when a strategy is finished, its winner is simplified where that costs no time."""

from __future__ import annotations

from collections.abc import Iterable

from aotriton.tune.search.simplify import Simplify, plainer
from aotriton.tune.search.space import Config, SearchSpace, Trial
from aotriton.tune.search.strategies import strategy
from aotriton.tune.search.strategy import Strategy

WITHIN = 0.005  # of the winner's time: what two timings of one image differ by
MOST = 16  # trials


class SimplifiedSearch:
    """A ``Strategy`` that asks for what the strategy called ``name`` asks for, and then for what simplifying its winner
    needs; ``budget`` is for both.

    ``known``: earlier trials, which the strategy is told.
    """

    def __init__(
        self, space: SearchSpace, name: str, seed: int = 0, budget: int | None = None, known: Iterable[Trial] = ()
    ) -> None:
        self._space = space
        self._simplifying = MOST if budget is None else min(MOST, budget // 4)
        self._strategy = strategy(name, space, seed, None if budget is None else budget - self._simplifying)
        self._trials = {trial.config: trial for trial in known}
        self._strategy.tell(self._trials.values())
        self._pending: set[Config] = set()
        self._simplify: Simplify | None = None

    @property
    def winner(self) -> Config | None:
        """The plainest config that is as fast as any, once there is one."""
        return self._simplify.winner if self._simplify else None

    def ask(self, count: int) -> list[Config]:
        found = self._now().ask(count)
        self._pending.update(found)
        return found

    def tell(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            self._trials[trial.config] = trial
            self._pending.discard(trial.config)
            (self._simplify or self._strategy).tell([trial])

    @property
    def finished(self) -> bool:
        return not self._pending and self._now().finished

    @property
    def likely(self) -> list[Config]:
        timed = [trial for trial in self._trials.values() if trial.median_us]
        if self._simplify or not timed:
            return []
        best = min(timed, key=lambda trial: trial.median_us or 0.0)
        found = [*self._strategy.likely, *plainer(self._space, best.config)]
        return [config for config in found if config not in self._trials and config not in self._pending]

    def _now(self) -> Strategy:
        timed = any(trial.median_us for trial in self._trials.values())
        if self._simplify is None and self._strategy.finished and not self._pending and timed:
            self._simplify = Simplify(self._space, self._trials.values(), WITHIN, self._simplifying)
        return self._simplify or self._strategy
