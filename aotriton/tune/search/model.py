"""A model of trials, of this problem and of others: how fast the configs that were not tried are expected to be."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import log
from typing import TYPE_CHECKING, Any

from aotriton.tune.search.encoding import rows, scaled
from aotriton.tune.search.portfolio import closeness, slowdowns
from aotriton.tune.search.space import Config, SearchSpace, Trial

if TYPE_CHECKING:
    import numpy as np

OWN = 6.0  # what a trial of the problem itself weighs, beside one of a problem just like it
TREES = 64
SLOWEST = log(4)  # it does not matter how much slower than this a config is
LUCK = 0.5  # how many standard deviations of the trees a config is usually trusted to be faster than their mean
MOST_ROWS = 2000  # of the history, the closest problems first


class Model:
    """Learns log(time / the problem's least time) from config, facts and the problem's features; a failure is SLOWEST.

    A random forest (L. Breiman, 2001): it needs no scales and little time, and cliffs are no harder for it than slopes.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._features = sorted(space.features)
        self._facts = sorted({name for facts in space.facts.values() for name in facts})

    def scores(
        self, trials: Mapping[Config, Trial], configs: list[Config], seed: int, luck: float = LUCK
    ) -> np.ndarray:
        """An optimistic estimate of log(time / least time) for each config; less is better. ``luck``: by how many
        standard deviations of the trees.
        """
        import numpy as np
        from sklearn.ensemble import RandomForestRegressor

        times = np.array([trial.median_us or np.inf for trial in trials.values()], float)
        least = times.min(initial=np.inf)
        own = np.log(times / least) if np.isfinite(least) else times
        past_x, past_y, past_weights = self._history
        x = np.concatenate([self._rows(list(trials), self._space.facts, self._space.features), past_x])
        y = np.minimum(np.concatenate([own, past_y]), SLOWEST)
        weights = np.concatenate([np.full(len(own), OWN), past_weights])
        if not len(y):
            return np.zeros(len(configs))
        forest = RandomForestRegressor(TREES, max_features=0.5, random_state=seed, n_jobs=1)
        forest.fit(x, y, sample_weight=weights)
        encoded = self._rows(configs, self._space.facts, self._space.features)
        each = np.stack([tree.predict(encoded) for tree in forest.estimators_])
        return np.asarray(each.mean(axis=0) - luck * each.std(axis=0))

    @cached_property
    def _history(self) -> tuple[Any, Any, Any]:
        """Rows, targets (infinite where the config failed) and weights of the history."""
        import numpy as np

        history = self._space.history
        near = sorted(zip(closeness(self._space.features, history), history, strict=True), key=lambda pair: -pair[0])
        x, y, weights = [self._rows([], {}, {})], [np.empty(0)], [np.empty(0)]
        for weight, past in near:
            if sum(map(len, y)) < MOST_ROWS:
                targets = {**slowdowns(past), **dict.fromkeys(sorted(past.failed), np.inf)}
                x.append(self._rows(list(targets), past.facts, past.features))
                y.append(np.array(list(targets.values())))
                weights.append(np.full(len(targets), weight))
        return np.concatenate(x), np.concatenate(y), np.concatenate(weights)

    def _rows(
        self, configs: list[Config], facts: Mapping[Config, Mapping[str, float]], features: Mapping[str, float]
    ) -> np.ndarray:
        import numpy as np

        encoded = rows(configs, facts, self._facts, len(self._space.parameters))
        problem = np.array([scaled(features.get(name, 0.0)) for name in self._features], np.float32)
        return np.concatenate([encoded, np.tile(problem, (len(configs), 1))], axis=1)
