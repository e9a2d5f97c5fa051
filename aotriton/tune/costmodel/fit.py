"""Cost models: the coefficients of each image's predicted time, fitted to timings of launch sequences on random shapes.

A sequence takes as long as its kernels together, each of which is a sum of terms (``rules/work.py``). So the images of
all sequences that share kernels are fitted together, one after the other to what the others leave, until the
coefficients converge: the problem is convex, and no bound is of two blocks (P. Tseng, "Convergence of a Block
Coordinate Descent Method", 2001). Errors are relative. Coefficients are not negative, and so no predicted time is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aotriton.rules.database.rows import Model, Sample
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Operator
from aotriton.rules.savings import savings
from aotriton.tune.costmodel.least_squares import components, models_of
from aotriton.tune.costmodel.timings import Apart, Facts, ImageKey, Timings, add_apart, add_sample
from aotriton.tune.problem.problems import is_served

if TYPE_CHECKING:
    import numpy as np


def fit(operator: Operator, arch: str, samples: Iterable[Sample], facts: Mapping[str, Facts], multiprocessors: int,
        ) -> list[Model]:  # fmt: skip
    """Models of the images that were timed on one product; those of another kernel source are left out.

    An image needs FEWEST timings, in sequences of images that have as many. ``facts`` by image name.
    """
    samples = list(samples)
    if not samples:
        return []
    product = samples[0].product
    if other := next((one.product for one in samples if one.product != product), None):
        raise ValueError(f"timings of {product} and of {other} do not compare")
    backends = {backend.name: backend for backend in operator.backends}
    found: dict[ImageKey, Model] = {}
    for lead in operator.leads:  # a kernel that calls of several have, has the model of the first one's
        timings = Timings(multiprocessors)
        for sample in samples:
            if operator.sampled_functional(arch, sample.functional).kernel is lead:
                add_sample(timings, operator, backends, arch, sample, facts)
        for model in _fitted(timings, operator, arch, product):
            found.setdefault((model.functional, model.image), model)
    return _sorted(found.values())


def fit_apart(operator: Operator, arch: str, product: str, calls: Iterable[Apart], facts: Mapping[str, Facts],
              multiprocessors: int) -> list[Model]:  # fmt: skip
    """Models as ``fit`` makes them, from times of single images, not of sequences; for backends whose kernels all
    describe their work.
    """
    timings = Timings(multiprocessors)
    backends = {backend.name: backend for backend in operator.backends}
    for call in calls:
        add_apart(timings, backends, call, facts)
    return _fitted(timings, operator, arch, product)


def _fitted(timings: Timings, operator: Operator, arch: str, product: str) -> list[Model]:
    found = []
    for component in components(timings):
        found += models_of(component, timings, operator, arch, product)
    worth = _worth(timings, operator, arch, found)
    return _sorted(replace(one, saves=worth.get((one.functional, one.image), 0.0)) for one in found)


def _sorted(models: Iterable[Model]) -> list[Model]:
    return sorted(models, key=lambda model: (model.kernel, model.functional, model.image))


def _serving(kernel: KernelDescription, lead: Functional, sizes: Mapping[str, int], timings: Timings) -> str:
    """The kernel's functional for a call of the lead's; empty where it refuses the call."""
    own = kernel.like(lead, sizes)
    return str(own) if own and is_served(own, sizes, timings.multiprocessors) else ""


def _worth(timings: Timings, operator: Operator, arch: str, models: Sequence[Model]) -> dict[ImageKey, float]:
    """What each image saves, in the functional of the lead where that is most.

    All calls count that its kernel serves, whether it or another image was timed there: images come and go, and calls
    on which only others were timed do not make one worth less.
    """
    import numpy as np

    coefficients = {(model.functional, model.image): np.array(model.coefficients) for model in models}
    timed = {call for _, call in timings.seen}
    worth: dict[ImageKey, float] = {}
    for functional, served in timings.served.items():
        calls = [call for call in timings.calls[functional] if call in timed]
        lead = operator.sampled_functional(arch, functional)
        images = {key for kernels in served.values() for of_kernel in kernels for key in of_kernel}
        kernels = {kernel.name: kernel for kernel in (timings.specs[key][0].functional.kernel for key in images)}
        sizes = [timings.environments[call][0] for call in calls]
        own = {name: [_serving(kernel, lead, one, timings) for one in sizes] for name, kernel in kernels.items()}

        def times(key: ImageKey, calls: Sequence[str] = calls, own: Mapping[str, Sequence[str]] = own) -> np.ndarray:
            found = np.full(len(calls), np.inf)
            for i, (call, name) in enumerate(
                zip(calls, own[timings.specs[key][0].functional.kernel.name], strict=True)
            ):
                if name == key[0]:
                    row = timings.row(key, call)
                    found[i] = np.dot(timings.rows[key][row], coefficients[key])
            return found

        predicted = {
            name: [{key: times(key) for key in sorted(images) if key in coefficients} for images in kernels]
            for name, kernels in served.items()
        }
        complete = {name: kernels for name, kernels in predicted.items() if all(kernels)}
        # Where calls need other levels than the lead's, each has the backends that it can have.
        first = operator.backends[0].name if lead.kernel is operator.lead else next(iter(complete), "")
        if first in complete:
            for key, value in savings(complete, first).items():
                worth[key] = max(worth.get(key, 0.0), value)
    return worth
