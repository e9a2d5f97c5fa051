"""Cost models: the coefficients of each image's predicted time, fitted to timings of launch sequences on random shapes.

A sequence takes as long as its kernels together, each of which is a sum of terms (``rules/work.py``). So the images of
all sequences that share kernels are fitted together, one after the other to what the others leave, until the
coefficients converge: the problem is convex, and no bound is of two blocks (P. Tseng, "Convergence of a Block
Coordinate Descent Method", 2001). Errors are relative. Coefficients are not negative, and so no predicted time is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aotriton.rules.database.rows import Model, Sample
from aotriton.rules.operators import Operator
from aotriton.tune.costmodel.least_squares import components, models_of
from aotriton.tune.costmodel.timings import Apart, Facts, Timings, add_apart, add_sample


@dataclass(frozen=True)
class Fitted:
    """The timings of calls of one lead on one product, and the models that are fitted to them. What the images save is
    not known yet (``worth.py``).
    """

    timings: Timings
    models: list[Model]


def fit(operator: Operator, arch: str, samples: Iterable[Sample], facts: Mapping[str, Facts], multiprocessors: int,
        ) -> list[Fitted]:  # fmt: skip
    """Models of the images that were timed on one product, for each lead; without those of another kernel source, and
    those that a later session left out (``Timings.left_out``).

    An image needs FEWEST timings, in sequences of images that have as many. ``facts`` by image name.
    """
    samples = list(samples)
    if not samples:
        return []
    product = samples[0].product
    if other := next((one.product for one in samples if one.product != product), None):
        raise ValueError(f"timings of {product} and of {other} do not compare")
    backends = {backend.name: backend for backend in operator.backends}
    found = []
    for lead in operator.leads:
        timings = Timings(multiprocessors)
        for sample in samples:
            if operator.sampled_functional(arch, sample.functional).kernel is lead:
                add_sample(timings, operator, backends, arch, sample, facts)
        found.append(_fitted(timings, operator, arch, product))
    return found


def fit_apart(operator: Operator, arch: str, product: str, calls: Iterable[Apart], facts: Mapping[str, Facts],
              multiprocessors: int) -> Fitted:  # fmt: skip
    """Models as ``fit`` makes them, from times of single images, not of sequences; for backends whose kernels all
    describe their work.
    """
    timings = Timings(multiprocessors)
    backends = {backend.name: backend for backend in operator.backends}
    for call in calls:
        add_apart(timings, backends, call, facts)
    return _fitted(timings, operator, arch, product)


def _fitted(timings: Timings, operator: Operator, arch: str, product: str) -> Fitted:
    models = (one for part in components(timings) for one in models_of(part, timings, operator, arch, product))
    left_out = timings.left_out()
    return Fitted(timings, [one for one in models if (one.functional, one.image) not in left_out])
