"""The coefficients of images from observations: least squares of relative errors, none of them negative."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from aotriton.rules.database.rows import Model
from aotriton.rules.operators import Operator
from aotriton.rules.work import FORM, TERMS
from aotriton.tune.costmodel.timings import ImageKey, Observation, Timings

if TYPE_CHECKING:
    import numpy as np

SWEEPS, REWEIGHTS = 160, 4  # most passes over the images of a component, and over each fit
CONVERGED = 1e-4  # largest relative change of a predicted time in the last sweep
LEAST_ERROR = 0.01  # a smaller error, which the clock makes, does not weigh more
LEAST_TIME = 0.1  # µs of a launch: other images of its sequences may leave an image nothing, and 0 is no time
FEWEST = 2 * len(TERMS)  # timings that an image needs to have a model


def components(timings: Timings) -> list[list[Observation]]:
    """The observations in groups of those that share images, directly or through others."""
    parent: dict[ImageKey, ImageKey] = {key: key for key in timings.specs}

    def root(key: ImageKey) -> ImageKey:
        while parent[key] != key:
            key = parent[key]
        return key

    for one in timings.observations:
        for key, _ in one.parts[1:]:
            parent[root(key)] = root(one.parts[0][0])
    found: dict[ImageKey, list[Observation]] = {}
    for one in timings.observations:
        found.setdefault(root(one.parts[0][0]), []).append(one)
    return list(found.values())


def _uses(observations: Sequence[Observation]) -> dict[ImageKey, tuple[list[int], list[int]]]:
    """By image: the numbers of the observations that contain it, and the rows of its terms there."""
    uses: dict[ImageKey, tuple[list[int], list[int]]] = {}
    for number, one in enumerate(observations):
        for key, row in one.parts:
            mine, rows = uses.setdefault(key, ([], []))
            mine.append(number)
            rows.append(row)
    return uses


def models_of(
    observations: Sequence[Observation], timings: Timings, operator: Operator, arch: str, product: str
) -> list[Model]:
    """The models of the images of one component, those left out that have fewer than FEWEST observations."""
    import numpy as np

    uses = _uses(observations)
    while any(len(mine) < FEWEST for mine, _ in uses.values()):
        # An observation with an image that has too few timings says nothing of its other images.
        few = {key for key, (mine, _) in uses.items() if len(mine) < FEWEST}
        observations = [one for one in observations if not few & {key for key, _ in one.parts}]
        uses = _uses(observations)
    if not observations:
        return []
    time = np.array([one.time for one in observations])
    keys = sorted(uses)
    blocks = [(np.array(uses[p][0]), np.array(timings.rows[p])[uses[p][1]]) for p in keys]
    count = np.array([len(one.parts) for one in observations])
    # Each kernel begins with an equal share, as if the others had left it.
    parts = np.zeros((len(keys), len(observations)))
    for i, (mine, _) in enumerate(blocks):
        parts[i, mine] = time[mine] / count[mine]
    total, weight = parts.sum(0), np.ones(len(observations))
    coefficients: list[Any] = [None] * len(keys)
    for _ in range(SWEEPS if max(count) > 1 else 1):
        before = total.copy()
        for i, (mine, rows) in enumerate(blocks):
            left = time[mine] - (total[mine] - parts[i, mine])
            coefficients[i] = _block(rows, left, time[mine], weight[mine])
            new = rows @ coefficients[i]
            total[mine] += new - parts[i, mine]
            parts[i, mine] = new
        weight = np.maximum(np.abs(total / time - 1), LEAST_ERROR) ** -0.25
        if np.max(np.abs(total - before) / time) < CONVERGED:
            break
    error = np.abs(total / time - 1)
    models = []
    for key, (mine, _), values in zip(keys, blocks, coefficients, strict=True):
        spec, fitting = timings.specs[key]
        values[0] = max(values[0], LEAST_TIME)
        models.append(
            Model(
                arch=arch,
                product=product,
                operator=operator.name,
                kernel=spec.functional.kernel.name,
                functional=key[0],
                image=key[1],
                form=FORM,
                occupancy=fitting,
                coefficients=tuple(float(f"{value:.6g}") for value in values),
                error=float(f"{median(error[mine]):.4g}"),
                samples=len(mine),
            )
        )
    return models


def _block(rows: np.ndarray, left: np.ndarray, time: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Nonnegative coefficients by least squares of errors relative to ``time``; outliers count less."""
    import numpy as np
    from scipy.optimize import nnls

    own = weight
    for _ in range(REWEIGHTS):
        found, _ = nnls(rows * (own / time)[:, None], left * own / time, maxiter=50 * rows.shape[1])
        own = weight * np.maximum(np.abs((rows @ found - left) / time), LEAST_ERROR) ** -0.25
    return found
