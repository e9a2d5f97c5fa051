"""Kernels with the traits of public ones, each in few lines. They import what they need from their package."""

from __future__ import annotations

import triton
import triton.language as tl

from kernel_package import functions, other
from kernel_package.functions import WEIGHT, apart, larger
from kernel_package.functions import weigh as heavy


@triton.jit
def imported(x, out, n, BLOCK: tl.constexpr):
    """out = weighed x + 1.5, by functions of other modules."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size: tl.constexpr = larger(BLOCK, WEIGHT)
    value = heavy(tl.load(x + place, mask=place < n)) + apart(0.0)
    tl.store(out + place, value + size // BLOCK, mask=place < n)


@triton.jit
def by_module(x, out, n, BLOCK: tl.constexpr):
    """It reaches functions through their modules, which may change."""
    tl.store(out, functions.weigh(other.root(tl.load(x))))


def plain(x: float) -> float:
    return x


@triton.jit
def confused(x, out, n, BLOCK: tl.constexpr):
    """It calls a function of Python."""
    tl.store(out, plain(tl.load(x)))


@triton.jit
def constant(
    x,
    bias,
    out,
    n,
    step,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EPS: tl.constexpr,
    SHIFT: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    SCALE: tl.constexpr = 2,
):
    """A kernel that is mostly compiled in: out = 2 |x| + EPS + SHIFT, of rows in one block."""
    tl.static_assert(step == 1)
    place = tl.arange(0, WHOLE)
    value = tl.load(x + tl.program_id(0) * n + place * step, mask=place < n).to(ACC)
    if bias is not None:
        value += tl.load(bias)
    if KIND == "absolute":
        value = tl.abs(value)
    if HAS_BIAS is True:
        value = value * 0
    tl.static_assert(BLOCK <= WHOLE)
    tl.store(out + tl.program_id(0) * n + place * step, SCALE * value + EPS + SHIFT, mask=place < n)


@triton.jit
def chosen(x, out, n, ACC: tl.constexpr, MODE: tl.constexpr, EVEN: tl.constexpr, SHIFT: tl.constexpr):
    """What is tried of it is neither of whole numbers nor above 0."""
    place = tl.program_id(0) * 64 + tl.arange(0, 64)
    value = tl.load(x + place, mask=place < n).to(ACC)
    if MODE == "double":
        value *= 2
    if EVEN is True:
        value += 1
    tl.store(out + place, value + SHIFT, mask=place < n)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=4, num_stages=2)],
    key=["n"],
)
@triton.heuristics({"HAS_BIAS": lambda args: args["bias"] is not None, "TWICE": lambda args: 2 * args["WIDTH"]})
@triton.jit
def wrapped(
    x,
    bias,
    out,
    n,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TWICE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = x + bias + TWICE"""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n)
    if HAS_BIAS:
        value += tl.load(bias + place, mask=place < n)
    tl.store(out + place, value + TWICE, mask=place < n)


guessing = triton.heuristics({"EVEN": lambda args: args["n"] % 64 == 0})(chosen)


@triton.jit
def strided(x, x_row, x_column, out, out_row, count, columns, BLOCK: tl.constexpr):
    """out[:, 0] = the first half of x's rows, which are as wide as out's."""
    tl.static_assert(x_column == 1)
    place = tl.program_id(0) * x_row + tl.arange(0, BLOCK) * x_column
    inside = (tl.arange(0, BLOCK) < columns) & (tl.program_id(0) < count)
    tl.store(out + tl.program_id(0) * out_row + tl.arange(0, BLOCK), tl.load(x + place, mask=inside), mask=inside)


@triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=[], restore_value=["x"])
@triton.jit
def accumulate(x, y, out, n, BLOCK: tl.constexpr):
    """x += y, and out is what x was."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n)
    tl.store(out + place, value, mask=place < n)
    tl.store(x + place, value + tl.load(y + place, mask=place < n), mask=place < n)


@triton.jit
def typed(labels, flags, small, codes, x, count, out, n, BLOCK: tl.constexpr):
    """Tensors of every type: out = x of the label where the flag is set, counted; and codes of what is small."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    label = tl.load(labels + place, mask=inside, other=0)
    flag = tl.load(flags + place, mask=inside, other=0) != 0
    value = tl.where(flag, tl.load(x + label % n), 0.0) + tl.load(small + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, value, mask=inside)
    tl.store(codes + place, (value > 0).to(tl.int8), mask=inside)
    tl.store(count + place, flag.to(tl.int32), mask=inside)


@triton.jit
def labelled(x, out, sums, n, LABEL: tl.constexpr, BLOCK: tl.constexpr):
    """out = x in pairs, and a sum of every sixteen of x."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < 2 * n, other=0.0)
    tl.store(out + place, value, mask=place < 2 * n)
    part = tl.program_id(0) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    tl.store(sums + part, tl.sum(value.reshape(BLOCK // 32, 32), 1), mask=part * 16 < n)


@triton.jit
def by_descriptors(x, out, rows, columns, BLOCK: tl.constexpr, MAKES: tl.constexpr):
    """out = x, by tensor descriptors that the kernel makes, or by pointers."""
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    if MAKES:
        read = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [BLOCK, BLOCK])
        written = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [BLOCK, BLOCK])
        written.store([row, column], read.load([row, column]))
    else:
        place = (row + tl.arange(0, BLOCK))[:, None] * columns + column + tl.arange(0, BLOCK)
        tl.store(out + place, tl.load(x + place))
