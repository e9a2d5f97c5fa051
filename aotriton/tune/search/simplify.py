"""From a winner to a simpler one: parameters go to their defaults where that costs nothing within noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aotriton.tune.search.space import Config, SearchSpace, Trial
from aotriton.tune.search.strategy import Stepwise


class Simplify(Stepwise):
    """Asks for the configs that it needs to know; ``winner`` is the simplest one found so far.

    ``within``: the part of the winner's time that a simpler config may take longer. Times are compared with the first
    winner's, so that steps do not add up. ValueError where no trial has a time.
    """

    def __init__(self, space: SearchSpace, trials: Iterable[Trial], within: float, budget: int | None = None) -> None:
        super().__init__(space, 0, budget)
        self.tell(trials)
        if not self.ranked():
            raise ValueError("no config has a time, so there is no winner to simplify")
        self.winner = self.ranked()[0]
        self._limit = self.time(self.winner) * (1 + within)

    def batches(self) -> Iterator[Iterable[Config]]:
        while True:
            simpler = plainer(self.space, self.winner)
            yield simpler
            as_fast = [config for config in simpler if self.time(config) <= self._limit]
            if not as_fast:
                return
            self.winner = min(as_fast, key=self.time)
            if len(as_fast) > 1:  # all of them at once is often as fast, and saves the rounds between
                plain = {name for config in as_fast for name, value in config if value == self.space.defaults.get(name)}
                joint = tuple(
                    (name, self.space.defaults[name] if name in plain else value) for name, value in self.winner
                )
                yield [joint] if joint in self.space.known else []
                self.winner = joint if self.time(joint) <= self._limit else self.winner


def plainer(space: SearchSpace, config: Config) -> list[Config]:
    """The configs that have one more parameter at its default."""
    found = []
    for index, (name, value) in enumerate(config):
        step = (*config[:index], (name, space.defaults.get(name, value)), *config[index + 1 :])
        if step != config and step in space.known:
            found.append(step)
    return found
