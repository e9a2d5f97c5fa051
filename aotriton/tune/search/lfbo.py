"""LFBO pattern search: copies walk as in pattern search, and a classifier says which neighbours are worth measuring.

J. Song, L. Yu, W. Neiswanger, S. Ermon, A General Recipe for Likelihood-free Bayesian Optimization, ICML 2022; as a
pattern search it is Helion's (2025). Two things differ from how it was published: a neighbour that the classifier
rejected may come back, and at the end all of the best one's neighbours are measured, until none of them is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from aotriton.tune.search.encoding import rows
from aotriton.tune.search.pattern import GAIN
from aotriton.tune.search.space import Config
from aotriton.tune.search.strategy import Stepwise

if TYPE_CHECKING:
    import numpy as np

START, COPIES, GENERATIONS = 100, 5, 20
NEIGHBOURS, RADIUS = 300, 2
KEPT = 0.1  # the part of the neighbours that is measured
GOOD = 0.1  # the fastest part of the trials, which the classifier learns to recognise
TREES = 100


class Lfbo(Stepwise):
    """Random trials, then the walk from the best ones."""

    def batches(self) -> Iterator[Iterable[Config]]:
        configs = self.space.configs
        yield (self.space.default, *self.draw.sample(configs, min(START, len(configs))))
        walking = self.ranked()[:COPIES]
        for _ in range(GENERATIONS):
            forest = self._fitted()
            chosen = {at: self._chosen(at, forest) for at in walking}
            if not any(chosen.values()):
                break
            yield (config for configs in chosen.values() for config in configs)
            walked = [(at, min(configs, key=self.time, default=at)) for at, configs in chosen.items()]
            walking = [best for at, best in walked if self.time(best) < self.time(at) * (1 - GAIN)]
            walking = list(dict.fromkeys(walking))
        yield from self._finishing()

    def _finishing(self) -> Iterator[Iterable[Config]]:
        while best := next(iter(self.ranked()), None):
            yield self.space.neighbours(best)
            if not self.time(self.ranked()[0]) < self.time(best) * (1 - GAIN):
                return

    def _fitted(self) -> Any:
        """A forest that tells the fastest tenth from the rest, failures included; None where there is no rest.

        A fast config weighs as much as it is faster than the slowest of the tenth: then the forest estimates expected
        improvement.
        """
        import numpy as np
        from sklearn.ensemble import RandomForestClassifier

        tried = list(self.trials)
        times = np.array([self.time(config) for config in tried], float)
        edge = np.quantile(times[np.isfinite(times)], GOOD) if np.isfinite(times).any() else 0.0
        good = times <= edge
        if good.all() or not good.any():
            return None
        weights = np.where(good, edge - times, 0.0)
        weights = np.where(good, weights / max(weights[good].mean(), 1e-9) + 1e-3, 1.0)
        forest = RandomForestClassifier(TREES, random_state=self.draw.getrandbits(31), n_jobs=1)
        return forest.fit(self._rows(tried), good, sample_weight=weights)

    def _chosen(self, at: Config, forest: Any) -> list[Config]:
        """The tenth of random configs around ``at`` that are most likely good, and unlike each other."""
        import numpy as np

        around = [config for config in self._around(at) if self.new(config)]
        if not around:
            return []
        count = max(1, round(KEPT * len(around)))
        if forest is None:
            return around[:count]
        encoded = self._rows(around)
        likely, leaves = forest.predict_proba(encoded)[:, 1], forest.apply(encoded)
        alike = np.zeros(len(around))
        chosen: list[int] = []
        for taken in range(count):
            score = likely - alike / max(taken, 1)
            score[chosen] = -np.inf
            chosen.append(int(np.argmax(score)))
            alike += (leaves == leaves[chosen[-1]]).mean(axis=1)
        return [around[one] for one in chosen]

    def _around(self, at: Config) -> list[Config]:
        """Random configs of the space that are up to RADIUS steps from ``at`` in up to RADIUS parameters."""
        found: dict[Config, None] = {}
        for _ in range(NEIGHBOURS):
            config = dict(at)
            for name in self.draw.sample(list(config), min(RADIUS, len(config))):
                values = self.space.parameters[name]
                index = values.index(config[name])
                config[name] = self.draw.choice(values[max(0, index - RADIUS) : index + RADIUS + 1])
            if (one := tuple(config.items())) in self.space.known:
                found[one] = None
        return list(found)

    def _rows(self, configs: list[Config]) -> np.ndarray:
        return rows(configs, {}, (), len(self.space.parameters))
