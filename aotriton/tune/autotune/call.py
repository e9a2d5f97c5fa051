"""From a caller's arguments of a described kernel to what the kernel is launched with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.kernel import Constexpr, Number
from aotriton.rules.operators import Operator


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
            shape = tuple(given[operand.name].shape)
            if len(shape) != len(operand.dims) or not given[operand.name].is_contiguous():
                raise ValueError(f"{operator.name}: {operand.name} must be contiguous, [{', '.join(operand.dims)}]")
            for dim, size in zip(operand.dims, shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    raise ValueError(f"{operator.name}: {operand.name} has {dim} {size}, others have {sizes[dim]}")
        return cls(operator, {one.name: one.default for one in operator.scalars} | given, sizes)

    def launch(
        self, config: Mapping[str, Any], constants: Mapping[str, object]
    ) -> tuple[tuple[int, ...], dict[str, Any]]:
        """The grid, and all arguments of the kernel by name, without the config. ``constants`` are those that are
        compiled in.
        """
        whole = {name: value for name, value in self.arguments.items() if isinstance(value, int)}
        environment = Environment(self.sizes, whole, config)
        values = {**self.arguments, **constants}
        for one in self.operator.lead.arguments:
            if isinstance(one, Number) and one.name not in values:
                values[one.name] = evaluate(one.value, environment)
            elif isinstance(one, Constexpr) and one.name in self.sizes:
                values[one.name] = self.sizes[one.name]
        return tuple(evaluate(axis, environment) for axis in self.operator.lead.grid), values
