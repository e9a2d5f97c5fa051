"""Keys and values of 8 bits in the planned forward for Hopper: products take them in fp16, which holds each of them.

One warp loads them, and two others convert them, one the keys and one the values, a tile ahead of the products:

    loader        fp8.full, 1   ─▶ both converters    bytes of a tile of keys, and of its values
    converters    full, 2       ─▶ both consumers     what the consumers know: keys in fp16, and the values before
                  fp8.empty, 2  ─▶ loader

A consumer divides each of its rows of queries by a power of two, so that fp16 holds it, before an item's first scores.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.forward_features import LOG2_E
from aotriton.tritonsrc.flash.lib.fp8 import descale_of, power_below
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.pipeline import acquire, await_step, barriers, init_all, release, slot_of
from aotriton.tritonsrc.flash.lib.planned_items import (
    COUNT,
    ITEM_SLOTS,
    K_USED,
    THERE,
    TILE_FIRST,
    await_item,
    noted_item,
    of_item,
)
from aotriton.tritonsrc.flash.lib.planned_loads import (
    KEYS_AHEAD,
    last_box,
    load,
    load_queries,
    queries_place,
    whole_slots,
)
from aotriton.tritonsrc.flash.lib.softmax import first_base, for_lanes, of_lanes

GROUP = gl.constexpr(8)  # rows that are converted at once: the pattern in which they are swizzled is of so many
WORD = gl.constexpr(4)  # bytes
MOST_BYTES = gl.constexpr(128)  # of a row that are swizzled together


@bundle
class Fp8Keys:
    """Slots of bytes of keys and of values, their barriers, and what keys and values are multiplied by."""

    slots: gl.tuple
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    KDescale: gl.tensor
    VDescale: gl.tensor
    stride_kdescale_b: gl.tensor
    stride_kdescale_h: gl.tensor
    stride_vdescale_b: gl.tensor
    stride_vdescale_h: gl.tensor
    descales: gl.tensor


@gluon.constexpr_function
def byte_stages(columns):
    """How many slots of bytes there is room for beside those of fp16."""
    return 1 if columns > MOST_BYTES.value else 2


@gluon.jit
def byte_slots(dtype: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr):
    """Slots of bytes, of keys and of values, and the barriers at which they are full and empty."""
    STAGES: gl.constexpr = byte_stages(COLUMNS)
    k, v = whole_slots(dtype, STAGES, BLOCK_N, COLUMNS), whole_slots(dtype, STAGES, BLOCK_N, COLUMNS)
    full, empty = barriers(STAGES), barriers(STAGES)
    init_all(full, 1)
    init_all(empty, 2)  # both converters
    return (k, v), full, empty


@gluon.constexpr_function
def layout_of_group(words):
    """Words of GROUP rows by the lanes of one warp. Each has two neighbouring words at once, half a row is in registers
    where it has 32, and no two lanes that are served together have the same bank.
    """
    registers, lanes = [[0, 1]], [[0, 2], [0, 4]]
    if words >= 16:
        lanes.append([0, 8])
    if words == 32:
        registers += [[0, 16], [2, 0]]
        lanes += [[4, 0], [1, 0]]
    else:
        rows = [[1, 0], [2, 0], [4, 0]]
        registers += rows[5 - len(lanes) :]
        lanes += rows[: 5 - len(lanes)]
    return gl.DistributedLinearLayout(registers, lanes, [], [], [GROUP.value, words])


@gluon.jit
def groups_of(slots, BYTES: gl.constexpr):
    """Slots as words, so many bytes of GROUP rows for each number. Of columns that are swizzled together rows follow
    each other.
    """
    ROW: gl.constexpr = BYTES if BYTES < MOST_BYTES else MOST_BYTES
    COUNT: gl.constexpr = slots.shape[0] * slots.shape[3] * BYTES // (ROW * GROUP)
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(ROW, 32, 2)
    return slots._reinterpret(gl.int32, [COUNT, GROUP, ROW // WORD], LAYOUT)


@gluon.jit
def in_fp16(words):
    """Words of four e4m3 as twice as many of two numbers of fp16."""
    line: gl.constexpr = "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b; }"
    low, high = gl.inline_asm_elementwise(line, "=r,=r,r", [words], dtype=(gl.int32, gl.int32), is_pure=True, pack=1)
    return gl.join(low, high).reshape([words.shape[0], 2 * words.shape[1]])


@gluon.jit
def convert(bytes, byte_slot, slots, slot, used):
    """What is in one slot to another one in fp16; rows from `used` on are zeros."""
    ROWS: gl.constexpr = slots.shape[3]
    COLUMNS: gl.constexpr = slots.shape[4]
    GROUPS: gl.constexpr = ROWS // GROUP
    source = groups_of(bytes, COLUMNS)
    target = groups_of(slots, 2 * COLUMNS)
    SOURCES: gl.constexpr = source.shape[0] // (bytes.shape[0] * GROUPS)  # places of a group
    TARGETS: gl.constexpr = target.shape[0] // (slots.shape[0] * GROUPS)
    WORDS: gl.constexpr = source.shape[2]
    LAYOUT: gl.constexpr = layout_of_group(WORDS)
    row = gl.expand_dims(gl.arange(0, GROUP, gl.SliceLayout(1, LAYOUT)), 1)
    for group in range(0, GROUPS):
        for part in gl.static_range(SOURCES):
            words = source.index((byte_slot * SOURCES + part) * GROUPS + group).load(LAYOUT)
            words = gl.where(row < used - group * GROUP, words, 0)
            to = slot * TARGETS * GROUPS + group
            if WORDS == 32:
                halves = gl.split(words.reshape([GROUP, 2, 16]).permute((0, 2, 1)))
                for half in gl.static_range(2):
                    target.index(to + (2 * part + half) * GROUPS).store(in_fp16(halves[half]))
            else:
                target.index(to).store(in_fp16(words))


@gluon.jit
def loader(call):
    """The warp that loads Q of all items, and the bytes of their keys and values, those of a tile together."""
    fp8 = call.fp8
    tensors = (call.k_tensors[0], call.v_tensors[0])
    BYTE_STAGES: gl.constexpr = fp8.slots[0].shape[0]
    BLOCK_N: gl.constexpr = fp8.slots[0].shape[3]
    BYTES: gl.constexpr = 2 * BLOCK_N * fp8.slots[0].shape[4]
    LEAD: gl.constexpr = KEYS_AHEAD // BLOCK_N
    number = 0  # of items
    step = 0
    await_item(call, 0)
    item = noted_item(call, 0, 1)
    while item.there > 0:
        head = head_k(call, item)
        box = last_box(call, item, BLOCK_N)
        for tile in range(0, item.count):
            slot = acquire(fp8.empty, step, BYTE_STAGES)
            ready = fp8.full.index(slot)
            mbarrier.expect(ready, BYTES)
            row = item.first + (item.count - 1 - tile) * BLOCK_N
            box = load(call, item, tensors, fp8.slots, slot, ready, box, head, row)
            if tile == 0:
                # Only the last use of that step's slot can be under way, as a barrier's wait needs: with two places of
                # bytes, this one is free since the values of the tile two before were converted, to that slot.
                load_queries(call, item, step - 1, number > 0)
            mbarrier.arrive(call.item_wanted, pred=tile == gl.maximum(item.count - LEAD, 0))
            step += 1
        release(call.items_empty, number, ITEM_SLOTS)
        number += 1
        await_item(call, number)
        item = noted_item(call, number, 1)


@gluon.jit
def converter(call, KEYS: gl.constexpr):
    """A warp that converts the keys of all items, or the values, whose tiles come a step later. Of the first step and
    the last one each of the two has nothing to convert, and says so.
    """
    fp8, full, empty = call.fp8, call.full, call.empty
    bytes = fp8.slots[0] if KEYS else fp8.slots[1]
    slots = call.k_slots[0] if KEYS else call.v_slots[0]
    STAGES: gl.constexpr = call.STAGES
    BYTE_STAGES: gl.constexpr = bytes.shape[0]
    BLOCK_N: gl.constexpr = slots.shape[3]
    number = 0  # of items
    tile = 0  # of all items
    await_item(call, 0)
    there = of_item(call, 0, THERE, 1)
    if not KEYS:
        mbarrier.arrive(full.index(0), pred=there > 0)
    while there > 0:
        count = of_item(call, number, COUNT, 1)
        used = of_item(call, number, K_USED, 1) - of_item(call, number, TILE_FIRST, 1) - (count - 1) * BLOCK_N
        release(call.items_empty, number, ITEM_SLOTS)
        for _ in range(0, count):
            await_step(fp8.full, tile, BYTE_STAGES)
            slot = acquire(empty, tile if KEYS else tile + 1, STAGES)
            # Scores of keys that are not used are masked, whatever they are.
            convert(bytes, slot_of(tile, BYTE_STAGES), slots, slot, BLOCK_N if KEYS else used)
            fence_async_shared()
            mbarrier.arrive(full.index(slot))
            release(fp8.empty, tile, BYTE_STAGES)
            used += BLOCK_N
            tile += 1
        number += 1
        await_item(call, number)
        there = of_item(call, number, THERE, 1)
    if KEYS:  # noqa: SIM102
        if number > 0:
            mbarrier.arrive(full.index(acquire(empty, tile, STAGES)))


@gluon.jit
def head_k(call, item):
    """The head of keys of an item."""
    return item.head * call.packed // (opaque(call.num_heads_q) // call.num_heads_k)


@gluon.jit
def queries_in_fp16(call, number, C: gl.constexpr, there):
    """Divides the rows of Q of consumer C, which are there if the item is, by powers of two, in their place, so that
    fp16 holds them. Returns by lanes what a score is multiplied by to be in units of log2; it is positive.
    """
    fp8 = call.fp8
    place = call.q_slots[0].index(C)
    ROWS: gl.constexpr = 64
    COLUMNS: gl.constexpr = call.q_slots[0].shape[5]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    q = queries_place(call, C).reshape([ROWS, COLUMNS]).load(LAYOUT).to(gl.float32)
    item = noted_item(call, number)
    descale = descale_of(
        fp8.KDescale, fp8.stride_kdescale_b, fp8.stride_kdescale_h, item.sequence.index, head_k(call, item),
        opaque(fp8.descales), 1, there,
    )  # fmt: skip
    inverse, power = power_below(first_base(gl.abs(q), gl.to_tensor(1.0)))
    lanes = of_lanes(q)
    q = (lanes * for_lanes(inverse * gl.where(descale < 0, -1.0, 1.0), lanes)).reshape([ROWS, COLUMNS])
    place.reshape([ROWS, COLUMNS]).store(q.to(gl.float16))
    fence_async_shared()
    # Not zero: a masked score stays minus infinity when scaled.
    return gl.maximum(power * (gl.abs(descale) * opaque(call.sm_scale) * LOG2_E), 1e-30)


@gluon.jit
def descale_of_values(call, item):
    """What the values of an item are multiplied by."""
    fp8 = call.fp8
    return descale_of(
        fp8.VDescale, fp8.stride_vdescale_b, fp8.stride_vdescale_h, item.sequence.index, head_k(call, item),
        opaque(fp8.descales), 2,
    )  # fmt: skip
