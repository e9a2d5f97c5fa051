"""Attention forward for Hopper: a producer warp and one to three consumer warpgroups turn Q, K and V into Out and L.

Q, K, V and Out are tuples of the parts of their columns (hopper_column_parts): a product with each, and a barrier
counts the bytes of all.

Heads that share keys and values are packed: 2 ** log2_packed of them, next to each other, count as one, whose row r is
that of its head r % 2 ** log2_packed at position r >> log2_packed. In shared memory, rows of Q and Out lie in this
order, as the tensor map brings them.

A tile is BLOCK_M = 64 * CONSUMERS rows of one packed head, 64 for each consumer, against all the keys that they see,
taken BLOCK_N at a time from the last to the first. Step i of a tile with n key tiles multiplies Q by key tile i,
counted from the last, and the P of step i - 1 by the values of its key tile; so step 0 has keys only and step n values
only. What a step needs lies in one of STAGES slots. A consumer:

    step 0     S = Q K(0)                                  mask S         P(0) = softmax(S)
    step 1     S = Q K(1),  Out += P(0) V(0)               wait for S     P(1) = softmax(S)   wait for Out, rescale it
    ...
    step n                  Out += P(n-1) V(n-1)           wait for Out   Out / row sum → shared → global memory

Only step 0 needs a mask: it holds the end of the keys, and, as the positions of 64 rows that start at a multiple of 64
cross the diagonal in one key tile of 64 keys or more, all of the diagonal. Causal, a consumer lets the steps pass that
only later consumers need; the first one it needs is its step 0.

Who waits for whom. Each arrow is an mbarrier, from who arrives, with the count or the bytes of a phase, to who waits:

    producer warp                                           consumer warpgroup c
    ─────────────                                           ────────────────────
    loads Q, the 64 rows of c     ── q_full[c], bytes ───▶  step 0
    loads the next tile's         ◀─── q_empty[c], 1 ─────  after the last S, or once Q is in registers, or, where Out
                                                            is staged in Q's place, once Out has left it
    loads K(i) and V(i-1)         ── full[slot], bytes ──▶  step i
    loads step i + STAGES         ◀─ empty[slot], each c ─  after S and Out of step i

Consumers drift apart, so that the softmax of one runs beside the products of another. With TURNS they are kept apart:
each waits for its turn before it issues the products of a step, S and Out, and then hands it to the next consumer. All
take as many turns a tile, one for each key tile; so a consumer takes and hands on those of steps that it lets pass.
Without, they never wait for each other.

With a RING a slot holds the keys or the values of one step, not both, and each has a phase of its own. Slots are filled
in the order K(0), K(1), V(0), K(2), V(1), ..., V(n-1), and a consumer gives the keys back before the softmax: three
slots do for what takes four in pairs. A consumer that lets m steps pass lets pass 2 m - 1 slots, and behind the keys of
its own step 0 the values before them.

Tensor memory accesses (TMA) read zeros beyond the end of a tensor and write nothing there.

Tuned: CONSUMERS, BLOCK_N (64 or more), STAGES, GROUP_ROUNDS (`tile_at`), OUT_IN_Q (stage Out in Q's place, which leaves
room for another stage), Q_IN_REGISTERS (frees Q's place early), EARLY_WAIT, TURNS and RING.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from aotriton.tritonsrc.flash.hopper_column_parts import (
    bytes_of,
    finished,
    load,
    places,
    scores,
    slots,
    weighted,
    zeros,
)

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def mask(s, row, key, max_seqlen_k, log2_packed, CAUSAL: gl.constexpr, LAYOUT: gl.constexpr):
    """Hide the scores of keys that a query row must not see. `row`, `key`: what s[0, 0] belongs to."""
    columns = gl.expand_dims(key + gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    if CAUSAL:  # this hides keys beyond the end, too: no row that is stored reaches them
        rows = gl.expand_dims(row + gl.arange(0, s.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
        s = gl.where(columns <= rows >> log2_packed, s, float("-inf"))
    else:
        s = gl.where(columns < max_seqlen_k, s, float("-inf"))
    return s


@gluon.jit
def heads_of_group(group, groups, size, heads):
    """`size`, but the last group has all heads that are left."""
    return gl.where(group == groups - 1, heads - group * size, size)


@gluon.jit
def dealt(group, round, place):
    """Which of a group's tiles the program at this place has in a round: see `tile_at`."""
    programs = gl.num_programs(0)
    place = gl.where((group + round) % 2 == 1, programs - 1 - place, place)
    return round * programs + place


@gluon.jit
def tile_at(
    group, round, place, heads, rows, max_seqlen_k, log2_packed,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr, GROUP_ROUNDS: gl.constexpr,
):  # fmt: skip
    """This program's tile of a round of a group of heads, or its first one of the next group where that round has none
    for it: group, round, the program's place, first row, head (of all packed heads of the batch) and number of key
    tiles, which is 0 beyond the last tile.

    Tiles are dealt out in rounds, one to each place, and every second round goes through the places backwards. Full,
    all heads are one group, one after the other, and all tiles are alike. Causal, a group has the least heads that fill
    GROUP_ROUNDS rounds, whose keys and values should fit in the L2 cache, and the last group those that are left, too;
    its tiles are sorted, the longest first. So places have about the same to do in a group; what differs evens out over
    the groups: every second one is dealt out backwards, and behind it programs move on by three eighths of the places.
    """
    programs = gl.num_programs(0)
    blocks = gl.cdiv(rows, BLOCK_M)
    tile = dealt(group, round, place)
    if CAUSAL:
        gl.static_assert(GROUP_ROUNDS > 0, "causal tiles are dealt out by groups")
        size = gl.minimum(gl.cdiv(GROUP_ROUNDS * programs, blocks), heads)
        groups = heads // size
        past = (tile >= heads_of_group(group, groups, size, heads) * blocks).to(gl.int32)
        group += past
        round *= 1 - past
        place += past * (1 - group % 2) * (programs * 3 // 8)
        place = gl.where(place >= programs, place - programs, place)
        tile = dealt(group, round, place)
        of_group = heads_of_group(group, groups, size, heads)
        block = tile // of_group
        head = group * size + tile - block * of_group
        block = blocks - 1 - block
        keys = gl.minimum((block + 1) * BLOCK_M >> log2_packed, max_seqlen_k)
        beyond = group == groups
    else:
        head = tile // blocks
        block = tile - head * blocks
        keys = max_seqlen_k
        beyond = head >= heads
    return group, round, place, block * BLOCK_M, head, gl.where(beyond, 0, gl.cdiv(keys, BLOCK_N))


@gluon.jit
def producer(
    q_tensors, k_tensors, v_tensors, q_slots, k_slots, v_slots, q_full, q_empty, full, empty,
    heads, heads_k, rows, max_seqlen_k, batch, log2_packed,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, GROUP_ROUNDS: gl.constexpr, RING: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = CONSUMERS * 64
    BLOCK_N: gl.constexpr = k_tensors[0].block_shape[2]
    FIRST: gl.constexpr = q_tensors[0].block_shape[4]
    Q_BYTES: gl.constexpr = bytes_of(q_tensors)
    KV_BYTES: gl.constexpr = bytes_of(k_tensors)
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
        load(k_tensors, b, head_k, last, full.index(slot), places(k_slots, slot))
        for c in gl.static_range(CONSUMERS):
            mbarrier.wait(q_empty.index(c), phase ^ 1)
            mbarrier.expect(q_full.index(c), Q_BYTES)
            position = (row + c * 64) >> log2_packed
            for part in gl.static_range(len(q_tensors)):
                tma.async_copy_global_to_shared(
                    q_tensors[part], [b, head, position, 0, part * FIRST], q_full.index(c), q_slots[part].index(c)
                )
        step += 1

        for key in range(last, -BLOCK_N, -BLOCK_N):  # values from `key` on, and the keys before them
            if RING and key > 0:
                slot = step % STAGES
                mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
                mbarrier.expect(full.index(slot), KV_BYTES)
                load(k_tensors, b, head_k, key - BLOCK_N, full.index(slot), places(k_slots, slot))
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
                load(k_tensors, b, head_k, key - BLOCK_N, ready, places(k_slots, slot), pred=has_k)
            load(v_tensors, b, head_k, key, ready, places(v_slots, slot))
            step += 1

        phase ^= 1
        group, round, place, row, head, tiles = tile_at(
            group, round + 1, place, heads * batch, rows, max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL,
            GROUP_ROUNDS,
        )  # fmt: skip


@gluon.jit
def store_rows(L, value, row, head, rows, log2_packed, LAYOUT: gl.constexpr):
    """A number for each of 64 rows from `row` on of a packed head, of so many, to L, which has head after head."""
    row += gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    packed = row - (row >> log2_packed << log2_packed)
    first = head.to(gl.int64) * rows  # of the packed head
    gl.store(L + first + packed * (rows >> log2_packed) + (row >> log2_packed), value, mask=row < rows)


@gluon.jit
def softmax(s, row_max, row_sum, scale):
    """P, the new row maximum (unscaled) and sum, and the factor for what was summed before."""
    new_max = gl.maximum(row_max, gl.max(s, 1))
    scaled_max = new_max * scale
    correction = gl.exp2(row_max * scale - scaled_max)
    p = gl.exp2(s * scale - gl.expand_dims(scaled_max, 1))
    return p, new_max, row_sum * correction + gl.sum(p, 1), correction


@gluon.constexpr_function
def turn_of(what, c):
    """What "sync" or "arrive" is at the named barrier of consumer `c`'s turn: for it and for the one before, who hands
    it over. Triton counts its own barriers from 0.
    """
    return f"bar.{what} {9 + c}, 256; mov.b32 $0, $1;"


@gluon.jit
def take_turn(x, C: gl.constexpr, TURNS: gl.constexpr):
    """Wait until it is the turn of consumer C. Returns x."""
    if TURNS:
        line: gl.constexpr = turn_of("sync", C)
        x = gl.inline_asm_elementwise(line, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)
    return x


@gluon.jit
def hand_turn(x, C: gl.constexpr, CONSUMERS: gl.constexpr, TURNS: gl.constexpr):
    """It is the turn of the consumer behind C. Returns x."""
    if TURNS:
        line: gl.constexpr = turn_of("arrive", (C + 1) % CONSUMERS)
        x = gl.inline_asm_elementwise(line, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)
    return x


@gluon.jit
def let_pass(full, empty, step, STAGES: gl.constexpr):
    """Give back what a step brought, without a look at it."""
    slot = step % STAGES
    mbarrier.wait(full.index(slot), (step // STAGES) & 1)
    mbarrier.arrive(empty.index(slot))


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
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, OUT_LAYOUT, 2)
    EACH: gl.constexpr = 2 if RING else 1  # slots a step
    dtype: gl.constexpr = q_slots[0].dtype

    no_s = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
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
            passed = tiles - visible
            if RING:  # but the last values, which lie behind the keys of this consumer's step 0
                for number in range(0, 2 * passed - 1):
                    let_pass(full, empty, step, STAGES)
                    if TURNS:  # noqa: SIM102 (known when compiled, as the next is not)
                        if number % 2 == 0:
                            step = hand_turn(take_turn(step, C, TURNS), C, CONSUMERS, TURNS)
                    step += 1
            else:
                for _ in range(visible, tiles):
                    let_pass(full, empty, step, STAGES)
                    step = hand_turn(take_turn(step, C, TURNS), C, CONSUMERS, TURNS)
                    step += 1
            tiles = visible

        # Step 0
        mbarrier.wait(q_full.index(C), phase)
        q = [of_part.index(C).reshape([64, of_part.shape[5]]) for of_part in q_slots]
        if Q_IN_REGISTERS:
            q = [q_part.load(Q_LAYOUT) for q_part in q]
            if not OUT_IN_Q:
                mbarrier.arrive(q_empty.index(C))
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        step = take_turn(step, C, TURNS)
        s = scores(q, k_slots, slot, no_s)
        step = hand_turn(step, C, CONSUMERS, TURNS)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(empty.index(slot))
        step += 1
        if RING and CAUSAL and BLOCK_M > BLOCK_N:  # noqa: SIM102
            if passed > 0:
                let_pass(full, empty, step, STAGES)
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
        out = zeros(k_slots, 64)
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
            s = scores(q, k_slots, slot, no_s)
            v_slot = slot
            if RING:
                v_slot = (step + 1) % STAGES
                mbarrier.wait(full.index(v_slot), ((step + 1) // STAGES) & 1)
            out_next = weighted(p, v_slots, v_slot, out)
            row = hand_turn(row, C, CONSUMERS, TURNS)
            s = warpgroup_mma_wait(len(out), deps=[s])
            if RING:
                mbarrier.arrive(empty.index(slot))
            p_next, row_max, row_sum, correction = softmax(s, row_max, row_sum, scale)
            p_next = gl.convert_layout(p_next.to(dtype), P_LAYOUT)
            if EARLY_WAIT:  # for the next step, here: it keeps the compiler from waiting for `out` above the softmax
                mbarrier.wait(full.index((step + EACH) % STAGES), ((step + EACH) // STAGES) & 1)
            out = finished(out_next)
            mbarrier.arrive(empty.index(v_slot))
            out = [scaled(out_part, correction) for out_part in out]
            p = p_next
        step = last

        # Step `tiles`
        if not OUT_IN_Q and not Q_IN_REGISTERS:
            mbarrier.arrive(q_empty.index(C))
        slot = step % STAGES
        if not EARLY_WAIT:
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        out = weighted(p, v_slots, slot, out)
        # Where the next tile is takes a few divisions: they hide here.
        group, round, place, next_row, next_head, tiles = tile_at(
            group, round + 1, place, heads * batch, rows, max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL,
            GROUP_ROUNDS,
        )  # fmt: skip
        b = head // heads
        out = finished(out)
        mbarrier.arrive(empty.index(slot))
        step += 1

        if store_lse != 0:
            store_rows(L, (row_max * scale + gl.log2(row_sum)) * LN_2, row, head, rows, log2_packed, S_LAYOUT)
        factor = 1.0 / row_sum
        tma.store_wait(0)
        for part in gl.static_range(len(out)):
            staged = out_slots[part].index(C).reshape([64, out_slots[part].shape[5]])
            staged.store(scaled(out[part], factor).to(dtype))
        fence_async_shared()
        head -= b * heads
        for part in gl.static_range(len(out)):
            origin = [b, head, row >> log2_packed, 0, part * FIRST]
            tma.async_copy_shared_to_global(out_tensors[part], origin, out_slots[part].index(C))
        if OUT_IN_Q:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(C))
        row, head = next_row, next_head
        phase ^= 1
    tma.store_wait(0)


@gluon.jit
def forward(
    Q, K, V, Out, L, store_lse, sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batch, log2_packed,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, GROUP_ROUNDS: gl.constexpr,
    OUT_IN_Q: gl.constexpr, Q_IN_REGISTERS: gl.constexpr, EARLY_WAIT: gl.constexpr, TURNS: gl.constexpr,
    RING: gl.constexpr,
):  # fmt: skip
    """The program of attn_fwd_hopper and attn_fwd_hopper_slim, whose arguments these are, with tuples of parts."""
    REGISTERS: gl.constexpr = 160 if CONSUMERS == 3 else 240
    PRODUCER_REGISTERS: gl.constexpr = 32 if CONSUMERS == 3 else 24
    q_slots = slots(Q, CONSUMERS)
    k_slots = slots(K, STAGES)
    v_slots = k_slots if RING else slots(V, STAGES)
    out_slots = q_slots if OUT_IN_Q else slots(Out, CONSUMERS)
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
            (consumer, (Out, L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        0, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (producer, (Q, K, V, q_slots, k_slots, v_slots, q_full, q_empty, full, empty,
                        heads, num_heads_k, rows, max_seqlen_k, batch, log2_packed,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, RING)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    elif CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (Out, L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        0, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (consumer, (Out, L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        1, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (producer, (Q, K, V, q_slots, k_slots, v_slots, q_full, q_empty, full, empty,
                        heads, num_heads_k, rows, max_seqlen_k, batch, log2_packed,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, RING)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (Out, L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        0, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (consumer, (Out, L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        1, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (consumer, (Out, L, q_slots, k_slots, v_slots, out_slots, q_full, q_empty, full, empty,
                        store_lse, scale, heads, rows, max_seqlen_k, batch, log2_packed,
                        2, CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, OUT_IN_Q, Q_IN_REGISTERS, EARLY_WAIT, TURNS, RING)),
            (producer, (Q, K, V, q_slots, k_slots, v_slots, q_full, q_empty, full, empty,
                        heads, num_heads_k, rows, max_seqlen_k, batch, log2_packed,
                        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, RING)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
