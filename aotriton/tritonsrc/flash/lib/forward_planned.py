"""Attention forward for Hopper, as `forward_features.py`, whose programs take the items of a plan (`plan.py`) in turns.

An item (`planned_items.py`) is to the warps what a tile is there, with its keys cut off where those of another part
begin; a consumer whose rows are not used lets all steps pass but one. Of a tile with all its keys Out and L are stored;
of a part, in fp32, what its keys make of the rows, and a logarithm of the sum of weights, for
attn_fwd_planned_combine. One producer warp loads Q and K, and another one V (`planned_loads.py`); where these have 8
bits one warp loads them all, and two others convert them (`planned_fp8.py`).

All heads that share keys are packed if they are 16 or fewer: a consumer's 64 rows have as many positions as fit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from aotriton.tritonsrc.flash.lib import constants
from aotriton.tritonsrc.flash.lib.band import inside, keys_of
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.early import await_results
from aotriton.tritonsrc.flash.lib.features import PACKED, SINKS, USED_K
from aotriton.tritonsrc.flash.lib.forward import in_pieces, own_rows, scaled
from aotriton.tritonsrc.flash.lib.forward_features import FAR, LN_2, LOG2_E, LOWEST_BASE, begin, clear_values
from aotriton.tritonsrc.flash.lib.hopper_column_parts import finished, scores, slots, weighted, zeros
from aotriton.tritonsrc.flash.lib.notes import notes
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.pipeline import (
    await_step,
    barrier,
    barriers,
    init_all,
    release,
    skip,
    slot_of,
)
from aotriton.tritonsrc.flash.lib.planned_fp8 import (
    Fp8Keys,
    byte_slots,
    converter,
    descale_of_values,
    loader,
    queries_in_fp16,
)
from aotriton.tritonsrc.flash.lib.planned_items import (
    CLEAR,
    CONSUMERS,
    COUNT,
    ITEM_SLOTS,
    K_USED,
    LEFT,
    NOTES,
    OF_CONSUMER,
    PASSED,
    THERE,
    TILE_FIRST,
    UNMASKED,
    await_item,
    noted_item,
    of_item,
    scheduler,
)
from aotriton.tritonsrc.flash.lib.planned_loads import producer, whole_slots
from aotriton.tritonsrc.flash.lib.quads import in_quads, layout_of_quads
from aotriton.tritonsrc.flash.lib.softmax import exponentials, first_base, raised, rescaled, top

TILE_ROWS = gl.constexpr(constants.PLAN_TILE_ROWS)


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
    fp8: Fp8Keys
    STAGES: gl.constexpr
    PAGED: gl.constexpr
    FP8: gl.constexpr

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
    dtype: gl.constexpr = k_slots[0].dtype
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
    if not call.FP8:
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
    if call.FP8:
        factor *= descale_of_values(call, item)
    QUADS: gl.constexpr = layout_of_quads(out[0].shape[1])
    at, head = call.rows(item, C, QUADS)
    columns = gl.arange(0, out[0].shape[1], gl.SliceLayout(0, QUADS))
    origin = item.sequence.batch * call.stride_out_b + item.sequence.q.begin * call.stride_out_s
    rows = call.Out + origin + head * call.stride_out_h + at * call.stride_out_s
    there = gl.expand_dims(at < item.sequence.q.rows, 1) & gl.expand_dims(columns < call.head_dim_v, 0)
    result = in_quads(scaled(out[0], factor).to(call.q_tensors[0].dtype))
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
    if call.FP8:
        factor *= descale_of_values(call, item)
    PIECES: gl.constexpr = 2 if out[0].shape[1] == 256 else 1  # else addresses take more registers than there are
    COLUMNS: gl.constexpr = out[0].shape[1] // PIECES
    pieces = in_pieces(scaled(out[0], factor), PIECES)
    for piece in gl.static_range(PIECES):
        store_columns(call, pieces[piece], first, piece * COLUMNS)


@gluon.jit
def ready_queries(call, number, C: gl.constexpr, held, first, there):
    """Lets the steps go by that lie between step `held` and an item's first one, as `begin` does, since what they hold
    may be needed for the item's rows of Q to come, and has these in fp16. Returns the step before the first one, and
    what a score is multiplied by.
    """
    for passed in range(held + 1, first):
        skip(call.full, call.empty, passed, call.STAGES)
    mbarrier.wait(call.q_full.index(C), number & 1, pred=there > 0)
    return gl.maximum(held, first - 1), queries_in_fp16(call, number, C, there > 0)


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
    held = -1
    if call.FP8:
        held, scale = ready_queries(call, 0, C, held, first, there)
    s = begin(call, C, 0, held, first, there)
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
        if call.FP8:
            last, scale = ready_queries(call, number, C, last, first, there)
        s = begin(call, C, number & 1, last, first, there)
        s = warpgroup_mma_wait(0, deps=[s])
        release(empty, first, STAGES)


@gluon.jit
def forward_planned(
    Items, Counts, Q, K, V, Out, stride_out_b, stride_out_h, stride_out_s, L, Parts, PartsL, store_lse, sm_scale,
    num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_v, packed, lo, hi, features, Sinks, CuSeqlensQ,
    CuSeqlensK, SequsedQ, SequsedK, BlockTable, stride_table, page_size, magic, pages, box,
    BLOCK_N: gl.constexpr, BLOCK_DMODEL: gl.constexpr, STAGES: gl.constexpr, PAGED: gl.constexpr,
    KDescale=0, VDescale=0, stride_kdescale_b=0, stride_kdescale_h=0, stride_vdescale_b=0, stride_vdescale_h=0,
    descales=0,
):  # fmt: skip
    """The program of attn_fwd_hopper_planned and of its kernels for pages and for keys of 8 bits, whose arguments these
    are, with tuples of tensors.
    """
    FP8: gl.constexpr = K[0].dtype != Q[0].dtype
    DTYPE: gl.constexpr = gl.float16 if FP8 else Q[0].dtype  # of products
    LOADING: gl.constexpr = 3 if FP8 else 2  # warps that wait for an item, besides consumers
    q_slots = slots(Q, CONSUMERS)
    k_slots = (whole_slots(DTYPE, STAGES, BLOCK_N, BLOCK_DMODEL),)
    v_slots = (whole_slots(DTYPE, STAGES, BLOCK_N, BLOCK_DMODEL),)
    q_full = barriers(CONSUMERS)
    full = barriers(STAGES)
    empty = barriers(STAGES)
    init_all(q_full, 1)
    init_all(full, 2)  # both producers, or converters
    init_all(empty, CONSUMERS)
    items_full = barriers(ITEM_SLOTS)
    items_empty = barriers(ITEM_SLOTS)
    init_all(items_full, 1)
    init_all(items_empty, CONSUMERS + LOADING)
    item_wanted = barrier()
    mbarrier.init(item_wanted, count=1)
    fp8 = 0
    if FP8:
        if Q[0].dtype != DTYPE:
            q_slots = (q_slots[0]._reinterpret(DTYPE, q_slots[0].shape, q_slots[0].layout),)
        bytes, bytes_full, bytes_empty = byte_slots(K[0].dtype, BLOCK_N, BLOCK_DMODEL)
        fp8 = Fp8Keys(
            bytes, bytes_full, bytes_empty, KDescale, VDescale, stride_kdescale_b, stride_kdescale_h,
            stride_vdescale_b, stride_vdescale_h, descales,
        )  # fmt: skip
    packed = await_results(packed)
    call = Call(
        Items, Counts, Out, stride_out_b, stride_out_h, stride_out_s, L, Parts, PartsL, Q, K, V, q_slots, k_slots,
        v_slots, q_full, full, empty, notes(ITEM_SLOTS * NOTES), items_full, items_empty, item_wanted, store_lse,
        sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_v, packed, lo, hi, features, Sinks,
        CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, BlockTable, stride_table, page_size, magic, pages, box, fp8,
        STAGES, PAGED, FP8,
    )  # fmt: skip
    if FP8:
        gl.warp_specialize(
            [
                (consumer, (call, 0)), (consumer, (call, 1)), (loader, (call,)), (converter, (call, True)),
                (converter, (call, False)), (scheduler, (call,)),
            ],
            [4, 1, 1, 1, 1], [224, 56, 56, 56, 56],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consumer, (call, 0)), (consumer, (call, 1)), (producer, (call, True)), (producer, (call, False)),
                (scheduler, (call,)),
            ],
            [4, 1, 1, 1], [224, 56, 56, 56],
        )  # fmt: skip
