"""Models judged by cells: what a choice by predicted time loses where each image was measured by itself.

Models are fitted to whole calls of random shapes, and have not seen the problems of cells. So cells show where a model
is wrong that fits its own calls well.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aotriton.rules.database import Model, TuningDatabase
from aotriton.rules.database.rows import latest_medians
from aotriton.rules.expression import Environment
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import parse_functional
from aotriton.rules.operators import Operator
from aotriton.rules.work import WORTH_SHIPPING, terms
from aotriton.tune.problem.candidates import spec_of
from aotriton.tune.problem.family import tuning, types_at_level
from aotriton.tune.problem.problems import scalars_of


@dataclass(frozen=True)
class JudgedCell:
    """A cell in which several images were measured: the least median, and that of the image that ships and whose
    predicted time is least, in microseconds.
    """

    kernel: str
    functional: str
    bin: str
    best: float
    chosen: float

    @property
    def regret(self) -> float:
        """How much longer the chosen image takes than the best one, relatively."""
        return self.chosen / self.best - 1

    def __str__(self) -> str:
        return f"{self.kernel} {self.functional} {self.bin}"


def judged_cells(
    database: TuningDatabase,
    operator: Operator,
    arch: str,
    product: str,
    multiprocessors: int,
    chosen_by: Sequence[Model],
    others: Sequence[Model] = (),
) -> list[JudgedCell]:
    """The cells of a product in which two images or more were measured that ship by models of this product, one or more
    of them by those that are ``chosen_by``. Images that ship by ``others``, those before a fit, are never chosen, and
    may be the best: so the loss of an image that does not ship any more is seen.
    """
    configs = {name: config for name, (config, _, _) in database.evidence.facts().items()}
    models = defaultdict[tuple[str, str], list[Model]](list)
    for model in _shipping(chosen_by, operator, product):
        models[model.kernel, model.functional].append(model)
    compared = {model.image for model in _shipping((*chosen_by, *others), operator, product)}
    found = []
    for kernel in operator.kernels:
        outcomes = database.evidence.outcomes(arch, kernel.name, product=product)
        for (text, bin), timed in latest_medians(outcomes).items():
            medians = {one.image: one.median_us for one in timed if one.median_us and one.image in compared}
            known = [one for one in models[kernel.name, text] if one.image in medians]
            if len(medians) < 2 or not known:
                continue
            functional = parse_functional(kernel, arch, text)
            # A family may leave the function out where its shapes have the operator's sizes.
            sizes = getattr(tuning(kernel.family), "sizes", dict)(json.loads(timed[0].shape))
            predicted = {
                one.image: _predicted(spec, one, sizes, multiprocessors)
                for one in known
                if (spec := spec_of(functional, configs[one.image])) and spec.name == one.image  # of today's source
            }
            if predicted:
                chosen = min(predicted, key=lambda image: predicted[image])
                found.append(JudgedCell(kernel.name, text, bin, min(medians.values()), medians[chosen]))
    return found


def _shipping(models: Sequence[Model], operator: Operator, product: str) -> list[Model]:
    own = (one for one in models if (one.product, one.operator) == (product, operator.name))
    return [one for one in own if one.saves >= WORTH_SHIPPING]


def _predicted(spec: ImageSpec, model: Model, sizes: Mapping[str, int], multiprocessors: int) -> float:
    work = spec.functional.kernel.work
    assert work, f"{spec.functional.kernel.name} has models, and does not say what it computes"
    steps = (step for one in (*work.of_call, *work.of_tile) for step in one.postfix())
    others = {str(name): 0 for code, name in steps if code == "scalar"}  # as problems have them
    scalars = others | scalars_of(spec.functional, sizes)
    environment = Environment(
        sizes, scalars, dict(spec.tunables), multiprocessors=multiprocessors,
        other_dtypes=types_at_level(spec.functional),
    )  # fmt: skip
    of_call = terms(work, environment, model.occupancy)
    return sum(one * term for one, term in zip(model.coefficients, of_call, strict=True))
