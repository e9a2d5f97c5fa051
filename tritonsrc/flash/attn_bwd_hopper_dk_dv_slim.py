"""Backward for Hopper at head dim 192, DK and DV: as attn_bwd_hopper_dk_dv, with columns in two parts, 128 + 64.

They leave registers for 128 query rows at a time, which halves how often K and V are read from shared memory, and that
is what limits. Each warp group has half of the queries of S and dP, and half of the columns of DK and
DV, so P and dS go through shared memory. A step of the consumers, where Q, K, V and DO are tiles of the first part of
the columns, QRest and so on of the others:

    S = K Qᵀ + KRest QRestᵀ                  wait for Q
    dP = V DOᵀ + VRest DORestᵀ               wait for DO and S   P = exp2(scale S - lse) → shared
    DV += P DO,  DVRest += P DORest          wait for dP         dS = P (dP - delta) → shared
    DK += dS Q,  DKRest += dS QRest          wait for DV
                                             wait for DK

Who waits for whom. Each arrow is an mbarrier, from who arrives, with what a phase counts, to who waits:

    producer warp of Q                                  consumer warp groups, in step
    ──────────────────                                  ─────────────────────────────
    loads K                   ── k_full, bytes ──▶      before the first step
    loads Q, lse              ── q_full[slot], bytes    S of step i
                                 and 1 for the rows ─▶
    loads the slot's next     ◀─ q_empty[slot], 1 ──    after DK of step i

The same of another warp for DO, with V, delta, and do_empty after DV. Q has STAGES slots, DO as many as there is shared
memory for: one with 128 rows.

Tuned: BLOCK_M, 64 or 128; K_IN_REGISTERS, for 64: S then reads only Q from shared memory.
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
    place,
    row_slots,
    slot_of_scores,
)
from aotriton.tritonsrc.flash.two_parts import load, scores, slots


@gluon.jit
def load_keys(k_tensors, k_slots, k_full, batch, head_k, key):
    K_BYTES: gl.constexpr = k_tensors[0].block_type.nbytes + k_tensors[1].block_type.nbytes
    mbarrier.expect(k_full, K_BYTES)
    load(k_tensors, batch, head_k, key, k_full, (k_slots[0].index(0), k_slots[1].index(0)))


@gluon.jit
def load_step(
    q_tensors, Rows, q_slots, row_slots, full, empty, batch, head, head_row, row, step, max_seqlen_q,
    FACTOR: gl.constexpr, BEYOND: gl.constexpr,
):  # fmt: skip
    """Loads Q from `row` on to the slot of `step`, with a number for each of its rows, times FACTOR; BEYOND, times
    FACTOR, beyond the end. `head_row` is the number of the head's first row.
    """
    BLOCK_M: gl.constexpr = q_tensors[0].block_shape[2]
    SLOTS: gl.constexpr = q_slots[0].shape[0]
    Q_BYTES: gl.constexpr = q_tensors[0].block_type.nbytes + q_tensors[1].block_type.nbytes
    LAYOUT: gl.constexpr = gl.BlockedLayout([BLOCK_M // 32], [32], [1], [0])
    index = row + gl.arange(0, BLOCK_M, LAYOUT)
    rows = gl.load(Rows + head_row + index, mask=index < max_seqlen_q, other=BEYOND)
    slot = step % SLOTS
    ready = full.index(slot)
    mbarrier.wait(empty.index(slot), ((step // SLOTS) & 1) ^ 1)
    mbarrier.expect(ready, Q_BYTES)
    load(q_tensors, batch, head, row, ready, (q_slots[0].index(slot), q_slots[1].index(slot)))
    row_slots.index(slot).store(rows * FACTOR)
    mbarrier.arrive(ready)


@gluon.jit
def producer(
    q_tensors, k_tensors, Rows, q_slots, k_slots, row_slots, k_full, full, empty, key, head_k, batch, first,
    num_heads_q, num_heads_k, max_seqlen_q, FACTOR: gl.constexpr, BEYOND: gl.constexpr,
):  # fmt: skip
    """Loads K, and all steps."""
    BLOCK_M: gl.constexpr = q_tensors[0].block_shape[2]
    load_keys(k_tensors, k_slots, k_full, batch, head_k, key)
    group = num_heads_q // num_heads_k
    step = 0
    for member in range(group):
        head = head_k * group + member
        head_row = (batch * num_heads_q + head).to(gl.int64) * max_seqlen_q
        for row in range(first, max_seqlen_q, BLOCK_M):
            load_step(
                q_tensors, Rows, q_slots, row_slots, full, empty, batch, head, head_row, row, step, max_seqlen_q,
                FACTOR, BEYOND,
            )  # fmt: skip
            step += 1


@gluon.jit
def hide(s, ahead, left, CAUSAL: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores [KEYS, queries] with minus infinity where a query does not see the key. The first query is `ahead` rows
    behind the first key; `left` keys are before the end.
    """
    # A query is half, eight, and one of eight. What a thread has of these is compared with constants, the eights: it
    # has no numbers of all its queries, which the compiler would keep in registers all the time.
    pieces = s.reshape([s.shape[0], 2, s.shape[1] // 16, 8])
    P: gl.constexpr = pieces.type.layout
    keys = gl.arange(0, s.shape[0], gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, P))))
    keys = gl.expand_dims(gl.expand_dims(gl.expand_dims(keys, 1), 2), 3)
    if CAUSAL:  # keys beyond the end are hidden from all rows before it
        half = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, P))))
        eight = gl.arange(0, s.shape[1] // 16, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, P))))
        one = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, P))))
        half = gl.expand_dims(gl.expand_dims(gl.expand_dims(half, 0), 2), 3)
        eight = gl.expand_dims(gl.expand_dims(gl.expand_dims(eight, 0), 1), 3)
        one = gl.expand_dims(gl.expand_dims(gl.expand_dims(one, 0), 1), 2)
        visible = keys - ahead - half * (s.shape[1] // 2) - one <= eight * 8
    else:
        visible = keys < left
    pieces = gl.where(visible, pieces, float("-inf"))
    return gl.convert_layout(pieces.reshape(s.shape), LAYOUT, assert_trivial=True)


@gluon.jit
def weighted(p, q_slots, slot, dk, dk_rest):
    """Begin DK += P Q of both parts, with P in shared memory: two products."""
    ROWS: gl.constexpr = q_slots[0].shape[3]
    FIRST: gl.constexpr = q_slots[0].shape[4]
    REST: gl.constexpr = q_slots[1].shape[4]
    dk = warpgroup_mma(p, q_slots[0].index(slot).reshape([ROWS, FIRST]), dk, is_async=True)
    return dk, warpgroup_mma(p, q_slots[1].index(slot).reshape([ROWS, REST]), dk_rest, is_async=True)


@gluon.jit
def await_keys(k_slots, k_full, v_full, BLOCK_M: gl.constexpr, K_IN_REGISTERS: gl.constexpr):
    """Both parts of K as an operand of the scores, once it is there, and V."""
    KEYS: gl.constexpr = k_slots[0].shape[3]
    FIRST: gl.constexpr = k_slots[0].shape[4]
    REST: gl.constexpr = k_slots[1].shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_M // 2, 16])
    K_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    mbarrier.wait(k_full, 0)
    mbarrier.wait(v_full, 0)
    k = k_slots[0].index(0).reshape([KEYS, FIRST]), k_slots[1].index(0).reshape([KEYS, REST])
    if K_IN_REGISTERS:
        k = k[0].load(K_LAYOUT), k[1].load(K_LAYOUT)
    return k


@gluon.jit
def walk(
    k, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slot, ds_slot, q_full, q_empty, do_full, do_empty,
    sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr,
):  # fmt: skip
    """DK, before its scale, and DV, each in two parts, over so many steps: from query row `row` to the last one of a
    head, then from row `first` of the next.
    """
    KEYS: gl.constexpr = v_slots[0].shape[3]
    FIRST: gl.constexpr = v_slots[0].shape[4]
    REST: gl.constexpr = v_slots[1].shape[4]
    BLOCK_M: gl.constexpr = q_slots[0].shape[3]
    DO_STAGES: gl.constexpr = do_slots[0].shape[0]
    dtype: gl.constexpr = v_slots[0].dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_M // 2, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, FIRST // 2, 16])
    REST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, REST // 2, 16])

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    v = v_slots[0].index(0).reshape([KEYS, FIRST]), v_slots[1].index(0).reshape([KEYS, REST])
    no_s = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    dk = gl.zeros([KEYS, FIRST], gl.float32, DK_LAYOUT)
    dv = gl.zeros([KEYS, FIRST], gl.float32, DK_LAYOUT)
    dk_rest = gl.zeros([KEYS, REST], gl.float32, REST_LAYOUT)
    dv_rest = gl.zeros([KEYS, REST], gl.float32, REST_LAYOUT)
    for step in range(0, steps):
        slot = step % STAGES
        do_slot = step % DO_STAGES
        mbarrier.wait(q_full.index(slot), (step // STAGES) & 1)
        s = scores(k, q_slots, slot, no_s)
        mbarrier.wait(do_full.index(do_slot), (step // DO_STAGES) & 1)
        dp = scores(v, do_slots, do_slot, no_s)

        s = warpgroup_mma_wait(2, deps=[s])
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
        dv, dv_rest = weighted(p_slot, do_slots, do_slot, dv, dv_rest)
        dp = warpgroup_mma_wait(2, deps=[dp])
        delta = delta_slots.index(do_slot).load(gl.SliceLayout(0, S_LAYOUT))
        ds_slot.store((p * (dp - gl.expand_dims(delta, 0))).to(dtype))
        fence_async_shared()
        dk, dk_rest = weighted(ds_slot, q_slots, slot, dk, dk_rest)
        dv, dv_rest = warpgroup_mma_wait(2, deps=[dv, dv_rest])
        mbarrier.arrive(do_empty.index(do_slot))
        dk, dk_rest = warpgroup_mma_wait(0, deps=[dk, dk_rest])
        mbarrier.arrive(q_empty.index(slot))
        row += BLOCK_M
        row = gl.where(row >= max_seqlen_q, first, row)
    return dk, dk_rest, dv, dv_rest


@gluon.jit
def consumers(
    dk_tensors, dv_tensors, q_slots, do_slots, lse_slots, delta_slots, k_slots, v_slots, p_slot, ds_slot,
    k_full, v_full, q_full, q_empty, do_full, do_empty, sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k,
    max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr, K_IN_REGISTERS: gl.constexpr,
):  # fmt: skip
    KEYS: gl.constexpr = k_slots[0].shape[3]
    FIRST: gl.constexpr = k_slots[0].shape[4]
    REST: gl.constexpr = k_slots[1].shape[4]
    BLOCK_M: gl.constexpr = q_slots[0].shape[3]
    dtype: gl.constexpr = k_slots[0].dtype
    k = await_keys(k_slots, k_full, v_full, BLOCK_M, K_IN_REGISTERS)
    steps = num_heads_q // num_heads_k * gl.cdiv(max_seqlen_q - first, BLOCK_M)
    dk, dk_rest, dv, dv_rest = walk(
        k, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slot, ds_slot, q_full, q_empty, do_full, do_empty,
        sm_scale, key, first, first, steps, max_seqlen_q, max_seqlen_k, CAUSAL,
    )  # fmt: skip
    k_place = k_slots[0].index(0).reshape([KEYS, FIRST]), k_slots[1].index(0).reshape([KEYS, REST])
    v_place = v_slots[0].index(0).reshape([KEYS, FIRST]), v_slots[1].index(0).reshape([KEYS, REST])
    v_place[0].store(dv.to(dtype))
    v_place[1].store(dv_rest.to(dtype))
    k_place[0].store((dk * sm_scale).to(dtype))
    k_place[1].store((dk_rest * sm_scale).to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dv_tensors[0], [batch, head_k, key, 0], v_slots[0].index(0))
    tma.async_copy_shared_to_global(dv_tensors[1], [batch, head_k, key, FIRST], v_slots[1].index(0))
    tma.async_copy_shared_to_global(dk_tensors[0], [batch, head_k, key, 0], k_slots[0].index(0))
    tma.async_copy_shared_to_global(dk_tensors[1], [batch, head_k, key, FIRST], k_slots[1].index(0))
    tma.store_wait(0)


@gluon.jit
def all_slots(q_tensors, k_tensors, v_tensors, do_tensors):
    """Shared memory for K, V, Q, DO, lse, delta, P and dS."""
    KEYS: gl.constexpr = k_tensors[0].block_shape[2]
    BLOCK_M: gl.constexpr = q_tensors[0].block_shape[2]
    DO_STAGES: gl.constexpr = STAGES if BLOCK_M == 64 else 1
    dtype: gl.constexpr = q_tensors[0].dtype
    k_slots = slots(k_tensors, 1)
    v_slots = slots(v_tensors, 1)
    q_slots = slots(q_tensors, STAGES)
    do_slots = slots(do_tensors, DO_STAGES)
    lse_slots = row_slots(STAGES, BLOCK_M)
    delta_slots = row_slots(DO_STAGES, BLOCK_M)
    p_slot = slot_of_scores(dtype, KEYS, BLOCK_M)
    ds_slot = slot_of_scores(dtype, KEYS, BLOCK_M)
    return k_slots, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slot, ds_slot


@gluon.jit
def all_barriers(DO_STAGES: gl.constexpr):
    """k_full, v_full, q_full, q_empty, do_full and do_empty."""
    k_full = barrier()
    v_full = barrier()
    q_full = barriers(STAGES)
    q_empty = barriers(STAGES)
    do_full = barriers(DO_STAGES)
    do_empty = barriers(DO_STAGES)
    mbarrier.init(k_full, count=1)
    mbarrier.init(v_full, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=2)
        mbarrier.init(q_empty.index(slot), count=1)
    for slot in gl.static_range(DO_STAGES):
        mbarrier.init(do_full.index(slot), count=2)
        mbarrier.init(do_empty.index(slot), count=1)
    return k_full, v_full, q_full, q_empty, do_full, do_empty


@gluon.jit
def attn_bwd_hopper_dk_dv_slim(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
    QRest,
    KRest,
    VRest,
    DORest,
    DKRest,
    DVRest,
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
    K_IN_REGISTERS: gl.constexpr,
):
    """Grid and arguments as attn_bwd_hopper_dk_dv's, with BLOCK_DMODEL the sum of two powers of two.

    Q, K, V, DO, DK, DV: boxes of as many columns as the first, those with Rest: of as many as the second, and of as
    many rows: BLOCK_M (Q, DO) and 64 (the others). Each pair is of one tensor.
    """
    KEYS: gl.constexpr = K.block_shape[2]
    k_slots, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slot, ds_slot = all_slots(
        (Q, QRest), (K, KRest), (V, VRest), (DO, DORest)
    )
    k_full, v_full, q_full, q_empty, do_full, do_empty = all_barriers(do_slots[0].shape[0])

    tile, head_k, batch = place(gl.cdiv(max_seqlen_k, KEYS), num_heads_k)
    key = tile * KEYS  # causal: the first tile has the most queries
    first = 0
    if CAUSAL:
        first = key  # query rows before it see none of the keys
    gl.warp_specialize([
        (consumers, ((DK, DKRest), (DV, DVRest), q_slots, do_slots, lse_slots, delta_slots, k_slots, v_slots, p_slot,
                     ds_slot, k_full, v_full, q_full, q_empty, do_full, do_empty, sm_scale, key, head_k, batch, first,
                     num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, CAUSAL, K_IN_REGISTERS)),
        (producer, ((Q, QRest), (K, KRest), L, q_slots, k_slots, lse_slots, k_full, q_full, q_empty, key, head_k, batch,
                    first, num_heads_q, num_heads_k, max_seqlen_q, -LOG2_E, float("inf"))),
        (producer, ((DO, DORest), (V, VRest), Delta, do_slots, v_slots, delta_slots, v_full, do_full, do_empty, key,
                    head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q, 1.0, 0.0)),
    ], [1, 1], [40, 40])  # fmt: skip
