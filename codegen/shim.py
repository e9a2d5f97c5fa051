"""The shim of a kernel: from its description to the names, types and expressions that shim.h and shim.cc place."""

from __future__ import annotations

from dataclasses import dataclass

from aotriton.codegen import cxx
from aotriton.rules.kernel import Constexpr, KernelDescription, Scalar, Stride, Tensor


@dataclass(frozen=True)
class Field:
    """A member of a generated struct; ``values`` are its C++ spellings where the choice restricts them."""

    type: str
    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shim:
    kernel: str
    family: str
    camel: str
    functional: tuple[Field, ...]
    psels: tuple[str, ...]
    keys: tuple[str, ...]
    arguments: tuple[Field, ...]
    collect: tuple[str, ...]  # one statement for each parameter of the image, in order


def shim(kernel: KernelDescription) -> Shim:
    """ValueError where a choice has no C++ type."""
    arguments: list[Field] = []
    collect: list[str] = []
    strides: dict[str, int] = {}  # how many of a tensor's strides came already: they are listed from the outermost
    for argument in kernel.arguments:
        if isinstance(argument, Tensor):
            arguments.append(Field(f"const Tensor<{argument.rank}>&", argument.name))
            collect.append(f"list.tensor({argument.name}, {cxx.literal(argument.block is not None)})")
        elif isinstance(argument, Stride):
            dim = strides.setdefault(argument.tensor, 0)
            strides[argument.tensor] += 1
            collect.append(f"list.value({argument.tensor}.strides[{dim}])")
        elif isinstance(argument, Scalar):
            arguments.append(Field(cxx.SCALARS[argument.dtype], argument.name))
            collect.append(f"list.value({argument.name})")
        else:
            assert isinstance(argument, Constexpr)  # compiled in: nothing is passed
    return Shim(
        kernel=kernel.name,
        family=kernel.family,
        camel=cxx.camel(kernel.name),
        functional=tuple(
            Field(
                cxx.choice_type(choice), choice.name, tuple(cxx.choice_value(choice, value) for value in choice.values)
            )
            for choice in kernel.choices
        ),
        psels=kernel.psel_names,
        keys=tuple(key.name for key in kernel.tuning_keys),
        arguments=tuple(arguments),
        collect=tuple(collect),
    )
