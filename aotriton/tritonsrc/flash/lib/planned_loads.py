"""What loads the queries, keys and values of the planned forward for Hopper.

Keys and values in pages arrive in boxes of as many rows as lie next to each other in any page, 16 at least, each from a
place of its own. In shared memory they lie as one box of BLOCK_N rows would: of columns that are swizzled together,
rows follow each other, so a box of some of them is a place of a view with 16 rows each.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from aotriton.tritonsrc.flash.lib import constants
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.pages import place_in_table
from aotriton.tritonsrc.flash.lib.pipeline import acquire, phase_of, release, slot_of
from aotriton.tritonsrc.flash.lib.planned_items import CONSUMERS, ITEM_SLOTS, await_item, noted_item

BOX_ROWS = gl.constexpr(constants.PAGE_STEP)  # the least of a box of pages
KEYS_AHEAD = gl.constexpr(256)  # of an item, that are still to be loaded when the next one is drawn
ROWS_OF_PACKED = gl.constexpr((64, 63, 60, 56, 55, 52))  # of 64, those of whole positions, with up to 16 packed heads


@gluon.jit
def whole_slots(dtype: gl.constexpr, COUNT: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr):
    """Shared memory for so many matrices of keys or values, as a box of all their rows would fill it."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, BLOCK_N, COLUMNS], dtype)
    return gl.allocate_shared_memory(dtype, [COUNT, 1, 1, BLOCK_N, COLUMNS], LAYOUT)


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
def boxes_of(slots, tensor):
    """Slots as boxes of BOX_ROWS rows of a tensor in pages."""
    COLUMNS: gl.constexpr = tensor.block_shape[3]
    COUNT: gl.constexpr = slots.shape[0] * slots.shape[3] * slots.shape[4] // (BOX_ROWS * COLUMNS)
    return slots._reinterpret(slots.dtype, [COUNT, 1, 1, BOX_ROWS, COLUMNS], tensor.layout)


@gluon.jit
def load(call, item, tensors, slots, slot, ready, box, head, row):
    """Begin to copy rows of a sequence from `row` on, of each tensor to a slot; returns the box of rows before them."""
    BLOCK_N: gl.constexpr = slots[0].shape[3]
    COLUMNS: gl.constexpr = tensors[0].block_shape[3]
    if call.PAGED:
        PARTS: gl.constexpr = slots[0].shape[4] // COLUMNS
        BOXES: gl.constexpr = BLOCK_N // BOX_ROWS
        count = BLOCK_N // call.box
        for number in range(0, count):
            of_slot = (count - 1 - number) * call.box
            page = gl.where(row + of_slot < item.sequence.k.used, box.page, call.pages)
            for one in gl.static_range(len(tensors)):
                boxes = boxes_of(slots[one], tensors[one])
                for part in gl.static_range(PARTS):
                    at = (slot * PARTS + part) * BOXES + of_slot // BOX_ROWS
                    tma.async_copy_global_to_shared(
                        tensors[one], [page, head, box.row, part * COLUMNS], ready, boxes.index(at)
                    )  # fmt: skip
            in_page = box.row - call.box
            past = in_page < 0
            place = box.place - past.to(gl.int32)
            box = Box(
                gl.where(past, in_page + call.page_size, in_page), gl.where(past, box.before, box.page), place,
                gl.where(past, page_at(call, item, place - 1, past), box.before),
            )  # fmt: skip
    else:
        origin = [item.sequence.batch, head, item.sequence.k.begin + row, 0]
        for one in gl.static_range(len(tensors)):
            tma.async_copy_global_to_shared(tensors[one], origin, ready, slots[one].index(slot))
    return box


@gluon.jit
def queries_place(call, C: gl.constexpr):
    """Where rows of Q of consumer C arrive, with the type that Q has."""
    place, tensor = call.q_slots[0].index(C), call.q_tensors[0]
    if place.dtype == tensor.dtype:
        return place
    else:
        return place._reinterpret(tensor.dtype, tensor.block_shape, tensor.layout)


@gluon.jit
def load_queries(call, item, used, others):
    """Begin to copy an item's rows of Q, once their place was given back with step `used` by the item before, if there
    are `others`.
    """
    STAGES: gl.constexpr = call.STAGES
    mbarrier.wait(call.empty.index(slot_of(used, STAGES)), phase_of(used, STAGES), pred=others)
    for c in gl.static_range(CONSUMERS):
        load_queries_of(call, item, c)


@gluon.jit
def load_queries_of(call, item, C: gl.constexpr):
    """Begin to copy the rows of Q of consumer C."""
    ready = call.q_full.index(C)
    COLUMNS: gl.constexpr = call.q_tensors[0].block_shape[4]
    packed = opaque(call.packed)
    each = 64 // packed
    for i in gl.static_range(len(ROWS_OF_PACKED)):
        mbarrier.expect(ready, ROWS_OF_PACKED[i] * COLUMNS * 2, pred=each * packed == ROWS_OF_PACKED[i])
    origin = [item.sequence.batch, item.head, item.sequence.q.begin + item.position + C * each, 0, 0]
    tma.async_copy_global_to_shared(call.q_tensors[0], origin, ready, queries_place(call, C))


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
            box = load(call, item, tensors, slots, slot, full.index(slot), box, head, row)
            if KEYS:
                if tile == 0:
                    # Nothing to wait for where that slot has been loaded again.
                    load_queries(call, item, used, (number > 0) & (step < used + STAGES))
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
