"""The backend of attention forward on Hopper for queries, keys and values of 8 bits."""

from __future__ import annotations

from dataclasses import replace

from aotriton.rules.expression import (
    ceil_divide,
    choose,
    constant,
    equal,
    minimum,
    multiprocessors,
    present,
    scalar,
    size,
    tunable,
)
from aotriton.rules.flash import common as c
from aotriton.rules.flash import split
from aotriton.rules.flash.restrictions_hopper import FP8_RESTRICTIONS
from aotriton.rules.kernel import BFS, DFS, Guard, KernelDescription, Number, Operand, Tensor, by_vendor, strides
from aotriton.rules.operators import Backend, DerivedSize

GROUP = 16  # keys, as tritonsrc/flash/lib/turned_values.py has them: rows of the turned copy are multiples of it
TYPE = c.FP8[0]
OF_TYPE: dict[int, str] = {split.Keys.q_fp8e4nv: TYPE}
KEYS = replace(split.KEYS, values=(split.Keys.q_fp8e4nv,), default=split.Keys.q_fp8e4nv)
# A call whose keys have 8 bits has a band, so that no row of it is CAUSAL.
CAUSAL = replace(c.CAUSAL, source=c.END <= 0)

TURNED = Operand("turned", ("batch", "heads_k", "head_dim_v", "turned_keys"), TYPE, contiguous=True, alignment=16)
SIZES = (DerivedSize("turned_keys", ceil_divide(size("seqlen_k"), GROUP) * GROUP),)

ATTN_FWD_TURN = KernelDescription(
    name="attn_fwd_turn",
    family=c.FAMILY,
    arguments=(
        Tensor("V", c.FORWARD_V, dtypes=OF_TYPE),
        Tensor("Turned", TURNED, does="write"),
        *strides("bhs", "V"),
        c.HEADS_K,
        c.SEQLEN_K,
        Number("head_dim_v", "i32", size("head_dim_v"), multiple_of=GROUP),
        Number("keys", "i32", size("turned_keys"), multiple_of=GROUP),
        *c.constexprs("ROWS", "BLOCK_DMODEL"),
    ),
    choices=(c.HEAD_DIM, c.DESCRIPTOR, KEYS),  # no tensor has the type of the results
    tunables=by_vendor(cuda={"ROWS": (64,)}),
    compile_options=by_vendor(cuda={"num_warps": (8,), "num_stages": (1,)}),
    tuning_keys=(c.MAX_SEQLEN_K,),
    grid=c.grid("seqlen_k", "ROWS", "heads_k"),
    needs=("tma", "wgmma"),
    timed=False,  # it runs at the speed of a copy
)

GUARD_MASK = Guard(
    (c.BEGIN + size("seqlen_q") <= 1)
    & choose(c.END <= 0, equal(c.END, 0) & equal(size("seqlen_q"), size("seqlen_k")), size("seqlen_k") <= c.END + 1),
    "queries of 8 bits see all keys, or those up to their own position of as many",
)

ATTN_FWD_HOPPER_FP8 = KernelDescription(
    name="attn_fwd_hopper_fp8",
    family=c.FAMILY,
    arguments=(
        Tensor("Q", c.FORWARD_Q, c.PACKED_ROWS, packed=c.PACKED, dtypes=OF_TYPE),
        Tensor("K", c.FORWARD_K, c.K_TILE, dtypes=OF_TYPE),
        Tensor("Turned", TURNED, (1, 1, "BLOCK_DMODEL", "BLOCK_N"), does="read"),
        Tensor("Out", c.OUT, c.PACKED_ROWS, packed=c.PACKED),
        Tensor("L", c.LOGSUMEXP),
        c.STORE_LSE,
        c.SM_SCALE,
        *c.LENGTHS,
        Number("batch", "i32", size("batch")),
        Number("log2_packed", "i32", c.LOG2_PACKED),
        Tensor("QDescale", c.Q_DESCALE, general=True),
        Tensor("KDescale", c.K_DESCALE, general=True),
        Tensor("VDescale", c.V_DESCALE, general=True),
        *strides("bh", "QDescale", "KDescale", "VDescale"),
        Number("descales", "i32", c.DESCALES + present(c.Q_DESCALE.name) * 4),
        *c.constexprs("BLOCK_N", "CONSUMERS", "STAGES", "BLOCK_DMODEL", "CAUSAL", "GROUP_ROUNDS", "Q_SLOTS", "TURNS"),
    ),
    choices=(c.T, c.HEAD_DIM, CAUSAL, c.DESCRIPTOR, KEYS),
    tunables=by_vendor(
        cuda={
            "BLOCK_N": (64, 128, 256),
            "CONSUMERS": (1, 2, 3),
            "STAGES": (2, 3, 4),
            "GROUP_ROUNDS": (0, 1, 2, 4),
            "Q_SLOTS": (1, 2),
            "TURNS": (0, 1),
        },
    ),
    compile_options=by_vendor(cuda={"num_warps": (4,), "maxnreg": (128, 168)}),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("q")),
    grid=(minimum(c.tiles_of_packed(tunable("CONSUMERS") * 64), multiprocessors()), constant(1), constant(1)),
    work=c.persistent_work(banded=True),
    guards=(
        c.GUARD_BAND,
        c.GUARD_PACKED_Q,
        c.GUARD_INVARIANT,
        Guard(scalar("features") <= 0, "queries of 8 bits have no other features"),
        GUARD_MASK,
        # The smallest tiles are the most, and a round of programs lies beyond the last.
        Guard(c.tiles_of_packed(64) <= (2**31 - 1) // 2, "it has more tiles than are counted in 32 bits"),
    ),
    restrictions=FP8_RESTRICTIONS,
    needs=("tma", "wgmma"),
    gluon=True,
    schedule=choose((c.END <= 0) & (constant(2) <= tunable("GROUP_ROUNDS")), BFS, DFS),
)

FP8 = Backend("hopper_fp8", (ATTN_FWD_TURN, ATTN_FWD_HOPPER_FP8), (TURNED,), SIZES, own_shapes=True)
