"""From a functional and a bin to the candidates worth compiling, and to the reason why each other one is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune.problem.problems import Problem


@dataclass(frozen=True)
class Space:
    """Every config of the description, either a candidate or skipped with a reason."""

    candidates: tuple[ImageSpec, ...]
    skipped: tuple[tuple[ImageSpec, str], ...]


@lru_cache(maxsize=16)  # the problems of a functional come together
def configs(functional: Functional, rich: bool = False) -> tuple[ImageSpec, ...]:
    """Every config of the description, in its order; ``rich``: also those of values that only a search tries."""
    vendor = functional.arch_spec.vendor
    psels, copts = functional.kernel.psel_values(vendor, rich), functional.kernel.copt_values(vendor, rich)
    made = []
    for values in product(*psels.values(), *copts.values()):
        config = dict(zip((*psels, *copts), values, strict=True))
        own = {name: config[name] for name in psels}
        made.append(ImageSpec.of(functional, own, {name: config[name] for name in copts}))
    return tuple(made)


def ruled_out(spec: ImageSpec, keys: Mapping[str, int], rich: bool = False) -> str | None:
    """The reason why a restriction of the kernel rules the config out in the cell of ``keys``; None where none does.

    ``rich``: rules of thumb do not count.
    """
    functional, config = spec.functional, dict(spec.psels + spec.copts)
    restrictions = (one for one in functional.kernel.restrictions if one.certain or not rich)
    return next((one.why for one in restrictions if one.applies(functional, keys, config)), None)


def space(problem: Problem, rich: bool = False) -> Space:
    """The candidates of a problem: the configs that no restriction of its kernel rules out. ``rich``: those of a
    search, which are too many to measure them all.
    """
    candidates, skipped, keys = [], [], problem.keys
    for spec in configs(problem.functional, rich):
        if reason := ruled_out(spec, keys, rich):
            skipped.append((spec, reason))
        else:
            candidates.append(spec)
    return Space(tuple(candidates), tuple(skipped))


def spec_of(functional: Functional, config: str) -> ImageSpec | None:
    """The spec that ``ImageSpec.config`` spelled; None where the rules no longer have these psels and copts."""
    try:
        return ImageSpec.parse(functional, config)
    except ValueError:
        return None
