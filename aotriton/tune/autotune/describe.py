"""From a kernel and its declaration to a family: the text of its files, and its description."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from aotriton.codegen.program import MAX_KEYS, launch_program
from aotriton.rules.arch import ARCHS, DTYPE_BYTES, FLOATS
from aotriton.rules.checked import INT32, identifier
from aotriton.rules.expression import Environment, Expression, constant, evaluate, scalar, tunable
from aotriton.rules.kernel import Argument, Constexpr, Number, Tensor
from aotriton.rules.operators import Operator
from aotriton.tune.autotune.declaration import Declaration
from aotriton.tune.autotune.notation import constant_text, expression, spelled
from aotriton.tune.autotune.source import slice_of
from aotriton.tune.autotune.user_kernel import CONSTEXPR, UserKernel

TEMPLATE = Path(__file__).parent.parent / "template"

# Triton's compiler options that may be in a space, and the vendors that have them.
COMPILE_OPTIONS = {
    "num_warps": ("cuda", "hip"),
    "num_stages": ("cuda", "hip"),
    "maxnreg": ("cuda",),
    "waves_per_eu": ("hip",),
}


# Element types of which the runner makes tensor maps.
DESCRIBABLE = ("fp16", "bf16", "fp32", "i8", "u8", "fp8e4nv", "fp8e5")
ROW = 16  # bytes: the rows that a tensor map describes begin at multiples


@dataclass(frozen=True)
class Computed:
    """A constant that follows from sizes: ``value``, or with ``power`` the power of two that is not smaller, and its
    ``values`` at the measured sizes.
    """

    value: Expression
    power: bool
    values: tuple[int, ...]

    def at(self, sizes: Mapping[str, int]) -> int:
        found = evaluate(self.value, Environment(sizes=sizes))
        return 1 << max(found - 1, 0).bit_length() if self.power else found


@dataclass(frozen=True)
class Described:
    """The family of one kernel on some archs; ``family`` is its name, and its folder's. A ValueError names the argument
    that is wrong.
    """

    kernel: UserKernel
    declared: Declaration
    family: str
    archs: tuple[str, ...]

    def named(self, family: str) -> Described:
        return replace(self, family=identifier("the name of the folder, which is the family's,", family))

    @cached_property
    def operator(self) -> Operator:
        """The operator that the family describes, checked against what the runner has room for."""
        made: dict[str, Any] = {}
        exec(compile(self.files["rules/__init__.py"], f"{self.family}/rules/__init__.py", "exec"), made)
        found: Operator
        (found,) = made["OPERATORS"]
        launch_program(found.lead, found)
        return found

    @cached_property
    def files(self) -> dict[str, str]:
        """The family's texts by their paths in its folder."""
        kernel, declared = self.kernel, self.declared
        constexprs = {name for name, kind in kernel.arguments if kind == CONSTEXPR}
        vendors = sorted({row.vendor for row in ARCHS if row.arch in self.archs})
        compile_options = [name for name in declared.tried if name not in self.tunables]
        values = {
            "family": self.family,
            "kernel": kernel,
            "archs": self.archs,
            "type": self.dtype,
            "operands": declared.operands.values(),
            "scalars": declared.scalars,
            "arguments": self.arguments,
            "choices": {name: values for name, values in declared.values.items() if name in constexprs},
            "computed": self.computed,
            "configs": declared.numbered_configs,
            "keys": {name: values for name, values in declared.values.items() if name in self.keys},
            "blocks": self.blocks,
            "rows": self.rows,
            "fixed": self.fixed,
            "following": declared.following,
            "sizes": declared.sizes,
            "tunables": {vendor: {name: declared.numbers(name) for name in self.tunables} for vendor in vendors},
            "compile_options": {
                vendor: {name: declared.numbers(name) for name in compile_options if vendor in COMPILE_OPTIONS[name]}
                for vendor in vendors
            },
            "grid": self.grid,
            "reference": declared.reference.__name__,
            "prepare": declared.prepare.__name__ if declared.prepare else "",
            "tolerance": float(declared.tolerance),
        }
        suffix = kernel.provider.suffix if kernel.provider else "py"
        functions = {"reference": declared.reference} | ({"prepare": declared.prepare} if declared.prepare else {})
        return {
            "rules/__init__.py": _render("family_rules.py", values),
            "tune/__init__.py": _render("family_tune.py", values),
            **{f"tune/{what}.py": self._function(what, function) for what, function in functions.items()},
            "tritonsrc/__init__.py": f'"""Device code of {self.family}."""\n',
            f"tritonsrc/{kernel.name}.{suffix}": kernel.source,
        }

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The sizes that are tuning keys: those that are not compiled in, but for ``fixed``."""
        return tuple(name for name, _ in self._free_sizes if name not in self.fixed)

    @cached_property
    def fixed(self) -> dict[str, int]:
        """Sizes that are measured at one value and are no keys, where there is no room for more keys."""
        single = [(name, values[0]) for name, values in self._free_sizes if len(values) == 1]
        return dict(single[len(single) - max(0, len(self._free_sizes) - MAX_KEYS) :])

    @property
    def _free_sizes(self) -> list[tuple[str, tuple[int, ...]]]:
        """The sizes that are no constexprs, with their measured values."""
        constexprs = {name for name, kind in self.kernel.arguments if kind == CONSTEXPR}
        return [(name, values) for name, values in self.declared.values.items() if name not in constexprs]

    @property
    def dtype(self) -> str:
        """The type of a call, which is the choice T: that of the first tensor of a float type, or else of the first."""
        types = [one.dtype for one in self.declared.operands.values()]
        return next((one for one in types if one in FLOATS), types[0])

    @cached_property
    def tunables(self) -> tuple[str, ...]:
        """The names of the space that reach the source; the others are compiler options."""
        kernel, tried = self.kernel, self.declared.tried
        for name in tried:
            if (kernel.provider or name in COMPILE_OPTIONS) and not self.declared.are_numbers(name):
                raise ValueError(f"space: {name} must be whole numbers from 0 on, not {self.declared.space[name]!r}")
        if kernel.provider and not kernel.called:
            return tuple(tried)  # its module has looked at them
        own = {name for name, kind in kernel.arguments if kernel.called or kind == CONSTEXPR}
        for name in tried:
            if kernel.called and name not in own:
                raise ValueError(f"space: {name} is no argument of {kernel.name}")
            if name not in own and name not in COMPILE_OPTIONS:
                raise ValueError(
                    f"space: {name} is no constexpr of {kernel.name}, nor among {', '.join(COMPILE_OPTIONS)}"
                )
        return tuple(name for name in tried if name in own)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The kernel's arguments, in its order. A Python function receives its config as it is, so the config is not
        among them.
        """
        kernel, declared = self.kernel, self.declared
        have = [name for name, _ in kernel.arguments]
        for what, names in (("inputs", declared.inputs), ("results", declared.results)):
            if extra := [name for name in names if name not in have]:
                raise ValueError(f"{what}: {kernel.name} takes no {extra[0]}, but {', '.join(have)}")
        return tuple(
            self._argument(name, kind)
            for name, kind in kernel.arguments
            if not (kernel.called and name in declared.tried and name not in declared.inputs)
        )

    def _argument(self, name: str, kind: str) -> Argument:
        kernel, declared = self.kernel, self.declared
        if name in declared.constants:
            return self._constant(name)
        if kind == CONSTEXPR:
            if name not in declared.tried and name not in declared.values:
                raise ValueError(f"{name}: a constexpr must be in space, in inputs, or be one of the sizes")
            if name not in declared.tried or declared.are_numbers(name):
                return Constexpr(name)
            return Constexpr(name, values=tuple(map(str, map(constant_text, declared.tried[name]))))
        if name in declared.operands:
            self._check_type(name, kind, f"*{declared.operands[name].dtype}")
            return Tensor(name, declared.operands[name], block=self.blocks.get(name))
        if name in declared.scalars:
            dtype = "i32" if name in declared.integers else "fp32"
            self._check_type(name, kind, dtype)
            return Number(name, dtype, scalar(name))
        if name not in declared.inputs and name not in declared.sizes:
            raise ValueError(f"{name}: {kernel.name} takes it, and it is neither in inputs nor in results, nor a size")
        if kernel.called:
            raise ValueError(f"{name}: a Python function is given tensors, plain numbers and its config alone")
        value = expression(name, declared.inputs.get(name, name), declared.names)
        if value == constant(1) and kernel.provider is None:
            return Constexpr(name, values=("1",))  # as Triton's JIT does: the stride of neighbours
        measured = [evaluate(value, Environment(sizes=one, scalars=declared.integers)) for one in declared.shapes]
        dtype = kind or ("i32" if all(one in INT32 for one in measured) else "i64")
        self._check_type(name, dtype, "i32", "i64")
        # Triton's JIT looks at each call for this, here all measured ones must have it; a guard sees to other calls.
        whole = kernel.provider is None and all(one % 16 == 0 for one in measured)
        return Number(name, dtype, value, multiple_of=16 if whole else 1)

    @cached_property
    def blocks(self) -> dict[str, tuple[Expression, ...]]:
        """The sides of the block of each tensor that the kernel takes as a tensor descriptor."""
        kernel, declared, found = self.kernel, self.declared, {}
        if declared.descriptors and (kernel.provider or kernel.gluon):
            raise ValueError(f"descriptors: {kernel.name} is not written in Triton")
        if any(kernel.hooks) and not declared.descriptors:
            raise ValueError(
                "kernel: its configs have a pre_hook, which may only set the blocks of tensor descriptors that"
                " `descriptors` names"
            )
        sizes = {name for name, kind in kernel.arguments if kind == CONSTEXPR and name in declared.values}
        numbers = {name for name in self.tunables if declared.are_numbers(name)}
        fixed = {name: constant(value) for name, value in declared.constants.items() if type(value) is int}
        names = fixed | {name: tunable(name) for name in (*sizes, *numbers, *self.computed)}
        for name, block in declared.descriptors.items():
            if name not in declared.operands:
                raise ValueError(f"descriptors: {name} is no tensor of inputs or results")
            one = declared.operands[name]
            if one.dtype not in DESCRIBABLE:
                raise ValueError(f"descriptors: {name} is of {one.dtype}, and may be of {', '.join(DESCRIBABLE)}")
            if isinstance(block, str) or not isinstance(block, Sequence) or len(block) != len(one.dims):
                raise ValueError(f"descriptors: {name} has {len(one.dims)} dimensions, and its block is {block!r}")
            found[name] = tuple(expression(f"descriptors: {name}", side, names) for side in block)
        return found

    @property
    def rows(self) -> dict[str, tuple[str, int]]:
        """Of tensors with descriptors, the size whose multiples their rows are long, and of what."""
        operands = ((name, self.declared.operands[name]) for name in self.blocks)
        return {name: (one.dims[-1], ROW // DTYPE_BYTES[one.dtype]) for name, one in operands if len(one.dims) > 1}

    def _constant(self, name: str) -> Constexpr:
        """The argument for an input that is compiled in."""
        value = self.declared.constants[name]
        if name in self.computed:
            return Constexpr(name)
        if self.declared.is_computed(name):
            value = expression(name, value, self.declared.names).value
        if (text := constant_text(value)) is None:
            raise ValueError(
                f"inputs: {name} is {value!r}, which is no constant: a number, a truth value, text, None, or a type of"
                " Triton"
            )
        return Constexpr(name, values=(text,))

    @cached_property
    def computed(self) -> dict[str, Computed]:
        """The constants that follow from sizes."""
        declared, found = self.declared, {}
        for name in filter(declared.is_computed, declared.constants):
            text = str(declared.constants[name]).strip()
            whole = re.fullmatch(r"(?:triton\.)?next_power_of_2\((.*)\)", text)
            value = expression(name, whole[1] if whole else text, declared.names)
            one = Computed(value, bool(whole), ())
            values = sorted({one.at(sizes) for sizes in declared.shapes})
            if whole or any(code == "size" for code, _ in value.postfix()):
                found[name] = replace(one, values=tuple(values))
        return found

    def constants_at(self, sizes: Mapping[str, int]) -> dict[str, object]:
        """The arguments that are compiled in, with their values at these sizes."""
        fixed = {
            one.name: ast.literal_eval(one.values[0])
            for one in self.operator.lead.arguments
            if isinstance(one, Constexpr)
            and len(one.values) == 1
            and one.name not in self.declared.tried
            and one.name not in self.declared.constants
        }
        given = {name: value for name, value in self.declared.constants.items() if not self.declared.is_computed(name)}
        return fixed | given | {name: one.at(sizes) for name, one in self.computed.items()}

    def _check_type(self, name: str, kind: str, *declared: str) -> None:
        """ValueError where the source declares another type than the user."""
        if kind and kind not in declared:
            raise ValueError(f"{name}: {self.kernel.name} takes {kind}, it is declared as {' or '.join(declared)}")

    @cached_property
    def grid(self) -> list[Expression]:
        """Programs along x, y and z."""
        grid, kernel = self.declared.grid, self.kernel
        axes = [grid] if isinstance(grid, (str, int)) else list(grid) if isinstance(grid, Sequence) else None
        if axes is None or len(axes) > 3:
            raise ValueError(f"grid: {grid!r} is not one to three expressions, as cdiv(columns, BLOCK)")
        if kernel.called and axes:
            raise ValueError(f"grid: {kernel.name} is a Python function, and launches what it likes")
        if not kernel.called and not axes:
            raise ValueError(f"grid: how many programs of {kernel.name} are there? Write one to three expressions")
        numbers = {name: tunable(name) for name in self.tunables if kernel.provider or self.declared.are_numbers(name)}
        computed = {name: one.value for name, one in self.computed.items() if not one.power}
        names = self.declared.names | numbers | computed
        return [expression("grid", one, names) for one in (*axes, 1, 1, 1)[:3]]

    def _function(self, what: str, function: Callable[..., Any]) -> str:
        """The source of a module with the function, which is given inputs by name."""
        declared = self.declared
        known = [name for name in declared.inputs if name in declared.operands or name in declared.scalars]
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
