"""Backward for Hopper at head dim 256, gradients of keys and values: all queries of 64 keys to their rows of DK and DV.

As in attn_bwd_hopper, but the accumulators of DK and DV leave room for 64 keys only, and dQ is a kernel of its own:
with so few keys, adding it up in memory would take longer than two products more. Both warp groups share every product:
each has half of the queries of S and dP, and half of the columns of DK and DV, so P and dS go through shared memory. A
step of the consumers:

    S = K Qᵀ, begun from -lse / sm_scale, or from minus infinity where masked
    dP = V DOᵀ, begun from -delta            wait for S      P = exp(sm_scale S) → shared
    DV += P DO                               wait for dP     dS = P dP → shared
    DK += dS Q                               wait for both

Who waits for whom. Each arrow is an mbarrier, from who arrives, with what a phase counts, to who waits:

    producer warp                                       consumer warp groups, in step
    ─────────────                                       ─────────────────────────────
    loads K and V             ── kv_full, bytes ──▶     before the first step
    loads Q, DO, lse, delta   ── full[slot], bytes      step i
                                 and 1 for the rows ─▶
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

from aotriton.tritonsrc.flash.attn_bwd_hopper import LOG2_E, STAGES, begin_scores, place, producer


@gluon.jit
def consumers(
    DK, DV, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full, full, empty,
    sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr,
):  # fmt: skip
    KEYS: gl.constexpr = k_slot.shape[2]
    BLOCK_DMODEL: gl.constexpr = k_slot.shape[3]
    BLOCK_M: gl.constexpr = q_slots.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_M // 2, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_DMODEL // 2, 16])

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    k = k_slot.reshape([KEYS, BLOCK_DMODEL])
    v = v_slot.reshape([KEYS, BLOCK_DMODEL])
    dk = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    dv = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    group = num_heads_q // num_heads_k
    row = first
    mbarrier.wait(kv_full, 0)
    for step in range(0, group * gl.cdiv(max_seqlen_q - first, BLOCK_M)):
        slot = step % STAGES
        q = q_slots.index(slot).reshape([BLOCK_M, BLOCK_DMODEL])
        do = do_slots.index(slot).reshape([BLOCK_M, BLOCK_DMODEL])
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        lse = lse_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        s = begin_scores(lse, key, row, max_seqlen_k, CAUSAL, KEYS, S_LAYOUT)
        s = warpgroup_mma(k, q.permute((1, 0)), s, is_async=True)
        delta = delta_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        dp = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT) + gl.expand_dims(delta, 0)
        dp = warpgroup_mma(v, do.permute((1, 0)), dp, is_async=True)

        s = warpgroup_mma_wait(1, deps=[s])
        p = gl.exp2(s * scale)
        p_slot.store(p.to(dtype))
        fence_async_shared()
        dp = warpgroup_mma_wait(0, deps=[dp])
        dv = warpgroup_mma(p_slot, do, dv, is_async=True)
        ds_slot.store((p * dp).to(dtype))
        fence_async_shared()
        dk = warpgroup_mma(ds_slot, q, dk, is_async=True)
        dv, dk = warpgroup_mma_wait(0, deps=[dv, dk])
        mbarrier.arrive(empty.index(slot))
        row += BLOCK_M
        row = gl.where(row >= max_seqlen_q, first, row)

    v.store(dv.to(dtype))
    k.store((dk * sm_scale).to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(DV, [batch, head_k, key, 0], v_slot)
    tma.async_copy_shared_to_global(DK, [batch, head_k, key, 0], k_slot)
    tma.store_wait(0)


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
    P_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    ROW_LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    k_slot = gl.allocate_shared_memory(K.dtype, [1, 1, KEYS, BLOCK_DMODEL], K.layout)
    v_slot = gl.allocate_shared_memory(V.dtype, [1, 1, KEYS, BLOCK_DMODEL], V.layout)
    q_slots = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], Q.layout)
    do_slots = gl.allocate_shared_memory(DO.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], DO.layout)
    lse_slots = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], ROW_LAYOUT)
    delta_slots = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], ROW_LAYOUT)
    p_slot = gl.allocate_shared_memory(Q.dtype, [KEYS, BLOCK_M], P_LAYOUT)
    ds_slot = gl.allocate_shared_memory(Q.dtype, [KEYS, BLOCK_M], P_LAYOUT)
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=2)
        mbarrier.init(empty.index(slot), count=1)

    tile, head_k, batch = place(gl.cdiv(max_seqlen_k, KEYS), num_heads_k)
    key = tile * KEYS  # causal: the first tile has the most queries
    first = 0
    if CAUSAL:
        first = key // BLOCK_M * BLOCK_M  # query rows before it see none of the keys
    gl.warp_specialize([
        (consumers, (DK, DV, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot,
                     kv_full, full, empty, sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q,
                     max_seqlen_k, CAUSAL)),
        (producer, (Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot,
                    kv_full, full, empty, sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q)),
    ], [1], [40])  # fmt: skip
