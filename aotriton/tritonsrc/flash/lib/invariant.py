"""Invariant: attention whose results of a sequence have the same bits in every call that has the sequence.

Keys are taken in parts of PART, counted from the sequence's first key on. Each part by itself becomes a weighted mean
of values and its logsumexp; these are added one after the other, in the order of the keys. Whether one program goes
through all parts, or each has a program of its own, changes nothing: the operations on each number are the same.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib import constants
from aotriton.tritonsrc.flash.lib.band import inside, keys_of
from aotriton.tritonsrc.flash.lib.features import SOFTCAP, has
from aotriton.tritonsrc.flash.lib.pages import pages_of, place_in_table
from aotriton.tritonsrc.flash.lib.partial import finished, place_in_l, visited_by_rows
from aotriton.tritonsrc.flash.lib.score import LOG2E, capped
from aotriton.tritonsrc.flash.lib.sequence import load_rows

PART = tl.constexpr(constants.INVARIANT_PART)


@triton.constexpr_function
def halved_if_wide(size, columns):
    """Rows or keys of a tile: half as many in more than 128 columns, as there are two accumulators."""
    return size if columns <= 128 else size // 2


@triton.jit
def added(out, row_sum, row_max, part, lse):
    """The mean, its weight and the largest logsumexp, in units of log2, of what was added up and one more part.

    [ROWS, COLUMNS] fp32 and [ROWS] fp32. Written as fused operations, because a compiler would fuse them here in one
    way and there in another, and they round differently.
    """
    top = tl.maximum(row_max, lse)
    # Of a row that has seen no key yet anything finite will do: minus infinity less itself is no number.
    base = tl.where(top == float("-inf"), 0.0, top)
    correction, weight = tl.exp2(row_max - base), tl.exp2(lse - base)
    out = tl.fma(part, tl.broadcast_to(weight[:, None], part.shape), out * correction[:, None])
    return out, tl.fma(row_sum, correction, weight), top


@triton.jit
def result_of_part(out, row_sum, row_max):
    """The mean of a part and its logsumexp, in units of log2, from the sum of weighted values, the sum of weights and
    the largest score. Rows that have seen no key of it: 0 and minus infinity.
    """
    return out * (1.0 / tl.where(row_sum == 0.0, 1.0, row_sum))[:, None], row_max + tl.log2(row_sum)


@triton.jit
def load_seen(x, pages, head, page, key, first, KEYS: tl.constexpr, COLUMNS: tl.constexpr):
    """As load_from_pages; keys before ``first``, which no row sees, are zero, too, and their pages may be gone."""
    keys = key + tl.arange(0, KEYS)
    columns = tl.arange(0, COLUMNS)
    row = keys - place_in_table(pages, keys) * pages.page_size
    offsets = (page.to(tl.int64) * x.stride_b + row.to(tl.int64) * x.stride_s)[:, None] + columns[None, :]
    mask = ((keys >= first) & (keys < pages.used))[:, None] & (columns[None, :] < x.head_dim)
    return tl.load(x.tensor + head * x.stride_h + offsets, mask=mask, other=0.0)


@triton.jit
def attend(
    q, all_k, all_v, pages, tile, first_part, parts, cap, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):  # fmt: skip
    """What a tile's queries make of ``parts`` parts of the keys from ``first_part`` on: as `added` returns it of all
    but the last one, and as `result_of_part` takes it of the last one, of which nothing may be seen.

    BLOCK_N divides PART. Steps that no row sees change nothing, so that rows do not depend on others of the tile. Keys
    are rows of a sequence, where ``pages`` is None, or lie in pages.
    """
    of = tile.of
    first_row, group = tile.first_row, tile.group
    first, clear, full, after = visited_by_rows(of, first_row // group, tl.cdiv(first_row + BLOCK_M, group))
    begin = tl.maximum(first // BLOCK_N * BLOCK_N, first_part * PART)
    end = tl.minimum((first_part + parts) * PART, after)
    part_begin = tl.cdiv(begin, PART) * PART
    first_key, keys_seen = keys_of(of, tile.rows)
    scale = tl.maximum(cap.sm_scale, 1e-30) * LOG2E  # not zero: a masked score stays minus infinity when scaled
    mean = tl.zeros([BLOCK_M, BLOCK_DMODEL], tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    out, row_sum, row_max = mean, weight, top
    if pages is not None:
        page = pages_of(pages, begin, BLOCK_N)
    for key in range(begin, end, BLOCK_N):
        if key == part_begin:
            part_begin += PART
            part, lse = result_of_part(out, row_sum, row_max)
            mean, weight, top = added(mean, weight, top, part, lse)
            out = tl.zeros([BLOCK_M, BLOCK_DMODEL], tl.float32)
            row_sum = tl.zeros([BLOCK_M], tl.float32)
            row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        if pages is None:
            k = load_rows(all_k, of.batch, tile.head_k, key, BLOCK_N, BLOCK_DMODEL, "general")
        else:
            next_page = pages_of(pages, key + BLOCK_N, BLOCK_N)  # a step ahead: a load that waits for it would be late
            k = load_seen(all_k, pages, tile.head_k, page, key, first, BLOCK_N, BLOCK_DMODEL)
        s = tl.dot(q, k.T)
        if (key < clear) | (key + BLOCK_N > tl.minimum(full, end)) | has(cap.features, SOFTCAP, key):
            s = capped(s, cap)
            keys = key + tl.arange(0, BLOCK_N)
            seen = inside(keys[None, :], first_key[:, None], keys_seen[:, None]) & (keys < end)[None, :]
            s = tl.where(seen, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale)
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(s * scale - base[:, None])
        correction = tl.exp2(row_max - base)
        row_sum = row_sum * correction + tl.sum(p, 1)
        row_max = new_max
        if pages is None:
            v = load_rows(all_v, of.batch, tile.head_k, key, BLOCK_N, BLOCK_DMODEL, "general")
        else:
            v = load_seen(all_v, pages, tile.head_k, page, key, first, BLOCK_N, BLOCK_DMODEL)
            page = next_page
        out = tl.dot(p.to(v.dtype), v, out * correction[:, None])
    return mean, weight, top, out, row_sum, row_max


@triton.jit
def attend_and_store(
    to, q, all_k, all_v, pages, tile, split, splits, cap, Sinks, features, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_DMODEL: tl.constexpr,
):  # fmt: skip
    """Writes the results of a tile, or where keys are split, of its part ``split``. Steps have BLOCK_N keys, or half as
    many in more than 128 columns.
    """
    of, rows, there = tile.of, tile.rows, tile.there
    parts = tl.where(splits == 1, tl.cdiv(of.k.used, PART), 1)
    STEP: tl.constexpr = halved_if_wide(BLOCK_N, BLOCK_DMODEL)
    mean, weight, top, out, row_sum, row_max = attend(
        q, all_k, all_v, pages, tile, split, parts, cap, BLOCK_M, STEP, BLOCK_DMODEL
    )
    part, lse = result_of_part(out, row_sum, row_max)
    columns = tl.arange(0, BLOCK_DMODEL)
    in_l = place_in_l(of, rows, tile.heads, to.num_heads_q, to.max_seqlen_q)
    stored = there[:, None] & (columns[None, :] < to.head_dim)
    if splits == 1:
        mean, weight, top = added(mean, weight, top, part, lse)
        heads = tl.where(there, tile.heads, 0)
        factor, lse = finished(top, weight, Sinks, heads, features, rows < of.q.used)
        origin = to.out + of.batch * to.stride_b + of.q.begin.to(tl.int64) * to.stride_s
        place = origin + (heads * to.stride_h + rows * to.stride_s)[:, None] + columns[None, :]
        tl.store(place, (mean * factor[:, None]).to(to.out.dtype.element_ty), mask=stored)
        if to.store_lse != 0:
            tl.store(to.lse + in_l, lse, mask=there)
    else:
        in_l += split.to(tl.int64) * to.rows_of_all
        seen = lse > float("-inf")
        tl.store(to.partial + in_l[:, None] * to.head_dim + columns[None, :], part, mask=stored & seen[:, None])
        tl.store(to.partial_lse + in_l, lse, mask=there)
