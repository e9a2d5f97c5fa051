"""What the user of autotune declares: tensors, numbers, sizes and values to try, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import isfinite
from typing import Any

from aotriton.rules.checked import INT32, identifier
from aotriton.rules.kernel import Operand
from aotriton.tune.autotune.text import operand


@dataclass(frozen=True)
class Declaration:
    """The arguments of ``autotune`` but for the kernel, as its user wrote them. Properties check what they read: a
    ValueError names the argument that is wrong.
    """

    inputs: Mapping[str, str | float]
    results: Mapping[str, str]
    sizes: Mapping[str, int | Sequence[int]]
    space: Mapping[str, Sequence[int]]
    grid: str | int | Sequence[str | int]
    reference: Callable[..., Any]
    prepare: Callable[..., Any] | None
    tolerance: float

    @cached_property
    def values(self) -> dict[str, tuple[int, ...]]:
        """The values of each size that are measured."""
        found = {}
        for name, values in self.sizes.items():
            identifier("sizes: a name", name)
            several = tuple(values) if isinstance(values, Sequence) else (values,)
            if not several or not all(type(one) is int and 0 < one in INT32 for one in several):
                raise ValueError(f"sizes: {name} must be a whole number above 0, or several of them, not {values!r}")
            found[name] = tuple(sorted(set(several)))
        return found

    @property
    def shapes(self) -> Iterator[dict[str, int]]:
        """Each combination of sizes."""
        return (dict(zip(self.values, values, strict=True)) for values in product(*self.values.values()))

    @cached_property
    def operands(self) -> dict[str, Operand]:
        read = {name: text for name, text in self.inputs.items() if isinstance(text, str) and "[" in text}
        if not read or not self.results:
            raise ValueError(f"{'results' if read else 'inputs'}: there must be a tensor, as bf16[rows, columns]")
        found = {name: operand(name, text, False) for name, text in read.items()}
        found |= {name: operand(name, text, True) for name, text in self.results.items()}
        if both := read.keys() & self.results:
            raise ValueError(f"results: {sorted(both)[0]} is an input, too; a kernel may not read what it writes")
        for one in found.values():
            if missing := [dim for dim in one.dims if dim not in self.values]:
                raise ValueError(f"{one.name}: sizes does not say what {missing[0]} is")
        if unused := self.values.keys() - {dim for one in found.values() for dim in one.dims}:
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
    def names(self) -> dict[str, str]:
        """The names that expressions may use, with the kind of each."""
        return dict.fromkeys(self.values, "size") | dict.fromkeys(self.integers, "scalar")

    @cached_property
    def tried(self) -> dict[str, tuple[int, ...]]:
        """The values to try of each name of the space."""
        found = {}
        for name, values in self.space.items():
            several = tuple(dict.fromkeys(values)) if isinstance(values, Sequence) else ()
            if not several or not all(type(one) is int and 0 <= one in INT32 for one in several):
                raise ValueError(f"space: {name} must be whole numbers from 0 on, not {values!r}")
            found[name] = several
        if not found:
            raise ValueError("space: there is nothing to choose from")
        return found
