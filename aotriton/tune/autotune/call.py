"""From a caller's arguments of a described kernel to what the kernel is launched with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotriton.rules.expression import Environment, Expression, evaluate
from aotriton.rules.kernel import Constexpr, Number, Tensor
from aotriton.rules.operators import Operator
from aotriton.tune.problem.dtypes import NAMES


@dataclass(frozen=True)
class Call:
    """``arguments`` has the tensors and the operator's scalars by name, ``sizes`` are the tensors'."""

    operator: Operator
    arguments: Mapping[str, Any]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, operator: Operator, arguments: Sequence[Any], named: Mapping[str, Any]) -> Call:
        """The call with these arguments. They stand in the kernel's order, without those that follow from sizes; a
        scalar may be left out, too.

        TypeError where one is missing or unknown, ValueError where tensors do not fit the description.
        """
        free = {one.name for one in operator.operands} | {one.name for one in operator.scalars}
        names = [one.name for one in operator.lead.arguments if one.name in free]
        given = dict(zip(names, arguments, strict=False)) | dict(named)
        if len(arguments) > len(names) or not given.keys() <= free:
            raise TypeError(f"{operator.name}: it takes {', '.join(names)}, not {', '.join(given)}")
        sizes: dict[str, int] = {}
        for operand in operator.operands:
            if operand.name not in given:
                raise TypeError(f"{operator.name}: {operand.name} is not given")
            tensor = given[operand.name]
            if hasattr(tensor, "block_shape"):
                tensor = given[operand.name] = _described(operator, operand.name, tensor)
            shape = tuple(tensor.shape)
            if len(shape) != len(operand.dims) or not tensor.is_contiguous():
                raise ValueError(f"{operator.name}: {operand.name} must be contiguous, [{', '.join(operand.dims)}]")
            for dim, size in zip(operand.dims, shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    raise ValueError(f"{operator.name}: {operand.name} has {dim} {size}, others have {sizes[dim]}")
        return cls(operator, {one.name: one.default for one in operator.scalars} | given, sizes)

    @classmethod
    def of_jit(
        cls,
        operator: Operator,
        arguments: Mapping[str, Any],
        constants: Callable[[Mapping[str, int]], Mapping[str, object]],
    ) -> Call:
        """The call with these arguments of the kernel, by name, as Triton's JIT has them all; values of a config do not
        count. ``constants`` says at sizes what is compiled in.

        ValueError says why the description does not have this call.
        """
        name = operator.name
        free = {one.name for one in operator.operands} | {one.name for one in operator.scalars}
        dtypes = {one.name: one.dtype for one in operator.operands}
        try:
            call = cls.of(operator, (), {one: value for one, value in arguments.items() if one in free})
        except (AttributeError, TypeError) as error:
            raise ValueError(f"{name}: {error}") from error
        for operand, dtype in dtypes.items():
            declared = NAMES[str(operator.lead.choices[0].values[0]) if dtype == "T" else dtype]
            if (given := str(call.arguments[operand].dtype).rpartition(".")[2]) != declared:
                raise ValueError(f"{name}: {operand} is of {given}, and was tuned as {declared}")
        for one, wanted in call.values(constants(call.sizes)).items():
            if one not in free and one in arguments and not _equal(arguments[one], wanted):
                given = "a tensor" if hasattr(arguments[one], "shape") else repr(arguments[one])
                raise ValueError(f"{name}: {one} is {given}, and was tuned as {wanted!r}")
        return call

    def launch(
        self, config: Mapping[str, Any], constants: Mapping[str, object]
    ) -> tuple[tuple[int, ...], dict[str, Any]]:
        """The grid, and all arguments of the kernel by name, without the config. ``constants`` are those that are
        compiled in.
        """
        environment = Environment(self.sizes, self._whole, config)
        return tuple(evaluate(axis, environment) for axis in self.operator.lead.grid), self.values(constants)

    def values(self, constants: Mapping[str, object]) -> dict[str, Any]:
        """All arguments of the kernel by name, without the config."""
        values = {**self.arguments, **constants}
        for one in self.operator.lead.arguments:
            if isinstance(one, Number) and one.name not in values:
                values[one.name] = evaluate(one.value, Environment(self.sizes, self._whole))
            elif isinstance(one, Constexpr) and one.name in self.sizes:
                values[one.name] = self.sizes[one.name]
        return values

    @property
    def _whole(self) -> dict[str, int]:
        return {name: value for name, value in self.arguments.items() if isinstance(value, int)}


def _described(operator: Operator, name: str, descriptor: Any) -> Any:
    """The tensor that a TensorDescriptor describes. Its block does not count where that follows from the config.

    ValueError where the kernel takes a pointer in its place, or a descriptor that is filled or cut otherwise.
    """
    argument = next(one for one in operator.lead.arguments if isinstance(one, Tensor) and one.operand.name == name)
    if argument.block is None:
        raise ValueError(f"{operator.name}: {name} is a tensor descriptor, and `descriptors` does not name it")
    if descriptor.padding != "zero":
        raise ValueError(f"{operator.name}: {name} is padded with {descriptor.padding}, and was tuned with zero")
    for dim, (given, side) in enumerate(zip(descriptor.block_shape, argument.block, strict=False)):
        if isinstance(side, Expression) and side.code == "constant" and given != side.value:
            raise ValueError(
                f"{operator.name}: {name} has blocks of {[*descriptor.block_shape]}, and was tuned with {side.value}"
                f" along dimension {dim}"
            )
    base, shape, strides = descriptor.base, tuple(descriptor.shape), tuple(descriptor.strides)
    if tuple(base.shape) == shape and tuple(base.stride()) == strides:
        return base
    return base.as_strided(shape, strides)


def _equal(given: object, wanted: object) -> bool:
    """Whether an argument is the same to a compiler: truth values are no numbers."""
    if given is None or wanted is None:
        return given is wanted
    return isinstance(given, bool) == isinstance(wanted, bool) and bool(given == wanted)
