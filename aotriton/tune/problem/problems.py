"""What to tune: from kernels, choices and bins to an ordered list of problems, each with a shape for its bin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from random import Random

from aotriton.rules.binning import bin_text
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import kernel as description
from aotriton.rules.family import operator_of
from aotriton.rules.kernel import Functional, KernelDescription, Value, parse_functional
from aotriton.tune.problem.family import given_at_level, scalars_of_level, tuning, types_at_level

Cell = tuple[int, ...]
Shape = tuple[tuple[str, int], ...]  # the sizes of the tensors by name


def shape_of(**sizes: int) -> Shape:
    return tuple(sizes.items())


def log_uniform(random: Random, least: int, most: int) -> int:
    """A size from ``least`` to ``most``, as likely in each octave."""
    return min(most, int(exp(random.uniform(log(least), log(most + 1)))))


@dataclass(frozen=True)
class Problem:
    """A functional, a bin and the shape measured for it."""

    functional: Functional
    cell: Cell
    shape: Shape

    @property
    def kernel(self) -> KernelDescription:
        return self.functional.kernel

    @property
    def keys(self) -> dict[str, int]:
        return keys_of(self.functional, self.cell)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.shape)

    @property
    def shape_text(self) -> str:
        """The shape as the database spells it."""
        return json.dumps(self.sizes, sort_keys=True)

    @property
    def bin(self) -> str:
        return bin_text(self.kernel.tuning_keys, self.cell)

    def __str__(self) -> str:
        return f"{self.kernel.name} {self.functional} {self.bin}"

    @property
    def named(self) -> NamedProblem:
        functional = self.functional
        return NamedProblem(self.kernel.name, functional.arch, str(functional), self.bin, self.cell, self.shape)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the description by its name: it may hold functions, which cannot be pickled."""
        return _problem, (self.named,)


@dataclass(frozen=True)
class NamedProblem:
    """A problem in words and numbers: for a process that hands it on, and does not have its family."""

    kernel: str
    arch: str
    functional: str
    bin: str
    cell: Cell
    shape: Shape

    @property
    def problem(self) -> Problem:
        """The problem; ValueError where this process does not have its family."""
        return Problem(parse_functional(description(self.kernel), self.arch, self.functional), self.cell, self.shape)

    def __str__(self) -> str:
        return f"{self.kernel} {self.functional} {self.bin}"


def _problem(named: NamedProblem) -> Problem:
    return named.problem


@dataclass(frozen=True)
class Wish:
    """What the user asked for: allowed values of choices and bins, and sizes of the shape. Empty is the default."""

    choices: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    bins: Mapping[str, Sequence[int]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def has(self, functional: Functional) -> bool:
        """Whether the functional is among those that were asked for."""
        return all(functional.get(name, values[0]) in values for name, values in self.choices.items() if values)


def scalars_of(functional: Functional, sizes: Mapping[str, int]) -> dict[str, int]:
    """The whole numbers among the scalars of a measured call with these sizes: those that the choices pin, those that
    the checks set, and what a caller leaves at its default.
    """
    environment, operator = Environment(sizes), operator_of(functional.kernel)
    whole = [one for one in operator.scalars if one.dtype != "fp32"]
    own = {one.name: evaluate(one.measured, environment) if one.internal else int(one.default or 0) for one in whole}
    return own | _pinned(functional) | scalars_of_level(functional, sizes)


def _pinned(functional: Functional) -> dict[str, int]:
    pairs = zip(functional.kernel.choices, functional.values, strict=True)
    return {choice.source.name: choice.number(value) for choice, value in pairs if choice.source.code == "scalar"}


def is_served(
    functional: Functional, sizes: Mapping[str, int], multiprocessors: int, called: Functional | None = None
) -> bool:
    """Whether the kernel's guards allow a measured call of these sizes, whose other scalars are 0. ``called``: the
    functional of a lead that the call is of, if it is another one.
    """
    sizes = tuning(functional.kernel.family).sizes(sizes) if sizes and _guards_sizes(functional.kernel) else sizes
    called = called or functional
    present, types = given_at_level(called), types_at_level(called)
    measured = scalars_of(functional, sizes) | scalars_of(called, sizes) if sizes else _pinned(functional)
    for guard in functional.kernel.all_guards(sizes.keys()):
        named = dict.fromkeys(guard.scalars, 0)
        environment = Environment(
            sizes, named | measured, present=present, multiprocessors=multiprocessors, other_dtypes=types
        )
        if not evaluate(guard.condition, environment):
            return False
    return True


def belongs(problem: Problem, sizes: Mapping[str, int]) -> bool:
    """Whether a measured call of these sizes, named as a shape names them, is of the problem's cell, and its kernel
    serves it.
    """
    functional, multiprocessors = problem.functional, problem.functional.arch_spec.multiprocessors
    own = tuning(problem.kernel.family)

    def bins(of: Mapping[str, int]) -> list[int]:
        named = own.sizes(of)
        given = Environment(named, scalars_of(functional, named), multiprocessors=multiprocessors)
        return [key.bin_of(evaluate(key.quantity, given)) for key in problem.kernel.tuning_keys]

    positive = all(value > 0 for value in sizes.values())
    return positive and bins(sizes) == bins(problem.sizes) and is_served(functional, own.sizes(sizes), multiprocessors)


def at(sizes: Mapping[str, int]) -> str:
    """Sizes as a message names what was checked there."""
    return "at " + " ".join(f"{name}={value}" for name, value in sizes.items())


def _guards_sizes(kernel: KernelDescription) -> bool:
    return any(code == "size" for guard in kernel.guards for code, _ in guard.condition.postfix())


def keys_of(functional: Functional, cell: Cell) -> dict[str, int]:
    """The cell's representatives by the names of their keys."""
    return dict(zip((key.name for key in functional.kernel.tuning_keys), cell, strict=True))


def problems(kernels: Iterable[KernelDescription], arch: str, multiprocessors: int, wish: Wish) -> list[Problem]:
    """The problems of timed kernels that the wish leaves, the most valuable first, without those whose shape the kernel
    refuses. Of a choice that does not change the speed one value is measured, unless another one is asked for.
    """
    found: list[Problem] = []
    for kernel in (one for one in kernels if one.timed):
        for functional in kernel.functionals(arch):
            if wish.has(functional) and _measured(functional, wish):
                found += problems_of(functional, multiprocessors, wish)
    return sorted(found, key=lambda problem: tuning(problem.kernel.family).rank(problem))


def problems_of(functional: Functional, multiprocessors: int, wish: Wish) -> Iterator[Problem]:
    """The problems of a functional of a timed kernel that the wish leaves, without those whose shape it refuses."""
    kernel = functional.kernel
    own = tuning(kernel.family)
    for cell in kernel.cells():
        keys = keys_of(functional, cell)
        if any(keys.get(name, values[0]) not in values for name, values in wish.bins.items() if values):
            continue
        if not own.selects(functional, cell, wish):
            continue
        shape = own.shape(functional, cell, multiprocessors, wish)
        if shape and is_measurable(functional, dict(shape), multiprocessors):
            yield Problem(functional, cell, shape)


def is_measurable(functional: Functional, shape: Mapping[str, int], multiprocessors: int) -> bool:
    """Whether the kernel's guards allow a measurement at this shape, the sizes of the tensors by name."""
    return is_served(functional, shape if _guards_sizes(functional.kernel) else {}, multiprocessors)


def _measured(functional: Functional, wish: Wish) -> bool:
    return all(
        choice.measured(value) == value or wish.choices.get(choice.name)
        for choice, value in zip(functional.kernel.choices, functional.values, strict=True)
    )
