"""Attention backward for Hopper at head dim 96: as attn_bwd_hopper_pair, with columns in two parts, 64 + 32.

A step of a consumer, where Q, K, V and DO are tiles of the first part of the columns, QRest and so on of the others:

    S = K Qᵀ + KRest QRestᵀ                  wait for Q
    dP = V DOᵀ + VRest DORestᵀ               wait for DO and S   P = exp2(scale S - lse)
    dS = P (dP - delta) → shared             wait for dP
    DV += P DO,  DVRest += P DORest          meet: both halves of dS are there
    dQ = dSᵀ K, or dQRest = dSᵀ KRest        consumer 0 has the first part of dQ, consumer 1 the rest
    DK += dS Q,  DKRest += dS QRest          wait for dQ         dQ → shared, for the adder
                                             wait for DK

Tiles of rows, steps, slots, and who waits for whom are as there; a barrier counts the bytes of both parts. A consumer's
rows of K, and of V, fit in registers: S and dP then read only Q and DO from shared memory, and that is what limits.

Tuned: K_IN_REGISTERS, V_IN_REGISTERS.
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

from aotriton.tritonsrc.flash.lib.backward import (
    LOG2_E,
    STAGES,
    all_barriers,
    count_arrivals,
    load_rows,
    probabilities,
    row_slots,
    slots_of_ds,
)
from aotriton.tritonsrc.flash.lib.backward_scheduler import KEYS
from aotriton.tritonsrc.flash.lib.hopper_column_parts import (
    bytes_of,
    finished,
    load,
    matrix,
    places,
    scores,
    slots,
    weighted,
)
from aotriton.tritonsrc.flash.lib.mask import first_query
from aotriton.tritonsrc.flash.lib.pipeline import barrier, join_consumers
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_heads_together
from aotriton.tritonsrc.flash.lib.stores import async_add_shared_to_global, fragments


@gluon.jit
def producer(
    q_tensors, k_tensors, v_tensors, do_tensors, L, Delta, q_slots, do_slots, lse_slots, delta_slots, k_slots, v_slots,
    kv_full, q_full, do_full, empty, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q,
):  # fmt: skip
    BLOCK_M: gl.constexpr = q_tensors[0].block_shape[2]
    mbarrier.expect(kv_full, 2 * bytes_of(k_tensors))
    load(k_tensors, batch, head_k, key, kv_full, places(k_slots, 0))
    load(v_tensors, batch, head_k, key, kv_full, places(v_slots, 0))
    group = num_heads_q // num_heads_k
    step = 0
    for member in range(group):
        head = head_k * group + member
        head_row = (batch * num_heads_q + head).to(gl.int64) * max_seqlen_q
        for row in range(first, max_seqlen_q, BLOCK_M):
            slot = step % STAGES
            mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
            mbarrier.expect(q_full.index(slot), bytes_of(q_tensors))
            load(q_tensors, batch, head, row, q_full.index(slot), places(q_slots, slot))
            mbarrier.expect(do_full.index(slot), bytes_of(q_tensors))
            load(do_tensors, batch, head, row, do_full.index(slot), places(do_slots, slot))
            load_rows(L, Delta, lse_slots, delta_slots, q_full, do_full, head_row, row, slot, max_seqlen_q, BLOCK_M)
            step += 1


@gluon.jit
def adder(
    dk_tensors, dv_tensors, sums, dq_slots, k_slots, v_slots, dq_full, dq_empty, done, key, head_k, batch, first,
    num_heads_q, num_heads_k, max_seqlen_q, BLOCK_M: gl.constexpr,
):  # fmt: skip
    """Adds both parts of dQ that the consumers leave in dq_slots to memory, and stores DK and DV in the end."""
    FIRST: gl.constexpr = dk_tensors[0].block_shape[3]
    REST: gl.constexpr = dk_tensors[1].block_shape[3]
    group = num_heads_q // num_heads_k
    step = 0
    for member in range(group):
        head = head_k * group + member
        for row in range(first, max_seqlen_q, BLOCK_M):
            at = row // 64 * (FIRST + REST)
            mbarrier.wait(dq_full.index(0), step & 1)
            async_add_shared_to_global(sums[0], [batch, head, at, 0], dq_slots[0])
            mbarrier.wait(dq_full.index(1), step & 1)
            async_add_shared_to_global(sums[1], [batch, head, at + FIRST, 0], dq_slots[1])
            for c in gl.static_range(2):
                tma.store_wait(1 - c)
                mbarrier.arrive(dq_empty.index(c))
            step += 1
    mbarrier.wait(done, 0)
    tma.async_copy_shared_to_global(dv_tensors[0], [batch, head_k, key, 0], v_slots[0].index(0))
    tma.async_copy_shared_to_global(dv_tensors[1], [batch, head_k, key, FIRST], v_slots[1].index(0))
    tma.async_copy_shared_to_global(dk_tensors[0], [batch, head_k, key, 0], k_slots[0].index(0))
    tma.async_copy_shared_to_global(dk_tensors[1], [batch, head_k, key, FIRST], k_slots[1].index(0))
    tma.store_wait(0)


@gluon.jit
def consumer(
    q_slots, do_slots, lse_slots, delta_slots, k_slots, v_slots, ds_slots, dq_slots, kv_full, q_full, do_full, empty,
    dq_full, dq_empty, done, sm_scale, first_key, first, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k,
    C: gl.constexpr, CAUSAL: gl.constexpr, K_IN_REGISTERS: gl.constexpr, V_IN_REGISTERS: gl.constexpr,
):  # fmt: skip
    FIRST: gl.constexpr = k_slots[0].shape[4]
    REST: gl.constexpr = k_slots[1].shape[4]
    BLOCK_M: gl.constexpr = q_slots[0].shape[3]
    dtype: gl.constexpr = k_slots[0].dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    REST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST, 16])
    K_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DK_LAYOUT, 2)
    # Of dQ, one part each.
    COLUMNS: gl.constexpr = FIRST if C == 0 else REST
    DQ_LAYOUT: gl.constexpr = DK_LAYOUT if C == 0 else REST_LAYOUT

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    all_k = [matrix(of_part, 0) for of_part in k_slots]
    k_place = [k_part.slice(KEYS * C, KEYS, 0) for k_part in all_k]
    v_place = [matrix(of_part, 0).slice(KEYS * C, KEYS, 0) for of_part in v_slots]
    no_s = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    no_dq = gl.zeros([BLOCK_M, COLUMNS], gl.float32, DQ_LAYOUT)
    # Their order is that of the loop's registers: as tuples, they are others.
    dk = gl.zeros([KEYS, FIRST], gl.float32, DK_LAYOUT)
    dv = gl.zeros([KEYS, FIRST], gl.float32, DK_LAYOUT)
    dk_rest = gl.zeros([KEYS, REST], gl.float32, REST_LAYOUT)
    dv_rest = gl.zeros([KEYS, REST], gl.float32, REST_LAYOUT)
    key = first_key + KEYS * C
    row = first
    mbarrier.wait(kv_full, 0)
    k = k_place
    v = v_place
    if K_IN_REGISTERS:
        k = [place.load(K_LAYOUT) for place in k_place]
    if V_IN_REGISTERS:
        v = [place.load(K_LAYOUT) for place in v_place]
    for step in range(0, num_heads_q // num_heads_k * gl.cdiv(max_seqlen_q - first, BLOCK_M)):
        slot = step % STAGES
        phase = (step // STAGES) & 1
        ds_slot = ds_slots.index(slot)
        mbarrier.wait(q_full.index(slot), phase)
        s = scores(k, q_slots, slot, no_s)
        mbarrier.wait(do_full.index(slot), phase)
        dp = scores(v, do_slots, slot, no_s)

        s = warpgroup_mma_wait(2, deps=[s])
        p = probabilities(s, lse_slots, slot, scale, row, key, max_seqlen_k, CAUSAL)
        p_operand = gl.convert_layout(p.to(dtype), P_LAYOUT)
        dp = warpgroup_mma_wait(0, deps=[dp])
        delta = delta_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
        ds = (p * (dp - gl.expand_dims(delta, 0))).to(dtype)
        ds_slot.slice(KEYS * C, KEYS, 0).store(ds)
        dv, dv_rest = weighted(p_operand, do_slots, slot, (dv, dv_rest))
        fence_async_shared()
        step = join_consumers(step)
        dq = warpgroup_mma(ds_slot.permute((1, 0)), all_k[C], no_dq, use_acc=False, is_async=True)
        dk, dk_rest = weighted(gl.convert_layout(ds, P_LAYOUT), q_slots, slot, (dk, dk_rest))

        dv, dv_rest, dq = warpgroup_mma_wait(2, deps=[dv, dv_rest, dq])
        mbarrier.wait(dq_empty.index(C), (step & 1) ^ 1)
        dq_slots[C]._reinterpret(gl.float32, [BLOCK_M, COLUMNS], fragments(COLUMNS)).store(dq)
        fence_async_shared()
        mbarrier.arrive(dq_full.index(C))
        dk, dk_rest = finished((dk, dk_rest))
        mbarrier.arrive(empty.index(slot))
        row += BLOCK_M
        row = gl.where(row >= max_seqlen_q, first, row)

    join_consumers(max_seqlen_q)  # the other consumer has read all keys: DV and DK go where V and K were
    v_place[0].store(dv.to(dtype))
    v_place[1].store(dv_rest.to(dtype))
    k_place[0].store((dk * sm_scale).to(dtype))
    k_place[1].store((dk_rest * sm_scale).to(dtype))
    fence_async_shared()
    mbarrier.arrive(done)


@gluon.jit
def attn_bwd_hopper_pair_slim(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
    DQSum,
    QRest,
    KRest,
    VRest,
    DORest,
    DKRest,
    DVRest,
    DQSumRest,
    L,
    Delta,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    together,
    BLOCK_M: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
    K_IN_REGISTERS: gl.constexpr,
    V_IN_REGISTERS: gl.constexpr,
):
    """Grid and arguments as attn_bwd_hopper_pair's, with BLOCK_DMODEL the sum of two powers of two, and BLOCK_M 64.

    Q, K, V, DO, DK, DV: boxes of as many columns as the first, those with Rest: of as many as the second, and of as
    many rows: BLOCK_M (Q, DO) and 128 (the others). DQSum, DQSumRest: boxes of so many rows of 64 numbers. Each pair is
    of one tensor.
    """
    k_slots = slots((K, KRest), 1)
    v_slots = slots((V, VRest), 1)
    q_slots = slots((Q, QRest), STAGES)
    do_slots = slots((DO, DORest), STAGES)
    lse_slots = row_slots(STAGES, BLOCK_M)
    delta_slots = row_slots(STAGES, BLOCK_M)
    ds_slots = slots_of_ds(Q.dtype, BLOCK_M)
    dq_slots = (
        gl.allocate_shared_memory(gl.float32, DQSum.block_shape, DQSum.layout),
        gl.allocate_shared_memory(gl.float32, DQSumRest.block_shape, DQSumRest.layout),
    )
    kv_full, q_full, do_full, empty, dq_full, dq_empty = all_barriers()
    done = barrier()
    mbarrier.init(kv_full, count=1)
    mbarrier.init(done, count=2)
    count_arrivals(q_full, do_full, empty, dq_full, dq_empty)

    tile, head, _ = tile_of_heads_together(gl.cdiv(max_seqlen_k, 2 * KEYS), 1, together)
    batch = head // num_heads_k
    head_k = head - batch * num_heads_k
    key = tile * 2 * KEYS
    first = first_query(key, CAUSAL)
    # The tuples stand in the call: the compiler takes constants for constants only there.
    gl.warp_specialize([
        (consumer, (q_slots, do_slots, lse_slots, delta_slots, k_slots, v_slots, ds_slots, dq_slots, kv_full, q_full,
                    do_full, empty, dq_full, dq_empty, done, sm_scale, key, first, num_heads_q, num_heads_k,
                    max_seqlen_q, max_seqlen_k, 0, CAUSAL, K_IN_REGISTERS, V_IN_REGISTERS)),
        (consumer, (q_slots, do_slots, lse_slots, delta_slots, k_slots, v_slots, ds_slots, dq_slots, kv_full, q_full,
                    do_full, empty, dq_full, dq_empty, done, sm_scale, key, first, num_heads_q, num_heads_k,
                    max_seqlen_q, max_seqlen_k, 1, CAUSAL, K_IN_REGISTERS, V_IN_REGISTERS)),
        (producer, ((Q, QRest), (K, KRest), (V, VRest), (DO, DORest), L, Delta, q_slots, do_slots, lse_slots,
                    delta_slots, k_slots, v_slots, kv_full, q_full, do_full, empty, key, head_k, batch, first,
                    num_heads_q, num_heads_k, max_seqlen_q)),
        (adder, ((DK, DKRest), (DV, DVRest), (DQSum, DQSumRest), dq_slots, k_slots, v_slots, dq_full, dq_empty, done,
                 key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q, BLOCK_M)),
    ], [4, 1, 1], [240, 24, 24])  # fmt: skip
