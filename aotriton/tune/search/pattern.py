"""Pattern search: the best of a random start walk through their neighbours until none of those is faster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aotriton.tune.search.space import Config
from aotriton.tune.search.strategy import Stepwise

START, COPIES = 32, 4
GAIN = 0.001  # a smaller one is noise, and no reason to walk on


class Pattern(Stepwise):
    """R. Hooke, T. Jeeves, "Direct search" solution of numerical and statistical problems, 1961, over ordered values.

    A copy measures all configs one step away and goes on to the fastest; where none is faster it measures those two
    steps away once, and stops if that does not help either.
    """

    def batches(self) -> Iterator[Iterable[Config]]:
        configs = self.space.configs
        yield (self.space.default, *self.draw.sample(configs, min(START, len(configs))))
        walking = [(config, False) for config in self.ranked()[:COPIES]]
        while walking:
            reach = {at: [*(self.space.diagonal if far else self.space.neighbours)(at)] for at, far in walking}
            yield (config for configs in reach.values() for config in configs)
            walked: dict[Config, bool] = {}
            for at, far in walking:
                best = min(reach[at], key=self.time, default=at)
                if self.time(best) < self.time(at) * (1 - GAIN):
                    walked[best] = False
                elif not far:
                    walked.setdefault(at, True)
            walking = list(walked.items())
