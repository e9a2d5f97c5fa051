"""Backward for Hopper at head dims 192 and 256, DK and DV: a consumer for each, with columns in two parts.

The accumulators of DK and DV leave room for 64 keys only, and dQ is a kernel of its own: with so few keys, adding it up
in memory would take longer than two products more. The parts are of 128 columns and of the rest, 64 or 128.

A program owns 64 key rows of one key head, and takes BLOCK_M query rows at a time. One consumer computes P and DV, the
other one dS and DK. Scores are transposed, [keys, queries], so that P and dS are register operands; at head dim 192 K
and V are, too. Of a product then only Q or DO is read from shared memory, which is what limits. For step i, where Q, K,
V and DO are tiles of the first part of the columns, QRest and so on of the others:

    consumer of values                                  consumer of keys
    ──────────────────                                  ────────────────
    S = K Q(i)ᵀ + KRest QRest(i)ᵀ                       DK += dS(i-1) Q(i-1),  the same of DKRest
    DV += P(i-1) DO(i-1),  the same of DVRest           dP = V DO(i)ᵀ + VRest DORest(i)ᵀ
    wait for S     P(i) = exp2(scale S - lse) → shared  wait for DK
    wait for DV                                         wait for dP, P(i)   dS(i) = P(i) (dP - delta)

Who waits for whom. Each arrow is an mbarrier, from who arrives, with what a phase counts, to who waits:

    producer warp of Q                                  consumers
    ──────────────────                                  ─────────
    loads K                   ── k_full, bytes ──▶      that of values, before the first step
    loads Q, lse              ── q_full[slot], bytes    S and DK of step i
                                 and 1 for the rows ─▶
    loads the slot's next     ◀─ q_empty[slot], 2 ──    after S, and after DK of step i

The same of another warp for DO, with V, delta, do_full and do_empty, after dP and after DV. Q and DO have as many slots
as there is shared memory for. The consumer of values arrives at p_full[slot] with P, which has two slots, and that of
keys, when it has read it, at p_empty[slot].
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from aotriton.tritonsrc.flash.lib.hopper_backward import LOG2_E, barrier, barriers, hide, place, row_slots
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


@gluon.jit
def load_keys(k_tensors, k_slots, k_full, batch, head_k, key):
    mbarrier.expect(k_full, bytes_of(k_tensors))
    load(k_tensors, batch, head_k, key, k_full, places(k_slots, 0))


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
    LAYOUT: gl.constexpr = gl.BlockedLayout([BLOCK_M // 32], [32], [1], [0])
    index = row + gl.arange(0, BLOCK_M, LAYOUT)
    rows = gl.load(Rows + head_row + index, mask=index < max_seqlen_q, other=BEYOND)
    slot = step % SLOTS
    ready = full.index(slot)
    mbarrier.wait(empty.index(slot), ((step // SLOTS) & 1) ^ 1)
    mbarrier.expect(ready, bytes_of(q_tensors))
    load(q_tensors, batch, head, row, ready, places(q_slots, slot))
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
def operand(k_slots, k_full, BLOCK_M: gl.constexpr):
    """Both parts of K, once they are there, in registers if these have room for them."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    K_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    mbarrier.wait(k_full, 0)
    k = [matrix(of_part, 0) for of_part in k_slots]
    if k_slots[0].shape[4] + k_slots[1].shape[4] <= 192:
        k = [k_part.load(K_LAYOUT) for k_part in k]
    return k


@gluon.jit
def fresh(x):
    """x, of 16 bits, in other registers. ptxas serialises products whose operands come into being while others, issued
    before, are under way: this copies them when those have ended.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)


@gluon.jit
def probabilities(
    s, lse_slots, slot, p_slots, p_full, p_empty, step, scale, row, key, max_seqlen_k,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """P of a step, [keys, queries] in 16 bits, of which the other consumer is told."""
    KEYS: gl.constexpr = s.shape[0]
    S_LAYOUT: gl.constexpr = s.type.layout
    lse = lse_slots.index(slot).load(gl.SliceLayout(0, S_LAYOUT))
    s = s * scale + gl.expand_dims(lse, 0)
    masked = key + KEYS > max_seqlen_k
    if CAUSAL:
        masked = row < key + KEYS - 1
    if masked:
        s = hide(s, row - key, max_seqlen_k - key, CAUSAL, S_LAYOUT)
    p = gl.exp2(s).to(p_slots.dtype)
    mbarrier.wait(p_empty.index(step % 2), ((step // 2) & 1) ^ 1)
    p_slots.index(step % 2).store(p)
    fence_async_shared()
    mbarrier.arrive(p_full.index(step % 2))
    return p


@gluon.jit
def walk_of_values(
    k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty, do_full, do_empty, p_full, p_empty,
    sm_scale, key, first, row, steps, max_seqlen_q, max_seqlen_k, CAUSAL: gl.constexpr,
):  # fmt: skip
    """DV in two parts over so many steps, one at least: from query row `row` to the last one of a head, then from row
    `first` of the next.
    """
    KEYS: gl.constexpr = k_slots[0].shape[3]
    FIRST: gl.constexpr = k_slots[0].shape[4]
    BLOCK_M: gl.constexpr = q_slots[0].shape[3]
    STAGES: gl.constexpr = q_slots[0].shape[0]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    DV_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DV_LAYOUT, 2)

    scale = gl.maximum(sm_scale, 1e-30) * LOG2_E  # exponentials are taken to base 2
    k = operand(k_slots, k_full, BLOCK_M)
    no_s = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    dv = zeros(k_slots, KEYS)
    mbarrier.wait(q_full.index(0), 0)
    s = warpgroup_mma_wait(0, deps=[scores(k, q_slots, 0, no_s)])
    p = probabilities(s, lse_slots, 0, p_slots, p_full, p_empty, 0, scale, row, key, max_seqlen_k, CAUSAL)
    mbarrier.arrive(q_empty.index(0))
    p = gl.convert_layout(p, P_LAYOUT)
    for step in range(1, steps):
        row += BLOCK_M
        row = gl.where(row >= max_seqlen_q, first, row)
        slot = step % STAGES
        before = (step - 1) % STAGES
        mbarrier.wait(q_full.index(slot), (step // STAGES) & 1)
        s = scores(k, q_slots, slot, no_s)
        mbarrier.wait(do_full.index(before), ((step - 1) // STAGES) & 1)
        dv = weighted(p, do_slots, before, dv)
        s = warpgroup_mma_wait(2, deps=[s])
        p_next = probabilities(
            s, lse_slots, slot, p_slots, p_full, p_empty, step, scale, row, key, max_seqlen_k, CAUSAL
        )
        mbarrier.arrive(q_empty.index(slot))
        p_next = gl.convert_layout(p_next, P_LAYOUT)
        dv = finished(dv)
        mbarrier.arrive(do_empty.index(before))
        p = fresh(p_next)
    last = (steps - 1) % STAGES
    mbarrier.wait(do_full.index(last), ((steps - 1) // STAGES) & 1)
    return finished(weighted(p, do_slots, last, dv))


@gluon.jit
def gradients(dp, delta_slots, slot, p_slots, p_full, p_empty, step):
    """dS of a step, [keys, queries] in 16 bits, from the P of the other consumer."""
    LAYOUT: gl.constexpr = dp.type.layout
    delta = delta_slots.index(slot).load(gl.SliceLayout(0, LAYOUT))
    mbarrier.wait(p_full.index(step % 2), (step // 2) & 1)
    p = p_slots.index(step % 2).load(LAYOUT)
    mbarrier.arrive(p_empty.index(step % 2))
    return (p.to(gl.float32) * (dp - gl.expand_dims(delta, 0))).to(p_slots.dtype)


@gluon.jit
def walk_of_keys(
    v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty, do_full, do_empty, p_full, p_empty, steps
):
    """DK, before its scale, in two parts over so many steps, one at least."""
    KEYS: gl.constexpr = v_slots[0].shape[3]
    FIRST: gl.constexpr = v_slots[0].shape[4]
    BLOCK_M: gl.constexpr = q_slots[0].shape[3]
    STAGES: gl.constexpr = q_slots[0].shape[0]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    DS_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DK_LAYOUT, 2)

    v = operand(v_slots, v_full, BLOCK_M)
    no_dp = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    dk = zeros(v_slots, KEYS)
    mbarrier.wait(do_full.index(0), 0)
    dp = warpgroup_mma_wait(0, deps=[scores(v, do_slots, 0, no_dp)])
    ds = gradients(dp, delta_slots, 0, p_slots, p_full, p_empty, 0)
    mbarrier.arrive(do_empty.index(0))
    ds = gl.convert_layout(ds, DS_LAYOUT)
    for step in range(1, steps):
        slot = step % STAGES
        before = (step - 1) % STAGES
        mbarrier.wait(q_full.index(before), ((step - 1) // STAGES) & 1)
        dk = weighted(ds, q_slots, before, dk)
        mbarrier.wait(do_full.index(slot), (step // STAGES) & 1)
        dp = scores(v, do_slots, slot, no_dp)
        dk = finished(dk, 2)
        mbarrier.arrive(q_empty.index(before))
        dp = warpgroup_mma_wait(0, deps=[dp])
        ds = gradients(dp, delta_slots, slot, p_slots, p_full, p_empty, step)
        mbarrier.arrive(do_empty.index(slot))
        ds = gl.convert_layout(ds, DS_LAYOUT)
    last = (steps - 1) % STAGES
    mbarrier.wait(q_full.index(last), ((steps - 1) // STAGES) & 1)
    return finished(weighted(ds, q_slots, last, dk))


@gluon.jit
def store(tensors, places, x, x_rest, batch, head, key):
    """Both parts to memory, from where K or V was, which this consumer has in registers."""
    KEYS: gl.constexpr = places[0].shape[3]
    FIRST: gl.constexpr = places[0].shape[4]
    REST: gl.constexpr = places[1].shape[4]
    places[0].index(0).reshape([KEYS, FIRST]).store(x.to(places[0].dtype))
    places[1].index(0).reshape([KEYS, REST]).store(x_rest.to(places[0].dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(tensors[0], [batch, head, key, 0], places[0].index(0))
    tma.async_copy_shared_to_global(tensors[1], [batch, head, key, FIRST], places[1].index(0))
    tma.store_wait(0)


@gluon.jit
def value_consumer(
    dv_tensors, k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty, do_full, do_empty, p_full,
    p_empty, sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    steps = num_heads_q // num_heads_k * gl.cdiv(max_seqlen_q - first, q_slots[0].shape[3])
    dv, dv_rest = walk_of_values(
        k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty, do_full, do_empty, p_full, p_empty,
        sm_scale, key, first, first, steps, max_seqlen_q, max_seqlen_k, CAUSAL,
    )  # fmt: skip
    store(dv_tensors, k_slots, dv, dv_rest, batch, head_k, key)


@gluon.jit
def key_consumer(
    dk_tensors, v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty, do_full, do_empty, p_full,
    p_empty, sm_scale, key, head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q,
):  # fmt: skip
    steps = num_heads_q // num_heads_k * gl.cdiv(max_seqlen_q - first, q_slots[0].shape[3])
    dk, dk_rest = walk_of_keys(
        v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty, do_full, do_empty, p_full, p_empty,
        steps,
    )  # fmt: skip
    store(dk_tensors, v_slots, dk * sm_scale, dk_rest * sm_scale, batch, head_k, key)


@gluon.jit
def all_slots(q_tensors, k_tensors, v_tensors, do_tensors, STAGES: gl.constexpr):
    """Shared memory for K, V, Q, DO, lse, delta and P."""
    KEYS: gl.constexpr = k_tensors[0].block_shape[2]
    BLOCK_M: gl.constexpr = q_tensors[0].block_shape[2]
    dtype: gl.constexpr = q_tensors[0].dtype
    P_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    k_slots = slots(k_tensors, 1)
    v_slots = slots(v_tensors, 1)
    q_slots = slots(q_tensors, STAGES)
    do_slots = slots(do_tensors, STAGES)
    lse_slots = row_slots(STAGES, BLOCK_M)
    delta_slots = row_slots(STAGES, BLOCK_M)
    p_slots = gl.allocate_shared_memory(dtype, [2, KEYS, BLOCK_M], P_LAYOUT)
    return k_slots, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slots


@gluon.jit
def all_barriers(STAGES: gl.constexpr):
    """k_full, v_full, q_full, q_empty, do_full, do_empty, p_full and p_empty."""
    k_full = barrier()
    v_full = barrier()
    q_full = barriers(STAGES)
    q_empty = barriers(STAGES)
    do_full = barriers(STAGES)
    do_empty = barriers(STAGES)
    p_full = barriers(2)
    p_empty = barriers(2)
    mbarrier.init(k_full, count=1)
    mbarrier.init(v_full, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=2)
        mbarrier.init(q_empty.index(slot), count=2)
        mbarrier.init(do_full.index(slot), count=2)
        mbarrier.init(do_empty.index(slot), count=2)
    for slot in gl.static_range(2):
        mbarrier.init(p_full.index(slot), count=1)
        mbarrier.init(p_empty.index(slot), count=1)
    return k_full, v_full, q_full, q_empty, do_full, do_empty, p_full, p_empty


@gluon.jit
def attn_bwd_hopper_dk_dv(
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
):
    """Grid (cdiv(max_seqlen_k, 64) * num_heads_k * batch). `sm_scale` must not be negative.

    Q, K, V, DO, DK, DV: TMA descriptors of [batch, heads, seqlen, head_dim] with boxes of 128 columns and of BLOCK_M
    rows (Q, DO) or 64 (the others); those with Rest: of the same tensors, with boxes of BLOCK_DMODEL - 128 columns.
    CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are contiguous fp32 [batch, num_heads_q, max_seqlen_q].
    """
    KEYS: gl.constexpr = K.block_shape[2]
    STAGES: gl.constexpr = 3 if BLOCK_DMODEL == 192 else 2
    k_slots, v_slots, q_slots, do_slots, lse_slots, delta_slots, p_slots = all_slots(
        (Q, QRest), (K, KRest), (V, VRest), (DO, DORest), STAGES
    )
    k_full, v_full, q_full, q_empty, do_full, do_empty, p_full, p_empty = all_barriers(STAGES)

    tile, head_k, batch = place(gl.cdiv(max_seqlen_k, KEYS), num_heads_k)
    key = tile * KEYS  # causal: the first tile has the most queries
    first = 0
    if CAUSAL:
        first = key  # query rows before it see none of the keys
    gl.warp_specialize([
        (value_consumer, ((DV, DVRest), k_slots, q_slots, do_slots, lse_slots, p_slots, k_full, q_full, q_empty,
                          do_full, do_empty, p_full, p_empty, sm_scale, key, head_k, batch, first, num_heads_q,
                          num_heads_k, max_seqlen_q, max_seqlen_k, CAUSAL)),
        (key_consumer, ((DK, DKRest), v_slots, q_slots, do_slots, delta_slots, p_slots, v_full, q_full, q_empty,
                        do_full, do_empty, p_full, p_empty, sm_scale, key, head_k, batch, first, num_heads_q,
                        num_heads_k, max_seqlen_q)),
        (producer, ((Q, QRest), (K, KRest), L, q_slots, k_slots, lse_slots, k_full, q_full, q_empty, key, head_k, batch,
                    first, num_heads_q, num_heads_k, max_seqlen_q, -LOG2_E, float("inf"))),
        (producer, ((DO, DORest), (V, VRest), Delta, do_slots, v_slots, delta_slots, v_full, do_full, do_empty, key,
                    head_k, batch, first, num_heads_q, num_heads_k, max_seqlen_q, 1.0, 0.0)),
    ], [4, 1, 1], [232, 32, 32])  # fmt: skip
