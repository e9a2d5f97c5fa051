"""Attention forward for Hopper, of head dims between powers of two: as attn_fwd_hopper, with columns in two parts.

A tile's sides are powers of two, and a head dim of 96 in one tile of 128 columns is a quarter of zeros. Here each tile
of Q, K, V and Out is a first one, of the largest power of two below the head dim, and one of the rest: 64 + 32 columns,
128 + 64. Each has a descriptor and a place in shared memory of its own:

    S = Q Kᵀ + QRest KRestᵀ         Out += P V         OutRest += P VRest

Tiles of rows, steps, slots, masks, and who waits for whom are as there; a barrier counts the bytes of both parts. But
with a RING a slot holds the keys or the values of one step, not both, and each has a phase of its own. Slots are filled
in the order K(0), K(1), V(0), K(2), V(1), ..., V(n-1), and a consumer gives the keys back before the softmax: three
slots do for what takes four in pairs, so that 192 columns have room for 128 keys a step.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from aotriton.tritonsrc.flash.attn_fwd_hopper import (
    LN_2,
    LOG2_E,
    hand_turn,
    mask,
    softmax,
    store_rows,
    take_turn,
    tile_at,
)
from aotriton.tritonsrc.flash.two_parts import load, scores, slots, weighted


@gluon.jit
def producer(
    q_tensors, k_tensors, v_tensors, q_slots, k_slots, v_slots, q_full, q_empty, full, empty,
    heads, heads_k, rows, max_seqlen_k, batch, log2_packed,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, GROUP_ROUNDS: gl.constexpr, RING: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = CONSUMERS * 64
    BLOCK_N: gl.constexpr = k_tensors[0].block_shape[2]
    FIRST: gl.constexpr = q_tensors[0].block_shape[4]
    Q_BYTES: gl.constexpr = q_tensors[0].block_type.nbytes + q_tensors[1].block_type.nbytes
    KV_BYTES: gl.constexpr = k_tensors[0].block_type.nbytes + k_tensors[1].block_type.nbytes
    step = 0
    phase = 0
    group, round, place, row, head, tiles = tile_at(
        0, 0, gl.program_id(0), heads * batch, rows, max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL, GROUP_ROUNDS
    )
    while tiles > 0:
        b = head // heads
        head -= b * heads
        head_k = head // (heads // heads_k)

        # Step 0. The keys come first: their slot is free before Q's place is.
        last = (tiles - 1) * BLOCK_N
        slot = step % STAGES
        mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(slot), KV_BYTES)
        load(k_tensors, b, head_k, last, full.index(slot), (k_slots[0].index(slot), k_slots[1].index(slot)))
        for c in gl.static_range(CONSUMERS):
            mbarrier.wait(q_empty.index(c), phase ^ 1)
            mbarrier.expect(q_full.index(c), Q_BYTES)
            position = (row + c * 64) >> log2_packed
            for part in gl.static_range(2):
                tma.async_copy_global_to_shared(
                    q_tensors[part], [b, head, position, 0, part * FIRST], q_full.index(c), q_slots[part].index(c)
                )
        step += 1

        for key in range(last, -BLOCK_N, -BLOCK_N):  # values from `key` on, and the keys before them
            if RING and key > 0:
                slot = step % STAGES
                mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
                mbarrier.expect(full.index(slot), KV_BYTES)
                k_places = k_slots[0].index(slot), k_slots[1].index(slot)
                load(k_tensors, b, head_k, key - BLOCK_N, full.index(slot), k_places)
                step += 1
            slot = step % STAGES
            ready = full.index(slot)
            has_k = key > 0
            mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
            if RING:
                mbarrier.expect(ready, KV_BYTES)
            else:
                mbarrier.expect(ready, 2 * KV_BYTES, pred=has_k)
                mbarrier.expect(ready, KV_BYTES, pred=not has_k)
                k_places = k_slots[0].index(slot), k_slots[1].index(slot)
                load(k_tensors, b, head_k, key - BLOCK_N, ready, k_places, pred=has_k)
            load(v_tensors, b, head_k, key, ready, (v_slots[0].index(slot), v_slots[1].index(slot)))
            step += 1

        phase ^= 1
        group, round, place, row, head, tiles = tile_at(
            group, round + 1, place, heads * batch, rows, max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL,
            GROUP_ROUNDS,
        )  # fmt: skip


@gluon.jit
def scaled(x, factor):
    """x with each row multiplied by its factor."""
    return x * gl.expand_dims(gl.convert_layout(factor, gl.SliceLayout(1, x.type.layout)), 1)


@gluon.jit
def consumer(
    out_tensors, L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
    store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
    C: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, GROUP_ROUNDS: gl.constexpr,
    OUT_IN_Q: gl.constexpr, Q_IN_REGISTERS: gl.constexpr, EARLY_WAIT: gl.constexpr, TURNS: gl.constexpr,
    RING: gl.constexpr,
):  # fmt: skip
    """Consumer C of a program: the 64 rows of each tile from row 64 * C."""
    BLOCK_M: gl.constexpr = CONSUMERS * 64
    BLOCK_N: gl.constexpr = k_slots[0].shape[3]
    FIRST: gl.constexpr = k_slots[0].shape[4]
    REST: gl.constexpr = k_slots[1].shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    REST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST, 16])
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, OUT_LAYOUT, 2)
    P_REST_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, REST_LAYOUT, 2)
    EACH: gl.constexpr = 2 if RING else 1  # slots a step
    dtype: gl.constexpr = q_slots[0].dtype

    zeros = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
    step = 0
    phase = 0
    group, round, place, row, head, tiles = tile_at(
        0, 0, gl.program_id(0), heads * batch, rows, max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL, GROUP_ROUNDS
    )
    if C == CONSUMERS - 1:
        step = hand_turn(step, C, CONSUMERS, TURNS)
    while tiles > 0:
        row += C * 64

        # Steps that only later consumers need. Waiting for them, too: or this consumer might arrive twice in one phase.
        if CAUSAL and BLOCK_M > BLOCK_N:
            visible = gl.minimum(((row + 63) >> log2_packed) // BLOCK_N + 1, tiles)
            for _ in range(visible, tiles):
                slot = step % STAGES
                mbarrier.wait(full.index(slot), (step // STAGES) & 1)
                mbarrier.arrive(empty.index(slot))
                step = hand_turn(take_turn(step, C, TURNS), C, CONSUMERS, TURNS)
                step += 1
            tiles = visible

        # Step 0
        mbarrier.wait(q_full.index(C), phase)
        q = q_slots[0].index(C).reshape([64, FIRST]), q_slots[1].index(C).reshape([64, REST])
        if Q_IN_REGISTERS:
            q = q[0].load(Q_LAYOUT), q[1].load(Q_LAYOUT)
            if not OUT_IN_Q:
                mbarrier.arrive(q_empty.index(C))
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        step = take_turn(step, C, TURNS)
        s = scores(q, k_slots, slot, zeros)
        step = hand_turn(step, C, CONSUMERS, TURNS)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(empty.index(slot))
        step += 1
        key = (tiles - 1) * BLOCK_N
        if not CAUSAL:  # hide that it is the same for every tile, or the mask is kept in registers all the time
            key = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [key], dtype=gl.int32, is_pure=False, pack=1)
        if CAUSAL or key + BLOCK_N > max_seqlen_k:
            s = mask(s, row, key, max_seqlen_k, log2_packed, CAUSAL, S_LAYOUT)
        row_max = gl.max(s, 1)
        p = gl.exp2(s * scale - gl.expand_dims(row_max * scale, 1))
        row_sum = gl.sum(p, 1)
        p = gl.convert_layout(p.to(dtype), P_LAYOUT)
        out = gl.zeros([64, FIRST], gl.float32, OUT_LAYOUT)
        out_rest = gl.zeros([64, REST], gl.float32, REST_LAYOUT)
        if EARLY_WAIT:
            mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1)

        # Steps 1 to tiles - 1
        first = step
        last = step + tiles - 1
        if RING:
            last += tiles - 1
        for step in range(first, last, EACH):
            slot = step % STAGES
            if not EARLY_WAIT:
                mbarrier.wait(full.index(slot), (step // STAGES) & 1)
            row = take_turn(row, C, TURNS)
            s = scores(q, k_slots, slot, zeros)
            v_slot = slot
            if RING:
                v_slot = (step + 1) % STAGES
                mbarrier.wait(full.index(v_slot), ((step + 1) // STAGES) & 1)
            out_next, rest_next = weighted(p, v_slots, v_slot, out, out_rest, P_REST_LAYOUT)
            row = hand_turn(row, C, CONSUMERS, TURNS)
            s = warpgroup_mma_wait(2, deps=[s])
            if RING:
                mbarrier.arrive(empty.index(slot))
            p_next, row_max, row_sum, correction = softmax(s, row_max, row_sum, scale)
            p_next = gl.convert_layout(p_next.to(dtype), P_LAYOUT)
            if EARLY_WAIT:  # for the next step, here: it keeps the compiler from waiting for `out` above the softmax
                mbarrier.wait(full.index((step + EACH) % STAGES), ((step + EACH) // STAGES) & 1)
            out, out_rest = warpgroup_mma_wait(0, deps=[out_next, rest_next])
            mbarrier.arrive(empty.index(v_slot))
            out = scaled(out, correction)
            out_rest = scaled(out_rest, correction)
            p = p_next
        step = last

        # Step `tiles`
        if not OUT_IN_Q and not Q_IN_REGISTERS:
            mbarrier.arrive(q_empty.index(C))
        slot = step % STAGES
        if not EARLY_WAIT:
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        out, out_rest = weighted(p, v_slots, slot, out, out_rest, P_REST_LAYOUT)
        # Where the next tile is takes a few divisions: they hide here.
        group, round, place, next_row, next_head, tiles = tile_at(
            group, round + 1, place, heads * batch, rows, max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL,
            GROUP_ROUNDS,
        )  # fmt: skip
        b = head // heads
        out, out_rest = warpgroup_mma_wait(0, deps=[out, out_rest])
        mbarrier.arrive(empty.index(slot))
        step += 1

        if store_lse != 0:
            store_rows(L, (row_max * scale + gl.log2(row_sum)) * LN_2, row, head, rows, log2_packed, S_LAYOUT)
        factor = 1.0 / row_sum
        tma.store_wait(0)
        out_slots[0].index(C).reshape([64, FIRST]).store(scaled(out, factor).to(dtype))
        out_slots[1].index(C).reshape([64, REST]).store(scaled(out_rest, factor).to(dtype))
        fence_async_shared()
        head -= b * heads
        for part in gl.static_range(2):
            origin = [b, head, row >> log2_packed, 0, part * FIRST]
            tma.async_copy_shared_to_global(out_tensors[part], origin, out_slots[part].index(C))
        if OUT_IN_Q:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(C))
        row, head = next_row, next_head
        phase ^= 1
    tma.store_wait(0)


@gluon.jit
def attn_fwd_hopper_slim(
    Q,
    K,
    V,
    Out,
    QRest,
    KRest,
    VRest,
    OutRest,
    L,
    store_lse,
    sm_scale,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    batch,
    log2_packed,
    BLOCK_N: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
    GROUP_ROUNDS: gl.constexpr,
    OUT_IN_Q: gl.constexpr,
    Q_IN_REGISTERS: gl.constexpr,
    EARLY_WAIT: gl.constexpr,
    TURNS: gl.constexpr,
    RING: gl.constexpr,
):
    """Grid and arguments as attn_fwd_hopper's, with BLOCK_DMODEL the sum of two powers of two.

    Q, K, V, Out: boxes of as many columns as the first, QRest, KRest, VRest, OutRest: of as many as the second, and of
    as many rows. Each pair is of one tensor. STAGES of a RING: keys or values of one step.
    """
    REGISTERS: gl.constexpr = 160 if CONSUMERS == 3 else 240
    PRODUCER_REGISTERS: gl.constexpr = 32 if CONSUMERS == 3 else 24
    q_slots = slots((Q, QRest), CONSUMERS)
    gl.static_assert(not (RING and CAUSAL) or CONSUMERS * 64 <= BLOCK_N, "no steps of a ring are let pass")
    k_slots = slots((K, KRest), STAGES)
    v_slots = k_slots if RING else slots((V, VRest), STAGES)
    out_slots = q_slots if OUT_IN_Q else slots((Out, OutRest), CONSUMERS)
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for c in gl.static_range(CONSUMERS):
        mbarrier.init(q_full.index(c), count=1)
        mbarrier.init(q_empty.index(c), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=CONSUMERS)

    heads = num_heads_q >> log2_packed
    rows = max_seqlen_q << log2_packed  # of a packed head
    # Exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = gl.maximum(sm_scale * LOG2_E, 1e-30)
    # Each list is written out: the compiler takes constants for constants only in a tuple that stands in the call.
    if CONSUMERS == 1:
        gl.warp_specialize([
            (consumer, ((Out, OutRest), L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        0, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (producer, ((Q, QRest), (K, KRest), (V, VRest), q_slots, k_slots, v_slots, q_full, q_empty, full, empty,
                        heads, num_heads_k, rows, max_seqlen_k, batch, log2_packed,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, RING)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    elif CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, ((Out, OutRest), L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        0, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (consumer, ((Out, OutRest), L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        1, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (producer, ((Q, QRest), (K, KRest), (V, VRest), q_slots, k_slots, v_slots, q_full, q_empty, full, empty,
                        heads, num_heads_k, rows, max_seqlen_k, batch, log2_packed,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, RING)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, ((Out, OutRest), L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        0, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (consumer, ((Out, OutRest), L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        1, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (consumer, ((Out, OutRest), L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        2, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (producer, ((Q, QRest), (K, KRest), (V, VRest), q_slots, k_slots, v_slots, q_full, q_empty, full, empty,
                        heads, num_heads_k, rows, max_seqlen_k, batch, log2_packed,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, RING)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
