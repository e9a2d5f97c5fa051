"""The items that the programs of the planned forward for Hopper take: who draws them, and what is noted of them.

A scheduler warp draws the program's items, one after the other, from a count that all programs share, so that programs
end together, however long their items take. It works out what the other warps have to know of an item, and notes it in
shared memory, where it takes no registers:

    scheduler                 item_wanted, 1 ◀─ who loads K, KEYS_AHEAD before the end of the item before
    notes the item            items_full, 1  ─▶ both consumers and those who load keys and values
    waits to overwrite it     items_empty    ◀─ these, when they need it no more
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from aotriton.tritonsrc.flash.lib.band import visited
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.forward_features import most_passed
from aotriton.tritonsrc.flash.lib.notes import note, noted
from aotriton.tritonsrc.flash.lib.opaque import opaque, special_register
from aotriton.tritonsrc.flash.lib.pipeline import acquire, await_step, slot_of
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
from aotriton.tritonsrc.flash.lib.sequence import Sequence, Side

CONSUMERS = gl.constexpr(2)
ITEM_SLOTS = gl.constexpr(4)  # of notes


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
