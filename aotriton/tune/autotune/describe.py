"""From a kernel and what its user says of it to a family: the text of its files, and what it describes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from aotriton.codegen.program import launch_program
from aotriton.rules.arch import ARCHS
from aotriton.rules.checked import INT32, identifier
from aotriton.rules.expression import Environment, Expression, evaluate, scalar
from aotriton.rules.kernel import Argument, Constexpr, Number, Tensor
from aotriton.rules.operators import Operator
from aotriton.tune.autotune.given import CONSTEXPR, Given
from aotriton.tune.autotune.source import slice_of
from aotriton.tune.autotune.text import expression, spelled
from aotriton.tune.autotune.wanted import Wanted

TEMPLATE = Path(__file__).parent.parent / "template"

# Triton's compiler options that may be in a space, and the vendors that have them.
COPTS = {"num_warps": ("cuda", "hip"), "num_stages": ("cuda", "hip"), "maxnreg": ("cuda",), "waves_per_eu": ("hip",)}


@dataclass(frozen=True)
class Described:
    """The family of one kernel on some archs; ``family`` is its name, and its folder's. What is wrong is a ValueError
    that names the argument.
    """

    given: Given
    wanted: Wanted
    family: str
    archs: tuple[str, ...]

    def named(self, family: str) -> Described:
        return replace(self, family=identifier("the name of the folder, which is the family's,", family))

    @cached_property
    def operator(self) -> Operator:
        """What the family describes, within what the runner has room for."""
        made: dict[str, Any] = {}
        exec(compile(self.files["rules/__init__.py"], f"{self.family}/rules/__init__.py", "exec"), made)
        found: Operator
        (found,) = made["OPERATORS"]
        launch_program(found.lead, found)
        return found

    @cached_property
    def files(self) -> dict[str, str]:
        """The family's texts by their paths in its folder."""
        given, wanted = self.given, self.wanted
        constexprs = {name for name, kind in given.arguments if kind == CONSTEXPR}
        vendors = sorted({row.vendor for row in ARCHS if row.arch in self.archs})
        copts = [name for name in wanted.tried if name not in self.psels]
        values = {
            "family": self.family,
            "given": given,
            "archs": self.archs,
            "type": next(iter(wanted.operands.values())).dtype,
            "operands": wanted.operands.values(),
            "scalars": wanted.scalars,
            "arguments": self.arguments,
            "choices": {name: values for name, values in wanted.values.items() if name in constexprs},
            "keys": {name: values for name, values in wanted.values.items() if name not in constexprs},
            "psels": {vendor: {name: wanted.tried[name] for name in self.psels} for vendor in vendors},
            "copts": {
                vendor: {name: wanted.tried[name] for name in copts if vendor in COPTS[name]} for vendor in vendors
            },
            "grid": self.grid,
            "reference": wanted.reference.__name__,
            "prepare": wanted.prepare.__name__ if wanted.prepare else "",
            "tolerance": float(wanted.tolerance),
        }
        suffix = given.provider.suffix if given.provider else "py"
        functions = {"reference": wanted.reference} | ({"prepare": wanted.prepare} if wanted.prepare else {})
        return {
            "rules/__init__.py": _render("family_rules.py", values),
            "tune/__init__.py": _render("family_tune.py", values),
            **{f"tune/{what}.py": self._function(what, function) for what, function in functions.items()},
            "tritonsrc/__init__.py": f'"""Device code of {self.family}."""\n',
            f"tritonsrc/{given.name}.{suffix}": given.source,
        }

    @cached_property
    def psels(self) -> tuple[str, ...]:
        """What of the space reaches the source; the rest is the compiler's."""
        given, tried = self.given, self.wanted.tried
        if given.provider and not given.called:
            return tuple(tried)  # its module has looked at them
        own = {name for name, kind in given.arguments if given.called or kind == CONSTEXPR}
        for name in tried:
            if given.called and name not in own:
                raise ValueError(f"space: {name} is no argument of {given.name}")
            if name not in own and name not in COPTS:
                raise ValueError(f"space: {name} is no constexpr of {given.name}, nor among {', '.join(COPTS)}")
        return tuple(name for name in tried if name in own)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The kernel's, in its order. A Python function is given its config as it is, so that is not among them."""
        given, wanted = self.given, self.wanted
        have = [name for name, _ in given.arguments]
        for what, names in (("inputs", wanted.inputs), ("results", wanted.results)):
            if extra := [name for name in names if name not in have]:
                raise ValueError(f"{what}: {given.name} takes no {extra[0]}, but {', '.join(have)}")
        return tuple(
            self._argument(name, kind)
            for name, kind in given.arguments
            if not (given.called and name in wanted.tried and name not in wanted.inputs)
        )

    def _argument(self, name: str, kind: str) -> Argument:
        given, wanted = self.given, self.wanted
        if kind == CONSTEXPR:
            if name not in wanted.tried and name not in wanted.values:
                raise ValueError(f"{name}: a constexpr must be in space, or be one of the sizes")
            return Constexpr(name)
        if name in wanted.operands:
            self._check_type(name, kind, f"*{wanted.operands[name].dtype}")
            return Tensor(name, wanted.operands[name])
        if name in wanted.scalars:
            dtype = "i32" if name in wanted.whole else "fp32"
            self._check_type(name, kind, dtype)
            return Number(name, dtype, scalar(name))
        if name not in wanted.inputs and name not in wanted.values:
            raise ValueError(f"{name}: {given.name} takes it, and it is neither in inputs nor in results, nor a size")
        if given.called:
            raise ValueError(f"{name}: a Python function is given tensors, plain numbers and its config alone")
        value = expression(name, wanted.inputs.get(name, name), wanted.names)
        measured = [evaluate(value, Environment(sizes=one, scalars=wanted.whole)) for one in wanted.shapes]
        dtype = kind or ("i32" if all(one in INT32 for one in measured) else "i64")
        self._check_type(name, dtype, "i32", "i64")
        # Triton's JIT looks at each call for this, here all measured ones must have it; a guard sees to other calls.
        whole = given.provider is None and all(one % 16 == 0 for one in measured)
        return Number(name, dtype, value, multiple_of=16 if whole else 1)

    def _check_type(self, name: str, kind: str, *declared: str) -> None:
        """The source may say more than the user, but nothing else."""
        if kind and kind not in declared:
            raise ValueError(f"{name}: {self.given.name} takes {kind}, it is declared as {' or '.join(declared)}")

    @cached_property
    def grid(self) -> list[Expression]:
        """Programs along x, y and z."""
        grid, given = self.wanted.grid, self.given
        axes = [grid] if isinstance(grid, (str, int)) else list(grid) if isinstance(grid, Sequence) else None
        if axes is None or len(axes) > 3:
            raise ValueError(f"grid: {grid!r} is not one to three expressions, as cdiv(columns, BLOCK)")
        if given.called and axes:
            raise ValueError(f"grid: {given.name} is a Python function, and launches what it likes")
        if not given.called and not axes:
            raise ValueError(f"grid: how many programs of {given.name} are there? Write one to three expressions")
        names = self.wanted.names | dict.fromkeys(self.psels, "psel")
        return [expression("grid", one, names) for one in (*axes, 1, 1, 1)[:3]]

    def _function(self, what: str, function: Callable[..., Any]) -> str:
        """The source of a module with the function, which is given inputs by name."""
        wanted = self.wanted
        known = [name for name in wanted.inputs if name in wanted.operands or name in wanted.scalars]
        try:
            parameters = inspect.signature(function).parameters
        except ValueError as error:  # of a built-in function
            raise ValueError(f"{what}: {error}") from error
        for name, one in parameters.items():
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) or (name not in known and one.default is one.empty):
                raise ValueError(f"{what}: it takes {name}, and is given inputs by name: {', '.join(known)}")
        return slice_of(function)  # type: ignore[arg-type] # it refuses all but functions


def _render(template: str, values: dict[str, Any]) -> str:
    from jinja2 import Environment as Templates
    from jinja2 import FileSystemLoader, StrictUndefined

    made = Templates(
        loader=FileSystemLoader(TEMPLATE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(repr=repr, spelled=spelled, kind=lambda one: type(one).__name__)
    return made.get_template(f"{template}.j2").render(values)
