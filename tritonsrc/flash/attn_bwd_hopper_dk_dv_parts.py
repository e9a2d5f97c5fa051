"""Backward for Hopper at head dim 256, DK and DV where tiles of keys are few: several programs for each of them.

What a tile's programs walk, the query rows of all query heads that share its key head, is divided into parts of equal
numbers of steps. Each program adds its DK and DV to fp32 sums in memory, by TMA, from where Q and DO were. As in
attn_bwd_hopper_dk_dv, a tile has 64 keys, and both warp groups share every product: each has half of the queries of S
and dP, and half of the columns of DK and DV. Here products begin from zero: what begins from registers makes ptxas wait
for the products that were issued before. A step of the consumers:

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

A program without a step adds zeros. The order in which programs add is not fixed, so DK and DV vary in their last bits
from run to run.
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

from aotriton.tritonsrc.flash.attn_bwd_hopper import LOG2_E, STAGES, async_add_shared_to_global
from aotriton.tritonsrc.flash.attn_bwd_hopper_pair import hide, place, producer
from aotriton.tritonsrc.flash.attn_bwd_hopper_parts import share


@gluon.jit
def task(
    num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, parts, together,
    KEYS: gl.constexpr, BLOCK_M: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """What this program computes: the batch, head and first row of its keys; the first row of queries that see any of
    them; and the head and row of queries where its part begins, and how many steps it has.
    """
    tile, head, part = place(gl.cdiv(max_seqlen_k, KEYS), parts, together)
    batch = head // num_heads_k
    head_k = head - batch * num_heads_k
    key = tile * KEYS
    first = 0
    if CAUSAL:
        first = key
    group = num_heads_q // num_heads_k
    of_head = gl.cdiv(max_seqlen_q - first, BLOCK_M)
    begin, steps = share(group * of_head, parts, part)
    member = begin // of_head
    return batch, head_k, key, first, head_k * group + member, first + (begin - member * of_head) * BLOCK_M, steps


@gluon.jit
def put(x, slots, Sum):
    """Stores [KEYS, columns] `x` where `slots` were; returns the place, a box of `Sum`."""
    box = slots._reinterpret(gl.float32, Sum.block_shape, Sum.layout)
    box.reshape(x.shape).store(x)
    return box


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
    DKSum, DVSum, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full, q_full, do_full,
    empty, sm_scale, batch, head_k, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr,
):  # fmt: skip
    dk, dv = walk(
        q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full, q_full, do_full, empty,
        sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL,
    )  # fmt: skip
    dv_box = put(dv, do_slots, DVSum)
    dk_box = put(dk, q_slots, DKSum)
    fence_async_shared()
    async_add_shared_to_global(DVSum, [batch, head_k, key, 0], dv_box)
    async_add_shared_to_global(DKSum, [batch, head_k, key, 0], dk_box)
    tma.store_wait(0)


@gluon.jit
def attn_bwd_hopper_dk_dv_parts(
    Q,
    K,
    V,
    DO,
    DKSum,
    DVSum,
    L,
    Delta,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    parts,
    together,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Grid (cdiv(max_seqlen_k, 64) * num_heads_k * batch * parts). `sm_scale` must not be negative.

    Q, K, V, DO, DKSum, DVSum: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, BLOCK_M,
    BLOCK_DMODEL] (Q, DO) and [1, 1, 64, BLOCK_DMODEL] (the others). DKSum and DVSum are fp32 and begin at zero; DK is
    sm_scale * DKSum, DV is DVSum. CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are contiguous fp32 [batch,
    num_heads_q, max_seqlen_q]. So many heads of keys `together` have their first tiles computed first.
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
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=2)
        mbarrier.init(do_full.index(slot), count=2)
        mbarrier.init(empty.index(slot), count=1)

    batch, head_k, key, first, head, row, steps = task(
        num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, parts, together, KEYS, BLOCK_M, CAUSAL
    )
    gl.warp_specialize([
        (consumers, (DKSum, DVSum, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, p_slot, ds_slot, kv_full,
                     q_full, do_full, empty, sm_scale, batch, head_k, key, first, row, steps, max_seqlen_q,
                     max_seqlen_k, CAUSAL)),
        (producer, (Q, K, V, DO, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slot, v_slot, kv_full, q_full,
                    do_full, empty, key, head_k, batch, head, first, row, steps, num_heads_q, max_seqlen_q)),
    ], [1], [40])  # fmt: skip
