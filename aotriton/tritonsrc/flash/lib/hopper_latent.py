"""Latent attention for Hopper: 64 rows of a tile, in a producer warp and two consumers.

Keys are loaded once, into the slots of a step, for both products. The first consumer multiplies queries and keys, and
leaves the weights in shared memory; each consumer multiplies them with half of the values' columns, as no one has
registers for all.
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

from aotriton.tritonsrc.flash.lib import constants
from aotriton.tritonsrc.flash.lib.band import inside, keys_of
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import PACKED, SINKS, USED_K
from aotriton.tritonsrc.flash.lib.forward import scaled
from aotriton.tritonsrc.flash.lib.forward_features import LN_2, LOG2_E, LOWEST_BASE, clear_values, of_rows
from aotriton.tritonsrc.flash.lib.hopper_column_parts import matrix
from aotriton.tritonsrc.flash.lib.latent import HALF, LATENT, ROPE
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.pages import place_in_table
from aotriton.tritonsrc.flash.lib.partial import visited_by_rows
from aotriton.tritonsrc.flash.lib.pipeline import acquire, barrier, barriers, init_all, phase_of, release, slot_of
from aotriton.tritonsrc.flash.lib.plan import sequence_at
from aotriton.tritonsrc.flash.lib.quads import in_quads, layout_of_quads
from aotriton.tritonsrc.flash.lib.sequence import Sequence
from aotriton.tritonsrc.flash.lib.softmax import exponentials, raised, rescaled, top
from aotriton.tritonsrc.flash.lib.split import program_of

BLOCK_M = gl.constexpr(constants.LATENT_TILE_ROWS)
COLUMNS = gl.constexpr(constants.SWIZZLED)
# Keys of a step arrive in parts of their columns, each with a barrier of its own, so that the product with queries
# begins before all are there. The last part has the columns behind the latent ones, too.
PARTS = gl.constexpr(4)
PART = gl.constexpr(128)  # columns


@bundle
class Call:
    """What the warps of a program share: tensors, slots, barriers, the tile, its part of the keys, and constants.

    Keys of the part are ``count`` steps from key ``begin`` on, to before key ``end``. Those from `clear` on and before
    `full_keys` need no mask.
    """

    Q: gl.tensor
    stride_q_b: gl.tensor
    stride_q_h: gl.tensor
    stride_q_s: gl.tensor
    K: gl.tensor
    Out: gl.tensor
    stride_out_b: gl.tensor
    stride_out_h: gl.tensor
    stride_out_s: gl.tensor
    L: gl.tensor
    Partial: gl.tensor
    PartialL: gl.tensor
    Sinks: gl.tensor
    store_lse: gl.tensor
    sm_scale: gl.tensor
    num_heads_q: gl.tensor
    max_seqlen_q: gl.tensor
    features: gl.tensor
    rows_of_all: gl.tensor
    splits: gl.tensor
    split: gl.tensor
    sequence: Sequence
    head_k: gl.tensor
    group: gl.tensor
    first_row: gl.tensor
    begin: gl.tensor
    end: gl.tensor
    clear: gl.tensor
    full_keys: gl.tensor
    count: gl.tensor
    Table: gl.tensor
    page_size: gl.tensor
    magic: gl.tensor
    pages: gl.tensor
    box: gl.tensor
    q_slots: gl.tuple
    k_slots: gl.tuple
    p_slot: gl.shared_memory_descriptor
    factors: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    p_full: gl.shared_memory_descriptor
    p_empty: gl.shared_memory_descriptor
    STAGES: gl.constexpr
    PAGED: gl.constexpr

    @gluon.jit
    def rows(self, LAYOUT: gl.constexpr):
        """Of each row of the tile: the position in its sequence, and the head, which are not kept for the next time."""
        packed = opaque(self.first_row) + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT))
        position = packed // self.group
        return position, self.head_k * self.group + packed - position * self.group


@gluon.jit
def page_at(call, key):
    """The page of a key, or a number that no page has."""
    used = key < call.sequence.k.used
    return gl.load(call.Table + place_in_table(call, key), mask=used, other=call.pages)


@gluon.jit
def load_columns(call, origin, row, slot, PART_NUMBER: gl.constexpr):
    """Begin to copy one part of the columns of a box to its place: row ``row`` of a slot."""
    K, latent, rope = call.K, call.k_slots[0], call.k_slots[1]
    ROWS: gl.constexpr = K.block_shape[2]
    OF_LATENT: gl.constexpr = LATENT // COLUMNS
    BOXES: gl.constexpr = latent.shape[3] // ROWS
    COUNT: gl.constexpr = latent.shape[0] * BOXES
    of_latent = latent._reinterpret(K.dtype, [COUNT * OF_LATENT, 1, 1, ROWS, COLUMNS], K.layout)
    of_rope = rope._reinterpret(K.dtype, [COUNT, 1, 1, ROWS, COLUMNS], K.layout)
    ready = call.full.index(slot * PARTS + PART_NUMBER)
    box = row // ROWS
    FIRST: gl.constexpr = PART_NUMBER * (PART // COLUMNS)
    for one in gl.static_range(FIRST, FIRST + PART // COLUMNS):
        place = of_latent.index((slot * OF_LATENT + one) * BOXES + box)
        tma.async_copy_global_to_shared(K, [origin[0], call.head_k, origin[1], one * COLUMNS], ready, place)
    if PART_NUMBER == PARTS - 1:
        place = of_rope.index(slot * BOXES + box)
        tma.async_copy_global_to_shared(K, [origin[0], call.head_k, origin[1], LATENT], ready, place)


@gluon.constexpr_function
def width_of(part):
    """The columns of a part."""
    return PART.value + (ROPE.value if part == PARTS.value - 1 else 0)


@gluon.jit
def load_step(call, key, page, slot):
    """Begin to copy the keys from ``key`` on to a slot. Returns the page of the keys behind them."""
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    for part in gl.static_range(PARTS):
        mbarrier.expect(call.full.index(slot * PARTS + part), BLOCK_N * width_of(part) * 2)
    if call.PAGED:
        for row in range(0, BLOCK_N, call.box):
            next_page = page_at(call, key + row + call.box)
            in_page = key + row - place_in_table(call, key + row) * call.page_size
            for part in gl.static_range(PARTS):
                load_columns(call, (page, in_page), row, slot, part)
            page = next_page
    else:
        for part in gl.static_range(PARTS):
            load_columns(call, (call.sequence.batch, call.sequence.k.begin + key), 0, slot, part)
    return page


@gluon.jit
def producer(call):
    """The producer warp: loads the keys of all steps."""
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    page = call.begin * 0
    if call.PAGED:
        page = page_at(call, call.begin)
    for step in range(0, call.count):
        slot = acquire(call.empty, step, call.STAGES)
        page = load_step(call, call.begin + step * BLOCK_N, page, slot)


@gluon.jit
def await_part(call, step, part):
    """Wait until a part of the columns of a step's keys is there."""
    slot = slot_of(step, call.STAGES)
    mbarrier.wait(call.full.index(slot * PARTS + part), phase_of(step, call.STAGES))


@gluon.jit
def queries(call, COLUMN: gl.constexpr, WIDTH: gl.constexpr):
    """[BLOCK_M, WIDTH] queries of the tile; those outside are zero."""
    LAYOUT: gl.constexpr = of_rows(WIDTH)
    of = call.sequence
    position, head = call.rows(LAYOUT)
    columns = COLUMN + gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    origin = call.Q + of.batch * call.stride_q_b + of.q.begin.to(gl.int64) * call.stride_q_s
    rows = gl.expand_dims(origin + (head * call.stride_q_h + position * call.stride_q_s), 1)
    there = gl.expand_dims(position < of.q.rows, 1) & gl.expand_dims(columns >= 0, 0)
    return gl.load(rows + gl.expand_dims(columns, 0), mask=there, other=0.0)


@gluon.jit
def begin_scores(call, step):
    """Begin S = Q Kᵀ of a step, as soon as its keys are there."""
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    slot = slot_of(step, call.STAGES)
    s = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, S_LAYOUT)
    latent, rope = matrix(call.k_slots[0], slot), matrix(call.k_slots[1], slot)
    for part in gl.static_range(PARTS):
        await_part(call, step, part)
        q, k = call.q_slots[0].slice(part * PART, PART, 1), latent.slice(part * PART, PART, 1)
        s = warpgroup_mma(q, k.permute((1, 0)), s, use_acc=part > 0, is_async=True)
    return warpgroup_mma(call.q_slots[1], rope.permute((1, 0)), s, is_async=True)


@gluon.jit
def masked(call, s, key):
    """Scores, minus infinity where a row does not see the key; those of s begin at ``key``."""
    LAYOUT: gl.constexpr = s.type.layout
    keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT))
    position, _ = call.rows(LAYOUT)
    first, count = keys_of(call.sequence, position)
    seen = inside(gl.expand_dims(keys, 0), gl.expand_dims(first, 1), gl.expand_dims(count, 1))
    return gl.where(seen & gl.expand_dims(keys < call.end, 0), s, float("-inf"))


@gluon.jit
def weigh(call, s, step, scale, base, row_sum):
    """The weights of a step from its scores, left to the other consumer with the factors of what is summed up so far.
    Returns them, the factors, the base and the sums of weights.
    """
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    key = call.begin + step * BLOCK_N
    if (key < call.clear) | (key + BLOCK_N > call.full_keys):
        s = masked(call, s, key)
    base_before = base
    base = raised(base, top(s, scale))
    correction = gl.exp2(base_before - base)
    p, sums = exponentials(s, base, scale)
    p = p.to(call.Q.dtype.element_ty)
    if (call.PAGED | ((call.features & (PACKED | USED_K)) != 0)) & (key + BLOCK_N > call.sequence.k.used):
        clear_values((call.k_slots[0],), slot_of(step, call.STAGES), call.sequence.k.used - key)
    mbarrier.wait(call.p_empty, step & 1 ^ 1)
    call.p_slot.store(p)
    call.factors.store(correction)
    fence_async_shared()
    mbarrier.arrive(call.p_full)
    return p, correction, base, row_sum * correction + sums


@gluon.jit
def add_values(call, p, step, out, correction, COLUMN: gl.constexpr):
    """Begin to add weights times half of the values' columns to ``out``, whose rows are multiplied by `correction`."""
    values = matrix(call.k_slots[0], slot_of(step, call.STAGES)).slice(COLUMN, HALF, 1)
    return warpgroup_mma(p, values, rescaled(out, correction), is_async=True)


@gluon.jit
def first_consumer(call):
    """Scores, weights, and the first half of the columns."""
    BLOCK_N: gl.constexpr = call.k_slots[0].shape[3]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, OUT_LAYOUT, 2)
    latent, rope = queries(call, 0, LATENT), queries(call, LATENT, ROPE)
    call.q_slots[0].store(latent)
    call.q_slots[1].store(rope)
    fence_async_shared()
    # Exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = gl.maximum(call.sm_scale * LOG2_E, 1e-30)
    out = gl.zeros([BLOCK_M, HALF], gl.float32, OUT_LAYOUT)
    s = begin_scores(call, 0)
    s = warpgroup_mma_wait(0, deps=[s])
    row_sum = gl.zeros_like(top(s, scale))
    base = row_sum + LOWEST_BASE
    for step in range(0, call.count - 1):
        p, correction, base, row_sum = weigh(call, s, step, scale, base, row_sum)
        out = add_values(call, gl.convert_layout(p, P_LAYOUT), step, out, correction, 0)
        out = warpgroup_mma_wait(0, deps=[out])
        release(call.empty, step, call.STAGES)  # before it waits for keys, so that two steps are on their way
        s = begin_scores(call, step + 1)
        s = warpgroup_mma_wait(0, deps=[s])
    last = call.count - 1
    p, correction, base, row_sum = weigh(call, s, last, scale, base, row_sum)
    out = add_values(call, gl.convert_layout(p, P_LAYOUT), last, out, correction, 0)
    out = warpgroup_mma_wait(0, deps=[out])

    # What was taken by lanes is put together.
    row_sum = gl.convert_layout(gl.sum(row_sum, 1), gl.SliceLayout(1, S_LAYOUT))
    base = gl.convert_layout(gl.max(base, 1), gl.SliceLayout(1, S_LAYOUT))
    factor = finish(call, base, row_sum)
    mbarrier.wait(call.p_empty, call.count & 1 ^ 1)
    call.factors.store(factors_by_lanes(factor, correction))
    mbarrier.arrive(call.p_full)
    store(call, out, factor, 0)


@gluon.jit
def factors_by_lanes(factor, like):
    """The factor of each row, in each of its lanes."""
    LAYOUT: gl.constexpr = like.type.layout
    return gl.expand_dims(gl.convert_layout(factor, gl.SliceLayout(1, LAYOUT)), 1) + gl.zeros_like(like)


@gluon.jit
def second_consumer(call):
    """The second half of the columns."""
    OUT_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    out = gl.zeros([BLOCK_M, HALF], gl.float32, OUT_LAYOUT)
    LANES: gl.constexpr = top(out, gl.to_tensor(1.0)).type.layout
    for step in range(0, call.count):
        mbarrier.wait(call.p_full, step & 1)
        for part in gl.static_range(HALF // PART, PARTS):
            await_part(call, step, part)
        correction = call.factors.load(LANES)
        out = add_values(call, call.p_slot, step, out, correction, HALF)
        out = warpgroup_mma_wait(0, deps=[out])
        mbarrier.arrive(call.p_empty)
        release(call.empty, step, call.STAGES)
    mbarrier.wait(call.p_full, call.count & 1)
    factor = gl.convert_layout(gl.max(call.factors.load(LANES), 1), gl.SliceLayout(1, OUT_LAYOUT))
    store(call, out, factor, HALF)


@gluon.jit
def finish(call, base, row_sum):
    """Stores what each row's logsumexp is, of the part in units of log2. Returns the factors of its sum of values."""
    LAYOUT: gl.constexpr = base.type.layout.parent
    of = call.sequence
    position, head = call.rows(LAYOUT)
    there = position < of.q.rows
    in_l = (of.batch * call.num_heads_q + head).to(gl.int64) * call.max_seqlen_q + (of.q.begin + position)
    correction = gl.full_like(base, 1.0)
    if call.splits == 1:
        if (call.features & SINKS) != 0:
            sink = gl.load(call.Sinks + head, mask=there, other=0.0) * LOG2_E
            raised_base = gl.maximum(base, sink)
            correction = gl.exp2(base - raised_base)
            row_sum = row_sum * correction + gl.exp2(sink - raised_base)
            base = raised_base
        if call.store_lse != 0:
            lse = gl.where(position < of.q.used, (base + gl.log2(row_sum)) * LN_2, float("-inf"))
            gl.store(call.L + in_l, lse, mask=there)
    else:
        in_l += call.split.to(gl.int64) * call.rows_of_all
        gl.store(call.PartialL + in_l, base + gl.log2(row_sum), mask=there)
    return correction / gl.where(row_sum == 0.0, 1.0, row_sum)


@gluon.jit
def store_whole(call, out, COLUMN: gl.constexpr):
    """Half of the columns of Out, of a tile whose keys are not split."""
    LAYOUT: gl.constexpr = layout_of_quads(HALF)
    of = call.sequence
    position, head = call.rows(LAYOUT)
    columns = gl.expand_dims(COLUMN + gl.arange(0, HALF, gl.SliceLayout(0, LAYOUT)), 0)
    origin = call.Out + of.batch * call.stride_out_b + of.q.begin.to(gl.int64) * call.stride_out_s
    rows = gl.expand_dims(origin + (head * call.stride_out_h + position * call.stride_out_s), 1)
    there = gl.expand_dims(position < of.q.rows, 1) & (columns >= 0)
    gl.store(rows + columns, in_quads(out.to(call.Out.dtype.element_ty)), mask=there)


@gluon.jit
def store_part(call, out, COLUMN: gl.constexpr):
    """Half of the columns of what a part of the keys makes of the rows."""
    LAYOUT: gl.constexpr = out.type.layout
    of = call.sequence
    position, head = call.rows(LAYOUT)
    columns = gl.expand_dims(COLUMN + gl.arange(0, HALF, gl.SliceLayout(0, LAYOUT)), 0)
    in_l = (of.batch * call.num_heads_q + head).to(gl.int64) * call.max_seqlen_q + (of.q.begin + position)
    rows = gl.expand_dims((in_l + call.split.to(gl.int64) * call.rows_of_all) * LATENT, 1)
    there = gl.expand_dims(position < of.q.rows, 1) & (columns >= 0)
    gl.store(call.Partial + rows + columns, out, mask=there)


@gluon.jit
def store(call, out, factor, COLUMN: gl.constexpr):
    """Half of the columns of a tile's results, each row times its factor."""
    out = scaled(out, factor)
    if call.splits == 1:
        store_whole(call, out, COLUMN)
    else:
        store_part(call, out, COLUMN)


@gluon.jit
def key_slots(K, COUNT: gl.constexpr, BLOCK_N: gl.constexpr, WIDTH: gl.constexpr):
    """Shared memory for so many matrices of keys."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, BLOCK_N, WIDTH], K.dtype)
    return gl.allocate_shared_memory(K.dtype, [COUNT, 1, 1, BLOCK_N, WIDTH], LAYOUT)


@gluon.jit
def operand_slot(DTYPE: gl.constexpr, WIDTH: gl.constexpr):
    """Shared memory for an operand of the tile's rows."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, WIDTH], DTYPE)
    return gl.allocate_shared_memory(DTYPE, [BLOCK_M, WIDTH], LAYOUT)


@gluon.jit
def forward_latent(
    Q, K, Out, L, Partial, PartialL, store_lse, sm_scale, stride_q_b, stride_q_h, stride_q_s,
    stride_out_b, stride_out_h, stride_out_s, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, lo, hi, features,
    Sinks, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, longest, rows_of_all, splits, keys_of_split,
    BlockTable, stride_table, page_size, magic, pages, box,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, PAGED: gl.constexpr,
):  # fmt: skip
    """The program of attn_fwd_hopper_latent and attn_fwd_hopper_latent_paged, whose arguments these are."""
    group = num_heads_q // num_heads_k
    tile, split, head_k, index = program_of((longest * group + BLOCK_M - 1) // BLOCK_M, splits, num_heads_k)
    of = sequence_at(
        index, 1 if PAGED else 0, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q,
        max_seqlen_k,
    )  # fmt: skip
    first_row = tile * BLOCK_M
    first, clear, full_keys, after = visited_by_rows(
        of, first_row // group, (first_row + BLOCK_M + group - 1) // group
    )  # fmt: skip
    after = gl.where(first_row < of.q.rows * group, after, first)
    # In pages each box begins where a box of the page does; the last part has what is left over.
    begin = first // BLOCK_N * BLOCK_N + split * keys_of_split
    end = gl.where(split == splits - 1, after, gl.minimum(begin + keys_of_split, after))
    full_keys = gl.minimum(full_keys, end)
    # A part without keys has a step whose keys are all masked.
    count = gl.maximum((end - begin + BLOCK_N - 1) // BLOCK_N, 1)
    table = BlockTable
    if PAGED:
        table = BlockTable + index.to(gl.int64) * stride_table

    DTYPE: gl.constexpr = Q.dtype.element_ty
    q_slots = (operand_slot(DTYPE, LATENT), operand_slot(DTYPE, ROPE))
    k_slots = (key_slots(K, STAGES, BLOCK_N, LATENT), key_slots(K, STAGES, BLOCK_N, ROPE))
    p_slot = operand_slot(DTYPE, BLOCK_N)
    factors = gl.allocate_shared_memory(gl.float32, [BLOCK_M, 4], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    full, empty, p_full, p_empty = barriers(STAGES * PARTS), barriers(STAGES), barrier(), barrier()
    init_all(full, 1)
    init_all(empty, 2)
    mbarrier.init(p_full, count=1)
    mbarrier.init(p_empty, count=1)
    call = Call(
        Q, stride_q_b, stride_q_h, stride_q_s, K, Out, stride_out_b, stride_out_h, stride_out_s, L, Partial, PartialL,
        Sinks, store_lse, sm_scale, num_heads_q, max_seqlen_q, features, rows_of_all, splits, split, of, head_k, group,
        first_row, begin, end, clear, full_keys, count, table, page_size, magic, pages, box, q_slots, k_slots, p_slot,
        factors, full, empty, p_full, p_empty, STAGES, PAGED,
    )  # fmt: skip
    gl.warp_specialize(
        [(first_consumer, (call,)), (second_consumer, (call,)), (producer, (call,))], [4, 1], [208, 48],
    )  # fmt: skip
