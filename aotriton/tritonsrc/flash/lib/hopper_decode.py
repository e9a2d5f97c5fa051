"""Decoding for Hopper: keys and values of 8 bits are loaded into the registers that products take them from.

An operand of fp16 has two neighbouring numbers of the sum in a register, and columns by lanes. Which number of the sum
comes first is free as long as both operands agree, and which column as long as the result is stored in that order. So
each lane loads 16 bytes that lie next to each other, and nothing goes through shared memory, from which numbers of 8
bits would be gathered one by one.

Each warp has keys of its own, the first axis of a product, and a softmax of its own. Warps meet once, at the end.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from aotriton.tritonsrc.flash.lib import constants
from aotriton.tritonsrc.flash.lib.band import inside, keys_of
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import SINKS, SOFTCAP, has
from aotriton.tritonsrc.flash.lib.forward_features import LN_2
from aotriton.tritonsrc.flash.lib.fp8 import descale_of, power_below
from aotriton.tritonsrc.flash.lib.opaque import opaque
from aotriton.tritonsrc.flash.lib.pages import place_in_table
from aotriton.tritonsrc.flash.lib.partial import Softcap, place_in_l, visited_by_rows
from aotriton.tritonsrc.flash.lib.plan import sequence_at
from aotriton.tritonsrc.flash.lib.score import LOG2E, capped
from aotriton.tritonsrc.flash.lib.sequence import Sequence
from aotriton.tritonsrc.flash.lib.split import program_of

ROWS = gl.constexpr(16)  # of a tile
GROUP = gl.constexpr(constants.PAGE_STEP)  # keys that lie in one page
WORD = gl.constexpr(4)  # bytes that are loaded as one number
MOST_COLUMNS = gl.constexpr(128)  # of queries that stay in registers


@gluon.constexpr_function
def most_bytes(columns, lanes):
    """How many bytes of a row so many lanes load each at once."""
    return min(16, columns // lanes)


@gluon.constexpr_function
def _powers(axis, first, end):
    """The bases of registers from ``first`` to before `end` along an axis of words [warps, groups, keys, words]."""
    found = []
    while first < end:
        found.append([first if one == axis else 0 for one in range(4)])
        first *= 2
    return found


@gluon.constexpr_function
def layout_of_words(warps, groups, columns, of_keys):
    """Words [warps, groups, GROUP, columns // WORD] as an operand has them: along a row lie the numbers that the first
    product sums up, or the columns of the second one.
    """
    row = columns // WORD.value
    across = 4 if of_keys else 8
    words = most_bytes(columns, across) // WORD.value
    registers = _powers(3, 1, words) + _powers(3, words * across, row)
    if of_keys:
        lanes = _powers(3, words, words * across) + _powers(2, 1, 8)
        registers += _powers(2, 8, GROUP.value)
    else:
        lanes = _powers(2, 2, 8) + _powers(3, words, words * across)
        registers += _powers(2, 1, 2) + _powers(2, 8, GROUP.value)
    shape = [warps, groups, GROUP.value, row]
    return gl.DistributedLinearLayout(registers + _powers(1, 1, groups), lanes, _powers(0, 1, warps), [], shape)


@gluon.constexpr_function
def layout_of_product(warps):
    return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[warps, 1, 1], instr_shape=[1, ROWS.value, 8])


@bundle
class Stored:
    """Keys or values of one head: ``first`` points to the words of the first one, or of the first page's first one."""

    first: gl.tensor
    stride_page: gl.tensor
    stride_s: gl.tensor
    width: gl.tensor
    LAYOUT: gl.constexpr


@bundle
class Part:
    """The keys of a program, from ``begin`` on to before `end`, and the pages that they lie in, if they do."""

    begin: gl.tensor
    end: gl.tensor
    table: gl.tensor
    page_size: gl.tensor
    magic: gl.tensor
    PAGED: gl.constexpr


@gluon.jit
def words_of(pointer):
    return pointer.to(gl.pointer_type(gl.int32), bitcast=True)


@gluon.jit
def in_words(bytes):
    """Bytes, a multiple of 16, in words."""
    return gl.multiple_of(bytes // WORD, 4)


@gluon.jit
def stored(X, stride_b, stride_h, stride_s, width, batch, head, row, LAYOUT: gl.constexpr):
    """Those of a head that begin with row ``row`` of the tensor, or with that of each page."""
    stride_b, stride_h, stride_s = in_words(stride_b), in_words(stride_h), in_words(stride_s)
    first = words_of(X) + batch.to(gl.int64) * stride_b + head.to(gl.int64) * stride_h + row.to(gl.int64) * stride_s
    return Stored(first, stride_b, stride_s, in_words(width), LAYOUT)


@gluon.jit
def find(x, part, key):
    """The first key of each group of a step from ``key`` on, and how far from the first word it lies."""
    OF_GROUPS: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, x.LAYOUT))
    WARPS: gl.constexpr = x.LAYOUT.shape[0]
    GROUPS: gl.constexpr = x.LAYOUT.shape[1]
    warp = gl.expand_dims(gl.arange(0, WARPS, layout=gl.SliceLayout(1, OF_GROUPS)), 1)
    group = gl.expand_dims(gl.arange(0, GROUPS, layout=gl.SliceLayout(0, OF_GROUPS)), 0)
    keys = key + (warp * GROUPS + group) * GROUP
    if part.PAGED:
        place = place_in_table(part, keys)
        page = gl.load(part.table + place, mask=keys < part.end, other=0)
        return keys, page.to(gl.int64) * x.stride_page + (keys - place * part.page_size) * x.stride_s
    else:
        return keys, keys.to(gl.int64) * x.stride_s


@gluon.jit
def load_words(x, part, keys, offset):
    """The words of a step's keys; those outside of the part, and of head_dim, are zero."""
    L: gl.constexpr = x.LAYOUT
    OF_ROWS: gl.constexpr = gl.SliceLayout(3, L)
    row = gl.arange(0, GROUP, layout=gl.SliceLayout(0, gl.SliceLayout(0, OF_ROWS)))
    word = gl.arange(0, L.shape[3], layout=gl.SliceLayout(0, gl.SliceLayout(0, gl.SliceLayout(0, L))))
    row = gl.expand_dims(gl.expand_dims(row, 0), 0)
    word = gl.expand_dims(gl.expand_dims(gl.expand_dims(word, 0), 0), 0)
    there = inside(gl.expand_dims(keys, 2) + row, part.begin, part.end - part.begin)
    groups = x.first + gl.multiple_of(gl.expand_dims(gl.expand_dims(offset, 2), 3), [1, 1, 1, 4])
    places = groups + (gl.expand_dims(row * x.stride_s, 3) + word)
    return gl.load(places, mask=gl.expand_dims(there, 3) & (word < x.width), other=0)


@gluon.jit
def as_keys(words, LAYOUT: gl.constexpr):
    """fp16 [warps, columns, keys] of words: four numbers of a word are next to each other in the sum."""
    SHAPE: gl.constexpr = words.shape
    KEYS: gl.constexpr = SHAPE[1] * GROUP
    COLUMNS: gl.constexpr = SHAPE[3] * WORD
    WORDS: gl.constexpr = most_bytes(COLUMNS, 4) // WORD
    line: gl.constexpr = (
        "{ .reg .b16 a, b; .reg .b32 x, y; mov.b32 {a, b}, $4; "
        "cvt.rn.f16x2.e4m3x2 x, a; cvt.rn.f16x2.e4m3x2 y, b; mov.b32 {$0, $1}, x; mov.b32 {$2, $3}, y; }"
    )
    a, b, c, d = gl.inline_asm_elementwise(
        line, "=h,=h,=h,=h,r", [words], dtype=(gl.float16,) * 4, is_pure=True, pack=1
    )
    x = gl.join(gl.join(a, c), gl.join(b, d))
    x = x.reshape([SHAPE[0], KEYS, COLUMNS // (16 * WORDS), 4, WORDS, 2, 2]).permute((0, 2, 4, 5, 3, 6, 1))
    return gl.convert_layout(x.reshape([SHAPE[0], COLUMNS, KEYS]), LAYOUT, assert_trivial=True)


@gluon.jit
def as_values(words, LAYOUT: gl.constexpr):
    """fp16 [warps, keys, columns] of words: neighbouring keys are together in a register. Column 8 * j + i is number j
    of what lane i of a row has: see `column_at`.
    """
    SHAPE: gl.constexpr = words.shape
    KEYS: gl.constexpr = SHAPE[1] * GROUP
    COLUMNS: gl.constexpr = SHAPE[3] * WORD
    BYTES: gl.constexpr = most_bytes(COLUMNS, 8)
    line: gl.constexpr = (
        "{ .reg .b16 a, b; .reg .b32 x, y; prmt.b32 x, $8, $9, 0x5140; prmt.b32 y, $8, $9, 0x7362; "
        "mov.b32 {a, b}, x; cvt.rn.f16x2.e4m3x2 x, a; mov.b32 {$0, $1}, x; "
        "cvt.rn.f16x2.e4m3x2 x, b; mov.b32 {$2, $3}, x; "
        "mov.b32 {a, b}, y; cvt.rn.f16x2.e4m3x2 y, a; mov.b32 {$4, $5}, y; "
        "cvt.rn.f16x2.e4m3x2 y, b; mov.b32 {$6, $7}, y; }"
    )
    even, odd = gl.split(words.reshape([SHAPE[0], SHAPE[1], GROUP // 2, 2, SHAPE[3]]).permute((0, 1, 2, 4, 3)))
    a, b, c, d, e, f, g, h = gl.inline_asm_elementwise(
        line, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [even, odd], dtype=(gl.float16,) * 8, is_pure=True, pack=1
    )
    x = gl.join(gl.join(gl.join(a, e), gl.join(c, g)), gl.join(gl.join(b, f), gl.join(d, h)))
    x = x.reshape([SHAPE[0], KEYS // 2, COLUMNS // (8 * BYTES), 8, BYTES, 2]).permute((0, 1, 5, 2, 4, 3))
    return gl.convert_layout(x.reshape([SHAPE[0], KEYS, COLUMNS]), LAYOUT, assert_trivial=True)


@gluon.jit
def number_at(place, COLUMNS: gl.constexpr):
    """Which column of a key is at a place of the sum, as `as_keys` has it."""
    BYTES: gl.constexpr = most_bytes(COLUMNS, 4)
    lane, rest = place // 2 % 4, place // 8 % (BYTES // 2)
    return place // (4 * BYTES) * (4 * BYTES) + lane * BYTES + rest * 2 + place % 2


@gluon.jit
def column_at(place, COLUMNS: gl.constexpr):
    """Which column of a value is at a place of the product, as `as_values` has it."""
    BYTES: gl.constexpr = most_bytes(COLUMNS, 8)
    return place // (8 * BYTES) * (8 * BYTES) + place % 8 * BYTES + place // 8 % BYTES


@bundle
class Tile:
    """Rows of a sequence in all query heads that share a key head."""

    of: Sequence
    head_k: gl.tensor
    first_row: gl.tensor
    group: gl.tensor

    @gluon.jit
    def rows(self, LAYOUT: gl.constexpr):
        """Of each row its number in the sequence, its head, and whether it is there."""
        packed = self.first_row + gl.arange(0, ROWS, layout=LAYOUT)
        position = packed // self.group
        return position, self.head_k * self.group + packed - position * self.group, position < self.of.q.rows


@gluon.jit
def load_queries(Q, stride_b, stride_h, stride_s, tile, width, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """[1, ROWS, COLUMNS] queries of a tile in the order of `as_keys`; those outside are zero."""
    of = tile.of
    OF_TILE: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    position, head, there = tile.rows(gl.SliceLayout(1, OF_TILE))
    place = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, OF_TILE))
    column = gl.expand_dims(number_at(place, COLUMNS), 0)
    origin = Q + of.batch * stride_b + of.q.begin.to(gl.int64) * stride_s
    rows = gl.expand_dims(origin + (head * stride_h + position * stride_s), 1)
    return gl.expand_dims(gl.load(rows + column, mask=gl.expand_dims(there, 1) & (column < width), other=0.0), 0)


@gluon.jit
def in_fp16(q, descale):
    """[.., COLUMNS] queries in fp16 and [..] fp32, positive: what products of both with keys are multiplied
    by. Each row is divided by a power of two, as `rows_in_fp16` of fp8.py does it, and has the sign of ``descale``.
    """
    inverse, power = power_below(gl.max(gl.abs(q.to(gl.float32)), 2))
    inverse *= gl.where(descale < 0, -1.0, 1.0)
    small = (q.to(gl.float32) * gl.expand_dims(inverse, 2)).to(gl.float16)
    # Not zero: a masked score stays minus infinity when scaled.
    return small, gl.maximum(power * gl.abs(descale), 1e-30)


@gluon.jit
def masked(s, key, tile, part):
    """Scores [warps, ROWS, keys] of a step from ``key`` on, minus infinity where a row does not see the key."""
    L: gl.constexpr = s.type.layout
    OF_TILE: gl.constexpr = gl.SliceLayout(0, L)
    warp = gl.arange(0, s.shape[0], layout=gl.SliceLayout(1, gl.SliceLayout(2, L)))
    own = gl.arange(0, s.shape[2], layout=gl.SliceLayout(0, OF_TILE))
    keys = key + gl.expand_dims(gl.expand_dims(warp, 1), 2) * s.shape[2] + gl.expand_dims(gl.expand_dims(own, 0), 0)
    position, _, _ = tile.rows(gl.SliceLayout(1, OF_TILE))
    first, count = keys_of(tile.of, position)
    first = gl.expand_dims(gl.expand_dims(first, 1), 0)
    count = gl.expand_dims(gl.expand_dims(count, 1), 0)
    seen = inside(keys, first, count) & inside(keys, part.begin, part.end - part.begin)
    return gl.where(seen, s, float("-inf"))


@gluon.jit
def attend(q, factor, k, v, part, tile, clear, full, cap, STEP: gl.constexpr, COLUMNS: gl.constexpr):
    """What a tile's queries make of a part of the keys, in each warp: fp32 [warps, ROWS, COLUMNS], the sum of weighted
    values, in the order of `column_at`, and [warps, ROWS], the sum of weights and the largest score, scaled, in units
    of log2.

    ``q``: fp16, an operand, or the slot of shared memory that has it. ``factor``, [1, ROWS]: what the products of each
    row are multiplied by. Keys from ``clear`` to before ``full`` are seen by all rows.
    """
    WARPS: gl.constexpr = k.LAYOUT.shape[0]
    PRODUCT: gl.constexpr = layout_of_product(WARPS)
    FIRST: gl.constexpr = gl.DotOperandLayout(0, PRODUCT, 2)
    SECOND: gl.constexpr = gl.DotOperandLayout(1, PRODUCT, 2)
    scale = factor * (gl.maximum(cap.sm_scale, 1e-30) * LOG2E)
    out = gl.zeros([WARPS, ROWS, COLUMNS], gl.float32, PRODUCT)
    row_sum = gl.zeros([WARPS, ROWS], gl.float32, gl.SliceLayout(2, PRODUCT))
    row_max = row_sum + float("-inf")
    clear = gl.maximum(clear, part.begin)
    full = gl.minimum(full, part.end)
    begin = part.begin // GROUP * GROUP
    keys, in_k = find(k, part, begin)
    k_words = load_words(k, part, keys, in_k)
    keys, in_v = find(v, part, begin)
    v_words = load_words(v, part, keys, in_v)
    # Where the next keys are is found a step ahead: a load that waits for it would be late.
    next_k, in_k = find(k, part, begin + STEP)
    next_v, in_v = find(v, part, begin + STEP)
    for key in range(begin, part.end, STEP):
        zeros = gl.zeros([WARPS, ROWS, STEP // WARPS], gl.float32, PRODUCT)
        if COLUMNS > MOST_COLUMNS:
            s = mma_v2(q.index(opaque(key * 0)).load(FIRST), as_keys(k_words, SECOND), zeros)
        else:
            s = mma_v2(q, as_keys(k_words, SECOND), zeros)
        k_words = load_words(k, part, next_k, in_k)
        next_k, in_k = find(k, part, key + 2 * STEP)
        if (key < clear) | (key + STEP > full) | has(cap.features, SOFTCAP, key):
            s = masked(capped(s * gl.expand_dims(factor, 2), cap) / gl.expand_dims(factor, 2), key, tile, part)
        new_max = gl.maximum(row_max, gl.max(s, 2) * scale)
        # Of a row that has seen no key yet anything finite will do: minus infinity less itself is no number.
        base = gl.where(new_max == float("-inf"), 0.0, new_max)
        p = gl.exp2(s * gl.expand_dims(scale, 2) - gl.expand_dims(base, 2))
        correction = gl.exp2(row_max - base)
        row_sum = row_sum * correction + gl.sum(p, 2)
        row_max = new_max
        weights = gl.convert_layout(p.to(gl.float16), FIRST, assert_trivial=True)
        out = mma_v2(weights, as_values(v_words, SECOND), out * gl.expand_dims(correction, 2))
        v_words = load_words(v, part, next_v, in_v)
        next_v, in_v = find(v, part, key + 2 * STEP)
    return out, row_sum, row_max


@gluon.jit
def together(out, row_sum, row_max):
    """One sum, [ROWS, COLUMNS], one sum of weights and one largest score, [ROWS], of those of all warps."""
    top = gl.max(row_max, 0)
    base = gl.where(top == float("-inf"), 0.0, top)
    share = gl.exp2(row_max - gl.expand_dims(base, 0))
    out = gl.sum(out * gl.expand_dims(share, 2), 0)
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, out.type.layout)
    return out, gl.convert_layout(gl.sum(row_sum * share, 0), OF_ROWS), gl.convert_layout(top, OF_ROWS)


@bundle
class Results:
    """Where results go: Out with its strides and L, or Partial and PartialL where keys are split."""

    out: gl.tensor
    stride_b: gl.tensor
    stride_h: gl.tensor
    stride_s: gl.tensor
    lse: gl.tensor
    store_lse: gl.tensor
    partial: gl.tensor
    partial_lse: gl.tensor
    Sinks: gl.tensor
    features: gl.tensor
    num_heads_q: gl.tensor
    max_seqlen_q: gl.tensor
    head_dim: gl.tensor
    rows_of_all: gl.tensor


@gluon.jit
def store_whole(to, out, row_sum, row_max, tile):
    """The answer, of keys that are not split."""
    of = tile.of
    position, head, there = tile.rows(gl.SliceLayout(1, out.type.layout))
    correction = gl.full_like(row_max, 1.0)
    if (to.features & SINKS) != 0:
        sink = gl.load(to.Sinks + head, mask=there, other=0.0) * LOG2E
        top = gl.maximum(row_max, sink)
        base = gl.where(top == float("-inf"), 0.0, top)
        correction = gl.exp2(row_max - base)
        row_sum = row_sum * correction + gl.exp2(sink - base)
        row_max = top
    factor = correction / gl.where(row_sum == 0.0, 1.0, row_sum)
    origin = to.out + of.batch * to.stride_b + of.q.begin.to(gl.int64) * to.stride_s
    rows = origin + (head * to.stride_h + position * to.stride_s)
    store_rows(rows, (out * gl.expand_dims(factor, 1)).to(to.out.dtype.element_ty), there, to.head_dim)
    if to.store_lse != 0:
        lse = gl.where(position < of.q.used, (row_max + gl.log2(row_sum)) * LN_2, float("-inf"))
        gl.store(to.lse + place_in_l(of, position, head, to.num_heads_q, to.max_seqlen_q), lse, mask=there)


@gluon.jit
def store_part(to, out, row_sum, row_max, tile, split):
    """What a part of the keys makes of the rows."""
    of = tile.of
    position, head, there = tile.rows(gl.SliceLayout(1, out.type.layout))
    in_l = place_in_l(of, position, head, to.num_heads_q, to.max_seqlen_q) + split.to(gl.int64) * to.rows_of_all
    factor = 1.0 / gl.where(row_sum == 0.0, 1.0, row_sum)
    store_rows(to.partial + in_l * to.head_dim, out * gl.expand_dims(factor, 1), there, to.head_dim)
    gl.store(to.partial_lse + in_l, row_max + gl.log2(row_sum), mask=there)


@gluon.jit
def store_rows(rows, out, there, width):
    """[ROWS, COLUMNS] results, in the order of `column_at`, where ``rows`` point to."""
    place = gl.arange(0, out.shape[1], layout=gl.SliceLayout(0, out.type.layout))
    column = gl.expand_dims(column_at(place, out.shape[1]), 0)
    gl.store(gl.expand_dims(rows, 1) + column, out, mask=gl.expand_dims(there, 1) & (column < width))


@gluon.jit
def decode(
    Q, K, V, Out, L, Partial, PartialL, store_lse, sm_scale, stride_q_b, stride_q_h, stride_q_s,
    stride_k_b, stride_k_h, stride_k_s, stride_v_b, stride_v_h, stride_v_s, stride_out_b, stride_out_h, stride_out_s,
    num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, width_qk, width_v, lo, hi, features, softcap, Sinks,
    CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, longest, rows_of_all, splits, keys_of_split,
    BlockTable, stride_table, page_size, magic, KDescale, VDescale, stride_kdescale_b, stride_kdescale_h,
    stride_vdescale_b, stride_vdescale_h, descales,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr, PAGED: gl.constexpr,
):  # fmt: skip
    """The program of attn_fwd_hopper_decode and attn_fwd_hopper_decode_paged, whose arguments these are."""
    gl.static_assert(BLOCK_M == ROWS)
    WARPS: gl.constexpr = gl.num_warps()
    group = num_heads_q // num_heads_k
    number, split, head_k, index = program_of((longest * group + ROWS - 1) // ROWS, splits, num_heads_k)
    of = sequence_at(
        index, 1 if PAGED else 0, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q,
        max_seqlen_k,
    )  # fmt: skip
    first_row = number * ROWS
    if first_row < of.q.rows * group:
        tile = Tile(of, head_k, first_row, group)
        first, clear, full, after = visited_by_rows(of, first_row // group, (first_row + ROWS + group - 1) // group)
        begin = first + split * keys_of_split
        end = gl.minimum(begin + keys_of_split, after)
        # Of a part without keys neither these nor their pages are looked for.
        begin, end = gl.where(begin < end, begin, 0), gl.where(begin < end, end, 0)
        K_WORDS: gl.constexpr = layout_of_words(WARPS, BLOCK_N // (WARPS * GROUP), COLUMNS, True)
        V_WORDS: gl.constexpr = layout_of_words(WARPS, BLOCK_N // (WARPS * GROUP), COLUMNS, False)
        part = Part(begin, end, BlockTable + index.to(gl.int64) * stride_table, page_size, magic, PAGED)
        batch = index * 0 if PAGED else of.batch
        k = stored(K, stride_k_b, stride_k_h, stride_k_s, width_qk, batch, head_k, of.k.begin, K_WORDS)
        v = stored(V, stride_v_b, stride_v_h, stride_v_s, width_v, batch, head_k, of.k.begin, V_WORDS)
        PRODUCT: gl.constexpr = layout_of_product(WARPS)
        Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, PRODUCT, 2)
        q = load_queries(Q, stride_q_b, stride_q_h, stride_q_s, tile, width_qk, COLUMNS, Q_LAYOUT)
        descale = descale_of(KDescale, stride_kdescale_b, stride_kdescale_h, index, head_k, descales, 1)
        q, factor = in_fp16(q, descale)
        factor = gl.convert_layout(factor, gl.SliceLayout(2, PRODUCT))
        q, _ = gl.broadcast(q, gl.zeros([WARPS, ROWS, COLUMNS], gl.float16, Q_LAYOUT))
        if COLUMNS > MOST_COLUMNS:
            SLOT: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [2, 1, 0])
            slots = gl.allocate_shared_memory(gl.float16, [1, WARPS, ROWS, COLUMNS], SLOT)
            slots.index(0).store(q)
            q = slots
        cap = Softcap(features, sm_scale, softcap)
        out, row_sum, row_max = attend(q, factor, k, v, part, tile, clear, full, cap, BLOCK_N, COLUMNS)
        out, row_sum, row_max = together(out, row_sum, row_max)
        out *= descale_of(VDescale, stride_vdescale_b, stride_vdescale_h, index, head_k, descales, 2)
        results = Results(
            Out, stride_out_b, stride_out_h, stride_out_s, L, store_lse, Partial, PartialL, Sinks, features,
            num_heads_q, max_seqlen_q, width_v, rows_of_all,
        )  # fmt: skip
        if splits == 1:
            store_whole(results, out, row_sum, row_max, tile)
        else:
            store_part(results, out, row_sum, row_max, tile, split)
