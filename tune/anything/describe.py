"""From a kernel and what its user says of it to a family: the text of its files, and what it describes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any

from aotriton.codegen.program import launch_program
from aotriton.rules.checked import INT32, identifier
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.kernel import KernelDescription, Operand
from aotriton.rules.operators import Operator
from aotriton.rules.target import TARGETS
from aotriton.tune.anything.given import CONSTEXPR, Given
from aotriton.tune.anything.source import slice_of
from aotriton.tune.anything.text import expression, operand, spelled

TEMPLATE = Path(__file__).parent.parent / "template"
COPTS = {"num_warps": ("cuda", "hip"), "num_stages": ("cuda", "hip"), "maxnreg": ("cuda",), "waves_per_eu": ("hip",)}


@dataclass(frozen=True)
class Wanted:
    """What ``autotune`` was given, besides the kernel."""

    inputs: Mapping[str, str | float]
    results: Mapping[str, str]
    sizes: Mapping[str, int | Sequence[int]]
    space: Mapping[str, Sequence[int]]
    grid: str | int | Sequence[str | int]
    reference: Callable[..., Any]
    tolerance: float


@dataclass(frozen=True)
class Described:
    """A family for one kernel. ``files`` are its texts by their paths in its folder, ``family`` the folder's name."""

    given: Given
    wanted: Wanted
    family: str
    archs: tuple[str, ...]

    @cached_property
    def operator(self) -> Operator:
        """What the description says; ValueError where it is none, or more than the runner has room for."""
        made: dict[str, Any] = {}
        exec(compile(self.files["rules/__init__.py"], f"{self.family}/rules", "exec"), made)
        (found,) = made["OPERATORS"]
        launch_program(found.lead, found)
        return found

    @property
    def kernel(self) -> KernelDescription:
        return self.operator.lead

    def on(self, *archs: str) -> Described:
        return replace(self, archs=archs)

    def named(self, family: str) -> Described:
        return replace(self, family=identifier("the name of the folder, which is the family's,", family))

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The values of each size that are measured."""
        found = {}
        for name, values in self.wanted.sizes.items():
            identifier("sizes: a name", name)
            several = tuple(sorted(set(values))) if isinstance(values, Sequence) else (values,)
            if not several or not all(type(one) is int and 0 < one in INT32 for one in several):
                raise ValueError(f"sizes: {name} must be a whole number above 0, or several of them, not {values!r}")
            found[name] = several
        return found

    @property
    def shapes(self) -> Iterator[dict[str, int]]:
        """Each combination of sizes."""
        return (dict(zip(self.sizes, values, strict=True)) for values in product(*self.sizes.values()))

    @cached_property
    def operands(self) -> dict[str, Operand]:
        read = {name: text for name, text in self.wanted.inputs.items() if isinstance(text, str) and "[" in text}
        if not read or not self.wanted.results:
            raise ValueError(f"{'results' if read else 'inputs'}: there must be a tensor, as bf16[rows, columns]")
        found = {name: operand(name, text, False) for name, text in read.items()}
        found |= {name: operand(name, text, True) for name, text in self.wanted.results.items()}
        if both := read.keys() & self.wanted.results:
            raise ValueError(f"results: {sorted(both)[0]} is an input, too; a kernel may not read what it writes")
        for one in found.values():
            if missing := [dim for dim in one.dims if dim not in self.sizes]:
                raise ValueError(f"{one.name}: sizes does not say what {missing[0]} is")
        if unused := set(self.sizes) - {dim for one in found.values() for dim in one.dims}:
            raise ValueError(f"sizes: no tensor has the dimension {sorted(unused)[0]}")
        return found

    @cached_property
    def scalars(self) -> dict[str, int | float]:
        """Numbers that a call may give, with those that are measured."""
        found = {}
        for name, value in self.wanted.inputs.items():
            if isinstance(value, str):
                continue
            if not isinstance(value, (int, float)) or not isfinite(value):
                raise ValueError(f"inputs: {name} is {value!r}: neither a tensor, nor an expression, nor a number")
            found[name] = int(value) if isinstance(value, bool) else value
        return found

    @cached_property
    def _names(self) -> dict[str, str]:
        """What an expression may name."""
        whole = {name: "scalar" for name, value in self.scalars.items() if isinstance(value, int)}
        return dict.fromkeys(self.sizes, "size") | whole

    @cached_property
    def space(self) -> dict[str, tuple[int, ...]]:
        found = {}
        for name, values in self.wanted.space.items():
            several = tuple(dict.fromkeys(values)) if isinstance(values, Sequence) else ()
            if not several or not all(type(one) is int and 0 <= one in INT32 for one in several):
                raise ValueError(f"space: {name} must be whole numbers from 0 on, not {values!r}")
            found[name] = several
        if not found:
            raise ValueError("space: there is nothing to choose from")
        return found

    @cached_property
    def psels(self) -> tuple[str, ...]:
        """What of the space reaches the source; the rest is the compiler's."""
        given, allowed = self.given, tuple(COPTS)
        if given.provider and not given.called:
            return tuple(self.space)  # its module has looked at them
        own = {name for name, kind in given.arguments if kind == CONSTEXPR or given.provider}
        for name in self.space:
            if name not in own and (given.provider or name not in allowed):
                takes = "is no argument" if given.provider else f"is no constexpr, nor among {', '.join(allowed)},"
                raise ValueError(f"space: {name} {takes} of {given.name}")
        return tuple(name for name in self.space if name in own)

    @cached_property
    def _arguments(self) -> list[dict[str, Any]]:
        """The kernel's arguments, for the template."""
        called = self.given.called
        found = [
            self._argument(name, kind)
            for name, kind in self.given.arguments
            if not (called and name in self.space)  # it is given the config as it is
        ]
        have = {name for name, _ in self.given.arguments}
        for what, names in (("inputs", self.wanted.inputs), ("results", self.wanted.results)):
            if extra := [name for name in names if name not in have]:
                raise ValueError(f"{what}: {self.given.name} takes no {extra[0]}, but {', '.join(sorted(have))}")
        if called and (sized := [one["name"] for one in found if one["name"] not in {**self.operands, **self.scalars}]):
            raise ValueError(f"{sized[0]}: a Python function is given tensors, plain numbers and its config alone")
        return found

    def _argument(self, name: str, kind: str) -> dict[str, Any]:
        inputs = self.wanted.inputs
        if kind == CONSTEXPR and name not in self.space and name not in self.sizes:
            raise ValueError(f"{name}: a constexpr must be in space, or be one of the sizes")
        if kind == CONSTEXPR:
            return {"what": "constexpr", "name": name}
        if name in self.operands:
            declared = f"*{self.operands[name].dtype}"
            if kind and kind != declared:
                raise ValueError(f"{name}: {self.given.name} takes {kind}, it is declared as {declared}")
            return {"what": "tensor", "name": name}
        if name in self.scalars:
            dtype = "fp32" if isinstance(self.scalars[name], float) else "i32"
            if kind and kind != dtype:
                raise ValueError(f"{name}: {self.given.name} takes {kind}, it is declared as {dtype}")
            return {"what": "number", "name": name, "dtype": dtype, "value": f'scalar("{name}")', "multiple": 1}
        if name not in inputs and name not in self.sizes:
            raise ValueError(
                f"{name}: {self.given.name} takes it, and it is neither in inputs nor in results, nor a size"
            )
        value = expression(name, inputs.get(name, name), self._names)
        whole = {scalar: number for scalar, number in self.scalars.items() if isinstance(number, int)}
        values = [evaluate(value, Environment(sizes=sizes, scalars=whole)) for sizes in self.shapes]
        dtype = kind or ("i32" if all(one in INT32 for one in values) else "i64")
        if dtype not in ("i32", "i64"):
            raise ValueError(f"{name}: {self.given.name} takes {kind}, it is declared as a whole number")
        # As Triton's JIT does, but of all that is measured.
        aligned = self.given.provider is None and all(one % 16 == 0 for one in values)
        multiple = 16 if aligned else 1
        return {"what": "number", "name": name, "dtype": dtype, "value": spelled(value), "multiple": multiple}

    @cached_property
    def _grid(self) -> list[str]:
        grid, given = self.wanted.grid, self.given
        axes = [grid] if isinstance(grid, (str, int)) else list(grid) if isinstance(grid, Sequence) else None
        if axes is None or len(axes) > 3:
            raise ValueError(f"grid: {grid!r} is not one to three expressions, as cdiv(columns, BLOCK)")
        if given.called and axes:
            raise ValueError(f"grid: {given.name} is a Python function, and launches what it likes")
        if not given.called and not axes:
            raise ValueError(f"grid: how many programs of {given.name} are there? Write one to three expressions")
        names = self._names | dict.fromkeys(self.psels, "psel")
        return [spelled(expression("grid", one, names)) for one in (*axes, 1, 1, 1)[:3]]

    @cached_property
    def _reference(self) -> str:
        """The source of the reference's module."""
        known = {name for name, value in self.wanted.inputs.items() if name in self.operands or name in self.scalars}
        for name, one in inspect.signature(self.wanted.reference).parameters.items():
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) or (name not in known and one.default is one.empty):
                raise ValueError(f"reference: it takes {name}, and is given inputs by name: {', '.join(sorted(known))}")
        return slice_of(self.wanted.reference)  # type: ignore[arg-type]

    @cached_property
    def files(self) -> dict[str, str]:
        """ValueError names the argument that does not fit."""
        from jinja2 import Environment as Templates
        from jinja2 import FileSystemLoader, StrictUndefined

        templates = Templates(
            loader=FileSystemLoader(TEMPLATE),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        templates.filters["repr"] = repr
        given = self.given
        constexprs = {name for name, kind in given.arguments if kind == CONSTEXPR}
        copts = {name: values for name, values in self.space.items() if name not in self.psels}
        vendors = sorted({row.vendor for row in TARGETS if row.arch in self.archs})
        values = {
            "family": self.family,
            "given": given,
            "archs": self.archs,
            "type": next(iter(self.operands.values())).dtype,
            "operands": list(self.operands.values()),
            "scalars": self.scalars,
            "arguments": self._arguments,
            "choices": {name: values for name, values in self.sizes.items() if name in constexprs},
            "keys": {name: values for name, values in self.sizes.items() if name not in constexprs},
            "psels": {vendor: {name: self.space[name] for name in self.psels} for vendor in vendors},
            "copts": {
                vendor: {name: values for name, values in copts.items() if vendor in COPTS[name]} for vendor in vendors
            },
            "grid": self._grid,
            "reference": self.wanted.reference.__name__,
            "tolerance": float(self.wanted.tolerance),
        }
        suffix = given.provider.suffix if given.provider else "py"
        return {
            "rules/__init__.py": templates.get_template("family_rules.py.j2").render(values),
            "tune/__init__.py": templates.get_template("family_tune.py.j2").render(values),
            "tune/reference.py": self._reference,
            "tritonsrc/__init__.py": f'"""Device code of {self.family}."""\n',
            f"tritonsrc/{given.name}.{suffix}": given.source,
        }
