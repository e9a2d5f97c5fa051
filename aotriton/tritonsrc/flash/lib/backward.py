"""What the kernels of the Hopper backward share that compute all gradients: slots, loads, and the walk of a consumer.

A walk takes BLOCK_M query rows at a time. Each such step has one of STAGES slots, which has two barriers: q_full for Q
and lse, do_full for DO and delta. attn_bwd_hopper_pair says who waits for whom.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from aotriton.tritonsrc.flash.lib.backward_scheduler import KEYS
from aotriton.tritonsrc.flash.lib.mask import visible
from aotriton.tritonsrc.flash.lib.pipeline import barrier, barriers, join_consumers
from aotriton.tritonsrc.flash.lib.stores import fragments

LOG2_E = gl.constexpr(1.4426950408889634)
STAGES = gl.constexpr(2)


@gluon.jit
def row_slots(STAGES: gl.constexpr, BLOCK_M: gl.constexpr):
    """Shared memory for a number of each row of so many steps."""
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], LAYOUT)


@gluon.jit
def load_rows(
    L, Delta, lse_slots, delta_slots, q_full, do_full, head_row, row, slot, max_seqlen_q, BLOCK_M: gl.constexpr
):  # fmt: skip
    """Brings lse and delta of BLOCK_M query rows from `row` on to a slot, and tells its barriers."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([BLOCK_M // 32], [32], [1], [0])
    rows = row + gl.arange(0, BLOCK_M, LAYOUT)
    inside = rows < max_seqlen_q
    # A row beyond the end has a P of zero.
    lse = gl.load(L + head_row + rows, mask=inside, other=float("inf"))
    delta = gl.load(Delta + head_row + rows, mask=inside, other=0.0)
    lse_slots.index(slot).store(-lse * LOG2_E)
    delta_slots.index(slot).store(delta)
    mbarrier.arrive(q_full.index(slot))
    mbarrier.arrive(do_full.index(slot))


@gluon.jit
def load_step(
    Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch, head, head_row, row,
    step, max_seqlen_q,
):  # fmt: skip
    """Loads BLOCK_M query rows from `row` on to the slot of `step`; `head_row` is the number of the head's first."""
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    slot = step % STAGES
    mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
    mbarrier.expect(q_full.index(slot), Q.block_type.nbytes)
    tma.async_copy_global_to_shared(Q, [batch, head, row, 0], q_full.index(slot), q_slots.index(slot))
    mbarrier.expect(do_full.index(slot), Q.block_type.nbytes)
    tma.async_copy_global_to_shared(DO, [batch, head, row, 0], do_full.index(slot), do_slots.index(slot))
    load_rows(L, Delta, lse_slots, delta_slots, q_full, do_full, head_row, row, slot, max_seqlen_q, BLOCK_M)


@gluon.jit
def load_keys(K, V, batch, head_k, key, kv_full, k_slot, v_slot):
    """Begins to load K and V of a tile."""
    mbarrier.expect(kv_full, 2 * K.block_type.nbytes)
    tma.async_copy_global_to_shared(K, [batch, head_k, key, 0], kv_full, k_slot)
    tma.async_copy_global_to_shared(V, [batch, head_k, key, 0], kv_full, v_slot)


@gluon.jit
def producer(
    Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, q_full, do_full, empty,
    key, head_k, batch, head, first, row, steps, num_heads_q, max_seqlen_q,
):  # fmt: skip
    mbarrier.expect(kv_full, 2 * K.block_type.nbytes)
    tma.async_copy_global_to_shared(K, [batch, head_k, key, 0], kv_full, k_slot)
    tma.async_copy_global_to_shared(V, [batch, head_k, key, 0], kv_full, v_slot)
    for step in range(0, steps):
        head_row = (batch * num_heads_q + head).to(gl.int64) * max_seqlen_q
        load_step(
            Q, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, q_full, do_full, empty, batch, head, head_row,
            row, step, max_seqlen_q,
        )  # fmt: skip
        row += Q.block_shape[2]
        last = row >= max_seqlen_q
        head += last.to(gl.int32)
        row = gl.where(last, first, row)


@gluon.jit
def hide(s, ahead, left, CAUSAL: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores [KEYS, queries] with minus infinity where a query does not see the key. The first query is `ahead` rows
    behind the first key; `left` keys are before the end.
    """
    keys = gl.expand_dims(gl.arange(0, s.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
    queries = gl.expand_dims(gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    if CAUSAL:
        keys -= ahead
    return gl.where(visible(keys, queries, left, CAUSAL), s, float("-inf"))


@gluon.jit
def hide_above(s, ahead, LAYOUT: gl.constexpr):
    """As `hide`, causal, in the form for which the compiler keeps no numbers of columns in registers."""
    keys = gl.expand_dims(gl.arange(0, s.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
    queries = gl.expand_dims(gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    return gl.where(visible(keys - ahead - queries, 0, 0, True), s, float("-inf"))


@gluon.jit
def is_final(row, first_key, max_seqlen_k, CAUSAL: gl.constexpr):
    """Whether a step's query rows, from `row` on, see no key behind the tile that begins with `first_key`."""
    if CAUSAL:  # noqa: SIM108 (known when compiled)
        last = row < first_key + 2 * KEYS
    else:
        last = first_key + 2 * KEYS >= max_seqlen_k
    return last


@gluon.jit
def probabilities(
    s, lse_slots, slot, scale, row, key, max_seqlen_k, CAUSAL: gl.constexpr, OWNED: gl.constexpr = False
):  # fmt: skip
    """P, of S of queries from `row` on and KEYS keys from `key` on. Where the mask stands decides whether the last
    registers suffice.
    """
    S_LAYOUT: gl.constexpr = s.type.layout
    if CAUSAL:  # noqa: SIM102 (known when compiled, as the next is not)
        if row < key + KEYS - 1:
            if OWNED and s.shape[1] == 128:
                s = hide_above(s, row - key, S_LAYOUT)
            else:
                s = hide(s, row - key, max_seqlen_k - key, CAUSAL, S_LAYOUT)
    lse = lse_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
    s = s * scale + gl.expand_dims(lse, 0)
    if not CAUSAL:  # noqa: SIM102
        if key + KEYS > max_seqlen_k:
            s = hide(s, row - key, max_seqlen_k - key, CAUSAL, S_LAYOUT)
    return gl.exp2(s)


@gluon.jit
def leave(dq, slot, sm_scale, first, final, dtype: gl.constexpr):
    """Leaves dQ of an OWNED step in its memory: as it is, or, where that makes it `final`, DQ in rows. The sum over the
    keys before is there then, unless these are the `first` ones.
    """
    ROWS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    sums = slot._reinterpret(gl.float32, [64, 64], fragments(64))
    if final:
        if not first:
            dq += sums.load(dq.type.layout)
        slot._reinterpret(dtype, [64, 64], ROWS).store((dq * sm_scale).to(dtype))
    else:
        sums.store(dq)


@gluon.jit
def walk(
    q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slots, dq_slots, kv_full, q_full, do_full, empty,
    dq_full, dq_empty, sm_scale, first_key, first, row, steps, max_seqlen_q, max_seqlen_k,
    C: gl.constexpr, CAUSAL: gl.constexpr, begun=0, walks=0, pieces=0, OWNED: gl.constexpr = False,
):  # fmt: skip
    """DK, before its scale, and DV of consumer C over so many steps: from query row `row` to the last one of a head,
    then from row `first` on.

    So many steps of so many `walks`, or of as many modulo 2, have `begun` before, and left so many `pieces` in dq_slots
    beside those of steps. OWNED: of a head whose tiles of keys this program takes alone, one after the other
    (attn_bwd_hopper_heads).
    """
    BLOCK_DMODEL: gl.constexpr = k_slot.shape[3]
    BLOCK_M: gl.constexpr = q_slots.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DMODEL, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DK_LAYOUT, 2)
    COLUMNS: gl.constexpr = dq_slots.shape[3]  # of a piece of dQ
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    TOGETHER: gl.constexpr = BLOCK_M == 128 or BLOCK_DMODEL == 128  # dQ is of the keys of both

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    all_k = k_slot.reshape([2 * KEYS, BLOCK_DMODEL])
    k = all_k.slice(KEYS * C, KEYS, 0)
    v = v_slot.reshape([2 * KEYS, BLOCK_DMODEL]).slice(KEYS * C, KEYS, 0)
    no_s = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    no_dq = gl.zeros([64, COLUMNS], gl.float32, DQ_LAYOUT)
    dk = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    dv = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    key = first_key + KEYS * C
    mbarrier.wait(kv_full, walks & 1)
    for step in range(begun, begun + steps):
        slot = step & 1  # of two STAGES; % and // take more where the compiler does not know that it is not negative
        phase = (step >> 1) & 1
        q = q_slots.index(slot).reshape([BLOCK_M, BLOCK_DMODEL])
        do = do_slots.index(slot).reshape([BLOCK_M, BLOCK_DMODEL])
        ds_slot = ds_slots.index(slot)
        mbarrier.wait(q_full.index(slot), phase)
        s = warpgroup_mma(k, q.permute((1, 0)), no_s, use_acc=False, is_async=True)
        mbarrier.wait(do_full.index(slot), phase)
        dp = warpgroup_mma(v, do.permute((1, 0)), no_s, use_acc=False, is_async=True)

        s = warpgroup_mma_wait(1, deps=[s])
        p = probabilities(s, lse_slots, slot, scale, row, key, max_seqlen_k, CAUSAL, OWNED)
        p_operand = gl.convert_layout(p.to(dtype), P_LAYOUT)
        dp = warpgroup_mma_wait(0, deps=[dp])
        delta = delta_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        ds = (p * (dp - gl.expand_dims(delta, 0))).to(dtype)
        ds_slot.slice(KEYS * C, KEYS, 0).store(ds)
        dv = warpgroup_mma(p_operand, do, dv, is_async=True)
        fence_async_shared()
        if TOGETHER:
            step = join_consumers(step)
        all_ds = ds_slot.permute((1, 0))
        if not TOGETHER:
            dq = warpgroup_mma(all_ds.slice(KEYS * C, KEYS, 1), k, no_dq, use_acc=False, is_async=True)
        elif BLOCK_M == 128:
            dq = warpgroup_mma(all_ds.slice(64 * C, 64, 0), all_k, no_dq, use_acc=False, is_async=True)
        else:
            dq = warpgroup_mma(all_ds, all_k.slice(64 * C, 64, 1), no_dq, use_acc=False, is_async=True)
        dk = warpgroup_mma(gl.convert_layout(ds, P_LAYOUT), q, dk, is_async=True)

        dv, dq = warpgroup_mma_wait(1, deps=[dv, dq])
        mbarrier.wait(dq_empty.index(C), ((step + pieces) & 1) ^ 1)
        if OWNED:
            final = is_final(row, first_key, max_seqlen_k, CAUSAL)
            leave(dq, dq_slots.index(C), sm_scale, first_key == 0, final, dtype)
        else:
            dq_slots.index(C)._reinterpret(gl.float32, [64, COLUMNS], fragments(COLUMNS)).store(dq)
        fence_async_shared()
        mbarrier.arrive(dq_full.index(C))
        dk = warpgroup_mma_wait(0, deps=[dk])
        mbarrier.arrive(empty.index(slot))
        row += BLOCK_M
        row = gl.where(row >= max_seqlen_q, first, row)
    return dk, dv


@gluon.jit
def slots(Q, K, V, DO, Sum):
    """Shared memory for K, V, Q, DO, lse, delta, dS, and what the consumers leave for Sum."""
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    BLOCK_DMODEL: gl.constexpr = Q.block_shape[3]
    k_slot = gl.allocate_shared_memory(K.dtype, [1, 1, 2 * KEYS, BLOCK_DMODEL], K.layout)
    v_slot = gl.allocate_shared_memory(V.dtype, [1, 1, 2 * KEYS, BLOCK_DMODEL], V.layout)
    q_slots = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], Q.layout)
    do_slots = gl.allocate_shared_memory(DO.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], DO.layout)
    lse_slots = row_slots(STAGES, BLOCK_M)
    delta_slots = row_slots(STAGES, BLOCK_M)
    ds_slots = slots_of_ds(Q.dtype, BLOCK_M)
    dq_slots = gl.allocate_shared_memory(gl.float32, [2, 1, 1, Sum.block_shape[2], 64], Sum.layout)
    return k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, ds_slots, dq_slots


@gluon.jit
def slots_of_ds(dtype: gl.constexpr, BLOCK_M: gl.constexpr):
    """Shared memory for two dS, [keys of both consumers, queries]."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return gl.allocate_shared_memory(dtype, [2, 2 * KEYS, BLOCK_M], LAYOUT)


@gluon.jit
def all_barriers():
    """Shared memory for kv_full, q_full, do_full, empty, dq_full and dq_empty."""
    return barrier(), barriers(STAGES), barriers(STAGES), barriers(STAGES), barriers(2), barriers(2)


@gluon.jit
def count_arrivals(q_full, do_full, empty, dq_full, dq_empty):
    """Counts that complete a phase of these."""
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=2)
        mbarrier.init(do_full.index(slot), count=2)
        mbarrier.init(empty.index(slot), count=2)
    for c in gl.static_range(2):
        mbarrier.init(dq_full.index(c), count=1)
        mbarrier.init(dq_empty.index(c), count=1)
