"""Attention forward: its operator, and a kernel for each backend."""

from __future__ import annotations

from dataclasses import replace

from aotriton.rules.expression import (
    Expression,
    ceil_divide,
    choose,
    constant,
    minimum,
    multiprocessors,
    present,
    scalar,
    size,
    tunable,
)
from aotriton.rules.flash import common as c
from aotriton.rules.flash.features import DROPOUT, LATENT_DIMS
from aotriton.rules.flash.fp8 import FP8
from aotriton.rules.flash.invariant import INVARIANT
from aotriton.rules.flash.latent import HOPPER_LATENT, LATENT
from aotriton.rules.flash.planned import PLANNED
from aotriton.rules.flash.restrictions import RESTRICTIONS
from aotriton.rules.flash.restrictions_hopper import FEATURES_RESTRICTIONS, FORWARD_RESTRICTIONS
from aotriton.rules.flash.split import DECODE, SPLIT
from aotriton.rules.kernel import BFS, DFS, Guard, KernelDescription, Number, Tensor, by_vendor, strides
from aotriton.rules.operators import Backend, Operator, Scalar

ATTN_FWD = KernelDescription(
    name="attn_fwd",
    family=c.FAMILY,
    arguments=(
        Tensor("Q", c.FORWARD_Q, c.Q_TILE),
        Tensor("K", c.FORWARD_K, c.K_TILE),
        Tensor("V", c.FORWARD_V, c.K_TILE),
        c.stored("Out", c.OUT, c.Q_TILE),
        Tensor("L", c.LOGSUMEXP),
        c.STORE_LSE,
        c.SM_SCALE,
        *strides("bhs", "Q", "K", "V", "Out"),
        *c.SIZES_OF_LEVELS,
        *c.of_features("q", sinks=True),
        *c.tile("BLOCK_M", "BLOCK_N"),
    ),
    sources=dict.fromkeys(c.FEATURED, "attn_fwd_features"),
    choices=(c.LEVEL, c.T_PORTABLE, c.HEAD_DIM_PORTABLE, c.CAUSAL, c.ACCESS),
    impossible=c.NO_CALL_HAS,
    steered=True,  # see v2src/flash/band.cc
    # A warp group of four warps owns 64 rows of a product on Hopper; a smaller BLOCK_M is for fp32 and wide heads.
    # Two stages keep one tile under way while the other is used. gfx942: only BLOCK_N 16 with eight warps fits head dim
    # 256, general.
    tunables=(
        *by_vendor(
            more={"cuda": {"BLOCK_M": (256,), "BLOCK_N": (256,)}},
            cuda={"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128)},
            hip={"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64)},
        ),
        *c.PRODUCTS_OF_FP32,
    ),
    compile_options=by_vendor(
        more={"cuda": {"num_warps": (1, 2, 16), "num_stages": (1, 5, 6)}},
        cuda={"num_warps": (4, 8), "num_stages": (2, 3, 4)},
        hip={"num_warps": (4, 8), "num_stages": (1,), "waves_per_eu": (1, 2)},
    ),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("q")),
    grid=c.grid_of_sequences("q", "BLOCK_M", "heads_q"),
    work=c.work("q", "BLOCK_M", "BLOCK_N", tensors=(2, 2), banded=True),
    guards=(
        Guard(
            size("head_dim") <= c.MOST_HEAD_DIM,
            f"head_dim {LATENT_DIMS[0]} is for fp16 and bf16 in rows of 16 bytes, without bias, ALiBi and dropout, and"
            " without the hint batch_invariant",
        ),
        Guard(scalar("level") <= c.FULL, "with a block_table, tensors are aligned to 16 bytes"),
        c.GUARD_BAND,
        c.GUARD_INVARIANT,
    ),
    restrictions=RESTRICTIONS,
    schedule=DFS,
)

ATTN_FWD_SLIM = replace(c.portable_slim(ATTN_FWD), guards=(c.GUARD_INVARIANT,))

OUT_PIECES = tunable("OUT_PIECES")
OUT_ROWS = (*c.PACKED_ROWS[:-1], ceil_divide(tunable("BLOCK_DMODEL"), OUT_PIECES))


ATTN_FWD_HOPPER = KernelDescription(
    name="attn_fwd_hopper",
    family=c.FAMILY,
    arguments=(
        Tensor("Q", c.FORWARD_Q, c.PACKED_ROWS, packed=c.PACKED),
        Tensor("K", c.FORWARD_K, c.K_TILE),
        Tensor("V", c.FORWARD_V, c.K_TILE),
        Tensor("Out", c.OUT, OUT_ROWS, packed=c.PACKED),
        Tensor("L", c.LOGSUMEXP),
        c.STORE_LSE,
        c.SM_SCALE,
        *c.SIZES,
        Number("batch", "i32", size("batch")),
        Number("log2_packed", "i32", c.LOG2_PACKED),
        *c.constexprs("BLOCK_N", "CONSUMERS", "STAGES", "BLOCK_DMODEL", "CAUSAL"),
        *c.constexprs("GROUP_ROUNDS", "Q_SLOTS", "Q_IN_REGISTERS", "OUT_PIECES", "TURNS", "RING"),
    ),
    choices=(c.PLAIN_ONLY, c.T, c.HEAD_DIM, c.CAUSAL, c.DESCRIPTOR),
    tunables=(
        *by_vendor(
            more={"cuda": {"BLOCK_N": (256,), "STAGES": (7, 8), "GROUP_ROUNDS": (6, 16)}},
            cuda={
                "BLOCK_N": (64, 128),
                "CONSUMERS": (1, 2, 3),
                "STAGES": (2, 3, 4, 5, 6),
                "GROUP_ROUNDS": (0, 1, 2, 4, 8),
                "Q_SLOTS": (1, 2),
                "Q_IN_REGISTERS": (0, 1),
            },
        ),
        *by_vendor(
            {"OUT_PIECES": 1, "TURNS": 0, "RING": 0}, cuda={"OUT_PIECES": (1, 2), "TURNS": (0, 1), "RING": (0, 1)}
        ),
    ),
    # Four warps are the first consumer; the compiler adds the others. Each thread begins with maxnreg registers: the
    # consumers take over what the producer does not need.
    compile_options=by_vendor(cuda={"num_warps": (4,), "maxnreg": (128, 168)}),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("q")),
    # Persistent: each multiprocessor has one program, which takes tile after tile.
    grid=(minimum(c.tiles_of_packed(tunable("CONSUMERS") * 64), multiprocessors()), constant(1), constant(1)),
    work=c.persistent_work(),
    guards=(
        c.GUARD_PACKED_Q,
        c.GUARD_INVARIANT,
        # The smallest tiles are the most, and a round of programs lies beyond the last.
        Guard(c.tiles_of_packed(64) <= (2**31 - 1) // 2, "it has more tiles than are counted in 32 bits"),
    ),
    restrictions=FORWARD_RESTRICTIONS,
    needs=("tma", "wgmma"),
    gluon=True,
    # Causal tiles go through the heads of a group side by side, the longest of each head first; it may be one head.
    schedule=choose(scalar("causal") & (constant(2) <= tunable("GROUP_ROUNDS")), BFS, DFS),
)

ATTN_FWD_HOPPER_SLIM = replace(
    ATTN_FWD_HOPPER,
    name="attn_fwd_hopper_slim",
    arguments=c.in_two_parts(ATTN_FWD_HOPPER.arguments),
    choices=(c.PLAIN_ONLY, c.T, c.HEAD_DIM_SLIM, c.CAUSAL, c.DESCRIPTOR),
)


def _tiles_of_sequences(rows: Expression) -> Expression:
    """The tiles of packed heads, as many of each sequence as the longest one has."""
    each = ceil_divide(scalar("longest_q") * c.PACKED, rows) * ceil_divide(size("heads_q"), c.PACKED)
    return each * (size("batch") * c.SEQUENCES)


GUARD_DRAWN_HEADS = Guard(
    c.has_feature(DROPOUT) * c.PACKED <= 1, "it has dropout, and heads that share keys and values in twos"
)

_ROWS = tunable("CONSUMERS") * 64
FEATURES_TILES = _tiles_of_sequences(_ROWS)
PACKED_TILES = c.packed_tiles(size("seqlen_q") * c.PACKED, _ROWS) * ceil_divide(size("heads_q"), c.PACKED)
# All tiles are known to have rows. With dropout and two consumers of head dim 128, a program for each tile is faster.
FEATURES_PERSISTENT = c.LENGTHS_ON_HOST & (c.has_feature(DROPOUT) * size("head_dim") <= 64)

ATTN_FWD_HOPPER_FEATURES = KernelDescription(
    name="attn_fwd_hopper_features",
    family=c.FAMILY,
    arguments=(
        Tensor("Q", c.FORWARD_Q, c.PACKED_ROWS, packed=c.PACKED),
        Tensor("K", c.FORWARD_K, c.K_TILE),
        Tensor("V", c.FORWARD_V, c.K_TILE),
        Tensor("Out", c.OUT, OUT_ROWS, packed=c.PACKED),
        Tensor("OutRows", c.OUT, general=True),
        Tensor("L", c.LOGSUMEXP),
        c.STORE_LSE,
        c.SM_SCALE,
        *strides("bhs", "OutRows"),
        *c.LENGTHS,
        c.WIDTH_OF_V,
        Number("sequences", "i32", size("batch") * c.SEQUENCES),
        Number("log2_packed", "i32", c.LOG2_PACKED),
        *c.of_lengths("q", sinks=True),
        *c.OF_ALIBI,
        *c.OF_DROPOUT,
        *c.constexprs("BLOCK_N", "CONSUMERS", "STAGES", "BLOCK_DMODEL", "GROUP_ROUNDS", "Q_SLOTS", "OUT_PIECES"),
    ),
    sources={c.FULL: "attn_fwd_hopper_features_full"},
    choices=(c.LEVEL.narrowed(*c.FEATURED), c.T, c.HEAD_DIM, c.DESCRIPTOR),
    impossible=({"LEVEL": c.FULL, c.HEAD_DIM.name: 256},),  # every image spills
    tunables=by_vendor(
        {"OUT_PIECES": 1},
        cuda={
            "BLOCK_N": (64, 128),
            "CONSUMERS": (1, 2, 3),
            "STAGES": (2, 3, 4, 5, 6),
            "GROUP_ROUNDS": (0, 1, 2),
            "Q_SLOTS": (1, 2),
            "OUT_PIECES": (1, 2),
        },
    ),
    compile_options=by_vendor(cuda={"num_warps": (4,), "maxnreg": (128, 168)}),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("q")),
    grid=(
        choose(
            present(c.CU_SEQLENS_Q.name),
            PACKED_TILES,
            choose(FEATURES_PERSISTENT, minimum(FEATURES_TILES, multiprocessors()), FEATURES_TILES),
        ),
        constant(1),
        constant(1),
    ),
    work=c.persistent_work(banded=True),
    guards=(
        c.GUARD_BAND,
        c.GUARD_PACKED_Q,
        c.GUARD_INVARIANT,
        c.GUARD_SOFTCAP,
        c.GUARD_LENGTHS,  # with them others are faster, of the calls that others serve
        c.GUARD_BIAS,
        GUARD_DRAWN_HEADS,
        Guard(_tiles_of_sequences(constant(64)) <= (2**31 - 1) // 2, "it has more tiles than are counted in 32 bits"),
    ),
    restrictions=FEATURES_RESTRICTIONS,
    needs=("tma", "wgmma"),
    gluon=True,
    schedule=choose(constant(2) <= tunable("GROUP_ROUNDS"), BFS, DFS),
)

OPERATOR = Operator(
    name="attn_fwd",
    family=c.FAMILY,
    operands=(
        c.FORWARD_Q,
        c.FORWARD_K,
        c.FORWARD_V,
        c.OUT,
        c.LOGSUMEXP,
        *c.FEATURE_OPERANDS,
        c.BLOCK_TABLE,
        c.K_DESCALE,
        c.V_DESCALE,
        c.Q_DESCALE,
    ),
    scalars=(*c.SCALARS, Scalar("batch_invariant", "bool", internal=True)),  # set by the hint
    backends=(
        Backend("portable", (ATTN_FWD,)),
        Backend("hopper", (ATTN_FWD_HOPPER,)),
        Backend("hopper_slim", (ATTN_FWD_HOPPER_SLIM,)),
        Backend("portable_slim", (ATTN_FWD_SLIM,)),
        Backend("hopper_features", (ATTN_FWD_HOPPER_FEATURES,)),
        DECODE,
        SPLIT,
        PLANNED,
        INVARIANT,
        HOPPER_LATENT,
        LATENT,
        FP8,
    ),
    fills_when_empty=True,
    checked=True,
    written=True,
    cut="batch",
    block_table=c.BLOCK_TABLE.name,
    flops=c.flops(1, 1),
)
