"""What the GEMM kernels share: operands, choices, tuning keys, and the numbers that they are passed."""

from __future__ import annotations

from aotriton.rules.arch import ADDRESSING
from aotriton.rules.binning import TuningKey
from aotriton.rules.expression import (
    Expression,
    addressing,
    ceil_divide,
    choose,
    constant,
    dtype,
    equal,
    present,
    scalar,
    size,
    transposed,
    tunable,
)
from aotriton.rules.kernel import Choice, Number, Operand, Side, Value
from aotriton.rules.work import ONE, WHOLE, Work

FAMILY = "gemm"
L2_LINE = 128  # bytes

A = Operand("a", ("batch", "m", "k"), strided=True)
B = Operand("b", ("batch", "k", "n"), strided=True)
D = Operand("d", ("batch", "m", "n"), written=True, strided=True)
BIAS = Operand("bias", ("n",), optional=True, contiguous=True)


def _transposed(operand: str, anyhow: bool) -> Expression:
    """1 where the operand's last dimension but one is the contiguous one; ``anyhow`` where kernels follow any."""
    return choose(equal(addressing(), ADDRESSING.index("general")), int(anyhow), transposed(operand))


T = Choice("T", ("fp16", "bf16"), dtype(), measured_as="bf16", small="bf16", option="dtype")
# Tensor cores take rows and columns alike. What is measured is a layer's weight, [n, k] as it is stored.
TRANS_A = Choice("TRANS_A", (False, True), _transposed("a", False), measured_as=False, small=False, option="trans-a")
TRANS_B = Choice("TRANS_B", (False, True), _transposed("b", True), measured_as=True, small=True, option="trans-b")
ACCESS = Choice("ADDRESSING", ADDRESSING, addressing(), borrows=True, option="addressing")
DESCRIPTOR = ACCESS.narrowed("descriptor")
IMPOSSIBLE: tuple[dict[str, Value], ...] = (
    {"ADDRESSING": "general", "TRANS_A": True},
    {"ADDRESSING": "general", "TRANS_B": False},
)

KEYS = (
    TuningKey("m", (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192), size("m"), "m"),
    # Of all batches: what counts is how many tiles there are.
    TuningKey("columns", (512, 1024, 2048, 4096, 6144, 8192, 14336, 28672), size("n") * size("batch"), "columns"),
    TuningKey("k", (1024, 4096, 8192, 14336), size("k"), "k"),
)

ALPHA = Number("alpha", "fp32", scalar("alpha"))
ACTIVATION = Number("activation", "i32", scalar("activation"))


def _bias_along(swapped: int) -> Expression:
    return choose(equal(scalar("swapped"), swapped), present("bias"), 0)


# 1 for the dimension that the bias goes along, 0 for the other, and for both where there is none.
BIAS_STRIDES = (Number("bias_stride_m", "i32", _bias_along(1)), Number("bias_stride_n", "i32", _bias_along(0)))
SIZES = tuple(Number(name.upper(), "i32", size(name)) for name in "mnk")


def stored(trans: str, rows: Side, columns: Side) -> tuple[Side, ...]:
    """The block of a tensor that is stored transposed where the choice ``trans`` says so."""
    first, last = (tunable(side) if isinstance(side, str) else side for side in (rows, columns))
    return 1, choose(tunable(trans), last, first), choose(tunable(trans), first, last)


def tiles(rows: Side, columns: Side) -> Expression:
    """Tiles of D."""
    first, last = (tunable(side) if isinstance(side, str) else side for side in (rows, columns))
    return ceil_divide(size("m"), first) * ceil_divide(size("n"), last) * size("batch")


def work(rows: Expression, columns: Expression, programs: Expression = ONE, form: int = WHOLE) -> Work:
    """A program for each tile of d, which walks k."""
    row_bytes = size("k") * 2
    return Work(
        rows=size("m"),
        row_tile=rows,
        outer=size("batch"),
        columns=size("n"),
        column_tile=columns,
        depth=size("k"),
        depth_tile=tunable("BLOCK_K"),
        form=constant(form),
        traffic=(
            size("batch") * (size("m") + size("n")) * size("k") * 2,
            size("batch") * size("m") * size("n") * 2,
        ),
        # TMA moves whole lines of L2 where rows begin at them.
        slow=~equal(ceil_divide(row_bytes, L2_LINE) * L2_LINE, row_bytes),
        programs=programs,
    )
