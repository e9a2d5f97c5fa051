"""Attention forward for Hopper, of head dims between powers of two: as attn_fwd_hopper, with columns in two parts.

A tile's sides are powers of two, and a head dim of 96 in one tile of 128 columns is a quarter of zeros. Here each tile
of Q, K, V and Out is a first one, of the largest power of two below the head dim, and one of the rest: 64 + 32 columns,
128 + 64. Each has a descriptor and a place in shared memory of its own:

    S = Q Kᵀ + QRest KRestᵀ         Out += P V         OutRest += P VRest

The keys of a step may be in two parts, too: 96 are 64 and 32, each with an S and a P of its own, which leaves three
consumers registers for half as many keys again as 64. K and V then come in boxes of 32 rows, one behind the other, and
Q_IN_REGISTERS is of the rest of the columns only.

Tiles of rows, steps, slots, masks, and who waits for whom are as there; a barrier counts the bytes of both parts of the
columns. Two things differ.

RING: a slot holds the keys or the values of one step, not both, and each has a phase of its own. Slots are filled in
the order K(0), K(1), V(0), K(2), V(1), ..., V(n-1), and a consumer gives the keys back before the softmax. So three
slots do for what takes four in pairs.

Causal, with three consumers of 96 keys: the diagonal of the second one's rows lies in two key tiles. Both are masked,
and the first of them hides all of some rows, whose maximum is not minus infinity, or it would cancel to no number.
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

from aotriton.tritonsrc.flash.attn_fwd_hopper import LN_2, LOG2_E, mask, tile_at, tile_count

LOWEST = gl.constexpr(-1e30)  # a maximum where no key is seen: finite, and below all scores


@gluon.jit
def hidden(number):
    """The same number, as one that the compiler does not know: what is made of it is made where it is used. Prepared
    once for all warps, it would take registers all the time.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def load(tensors, batch, head, row, full, places, slot, BOXES: gl.constexpr, pred=True):
    """Begin to copy rows from `row` on of both parts of a tensor to a slot of its `places`, of so many boxes."""
    ROWS: gl.constexpr = tensors[0].block_shape[2]
    FIRST: gl.constexpr = tensors[0].block_shape[3]
    for i in gl.static_range(BOXES):
        box = slot * BOXES + i
        first, rest = places[0].index(box), places[1].index(box)
        tma.async_copy_global_to_shared(tensors[0], [batch, head, row + i * ROWS, 0], full, first, pred=pred)
        tma.async_copy_global_to_shared(tensors[1], [batch, head, row + i * ROWS, FIRST], full, rest, pred=pred)


@gluon.jit
def producer(
    q_tensors, k_tensors, v_tensors, places, barriers, sizes,
    BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    GROUP_ROUNDS: gl.constexpr, RING: gl.constexpr,
):  # fmt: skip
    q_slots, k_slots, v_slots = places
    q_full, q_empty, full, empty = barriers
    num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batch = sizes
    BLOCK_M: gl.constexpr = CONSUMERS * 64
    BOXES: gl.constexpr = BLOCK_N // k_tensors[0].block_shape[2]
    Q_BYTES: gl.constexpr = q_tensors[0].block_type.nbytes + q_tensors[1].block_type.nbytes
    KV_BYTES: gl.constexpr = BOXES * (k_tensors[0].block_type.nbytes + k_tensors[1].block_type.nbytes)
    if BLOCK_N == 96:
        max_seqlen_q, max_seqlen_k, num_heads_q = hidden(max_seqlen_q), hidden(max_seqlen_k), hidden(num_heads_q)
    heads = num_heads_q * batch
    step = 0
    for i in range(tile_count(heads, max_seqlen_q, BLOCK_M, CAUSAL, GROUP_ROUNDS)):
        row, head, tiles = tile_at(i, heads, max_seqlen_q, max_seqlen_k, BLOCK_M, BLOCK_N, CAUSAL, GROUP_ROUNDS)
        b = head // num_heads_q
        head -= b * num_heads_q
        head_k = head // (num_heads_q // num_heads_k)

        # Step 0. The keys come first: their slot is free before Q's place is.
        last = (tiles - 1) * BLOCK_N
        slot = step % STAGES
        mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(slot), KV_BYTES)
        load(k_tensors, b, head_k, last, full.index(slot), k_slots, slot, BOXES)
        for c in gl.static_range(CONSUMERS):
            mbarrier.wait(q_empty.index(c), (i & 1) ^ 1)
            mbarrier.expect(q_full.index(c), Q_BYTES)
            load(q_tensors, b, head, row + c * 64, q_full.index(c), q_slots, c, 1)
        step += 1

        for key in range(last, -BLOCK_N, -BLOCK_N):  # values from `key` on, and the keys before them
            if RING and key > 0:
                slot = step % STAGES
                mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
                mbarrier.expect(full.index(slot), KV_BYTES)
                load(k_tensors, b, head_k, key - BLOCK_N, full.index(slot), k_slots, slot, BOXES)
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
                load(k_tensors, b, head_k, key - BLOCK_N, ready, k_slots, slot, BOXES, pred=has_k)
            load(v_tensors, b, head_k, key, ready, v_slots, slot, BOXES)
            step += 1


@gluon.jit
def rows_at(places, box, ROWS: gl.constexpr):
    """So many rows from a box on."""
    COLUMNS: gl.constexpr = places.shape[4]
    place = places.index(box)
    if places.shape[3] != ROWS:  # boxes lie one behind the other
        place = place._reinterpret(places.dtype, [1, 1, ROWS, COLUMNS], places.layout)
    return place.reshape([ROWS, COLUMNS])


@gluon.jit
def scores(q, k_slots, box, zeros):
    """Begin S = Q Kᵀ of both parts of the columns, of as many keys from a box on as there are columns of zeros."""
    k = rows_at(k_slots[0], box, zeros.shape[1]).permute((1, 0))
    s = warpgroup_mma(q[0], k, zeros, use_acc=False, is_async=True)
    k = rows_at(k_slots[1], box, zeros.shape[1]).permute((1, 0))
    q_rest = q[1]
    if isinstance(q_rest, gl.tensor):
        q_rest = gl.convert_layout(q_rest, gl.DotOperandLayout(0, zeros.type.layout, 2))
    return warpgroup_mma(q_rest, k, s, is_async=True)


@gluon.jit
def all_scores(q, k_slots, slot, zeros):
    """Begin S of each part of the keys: two products for each."""
    if len(zeros) == 1:
        s = (scores(q, k_slots, slot, zeros[0]),)
    else:
        BOX: gl.constexpr = k_slots[0].shape[3]
        FIRST: gl.constexpr = zeros[0].shape[1]
        box = slot * ((FIRST + zeros[1].shape[1]) // BOX)
        s = scores(q, k_slots, box, zeros[0]), scores(q, k_slots, box + FIRST // BOX, zeros[1])
    return s


@gluon.jit
def weighted(p, v_slots, box, out, REST_LAYOUT: gl.constexpr):
    """Begin Out += P V of both parts of the columns, from a box on: two products."""
    v = rows_at(v_slots[0], box, p.shape[1])
    first = warpgroup_mma(p, v, out[0], is_async=True)
    v = rows_at(v_slots[1], box, p.shape[1])
    return first, warpgroup_mma(gl.convert_layout(p, REST_LAYOUT), v, out[1], is_async=True)


@gluon.jit
def all_weighted(p, v_slots, slot, out, REST_LAYOUT: gl.constexpr):
    """Begin Out += P V of each part of the keys: two products for each."""
    if len(p) == 1:
        out = weighted(p[0], v_slots, slot, out, REST_LAYOUT)
    else:
        BOX: gl.constexpr = v_slots[0].shape[3]
        FIRST: gl.constexpr = p[0].shape[1]
        box = slot * ((FIRST + p[1].shape[1]) // BOX)
        out = weighted(p[0], v_slots, box, out, REST_LAYOUT)
        out = weighted(p[1], v_slots, box + FIRST // BOX, out, REST_LAYOUT)
    return out


@gluon.jit
def causal_mask(s, row, key):
    """As mask, but what it is made of takes few registers between tiles: eight columns, of which a thread has two, come
    again every eight, and which eight is known to the compiler.
    """
    LAYOUT: gl.constexpr = s.type.layout
    eights = s.reshape([s.shape[0], s.shape[1] // 8, 8])
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, eights.type.layout))
    OF_EIGHTS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, eights.type.layout))
    OF_COLUMNS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, eights.type.layout))
    rows = gl.expand_dims(gl.expand_dims(gl.arange(0, eights.shape[0], OF_ROWS), 1), 2)
    first = gl.expand_dims(gl.expand_dims(gl.arange(0, eights.shape[1], OF_EIGHTS) * 8, 0), 2)
    columns = gl.expand_dims(gl.expand_dims(gl.arange(0, 8, OF_COLUMNS), 0), 1)
    eights = gl.where(first <= rows + (row - key) - columns, eights, float("-inf"))
    return gl.convert_layout(eights.reshape(s.shape), LAYOUT)


@gluon.jit
def all_masked(s, row, key, max_seqlen_k, CAUSAL: gl.constexpr):
    """mask of each part of the keys."""
    if CAUSAL and len(s) == 2:
        masked = causal_mask(s[0], row, key), causal_mask(s[1], row, key + s[0].shape[1])
    else:
        LAYOUT: gl.constexpr = s[0].type.layout
        masked = (mask(s[0], row, key, max_seqlen_k, CAUSAL, LAYOUT),)
        if len(s) == 2:
            REST_LAYOUT: gl.constexpr = s[1].type.layout
            masked += (mask(s[1], row, key + s[0].shape[1], max_seqlen_k, CAUSAL, REST_LAYOUT),)
    return masked


@gluon.jit
def row_maximum(s):
    """Of all parts."""
    maximum = gl.max(s[0], 1)
    if len(s) == 2:
        maximum = gl.maximum(maximum, gl.convert_layout(gl.max(s[1], 1), maximum.type.layout))
    return maximum


@gluon.jit
def row_total(p):
    """Of all parts."""
    total = gl.sum(p[0], 1)
    if len(p) == 2:
        total += gl.convert_layout(gl.sum(p[1], 1), total.type.layout)
    return total


@gluon.jit
def column(x, other):
    """A number for each row, as a column of the layout of another tensor."""
    return gl.expand_dims(gl.convert_layout(x, gl.SliceLayout(1, other.type.layout)), 1)


@gluon.jit
def scaled(x, factor):
    """x with each row multiplied by its factor."""
    return x * column(factor, x)


@gluon.jit
def one_step(
    step, q, k_slots, v_slots, full, empty, zeros, p, out, row_max, row_sum, scale, row, key, max_seqlen_k,
    STAGES: gl.constexpr, RING: gl.constexpr, EARLY_WAIT: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """P, Out, row maximum and row sum after a step between the first and the last."""
    P_LAYOUT: gl.constexpr = p[0].type.layout
    REST_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, out[1].type.layout, 2)
    NEXT: gl.constexpr = 2 if RING else 1
    IN_FLIGHT: gl.constexpr = 2 * len(p)
    slot = step % STAGES
    if not EARLY_WAIT:
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
    s = all_scores(q, k_slots, slot, zeros)
    v_slot = slot
    if RING:
        v_slot = (step + 1) % STAGES
        mbarrier.wait(full.index(v_slot), ((step + 1) // STAGES) & 1)
    out_next = all_weighted(p, v_slots, v_slot, out, REST_LAYOUT)
    s = waited(s, IN_FLIGHT)
    if RING:
        mbarrier.arrive(empty.index(slot))
    if MASKED:
        s = all_masked(s, row, hidden(key), max_seqlen_k, True)
    new_max = gl.maximum(row_max, row_maximum(s))
    scaled_max = new_max * scale
    correction = gl.exp2(row_max * scale - scaled_max)
    p_next = [gl.exp2(x * scale - column(scaled_max, x)) for x in s]
    row_sum = row_sum * correction + row_total(p_next)
    p_next = [gl.convert_layout(x.to(k_slots[0].dtype), P_LAYOUT) for x in p_next]
    if EARLY_WAIT:  # for the next step, here: it keeps the compiler from waiting for `out` above the softmax
        mbarrier.wait(full.index((step + NEXT) % STAGES), ((step + NEXT) // STAGES) & 1)
    out = waited(out_next, 0)
    mbarrier.arrive(empty.index(v_slot))
    out = [scaled(x, correction) for x in out]
    return p_next, out, new_max, row_sum


@gluon.jit
def waited(products, IN_FLIGHT: gl.constexpr):
    """The results of products, once no more than so many are in flight."""
    if len(products) == 1:
        results = (warpgroup_mma_wait(IN_FLIGHT, deps=products),)
    else:
        results = warpgroup_mma_wait(IN_FLIGHT, deps=products)
    return results


@gluon.jit
def consumer(
    out_tensors, L, out_slots, places, barriers, store_lse, sm_scale, sizes,
    C: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    GROUP_ROUNDS: gl.constexpr, OUT_IN_Q: gl.constexpr, Q_IN_REGISTERS: gl.constexpr, EARLY_WAIT: gl.constexpr,
    RING: gl.constexpr,
):  # fmt: skip
    """Consumer C of a program: the 64 rows of each tile from row 64 * C."""
    q_slots, k_slots, v_slots = places
    q_full, q_empty, full, empty = barriers
    num_heads_q, _, max_seqlen_q, max_seqlen_k, batch = sizes
    BLOCK_M: gl.constexpr = CONSUMERS * 64
    FIRST: gl.constexpr = k_slots[0].shape[4]
    REST: gl.constexpr = k_slots[1].shape[4]
    KEYS: gl.constexpr = 64 if BLOCK_N == 96 else BLOCK_N
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    OUT_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    REST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST, 16])
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, OUT_LAYOUT, 2)
    P_REST_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, REST_LAYOUT, 2)
    NEXT: gl.constexpr = 2 if RING else 1
    TWO_DIAGONALS: gl.constexpr = CAUSAL and BLOCK_N == 96 and C == 1
    dtype: gl.constexpr = q_slots[0].dtype

    zeros = (gl.zeros([64, KEYS], gl.float32, S_LAYOUT),)
    if BLOCK_N != KEYS:
        KEYS_REST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N - KEYS, 16])
        zeros += (gl.zeros([64, BLOCK_N - KEYS], gl.float32, KEYS_REST_LAYOUT),)
    if BLOCK_N == 96:
        max_seqlen_q, max_seqlen_k, num_heads_q = hidden(max_seqlen_q), hidden(max_seqlen_k), hidden(num_heads_q)
        sm_scale = hidden(sm_scale.to(gl.int32, bitcast=True)).to(gl.float32, bitcast=True)
    # Exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = gl.maximum(sm_scale * LOG2_E, 1e-30)
    step = 0
    heads = num_heads_q * batch
    row, head, tiles = tile_at(0, heads, max_seqlen_q, max_seqlen_k, BLOCK_M, BLOCK_N, CAUSAL, GROUP_ROUNDS)
    for i in range(tile_count(heads, max_seqlen_q, BLOCK_M, CAUSAL, GROUP_ROUNDS)):
        row += C * 64

        # Steps that only later consumers need. Waiting for them, too: or this consumer might arrive twice in one phase.
        if CAUSAL and BLOCK_M > BLOCK_N:
            visible = gl.minimum((row + 63) // BLOCK_N + 1, tiles)
            for _ in range(visible, tiles):
                slot = step % STAGES
                mbarrier.wait(full.index(slot), (step // STAGES) & 1)
                mbarrier.arrive(empty.index(slot))
                step += 1
            tiles = visible

        # Step 0
        mbarrier.wait(q_full.index(C), i & 1)
        q = rows_at(q_slots[0], C, 64), rows_at(q_slots[1], C, 64)
        if Q_IN_REGISTERS:
            if BLOCK_N == 96:
                q = q[0], q[1].load(Q_LAYOUT)
            else:
                q = q[0].load(Q_LAYOUT), q[1].load(Q_LAYOUT)
                if not OUT_IN_Q:
                    mbarrier.arrive(q_empty.index(C))
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        s = waited(all_scores(q, k_slots, slot, zeros), 0)
        mbarrier.arrive(empty.index(slot))
        step += 1
        key = (tiles - 1) * BLOCK_N
        if not CAUSAL:  # hide that it is the same for every tile, or the mask is kept in registers all the time
            key = hidden(key)
        if CAUSAL or key + BLOCK_N > max_seqlen_k:
            s = all_masked(s, row, key, max_seqlen_k, CAUSAL)
        row_max = row_maximum(s)
        if TWO_DIAGONALS:
            row_max = gl.maximum(row_max, LOWEST)
        p = [gl.exp2(x * scale - column(row_max * scale, x)) for x in s]
        row_sum = row_total(p)
        p = [gl.convert_layout(x.to(dtype), P_LAYOUT) for x in p]
        out = gl.zeros([64, FIRST], gl.float32, OUT_LAYOUT), gl.zeros([64, REST], gl.float32, REST_LAYOUT)
        if EARLY_WAIT:
            mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1)

        # Steps 1 to tiles - 1
        diagonal = step
        first = step
        last = step + tiles - 1
        if RING:
            last += tiles - 1
        if TWO_DIAGONALS:
            first = gl.minimum(diagonal + 1, last)
            for step in range(diagonal, first):
                p, out, row_max, row_sum = one_step(
                    step, q, k_slots, v_slots, full, empty, zeros, p, out, row_max, row_sum, scale,
                    row, key - BLOCK_N, max_seqlen_k, STAGES, RING, EARLY_WAIT, True,
                )  # fmt: skip
        for step in range(first, last, NEXT):
            p, out, row_max, row_sum = one_step(
                step, q, k_slots, v_slots, full, empty, zeros, p, out, row_max, row_sum, scale,
                row, key, max_seqlen_k, STAGES, RING, EARLY_WAIT, False,
            )  # fmt: skip
        step = last

        # Step `tiles`
        if not OUT_IN_Q and (BLOCK_N == 96 or not Q_IN_REGISTERS):
            mbarrier.arrive(q_empty.index(C))
        slot = step % STAGES
        if not EARLY_WAIT:
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        out = all_weighted(p, v_slots, slot, out, P_REST_LAYOUT)
        # Where the next tile is takes a few divisions: they hide here.
        next_row, next_head, next_tiles = tile_at(
            i + 1, heads, max_seqlen_q, max_seqlen_k, BLOCK_M, BLOCK_N, CAUSAL, GROUP_ROUNDS
        )
        b = head // num_heads_q
        out = waited(out, 0)
        mbarrier.arrive(empty.index(slot))
        step += 1

        if store_lse != 0:
            rows = row + gl.arange(0, 64, gl.SliceLayout(1, S_LAYOUT))
            head_row = head.to(gl.int64) * max_seqlen_q
            lse = (row_max * scale + gl.log2(row_sum)) * LN_2
            gl.store(L + head_row + rows, lse, mask=rows < max_seqlen_q)
        factor = 1.0 / row_sum
        tma.store_wait(0)
        c = hidden(C) if BLOCK_N == 96 else C
        out_slots[0].index(c).reshape([64, FIRST]).store(scaled(out[0], factor).to(dtype))
        out_slots[1].index(c).reshape([64, REST]).store(scaled(out[1], factor).to(dtype))
        fence_async_shared()
        head -= b * num_heads_q
        tma.async_copy_shared_to_global(out_tensors[0], [b, head, row, 0], out_slots[0].index(c))
        tma.async_copy_shared_to_global(out_tensors[1], [b, head, row, FIRST], out_slots[1].index(c))
        if OUT_IN_Q:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(C))
        row, head, tiles = next_row, next_head, next_tiles
    tma.store_wait(0)


@gluon.jit
def slots(tensors, COUNT: gl.constexpr):
    """Shared memory for so many boxes of both parts of a tensor."""
    ROWS: gl.constexpr = tensors[0].block_shape[2]
    FIRST: gl.constexpr = tensors[0].block_shape[3]
    REST: gl.constexpr = tensors[1].block_shape[3]
    first = gl.allocate_shared_memory(tensors[0].dtype, [COUNT, 1, 1, ROWS, FIRST], tensors[0].layout)
    rest = gl.allocate_shared_memory(tensors[1].dtype, [COUNT, 1, 1, ROWS, REST], tensors[1].layout)
    return first, rest


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
    BLOCK_N: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    CAUSAL: gl.constexpr,
    GROUP_ROUNDS: gl.constexpr,
    OUT_IN_Q: gl.constexpr,
    Q_IN_REGISTERS: gl.constexpr,
    EARLY_WAIT: gl.constexpr,
    RING: gl.constexpr,
):
    """Grid and arguments as attn_fwd_hopper's, with BLOCK_DMODEL the sum of two powers of two.

    Q, K, V, Out: boxes of as many columns as the first, QRest, KRest, VRest, OutRest: of as many as the second, and of
    as many rows. Each pair is of one tensor. A BLOCK_N of 96 has boxes of 32 rows of K and V, and three consumers.
    STAGES of a RING: keys or values of one step.
    """
    REGISTERS: gl.constexpr = 160 if CONSUMERS == 3 else 240
    PRODUCER_REGISTERS: gl.constexpr = 32 if CONSUMERS == 3 else 24
    BOXES: gl.constexpr = BLOCK_N // K.block_shape[2]
    gl.static_assert(BLOCK_N != 96 or CONSUMERS == 3, "where the diagonal lies")
    gl.static_assert(not (RING and CAUSAL) or CONSUMERS * 64 <= BLOCK_N, "no steps of a ring are let pass")
    q_slots = slots((Q, QRest), CONSUMERS)
    k_slots = slots((K, KRest), STAGES * BOXES)
    v_slots = k_slots if RING else slots((V, VRest), STAGES * BOXES)
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

    places = q_slots, k_slots, v_slots
    barriers = q_full, q_empty, full, empty
    sizes = num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batch
    # Each list is written out: the compiler takes constants for constants only in a tuple that stands in the call.
    if CONSUMERS == 1:
        gl.warp_specialize([
            (consumer, ((Out, OutRest), L, out_slots, places, barriers, store_lse, sm_scale, sizes, 0, BLOCK_N,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, RING)),
            (producer, ((Q, QRest), (K, KRest), (V, VRest), places, barriers, sizes,
                        BLOCK_N, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, RING)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    elif CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, ((Out, OutRest), L, out_slots, places, barriers, store_lse, sm_scale, sizes, 0, BLOCK_N,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, RING)),
            (consumer, ((Out, OutRest), L, out_slots, places, barriers, store_lse, sm_scale, sizes, 1, BLOCK_N,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, RING)),
            (producer, ((Q, QRest), (K, KRest), (V, VRest), places, barriers, sizes,
                        BLOCK_N, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, RING)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, ((Out, OutRest), L, out_slots, places, barriers, store_lse, sm_scale, sizes, 0, BLOCK_N,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, RING)),
            (consumer, ((Out, OutRest), L, out_slots, places, barriers, store_lse, sm_scale, sizes, 1, BLOCK_N,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, RING)),
            (consumer, ((Out, OutRest), L, out_slots, places, barriers, store_lse, sm_scale, sizes, 2, BLOCK_N,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, RING)),
            (producer, ((Q, QRest), (K, KRest), (V, VRest), places, barriers, sizes,
                        BLOCK_N, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, RING)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
