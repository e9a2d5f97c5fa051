"""What the user of autotune declares: tensors, numbers, sizes and values to try, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import isfinite
from typing import Any

from aotriton.rules.checked import INT32, identifier
from aotriton.rules.expression import Environment, Expression, constant, evaluate, scalar, size
from aotriton.rules.kernel import Operand
from aotriton.tune.autotune.heuristics import evaluated
from aotriton.tune.autotune.notation import constant_text, expression, is_tensor, of_tensor, operand
from aotriton.tune.autotune.user_kernel import CONSTEXPR, UserKernel

Space = Mapping[str, Sequence[object]] | Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Declaration:
    """The arguments of ``autotune`` but for the kernel, as its user wrote them. ``constants`` are the inputs that are
    compiled in. ``configs``, if there are any, are the combinations of ``space`` that are tried. Properties check what
    they read: a ValueError names the argument that is wrong.
    """

    inputs: Mapping[str, object]
    constants: Mapping[str, object]
    results: Mapping[str, str]
    sizes: Mapping[str, int | str | Sequence[int]]
    space: Mapping[str, Sequence[object]]
    configs: Sequence[Mapping[str, object]]
    grid: str | int | Sequence[str | int]
    descriptors: Mapping[str, Sequence[str | int]]
    reference: Callable[..., Any]
    prepare: Callable[..., Any] | None
    tolerance: float

    @cached_property
    def values(self) -> dict[str, tuple[int, ...]]:
        """The values of each size that are measured, without those that follow from others."""
        found = {}
        for name, values in self.sizes.items():
            identifier("sizes: a name", name)
            if isinstance(values, str):
                continue
            several: tuple[Any, ...] = tuple(values) if isinstance(values, Sequence) else (values,)
            if not several or not all(type(one) is int and 0 < one in INT32 for one in several):
                raise ValueError(f"sizes: {name} must be a whole number above 0, or several of them, not {values!r}")
            found[name] = tuple(sorted(set(several)))
        return found

    @property
    def shapes(self) -> Iterator[dict[str, int]]:
        """Each combination of sizes, with those that follow."""
        for values in product(*self.values.values()):
            sizes = dict(zip(self.values, values, strict=True))
            yield sizes | followed(self.following, sizes)

    @cached_property
    def following(self) -> dict[str, Expression]:
        """The sizes that follow from others, or are of one value alone: what each is."""
        fixed = {name: constant(value) for name, value in self.constants.items() if type(value) is int}
        names = fixed | {name: size(name) for name in self.values}
        texts = {name: text for name, text in self.sizes.items() if isinstance(text, str)}
        return {name: expression(f"sizes: {name}", text, names) for name, text in texts.items()}

    @cached_property
    def operands(self) -> dict[str, Operand]:
        read = {name: text for name, text in self.inputs.items() if isinstance(text, str) and is_tensor(text)}
        if not read or not self.results:
            raise ValueError(f"{'results' if read else 'inputs'}: there must be a tensor, as bf16[rows, columns]")
        found = {name: operand(name, text, False) for name, text in read.items()}
        for name, text in self.results.items():
            one = operand(name, text, True, updated=name in read)
            if name in self.inputs and replace(one, written=False, updated=False) != found.pop(name, None):
                raise ValueError(f"results: {name} is an input, too, and is declared there as {self.inputs[name]!r}")
            found[name] = one
        known = self.values.keys() | self.following.keys()
        for one in found.values():
            if missing := [dim for dim in one.dims if dim not in known]:
                raise ValueError(f"{one.name}: sizes does not say what {missing[0]} is")
        if unused := known - {dim for one in found.values() for dim in one.dims}:
            raise ValueError(f"sizes: no tensor has the dimension {sorted(unused)[0]}")
        return found

    @cached_property
    def scalars(self) -> dict[str, int | float]:
        """The numbers of the call that are not sizes, with the value that is measured; truth values are integers."""
        found = {}
        for name, value in self.inputs.items():
            if isinstance(value, str):
                continue
            if not isinstance(value, (int, float)) or not isfinite(value):
                raise ValueError(f"inputs: {name} is {value!r}: neither a tensor, nor an expression, nor a number")
            if isinstance(value, int) and value not in INT32:
                raise ValueError(f"inputs: {name} is {value}, and whole numbers have 32 bits")
            found[name] = int(value) if isinstance(value, bool) else value
        return found

    @property
    def integers(self) -> dict[str, int]:
        """The scalars that are integers, which expressions may name."""
        return {name: value for name, value in self.scalars.items() if isinstance(value, int)}

    @cached_property
    def names(self) -> dict[str, Expression]:
        """The names that expressions may use, with what each means."""
        fixed = {name: constant(value) for name, value in self.constants.items() if type(value) is int}
        sizes, scalars = (
            {name: make(name) for name in of} for make, of in ((size, self.sizes), (scalar, self.integers))
        )
        asked = (of_tensor(one) for one in self.operands.values())
        return {**fixed, **sizes, **scalars, **{text: value for one in asked for text, value in one.items()}}

    def is_computed(self, name: str) -> bool:
        """Whether a constant is computed from sizes: its text is neither a word of its own, nor a number, nor
        empty.
        """
        value = self.constants[name]
        return isinstance(value, str) and value != "" and (value in self.names or not value.isidentifier())

    @cached_property
    def tried(self) -> dict[str, tuple[object, ...]]:
        """The values to try of each name of the space."""
        found = {}
        for name, values in self.space.items():
            listed = isinstance(values, Sequence) and not isinstance(values, str)
            several = {constant_text(one): one for one in values} if listed else {}
            if not several or None in several:
                raise ValueError(
                    f"space: {name} must be several numbers, truth values, texts or types of Triton, not {values!r}"
                )
            found[name] = tuple(several.values())
            if all(type(one) is bool for one in found[name]):
                found[name] = (False, True) if len(found[name]) > 1 else found[name]
        if not found:
            raise ValueError("space: there is nothing to choose from")
        return found

    def numbers(self, name: str) -> tuple[int, ...]:
        """The whole numbers from 0 on that stand for the values to try of ``name``: these themselves, or else their
        places.
        """
        values = self.tried[name]
        return values if self.are_numbers(name) else tuple(range(len(values)))  # type: ignore[return-value] # it says so

    def are_numbers(self, name: str) -> bool:
        """Whether all values to try of ``name`` are whole numbers from 0 on."""
        return all(type(one) is int and 0 <= one in INT32 for one in self.tried[name])

    def value(self, name: str, number: int) -> object:
        """The value to try of ``name`` that ``number`` stands for; KeyError if it is none of them."""
        return dict(zip(self.numbers(name), self.tried[name], strict=True))[number]

    @property
    def numbered_configs(self) -> tuple[dict[str, int], ...]:
        """``configs`` with the numbers of values."""
        texts = {name: [constant_text(one) for one in values] for name, values in self.tried.items()}
        return tuple(
            {name: self.numbers(name)[texts[name].index(constant_text(value))] for name, value in one.items()}
            for one in self.configs
        )


def declaration_of(
    kernel: UserKernel,
    inputs: Mapping[str, object],
    results: Mapping[str, str],
    sizes: Mapping[str, int | str | Sequence[int]],
    space: Space | None,
    grid: str | int | Sequence[str | int],
    descriptors: Mapping[str, Sequence[str | int]],
    reference: Callable[..., Any],
    prepare: Callable[..., Any] | None,
    tolerance: float,
) -> Declaration:
    """The declaration of ``kernel`` in its user's words. What these leave out is taken from the kernel: configs of
    triton.autotune, values of triton.heuristics, defaults of arguments.
    """
    if space is None and kernel.pruned:
        raise ValueError("space: the kernel's triton.autotune leaves configs out by the call: say what is to be tried")
    asked = kernel.configs if space is None else space
    if not asked and space is None:
        raise ValueError("space: it must be given")
    values, configs = values_of(asked), () if isinstance(asked, Mapping) else asked
    triton, known = kernel.provider is None, {*values, *results, *sizes}
    given, constants = dict(inputs), {}
    for name, kind in kernel.arguments if triton else ():
        if name in inputs and name in values:
            raise ValueError(f"space: {name} is an input, too")
        if name not in inputs and name not in known and name not in kernel.heuristics and name in kernel.defaults:
            given[name] = kernel.defaults[name]
        if name in given and (kind == CONSTEXPR or given[name] is None):
            constants[name] = given.pop(name)
    for name in kernel.updated:
        if name not in inputs or name not in results:
            raise ValueError(
                f"results: {name} is reset or restored by the kernel's triton.autotune, so it must be among inputs and"
                " results"
            )
    made = Declaration(
        given, constants, results, sizes, values, configs, grid, descriptors, reference, prepare, tolerance
    )
    asked_of = {name: one for name, one in kernel.heuristics.items() if name not in known and name not in inputs}
    if not asked_of:
        return made
    other = {name for name, _ in kernel.arguments} - constants.keys() - made.operands.keys() - asked_of.keys()
    fixed = {name: value for name, value in constants.items() if not made.is_computed(name)}
    other |= constants.keys() - fixed.keys()
    return replace(made, constants=constants | evaluated(asked_of, fixed, made.operands, other))


def followed(following: Mapping[str, Expression], sizes: Mapping[str, int]) -> dict[str, int]:
    """The values of the sizes that follow from ``sizes``."""
    return {name: evaluate(one, Environment(sizes=sizes)) for name, one in following.items()}


def values_of(space: Space) -> dict[str, Sequence[object]]:
    """The values to try of each name; ``space`` has them, or lists configs."""
    if isinstance(space, Mapping):
        return dict(space)
    if isinstance(space, str) or not all(isinstance(one, Mapping) for one in space):
        raise ValueError(f"space: {space!r} is neither values by name nor a list of configs")
    for one in space:
        if one.keys() != space[0].keys():
            raise ValueError(f"space: its configs differ in names: {', '.join(space[0])} and {', '.join(one)}")
    return {name: tuple(one[name] for one in space) for name in (space[0] if space else ())}
