"""Attention forward for Hopper, as `forward_features.py`, whose programs take the items of a plan (`plan.py`) in turns.

An item is to the warps what a tile is there, with its keys cut off where those of another part begin; a consumer whose
rows are not used lets all steps pass but one. Of a tile with all its keys Out and L are stored; of a part, in fp32,
what its keys make of the rows, and a logarithm of the sum of weights, for attn_fwd_planned_combine. One producer warp
loads Q and K, and another one V.

A scheduler warp draws the program's items, one after the other, from a count that all programs share, so that programs
end together, however long their items take. It works out what the other warps have to know of an item, and notes it in
shared memory, where it takes no registers:

    scheduler                 item_wanted, 1 ◀─ producer of Q and K, KEYS_AHEAD before the end of the item before
    notes the item            items_full, 1  ─▶ both producers and both consumers
    waits to overwrite it     items_empty, 4 ◀─ these, when they need it no more

All heads that share keys are packed if they are 16 or fewer: a consumer's 64 rows have as many positions as fit.

Keys and values in pages arrive in boxes of as many rows as lie next to each other in any page, 16 at least, each from a
place of its own. In shared memory they lie as one box of BLOCK_N rows would: of columns that are swizzled together,
rows follow each other, so a box of some of them is a place of a view with 16 rows each.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from aotriton.tritonsrc.flash.lib import constants
from aotriton.tritonsrc.flash.lib.band import inside, keys_of, visited
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.early import await_results
from aotriton.tritonsrc.flash.lib.features import PACKED, SINKS, USED_K
from aotriton.tritonsrc.flash.lib.forward import in_pieces, own_rows, scaled
from aotriton.tritonsrc.flash.lib.forward_features import (
    FAR,
    LN_2,
    LOG2_E,
    LOWEST_BASE,
    begin,
    clear_values,
    most_passed,
)
from aotriton.tritonsrc.flash.lib.hopper_column_parts import finished, places, scores, slots, weighted, zeros
from aotriton.tritonsrc.flash.lib.hopper_column_parts import load as load_rows
from aotriton.tritonsrc.flash.lib.notes import note, noted, notes
from aotriton.tritonsrc.flash.lib.opaque import opaque, special_register
from aotriton.tritonsrc.flash.lib.pages import place_in_table
from aotriton.tritonsrc.flash.lib.pipeline import (
    acquire,
    await_step,
    barrier,
    barriers,
    init_all,
    phase_of,
    release,
    slot_of,
)
from aotriton.tritonsrc.flash.lib.plan import (
    BEHIND,
    DRAWN,
    FIELDS,
    FIRST_KEY,
    HEAD,
    ITEMS,
    PLACE,
    POSITION,
    SEQUENCE,
    keys_of_tile,
    sequence_at,
)
from aotriton.tritonsrc.flash.lib.quads import in_quads, layout_of_quads
from aotriton.tritonsrc.flash.lib.sequence import Sequence, Side
from aotriton.tritonsrc.flash.lib.softmax import exponentials, first_base, raised, rescaled, top

CONSUMERS = gl.constexpr(2)
TILE_ROWS = gl.constexpr(constants.PLAN_TILE_ROWS)
BOX_ROWS = gl.constexpr(constants.PAGE_STEP)  # the least of a box of pages
ITEM_SLOTS = gl.constexpr(4)  # of notes
KEYS_AHEAD = gl.constexpr(256)  # of an item, that are still to be loaded when the next one is drawn
ROWS_OF_PACKED = gl.constexpr((64, 63, 60, 56, 55, 52))  # of 64, those of whole positions, with up to 16 packed heads


@bundle
class Call:
    """What the warps of a program share: the parts of tensors and of slots, barriers, numbers and constants."""

    Items: gl.tensor
    Counts: gl.tensor
    Out: gl.tensor
    stride_out_b: gl.tensor
    stride_out_h: gl.tensor
    stride_out_s: gl.tensor
    L: gl.tensor
    Parts: gl.tensor
    PartsL: gl.tensor
    q_tensors: gl.tuple
    k_tensors: gl.tuple
    v_tensors: gl.tuple
    q_slots: gl.tuple
    k_slots: gl.tuple
    v_slots: gl.tuple
    q_full: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    items: gl.shared_memory_descriptor
    items_full: gl.shared_memory_descriptor
    items_empty: gl.shared_memory_descriptor
    item_wanted: gl.shared_memory_descriptor
    store_lse: gl.tensor
    sm_scale: gl.tensor
    num_heads_q: gl.tensor
    num_heads_k: gl.tensor
    max_seqlen_q: gl.tensor
    max_seqlen_k: gl.tensor
    head_dim_v: gl.tensor
    packed: gl.tensor
    lo: gl.tensor
    hi: gl.tensor
    features: gl.tensor
    Sinks: gl.tensor
    CuSeqlensQ: gl.tensor
    CuSeqlensK: gl.tensor
    SequsedQ: gl.tensor
    SequsedK: gl.tensor
    BlockTable: gl.tensor
    stride_table: gl.tensor
    page_size: gl.tensor
    magic: gl.tensor
    pages: gl.tensor
    box: gl.tensor
    STAGES: gl.constexpr
    PAGED: gl.constexpr

    @gluon.jit
    def rows(self, item, C: gl.constexpr, LAYOUT: gl.constexpr):
        """Of each row of consumer C: the position in its sequence, far behind for rows that are none, and the head."""
        packed = opaque(self.packed).to(gl.uint32)
        each = (64 // packed).to(gl.int32)
        row = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
        position = (row.to(gl.uint32) // packed).to(gl.int32)
        member = row - position * self.packed
        at = gl.where(position < each, item.position + C * each + position, FAR)
        return at, item.head * self.packed + member


@bundle
class Item:
    """An item, if it is `there`: the first position of its tile and its packed head, its `count` key tiles from key
    `first` on, and the place for its results, negative if it has all keys of its tile.
    """

    there: gl.tensor
    position: gl.tensor
    head: gl.tensor
    sequence: Sequence
    first: gl.tensor
    count: gl.tensor
    place: gl.tensor


@gluon.jit
def draw(call, FIRST: gl.constexpr):
    """The number of an item that no other program has, and whether there is one.

    A program's first item has the program's number, and those that follow are drawn by whoever needs one. The program
    that is the last to find none left leaves the count as it was, for the next launch.
    """
    items = gl.load(call.Counts + ITEMS)
    programs, number = special_register("%nctaid.x"), special_register("%ctaid.x")
    if not FIRST:
        number = programs + gl.atomic_add(call.Counts + DRAWN, 1, sem="relaxed")
        if number == items + programs - 1:
            gl.store(call.Counts + DRAWN, 0)
    return number, number < items


# What a note of an item says. Of each consumer: the steps that it lets pass at the item's beginning and at its end, and
# the keys, multiples of BLOCK_N, from and before which it needs no mask.
(
    THERE, TILE_POSITION, TILE_HEAD, TILE_PLACE, TILE_FIRST, COUNT, INDEX, BATCH, Q_BEGIN, Q_ROWS, Q_USED, K_BEGIN,
    K_USED, LO, HI, PASSED, LEFT, CLEAR, UNMASKED,
) = (gl.constexpr(i) for i in range(19))  # fmt: skip
OF_CONSUMER = gl.constexpr(4)
NOTES = gl.constexpr(15 + 2 * 4)


@gluon.jit
def note_item(call, count, FIRST: gl.constexpr):
    """Draws an item, the program's number `count`, and notes it. Returns whether there was one."""
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    number, there = draw(call, FIRST)
    fields = call.Items + gl.where(there, number, 0).to(gl.int64) * FIELDS
    # All at once: what uses one would wait for it before the next is asked for.
    index, head, place = gl.load(fields + SEQUENCE), gl.load(fields + HEAD), gl.load(fields + PLACE)
    position, first_key, end = gl.load(fields + POSITION), gl.load(fields + FIRST_KEY), gl.load(fields + BEHIND)
    sequence = sequence_at(
        index, 1 if call.PAGED else 0, opaque(call.features), call.lo, call.hi, call.CuSeqlensQ, call.CuSeqlensK,
        call.SequsedQ, call.SequsedK, call.max_seqlen_q, call.max_seqlen_k,
    )  # fmt: skip
    each = 64 // opaque(call.packed)
    first, behind = keys_of_tile(sequence, position, CONSUMERS * each, BLOCK_N)
    first = gl.maximum(first, first_key)
    steps = gl.maximum((gl.minimum(behind, end) - first + BLOCK_N - 1) // BLOCK_N, 1)
    slot = acquire(call.items_empty, count, ITEM_SLOTS)
    q, k = sequence.q, sequence.k
    of_all = (
        there.to(gl.int32), position, head, place, first, steps, index, sequence.batch, q.begin, q.rows, q.used,
        k.begin, k.used, sequence.lo, sequence.hi,
    )  # fmt: skip
    for i in gl.static_range(len(of_all)):
        note(call.items, slot * NOTES + i, of_all[i], 1)
    for c in gl.static_range(CONSUMERS):
        own = part_of_consumer(sequence, position, there, each, first, steps, c, BLOCK_N)
        for i in gl.static_range(len(own)):
            note(call.items, slot * NOTES + PASSED + c * OF_CONSUMER + i, own[i], 1)
    mbarrier.arrive(call.items_full.index(slot))
    return there


@gluon.jit
def scheduler(call):
    """The scheduler warp: draws and notes items until there are none."""
    there = note_item(call, 0, True)
    count = 0
    while there:
        mbarrier.wait(call.item_wanted, count & 1)
        count += 1
        there = note_item(call, count, False)


@gluon.jit
def await_item(call, number):
    """Wait until the item with this number has been noted."""
    await_step(call.items_full, number, ITEM_SLOTS)


@gluon.jit
def of_item(call, number, FIELD: gl.constexpr, WARPS: gl.constexpr = 4):
    """One number of the note of an item, for so many warps."""
    return noted(call.items, slot_of(number, ITEM_SLOTS) * NOTES + FIELD, WARPS)


@gluon.jit
def noted_item(call, number, WARPS: gl.constexpr = 4):
    """The note of an item. What is not used of it is not read."""
    k_used = of_item(call, number, K_USED, WARPS)
    sequence = Sequence(
        of_item(call, number, INDEX, WARPS), of_item(call, number, BATCH, WARPS),
        Side(
            of_item(call, number, Q_BEGIN, WARPS), of_item(call, number, Q_ROWS, WARPS),
            of_item(call, number, Q_USED, WARPS),
        ),
        Side(of_item(call, number, K_BEGIN, WARPS), k_used, k_used),
        of_item(call, number, LO, WARPS), of_item(call, number, HI, WARPS),
    )  # fmt: skip
    return Item(
        of_item(call, number, THERE, WARPS), of_item(call, number, TILE_POSITION, WARPS),
        of_item(call, number, TILE_HEAD, WARPS), sequence, of_item(call, number, TILE_FIRST, WARPS),
        of_item(call, number, COUNT, WARPS), of_item(call, number, TILE_PLACE, WARPS),
    )  # fmt: skip


@gluon.jit
def part_of_consumer(sequence, position, there, each, first_key, count, C: gl.constexpr, BLOCK_N: gl.constexpr):
    """PASSED, LEFT, CLEAR and UNMASKED of consumer C, which has `each` positions. It takes one step if none of its rows
    are used.
    """
    MOST: gl.constexpr = most_passed(64, BLOCK_N)  # steps that the bands of both are apart
    begin = position + C * each
    q, k = sequence.q, sequence.k
    first, clear, full, after = visited(begin, begin + each, q.used, k.used, sequence.lo, sequence.hi, BLOCK_N)
    full = gl.where(begin + each > q.used, 0, full)  # rows that are not used see nothing
    passed = count * 0
    left = count * 0
    if C == 0:
        passed = gl.maximum(first_key + count * BLOCK_N - after, 0) // BLOCK_N
        passed = gl.minimum(gl.minimum(passed, MOST), count - 1)
    else:
        left = gl.maximum(first - first_key, 0) // BLOCK_N
        left = gl.minimum(gl.minimum(left, MOST), count - 1)
    idle = begin >= q.used
    passed = gl.where(idle, count - 1, passed)
    return gl.where(there, passed, 0), gl.where(idle, 0, left), clear, full


@gluon.jit
def masked(call, s, number, key, C: gl.constexpr):
    """Scores, minus infinity where a row of consumer C does not see the key; those of s begin at `key`."""
    item = noted_item(call, number)
    LAYOUT: gl.constexpr = s.type.layout
    keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT))
    at, _ = call.rows(item, C, LAYOUT)
    first, count = keys_of(item.sequence, at)
    seen = inside(gl.expand_dims(keys, 0), gl.expand_dims(first, 1), gl.expand_dims(count, 1))
    return gl.where(seen, s, float("-inf"))


@gluon.jit
def row_numbers(call, item, C: gl.constexpr, LAYOUT: gl.constexpr):
    """Of each row of consumer C: the position in its sequence, the head, and an index of a row of L."""
    at, head = call.rows(item, C, LAYOUT)
    of_head = item.sequence.batch * opaque(call.num_heads_q) + head
    return at, head, of_head.to(gl.int64) * opaque(call.max_seqlen_q) + item.sequence.q.begin + at


@gluon.jit
def walk(call, number, s, scale, first, last, C: gl.constexpr):
    """Steps of an item from `first`, whose scores are s, to before `last`: the weights of the last keys, Out without
    their values, and by lanes the base and the sums of rows.
    """
    full, empty, k_slots, v_slots = call.full, call.empty, call.k_slots, call.v_slots
    STAGES: gl.constexpr = call.STAGES
    BLOCK_N: gl.constexpr = k_slots[0].shape[3]
    FIRST: gl.constexpr = k_slots[0].shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, OUT_LAYOUT, 2)
    dtype: gl.constexpr = call.q_slots[0].dtype
    no_s = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
    passed = of_item(call, number, PASSED + C * OF_CONSUMER)
    clear = of_item(call, number, CLEAR + C * OF_CONSUMER)
    unmasked = of_item(call, number, UNMASKED + C * OF_CONSUMER)
    key = of_item(call, number, TILE_FIRST) + (of_item(call, number, COUNT) - 1 - passed) * BLOCK_N
    if (key < clear) | (key >= unmasked):
        s = masked(call, s, number, key, C)
    base = gl.maximum(first_base(s, scale), LOWEST_BASE)
    p, row_sum = exponentials(s, base, scale)
    p = gl.convert_layout(p.to(dtype), P_LAYOUT)
    out = zeros(k_slots, 64)
    used = of_item(call, number, K_USED)
    if ((opaque(call.features) & (PACKED | USED_K)) != 0) & (key + BLOCK_N > used):
        await_step(full, first + 1, STAGES)
        clear_values(v_slots, slot_of(first + 1, STAGES), used - key)

    q = own_rows(call.q_slots, C)
    for step in range(first + 1, last):
        key -= BLOCK_N
        await_step(full, step, STAGES)
        s = scores(q, k_slots, slot_of(step, STAGES), no_s)
        out_next = weighted(p, v_slots, slot_of(step, STAGES), out)
        s = warpgroup_mma_wait(len(out), deps=[s])
        if (key < clear) | (key >= unmasked):
            s = masked(call, s, number, key, C)
        base_before = base
        base = raised(base, top(s, scale))
        correction = gl.exp2(base_before - base)
        p_next, sums = exponentials(s, base, scale)
        row_sum = row_sum * correction + sums
        p_next = gl.convert_layout(p_next.to(dtype), P_LAYOUT)
        out = finished(out_next)
        release(empty, step, STAGES)
        out = [rescaled(out_part, correction) for out_part in out]
        p = p_next
    return p, out, base, row_sum


@bundle
class Box:
    """The next box of pages to load, from the last one to the first: where it begins in its page, the page and its
    place in the table, and the page before that one.
    """

    row: gl.tensor
    page: gl.tensor
    place: gl.tensor
    before: gl.tensor


@gluon.jit
def page_at(call, item, place, pred):
    """The number of the item's page that the table has at a place, or one that no page has."""
    table = call.BlockTable + item.sequence.index.to(gl.int64) * call.stride_table
    there = pred & (place >= 0) & (place * call.page_size < item.sequence.k.used)
    return gl.load(table + place, mask=there, other=call.pages)


@gluon.jit
def last_box(call, item, BLOCK_N: gl.constexpr):
    """The last box of an item."""
    if call.PAGED:
        key = item.first + item.count * BLOCK_N - call.box
        place = place_in_table(call, key)
        row = key - place * call.page_size
        return Box(row, page_at(call, item, place, True), place, page_at(call, item, place - 1, True))
    else:
        return Box(0, 0, 0, 0)


@gluon.jit
def load(call, item, tensors, slots, slot, box, head, row):
    """Begin to copy rows of a sequence from `row` on to a slot; returns the box of rows before them."""
    ready = call.full.index(slot)
    if call.PAGED:
        BLOCK_N: gl.constexpr = slots[0].shape[3]
        COLUMNS: gl.constexpr = tensors[0].block_shape[3]
        PARTS: gl.constexpr = slots[0].shape[4] // COLUMNS
        BOXES: gl.constexpr = BLOCK_N // BOX_ROWS
        COUNT: gl.constexpr = slots[0].shape[0] * PARTS * BOXES
        boxes = slots[0]._reinterpret(slots[0].dtype, [COUNT, 1, 1, BOX_ROWS, COLUMNS], tensors[0].layout)
        count = BLOCK_N // call.box
        for number in range(0, count):
            of_slot = (count - 1 - number) * call.box
            page = gl.where(row + of_slot < item.sequence.k.used, box.page, call.pages)
            for part in gl.static_range(PARTS):
                at = (slot * PARTS + part) * BOXES + of_slot // BOX_ROWS
                tma.async_copy_global_to_shared(
                    tensors[0], [page, head, box.row, part * COLUMNS], ready, boxes.index(at)
                )  # fmt: skip
            in_page = box.row - call.box
            past = in_page < 0
            place = box.place - past.to(gl.int32)
            box = Box(
                gl.where(past, in_page + call.page_size, in_page), gl.where(past, box.before, box.page), place,
                gl.where(past, page_at(call, item, place - 1, past), box.before),
            )  # fmt: skip
    else:
        load_rows(tensors, item.sequence.batch, head, item.sequence.k.begin + row, ready, places(slots, slot))
    return box


@gluon.jit
def load_queries(call, item, C: gl.constexpr):
    """Begin to copy the rows of Q of consumer C."""
    q_tensors, q_slots, ready = call.q_tensors, call.q_slots, call.q_full.index(C)
    COLUMNS: gl.constexpr = q_tensors[0].block_shape[4]
    packed = opaque(call.packed)
    each = 64 // packed
    for i in gl.static_range(len(ROWS_OF_PACKED)):
        mbarrier.expect(ready, ROWS_OF_PACKED[i] * COLUMNS * 2, pred=each * packed == ROWS_OF_PACKED[i])
    origin = [item.sequence.batch, item.head, item.sequence.q.begin + item.position + C * each, 0, 0]
    tma.async_copy_global_to_shared(q_tensors[0], origin, ready, q_slots[0].index(C))


@gluon.jit
def producer(call, KEYS: gl.constexpr):
    """A producer warp: loads Q and K of all items, or V, whose tiles come a step later. Of the first step and the last
    one each of the two has nothing to load, and says so.
    """
    full, empty = call.full, call.empty
    tensors = call.k_tensors if KEYS else call.v_tensors
    slots = call.k_slots if KEYS else call.v_slots
    STAGES: gl.constexpr = call.STAGES
    BLOCK_N: gl.constexpr = slots[0].shape[3]
    BYTES: gl.constexpr = BLOCK_N * slots[0].shape[4] * 2
    # The next item is wanted late, so that programs end together, but early enough to be there in time.
    LEAD: gl.constexpr = KEYS_AHEAD // BLOCK_N
    group_size = opaque(call.num_heads_q) // call.num_heads_k
    number = 0  # of items
    step = 0
    used = 0  # the step with which Q's place was given back by the item before
    await_item(call, 0)
    item = noted_item(call, 0, 1)
    if not KEYS:
        mbarrier.arrive(full.index(0), pred=item.there > 0)
        step += 1
    while item.there > 0:
        head = item.head * call.packed // group_size
        box = last_box(call, item, BLOCK_N)
        for tile in range(0, item.count):
            slot = acquire(empty, step, STAGES)
            mbarrier.expect(full.index(slot), BYTES)
            row = item.first + (item.count - 1 - tile) * BLOCK_N
            box = load(call, item, tensors, slots, slot, box, head, row)
            if KEYS:
                if tile == 0:
                    # Nothing to wait for where that slot has been loaded again.
                    not_yet = (number > 0) & (step < used + STAGES)
                    mbarrier.wait(empty.index(slot_of(used, STAGES)), phase_of(used, STAGES), pred=not_yet)
                    for c in gl.static_range(CONSUMERS):
                        load_queries(call, item, c)
                mbarrier.arrive(call.item_wanted, pred=tile == gl.maximum(item.count - LEAD, 0))
            step += 1
        used = step - 1
        release(call.items_empty, number, ITEM_SLOTS)
        number += 1
        await_item(call, number)
        item = noted_item(call, number, 1)
    if KEYS:  # noqa: SIM102
        if number > 0:
            mbarrier.arrive(full.index(acquire(empty, step, STAGES)))


@gluon.jit
def store_whole(call, item, out, base, row_sum, C: gl.constexpr):
    """Out and L of a tile with all its keys."""
    LAYOUT: gl.constexpr = base.type.layout.parent
    at, of_head, in_l = row_numbers(call, item, C, LAYOUT)
    there = at < item.sequence.q.rows
    correction = gl.full_like(base, 1.0)
    if (opaque(call.features) & SINKS) != 0:
        sink = gl.load(call.Sinks + of_head, mask=there, other=0.0) * LOG2_E
        raised_base = gl.maximum(base, sink)
        correction = gl.exp2(base - raised_base)
        row_sum = row_sum * correction + gl.exp2(sink - raised_base)
        base = raised_base
    if call.store_lse != 0:
        lse = gl.where(at < item.sequence.q.used, (base + gl.log2(row_sum)) * LN_2, float("-inf"))
        gl.store(call.L + in_l, lse, mask=there)
    factor = correction / gl.where(row_sum == 0.0, 1.0, row_sum)
    QUADS: gl.constexpr = layout_of_quads(out[0].shape[1])
    at, head = call.rows(item, C, QUADS)
    columns = gl.arange(0, out[0].shape[1], gl.SliceLayout(0, QUADS))
    origin = item.sequence.batch * call.stride_out_b + item.sequence.q.begin * call.stride_out_s
    rows = call.Out + origin + head * call.stride_out_h + at * call.stride_out_s
    there = gl.expand_dims(at < item.sequence.q.rows, 1) & gl.expand_dims(columns < call.head_dim_v, 0)
    result = in_quads(scaled(out[0], factor).to(call.q_slots[0].dtype))
    gl.store(gl.expand_dims(rows, 1) + gl.expand_dims(columns, 0), result, mask=there)


@gluon.jit
def store_columns(call, x, row, column):
    """Columns of Parts from a row and a column on."""
    LAYOUT: gl.constexpr = x.type.layout
    head_dim = opaque(call.head_dim_v) // 8 * 8  # the compiler has to know what it is a multiple of
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
    columns = column + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
    offsets = gl.expand_dims(rows * head_dim, 1) + gl.expand_dims(columns, 0)
    there = gl.expand_dims(columns < head_dim, 0) & gl.full([x.shape[0], 1], True, gl.int1, LAYOUT)
    gl.store(call.Parts + offsets, x, mask=there)


@gluon.jit
def store_part(call, item, out, base, row_sum, C: gl.constexpr):
    """What a part of the keys makes of the rows of a tile, and the logarithms of their sums of weights."""
    BY_ROWS: gl.constexpr = base.type.layout
    first = item.place.to(gl.int64) * TILE_ROWS + C * 64
    rows = first + gl.arange(0, 64, BY_ROWS)
    gl.store(call.PartsL + rows, base + gl.log2(row_sum))
    factor = 1.0 / gl.where(row_sum == 0.0, 1.0, row_sum)
    PIECES: gl.constexpr = 2 if out[0].shape[1] == 256 else 1  # else addresses take more registers than there are
    COLUMNS: gl.constexpr = out[0].shape[1] // PIECES
    pieces = in_pieces(scaled(out[0], factor), PIECES)
    for piece in gl.static_range(PIECES):
        store_columns(call, pieces[piece], first, piece * COLUMNS)


@gluon.jit
def consumer(call, C: gl.constexpr):
    """Consumer C of a program: the 64 rows of each item from row 64 * C."""
    k_slots, v_slots, full, empty = call.k_slots, call.v_slots, call.full, call.empty
    STAGES: gl.constexpr = call.STAGES
    BLOCK_N: gl.constexpr = k_slots[0].shape[3]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])

    # Exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = gl.maximum(opaque(call.sm_scale) * LOG2_E, 1e-30)
    number = 0  # of items
    start = 0  # the item's step 0
    await_item(call, 0)
    there = of_item(call, 0, THERE)
    first = of_item(call, 0, PASSED + C * OF_CONSUMER)
    s = begin(call, C, 0, -1, first, there)
    s = warpgroup_mma_wait(0, deps=[s])
    release(empty, first, STAGES)

    while there > 0:
        behind = start + of_item(call, number, COUNT)
        last = behind - of_item(call, number, LEFT + C * OF_CONSUMER)  # brings the last values
        p, out, base, row_sum = walk(call, number, s, scale, first, last, C)

        # The last values, and the first scores of the next item
        await_step(full, last, STAGES)
        out = weighted(p, v_slots, slot_of(last, STAGES), out)
        start = behind
        await_item(call, number + 1)
        there = of_item(call, number + 1, THERE)
        first = gl.where(there > 0, start + of_item(call, number + 1, PASSED + C * OF_CONSUMER), last)
        out = finished(out)
        if first != last:
            release(empty, last, STAGES)

        # What was taken by lanes is put together.
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, S_LAYOUT))
        base = gl.convert_layout(gl.max(base, 1), gl.SliceLayout(1, S_LAYOUT))
        item = noted_item(call, number)
        if item.place < 0:
            store_whole(call, item, out, base, row_sum, C)
        else:
            store_part(call, item, out, base, row_sum, C)
        release(call.items_empty, number, ITEM_SLOTS)

        number += 1
        s = begin(call, C, number & 1, last, first, there)
        s = warpgroup_mma_wait(0, deps=[s])
        release(empty, first, STAGES)


@gluon.jit
def page_slots(tensor, COUNT: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr):
    """Shared memory for so many matrices of keys or values, as a box of all their rows would fill it."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, BLOCK_N, COLUMNS], tensor.dtype)
    return gl.allocate_shared_memory(tensor.dtype, [COUNT, 1, 1, BLOCK_N, COLUMNS], LAYOUT)


@gluon.jit
def forward_planned(
    Items, Counts, Q, K, V, Out, stride_out_b, stride_out_h, stride_out_s, L, Parts, PartsL, store_lse, sm_scale,
    num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_v, packed, lo, hi, features, Sinks, CuSeqlensQ,
    CuSeqlensK, SequsedQ, SequsedK, BlockTable, stride_table, page_size, magic, pages, box,
    BLOCK_N: gl.constexpr, BLOCK_DMODEL: gl.constexpr, STAGES: gl.constexpr, PAGED: gl.constexpr,
):  # fmt: skip
    """The program of attn_fwd_hopper_planned and attn_fwd_hopper_planned_paged, whose arguments these are, with tuples
    of tensors.
    """
    q_slots = slots(Q, CONSUMERS)
    if PAGED:
        k_slots = (page_slots(K[0], STAGES, BLOCK_N, BLOCK_DMODEL),)
        v_slots = (page_slots(V[0], STAGES, BLOCK_N, BLOCK_DMODEL),)
    else:
        k_slots = slots(K, STAGES)
        v_slots = slots(V, STAGES)
    q_full = barriers(CONSUMERS)
    full = barriers(STAGES)
    empty = barriers(STAGES)
    init_all(q_full, 1)
    init_all(full, 2)  # both producers
    init_all(empty, CONSUMERS)
    items_full = barriers(ITEM_SLOTS)
    items_empty = barriers(ITEM_SLOTS)
    init_all(items_full, 1)
    init_all(items_empty, CONSUMERS + 2)  # and both producers
    item_wanted = barrier()
    mbarrier.init(item_wanted, count=1)
    packed = await_results(packed)
    call = Call(
        Items, Counts, Out, stride_out_b, stride_out_h, stride_out_s, L, Parts, PartsL, Q, K, V, q_slots, k_slots,
        v_slots, q_full, full, empty, notes(ITEM_SLOTS * NOTES), items_full, items_empty, item_wanted, store_lse,
        sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_v, packed, lo, hi, features, Sinks,
        CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, BlockTable, stride_table, page_size, magic, pages, box, STAGES,
        PAGED,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (consumer, (call, 0)), (consumer, (call, 1)), (producer, (call, True)), (producer, (call, False)),
            (scheduler, (call,)),
        ],
        [4, 1, 1, 1], [224, 56, 56, 56],
    )  # fmt: skip
