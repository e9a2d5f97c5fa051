"""Attention backward: its operator, and three or four kernels for each backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aotriton.rules.expression import (
    Expression,
    ceil_divide,
    choose,
    constant,
    maximum,
    minimum,
    multiprocessors,
    present,
    quotient,
    scalar,
    size,
    tiles,
    tunable,
)
from aotriton.rules.flash import common as c
from aotriton.rules.flash.restrictions import RESTRICTIONS
from aotriton.rules.flash.restrictions_hopper import (
    FEATURES_BACKWARD_RESTRICTIONS,
    PAIR_RESTRICTIONS,
    PARTS_RESTRICTIONS,
)
from aotriton.rules.kernel import DFS, Guard, KernelDescription, Number, Operand, Tensor, by_vendor, strides
from aotriton.rules.operators import Backend, DerivedSize, Operator, Scalar
from aotriton.rules.work import WHOLE, Work

OUT, DOUT = Operand("out", c.OUT_DIMS), Operand("dout", c.OUT_DIMS)
LOGSUMEXP = c.rows("logsumexp")
DQ, DK, DV = (
    Operand(name, dims, written=True) for name, dims in (("dq", c.Q_DIMS), ("dk", c.K_DIMS), ("dv", c.V_DIMS))
)
# Workspace: rowsum(dout x out), and what programs add up: dq and dk before their scale, and dv.
DELTA = c.rows("delta")
DQ_SUM, DK_SUM, DV_SUM = (
    Operand(name, dims, "fp32", contiguous=True)
    for name, dims in (
        ("dq_sum", ("batch", "heads_q", "dq_rows", "dq_columns")),
        ("dk_sum", c.K_DIMS),
        ("dv_sum", c.K_DIMS),
    )
)


# Bits of gradients that the caller does without, as AOTRITON_SKIP_ of c.h: 1 for dq, 2 for dk and 4 for dv. Kernels
# that compute nothing else have no programs then; the others write to the memory that c.h asks for.
SKIPPED = Scalar("skip_gradients", "i32")
_SKIPPED = scalar(SKIPPED.name)
WITH_DQ = maximum(present("dbias"), quotient(_SKIPPED, constant(2)) * 2 - _SKIPPED + 1)
WITH_DK_DV = _SKIPPED <= 5


def _only(wanted: Expression, grid: tuple[Expression, Expression, Expression], work: Work) -> dict[str, Any]:
    """The grid and the work of a kernel that has programs only where its gradients are wanted."""
    return {"grid": (grid[0] * wanted, *grid[1:]), "work": replace(work, rows=work.rows * wanted)}


DQ_TILES = tiles("seqlen_q", 64)  # of the sum of dq: what each has lies together (tritonsrc/flash/lib/dq_layout.py)


def _of_dq_sum(width: Expression | int) -> tuple[DerivedSize, ...]:
    """The sizes of the sum of dq whose tiles have so many columns."""
    return DerivedSize("dq_rows", DQ_TILES * width), DerivedSize("dq_columns", constant(64))


OF_DQ_SUM = _of_dq_sum(choose(size("head_dim") <= 32, 32, choose(size("head_dim") <= 64, 64, 128)))
OF_DQ_SUM_SLIM = _of_dq_sum(96)
DQ_WIDTH = Number("dq_width", "i32", ceil_divide(size("dq_rows"), DQ_TILES), multiple_of=32)

# Of the kernels that only walk rows, what a search tries as well.
MORE_ROWS, MORE_WARPS = {"cuda": {"BLOCK_M": (8, 16, 256)}}, {"cuda": {"num_warps": (1, 2, 16)}}

ATTN_BWD_PREPROCESS = KernelDescription(
    name="attn_bwd_preprocess",
    family=c.FAMILY,
    arguments=(
        Tensor("Out", OUT),
        Tensor("DO", DOUT),
        Tensor("Delta", DELTA, does="write"),
        *strides("bhs", "Out", "DO"),
        c.HEADS_Q,
        c.SEQLEN_Q,
        c.WIDTH_V,
        *c.constexprs("BLOCK_M", "BLOCK_DMODEL", "ADDRESSING"),
    ),
    choices=(c.T_PORTABLE, c.HEAD_DIM_PORTABLE, c.ACCESS),
    impossible=c.NO_FP32_HAS,
    tunables=by_vendor(more=MORE_ROWS, cuda={"BLOCK_M": (32, 64, 128)}, hip={"BLOCK_M": (32, 64, 128)}),
    compile_options=by_vendor(
        more=MORE_WARPS,
        cuda={"num_warps": (4, 8), "num_stages": (1,)},
        hip={"num_warps": (4,), "num_stages": (1,), "waves_per_eu": (0,)},
    ),
    tuning_keys=(c.MAX_SEQLEN_Q,),
    grid=c.grid("seqlen_q", "BLOCK_M", "heads_q"),
    work=c.row_work("BLOCK_M", tensors=2),
    restrictions=RESTRICTIONS,
)

# Where the call asks for it. It has no work: what it takes is the same whatever the backend's other kernels are.
ATTN_BWD_DSINKS = KernelDescription(
    name="attn_bwd_dsinks",
    family=c.FAMILY,
    arguments=(
        Tensor("L", LOGSUMEXP),
        Tensor("Delta", DELTA),
        Tensor("Sinks", c.SINKS, general=True),
        Tensor("DSinks", c.DSINKS, general=True),
        Tensor("CuSeqlensQ", c.CU_SEQLENS_Q, general=True),
        Number("features", "i32", scalar("features")),
        Number("sequences", "i32", c.SEQUENCES),
        Number("batch", "i32", size("batch")),
        c.HEADS_Q,
        c.SEQLEN_Q,
        *c.constexprs("BLOCK_M"),
    ),
    choices=(),
    tunables=by_vendor(cuda={"BLOCK_M": (2048,)}, hip={"BLOCK_M": (2048,)}),
    compile_options=by_vendor(
        cuda={"num_warps": (8,), "num_stages": (1,)}, hip={"num_warps": (8,), "num_stages": (1,), "waves_per_eu": (0,)}
    ),
    tuning_keys=(c.MAX_SEQLEN_Q,),
    grid=(size("heads_q") * present("dsinks"), constant(1), constant(1)),
)

ATTN_BWD_DK_DV = KernelDescription(
    name="attn_bwd_dk_dv",
    family=c.FAMILY,
    arguments=(
        Tensor("Q", c.Q, c.Q_TILE),
        Tensor("K", c.K, c.K_TILE),
        Tensor("V", c.V, c.K_TILE),
        Tensor("DO", DOUT, c.Q_TILE),
        c.stored("DK", DK, c.K_TILE),
        c.stored("DV", DV, c.K_TILE),
        Tensor("L", LOGSUMEXP),
        Tensor("Delta", DELTA),
        c.SM_SCALE,
        *strides("bhs", "Q", "K", "V", "DO", "DK", "DV"),
        *c.SIZES_OF_LEVELS,
        *c.of_features("k"),
        *c.tile("BLOCK_M", "BLOCK_N"),
    ),
    sources=dict.fromkeys(c.FEATURED, "attn_bwd_dk_dv_features"),
    choices=(c.LEVEL, c.T_PORTABLE, c.HEAD_DIM_PORTABLE, c.CAUSAL, c.ACCESS),
    impossible=c.NO_CALL_HAS,
    steered=True,  # see v2src/flash/band.cc
    # Each wave has all columns of K and V as operands: 256 registers of fp32.
    may_spill={"hip": ({"T": "fp32", c.HEAD_DIM.name: c.WIDE},)},
    # Two accumulators of BLOCK_N x BLOCK_DMODEL stay in registers: head dim 256 leaves room for BLOCK_N 64 at most, and
    # with general addressing, whose pointers take registers too, for 32.
    tunables=(
        *by_vendor(
            more={"cuda": {"BLOCK_M": (256,), "BLOCK_N": (256,)}},
            cuda={"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128)},
            hip={"BLOCK_M": (16, 32, 64), "BLOCK_N": (16, 32, 64)},
        ),
        *c.PRODUCTS_OF_FP32,
    ),
    compile_options=by_vendor(
        more={"cuda": {"num_warps": (1, 2, 16), "num_stages": (1, 4, 5, 6)}},
        cuda={"num_warps": (4, 8), "num_stages": (2, 3)},
        # More than one wave for each SIMD would spill, or fits anyway. Eight warps serve head dim 256, general.
        hip={"num_warps": (4, 8), "num_stages": (1,), "waves_per_eu": (1,)},
    ),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("k")),
    **_only(
        WITH_DK_DV,
        c.grid_of_sequences("k", "BLOCK_N", "heads_k"),
        c.work("k", "BLOCK_N", "BLOCK_M", tensors=(2, 4), banded=True),
    ),
    guards=(c.GUARD_BAND,),
    restrictions=RESTRICTIONS,
    schedule=DFS,
)

ATTN_BWD_DQ = KernelDescription(
    name="attn_bwd_dq",
    family=c.FAMILY,
    arguments=(
        Tensor("Q", c.Q, c.Q_TILE),
        Tensor("K", c.K, c.K_TILE),
        Tensor("V", c.V, c.K_TILE),
        Tensor("DO", DOUT, c.Q_TILE),
        c.stored("DQ", DQ, c.Q_TILE),
        Tensor("L", LOGSUMEXP),
        Tensor("Delta", DELTA),
        c.SM_SCALE,
        *strides("bhs", "Q", "K", "V", "DO", "DQ"),
        *c.SIZES_OF_LEVELS,
        *c.of_features("q"),
        Tensor("DBias", c.DBIAS, general=True, levels=c.FEATURED),
        *strides("bhs", "DBias", levels=c.FEATURED),
        *c.tile("BLOCK_M", "BLOCK_N"),
    ),
    sources=dict.fromkeys(c.FEATURED, "attn_bwd_dq_features"),
    choices=(c.LEVEL, c.T_PORTABLE, c.HEAD_DIM_PORTABLE, c.CAUSAL, c.ACCESS),
    impossible=c.NO_CALL_HAS,
    steered=True,  # see v2src/flash/band.cc
    # Hopper: fewer rows than a warp group's 64 are the only ones that fit with head dim 256, general.
    tunables=(
        *by_vendor(
            more={"cuda": {"BLOCK_M": (256,), "BLOCK_N": (256,)}},
            cuda={"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128)},
            hip={"BLOCK_M": (16, 32, 64), "BLOCK_N": (16, 32, 64)},
        ),
        *c.PRODUCTS_OF_FP32,
    ),
    compile_options=by_vendor(
        more={"cuda": {"num_warps": (1, 2, 16), "num_stages": (1, 4, 5, 6)}},
        cuda={"num_warps": (4, 8), "num_stages": (2, 3)},
        # More than one wave for each SIMD would spill, or fits anyway. Eight warps serve head dim 256, general.
        hip={"num_warps": (4, 8), "num_stages": (1,), "waves_per_eu": (1,)},
    ),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("q")),
    **_only(
        WITH_DQ,
        c.grid_of_sequences("q", "BLOCK_M", "heads_q"),
        c.work("q", "BLOCK_M", "BLOCK_N", tensors=(3, 2), banded=True),
    ),
    guards=(c.GUARD_BAND,),
    restrictions=RESTRICTIONS,
    schedule=DFS,
)

ATTN_BWD_DK_DV_SLIM = c.portable_slim(ATTN_BWD_DK_DV)
ATTN_BWD_DQ_SLIM = c.portable_slim(ATTN_BWD_DQ)

KEY_ROWS = (1, 1, 128, "BLOCK_DMODEL")  # of a program: 64 for each of its two consumers
KEY_ROWS_SPLIT = (1, 1, 64, "BLOCK_DMODEL")
# A warp group's registers have no room for its share of DK and DV at head dim 256.
HEAD_DIM_FUSED = c.HEAD_DIM.narrowed(32, 64, 128)

# The order of dq's sum has groups of 16 rows.
ROWS_OF_ORDER = by_vendor(cuda={"BLOCK_M": (16, 32, 64)})

ATTN_BWD_HOPPER_PREPARE = KernelDescription(
    name="attn_bwd_hopper_prepare",
    family=c.FAMILY,
    arguments=(
        Tensor("Out", OUT),
        Tensor("DO", DOUT),
        Tensor("Delta", DELTA, does="write"),
        Tensor("DQSum", DQ_SUM, does="write"),
        *strides("bhs", "Out", "DO"),
        c.HEADS_Q,
        c.SEQLEN_Q,
        c.WIDTH_V,
        DQ_WIDTH,
        *c.constexprs("BLOCK_M", "BLOCK_DMODEL"),
    ),
    choices=(c.T, HEAD_DIM_FUSED, c.DESCRIPTOR),
    tunables=ROWS_OF_ORDER,
    compile_options=by_vendor(more=MORE_WARPS, cuda={"num_warps": (4, 8), "num_stages": (1,)}),
    tuning_keys=(c.MAX_SEQLEN_Q,),
    grid=c.grid("seqlen_q", "BLOCK_M", "heads_q"),
    work=c.row_work("BLOCK_M", tensors=4),
    restrictions=RESTRICTIONS,
    needs=("tma", "wgmma"),
)

# Of the kernels that compute DK and DV, behind what they have descriptors of: rows, numbers, and the tile.
BEHIND_TENSORS = (Tensor("L", LOGSUMEXP), Tensor("Delta", DELTA), c.SM_SCALE, *c.SIZES)
WIDTHS = c.constexprs("BLOCK_M", "BLOCK_DMODEL", "CAUSAL")

_PIECE_COLUMNS = minimum(tunable("BLOCK_DMODEL"), constant(64))
PIECE = (1, 1, 64, _PIECE_COLUMNS)  # of a sum
DQ_PIECE = (1, 1, _PIECE_COLUMNS, 64)  # of so many columns, which lie together
TOGETHER_BYTES = 1 << 25  # of heads that begin together, in q, dout and dq_sum: they are to stay in L2


def _in_l2(rows: Expression, bytes_each: int) -> Expression:
    """How many heads of keys stay in L2, whose query heads have so many rows, and so many bytes for each element of q;
    at least one.
    """
    of_head = c.GROUP * rows * size("head_dim") * bytes_each
    return maximum(quotient(constant(TOGETHER_BYTES), of_head), 1)


def _together(bytes_each: int) -> Expression:
    """How many heads of keys begin together: those that stay in L2, where their tiles differ."""
    return minimum(choose(scalar("causal"), _in_l2(size("seqlen_q"), bytes_each), 1), size("batch") * size("heads_k"))


TOGETHER = _together(8)
# Also where tiles are alike: fewer of one head then add to the same rows of dq at once.
FEATURES_TOGETHER = minimum(_in_l2(maximum(scalar("longest_q"), 1), 8), size("batch") * size("heads_k"))


_TILES = size("batch") * size("heads_k") * tiles("seqlen_k", 128)
# How many heads of keys persistent programs take together: as many as fill two rounds of them, or up to four that stay
# in L2. Simulated on 300 random causal calls, the busiest program has 1.04 of the mean with two (1.06 with one; 1.05
# where programs begin as others end).
_TWO_ROUNDS, _FOUR_ROUNDS = (ceil_divide(multiprocessors() * rounds, tiles("seqlen_k", 128)) for rounds in (2, 4))
HEADS_TOGETHER = minimum(maximum(_TWO_ROUNDS, minimum(_FOUR_ROUNDS, TOGETHER)), size("batch") * size("heads_k"))

# The programs of a head of keys go through the same q, dout and sum of dq, which are 8 bytes for each element, but not
# at the same time: some are at a later query head. They stay in L2 where no more than so many elements are under way.
ELEMENTS_IN_L2 = 6 << 20
_KEY_HEADS = size("batch") * size("heads_k")
_OF_KEY_HEAD = c.GROUP * size("seqlen_q") * size("head_dim")
_UNDER_WAY = minimum(_KEY_HEADS, ceil_divide(multiprocessors(), tiles("seqlen_k", 128)))
_VISITED = _TILES * maximum(_OF_KEY_HEAD - quotient(constant(ELEMENTS_IN_L2), _UNDER_WAY), 0)  # that L2 has no more
_BYTES_VISITED = choose(scalar("causal"), 6, 12)  # two elements of 16 bits are read, one of 32 is read and written


def _adding_work() -> Work:
    """The work of a kernel whose programs add to the sum of dq."""
    plain = c.work("k", 128, "BLOCK_M", tensors=(4, 4))
    return replace(plain, traffic=(plain.traffic[0] + plain.traffic[1], _VISITED * _BYTES_VISITED))


ADDS_DQ = (Guard(~scalar("deterministic"), "its programs add to dq in any order, and the call is to be deterministic"),)

# Persistent: each multiprocessor has one program, which takes tile after tile.
ATTN_BWD_HOPPER_PAIR = KernelDescription(
    name="attn_bwd_hopper_pair",
    family=c.FAMILY,
    arguments=(
        Tensor("Q", c.Q, c.Q_TILE),
        Tensor("K", c.K, KEY_ROWS),
        Tensor("V", c.V, KEY_ROWS),
        Tensor("DO", DOUT, c.Q_TILE),
        Tensor("DK", DK, KEY_ROWS_SPLIT),
        Tensor("DV", DV, KEY_ROWS_SPLIT),
        Tensor("DQSum", DQ_SUM, DQ_PIECE, does="add", swizzled=False),
        *BEHIND_TENSORS,
        Number("batch", "i32", size("batch")),
        Number("together", "i32", HEADS_TOGETHER),
        *WIDTHS,
    ),
    choices=(c.PLAIN_ONLY, c.T, HEAD_DIM_FUSED, c.CAUSAL, c.DESCRIPTOR),
    tunables=by_vendor(cuda={"BLOCK_M": (64, 128)}),
    compile_options=by_vendor(cuda={"num_warps": (4,), "maxnreg": (168,)}),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("k")),
    grid=(minimum(_TILES, multiprocessors()), constant(1), constant(1)),
    work=_adding_work(),
    guards=(
        *ADDS_DQ,
        # A round of programs lies beyond the last tile.
        Guard(_TILES <= (2**31 - 1) // 2, "it has more tiles than are counted in 32 bits"),
    ),
    restrictions=PAIR_RESTRICTIONS,
    needs=("tma", "wgmma"),
    gluon=True,
    schedule=DFS,
)

# As that, but programs share the steps of all tiles evenly. A split tile costs each of its programs some steps more:
# where there are more programs than tiles, each has at least two of 128 rows.
_WALK = c.GROUP * tiles("seqlen_q", 128)
_MOST = ceil_divide(_TILES * _WALK, choose(scalar("causal"), 4, 2))
SHARES = minimum(maximum(_TILES, _MOST), multiprocessors())
# dv and dk of split tiles' portions, of which a program has two at most: bits 16 to 31 of fp32 each, then bits 0 to 15.
SPLIT = Operand("split", ("splits", "halves", "split_rows", "split_columns"), contiguous=True)
SPLIT_OF = Operand("split_of", ("splits",), "fp32", contiguous=True)
OF_SPLIT = (
    DerivedSize("splits", SHARES * 2),
    DerivedSize("halves", constant(4)),
    DerivedSize("split_rows", constant(128)),
    DerivedSize("split_columns", ceil_divide(size("dq_rows"), DQ_TILES)),
)

ATTN_BWD_HOPPER_SHARES = replace(
    ATTN_BWD_HOPPER_PAIR,
    name="attn_bwd_hopper_shares",
    arguments=(
        *ATTN_BWD_HOPPER_PAIR.arguments[:7],
        Tensor("Split", SPLIT, KEY_ROWS_SPLIT, does="write"),
        Tensor("SplitOf", SPLIT_OF, does="write"),
        *BEHIND_TENSORS,
        Number("batch", "i32", size("batch")),
        Number("sharing", "i32", c.GROUP),
        *WIDTHS,
    ),
    grid=(SHARES, constant(1), constant(1)),
    guards=(
        *ADDS_DQ,
        # A ticket is twice the number of a step of 64 rows.
        Guard(_TILES * _WALK <= (2**31 - 1) // 8, "it has more steps than are counted in 32 bits"),
    ),
)

# A consumer's rows of K, or of V, fit in registers beside the accumulators of 96 columns, not of 128.
ATTN_BWD_HOPPER_PAIR_SLIM = replace(
    ATTN_BWD_HOPPER_PAIR,
    name="attn_bwd_hopper_pair_slim",
    arguments=(
        *c.in_two_parts(
            (
                *ATTN_BWD_HOPPER_PAIR.arguments[:4],
                Tensor("DK", DK, KEY_ROWS),
                Tensor("DV", DV, KEY_ROWS),
                Tensor("DQSum", DQ_SUM, DQ_PIECE, does="add", swizzled=False),
                *BEHIND_TENSORS,
                Number("together", "i32", TOGETHER),
                *WIDTHS,
            )
        ),
        *c.constexprs("K_IN_REGISTERS", "V_IN_REGISTERS"),
    ),
    choices=(c.PLAIN_ONLY, c.T, c.HEAD_DIM_SLIM.narrowed(96), c.CAUSAL, c.DESCRIPTOR),
    tunables=by_vendor(cuda={"BLOCK_M": (64,), "K_IN_REGISTERS": (0, 1), "V_IN_REGISTERS": (0, 1)}),
    grid=c.grid("seqlen_k", 128, "heads_k"),
    guards=ADDS_DQ,
    restrictions=(),
)

ATTN_BWD_HOPPER_FINISH = KernelDescription(
    name="attn_bwd_hopper_finish",
    family=c.FAMILY,
    arguments=(
        Tensor("DQSum", DQ_SUM),
        Tensor("DQ", DQ),
        c.SM_SCALE,
        *strides("bhs", "DQ"),
        c.HEADS_Q,
        c.SEQLEN_Q,
        c.WIDTH,
        DQ_WIDTH,
        *c.constexprs("BLOCK_M", "BLOCK_DMODEL"),
    ),
    choices=(c.T, HEAD_DIM_FUSED, c.DESCRIPTOR),
    tunables=ROWS_OF_ORDER,
    compile_options=by_vendor(more=MORE_WARPS, cuda={"num_warps": (4, 8), "num_stages": (1,)}),
    tuning_keys=(c.MAX_SEQLEN_Q,),
    **_only(WITH_DQ, c.grid("seqlen_q", "BLOCK_M", "heads_q"), c.row_work("BLOCK_M", tensors=3)),
    restrictions=RESTRICTIONS,
    needs=("tma", "wgmma"),
)

ATTN_BWD_HOPPER_SHARES_FINISH = replace(
    ATTN_BWD_HOPPER_FINISH,
    name="attn_bwd_hopper_shares_finish",
    arguments=(
        Tensor("DQSum", DQ_SUM),
        Tensor("Split", SPLIT),
        Tensor("SplitOf", SPLIT_OF),
        Tensor("DQ", DQ),
        Tensor("DK", DK),
        Tensor("DV", DV),
        c.SM_SCALE,
        *strides("bhs", "DQ", "DK", "DV"),
        *c.SIZES,
        DQ_WIDTH,
        Number("splits", "i32", size("splits")),
        *c.constexprs("BLOCK_M", "BLOCK_DMODEL"),
    ),
    grid=(c.grid("seqlen_q", "BLOCK_M", "heads_q")[0] + size("splits") * 8, constant(1), constant(1)),
    work=c.row_work("BLOCK_M", tensors=3),
)

# With features. The sums of dq of packed sequences have tiles of their own (tritonsrc/flash/lib/packed_tiles.py).
_FEATURES_DQ_TILES = DQ_TILES + c.SEQUENCES - 1
OF_DQ_SUM_FEATURES = (
    DerivedSize("dq_rows", _FEATURES_DQ_TILES * choose(c.WIDEST <= 64, 64, 128)),
    DerivedSize("dq_columns", constant(64)),
)
FEATURES_DQ_SIZES = (
    Number("dq_tiles", "i32", _FEATURES_DQ_TILES),
    Number("dq_width", "i32", ceil_divide(size("dq_rows"), _FEATURES_DQ_TILES), multiple_of=32),
)
HEAD_DIM_FEATURES = c.HEAD_DIM.narrowed(64, 128)

# Programs of the walk clear sums for those that begin `ahead` of them, and store dq of those `behind` (lib/sweep.py of
# tritonsrc/flash), where the rows of a program's keys are those of its queries: in other calls the kernels before and
# after do it all. They do not either where a single kernel is measured, for which nobody sets marks.
_WALKS = c.grid_of_packed("k", constant(128), "heads_k")[0]
_WALKED_TILES = quotient(_WALKS, maximum(size("batch") * size("heads_k"), 1))
# Those with dropout have no registers for it at head dim 128.
_SWEEPS = c.SELF & choose(scalar("level") <= c.GENERAL, 1, c.WIDEST <= 64)


def _walks_within(rows: Expression) -> Expression:
    """How far ahead of a program another one begins whose tile is so many rows away, and a round of programs. The rows
    are an end of the band, so this holds for whatever cu_seqlens has.
    """
    away = ceil_divide(maximum(rows, 0) + 127, 128)
    return minimum(multiprocessors() + away * FEATURES_TOGETHER, _WALKS)


# A tile of fewer rows ends before its program has stored another one's dq.
FEWEST_STORING = 512
_ROWS_OF_TILE = minimum(c.END - c.BEGIN + 1, c.EXPECTED_Q) * c.GROUP
_STORES = _SWEEPS & (constant(FEWEST_STORING) <= _ROWS_OF_TILE) & WITH_DQ
AHEAD = choose(_SWEEPS, _walks_within(constant(0) - c.BEGIN), _WALKS)
BEHIND = choose(_STORES, _walks_within(c.END), _WALKS)
MARKS = Operand("marks", ("marked",), "i32", contiguous=True)
OF_MARKS = (DerivedSize("marked", _WALKS * 2),)
_OF_WALKS = (
    c.HEADS_K,
    Number("programs", "i32", _WALKS),
    Number("tiles", "i32", _WALKED_TILES),
    Number("together", "i32", FEATURES_TOGETHER),
)
# The query rows that a key is seen by, of all heads: with fewer, what begins and ends a tile takes more than its steps
# save. On an H100, windows of 128 keys take 0.94 to 0.96 of the portable backend's time, packed sequences of 200 tokens
# 1.09 to 1.16 and of 1000 0.92, all without groups. Of packed sequences the host knows the longest one only.
FEWEST_SEEING = choose(c.LENGTHS_ON_HOST, 128, 512)
_SEEING = minimum(c.END - c.BEGIN + 1, scalar("longest_q")) * c.GROUP
GUARD_SEEN = Guard(FEWEST_SEEING <= _SEEING, "its keys are seen by few rows each: others are faster")
GUARD_PLAIN = Guard(constant(1) <= scalar("level"), "it is plain, and has no band")


def _part_of(walks: Expression, work: Work) -> Work:
    """The work of rows, of which that of so many tiles is left."""
    traffic = (quotient(work.traffic[0], maximum(_WALKS, 1)) * walks, work.traffic[1])
    return replace(work, rows=ceil_divide(work.rows * walks, maximum(_WALKS, 1)), traffic=traffic)


def _finish_grid() -> tuple[Expression, Expression, Expression]:
    rows = tunable("BLOCK_M")
    every = c.grid_of_packed("q", rows, "heads_q")[0]
    left = BEHIND * c.GROUP * quotient(constant(128), rows)
    return choose(BEHIND + 1 <= _WALKS, left, every), constant(1), constant(1)


_TWO_READ = c.row_work("BLOCK_M", tensors=2)  # and fp32 is cleared, which has as many bytes

ATTN_BWD_HOPPER_FEATURES_PREPARE = replace(
    ATTN_BWD_HOPPER_PREPARE,
    name="attn_bwd_hopper_features_prepare",
    arguments=(
        *ATTN_BWD_HOPPER_PREPARE.arguments[:-3],
        Number("widest", "i32", c.WIDEST, multiple_of=8),
        *FEATURES_DQ_SIZES,
        Tensor("Marks", MARKS, does="write"),
        *_OF_WALKS,
        Number("ahead", "i32", AHEAD),
        *c.constexprs("BLOCK_M", "BLOCK_DMODEL"),
    ),
    choices=(c.T, HEAD_DIM_FEATURES, c.DESCRIPTOR),
    work=replace(_TWO_READ, traffic=(_TWO_READ.traffic[0] + _part_of(AHEAD, _TWO_READ).traffic[0], constant(0))),
    grid=(
        ceil_divide(_FEATURES_DQ_TILES * 64, tunable("BLOCK_M")) * size("heads_q") * size("batch"),
        constant(1),
        constant(1),
    ),
)

ATTN_BWD_HOPPER_FEATURES = KernelDescription(
    name="attn_bwd_hopper_features",
    family=c.FAMILY,
    arguments=(
        *ATTN_BWD_HOPPER_PAIR.arguments[:4],
        Tensor("DK", DK),
        Tensor("DV", DV),
        Tensor("DQSum", DQ_SUM, DQ_PIECE, does="add", swizzled=False),
        Tensor("L", LOGSUMEXP),
        Tensor("Delta", DELTA),
        c.SM_SCALE,
        *strides("bhs", "DK", "DV"),
        *c.LENGTHS,
        c.WIDTH_OF_QK,
        c.WIDTH_OF_V,
        *c.of_lengths("k"),
        *c.OF_DROPOUT,
        Number("sequences", "i32", c.SEQUENCES),
        Number("together", "i32", FEATURES_TOGETHER),
        Tensor("DQHalf", DQ_SUM, (1, 1, 32, 64), does="add", swizzled=False),
        Tensor("DQ", DQ, does="scratch"),  # where it is not measured
        *strides("bhs", "DQ"),
        Tensor("Marks", MARKS, does="scratch"),
        Number("ahead", "i32", AHEAD),
        Number("behind", "i32", BEHIND),
        *c.constexprs("BLOCK_M", "BLOCK_DMODEL"),
    ),
    sources={c.FULL: "attn_bwd_hopper_features_dropout"},
    choices=(c.LEVEL.narrowed(*c.FEATURED), c.T, HEAD_DIM_FEATURES, c.DESCRIPTOR),
    tunables=by_vendor(cuda={"BLOCK_M": (64, 128)}),
    compile_options=by_vendor(cuda={"num_warps": (4,), "maxnreg": (168,)}),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("k")),
    grid=c.grid_of_packed("k", constant(128), "heads_k"),
    work=c.packed_key_work("BLOCK_M", tensors=(4, 4)),
    guards=(
        *ADDS_DQ,
        c.GUARD_BAND,
        GUARD_PLAIN,
        GUARD_SEEN,
        c.GUARD_SOFTCAP,
        c.GUARD_WEIGHTS,
    ),
    restrictions=FEATURES_BACKWARD_RESTRICTIONS,
    needs=("tma", "wgmma"),
    gluon=True,
    begins_early=True,
    schedule=DFS,
)

ATTN_BWD_HOPPER_FEATURES_FINISH = replace(
    ATTN_BWD_HOPPER_FINISH,
    name="attn_bwd_hopper_features_finish",
    arguments=(
        *ATTN_BWD_HOPPER_FINISH.arguments[:-3],
        *FEATURES_DQ_SIZES,
        Number("features", "i32", scalar("features")),
        Tensor("CuSeqlensQ", c.CU_SEQLENS_Q, general=True),
        Number("longest", "i32", scalar("longest_q")),
        Number("sequences", "i32", c.SEQUENCES),
        *_OF_WALKS,
        Number("behind", "i32", BEHIND),
        *c.constexprs("BLOCK_M", "BLOCK_DMODEL"),
    ),
    choices=(c.T, HEAD_DIM_FEATURES, c.DESCRIPTOR),
    **_only(WITH_DQ, _finish_grid(), _part_of(BEHIND, c.row_work("BLOCK_M", tensors=3))),
    begins_early=True,
)

# A program takes all keys of a head, so that nobody else adds to its dq. Where there is more than one tile of them, it
# goes through q, dout and the sum of dq again for each.
MOST_TILES_BEYOND_L2 = 5, 2  # causal and full: of 600 random calls on an H200, those with more are faster elsewhere
_AGAIN = tiles("seqlen_k", 128) - 1
_BEYOND_L2 = (minimum(_KEY_HEADS, multiprocessors()) * _OF_KEY_HEAD >= ELEMENTS_IN_L2) & (_AGAIN >= 1)
_HEADS_WORK = c.work("k", 128, "BLOCK_M", tensors=(4, 4))

ATTN_BWD_HOPPER_HEADS = replace(
    ATTN_BWD_HOPPER_PAIR,
    name="attn_bwd_hopper_heads",
    arguments=(
        *ATTN_BWD_HOPPER_PAIR.arguments[:4],
        Tensor("DK", DK, KEY_ROWS_SPLIT),
        Tensor("DV", DV, KEY_ROWS_SPLIT),
        Tensor("DQ", DQ, (1, 1, 64, 64)),
        Tensor("DQSum", DQ_SUM, DQ_PIECE, does="scratch", swizzled=False),
        *BEHIND_TENSORS,
        Number("batch", "i32", size("batch")),
        *WIDTHS,
    ),
    choices=(c.PLAIN_ONLY, c.T, c.HEAD_DIM.narrowed(64, 128), c.CAUSAL, c.DESCRIPTOR),
    grid=(minimum(size("batch") * size("heads_k"), multiprocessors()), constant(1), constant(1)),
    # A head is one piece of work: a walk for each tile of its keys and each query head, causal of half in the mean.
    work=replace(
        _HEADS_WORK,
        rows=constant(1),
        row_tile=constant(1),
        depth=choose(scalar("causal"), ceil_divide(size("seqlen_q") + 128, 2), size("seqlen_q")),
        repeat=c.GROUP * tiles("seqlen_k", 128),
        form=constant(WHOLE),
        traffic=(
            _HEADS_WORK.traffic[0] + _HEADS_WORK.traffic[1],
            choose(_BEYOND_L2, _HEADS_WORK.traffic[0] * _AGAIN, 0),
        ),
    ),
    guards=(
        # But where it is the only backend that is deterministic and fast.
        Guard(
            ~(_BEYOND_L2 & (choose(scalar("causal"), *MOST_TILES_BEYOND_L2) <= _AGAIN) & ~scalar("deterministic")),
            "its heads are too long for the L2 cache: others are faster",
        ),
        # Programs count them two by two, and one round of programs lies beyond the last.
        Guard(size("batch") * size("heads_q") <= (2**31 - 1) // 4, "it has more heads than are counted in 32 bits"),
    ),
    restrictions=PARTS_RESTRICTIONS,
)

# The backend whose tiles of keys are walked by several programs each, in parts. Each costs some steps beside its own,
# and the last round of programs leaves multiprocessors idle: a round for so many steps of a multiprocessor is a good
# balance (simulated on 400 random calls, where a part costs 3 steps: within 1.3 % of the best number of parts in the
# mean). A causal tile has half of the longest walk's steps in the mean.
STEPS_OF_ROUND, MOST_ROUNDS = choose(scalar("causal"), 12, 24), 6


def _parts(tiles_of_keys: Expression, steps: Expression, of_round: Expression) -> Expression:
    """Of each tile; ``steps`` of the longest walk; a round for ``of_round`` steps of a multiprocessor."""
    rounds = minimum(ceil_divide(tiles_of_keys * steps, multiprocessors() * of_round), MOST_ROUNDS)
    return maximum(minimum(quotient(rounds * multiprocessors(), tiles_of_keys), steps), 2)


_STEPS = c.GROUP * ceil_divide(size("seqlen_q"), choose(size("head_dim") <= 64, 128, 64))
PARTS = _parts(_TILES, _STEPS, STEPS_OF_ROUND)
# Of q's rows, then of k's, in each batch.
ROWS_OF_BOTH = tiles("seqlen_q", "BLOCK_M") * size("heads_q") + tiles("seqlen_k", "BLOCK_M") * size("heads_k")

HEAD_DIM_PARTS = c.HEAD_DIM.narrowed(64, 128)  # pieces of DK and DV have 64 columns

ATTN_BWD_HOPPER_PARTS_PREPARE = replace(
    ATTN_BWD_HOPPER_PREPARE,
    name="attn_bwd_hopper_parts_prepare",
    arguments=(
        *ATTN_BWD_HOPPER_PREPARE.arguments[:4],
        Tensor("DKSum", DK_SUM, does="write"),
        Tensor("DVSum", DV_SUM, does="write"),
        *strides("bhs", "Out", "DO"),
        *c.SIZES,
        DQ_WIDTH,
        *c.constexprs("BLOCK_M", "BLOCK_DMODEL"),
    ),
    choices=(c.T, HEAD_DIM_PARTS, c.DESCRIPTOR),
    grid=(ROWS_OF_BOTH * size("batch"), constant(1), constant(1)),
    work=c.row_work("BLOCK_M", tensors=4, of_k=4),
)

ATTN_BWD_HOPPER_PARTS = replace(
    ATTN_BWD_HOPPER_PAIR,
    name="attn_bwd_hopper_parts",
    arguments=(
        *ATTN_BWD_HOPPER_PAIR.arguments[:4],
        Tensor("DKSum", DK_SUM, PIECE, does="add"),
        Tensor("DVSum", DV_SUM, PIECE, does="add"),
        Tensor("DQSum", DQ_SUM, DQ_PIECE, does="add", swizzled=False),
        *BEHIND_TENSORS,
        Number("parts", "i32", PARTS),
        Number("together", "i32", TOGETHER),
        *WIDTHS,
    ),
    choices=(c.PLAIN_ONLY, c.T, HEAD_DIM_PARTS, c.CAUSAL, c.DESCRIPTOR),
    grid=(_TILES * PARTS, constant(1), constant(1)),
    work=c.work("k", 128, "BLOCK_M", tensors=(4, 6), parts=PARTS),
    guards=(Guard(~scalar("deterministic"), "its programs add up in any order, and the call is to be deterministic"),),
    restrictions=PARTS_RESTRICTIONS,
)

ATTN_BWD_HOPPER_PARTS_FINISH = replace(
    ATTN_BWD_HOPPER_PARTS_PREPARE,
    name="attn_bwd_hopper_parts_finish",
    arguments=(
        Tensor("DQSum", DQ_SUM),
        Tensor("DKSum", DK_SUM),
        Tensor("DVSum", DV_SUM),
        Tensor("DQ", DQ),
        Tensor("DK", DK),
        Tensor("DV", DV),
        c.SM_SCALE,
        *strides("bhs", "DQ", "DK", "DV"),
        *c.SIZES,
        DQ_WIDTH,
        *c.constexprs("BLOCK_M", "BLOCK_DMODEL"),
    ),
    # 64 rows spill with one warp.
    compile_options=by_vendor(more={"cuda": {"num_warps": (2, 16)}}, cuda={"num_warps": (4, 8), "num_stages": (1,)}),
    work=c.row_work("BLOCK_M", tensors=3, of_k=6),
)

# Above head dim 128 products are cheaper than the traffic of adding up dQ: two kernels, as in the portable backend.
HEAD_DIM_SPLIT = c.HEAD_DIM.narrowed(256)

_READ = (
    Tensor("Q", c.Q, c.Q_TILE),
    Tensor("K", c.K, KEY_ROWS_SPLIT),
    Tensor("V", c.V, KEY_ROWS_SPLIT),
    Tensor("DO", DOUT, c.Q_TILE),
)

ATTN_BWD_HOPPER_DK_DV = KernelDescription(
    name="attn_bwd_hopper_dk_dv",
    family=c.FAMILY,
    arguments=c.in_two_parts(
        (
            *_READ,
            Tensor("DK", DK, KEY_ROWS_SPLIT),
            Tensor("DV", DV, KEY_ROWS_SPLIT),
            *BEHIND_TENSORS,
            *WIDTHS,
        )
    ),
    choices=(c.PLAIN_ONLY, c.T, c.HEAD_DIM.narrowed(192, 256), c.CAUSAL, c.DESCRIPTOR),
    tunables=by_vendor(cuda={"BLOCK_M": (64,)}),
    compile_options=by_vendor(cuda={"num_warps": (4,), "maxnreg": (168,)}),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("k")),
    **_only(WITH_DK_DV, c.grid("seqlen_k", 64, "heads_k"), c.work("k", 64, "BLOCK_M", tensors=(2, 4))),
    needs=("tma", "wgmma"),
    gluon=True,
    schedule=DFS,
)

ATTN_BWD_HOPPER_DQ = KernelDescription(
    name="attn_bwd_hopper_dq",
    family=c.FAMILY,
    arguments=(
        Tensor("Q", c.Q, c.Q_ROWS),
        Tensor("K", c.K, c.K_TILE),
        Tensor("V", c.V, c.K_TILE),
        Tensor("DO", DOUT, c.Q_ROWS),
        Tensor("DQ", DQ, c.Q_ROWS),
        Tensor("L", LOGSUMEXP),
        Tensor("Delta", DELTA),
        c.SM_SCALE,
        *c.SIZES,
        *c.constexprs("BLOCK_N", "BLOCK_DMODEL", "CAUSAL"),
    ),
    choices=(c.PLAIN_ONLY, c.T, HEAD_DIM_SPLIT, c.CAUSAL, c.DESCRIPTOR),
    tunables=by_vendor(more={"cuda": {"BLOCK_N": (16, 32)}}, cuda={"BLOCK_N": (64,)}),
    compile_options=by_vendor(cuda={"num_warps": (4,), "maxnreg": (168,)}),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("q")),
    **_only(WITH_DQ, c.grid("seqlen_q", 128, "heads_q"), c.work("q", 128, "BLOCK_N", tensors=(3, 2))),
    needs=("tma", "wgmma"),
    gluon=True,
    schedule=DFS,
)

ATTN_BWD_HOPPER_DQ_SLIM = replace(
    ATTN_BWD_HOPPER_DQ,
    name="attn_bwd_hopper_dq_slim",
    arguments=c.in_two_parts(ATTN_BWD_HOPPER_DQ.arguments),
    choices=(c.PLAIN_ONLY, c.T, c.HEAD_DIM_SLIM.narrowed(192), c.CAUSAL, c.DESCRIPTOR),
)

# As PARTS, of tiles of 64 keys and steps of 64 rows: within 0.9 % of the best number in the same simulation.
_SPLIT_TILES = size("batch") * size("heads_k") * tiles("seqlen_k", 64)
SPLIT_PARTS = _parts(_SPLIT_TILES, c.GROUP * tiles("seqlen_q", 64), constant(24))
SPLIT_TOGETHER = _together(4)

ATTN_BWD_HOPPER_SPLIT_PREPARE = replace(
    ATTN_BWD_HOPPER_PARTS_PREPARE,
    name="attn_bwd_hopper_split_prepare",
    arguments=tuple(one for one in ATTN_BWD_HOPPER_PARTS_PREPARE.arguments if one.name not in ("DQSum", DQ_WIDTH.name)),
    choices=(c.T, HEAD_DIM_SPLIT, c.DESCRIPTOR),
    tunables=by_vendor(more=MORE_ROWS, cuda={"BLOCK_M": (32, 64, 128)}),
    work=c.row_work("BLOCK_M", tensors=2, of_k=4),
)

ATTN_BWD_HOPPER_DK_DV_PARTS = replace(
    ATTN_BWD_HOPPER_DK_DV,
    name="attn_bwd_hopper_dk_dv_parts",
    arguments=c.in_two_parts(
        (
            *_READ,
            Tensor("DKSum", DK_SUM, KEY_ROWS_SPLIT, does="add"),
            Tensor("DVSum", DV_SUM, KEY_ROWS_SPLIT, does="add"),
            *BEHIND_TENSORS,
            Number("parts", "i32", SPLIT_PARTS),
            Number("together", "i32", SPLIT_TOGETHER),
            *WIDTHS,
        )
    ),
    **_only(
        WITH_DK_DV,
        (_SPLIT_TILES * SPLIT_PARTS, constant(1), constant(1)),
        c.work("k", 64, "BLOCK_M", tensors=(2, 6), parts=SPLIT_PARTS),
    ),
    guards=ATTN_BWD_HOPPER_PARTS.guards,
)

ATTN_BWD_HOPPER_SPLIT_FINISH = replace(
    ATTN_BWD_HOPPER_FINISH,
    name="attn_bwd_hopper_split_finish",
    arguments=(
        Tensor("DKSum", DK_SUM),
        Tensor("DVSum", DV_SUM),
        Tensor("DK", DK),
        Tensor("DV", DV),
        c.SM_SCALE,
        *strides("bhs", "DK", "DV"),
        c.HEADS_K,
        c.SEQLEN_K,
        c.WIDTH,
        *c.constexprs("BLOCK_M", "BLOCK_DMODEL"),
    ),
    choices=(c.T, HEAD_DIM_SPLIT, c.DESCRIPTOR),
    # 128 rows of both spill with four warps.
    tunables=by_vendor(more={"cuda": {"BLOCK_M": (8, 16)}}, cuda={"BLOCK_M": (32, 64)}),
    **_only(WITH_DK_DV, c.grid("seqlen_k", "BLOCK_M", "heads_k"), c.row_work("BLOCK_M", of="k", tensors=6)),
)

OPERATOR = Operator(
    name="attn_bwd",
    family=c.FAMILY,
    operands=(c.Q, c.K, c.V, OUT, DOUT, LOGSUMEXP, DQ, DK, DV, *c.FEATURE_OPERANDS, c.DBIAS, c.DSINKS),
    scalars=(*c.SCALARS, Scalar("deterministic", "bool"), SKIPPED),
    backends=(
        Backend("portable", (ATTN_BWD_PREPROCESS, ATTN_BWD_DSINKS, ATTN_BWD_DK_DV, ATTN_BWD_DQ), (DELTA,)),
        Backend(
            "hopper_pair",
            (ATTN_BWD_HOPPER_PREPARE, ATTN_BWD_HOPPER_PAIR, ATTN_BWD_HOPPER_FINISH),
            (DELTA, DQ_SUM),
            OF_DQ_SUM,
        ),
        Backend(
            "hopper_shares",
            (ATTN_BWD_HOPPER_PREPARE, ATTN_BWD_HOPPER_SHARES, ATTN_BWD_HOPPER_SHARES_FINISH),
            (DELTA, DQ_SUM, SPLIT, SPLIT_OF),
            (*OF_DQ_SUM, *OF_SPLIT),
        ),
        Backend("hopper_heads", (ATTN_BWD_PREPROCESS, ATTN_BWD_HOPPER_HEADS), (DELTA, DQ_SUM), OF_DQ_SUM),
        Backend(
            "hopper_parts",
            (ATTN_BWD_HOPPER_PARTS_PREPARE, ATTN_BWD_HOPPER_PARTS, ATTN_BWD_HOPPER_PARTS_FINISH),
            (DELTA, DQ_SUM, DK_SUM, DV_SUM),
            OF_DQ_SUM,
        ),
        Backend(
            "hopper_pair_slim",
            (ATTN_BWD_HOPPER_PREPARE, ATTN_BWD_HOPPER_PAIR_SLIM, ATTN_BWD_HOPPER_FINISH),
            (DELTA, DQ_SUM),
            OF_DQ_SUM_SLIM,
        ),
        Backend("hopper_split", (ATTN_BWD_PREPROCESS, ATTN_BWD_HOPPER_DK_DV, ATTN_BWD_HOPPER_DQ), (DELTA,)),
        Backend("hopper_split_slim", (ATTN_BWD_PREPROCESS, ATTN_BWD_HOPPER_DK_DV, ATTN_BWD_HOPPER_DQ_SLIM), (DELTA,)),
        Backend(
            "hopper_split_parts",
            (
                ATTN_BWD_HOPPER_SPLIT_PREPARE,
                ATTN_BWD_HOPPER_DK_DV_PARTS,
                ATTN_BWD_HOPPER_DQ,
                ATTN_BWD_HOPPER_SPLIT_FINISH,
            ),
            (DELTA, DK_SUM, DV_SUM),
        ),
        Backend(
            "hopper_split_slim_parts",
            (
                ATTN_BWD_HOPPER_SPLIT_PREPARE,
                ATTN_BWD_HOPPER_DK_DV_PARTS,
                ATTN_BWD_HOPPER_DQ_SLIM,
                ATTN_BWD_HOPPER_SPLIT_FINISH,
            ),
            (DELTA, DK_SUM, DV_SUM),
        ),
        Backend(
            "hopper_features",
            (
                ATTN_BWD_HOPPER_FEATURES_PREPARE,
                ATTN_BWD_DSINKS,
                ATTN_BWD_HOPPER_FEATURES,
                ATTN_BWD_HOPPER_FEATURES_FINISH,
            ),
            (DELTA, DQ_SUM, MARKS),
            (*OF_DQ_SUM_FEATURES, *OF_MARKS),
        ),
        Backend("portable_slim", (ATTN_BWD_PREPROCESS, ATTN_BWD_DK_DV_SLIM, ATTN_BWD_DQ_SLIM), (DELTA,)),
    ),
    fills_when_empty=True,
    checked=True,
    written=True,
    cut="batch",
    flops=c.flops(3, 2),
)
