"""From a functional and a bin to the candidates worth compiling, and to the reason why each other one is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product

from aotriton.rules.arch import arch_spec
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription, Restriction
from aotriton.tune.problem.problems import Problem


@dataclass(frozen=True)
class Space:
    """Every config of the description, either a candidate or skipped with a reason."""

    candidates: tuple[ImageSpec, ...]
    skipped: tuple[tuple[ImageSpec, str], ...]


@lru_cache(maxsize=16)  # the problems of a functional come together
def configs(functional: Functional, rich: bool = False) -> tuple[ImageSpec, ...]:
    """Every config of the description, in its order; ``rich``: also those of values that only a search tries."""
    values = _values(functional.kernel, functional.arch, rich)
    return tuple(ImageSpec(functional, tunables, compile_options) for tunables, compile_options, _ in values)


@cache  # the functionals of a kernel share them
def _values(
    kernel: KernelDescription, arch: str, rich: bool
) -> tuple[tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...], dict[str, int]], ...]:
    """The tunables and compile options of each config of a kernel, and both as one dict."""
    vendor, some, made = arch_spec(arch).vendor, next(kernel.functionals(arch)), []
    tunables, compile_options = kernel.tunable_values(vendor, rich), kernel.compile_option_values(vendor, rich)
    for values in product(*tunables.values(), *compile_options.values()):
        own = dict(zip(tunables, values, strict=False))
        spec = ImageSpec.of(some, own, dict(zip(compile_options, values[len(own) :], strict=True)))
        made.append((spec.tunables, spec.compile_options, dict(spec.tunables + spec.compile_options)))
    return tuple(made)


def ruled_out(spec: ImageSpec, keys: Mapping[str, int], rich: bool = False) -> str | None:
    """The reason why a restriction of the kernel rules the config out in the cell of ``keys``; None where none does.

    ``rich``: rules of thumb do not count.
    """
    return _reason(
        spec.functional, _restrictions(spec.functional, rich), keys, dict(spec.tunables + spec.compile_options)
    )


def _restrictions(functional: Functional, rich: bool) -> list[Restriction]:
    return [one for one in functional.kernel.restrictions if one.certain or not rich]


def _reason(
    functional: Functional, restrictions: Sequence[Restriction], keys: Mapping[str, int], config: Mapping[str, int]
) -> str | None:
    for one in restrictions:
        if one.applies(functional, keys, config):
            return one.why
    return None


def space(problem: Problem, rich: bool = False) -> Space:
    """The candidates of a problem: the configs that no restriction of its kernel rules out. ``rich``: those of a
    search, which are too many to measure them all.
    """
    functional, candidates, skipped, keys = problem.functional, [], [], problem.keys
    restrictions = _restrictions(functional, rich)
    values = _values(functional.kernel, functional.arch, rich)
    for spec, (_, _, config) in zip(configs(functional, rich), values, strict=True):
        if reason := _reason(functional, restrictions, keys, config):
            skipped.append((spec, reason))
        else:
            candidates.append(spec)
    return Space(tuple(candidates), tuple(skipped))


def spec_of(functional: Functional, config: str) -> ImageSpec | None:
    """The spec that ``ImageSpec.config`` spelled; None where the rules no longer have what it names."""
    try:
        return ImageSpec.parse(functional, config)
    except ValueError:
        return None
