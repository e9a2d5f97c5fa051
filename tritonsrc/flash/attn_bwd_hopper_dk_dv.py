"""Backward for Hopper at head dim 256, gradients of keys and values: all queries of 64 keys to their rows of DK and DV.

The accumulators of DK and DV leave room for 64 keys only, and dQ is a kernel of its own: with so few keys, adding it up
in memory would take longer than two products more. Both warp groups share every product: each has half of the queries
of S and dP, and half of the columns of DK and DV, so P and dS go through shared memory. Scores are transposed, [keys,
queries]. Products begin from zero: what begins from registers makes ptxas wait for the products that were issued
before. A step of the consumers:

    S = K Qᵀ                                 wait for Q
    dP = V DOᵀ                               wait for DO and S   P = exp2(scale S - lse) → shared
    DV += P DO                               wait for dP         dS = P (dP - delta) → shared
    DK += dS Q                               wait for both

Who waits for whom. Each arrow is an mbarrier, from who arrives, with what a phase counts, to who waits:

    producer warp                                       consumer warp groups, in step
    ─────────────                                       ─────────────────────────────
    loads K and V             ── kv_full, bytes ──▶     before the first step
    loads Q, lse              ── q_full[slot], bytes    step i
                                 and 1 for the rows ─▶
    loads DO, delta           ── do_full[slot], alike ▶ step i
    loads step i + STAGES     ◀─ empty[slot], 1 ──      after DK of step i
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

from aotriton.tritonsrc.flash.hopper_backward import (
    LOG2_E,
    STAGES,
    barrier,
    barriers,
    hide,
    place,
    producer,
    row_slots,
    slot_of_scores,
)


@gluon.jit
def walk(
    q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full, q_full, do_full, empty,
    sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr,
):  # fmt: skip
    """DK, before its scale, and DV over so many steps: from query row `row` to the last one of a head, then from row
    `first` of the next.
    """
    KEYS: gl.constexpr = k_slot.shape[2]
    BLOCK_DMODEL: gl.constexpr = k_slot.shape[3]
    BLOCK_M: gl.constexpr = q_slots.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_M // 2, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_DMODEL // 2, 16])

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    k = k_slot.reshape([KEYS, BLOCK_DMODEL])
    v = v_slot.reshape([KEYS, BLOCK_DMODEL])
    no_s = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    dk = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    dv = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    mbarrier.wait(kv_full, 0)
    for step in range(0, steps):
        slot = step % STAGES
        phase = (step // STAGES) & 1
        q = q_slots.index(slot).reshape([BLOCK_M, BLOCK_DMODEL])
        do = do_slots.index(slot).reshape([BLOCK_M, BLOCK_DMODEL])
        mbarrier.wait(q_full.index(slot), phase)
        s = warpgroup_mma(k, q.permute((1, 0)), no_s, use_acc=False, is_async=True)
        mbarrier.wait(do_full.index(slot), phase)
        dp = warpgroup_mma(v, do.permute((1, 0)), no_s, use_acc=False, is_async=True)

        s = warpgroup_mma_wait(1, deps=[s])
        lse = lse_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        s = s * scale + gl.expand_dims(lse, 0)
        masked = key + KEYS > max_seqlen_k
        if CAUSAL:
            masked = row < key + KEYS - 1
        if masked:
            s = hide(s, row - key, max_seqlen_k - key, CAUSAL, S_LAYOUT)
        p = gl.exp2(s)
        p_slot.store(p.to(dtype))
        fence_async_shared()
        dv = warpgroup_mma(p_slot, do, dv, is_async=True)
        dp = warpgroup_mma_wait(1, deps=[dp])
        delta = delta_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        ds_slot.store((p * (dp - gl.expand_dims(delta, 0))).to(dtype))
        fence_async_shared()
        dk = warpgroup_mma(ds_slot, q, dk, is_async=True)
        dv, dk = warpgroup_mma_wait(0, deps=[dv, dk])
        mbarrier.arrive(empty.index(slot))
        row += BLOCK_M
        row = gl.where(row >= max_seqlen_q, first, row)
    return dk, dv


@gluon.jit
def consumers(
    DK, DV, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full, q_full, do_full, empty,
    sm_scale, batch, head_k, key, first, steps, max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr,
):  # fmt: skip
    KEYS: gl.constexpr = k_slot.shape[2]
    BLOCK_DMODEL: gl.constexpr = k_slot.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    dk, dv = walk(
        q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full, q_full, do_full, empty,
        sm_scale, key, first, first, steps, max_seqlen_q, max_seqlen_k, CAUSAL,
    )  # fmt: skip
    v_slot.reshape([KEYS, BLOCK_DMODEL]).store(dv.to(dtype))
    k_slot.reshape([KEYS, BLOCK_DMODEL]).store((dk * sm_scale).to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(DV, [batch, head_k, key, 0], v_slot)
    tma.async_copy_shared_to_global(DK, [batch, head_k, key, 0], k_slot)
    tma.store_wait(0)


@gluon.jit
def slots(Q, K, V, DO):
    """Shared memory for K, V, Q, DO, lse, delta, P and dS."""
    KEYS: gl.constexpr = K.block_shape[2]
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    BLOCK_DMODEL: gl.constexpr = Q.block_shape[3]
    k_slot = gl.allocate_shared_memory(K.dtype, [1, 1, KEYS, BLOCK_DMODEL], K.layout)
    v_slot = gl.allocate_shared_memory(V.dtype, [1, 1, KEYS, BLOCK_DMODEL], V.layout)
    q_slots = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], Q.layout)
    do_slots = gl.allocate_shared_memory(DO.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], DO.layout)
    lse_slots = row_slots(STAGES, BLOCK_M)
    delta_slots = row_slots(STAGES, BLOCK_M)
    p_slot = slot_of_scores(Q.dtype, KEYS, BLOCK_M)
    ds_slot = slot_of_scores(Q.dtype, KEYS, BLOCK_M)
    return k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, p_slot, ds_slot


@gluon.jit
def all_barriers():
    """kv_full, q_full, do_full and empty."""
    kv_full = barrier()
    q_full = barriers(STAGES)
    do_full = barriers(STAGES)
    empty = barriers(STAGES)
    mbarrier.init(kv_full, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=2)
        mbarrier.init(do_full.index(slot), count=2)
        mbarrier.init(empty.index(slot), count=1)
    return kv_full, q_full, do_full, empty


@gluon.jit
def attn_bwd_hopper_dk_dv(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
    L,
    Delta,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Grid (cdiv(max_seqlen_k, 64) * num_heads_k * batch). `sm_scale` must not be negative.

    Q, K, V, DO, DK, DV: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, BLOCK_M, BLOCK_DMODEL]
    (Q, DO) and [1, 1, 64, BLOCK_DMODEL] (the others). CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are
    contiguous fp32 [batch, num_heads_q, max_seqlen_q].
    """
    KEYS: gl.constexpr = K.block_shape[2]
    k_slot, v_slot, q_slots, do_slots, lse_slots, delta_slots, p_slot, ds_slot = slots(Q, K, V, DO)
    kv_full, q_full, do_full, empty = all_barriers()

    tile, head_k, batch = place(gl.cdiv(max_seqlen_k, KEYS), num_heads_k)
    key = tile * KEYS  # causal: the first tile has the most queries
    first = 0
    if CAUSAL:
        first = key  # query rows before it see none of the keys
    group = num_heads_q // num_heads_k
    steps = group * gl.cdiv(max_seqlen_q - first, BLOCK_M)
    gl.warp_specialize([
        (consumers, (DK, DV, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full,
                     q_full, do_full, empty, sm_scale, batch, head_k, key, first, steps, max_seqlen_q, max_seqlen_k,
                     CAUSAL)),
        (producer, (Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, q_full,
                    do_full, empty, key, head_k, batch, head_k * group, first, first, steps, num_heads_q,
                    max_seqlen_q)),
    ], [1], [40])  # fmt: skip
