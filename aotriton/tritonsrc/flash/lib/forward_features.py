"""Attention forward for Hopper with features: bands, sinks, packed sequences and used lengths; ALiBi and dropout.

As `forward.py`, which describes the warps, the slots and who waits for whom, with these differences.

A row sees an interval of keys. Of a tile, the producer loads the key tiles that any of its rows sees, from the last to
the first: step i of a tile with n of them has the keys i and the values i - 1, and step n the last values and the
first keys of the program's next tile. A consumer lets those steps pass at both ends that its own 64 rows do not need,
and masks the scores of the key tiles that some of them see in part. Of a tile whose rows see no key there is one step,
all of it masked: every tile has one at least, and a consumer takes one at least.

    step              0      1      2      3      4      5 = 0   6 = 1
    producer          K0     K1,V0  K2,V1  K3,V2  K4,V3  K'0,V4  K'1,V'0
    consumer 0               S      S,Out  S,Out  S,Out  Out     S'
    consumer 1        S      S,Out  S,Out  S,Out  Out    S'      S',Out'

So the last values of one tile and the first keys of the next one may be steps apart, and a consumer holds the slot of
the former while it waits for the latter: STAGES must be more than the steps between.

Of packed sequences, tensor maps go through all rows: behind the end of a sequence lie the rows of the next one, and
behind the used rows anything. Their scores are masked, and the values, which may not be numbers, are cleared in shared
memory. Out goes to memory row by row where a tile reaches beyond the end of its sequence.

Images of the level FULL have ALiBi and dropout, whose numbers are `full_numbers` (lib/forward_full.py). Of packed
sequences each of their programs has one tile (`tile_of_sequences`).
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from aotriton.tritonsrc.flash.lib.band import inside, keys_of, visited
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import PACKED, SINKS, USED_K
from aotriton.tritonsrc.flash.lib.forward import in_pieces, own_rows, scaled
from aotriton.tritonsrc.flash.lib.forward_full import Full, dropped, full_of_call, full_of_tile, with_alibi
from aotriton.tritonsrc.flash.lib.forward_scheduler import Schedule, quotient, schedule_of, work_at
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
from aotriton.tritonsrc.flash.lib.noted_dropout import factor_of
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.packed_tiles import last_first, tile_of_sequences
from aotriton.tritonsrc.flash.lib.pipeline import (
    acquire,
    await_step,
    barriers,
    init_all,
    phase_of,
    release,
    skip,
    slot_of,
)
from aotriton.tritonsrc.flash.lib.sequence import Sequence, sequence_of
from aotriton.tritonsrc.flash.lib.softmax import exponentials, first_base, raised, rescaled, top

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)
LOWEST_BASE = gl.constexpr(-1e30)  # of a row that has seen no key yet: less than any score, and finite
FAR = gl.constexpr(1 << 30)
CLEARED = gl.constexpr(16)  # rows that are cleared at once
CACHED = gl.constexpr(1 << 25)  # bytes that the L2 cache holds, as models of time expect: CACHED of rules/work.py


@bundle
class Call:
    """What the warps of a program share: the parts of tensors and of slots, barriers, numbers and constants."""

    out_tensors: gl.tuple
    OutRows: gl.tensor
    stride_out_b: gl.tensor
    stride_out_h: gl.tensor
    stride_out_s: gl.tensor
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
    head_dim_v: gl.tensor
    sequences: gl.tensor
    log2_packed: gl.tensor
    lo: gl.tensor
    hi: gl.tensor
    features: gl.tensor
    Sinks: gl.tensor
    CuSeqlensQ: gl.tensor
    CuSeqlensK: gl.tensor
    SequsedQ: gl.tensor
    SequsedK: gl.tensor
    longest: gl.tensor
    full_numbers: Full  # None below the level FULL
    packed_row: gl.tensor  # the program's only tile of packed sequences, as `work_at` has it
    packed_head: gl.tensor
    CONSUMERS: gl.constexpr
    STAGES: gl.constexpr
    GROUP_ROUNDS: gl.constexpr
    Q_SLOTS: gl.constexpr
    OUT_PIECES: gl.constexpr


@bundle
class Tile:
    """A program's tile: not 0 if there is one, its first row in its sequence, counted as those of a packed head, and
    its packed head. It visits `count` key tiles from key `first` on.
    """

    there: gl.tensor
    row: gl.tensor
    head: gl.tensor
    sequence: Sequence
    first: gl.tensor
    count: gl.tensor


@gluon.jit
def schedule(call):
    """The schedule of all tiles, as causal ones, each head's last rows first: those see most keys if any see more.

    With GROUP_ROUNDS = 0 a group has as many heads as the L2 cache holds the keys and values of that a row sees, but
    at least as many as have a tile for each program. Groups are of one size, as nearly as heads can be divided.
    """
    BLOCK_M: gl.constexpr = call.CONSUMERS * 64
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    heads = (opaque(call.num_heads_q) >> call.log2_packed) * call.sequences
    rows = opaque(call.longest) << call.log2_packed
    if call.GROUP_ROUNDS > 0:
        return schedule_of(heads, rows, BLOCK_M, True, call.GROUP_ROUNDS)
    else:
        of_all = schedule_of(heads, rows, BLOCK_M, True, 1)
        HELD: gl.constexpr = CACHED // (2 * bytes_of(call.k_tensors))  # tiles of keys with their values
        seen = gl.minimum(call.hi, call.max_seqlen_k) - gl.maximum(call.lo, -call.max_seqlen_q) + 1
        seen = gl.maximum(gl.minimum(seen, call.max_seqlen_k), 1)
        size = gl.maximum(HELD // gl.cdiv(seen, BLOCK_N), of_all.size)
        groups = gl.minimum(gl.cdiv(heads, size), quotient(heads, of_all.size))
        return Schedule(of_all.programs, of_all.blocks, heads, quotient(heads, groups), groups)


@gluon.jit
def place_at(call, of_all, group, round, rank, FIRST: gl.constexpr = False):
    """`work_at`: group, round, rank, first row, head of all sequences, and not 0 where there is a tile. FIRST: it is
    the program's first one.
    """
    BLOCK_M: gl.constexpr = call.CONSUMERS * 64
    FULL: gl.constexpr = call.full_numbers is not None
    group, round, rank, row, head, there = work_at(of_all, group, round, rank, FAR, call.log2_packed, BLOCK_M, 64, True)
    if FULL:  # noqa: SIM102 (known when compiled, as the next is not)
        if (opaque(call.features) & PACKED) != 0:
            row = call.packed_row
            head = call.packed_head
            there = (call.packed_row >= 0).to(gl.int32) * FIRST
    return group, round, rank, row, head, there


@gluon.jit
def tile_at(call, row, head, there):
    """The tile with this first row of a head of all sequences."""
    features, log2_packed = opaque(call.features), call.log2_packed
    BLOCK_M: gl.constexpr = call.CONSUMERS * 64
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    heads = opaque(call.num_heads_q) >> log2_packed
    head = gl.where(there > 0, head, 0)
    index = head // heads
    sequence = sequence_of(
        index, features, call.lo, call.hi, call.CuSeqlensQ, call.CuSeqlensK, call.SequsedQ, call.SequsedK,
        call.max_seqlen_q, call.max_seqlen_k, True,
    )  # fmt: skip
    q = sequence.q
    begin, end = positions(row, BLOCK_M, log2_packed)
    first, _, _, after = visited(begin, end, q.used, sequence.k.used, sequence.lo, sequence.hi, BLOCK_N)
    seen = gl.where(begin < q.used, after - first, 0)
    there = gl.where(begin < q.rows, there, 0)
    return Tile(there, row, head - index * heads, sequence, first, gl.maximum(gl.cdiv(seen, BLOCK_N), 1))


@gluon.jit
def positions(row, ROWS: gl.constexpr, log2_packed):
    """The first position that so many rows of a packed head have, and the one behind their last."""
    return row >> log2_packed, (row + ROWS - 1 >> log2_packed) + 1


@gluon.constexpr_function
def most_passed(rows, block_n):
    """Steps that the bands of two consumers can be apart whose first rows are."""
    return -(-rows // block_n)


@gluon.jit
def part_of(tile, log2_packed, C: gl.constexpr, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr):
    """What consumer C does of a tile: the steps that it lets pass at its beginning and at its end, and the keys,
    multiples of BLOCK_N, from and before which it needs no mask.
    """
    UPPER: gl.constexpr = most_passed((CONSUMERS - 1 - C) * 64, BLOCK_N)
    LOWER: gl.constexpr = most_passed(C * 64, BLOCK_N)
    begin, end = positions(tile.row + C * 64, 64, log2_packed)
    sequence = tile.sequence
    used = sequence.q.used
    first, clear, full, after = visited(begin, end, used, sequence.k.used, sequence.lo, sequence.hi, BLOCK_N)
    full = gl.where(end > used, 0, full)  # rows that are not used see nothing
    passed = tile.count * 0
    if UPPER > 0:
        passed = gl.maximum(tile.first + tile.count * BLOCK_N - after, 0) // BLOCK_N
        passed = gl.minimum(gl.minimum(passed, UPPER), tile.count - 1)
    passed = gl.where(tile.there > 0, passed, 0)
    left = tile.count * 0
    if LOWER > 0:
        left = gl.maximum(first - tile.first, 0) // BLOCK_N
        left = gl.minimum(gl.minimum(left, LOWER), tile.count - 1 - passed)
    return passed, left, clear, full


@gluon.jit
def masked(s, tile, key, log2_packed, C: gl.constexpr):
    """Scores, minus infinity where a row of consumer C does not see the key; those of s begin at `key`."""
    LAYOUT: gl.constexpr = s.type.layout
    keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT))
    rows = tile.row + C * 64 + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT)) >> log2_packed
    first, count = keys_of(tile.sequence, rows)
    seen = inside(gl.expand_dims(keys, 0), gl.expand_dims(first, 1), gl.expand_dims(count, 1))
    return gl.where(seen, s, float("-inf"))


@gluon.constexpr_function
def of_rows(columns):
    """A layout of a warp group for rows of so many columns, 16 bytes a thread."""
    across = min(columns // 8, 32)
    return gl.BlockedLayout([1, 8], [32 // across, across], [4, 1], [1, 0])


@gluon.jit
def clear_values(v_slots, slot, count):
    """Zeros to the values in a slot from row `count` on."""
    for part in gl.static_range(len(v_slots)):
        values = matrix(v_slots[part], slot)
        LAYOUT: gl.constexpr = of_rows(values.shape[1])
        ROWS: gl.constexpr = values.shape[0]
        for row in gl.static_range(0, ROWS, CLEARED):
            if row + CLEARED > count:
                some = values.slice(row, CLEARED)
                rows = gl.expand_dims(row + gl.arange(0, CLEARED, gl.SliceLayout(1, LAYOUT)), 1)
                x = some.load(LAYOUT)
                some.store(gl.where(rows < count, x, gl.zeros_like(x)))
    fence_async_shared()


@gluon.jit
def producer(call):
    """The producer warp: loads Q, K and V of all tiles."""
    q_tensors, k_tensors, v_tensors = call.q_tensors, call.k_tensors, call.v_tensors
    q_slots, k_slots, v_slots = call.q_slots, call.k_slots, call.v_slots
    q_full, full, empty, log2_packed = call.q_full, call.full, call.empty, call.log2_packed
    CONSUMERS: gl.constexpr = call.CONSUMERS
    STAGES: gl.constexpr = call.STAGES
    Q_SLOTS: gl.constexpr = call.Q_SLOTS
    BLOCK_N: gl.constexpr = k_tensors[0].block_shape[2]
    FIRST: gl.constexpr = q_tensors[0].block_shape[4]
    Q_BYTES: gl.constexpr = bytes_of(q_tensors)
    KV_BYTES: gl.constexpr = bytes_of(k_tensors)
    group_size = opaque(call.num_heads_q) // call.num_heads_k
    of_all = schedule(call)
    group, round, rank, row, head, there = place_at(call, of_all, 0, 0, gl.program_id(0), True)
    tile = tile_at(call, row, head, there)
    step = 0
    count = 0  # of tiles
    batch_before = 0
    head_before = 0
    values_before = 0
    used = 0  # the step with which Q's place was given back by the tile before, and, with two places, by the one before
    used_before = 0
    while tile.there > 0:
        b, row = tile.sequence.batch, tile.row
        head_k = (tile.head << log2_packed) // group_size
        values = tile.sequence.k.begin + tile.first  # the first row of keys and values
        last = values + (tile.count - 1) * BLOCK_N

        # The last values of the tile before, and the first keys
        slot = acquire(empty, step, STAGES)
        behind = count > 0
        mbarrier.expect(full.index(slot), 2 * KV_BYTES, pred=behind)
        mbarrier.expect(full.index(slot), KV_BYTES, pred=not behind)
        load(v_tensors, batch_before, head_before, values_before, full.index(slot), places(v_slots, slot), pred=behind)
        load(k_tensors, b, head_k, last, full.index(slot), places(k_slots, slot))

        freed = used
        if Q_SLOTS == 2:
            freed = used_before
            used_before = used
        # Nothing to wait for where that slot has been loaded again.
        not_yet = (count >= Q_SLOTS) & (step < freed + STAGES)
        mbarrier.wait(empty.index(slot_of(freed, STAGES)), phase_of(freed, STAGES), pred=not_yet)
        used = step + tile.count - 1
        for c in gl.static_range(CONSUMERS):
            q_slot = count % Q_SLOTS * CONSUMERS + c
            mbarrier.expect(q_full.index(q_slot), Q_BYTES)
            position = tile.sequence.q.begin + (row + c * 64 >> log2_packed)
            for part in gl.static_range(len(q_tensors)):
                tma.async_copy_global_to_shared(
                    q_tensors[part], [b, tile.head, position, 0, part * FIRST], q_full.index(q_slot),
                    q_slots[part].index(q_slot),
                )  # fmt: skip
        step += 1

        for key in range(last, values, -BLOCK_N):  # values from `key` on, and the keys before them
            slot = acquire(empty, step, STAGES)
            mbarrier.expect(full.index(slot), 2 * KV_BYTES)
            load(k_tensors, b, head_k, key - BLOCK_N, full.index(slot), places(k_slots, slot))
            load(v_tensors, b, head_k, key, full.index(slot), places(v_slots, slot))
            step += 1
        batch_before = b
        head_before = head_k
        values_before = values

        count += 1
        group, round, rank, row, head, there = place_at(call, of_all, group, round + 1, rank)
        tile = tile_at(call, row, head, there)
    if count > 0:
        slot = acquire(empty, step, STAGES)
        mbarrier.expect(full.index(slot), KV_BYTES)
        load(v_tensors, batch_before, head_before, values_before, full.index(slot), places(v_slots, slot))


@gluon.jit
def begin(call, q_slot, q_phase, held, step, there):
    """Begin S of a tile's first step that a consumer takes, `step`, if there is a tile. What lies between that step and
    the one whose slot it holds goes by.
    """
    full, empty, q_slots, k_slots = call.full, call.empty, call.q_slots, call.k_slots
    STAGES: gl.constexpr = call.STAGES
    BLOCK_N: gl.constexpr = k_slots[0].shape[3]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    for passed in range(held + 1, step):
        skip(full, empty, passed, STAGES)
    mbarrier.wait(call.q_full.index(q_slot), q_phase, pred=there > 0)
    await_step(full, step, STAGES, pred=there > 0)
    no_s = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
    return scores(own_rows(q_slots, q_slot), k_slots, slot_of(step, STAGES), no_s)


@gluon.jit
def row_numbers(call, tile, C: gl.constexpr, LAYOUT: gl.constexpr):
    """Of each row of consumer C: the position in its sequence, the head, and an index of a row of L."""
    rows = tile.row + C * 64 + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    at = rows >> call.log2_packed
    head = (tile.head << call.log2_packed) + rows - (at << call.log2_packed)
    of_head = tile.sequence.batch * opaque(call.num_heads_q) + head
    return at, head, of_head.to(gl.int64) * opaque(call.max_seqlen_q) + tile.sequence.q.begin + at


@gluon.jit
def store_parts(call, tile, out, C: gl.constexpr):
    """The rows of Out that are of the tile's sequence to memory, past the tensor map, which does not end with it."""
    FIRST: gl.constexpr = out[0].shape[1]
    sequence = tile.sequence
    for part in gl.static_range(len(out)):
        LAYOUT: gl.constexpr = out[part].type.layout
        at, head, _ = row_numbers(call, tile, C, LAYOUT)
        columns = part * FIRST + gl.arange(0, out[part].shape[1], gl.SliceLayout(0, LAYOUT))
        row = (
            sequence.batch * call.stride_out_b + head * call.stride_out_h + (sequence.q.begin + at) * call.stride_out_s
        )
        there = gl.expand_dims(at < sequence.q.rows, 1) & gl.expand_dims(columns < call.head_dim_v, 0)
        gl.store(call.OutRows + gl.expand_dims(row, 1) + gl.expand_dims(columns, 0), out[part], mask=there)


@gluon.jit
def consumer(call, C: gl.constexpr):
    """Consumer C of a program: the 64 rows of each tile from row 64 * C."""
    q_slots, k_slots, v_slots, out_slots = call.q_slots, call.k_slots, call.v_slots, call.out_slots
    full, empty, log2_packed = call.full, call.empty, call.log2_packed
    CONSUMERS: gl.constexpr = call.CONSUMERS
    STAGES: gl.constexpr = call.STAGES
    Q_SLOTS: gl.constexpr = call.Q_SLOTS
    OUT_PIECES: gl.constexpr = call.OUT_PIECES
    AHEAD: gl.constexpr = Q_SLOTS == 2  # of the end of a tile begins the next one's first step
    BLOCK_N: gl.constexpr = k_slots[0].shape[3]
    FIRST: gl.constexpr = k_slots[0].shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, OUT_LAYOUT, 2)
    dtype: gl.constexpr = q_slots[0].dtype
    FULL: gl.constexpr = call.full_numbers is not None

    # Exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = gl.maximum(opaque(call.sm_scale) * LOG2_E, 1e-30)
    no_s = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
    of_all = schedule(call)
    group, round, rank, row, head, there = place_at(call, of_all, 0, 0, gl.program_id(0), True)
    tile = tile_at(call, row, head, there)
    passed, left, clear, unmasked = part_of(tile, log2_packed, C, CONSUMERS, BLOCK_N)
    count = 0  # of tiles
    start = 0  # the tile's step 0
    s = begin(call, C, 0, -1, passed, tile.there)
    s = warpgroup_mma_wait(0, deps=[s])
    release(empty, passed, STAGES)

    while tile.there > 0:
        first = start + passed
        last = start + tile.count - left  # brings the last values
        key = tile.first + (tile.count - 1 - passed) * BLOCK_N
        if FULL:
            at, row_head, _ = row_numbers(call, tile, C, S_LAYOUT)
            weights = full_of_tile(call.full_numbers, call.features, call.sm_scale, tile.sequence, at, row_head, head)
            s = with_alibi(s, weights, key)
        if (key < clear) | (key >= unmasked):
            s = masked(s, tile, key, log2_packed, C)
        base = gl.maximum(first_base(s, scale), LOWEST_BASE)
        p, row_sum = exponentials(s, base, scale)
        p = p.to(dtype)
        if FULL:
            p = dropped(p, weights, tile.row + C * 64, key)
        p = gl.convert_layout(p, P_LAYOUT)
        out = zeros(k_slots, 64)
        if ((opaque(call.features) & (PACKED | USED_K)) != 0) & (key + BLOCK_N > tile.sequence.k.used):
            await_step(full, first + 1, STAGES)
            clear_values(v_slots, slot_of(first + 1, STAGES), tile.sequence.k.used - key)

        q = own_rows(q_slots, count % Q_SLOTS * CONSUMERS + C)
        # Ahead of the loop, what is the same in all steps takes registers that random numbers need.
        for step in tl.range(first + 1, last, disable_licm=FULL):
            key -= BLOCK_N
            await_step(full, step, STAGES)
            s = scores(q, k_slots, slot_of(step, STAGES), no_s)
            out_next = weighted(p, v_slots, slot_of(step, STAGES), out)
            s = warpgroup_mma_wait(len(out), deps=[s])
            if FULL:
                s = with_alibi(s, weights, key)
            if (key < clear) | (key >= unmasked):
                s = masked(s, tile, key, log2_packed, C)
            base_before = base
            base = raised(base, top(s, scale))
            correction = gl.exp2(base_before - base)
            p_next, sums = exponentials(s, base, scale)
            row_sum = row_sum * correction + sums
            p_next = p_next.to(dtype)
            if FULL:
                p_next = dropped(p_next, weights, tile.row + C * 64, key)
            p_next = gl.convert_layout(p_next, P_LAYOUT)
            out = finished(out_next)
            release(empty, step, STAGES)
            out = [rescaled(out_part, correction) for out_part in out]
            p = p_next

        # The last values, and the first scores of the next tile
        await_step(full, last, STAGES)
        out = weighted(p, v_slots, slot_of(last, STAGES), out)
        count += 1
        start += tile.count
        group, round, rank, row, head, there = place_at(call, of_all, group, round + 1, rank)
        next_tile = tile_at(call, row, head, there)
        passed, left, clear, unmasked = part_of(next_tile, log2_packed, C, CONSUMERS, BLOCK_N)
        first = gl.where(next_tile.there > 0, start + passed, last)
        if AHEAD:
            s = begin(call, count % Q_SLOTS * CONSUMERS + C, count // Q_SLOTS & 1, last, first, next_tile.there)
        out = finished(out, len(q_slots) if AHEAD else 0)
        if first != last:
            release(empty, last, STAGES)

        # What was taken by lanes is put together.
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, S_LAYOUT))
        base = gl.convert_layout(gl.max(base, 1), gl.SliceLayout(1, S_LAYOUT))
        at, of_head, in_l = row_numbers(call, tile, C, S_LAYOUT)
        sequence = tile.sequence
        correction = gl.full_like(base, 1.0)
        features = opaque(call.features)
        if (features & SINKS) != 0:
            sink = gl.load(call.Sinks + of_head) * LOG2_E
            raised_base = gl.maximum(base, sink)
            correction = gl.exp2(base - raised_base)
            row_sum = row_sum * correction + gl.exp2(sink - raised_base)
            base = raised_base
        if call.store_lse != 0:
            lse = gl.where(at < sequence.q.used, (base + gl.log2(row_sum)) * LN_2, float("-inf"))
            gl.store(call.L + in_l, lse, mask=at < sequence.q.rows)
        factor = correction / gl.where(row_sum == 0.0, 1.0, row_sum)
        if FULL:
            factor *= factor_of(call.full_numbers.numbers)
        out = [scaled(out_part, factor).to(dtype) for out_part in out]
        _, end = positions(tile.row + C * 64, 64, log2_packed)
        if ((features & PACKED) != 0) & (end > sequence.q.rows):
            store_parts(call, tile, out, C)
        else:
            pieces = [in_pieces(whole, OUT_PIECES) for whole in out]
            at_rows = sequence.q.begin + (tile.row + C * 64 >> log2_packed)
            for piece in gl.static_range(OUT_PIECES):
                tma.store_wait(0)
                for part in gl.static_range(len(out)):
                    out_slots[part].index(C).reshape([64, out_slots[part].shape[5]]).store(pieces[part][piece])
                fence_async_shared()
                for part in gl.static_range(len(out)):
                    origin = [sequence.batch, tile.head, at_rows, 0, part * FIRST + piece * out_slots[part].shape[5]]
                    tma.async_copy_shared_to_global(call.out_tensors[part], origin, out_slots[part].index(C))

        if not AHEAD:
            s = begin(call, count % Q_SLOTS * CONSUMERS + C, count // Q_SLOTS & 1, last, first, next_tile.there)
        s = warpgroup_mma_wait(0, deps=[s])
        release(empty, first, STAGES)
        tile = next_tile
    tma.store_wait(0)


@gluon.jit
def forward_features(
    Q, K, V, Out, OutRows, stride_out_b, stride_out_h, stride_out_s, L, store_lse, sm_scale, num_heads_q, num_heads_k,
    max_seqlen_q, max_seqlen_k, head_dim_v, sequences, log2_packed, lo, hi, features, Sinks,
    CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, longest,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr, GROUP_ROUNDS: gl.constexpr, Q_SLOTS: gl.constexpr,
    OUT_PIECES: gl.constexpr, AlibiSlopes=None, stride_alibi_b=None, dropout=None, DropoutSeed=None, DropoutOffset=None,
):  # fmt: skip
    """The program of attn_fwd_hopper_features, whose arguments these are, with tuples of parts; with those of ALiBi and
    dropout, if it has them.
    """
    gl.static_assert(CONSUMERS <= STAGES, "a consumer lets more steps pass than there are slots")
    REGISTERS: gl.constexpr = 160 if CONSUMERS == 3 else 232
    PRODUCER_REGISTERS: gl.constexpr = 32 if CONSUMERS == 3 else 40
    q_slots = slots(Q, Q_SLOTS * CONSUMERS)
    k_slots = slots(K, STAGES)
    v_slots = slots(V, STAGES)
    out_slots = slots(Out, CONSUMERS)
    q_full = barriers(Q_SLOTS * CONSUMERS)
    full = barriers(STAGES)
    empty = barriers(STAGES)
    init_all(q_full, 1)
    init_all(full, 1)
    init_all(empty, CONSUMERS)
    full_numbers = None
    packed_row = None
    packed_head = None
    if dropout is not None:
        full_numbers = full_of_call(AlibiSlopes, stride_alibi_b, features, dropout, DropoutSeed, DropoutOffset)
        BLOCK_M: gl.constexpr = CONSUMERS * 64
        heads = num_heads_q >> log2_packed
        tile, packed_head, sequence = tile_of_sequences(
            features, CuSeqlensQ, sequences, longest, max_seqlen_q, heads, heads, BLOCK_M, log2_packed
        )
        if (features & PACKED) != 0:
            tile = last_first(tile, CuSeqlensQ, sequence, log2_packed, BLOCK_M)
        packed_row = opaque(tile * BLOCK_M)
        packed_head = opaque(sequence * heads + packed_head)
    call = Call(
        Out, OutRows, stride_out_b, stride_out_h, stride_out_s, L, Q, K, V, q_slots, k_slots, v_slots, out_slots,
        q_full, full, empty, store_lse, sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_v,
        sequences, log2_packed, lo, hi, features, Sinks, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, longest,
        full_numbers, packed_row, packed_head, CONSUMERS, STAGES, GROUP_ROUNDS, Q_SLOTS, OUT_PIECES,
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
