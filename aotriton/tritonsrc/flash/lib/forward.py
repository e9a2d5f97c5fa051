"""Attention forward for Hopper: a producer warp and one to three consumer warpgroups turn Q, K and V into Out and L.

Q, K, V and Out are tuples of the parts of their columns (hopper_column_parts): a product with each, and a barrier
counts the bytes of all.

Heads that share keys and values are packed: 2 ** log2_packed of them, next to each other, count as one, whose row r is
that of its head r % 2 ** log2_packed at position r >> log2_packed. In shared memory, rows of Q and Out lie in this
order, as the tensor map brings them.

A tile is BLOCK_M = 64 * CONSUMERS rows of one packed head, 64 for each consumer, against all the keys that they see,
taken BLOCK_N at a time from the last to the first. Step i of a tile with n key tiles multiplies Q by key tile i,
counted from the last, and the P of step i - 1 by the values of its key tile. A program has tile after tile, and what
would be step n of one, which has values only, is step 0 of the next one, which has keys only. What a step needs lies in
one of STAGES slots. A consumer:

    step 1     S = Q K(1),  Out += P(0) V(0)         wait for S     P(1) = softmax(S)       wait for Out, rescale it
    ...
    step n     Out += P(n-1) V(n-1),  S = Q' K'(0)   wait for Out   Out / row sum → shared → global memory
                                                     wait for S     mask it                 P'(0) = softmax(S)

So the end of a tile lies beside the first product of the next one (Q', K'), if Q' can be there by then: where Q has two
places (Q_SLOTS) or is in registers. Where it has one, that product comes behind Out. The last tile's is of whatever
lies there, and nobody's.

Only step 0 needs a mask: it holds the end of the keys, and, as the positions of 64 rows that start at a multiple of 64
cross the diagonal in one key tile of 64 keys or more, all of the diagonal. Causal, a consumer lets the steps pass that
only later consumers need; the first one it needs is its step 0.

Who waits for whom. Each arrow is an mbarrier, from who arrives, with the count or the bytes of a phase, to who waits:

    producer warp                                           consumer warpgroup c
    ─────────────                                           ────────────────────
    loads Q, the 64 rows of c     ── q_full[c], bytes ───▶  step 0
    loads K(i) and V(i-1)         ── full[slot], bytes ──▶  step i
    loads step i + STAGES         ◀─ empty[slot], each c ─  after S and Out of step i

A place of Q is free when the consumers have given back the slot of the last keys that its tile met, or of the first
ones if Q was in registers by then. Not before the product that takes it from there: a warp group's other warps may
still be loading it.

Consumers drift apart, so that the softmax of one runs beside the products of another. With TURNS they are kept apart:
each waits for its turn before it issues the products of a step, S and Out, and then hands it to the next consumer. All
take as many turns a tile, one for each key tile; so a consumer takes and hands on those of steps that it lets pass.
Without, they never wait for each other. The last values of a tile take no turn of their own.

With a RING a slot holds the keys or the values of one step, not both, and each has a phase of its own. Slots are filled
in the order K(0), K(1), V(0), K(2), V(1), ..., V(n-1), and a consumer gives the keys back before the softmax: three
slots do for what takes four in pairs. A consumer that lets m steps pass lets pass 2 m - 1 slots, and behind the keys of
its own step 0 the values before them.

Tensor memory accesses (TMA) read zeros beyond the end of a tensor and write nothing there.

Tuned: CONSUMERS, BLOCK_N (64 or more), STAGES, more than the steps that a consumer lets pass, GROUP_ROUNDS (`work_at`),
Q_SLOTS, Q_IN_REGISTERS, OUT_PIECES (Out is staged whole, or one half of its columns after the other, which leaves room
for another stage), TURNS and RING.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.forward_scheduler import schedule_of, work_at
from aotriton.tritonsrc.flash.lib.hopper_column_parts import (
    bytes_of,
    finished,
    load,
    places,
    scores,
    slots,
)
from aotriton.tritonsrc.flash.lib.mask import visible
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.pipeline import (
    acquire,
    await_step,
    barriers,
    hand_turn,
    init_all,
    phase_of,
    release,
    skip,
    slot_of,
    take_turn,
)
from aotriton.tritonsrc.flash.lib.softmax import exponentials, first_base, raised, rescaled, top
from aotriton.tritonsrc.flash.lib.turned_values import (
    BELOW,
    depth_of,
    in_order,
    load_values,
    operand_of,
    raised_below,
    scales_of,
    weighted_values,
    zero_sums,
)

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)


@bundle
class Call:
    """What the warps of a program share: the parts of tensors and of slots, barriers, numbers and constants."""

    out_tensors: gl.tuple
    L: gl.tensor
    q_tensors: gl.tuple
    k_tensors: gl.tuple
    v_tensors: gl.tuple
    q_slots: gl.tuple
    k_slots: gl.tuple
    v_slots: gl.tuple
    out_slots: gl.tuple
    q_full: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    store_lse: gl.tensor
    sm_scale: gl.tensor
    num_heads_q: gl.tensor
    num_heads_k: gl.tensor
    max_seqlen_q: gl.tensor
    max_seqlen_k: gl.tensor
    batch: gl.tensor
    log2_packed: gl.tensor
    descales: gl.tuple
    CONSUMERS: gl.constexpr
    STAGES: gl.constexpr
    CAUSAL: gl.constexpr
    GROUP_ROUNDS: gl.constexpr
    Q_SLOTS: gl.constexpr
    Q_IN_REGISTERS: gl.constexpr
    OUT_PIECES: gl.constexpr
    TURNS: gl.constexpr
    RING: gl.constexpr


@gluon.jit
def masked(s, row, key, max_seqlen_k, log2_packed, CAUSAL: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores, minus infinity where a query row must not see the key. `row`, `key`: what s[0, 0] belongs to."""
    keys = gl.expand_dims(key + gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    rows = gl.expand_dims(row + gl.arange(0, s.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
    return gl.where(visible(keys, rows >> log2_packed, max_seqlen_k, CAUSAL), s, float("-inf"))


@gluon.jit
def producer(call):
    """The producer warp: loads Q, K and V of all tiles."""
    q_tensors, k_tensors, v_tensors = call.q_tensors, call.k_tensors, call.v_tensors
    q_slots, k_slots, v_slots = call.q_slots, call.k_slots, call.v_slots
    q_full, full, empty, log2_packed = call.q_full, call.full, call.empty, call.log2_packed
    CONSUMERS: gl.constexpr = call.CONSUMERS
    STAGES: gl.constexpr = call.STAGES
    CAUSAL: gl.constexpr = call.CAUSAL
    Q_SLOTS: gl.constexpr = call.Q_SLOTS
    RING: gl.constexpr = call.RING
    BLOCK_M: gl.constexpr = CONSUMERS * 64
    BLOCK_N: gl.constexpr = k_tensors[0].block_shape[2]
    FIRST: gl.constexpr = q_tensors[0].block_shape[4]
    Q_BYTES: gl.constexpr = bytes_of(q_tensors)
    KV_BYTES: gl.constexpr = bytes_of(k_tensors)
    MOST_PASSED: gl.constexpr = (BLOCK_M - 1) // BLOCK_N if CAUSAL else 0
    heads = opaque(call.num_heads_q) >> log2_packed
    rows = opaque(call.max_seqlen_q) << log2_packed  # of a packed head
    max_seqlen_k = opaque(call.max_seqlen_k)
    schedule = schedule_of(heads * call.batch, rows, BLOCK_M, CAUSAL, call.GROUP_ROUNDS)
    group, round, rank, row, head, tiles = work_at(
        schedule, 0, 0, gl.program_id(0), max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL
    )  # fmt: skip
    step = 0
    count = 0  # of tiles
    batch_before = 0
    head_before = 0
    used = 0  # the step with which Q's place was given back by the tile before, and, with two places, by the one before
    used_before = 0
    while tiles > 0:
        b = head // heads
        head -= b * heads
        head_k = head // (heads // call.num_heads_k)
        last = (tiles - 1) * BLOCK_N

        # The last values of the tile before, but in a ring, where they have a slot of their own, and the first keys
        slot = acquire(empty, step, STAGES)
        if RING:
            mbarrier.expect(full.index(slot), KV_BYTES)
        else:
            behind = count > 0
            mbarrier.expect(full.index(slot), 2 * KV_BYTES, pred=behind)
            mbarrier.expect(full.index(slot), KV_BYTES, pred=not behind)
            load_values(v_tensors, batch_before, head_before, 0, full.index(slot), places(v_slots, slot), pred=behind)
        load(k_tensors, b, head_k, last, full.index(slot), places(k_slots, slot))

        freed = used
        if Q_SLOTS == 2:
            freed = used_before
            used_before = used
        # Nothing to wait for where that slot has been loaded again.
        not_yet = (count >= Q_SLOTS) & (step < freed + STAGES)
        mbarrier.wait(empty.index(slot_of(freed, STAGES)), phase_of(freed, STAGES), pred=not_yet)
        met = tiles - 1
        if call.Q_IN_REGISTERS:
            met = gl.minimum(met, MOST_PASSED)
        if RING:
            met = gl.maximum(2 * met - 1, 0)
        used = step + met
        for c in gl.static_range(CONSUMERS):
            q_slot = count % Q_SLOTS * CONSUMERS + c
            mbarrier.expect(q_full.index(q_slot), Q_BYTES)
            position = (row + c * 64) >> log2_packed
            for part in gl.static_range(len(q_tensors)):
                tma.async_copy_global_to_shared(
                    q_tensors[part], [b, head, position, 0, part * FIRST], q_full.index(q_slot),
                    q_slots[part].index(q_slot),
                )  # fmt: skip
        step += 1

        for key in range(last, 0, -BLOCK_N):  # values from `key` on, and the keys before them
            slot = acquire(empty, step, STAGES)
            mbarrier.expect(full.index(slot), KV_BYTES if RING else 2 * KV_BYTES)
            load(k_tensors, b, head_k, key - BLOCK_N, full.index(slot), places(k_slots, slot))
            if RING:
                step += 1
                slot = acquire(empty, step, STAGES)
                mbarrier.expect(full.index(slot), KV_BYTES)
            load_values(v_tensors, b, head_k, key, full.index(slot), places(v_slots, slot))
            step += 1
        if RING:
            slot = acquire(empty, step, STAGES)
            mbarrier.expect(full.index(slot), KV_BYTES)
            load_values(v_tensors, b, head_k, 0, full.index(slot), places(v_slots, slot))
            step += 1
        else:
            batch_before = b
            head_before = head_k

        count += 1
        group, round, rank, row, head, tiles = work_at(
        schedule, group, round + 1, rank, max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL
        )  # fmt: skip
    if not RING:
        slot = acquire(empty, step, STAGES)
        mbarrier.expect(full.index(slot), KV_BYTES)
        load_values(v_tensors, batch_before, head_before, 0, full.index(slot), places(v_slots, slot))


@gluon.jit
def store_rows(L, value, row, head, rows, log2_packed, LAYOUT: gl.constexpr):
    """A number for each of 64 rows from `row` on of a packed head, of so many, to L, which has head after head."""
    row += gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    packed = row - (row >> log2_packed << log2_packed)
    first = head.to(gl.int64) * rows  # of the packed head
    gl.store(L + first + packed * (rows >> log2_packed) + (row >> log2_packed), value, mask=row < rows)


@gluon.jit
def own_rows(q_slots, place):
    """The rows of Q in a place, by parts."""
    return [of_part.index(place).reshape([64, of_part.shape[5]]) for of_part in q_slots]


@gluon.jit
def begin(call, q, step, q_slot, q_phase, row, tiles, C: gl.constexpr):
    """Begin S of step 0 of a tile, which is there if it has key tiles: S, the step, how many key tiles this consumer
    sees, and how many it let pass. `step` is that of the tile's first keys; what was in it is not given back.
    """
    q_full, full, empty = call.q_full, call.full, call.empty
    CONSUMERS: gl.constexpr = call.CONSUMERS
    STAGES: gl.constexpr = call.STAGES
    TURNS: gl.constexpr = call.TURNS
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    DEPTH: gl.constexpr = depth_of(call.k_slots[0].dtype)
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, DEPTH])
    there = tiles > 0
    passed = 0
    if call.CAUSAL and CONSUMERS * 64 > BLOCK_N:  # steps that only later consumers need
        visible = gl.minimum(((row + 63) >> call.log2_packed) // BLOCK_N + 1, tiles)
        passed = tiles - visible
        tiles = visible
        if call.RING:  # but the last values, which lie behind the keys of this consumer's step 0
            for number in range(0, 2 * passed - 1):
                skip(full, empty, step, STAGES)
                if TURNS:  # noqa: SIM102 (known when compiled, as the next is not)
                    if number & 1 == 0:
                        step = hand_turn(take_turn(step, C, TURNS), C, CONSUMERS, TURNS)
                step += 1
        else:
            for number in range(0, passed):
                if number > 0:
                    skip(full, empty, step, STAGES)
                step = hand_turn(take_turn(step, C, TURNS), C, CONSUMERS, TURNS)
                step += 1
    mbarrier.wait(q_full.index(q_slot), q_phase, pred=there)
    await_step(full, step, STAGES, pred=there)
    if TURNS:  # noqa: SIM102
        if there:
            step = take_turn(step, C, TURNS)
    s = scores(q, call.k_slots, slot_of(step, STAGES), gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT))
    if TURNS:  # noqa: SIM102
        if there:
            step = hand_turn(step, C, CONSUMERS, TURNS)
    return s, step, tiles, passed


@gluon.jit
def end_of_first(full, empty, step, passed, STAGES: gl.constexpr, MAY_PASS: gl.constexpr, RING: gl.constexpr):
    """Behind S of step 0: gives its keys back, lets pass what comes with them, and returns the next step."""
    release(empty, step, STAGES)
    step += 1
    if RING and MAY_PASS:  # noqa: SIM102
        if passed > 0:
            skip(full, empty, step, STAGES)
            step += 1
    return step


@gluon.jit
def scaled(x, factor):
    """x with each row multiplied by its factor."""
    return x * gl.expand_dims(gl.convert_layout(factor, gl.SliceLayout(1, x.type.layout)), 1)


@gluon.jit
def in_pieces(x, PIECES: gl.constexpr):
    """x, or the two halves of its columns."""
    if PIECES == 1:
        return (x,)
    else:
        HALF: gl.constexpr = x.shape[1] // 2
        LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
        first, second = x.reshape([x.shape[0], 2, HALF]).permute((0, 2, 1)).split()
        return (
            gl.convert_layout(first, LAYOUT, assert_trivial=True),
            gl.convert_layout(second, LAYOUT, assert_trivial=True),
        )


@gluon.jit
def consumer(call, C: gl.constexpr):
    """Consumer C of a program: the 64 rows of each tile from row 64 * C."""
    q_slots, k_slots, v_slots, out_slots = call.q_slots, call.k_slots, call.v_slots, call.out_slots
    q_full, full, empty, log2_packed = call.q_full, call.full, call.empty, call.log2_packed
    CONSUMERS: gl.constexpr = call.CONSUMERS
    STAGES: gl.constexpr = call.STAGES
    CAUSAL: gl.constexpr = call.CAUSAL
    Q_SLOTS: gl.constexpr = call.Q_SLOTS
    Q_IN_REGISTERS: gl.constexpr = call.Q_IN_REGISTERS
    OUT_PIECES: gl.constexpr = call.OUT_PIECES
    TURNS: gl.constexpr = call.TURNS
    RING: gl.constexpr = call.RING
    BLOCK_M: gl.constexpr = CONSUMERS * 64
    BLOCK_N: gl.constexpr = k_slots[0].shape[3]
    FIRST: gl.constexpr = k_slots[0].shape[4]
    DEPTH: gl.constexpr = depth_of(k_slots[0].dtype)
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, DEPTH])
    OUT_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, DEPTH])
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, DEPTH // 8)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, OUT_LAYOUT, DEPTH // 8)
    EACH: gl.constexpr = 2 if RING else 1  # slots a step
    AHEAD: gl.constexpr = Q_SLOTS == 2 or Q_IN_REGISTERS  # of the end of a tile begins the next one's step 0
    MAY_PASS: gl.constexpr = CAUSAL and BLOCK_M > BLOCK_N
    SCALED: gl.constexpr = len(call.descales) > 0
    dtype: gl.constexpr = q_slots[0].dtype
    out_dtype: gl.constexpr = call.out_tensors[0].dtype

    heads = opaque(call.num_heads_q) >> log2_packed
    rows = opaque(call.max_seqlen_q) << log2_packed  # of a packed head
    max_seqlen_k = opaque(call.max_seqlen_k)
    zero = 0
    if SCALED:
        zero = opaque(call.num_heads_k) >> 31  # the compiler does not know that it is
    # Exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = gl.maximum(opaque(call.sm_scale) * LOG2_E, 1e-30)
    no_s = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
    schedule = schedule_of(heads * call.batch, rows, BLOCK_M, CAUSAL, call.GROUP_ROUNDS)
    group, round, rank, row, head, tiles = work_at(
        schedule, 0, 0, gl.program_id(0), max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL
    )  # fmt: skip
    row += C * 64
    step = 0
    count = 0  # of tiles
    if C == CONSUMERS - 1:
        step = hand_turn(step, C, CONSUMERS, TURNS)

    # Step 0 of the first tile
    await_step(full, 0, STAGES)
    mbarrier.wait(q_full.index(C), 0)
    first_q = own_rows(q_slots, C)
    if Q_IN_REGISTERS:
        q = [q_part.load(Q_LAYOUT) for q_part in first_q]
        first_q = q
    s, step, tiles, passed = begin(call, first_q, step, C, 0, row, tiles, C)
    if SCALED:
        scale, of_values = scales_of(call, head, heads)
    s = warpgroup_mma_wait(0, deps=[s])
    if MAY_PASS and not RING:  # noqa: SIM102
        if passed > 0:
            release(empty, 0, STAGES)
    step = end_of_first(full, empty, step, passed, STAGES, MAY_PASS, RING)
    group, round, rank, next_row, next_head, next_tiles = work_at(
        schedule, group, round + 1, rank, max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL
    )  # fmt: skip

    while tiles > 0:
        if not Q_IN_REGISTERS:
            q = own_rows(q_slots, count % Q_SLOTS * CONSUMERS + C)
        key = (tiles - 1) * BLOCK_N
        if not CAUSAL:  # hide that it is the same for every tile, or the mask is kept in registers all the time
            key = opaque(key)
        if CAUSAL or key + BLOCK_N > max_seqlen_k:
            s = masked(s, row, key, max_seqlen_k, log2_packed, CAUSAL, S_LAYOUT)
        base = first_base(s, scale)
        if SCALED:
            base -= BELOW
        p, row_sum = exponentials(s, base, scale)
        p = in_order(p, dtype, P_LAYOUT)
        out = zero_sums(k_slots)

        # Steps 1 to tiles - 1
        first = step
        last = step + EACH * (tiles - 1)
        for step in range(first, last, EACH):
            await_step(full, step, STAGES)
            operand = operand_of(p, zero, dtype, P_LAYOUT)
            row = take_turn(row, C, TURNS)
            s = scores(q, k_slots, slot_of(step, STAGES), no_s)
            behind = step
            if RING:
                behind = step + 1
                await_step(full, behind, STAGES)
            out_next = weighted_values(operand, v_slots, slot_of(behind, STAGES), out)
            row = hand_turn(row, C, CONSUMERS, TURNS)
            s = warpgroup_mma_wait(len(out), deps=[s])
            if RING:
                release(empty, step, STAGES)
            base_before = base
            base = raised_below(base, top(s, scale)) if SCALED else raised(base, top(s, scale))
            correction = gl.exp2(base_before - base)
            p_next, sums = exponentials(s, base, scale)
            row_sum = row_sum * correction + sums
            p_next = in_order(p_next, dtype, P_LAYOUT)
            out = finished(out_next)
            release(empty, behind, STAGES)
            out = [rescaled(out_part, correction) for out_part in out]
            p = p_next
        step = last

        # The last values, and step 0 of the next tile
        count += 1
        q_slot = count % Q_SLOTS * CONSUMERS + C
        q_phase = count // Q_SLOTS & 1
        next_row += C * 64
        next_q = own_rows(q_slots, q_slot)
        if Q_IN_REGISTERS:  # before products are under way: what is loaded meanwhile makes them wait for each other
            mbarrier.wait(q_full.index(q_slot), q_phase, pred=next_tiles > 0)
            next_q = [q_part.load(Q_LAYOUT) for q_part in next_q]
        behind = step
        await_step(full, behind, STAGES)
        out = weighted_values(operand_of(p, zero, dtype, P_LAYOUT), v_slots, slot_of(behind, STAGES), out)
        if RING:
            step += 1
        if AHEAD:
            s, step, next_tiles, passed = begin(call, next_q, step, q_slot, q_phase, next_row, next_tiles, C)
        # Where the tile after the next is takes a few divisions: they hide here.
        group, round, rank, later_row, later_head, later_tiles = work_at(
        schedule, group, round + 1, rank, max_seqlen_k, log2_packed, BLOCK_M, BLOCK_N, CAUSAL
        )  # fmt: skip
        if SCALED:
            next_scale, next_of_values = scales_of(call, next_head, heads)
        b = head // heads
        out = finished(out, len(next_q) if AHEAD else 0)
        if RING:
            release(empty, behind, STAGES)

        # What was taken by lanes is put together.
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, S_LAYOUT))
        base = gl.convert_layout(gl.max(base, 1), gl.SliceLayout(1, S_LAYOUT))
        if call.store_lse != 0:
            store_rows(call.L, (base + gl.log2(row_sum)) * LN_2, row, head, rows, log2_packed, S_LAYOUT)
        factor = 1.0 / row_sum
        if SCALED:
            factor *= of_values
            scale, of_values = next_scale, next_of_values
        head -= b * heads
        pieces = [in_pieces(scaled(out_part, factor).to(out_dtype), OUT_PIECES) for out_part in out]
        for piece in gl.static_range(OUT_PIECES):
            tma.store_wait(0)
            for part in gl.static_range(len(out)):
                staged = out_slots[part].index(C).reshape([64, out_slots[part].shape[5]])
                staged.store(pieces[part][piece])
            fence_async_shared()
            for part in gl.static_range(len(out)):
                column = part * FIRST + piece * out_slots[part].shape[5]
                origin = [b, head, row >> log2_packed, 0, column]
                tma.async_copy_shared_to_global(call.out_tensors[part], origin, out_slots[part].index(C))

        if not AHEAD:
            s, step, next_tiles, passed = begin(call, next_q, step, q_slot, q_phase, next_row, next_tiles, C)
        s = warpgroup_mma_wait(0, deps=[s])
        if MAY_PASS and not RING:  # noqa: SIM102
            if passed > 0:
                release(empty, behind, STAGES)
        step = end_of_first(full, empty, step, passed, STAGES, MAY_PASS, RING)
        row, head, tiles = next_row, next_head, next_tiles
        next_row, next_head, next_tiles = later_row, later_head, later_tiles
        if Q_IN_REGISTERS:
            q = next_q
    tma.store_wait(0)


@gluon.jit
def forward(
    Q, K, V, Out, L, store_lse, sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batch, log2_packed,
    descales,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, GROUP_ROUNDS: gl.constexpr,
    Q_SLOTS: gl.constexpr, Q_IN_REGISTERS: gl.constexpr, OUT_PIECES: gl.constexpr, TURNS: gl.constexpr,
    RING: gl.constexpr,
):  # fmt: skip
    """The program of attn_fwd_hopper and attn_fwd_hopper_slim, whose arguments these are, with tuples of parts."""
    MOST_PASSED: gl.constexpr = (CONSUMERS * 64 - 1) // K[0].block_shape[2] if CAUSAL else 0
    gl.static_assert(MOST_PASSED * (2 if RING else 1) < STAGES, "a consumer lets more steps pass than there are slots")
    REGISTERS: gl.constexpr = 160 if CONSUMERS == 3 else 240
    PRODUCER_REGISTERS: gl.constexpr = 32 if CONSUMERS == 3 else 24
    q_slots = slots(Q, Q_SLOTS * CONSUMERS)
    k_slots = slots(K, STAGES)
    v_slots = k_slots if RING else slots(V, STAGES)
    out_slots = slots(Out, CONSUMERS)
    q_full = barriers(Q_SLOTS * CONSUMERS)
    full = barriers(STAGES)
    empty = barriers(STAGES)
    init_all(q_full, 1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=CONSUMERS)
    call = Call(
        Out, L, Q, K, V, q_slots, k_slots, v_slots, out_slots, q_full, full, empty,
        store_lse, sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, batch, log2_packed, descales,
        CONSUMERS, STAGES, CAUSAL, GROUP_ROUNDS, Q_SLOTS, Q_IN_REGISTERS, OUT_PIECES, TURNS, RING,
    )  # fmt: skip
    if CONSUMERS == 1:
        gl.warp_specialize([(consumer, (call, 0)), (producer, (call,))], [1], [PRODUCER_REGISTERS])
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [(consumer, (call, 0)), (consumer, (call, 1)), (producer, (call,))],
            [4, 1], [REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [(consumer, (call, 0)), (consumer, (call, 1)), (consumer, (call, 2)), (producer, (call,))],
            [4, 4, 1], [REGISTERS, REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
