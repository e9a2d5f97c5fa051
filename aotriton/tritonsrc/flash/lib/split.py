"""Split: what attn_fwd_split and attn_fwd_split_paged share: a part of the keys of a tile, and what becomes of it."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, keys_of
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import SOFTCAP, has
from aotriton.tritonsrc.flash.lib.pages import load_from_pages, pages_of
from aotriton.tritonsrc.flash.lib.partial import finished, place_in_l, visited_by_rows
from aotriton.tritonsrc.flash.lib.score import LOG2E, capped
from aotriton.tritonsrc.flash.lib.sequence import load_rows


@bundle
class Tile:
    """Rows of a sequence in all query heads that share a key head: of each its number and its head, and whether it is
    ``there``.
    """

    of: tl.tensor
    head_k: tl.tensor
    first_row: tl.tensor
    group: tl.tensor
    rows: tl.tensor
    heads: tl.tensor
    there: tl.tensor


@triton.jit
def program_of(tiles, splits, num_heads_k):
    """The tile, split, key head and sequence of this program."""
    index = tl.program_id(0)
    tile, index = index % tiles, index // tiles
    split, index = index % splits, index // splits
    return tile, split, index % num_heads_k, index // num_heads_k


@triton.jit
def tile_of(of, head_k, first_row, group, ROWS: tl.constexpr):
    """The tile of ROWS rows from `first_row` on, counted through the `group` of query heads that share `head_k`."""
    packed = first_row + tl.arange(0, ROWS)
    rows, heads = packed // group, head_k * group + packed % group
    return Tile(of, head_k, first_row, group, rows, heads, rows < of.q.rows)


@triton.jit
def load_queries(Q, stride_b, stride_h, stride_s, tile, head_dim, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] queries of a tile; those outside are zero."""
    of = tile.of
    columns = tl.arange(0, COLUMNS)
    origin = Q + of.batch * stride_b + of.q.begin.to(tl.int64) * stride_s
    return tl.load(
        origin + (tile.heads * stride_h + tile.rows * stride_s)[:, None] + columns[None, :],
        mask=tile.there[:, None] & (columns[None, :] < head_dim),
        other=0.0,
    )


@triton.jit
def attend(
    q, factor, all_k, all_v, pages, tile, split, keys_of_split, cap, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):  # fmt: skip
    """What a tile's queries make of their part of the keys: fp32 [BLOCK_M, BLOCK_DMODEL], the sum of weighted values,
    and [BLOCK_M], the sum of weights and the largest score, scaled, in units of log2.

    Keys are rows of a sequence, where ``pages`` is None, or lie in pages. ``factor``: what the products of each row are
    multiplied by, or None.
    """
    of = tile.of
    first_row, group = tile.first_row, tile.group
    first, clear, full, after = visited_by_rows(of, first_row // group, tl.cdiv(first_row + BLOCK_M, group))
    begin = first + split * keys_of_split
    end = tl.minimum(begin + keys_of_split, after)
    first_key, keys_seen = keys_of(of, tile.rows)
    scale = tl.maximum(cap.sm_scale, 1e-30) * LOG2E  # not zero: a masked score stays minus infinity when scaled
    out = tl.zeros([BLOCK_M, BLOCK_DMODEL], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    if pages is not None:
        page = pages_of(pages, begin, BLOCK_N)
    for key in range(begin, end, BLOCK_N):
        if pages is None:
            k = load_rows(all_k, of.batch, tile.head_k, key, BLOCK_N, BLOCK_DMODEL, "general")
        else:
            next_page = pages_of(pages, key + BLOCK_N, BLOCK_N)  # a step ahead: a load that waits for it would be late
            k = load_from_pages(all_k, pages, tile.head_k, page, key, BLOCK_N, BLOCK_DMODEL)
        s = tl.dot(q, k.to(q.dtype).T)
        if factor is not None:
            s *= factor[:, None]
        if (key < clear) | (key + BLOCK_N > tl.minimum(full, end)) | has(cap.features, SOFTCAP, key):
            s = capped(s, cap)
            keys = key + tl.arange(0, BLOCK_N)
            seen = inside(keys[None, :], first_key[:, None], keys_seen[:, None]) & (keys < end)[None, :]
            s = tl.where(seen, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale)
        # Of a row that has seen no key yet anything finite will do: minus infinity less itself is no number.
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(s * scale - base[:, None])
        correction = tl.exp2(row_max - base)
        row_sum = row_sum * correction + tl.sum(p, 1)
        row_max = new_max
        if pages is None:
            v = load_rows(all_v, of.batch, tile.head_k, key, BLOCK_N, BLOCK_DMODEL, "general")
        else:
            v = load_from_pages(all_v, pages, tile.head_k, page, key, BLOCK_N, BLOCK_DMODEL)
            page = next_page
        out = tl.dot(p.to(q.dtype), v.to(q.dtype), out * correction[:, None])
    return out, row_sum, row_max


@bundle
class Results:
    """Where results go: Out with its strides and L, or Partial and PartialL where keys are split."""

    out: tl.tensor
    stride_b: tl.tensor
    stride_h: tl.tensor
    stride_s: tl.tensor
    lse: tl.tensor
    store_lse: tl.tensor
    partial: tl.tensor
    partial_lse: tl.tensor
    num_heads_q: tl.tensor
    max_seqlen_q: tl.tensor
    head_dim: tl.tensor
    rows_of_all: tl.tensor


@triton.jit
def store_results(to, out, row_sum, row_max, tile, split, splits, Sinks, features, COLUMNS: tl.constexpr):
    """Writes what `attend` makes of a split, and of the only one the answer."""
    of, rows, there = tile.of, tile.rows, tile.there
    columns = tl.arange(0, COLUMNS)
    in_l = place_in_l(of, rows, tile.heads, to.num_heads_q, to.max_seqlen_q)
    stored = there[:, None] & (columns[None, :] < to.head_dim)
    if splits == 1:
        heads = tl.where(there, tile.heads, 0)
        factor, lse = finished(row_max, row_sum, Sinks, heads, features, rows < of.q.used)
        origin = to.out + of.batch * to.stride_b + of.q.begin.to(tl.int64) * to.stride_s
        place = origin + (heads * to.stride_h + rows * to.stride_s)[:, None] + columns[None, :]
        tl.store(place, (out * factor[:, None]).to(to.out.dtype.element_ty), mask=stored)
        if to.store_lse != 0:
            tl.store(to.lse + in_l, lse, mask=there)
    else:
        in_l += split.to(tl.int64) * to.rows_of_all
        out = out * (1.0 / tl.where(row_sum == 0.0, 1.0, row_sum))[:, None]
        tl.store(to.partial + in_l[:, None] * to.head_dim + columns[None, :], out, mask=stored)
        tl.store(to.partial_lse + in_l, row_max + tl.log2(row_sum), mask=there)
