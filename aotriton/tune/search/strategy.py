"""The interface of a strategy: what to measure next, and whether that was all.

A new strategy is a module beside this one with a subclass of ``StrategyBase`` or ``Stepwise``, and an entry in
``strategies.py``.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Protocol

from aotriton.tune.search.space import Config, SearchSpace, Trial


class Strategy(Protocol):
    """``ask`` for configs, compile and measure them, ``tell`` the trials, until ``finished``.

    Trials may come late, in any order, and one by one: whoever asks need not wait for them before it asks again.
    """

    def ask(self, count: int) -> list[Config]:
        """Up to ``count`` configs, none of which was asked or told before; fewer, or none, while trials are missing
        without which nothing more can be chosen, and when finished.
        """

    def tell(self, trials: Iterable[Trial]) -> None:
        """What became of configs: of those that were asked, or of others that are known from before.

        ValueError where one is not of the space. A config that is told again has its later trial.
        """

    @property
    def finished(self) -> bool:
        """Whether nothing more will be asked for, whatever is told. Trials of earlier configs may still be missing."""

    @property
    def likely(self) -> list[Config]:
        """The configs that may be asked for next, the likeliest first: a compiler that has nothing to do may compile
        them.
        """


class StrategyBase(ABC):
    """The state that all strategies have: trials, pending configs, what is left of the budget, and a seeded draw."""

    def __init__(self, space: SearchSpace, seed: int = 0, budget: int | None = None) -> None:
        """``budget``: how many configs are asked at most."""
        self.space = space
        self.draw = random.Random(seed)
        self.left = len(space.configs) if budget is None else budget
        self.trials: dict[Config, Trial] = {}
        self.pending: set[Config] = set()

    @abstractmethod
    def propose(self, count: int) -> list[Config]:
        """Up to ``count`` configs that are ``new``, each once."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether ``propose`` has nothing more, whatever is told."""

    def ask(self, count: int) -> list[Config]:
        found = self.propose(min(count, self.left)) if min(count, self.left) > 0 else []
        self.pending.update(found)
        self.left -= len(found)
        return found

    def tell(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            if trial.config not in self.space.known:
                raise ValueError(f"{trial.config} is not of the space that is searched")
            self.trials[trial.config] = trial
            self.pending.discard(trial.config)

    @property
    def finished(self) -> bool:
        return self.left <= 0 or self.done

    @property
    def likely(self) -> list[Config]:
        return []

    def new(self, config: Config) -> bool:
        return config not in self.trials and config not in self.pending

    def time(self, config: Config) -> float:
        """The config's median in µs; infinite where there is none."""
        trial = self.trials.get(config)
        return trial.median_us or float("inf") if trial else float("inf")

    def ranked(self) -> list[Config]:
        """The configs that have a time, the fastest first."""
        return sorted((config for config, trial in self.trials.items() if trial.median_us), key=self.time)


class Stepwise(StrategyBase):
    """A strategy that learns from whole batches: it chooses a batch when it has the trials of all batches before."""

    def __init__(self, space: SearchSpace, seed: int = 0, budget: int | None = None) -> None:
        super().__init__(space, seed, budget)
        self._batches = self.batches()
        self._waiting: list[Config] = []
        self._ended = False

    @abstractmethod
    def batches(self) -> Iterator[Iterable[Config]]:
        """The batches, one after the other; configs that are no longer ``new`` are left out. After a ``yield``, the
        trials of that whole batch are known.
        """

    def propose(self, count: int) -> list[Config]:
        self._go_on()
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        return found

    @property
    def done(self) -> bool:
        self._go_on()
        return self._ended

    def _go_on(self) -> None:
        """Goes to the next batch that has new configs, once all trials of the last one are known."""
        self._waiting = [config for config in self._waiting if self.new(config)]
        while not (self._waiting or self.pending or self._ended):
            batch = next(self._batches, None)
            self._ended = batch is None
            self._waiting = [config for config in dict.fromkeys(batch or ()) if self.new(config)]
