"""Attention forward for Hopper, as `forward_features.py`, whose programs take the items of a plan (`plan.py`) in turns.

An item is to the warps what a tile is there, with its keys cut off where those of another part begin; a consumer whose
rows are not used lets all steps pass but one. Of a tile with all its keys Out and L are stored; of a part, in fp32,
what its keys make of the rows, and a logarithm of the sum of weights, for attn_fwd_planned_combine. One producer warp
loads Q and K, and another one V.

All heads that share keys are packed if they are 16 or fewer: a consumer's 64 rows have as many positions as fit.

Keys and values in pages arrive in boxes of as many rows as lie next to each other in any page, 16 at least, each from a
place of its own. In shared memory they lie as one box of BLOCK_N rows would: of columns that are swizzled together,
rows follow each other, so a box of some of them is a place of a view with 16 rows each.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from aotriton.tritonsrc.flash.lib.band import inside, keys_of, visited
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import PACKED, SINKS, USED_K
from aotriton.tritonsrc.flash.lib.forward import own_rows, scaled
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
from aotriton.tritonsrc.flash.lib.opaque import opaque, special_register
from aotriton.tritonsrc.flash.lib.pages import place_in_table
from aotriton.tritonsrc.flash.lib.pipeline import (
    acquire,
    await_step,
    barriers,
    init_all,
    phase_of,
    release,
    slot_of,
)
from aotriton.tritonsrc.flash.lib.plan import (
    BEHIND,
    FIELDS,
    FIRST_KEY,
    HEAD,
    PLACE,
    POSITION,
    SEQUENCE,
    keys_of_tile,
    sequence_at,
)
from aotriton.tritonsrc.flash.lib.quads import in_quads, layout_of_quads
from aotriton.tritonsrc.flash.lib.sequence import Sequence
from aotriton.tritonsrc.flash.lib.softmax import exponentials, first_base, raised, rescaled, top

CONSUMERS = gl.constexpr(2)
TILE_ROWS = gl.constexpr(128)  # of both
BOX_ROWS = gl.constexpr(16)  # the least of a box of pages
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
def place_in_round(round, programs, program):
    """Every second round goes through the programs backwards."""
    return gl.where((round & 1) == 1, programs - 1 - program, program)


@gluon.jit
def item_at(call, count):
    """The program's next item, once it has had so many. Items are dealt out in rounds, those that cost most first.
    Every second program begins with its last one: some wait for memory while others multiply.
    """
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    programs, program = special_register("%nctaid.x"), special_register("%ctaid.x")
    items = gl.load(call.Counts)
    rounds = items // programs
    rounds += gl.where(place_in_round(rounds, programs, program) < items - rounds * programs, 1, 0)
    there = count < rounds
    round = gl.where((program & 1) == 1, rounds - 1 - count, count)
    number = round * programs + place_in_round(round, programs, program)
    fields = call.Items + gl.where(there, number, 0).to(gl.int64) * FIELDS
    sequence = sequence_at(
        gl.load(fields + SEQUENCE), 1 if call.PAGED else 0, opaque(call.features), call.lo, call.hi, call.CuSeqlensQ,
        call.CuSeqlensK, call.SequsedQ, call.SequsedK, call.max_seqlen_q, call.max_seqlen_k,
    )  # fmt: skip
    position = gl.load(fields + POSITION)
    first, behind = keys_of_tile(sequence, position, CONSUMERS * (64 // call.packed), BLOCK_N)
    first = gl.maximum(first, gl.load(fields + FIRST_KEY))
    count = (gl.minimum(behind, gl.load(fields + BEHIND)) - first + BLOCK_N - 1) // BLOCK_N
    return Item(
        there.to(gl.int32), position, gl.load(fields + HEAD), sequence, first, gl.maximum(count, 1),
        gl.load(fields + PLACE),
    )  # fmt: skip


@gluon.jit
def part_of_consumer(call, item, C: gl.constexpr):
    """What consumer C does of an item: the steps that it lets pass at its beginning and at its end, and the keys,
    multiples of BLOCK_N, from and before which it needs no mask. It takes one step if none of its rows are used.
    """
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    MOST: gl.constexpr = most_passed(64, BLOCK_N)  # steps that the bands of both are apart
    each = 64 // opaque(call.packed)
    begin = item.position + C * each
    q, k = item.sequence.q, item.sequence.k
    first, clear, full, after = visited(
        begin, begin + each, q.used, k.used, item.sequence.lo, item.sequence.hi, BLOCK_N
    )  # fmt: skip
    full = gl.where(begin + each > q.used, 0, full)  # rows that are not used see nothing
    passed = item.count * 0
    left = item.count * 0
    if C == 0:
        passed = gl.maximum(item.first + item.count * BLOCK_N - after, 0) // BLOCK_N
        passed = gl.minimum(gl.minimum(passed, MOST), item.count - 1)
    else:
        left = gl.maximum(first - item.first, 0) // BLOCK_N
        left = gl.minimum(gl.minimum(left, MOST), item.count - 1)
    idle = begin >= q.used
    passed = gl.where(idle, item.count - 1, passed)
    return gl.where(item.there > 0, passed, 0), gl.where(idle, 0, left), clear, full


@gluon.jit
def masked(call, s, item, key, C: gl.constexpr):
    """Scores, minus infinity where a row of consumer C does not see the key; those of s begin at `key`."""
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
def walk(call, item, s, scale, first, last, passed, clear, unmasked, C: gl.constexpr):
    """Steps of an item from `first`, whose scores are s, to before `last`: the weights of the last keys, Out without
    their values, and by lanes the base and the sums of rows. `passed`, `clear`, `unmasked`: see part_of_consumer.
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
    key = item.first + (item.count - 1 - passed) * BLOCK_N
    if (key < clear) | (key >= unmasked):
        s = masked(call, s, item, key, C)
    base = gl.maximum(first_base(s, scale), LOWEST_BASE)
    p, row_sum = exponentials(s, base, scale)
    p = gl.convert_layout(p.to(dtype), P_LAYOUT)
    out = zeros(k_slots, 64)
    if ((opaque(call.features) & (PACKED | USED_K)) != 0) & (key + BLOCK_N > item.sequence.k.used):
        await_step(full, first + 1, STAGES)
        clear_values(v_slots, slot_of(first + 1, STAGES), item.sequence.k.used - key)

    q = own_rows(call.q_slots, C)
    for step in range(first + 1, last):
        key -= BLOCK_N
        await_step(full, step, STAGES)
        s = scores(q, k_slots, slot_of(step, STAGES), no_s)
        out_next = weighted(p, v_slots, slot_of(step, STAGES), out)
        s = warpgroup_mma_wait(len(out), deps=[s])
        if (key < clear) | (key >= unmasked):
            s = masked(call, s, item, key, C)
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
    group_size = opaque(call.num_heads_q) // call.num_heads_k
    item = item_at(call, 0)
    count = 0  # of items
    step = 0
    used = 0  # the step with which Q's place was given back by the item before
    if not KEYS:
        mbarrier.arrive(full.index(0), pred=item.there > 0)
        step += 1
    while item.there > 0:
        head = item.head * call.packed // group_size
        box = last_box(call, item, BLOCK_N)
        for number in range(0, item.count):
            slot = acquire(empty, step, STAGES)
            mbarrier.expect(full.index(slot), BYTES)
            row = item.first + (item.count - 1 - number) * BLOCK_N
            box = load(call, item, tensors, slots, slot, box, head, row)
            if KEYS:  # noqa: SIM102 (known when compiled, as the next is not)
                if number == 0:
                    # Nothing to wait for where that slot has been loaded again.
                    not_yet = (count > 0) & (step < used + STAGES)
                    mbarrier.wait(empty.index(slot_of(used, STAGES)), phase_of(used, STAGES), pred=not_yet)
                    for c in gl.static_range(CONSUMERS):
                        load_queries(call, item, c)
            step += 1
        used = step - 1
        count += 1
        item = item_at(call, count)
    if KEYS:  # noqa: SIM102
        if count > 0:
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
def store_part(call, item, out, base, row_sum, C: gl.constexpr):
    """What a part of the keys makes of the rows of a tile, and the logarithms of their sums of weights."""
    BY_ROWS: gl.constexpr = base.type.layout
    first = item.place.to(gl.int64) * TILE_ROWS + C * 64
    rows = first + gl.arange(0, 64, BY_ROWS)
    gl.store(call.PartsL + rows, base + gl.log2(row_sum))
    factor = 1.0 / gl.where(row_sum == 0.0, 1.0, row_sum)
    LAYOUT: gl.constexpr = out[0].type.layout
    columns = gl.arange(0, out[0].shape[1], gl.SliceLayout(0, LAYOUT))
    rows = first + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    offsets = gl.expand_dims(rows * call.head_dim_v, 1) + gl.expand_dims(columns, 0)
    there = gl.expand_dims(columns < call.head_dim_v, 0) & gl.full([64, 1], True, gl.int1, LAYOUT)
    gl.store(call.Parts + offsets, scaled(out[0], factor), mask=there)


@gluon.jit
def consumer(call, C: gl.constexpr):
    """Consumer C of a program: the 64 rows of each item from row 64 * C."""
    k_slots, v_slots, full, empty = call.k_slots, call.v_slots, call.full, call.empty
    STAGES: gl.constexpr = call.STAGES
    BLOCK_N: gl.constexpr = k_slots[0].shape[3]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])

    # Exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = gl.maximum(opaque(call.sm_scale) * LOG2_E, 1e-30)
    item = item_at(call, 0)
    passed, left, clear, unmasked = part_of_consumer(call, item, C)
    count = 0  # of items
    start = 0  # the item's step 0
    s = begin(call, C, 0, -1, passed, item.there)
    s = warpgroup_mma_wait(0, deps=[s])
    release(empty, passed, STAGES)

    while item.there > 0:
        first = start + passed
        last = start + item.count - left  # brings the last values
        count += 1
        next_item = item_at(call, count)  # which takes a while
        p, out, base, row_sum = walk(call, item, s, scale, first, last, passed, clear, unmasked, C)

        # The last values, and the first scores of the next item
        await_step(full, last, STAGES)
        out = weighted(p, v_slots, slot_of(last, STAGES), out)
        start += item.count
        passed, left, clear, unmasked = part_of_consumer(call, next_item, C)
        first = gl.where(next_item.there > 0, start + passed, last)
        out = finished(out, 0)
        if first != last:
            release(empty, last, STAGES)

        # What was taken by lanes is put together.
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, S_LAYOUT))
        base = gl.convert_layout(gl.max(base, 1), gl.SliceLayout(1, S_LAYOUT))
        if item.place < 0:
            store_whole(call, item, out, base, row_sum, C)
        else:
            store_part(call, item, out, base, row_sum, C)

        s = begin(call, C, count & 1, last, first, next_item.there)
        s = warpgroup_mma_wait(0, deps=[s])
        release(empty, first, STAGES)
        item = next_item


@gluon.jit
def page_slots(tensor, COUNT: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr):
    """Shared memory for so many matrices of keys or values, as a box of all their rows would fill it."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, BLOCK_N, COLUMNS], tensor.dtype)
    return gl.allocate_shared_memory(tensor.dtype, [COUNT, 1, 1, BLOCK_N, COLUMNS], LAYOUT)


@gluon.jit
def await_plan(x):
    """Waits for what the kernel before this one writes. Returns x."""
    line: gl.constexpr = "griddepcontrol.wait; mov.b32 $0, $1;"
    return gl.inline_asm_elementwise(line, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)


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
    packed = await_plan(packed)
    call = Call(
        Items, Counts, Out, stride_out_b, stride_out_h, stride_out_s, L, Parts, PartsL, Q, K, V, q_slots, k_slots,
        v_slots, q_full, full, empty, store_lse, sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k,
        head_dim_v, packed, lo, hi, features, Sinks, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, BlockTable,
        stride_table, page_size, magic, pages, box, STAGES, PAGED,
    )  # fmt: skip
    gl.warp_specialize(
        [(consumer, (call, 0)), (consumer, (call, 1)), (producer, (call, True)), (producer, (call, False))],
        [4, 1, 1], [224, 56, 56],
    )  # fmt: skip
