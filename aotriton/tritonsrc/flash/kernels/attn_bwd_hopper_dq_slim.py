"""Backward for Hopper at head dim 192, gradient of queries: as attn_bwd_hopper_dq, with columns in two parts, 128 + 64.

A consumer, for key tile i, where Q, K, V, DO and DQ are the first part of the columns, QRest and so on the others:

    S = Q Kᵀ + QRest KRestᵀ,  dP = DO Vᵀ + DORest VRestᵀ    wait for S     P = exp2(scale S - lse), masked
                                                           wait for dP    dS = P (dP - delta)
    DQ += dS K,  DQRest += dS KRest                        wait for both

Tiles of rows, steps and who waits for whom are as there, with STAGES slots for tiles of keys and of values in turns; a
barrier counts the bytes of both parts.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from aotriton.tritonsrc.flash.lib.backward import LOG2_E
from aotriton.tritonsrc.flash.lib.backward_dq import CONSUMERS, all_barriers, hide, row_numbers, work_of_program
from aotriton.tritonsrc.flash.lib.hopper_column_parts import (
    bytes_of,
    finished,
    load,
    matrix,
    places,
    scores,
    slots,
    weighted,
    zeros,
)

STAGES = gl.constexpr(4)


@gluon.jit
def producer(
    q_tensors, k_tensors, v_tensors, do_tensors, q_slots, do_slots, kv_slots, q_full, full, empty,
    row, head, head_k, batch, tiles,
):  # fmt: skip
    BLOCK_N: gl.constexpr = k_tensors[0].block_shape[2]
    mbarrier.expect(q_full, 2 * CONSUMERS * bytes_of(q_tensors))
    for c in gl.static_range(CONSUMERS):
        load(q_tensors, batch, head, row + 64 * c, q_full, places(q_slots, c))
        load(do_tensors, batch, head, row + 64 * c, q_full, places(do_slots, c))
    for step in range(0, 2 * tiles):
        slot = step % STAGES
        key = step // 2 * BLOCK_N
        free = places(kv_slots, slot)
        mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(slot), bytes_of(k_tensors))
        load(k_tensors, batch, head_k, key, full.index(slot), free, pred=step % 2 == 0)
        load(v_tensors, batch, head_k, key, full.index(slot), free, pred=step % 2 == 1)


@gluon.jit
def consumer(
    dq_tensors, L, Delta, q_slots, do_slots, kv_slots, q_full, full, empty,
    sm_scale, row, head, batch, tiles, num_heads_q, max_seqlen_q, max_seqlen_k,
    C: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Consumer C of a program: the 64 rows from row 64 * C."""
    FIRST: gl.constexpr = q_slots[0].shape[4]
    BLOCK_N: gl.constexpr = kv_slots[0].shape[3]
    dtype: gl.constexpr = q_slots[0].dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    DS_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DQ_LAYOUT, 2)

    scale = sm_scale * LOG2_E  # exponentials are taken to base 2
    row += 64 * C
    lse, delta = row_numbers(L, Delta, row, head, batch, num_heads_q, max_seqlen_q, S_LAYOUT)
    q = [matrix(of_part, C) for of_part in q_slots]
    do = [matrix(of_part, C) for of_part in do_slots]
    no_s = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
    dq = zeros(q_slots, 64)
    mbarrier.wait(q_full, 0)
    for i in range(0, tiles):
        key = i * BLOCK_N
        k_step = 2 * i
        v_step = k_step + 1
        k_slot = k_step % STAGES
        v_slot = v_step % STAGES
        mbarrier.wait(full.index(k_slot), (k_step // STAGES) & 1)
        s = scores(q, kv_slots, k_slot, no_s)
        mbarrier.wait(full.index(v_slot), (v_step // STAGES) & 1)
        dp = scores(do, kv_slots, v_slot, no_s)

        s = warpgroup_mma_wait(2, deps=[s])
        p = gl.exp2(s * scale - gl.expand_dims(lse, 1))
        masked = key + BLOCK_N > max_seqlen_k
        if CAUSAL:
            masked |= key + BLOCK_N - 1 > row
        if masked:
            p = hide(p, row, key, max_seqlen_k, CAUSAL, S_LAYOUT)
        dp = warpgroup_mma_wait(0, deps=[dp])
        mbarrier.arrive(empty.index(v_slot))
        ds = gl.convert_layout((p * (dp - gl.expand_dims(delta, 1))).to(dtype), DS_LAYOUT)
        dq = finished(weighted(ds, kv_slots, k_slot, dq))
        mbarrier.arrive(empty.index(k_slot))

    for part in gl.static_range(2):
        q[part].store((dq[part] * sm_scale).to(dtype))
    fence_async_shared()
    for part in gl.static_range(2):
        tma.async_copy_shared_to_global(dq_tensors[part], [batch, head, row, part * FIRST], q_slots[part].index(C))
    tma.store_wait(0)


@gluon.jit
def attn_bwd_hopper_dq_slim(
    Q,
    K,
    V,
    DO,
    DQ,
    QRest,
    KRest,
    VRest,
    DORest,
    DQRest,
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
    """Grid and arguments as attn_bwd_hopper_dq's, with BLOCK_DMODEL the sum of two powers of two.

    Q, K, V, DO, DQ: boxes of as many columns as the first, those with Rest: of as many as the second, and of as many
    rows: 64 (Q, DO, DQ) and BLOCK_N (K, V). Each pair is of one tensor.
    """
    q_slots = slots((Q, QRest), CONSUMERS)
    do_slots = slots((DO, DORest), CONSUMERS)
    kv_slots = slots((K, KRest), STAGES)
    q_full, full, empty = all_barriers(STAGES)
    row, head, head_k, batch, tiles = work_of_program(
        num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, BLOCK_N, CAUSAL
    )
    gl.warp_specialize([
        (consumer, ((DQ, DQRest), L, Delta, q_slots, do_slots, kv_slots, q_full, full, empty, sm_scale, row, head,
                    batch, tiles, num_heads_q, max_seqlen_q, max_seqlen_k, 0, CAUSAL)),
        (consumer, ((DQ, DQRest), L, Delta, q_slots, do_slots, kv_slots, q_full, full, empty, sm_scale, row, head,
                    batch, tiles, num_heads_q, max_seqlen_q, max_seqlen_k, 1, CAUSAL)),
        (producer, ((Q, QRest), (K, KRest), (V, VRest), (DO, DORest), q_slots, do_slots, kv_slots, q_full, full, empty,
                    row, head, head_k, batch, tiles)),
    ], [4, 1], [232, 40])  # fmt: skip
