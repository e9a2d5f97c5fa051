"""Attention backward for Hopper: a producer warp and two consumer warp groups turn Q, K, V and DO to DK, DV and DQSum.

A program owns 128 key rows of one key head, 64 for each warp group, and sums DK and DV over the query heads that share
it. It takes BLOCK_M query rows at a time; each such step has one of STAGES slots. Scores are transposed, [keys,
queries], so that P and dS are register operands of the products that sum over queries. A step of the consumers:

    S = K Qᵀ, begun from -lse / sm_scale, or from minus infinity where masked
    dP = V DOᵀ, begun from -delta            wait for S      P = exp(sm_scale S)
    DV += P DO                               wait for dP     dS = P dP → shared
    dQ = dSᵀ K,  DK += dS Q                  wait for dQ     dQ → shared → added to DQSum in memory
                                             wait for DK

What the accumulators begin from needs no registers beside them: lse, delta and the mask are gone before P comes.

Who waits for whom. Each arrow is an mbarrier, from who arrives, with what a phase counts, to who waits:

    producer warp                                       consumer warp groups, in step
    ─────────────                                       ─────────────────────────────
    loads K and V             ── kv_full, bytes ──▶     before the first step
    loads Q, DO, lse, delta   ── full[slot], bytes      step i
                                 and 1 for the rows ─▶
    loads step i + STAGES     ◀─ empty[slot], 1 ──      after DK of step i

dSᵀ K sums over the keys of both warp groups, so they meet at the block barriers around dS, twice a step.
Tensor memory accesses (TMA) read zeros beyond the end of a tensor and write nothing there.
The order in which programs add to DQSum is not fixed, so DQ varies in its last bits from run to run; DK and DV do not.

Tuned: BLOCK_M, 64 or 128.
"""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

LOG2_E = gl.constexpr(1.4426950408889634)
STAGES = gl.constexpr(2)


@builtin
def async_add_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """`tma.async_copy_shared_to_global` that adds to what is there: Gluon 3.6 has no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def place(tiles, heads):
    """Tile, head and batch of this program, of a grid that has `tiles` for each of `heads` in each batch, along x."""
    program = gl.program_id(0)
    head = program // tiles
    batch = head // heads
    return program - head * tiles, head - batch * heads, batch


@gluon.jit
def producer(
    Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, full, empty,
    sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q,
):  # fmt: skip
    BLOCK_M: gl.constexpr = Q.block_shape[2]
    ROWS: gl.constexpr = gl.BlockedLayout([BLOCK_M // 32], [32], [1], [0])
    mbarrier.expect(kv_full, 2 * K.block_type.nbytes)
    tma.async_copy_global_to_shared(K, [batch, head_k, key, 0], kv_full, k_slot)
    tma.async_copy_global_to_shared(V, [batch, head_k, key, 0], kv_full, v_slot)
    # A row beyond the end has a P of zero.
    lse_unit = 1.0 / gl.maximum(sm_scale, 1e-30)
    group = num_heads_q // num_heads_k
    step = 0
    for member in range(group):
        head = head_k * group + member
        head_row = (batch * num_heads_q + head).to(gl.int64) * max_seqlen_q
        for row in range(first, max_seqlen_q, BLOCK_M):
            slot = step % STAGES
            ready = full.index(slot)
            mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
            mbarrier.expect(ready, 2 * Q.block_type.nbytes)
            tma.async_copy_global_to_shared(Q, [batch, head, row, 0], ready, q_slots.index(slot))
            tma.async_copy_global_to_shared(DO, [batch, head, row, 0], ready, do_slots.index(slot))
            rows = row + gl.arange(0, BLOCK_M, ROWS)
            inside = rows < max_seqlen_q
            lse = gl.load(L + head_row + rows, mask=inside, other=float("inf"))
            delta = gl.load(Delta + head_row + rows, mask=inside, other=0.0)
            lse_slots.index(slot).store(-lse * lse_unit)
            delta_slots.index(slot).store(-delta)
            mbarrier.arrive(ready)
            step += 1


@gluon.jit
def begin_scores(lse, key, row, max_seqlen_k, CAUSAL: gl.constexpr, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """What the scores [KEYS, queries] begin from: the mask is applied here. `lse` is -lse / sm_scale."""
    s = gl.zeros([KEYS, lse.shape[0]], gl.float32, LAYOUT) + gl.expand_dims(lse, 0)
    masked = key + KEYS > max_seqlen_k
    if CAUSAL:
        masked |= row < key + KEYS - 1
    if masked:
        keys = gl.expand_dims(key + gl.arange(0, KEYS, gl.SliceLayout(1, LAYOUT)), 1)
        visible = keys < max_seqlen_k
        if CAUSAL:
            visible &= keys <= gl.expand_dims(row + gl.arange(0, lse.shape[0], gl.SliceLayout(0, LAYOUT)), 0)
        s = gl.where(visible, s, float("-inf"))
    return s


@gluon.jit
def consumers(
    DK, DV, DQSum, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slot, dq_slot, kv_full, full, empty,
    sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr,
):  # fmt: skip
    KEYS: gl.constexpr = k_slot.shape[2]
    BLOCK_DMODEL: gl.constexpr = k_slot.shape[3]
    BLOCK_M: gl.constexpr = q_slots.shape[3]
    dtype: gl.constexpr = k_slot.dtype
    # Each warp group has 64 keys of these,
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_M, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_DMODEL, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DK_LAYOUT, 2)
    # and half of dQ: of the rows, or of the columns where there are but 64 rows.
    DQ_WARPS: gl.constexpr = [8, 1] if BLOCK_M == 128 else [4, 2]
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], DQ_WARPS, [16, BLOCK_DMODEL // DQ_WARPS[1], 16])

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    k = k_slot.reshape([KEYS, BLOCK_DMODEL])
    v = v_slot.reshape([KEYS, BLOCK_DMODEL])
    dk = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    dv = gl.zeros([KEYS, BLOCK_DMODEL], gl.float32, DK_LAYOUT)
    no_dq = gl.zeros([BLOCK_M, BLOCK_DMODEL], gl.float32, DQ_LAYOUT)
    group = num_heads_q // num_heads_k
    head = head_k * group
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
        p_operand = gl.convert_layout(p.to(dtype), P_LAYOUT)
        dp = warpgroup_mma_wait(0, deps=[dp])
        dv = warpgroup_mma(p_operand, do, dv, is_async=True)
        ds = (p * dp).to(dtype)
        ds_slot.store(ds)
        fence_async_shared()
        dq = warpgroup_mma(ds_slot.permute((1, 0)), k, no_dq, use_acc=False, is_async=True)
        dk = warpgroup_mma(gl.convert_layout(ds, P_LAYOUT), q, dk, is_async=True)

        dv, dq = warpgroup_mma_wait(1, deps=[dv, dq])
        tma.store_wait(0)
        dq_slot.reshape([BLOCK_M, BLOCK_DMODEL]).store(dq)
        fence_async_shared()
        async_add_shared_to_global(DQSum, [batch, head, row, 0], dq_slot)
        dk = warpgroup_mma_wait(0, deps=[dk])
        mbarrier.arrive(empty.index(slot))
        row += BLOCK_M
        last = row >= max_seqlen_q
        head += last.to(gl.int32)
        row = gl.where(last, first, row)

    v.store(dv.to(dtype))
    k.store((dk * sm_scale).to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(DV, [batch, head_k, key, 0], v_slot)
    tma.async_copy_shared_to_global(DK, [batch, head_k, key, 0], k_slot)
    tma.store_wait(0)


@gluon.jit
def attn_bwd_hopper(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
    DQSum,
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
    """Grid (cdiv(max_seqlen_k, 128) * num_heads_k * batch). `sm_scale` must not be negative.

    Q, K, V, DO, DK, DV, DQSum: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, BLOCK_M,
    BLOCK_DMODEL] (Q, DO, DQSum) and [1, 1, 128, BLOCK_DMODEL] (K, V, DK, DV). DQSum is fp32 and begins at zero; DQ is
    sm_scale * DQSum. CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are contiguous fp32 [batch, num_heads_q,
    max_seqlen_q].
    """
    KEYS: gl.constexpr = K.block_shape[2]
    DS_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    ROW_LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    k_slot = gl.allocate_shared_memory(K.dtype, [1, 1, KEYS, BLOCK_DMODEL], K.layout)
    v_slot = gl.allocate_shared_memory(V.dtype, [1, 1, KEYS, BLOCK_DMODEL], V.layout)
    q_slots = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], Q.layout)
    do_slots = gl.allocate_shared_memory(DO.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DMODEL], DO.layout)
    lse_slots = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], ROW_LAYOUT)
    delta_slots = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], ROW_LAYOUT)
    ds_slot = gl.allocate_shared_memory(Q.dtype, [KEYS, BLOCK_M], DS_LAYOUT)
    dq_slot = gl.allocate_shared_memory(gl.float32, [1, 1, BLOCK_M, BLOCK_DMODEL], DQSum.layout)
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
        (consumers, (DK, DV, DQSum, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, ds_slot, dq_slot,
                     kv_full, full, empty, sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q,
                     max_seqlen_k, CAUSAL)),
        (producer, (Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot,
                    kv_full, full, empty, sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q)),
    ], [1], [24])  # fmt: skip
