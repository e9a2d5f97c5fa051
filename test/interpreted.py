"""Runs a kernel of tritonsrc/ on numpy arrays through Triton's interpreter.

To be imported in a process of its own: TRITON_INTERPRET changes for good what ``triton.jit`` makes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import fp8_cases
import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from aotriton.rules.arch import DTYPES as ARCH_DTYPES
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import kernel as description_of
from aotriton.rules.family import operator_of, source_module
from aotriton.rules.kernel import Constexpr, Number, Stride, Tensor, block_of
from aotriton.rules.operators import Operator

POISON = 0x7F  # every byte of memory that no tensor owns: as a number, not a number or a huge one


@dataclass(frozen=True)
class DType:
    """An element type as Triton expects to find it on a tensor, and the numpy type that stores it."""

    name: str
    storage: type

    @property
    def itemsize(self) -> int:
        return int(np.dtype(self.storage).itemsize)

    def __str__(self) -> str:
        return f"torch.{self.name}"

    def encode(self, values: np.ndarray) -> np.ndarray:
        """``values`` in storage; they must be exact in this type."""
        if self.name == "bfloat16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if self.name in FP8:
            return fp8_cases.encode(FP8[self.name], values)
        return values.astype(self.storage)

    def decode(self, stored: np.ndarray) -> np.ndarray:
        if self.name == "bfloat16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        if self.name in FP8:
            stored = fp8_cases.NUMBERS[FP8[self.name]][stored]
        return stored.astype(np.float64)


DTYPES = {
    "fp16": DType("float16", np.float16),
    "bf16": DType("bfloat16", np.uint16),
    "fp32": DType("float32", np.float32),
    "i32": DType("int32", np.int32),
    "i64": DType("int64", np.int64),
    "fp8e4nv": DType("float8_e4m3fn", np.uint8),
    "fp8e4b8": DType("float8_e4m3fnuz", np.uint8),
}
FP8 = {one.name: name for name, one in DTYPES.items() if name.startswith("fp8")}


class View:
    """A strided array inside poisoned memory, with the part of torch's interface that the interpreter uses.

    ``order`` has the dimensions as they lie in memory, outermost first; ``gap`` elements lie between what is
    contiguous. Where that takes rows off 16 bytes, the first is off, too.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType, gap: int, order: tuple[int, ...]) -> None:
        self.dtype = dtype
        outer = [shape[dim] for dim in order]
        outer[-1] += gap
        size = prod(outer) * dtype.itemsize
        self.memory = np.full(size + 128, POISON, np.uint8)
        start = -self.memory.ctypes.data % 64 + (dtype.itemsize if gap and outer[-1] % 8 else 0)
        whole = self.memory[start : start + size].view(dtype.storage).reshape(outer)
        self.array = whole[..., : shape[order[-1]]].transpose(np.argsort(order))

    def expand(self, shape: tuple[int, ...]) -> None:
        """Makes sizes of 1 larger, by strides of 0; the view can then only be read."""
        self.array = np.broadcast_to(self.array, shape)

    def owned(self) -> np.ndarray:
        """Which bytes of the memory belong to the tensor."""
        before = self.memory.copy()
        self.array[...] = 0
        zeroed = self.memory == 0
        self.memory[:] = before
        return zeroed

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.dtype.itemsize for step in self.array.strides)

    # The interpreter copies storages to the host and back. These are there already.
    def untyped_storage(self) -> View:
        return self

    def cpu(self) -> View:
        return self

    def copy_(self, other: View) -> None:
        assert other is self

    def new_empty(self, *_: Any, **__: Any) -> View:
        return self

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def set_(self, *_: Any) -> None:
        pass


def launch(
    kernel: str,
    inputs: dict[str, np.ndarray],
    outputs: dict[str, tuple[int, ...]],
    values: dict[str, Any],
    gap: int | Mapping[str, int] = 0,
    absent: frozenset[str] = frozenset(),
    orders: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, tuple[str, ...]] | None = None,
    given: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """What ``kernel`` writes to tensors of the shapes ``outputs``, as float64; AssertionError if it writes elsewhere.

    ``values`` gives choices, tunables and scalars by name; scalars that it lacks are ``_usual``. Strides come from the
    tensors, numbers and the grid from the description. Optional operands without an array, and those that are
    ``absent``, are not given by the caller; an input of an optional operand may have sizes of 1, which are broadcast.
    ``gap``, of all or by tensor, and ``orders``, by tensor: see View. ``dims`` by tensor: its sizes where they are not
    the operand's. ``given``: sizes of the call that no tensor of the kernel has. ``values`` may also have the number of
    the GPU's multiprocessors.
    """
    description = description_of(kernel)
    level = int(values.get(description.level_choice, 0))
    tensors = [argument for argument in description.arguments if isinstance(argument, Tensor)]
    without = {one.name for one in tensors if one.operand.optional} - inputs.keys() - outputs.keys()
    absent |= {one.operand.name for one in tensors if one.name in without}
    operator = operator_of(description)
    workspace = {operand.name for operand in operator.workspace}
    views: dict[str, View] = {}
    for argument in description.arguments:
        if isinstance(argument, Tensor):
            name = argument.name
            kind = argument.dtypes.get(level, argument.dtype)
            dtype = DTYPES[str(values["T"]) if kind == "T" else kind]
            anything = {name: (1,) * argument.rank} if name in without else {}
            shape = inputs[name].shape if name in inputs else (outputs | anything)[name]
            natural = tuple(range(len(shape)))
            own_gap = gap if isinstance(gap, int) else gap.get(name, 0)
            if argument.operand.contiguous or argument.operand.name in workspace:
                own_gap = 0
            views[name] = View(shape, dtype, own_gap, (orders or {}).get(name, natural))
            if name in inputs:
                views[name].array[...] = dtype.encode(inputs[name])
    before = {name: view.memory.copy() for name, view in views.items()}

    sizes = dict(given or {})
    for one in (one for one in tensors if one.operand.name not in absent):
        own = (dims or {}).get(one.name, one.operand.dims)
        if one.operand.optional and not one.operand.written:
            shape = views[one.name].size()
            views[one.name].expand(tuple(sizes.get(dim, n) if n == 1 else n for dim, n in zip(own, shape, strict=True)))
        for dim, n in zip(own, views[one.name].size(), strict=True):
            assert sizes.setdefault(dim, n) == n, f"{kernel}: {dim} is {sizes[dim]}, but {n} of {one.name}"
    values = _usual(operator, sizes) | values
    environment = Environment(
        sizes=sizes,
        scalars=values,
        tunables=values,
        present={one.operand.name for one in tensors} - absent,
        other_dtypes={one.operand.name: ARCH_DTYPES.index(one.dtypes[level]) for one in tensors if level in one.dtypes},
        multiprocessors=int(values.get("multiprocessors", 0)),
    )
    descriptors: set[str] = set()
    arguments: list[Any] = []
    for argument in description.arguments:
        levels = getattr(argument, "levels", ())
        if levels and level not in levels:
            continue
        if isinstance(argument, Tensor):
            view = views[argument.name]
            block_at = argument.block_at(level)
            if values["ADDRESSING"] == "descriptor" and block_at is not None:
                block, order = block_of(block_at, values), list(range(argument.rank))
                if view.stride()[-1] != 1:  # it is described as it is stored
                    order[-2:] = order[:-3:-1]
                lengths, steps = ([of[dim] for dim in order] for of in (view.size(), view.stride()))
                arguments.append(TensorDescriptor(view, lengths, steps, block))
                descriptors.add(argument.name)
            else:
                arguments.append(view)
        elif isinstance(argument, Stride):
            arguments.append(0 if argument.tensor in descriptors else views[argument.tensor].stride()[argument.dim])
        elif isinstance(argument, Number) and argument.dtype == "fp32":
            arguments.append(values[argument.value.name])
        elif isinstance(argument, Number):
            arguments.append(evaluate(argument.value, environment))
        elif isinstance(argument, Constexpr):
            constant = _constant(argument, values)
            arguments.append(constant if constant is None else tl.constexpr(constant))
    grid = tuple(evaluate(axis, environment) for axis in description.grid)
    name = description.sources.get(level, description.function)
    function = getattr(importlib.import_module(source_module(description, name)), name)
    with np.errstate(all="ignore"):  # rows beyond the end may hold anything
        function[grid](*arguments)

    for name, view in views.items():
        kept = ~view.owned() if name in outputs else slice(None)
        assert np.array_equal(view.memory[kept], before[name][kept]), (
            f"{kernel} wrote outside of its results, at {name}"
        )
    return {name: views[name].dtype.decode(views[name].array) for name in outputs}


def _constant(argument: Constexpr, values: Mapping[str, Any]) -> Any:
    """The value of a constexpr: a choice or tunable, or what the description spells at its place."""
    if not argument.values:
        return values[argument.name]
    return eval(argument.values[values.get(argument.name, 0)], {"tl": tl})


def _usual(operator: Operator, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Scalars by name: the default, or what checks set in measured calls where that follows from the ``sizes``."""
    found: dict[str, Any] = {one.name: one.default for one in operator.scalars if not one.internal}
    for one in operator.scalars:
        if one.internal:
            with suppress(KeyError):  # a kernel may have no tensor of this size
                found[one.name] = evaluate(one.measured, Environment(sizes))
    return found


def _dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
    """``tl.dot`` with fp32 products. The interpreter's own multiplies the bits of bf16 as integers."""
    left, right = (
        interpreter._convert_float(x.data, tl.bfloat16, tl.float32, None).view(np.float32)
        if x.dtype.scalar == tl.bfloat16
        else x.data.astype(np.float32)
        for x in (a, b)
    )
    return interpreter.TensorHandle(left @ right + d.data, d.dtype.scalar)


_patch_lang_tensor = interpreter._patch_lang_tensor


def _patch_tensor(tensor: Any, scope: Any) -> None:
    """The interpreter's own patches, and a loop bound that is read from its array in a way that numpy >= 2.4 allows."""
    _patch_lang_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


_patch_lang_core = interpreter._patch_lang_core


def _patch_core(lang: Any, scope: Any) -> None:
    """The interpreter's own patches, with a type of 8 bits that they leave out."""
    _patch_lang_core(lang, scope)
    others = lang.dtype.to_ir
    scope.set_attr(lang.dtype, "to_ir", lambda self, ir: self if self.name == "fp8e4b8" else others(self, ir))


_convert_float = interpreter._convert_float


def _convert(values: Any, of: Any, to: Any, rounding: Any) -> Any:
    """The interpreter's own, but that of fp32 to 8 bits, which loses what rounding carries to the exponent."""
    if of.name == "fp32" and to.name in fp8_cases.NUMBERS:
        return fp8_cases.encode(to.name, values.view(np.float32).astype(np.float64)).reshape(values.shape)
    return _convert_float(values, of, to, rounding)


_patch_lang = interpreter._patch_lang
_patched: set[str] = set()


def _patch_once(function: Any) -> Any:
    """The interpreter's own patches, of a module once and for good. It makes them at each call of a device function,
    where they change nothing any more and take half of the time.
    """
    if function.__module__ not in _patched:
        _patched.add(function.__module__)
        _patch_lang(function)
    return interpreter._LangPatchScope()  # with nothing to take back


_get_np_dtype = interpreter._get_np_dtype
_np_dtypes: dict[str, np.dtype] = {}


def _np_dtype(of: Any) -> np.dtype:
    """The interpreter's own, which makes a table of all types each time that it is asked for one."""
    name = of.scalar.name
    if name not in _np_dtypes:
        _np_dtypes[name] = _get_np_dtype(of)
    return _np_dtypes[name]


def _make_tuple(self: Any, args: Any, type: Any = None) -> None:
    """Triton's own ``tuple``, which makes its type where that is asked for: the shape of each tensor is a tuple, whose
    type nobody asks for.
    """
    self.values = list(args)
    if type is not None:
        self.type = type if isinstance(type, tl.core.tuple_type) else tl.core.tuple_type(type)


_type_of_tuple = cached_property(lambda self: tl.core._type_for_tuple_values(self.values))
_type_of_tuple.__set_name__(tl.tuple, "type")

# Without ``debug`` nothing looks at what it computes for each sum and product of integers.
assert not interpreter.interpreter_builder.options.debug
interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
tl.tuple.__init__, tl.tuple.type = _make_tuple, _type_of_tuple
interpreter._convert_float = _convert
interpreter._get_np_dtype = _np_dtype
interpreter._patch_lang = _patch_once
interpreter.InterpreterBuilder.create_dot = _dot
interpreter._patch_lang_core = _patch_core
interpreter._patch_lang_tensor = _patch_tensor
# Each kernel ends before the next one begins, so none has to wait.
early: Any = importlib.import_module("triton.language.extra.cuda")  # `import` finds another module of this name
early.gdc_launch_dependents = early.gdc_wait = lambda: None
