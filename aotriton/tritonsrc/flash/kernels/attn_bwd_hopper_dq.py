"""Backward for Hopper at head dim 256, gradient of queries: all keys of 128 query rows to their rows of DQ.

A program has 64 query rows for each of two consumer warp groups, whose Q and DO stay in shared memory. Tiles of BLOCK_N
keys come in steps: step 2 i is key tile i, step 2 i + 1 its values, each in one of STAGES slots. A consumer, for key
tile i:

    S = Q Kᵀ,  dP = DO Vᵀ        wait for S     P = exp(sm_scale S - lse), masked
                                 wait for dP    dS = P (dP - delta)
    DQ += dS K                   wait for it

Who waits for whom. Each arrow is an mbarrier, from who arrives, with what a phase counts, to who waits:

    producer warp                                       consumer warp group c
    ─────────────                                       ─────────────────────
    loads Q and DO            ── q_full, bytes ──▶      before the first step
    loads step j              ── full[slot], bytes ─▶   S of an even step, dP of an odd one
    loads step j + STAGES     ◀─ empty[slot], each c ─  after DQ of an even step, after dP of an odd one

Consumers never wait for each other, so that the exponentials of one run beside the products of the other.
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

from aotriton.tritonsrc.flash.lib.backward import LOG2_E
from aotriton.tritonsrc.flash.lib.backward_dq import CONSUMERS, all_barriers, hide, row_numbers, work_of_program

STAGES = gl.constexpr(3)


@gluon.jit
def producer(Q, K, V, DO, q_slots, do_slots, slots, q_full, full, empty, row, head, head_k, batch, tiles):
    BLOCK_N: gl.constexpr = K.block_shape[2]
    mbarrier.expect(q_full, 2 * CONSUMERS * Q.block_type.nbytes)
    for c in gl.static_range(CONSUMERS):
        tma.async_copy_global_to_shared(Q, [batch, head, row + 64 * c, 0], q_full, q_slots.index(c))
        tma.async_copy_global_to_shared(DO, [batch, head, row + 64 * c, 0], q_full, do_slots.index(c))
    for step in range(0, 2 * tiles):
        slot = step % STAGES
        key = step // 2 * BLOCK_N
        mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(slot), K.block_type.nbytes)
        tma.async_copy_global_to_shared(
            K, [batch, head_k, key, 0], full.index(slot), slots.index(slot), pred=step % 2 == 0
        )
        tma.async_copy_global_to_shared(
            V, [batch, head_k, key, 0], full.index(slot), slots.index(slot), pred=step % 2 == 1
        )


@gluon.jit
def consumer(
    DQ, L, Delta, q_slots, do_slots, slots, q_full, full, empty,
    sm_scale, row, head, batch, tiles, num_heads_q, max_seqlen_q, max_seqlen_k, C: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Consumer C of a program: the 64 rows from row 64 * C."""
    BLOCK_DMODEL: gl.constexpr = q_slots.shape[4]
    BLOCK_N: gl.constexpr = slots.shape[3]
    dtype: gl.constexpr = q_slots.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DMODEL, 16])
    DS_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DQ_LAYOUT, 2)

    scale = sm_scale * LOG2_E  # exponentials are taken to base 2
    row += 64 * C
    lse, delta = row_numbers(L, Delta, row, head, batch, num_heads_q, max_seqlen_q, S_LAYOUT)
    q = q_slots.index(C).reshape([64, BLOCK_DMODEL])
    do = do_slots.index(C).reshape([64, BLOCK_DMODEL])
    zeros = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
    dq = gl.zeros([64, BLOCK_DMODEL], gl.float32, DQ_LAYOUT)
    mbarrier.wait(q_full, 0)
    for i in range(0, tiles):
        key = i * BLOCK_N
        k_step = 2 * i
        v_step = k_step + 1
        k = slots.index(k_step % STAGES).reshape([BLOCK_N, BLOCK_DMODEL])
        v = slots.index(v_step % STAGES).reshape([BLOCK_N, BLOCK_DMODEL])
        mbarrier.wait(full.index(k_step % STAGES), (k_step // STAGES) & 1)
        s = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(full.index(v_step % STAGES), (v_step // STAGES) & 1)
        dp = warpgroup_mma(do, v.permute((1, 0)), zeros, use_acc=False, is_async=True)

        s = warpgroup_mma_wait(1, deps=[s])
        p = gl.exp2(s * scale - gl.expand_dims(lse, 1))
        masked = key + BLOCK_N > max_seqlen_k
        if CAUSAL:
            masked |= key + BLOCK_N - 1 > row
        if masked:
            p = hide(p, row, key, max_seqlen_k, CAUSAL, S_LAYOUT)
        dp = warpgroup_mma_wait(0, deps=[dp])
        mbarrier.arrive(empty.index(v_step % STAGES))
        ds = gl.convert_layout((p * (dp - gl.expand_dims(delta, 1))).to(dtype), DS_LAYOUT)
        dq = warpgroup_mma(ds, k, dq, is_async=True)
        dq = warpgroup_mma_wait(0, deps=[dq])
        mbarrier.arrive(empty.index(k_step % STAGES))

    q.store((dq * sm_scale).to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(DQ, [batch, head, row, 0], q_slots.index(C))
    tma.store_wait(0)


@gluon.jit
def attn_bwd_hopper_dq(
    Q,
    K,
    V,
    DO,
    DQ,
    L,
    Delta,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    BLOCK_N: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Grid (cdiv(max_seqlen_q, 128) * num_heads_q * batch). `sm_scale` must not be negative.

    Q, K, V, DO, DQ: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes [1, 1, 64, BLOCK_DMODEL] (Q, DO, DQ)
    and [1, 1, BLOCK_N, BLOCK_DMODEL] (K, V). CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are contiguous fp32
    [batch, num_heads_q, max_seqlen_q].
    """
    q_slots = gl.allocate_shared_memory(Q.dtype, [CONSUMERS, 1, 1, 64, BLOCK_DMODEL], Q.layout)
    do_slots = gl.allocate_shared_memory(DO.dtype, [CONSUMERS, 1, 1, 64, BLOCK_DMODEL], DO.layout)
    slots = gl.allocate_shared_memory(K.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_DMODEL], K.layout)
    q_full, full, empty = all_barriers(STAGES)
    row, head, head_k, batch, tiles = work_of_program(
        num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, BLOCK_N, CAUSAL
    )
    gl.warp_specialize([
        (consumer, (DQ, L, Delta, q_slots, do_slots, slots, q_full, full, empty, sm_scale, row, head, batch, tiles,
                    num_heads_q, max_seqlen_q, max_seqlen_k, 0, CAUSAL)),
        (consumer, (DQ, L, Delta, q_slots, do_slots, slots, q_full, full, empty, sm_scale, row, head, batch, tiles,
                    num_heads_q, max_seqlen_q, max_seqlen_k, 1, CAUSAL)),
        (producer, (Q, K, V, DO, q_slots, do_slots, slots, q_full, full, empty, row, head, head_k, batch, tiles)),
    ], [4, 1], [232, 40])  # fmt: skip
