"""A made-up family: y = factor * times * x * (sum of the rows of w) + bias.

It has what attention has not: operands of two dimensions and of any strides, a whole number and numbers with
defaults, a choice and a tunable with a default, 64-bit numbers, programs along three axes, and a backend that derives a
size, which a workspace tensor has as a dimension.
"""

from __future__ import annotations

from dataclasses import replace

from aotriton.rules.arch import ADDRESSING
from aotriton.rules.binning import TuningKey
from aotriton.rules.expression import (
    addressing,
    ceil_divide,
    choose,
    constant,
    dtype,
    equal,
    maximum,
    minimum,
    multiprocessors,
    present,
    scalar,
    size,
    tiles,
    tunable,
)
from aotriton.rules.kernel import (
    BFS,
    DFS,
    Choice,
    Constexpr,
    Guard,
    KernelDescription,
    Number,
    Operand,
    Tensor,
    by_vendor,
    strides,
)
from aotriton.rules.operators import Backend, DerivedSize, Operator, Scalar
from aotriton.rules.work import Work

FAMILY = "toy"
MOST_TIMES = 100

DIMS = ("batch", "heads", "rows", "width")
X = Operand("x", DIMS)
W = Operand("w", ("taps", "width"), strided=True)
BIAS = Operand("bias", ("batch", "heads"), "fp32", optional=True, contiguous=True)
Y = Operand("y", DIMS, written=True)
# Workspace: sums of a share of w's rows.
PARTIAL = Operand("partial", ("splits", "width"), "fp32", contiguous=True, alignment=16)

T = Choice("T", ("bf16",), dtype(), small="bf16", option="dtype")
WIDTH = Choice("BLOCK_DMODEL", (32, 64), size("width"), round_up=True, small=64, option="width")
HAS_BIAS = Choice("HAS_BIAS", (False, True), present("bias"), default=False, option="bias")
ACCESS = Choice("ADDRESSING", ADDRESSING, addressing(), borrows=True, option="addressing")

ROWS = TuningKey("rows", (64, 512), size("rows"), "rows")
WAVES = TuningKey(
    "waves", (1, 8), ceil_divide(size("batch") * size("heads") * tiles("rows", 128), multiprocessors()), "waves"
)

FACTOR = Number("factor", "fp32", scalar("factor"))
TIMES = Number("times", "i32", scalar("times"))
SIZES = (Number("num_rows", "i32", size("rows")), Number("width", "i32", size("width")))
# A program for each tile of rows, which walks the rows of w.
ELEMENTS = size("batch") * size("heads") * size("rows") * size("width")
WORK = Work(
    rows=size("rows"),
    row_tile=tunable("BLOCK_M"),
    outer=size("batch") * size("heads"),
    depth=size("taps"),
    depth_tile=constant(16),
    traffic=(ELEMENTS * 4, size("taps") * size("width") * 2),
)
GUARD_TIMES = Guard(scalar("times") <= MOST_TIMES, f"times is more than {MOST_TIMES}")

KERNEL = KernelDescription(
    name="scale_rows",
    family=FAMILY,
    arguments=(
        Tensor("X", X, block=(1, 1, "BLOCK_M", "BLOCK_DMODEL")),
        Tensor("W", W),
        Tensor("Bias", BIAS),
        Tensor("Y", Y),
        FACTOR,
        TIMES,
        *strides("bhs", "X", "Y"),
        *strides("tc", "W"),
        Number("taps", "i32", size("taps")),
        *SIZES,
        *map(Constexpr, ("BLOCK_M", "UNROLL", "BLOCK_DMODEL", "HAS_BIAS", "ADDRESSING")),
    ),
    choices=(T, WIDTH, HAS_BIAS, ACCESS),
    tunables=by_vendor({"UNROLL": 1}, cuda={"BLOCK_M": (32, 64, 128), "UNROLL": (1, 2)}, hip={"BLOCK_M": (32, 64)}),
    compile_options=by_vendor(cuda={"num_warps": (4, 8)}, hip={"num_warps": (4,), "waves_per_eu": (0, 2)}),
    tuning_keys=(ROWS, WAVES),
    grid=(tiles("rows", "BLOCK_M"), size("heads"), size("batch")),
    guards=(GUARD_TIMES,),
    work=WORK,
    schedule=choose(equal(tunable("UNROLL"), 2), BFS, DFS),  # two rows of w side by side
)

FAST = replace(
    KERNEL,
    name="scale_rows_fast",
    choices=(T, WIDTH.narrowed(32), HAS_BIAS.narrowed(False), ACCESS.narrowed("descriptor")),
    tunables=by_vendor({"UNROLL": 1}, cuda={"BLOCK_M": (32, 64, 128), "UNROLL": (1, 2)}),
    compile_options=by_vendor(cuda={"num_warps": (4, 8)}),
    guards=(Guard(scalar("times") <= 1, "times is more than 1"),),
    archs=("sm_90",),
    gluon=True,
)

WEIGH = KernelDescription(
    name="scale_rows_weigh",
    family=FAMILY,
    arguments=(
        Tensor("W", W),
        Tensor("Partial", PARTIAL, does="write"),
        *strides("tc", "W"),
        Number("taps", "i32", size("taps")),
        Number("taps_of_split", "i32", ceil_divide(size("taps"), size("splits"))),
        Number("width", "i32", size("width")),
        Constexpr("BLOCK_DMODEL"),
    ),
    choices=(T, WIDTH),
    tunables=(),
    compile_options=by_vendor(cuda={"num_warps": (4,)}, hip={"num_warps": (4,)}),
    tuning_keys=(WAVES,),
    grid=(size("splits"), constant(1), constant(1)),
    work=Work(rows=size("taps"), row_tile=constant(16)),
)

APPLY = KernelDescription(
    name="scale_rows_apply",
    family=FAMILY,
    arguments=(
        Tensor("X", X),
        Tensor("Partial", PARTIAL),
        Tensor("Bias", BIAS),
        Tensor("Y", Y),
        FACTOR,
        TIMES,
        *strides("bhs", "X", "Y"),
        Number("splits", "i32", size("splits")),
        Number("num_heads", "i32", size("heads")),
        *SIZES,
        Number("all_rows", "i64", size("batch") * size("heads") * size("rows")),
        *map(Constexpr, ("BLOCK_M", "MOST_SPLITS", "BLOCK_DMODEL", "HAS_BIAS", "ADDRESSING")),
    ),
    choices=(T, WIDTH, HAS_BIAS, ACCESS),
    tunables=by_vendor(
        cuda={"BLOCK_M": (32, 64), "MOST_SPLITS": (4, 16)}, hip={"BLOCK_M": (32, 64), "MOST_SPLITS": (4, 16)}
    ),
    compile_options=by_vendor(cuda={"num_warps": (4,)}, hip={"num_warps": (4,)}),
    tuning_keys=(ROWS,),
    grid=(ceil_divide(size("batch") * size("heads") * size("rows"), tunable("BLOCK_M")), constant(1), constant(1)),
    guards=(GUARD_TIMES,),
    work=Work(
        rows=size("batch") * size("heads") * size("rows"),
        row_tile=tunable("BLOCK_M"),
        traffic=(ELEMENTS * 8, constant(0)),
    ),
)

# No more splits than there are rows of w, multiprocessors and places in the tile that adds them up.
SPLITS = DerivedSize("splits", maximum(1, minimum(size("taps"), minimum(multiprocessors(), tunable("MOST_SPLITS")))))

PORTABLE = Operator(
    name="scale",
    family=FAMILY,
    operands=(X, W, BIAS, Y),
    scalars=(Scalar("factor", "fp32", 1.0), Scalar("times", "i32", 1)),
    backends=(Backend("portable", (KERNEL,)),),
    cut="batch",
)
OPERATOR = replace(
    PORTABLE,
    backends=(
        *PORTABLE.backends,
        Backend("fast", (FAST,)),
        Backend("split", (WEIGH, APPLY), (PARTIAL,), (SPLITS,)),
    ),
)
OPERATORS = (OPERATOR,)
