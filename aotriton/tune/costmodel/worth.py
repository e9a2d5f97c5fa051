"""What each image saves, by the models of all products together: it decides which images ship."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aotriton.rules.database.rows import Model
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Operator
from aotriton.rules.savings import Image, Ways, savings
from aotriton.tune.costmodel.fit import Fitted
from aotriton.tune.costmodel.timings import ImageKey, Timings
from aotriton.tune.problem.problems import is_served

if TYPE_CHECKING:
    import numpy as np


def with_savings(fitted: Sequence[Fitted], operator: Operator, arch: str) -> list[Model]:
    """The models, each with what its image saves in the functional of a lead and on the product where that is most, at
    levels with features of calls that the same backends serve.

    Products share images: of two that are as good on one product, the one stays that another product needs. A kernel
    that calls of several leads have, has the models of the first one's.
    """
    import numpy as np

    groups: list[list[Ways]] = []
    backends: list[list[set[Image]]] = []
    needed: list[set[Image]] = []
    models: dict[tuple[str, ImageKey], Model] = {}
    for one in fitted:
        coefficients = {(model.functional, model.image): np.array(model.coefficients) for model in one.models}
        timed = {call for _, call in one.timings.seen}
        for functional, served in one.timings.served.items():
            lead = operator.sampled_functional(arch, functional)
            known = {name: [images & coefficients.keys() for images in kernels] for name, kernels in served.items()}
            complete = {name: kernels for name, kernels in known.items() if all(kernels)}
            # Where calls need other levels than the lead's, each has the backends that it can have.
            first = operator.backends[0].name if lead.kernel is operator.lead else next(iter(complete), "")
            if first in complete:
                calls = [call for call in one.timings.calls[functional] if call in timed]
                ways = [_ways(call, lead, complete, one.timings, coefficients) for call in calls]
                groups += _of_same_backends(ways) if lead.level else [ways]
                if lead.level and len(complete) > 1:
                    # Those of them that have a feature which only the first backend serves.
                    place = list(complete).index(first)
                    groups.append([[of_call[place]] for of_call in ways])
                backends += complete.values()
                needed += complete[first]
        for model in one.models:
            models.setdefault((model.product, (model.functional, model.image)), model)
    saves = savings(groups, backends, needed)
    found = [replace(model, saves=saves.get(key, 0.0)) for (_, key), model in models.items()]
    return sorted(found, key=lambda model: (model.product, model.kernel, model.functional, model.image))


def _of_same_backends(calls: Sequence[Ways]) -> list[list[Ways]]:
    """The calls in groups that the same backends serve: in the mean of all, of which many decode, an image saves little
    that long calls alone run on.
    """
    found: dict[tuple[bool, ...], list[Ways]] = {}
    for one in calls:
        found.setdefault(tuple(all(kernels) for kernels in one), []).append(one)
    return list(found.values())


def _ways(
    call: str,
    lead: Functional,
    backends: Mapping[str, Sequence[set[ImageKey]]],
    timings: Timings,
    coefficients: Mapping[ImageKey, np.ndarray],
) -> Ways:
    """The predicted times of the images that serve the call, whether they or others were timed there: images come and
    go, and calls on which only others were timed do not make one worth less.
    """
    import numpy as np

    sizes = timings.environments[call].sizes
    own: dict[KernelDescription, str] = {}

    def serves(key: ImageKey) -> bool:
        kernel = timings.specs[key][0].functional.kernel
        if kernel not in own:
            like = kernel.like(lead, sizes)
            own[kernel] = str(like) if like and is_served(like, sizes, timings.multiprocessors) else ""
        return own[kernel] == key[0]

    def time(key: ImageKey) -> float:
        row = timings.row(key, call)
        return float(np.dot(timings.rows[key][row], coefficients[key]))

    return [
        [{key: time(key) for key in sorted(images) if serves(key)} for images in kernels]
        for kernels in backends.values()
    ]
