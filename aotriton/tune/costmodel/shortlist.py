"""What is worth timing on random shapes: the launch sequences of a call, from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from aotriton.rules.database.rows import Outcome, latest_medians
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.rules.operators import Operator
from aotriton.tune.problem.candidates import spec_of
from aotriton.tune.problem.problems import is_served

WITHIN = 1.02  # of a cell's best: candidates that may be the best ones of shapes nearby
WORTH_TIMING = 1e-4  # saved by an image: a tenth of what it takes to ship
MOST_TIMED = 16  # images of a kernel in a functional

Found = tuple[str, tuple[ImageSpec, ...]]  # a backend with an image for each of its kernels


def sampled(operator: Operator, arch: str, wished: Collection[str] = ()) -> list[Functional]:
    """The functionals of the leads that are timed: those that are measured, with tensors as they usually lie."""
    return [
        one
        for lead in operator.leads for one in lead.functionals(arch)
        if (lead is operator.lead or one.level) and (not wished or str(one) in wished) and one.addressing != "general"
        and all(choice.measured(value) == value for choice, value in zip(lead.choices, one.values, strict=True))
    ]  # fmt: skip


def shortlist(
    functional: Functional, outcomes: Iterable[Outcome], saves: Mapping[str, float], timed: Collection[str]
) -> list[ImageSpec]:
    """The images that are within WITHIN of the best one in most cells of the functional; each product counts alike.

    ``outcomes`` are of its kernel. Each cell's best image comes before those that are only near it. ``saves`` has what
    images save on random shapes, where that is known, and ``timed`` which images were timed there: of those that save
    nothing only the cells' best are timed again. What says that the best of a cell saves nothing may be a model of too
    few shapes, where other images of its functional save something; where none does, it is another backend that is
    faster. There nothing new is timed either, but the cells' best.
    """
    best, near = Counter[str](), Counter[str]()
    mine = [one for one in outcomes if one.functional == str(functional)]
    for product in sorted({one.product for one in mine}):
        for medians in latest_medians(one for one in mine if one.product == product).values():
            current = [one for one in medians if (spec := spec_of(functional, one.config)) and spec.name == one.image]
            if not current:
                continue
            best[current[0].config] += 1
            least = current[0].median_us or 0.0
            near.update(one.config for one in current if (one.median_us or 0.0) <= WITHIN * least)
    order = sorted(near, key=lambda config: (not best[config], -best[config], -near[config], config))
    specs = [ImageSpec.parse(functional, config) for config in order]
    if any(spec.name in saves for spec in specs):
        known = [spec for spec in specs if saves.get(spec.name, 0.0) >= WORTH_TIMING]
        others = [
            spec
            for spec in specs if spec not in known
            and (best[spec.config] or (known and spec.name not in timed)) and (known or spec.name not in saves)
        ]  # fmt: skip
        specs = sorted(known, key=lambda spec: -saves[spec.name]) + others
    return specs[:MOST_TIMED]


def has_level(own: Functional, called: Functional) -> bool:
    """Whether a kernel's functional serves calls of another one: at the same of their common levels, or, where levels
    are of different kinds, at the one of plain calls.
    """
    if own.kernel.level_choice == called.kernel.level_choice:
        return own.level == called.level
    return own.level == 0


def sequences(
    operator: Operator,
    functional: Functional,
    sizes: Mapping[str, int],
    lists: Mapping[tuple[str, str], Sequence[ImageSpec]],
    multiprocessors: int,
) -> list[Found]:
    """Backends with images for a call of a functional of one of the leads, so that each image of ``lists`` that serves
    it is in one at least: one kernel's image varies while the other kernels have their first. A backend is left out
    where a kernel has no image, is for calls of another level, or refuses the call, and where nothing of it is timed.
    Where calls need another level than the lead's, kernels without that level have their first image alone: calls of
    the lead say what they take.
    """
    found = []
    for backend in (one for one in operator.serving(functional) if one.timed_kernels):
        own = [kernel.like(functional, sizes) for kernel in backend.timed_kernels]
        candidates = [lists.get((one.kernel.name, str(one)), ()) if one else () for one in own]
        if functional.kernel is not operator.lead:
            candidates = [
                images if one and one.level == functional.level else images[:1]
                for one, images in zip(own, candidates, strict=True)
            ]
        served = (
            has_level(one, functional) and is_served(one, sizes, multiprocessors, functional) for one in own if one
        )
        if not (all(candidates) and all(served)):
            continue
        first = tuple(specs[0] for specs in candidates)
        found.append((backend.name, first))
        for index, specs in enumerate(candidates):
            found += [(backend.name, (*first[:index], spec, *first[index + 1 :])) for spec in specs[1:]]
    return found
