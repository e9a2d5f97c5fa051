"""Latent: attention whose values are the first columns of the keys, as in decoding with multi-head latent attention.

A key has LATENT columns, which are its value, too, and ROPE further ones. Each is loaded once for both products.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib import constants
from aotriton.tritonsrc.flash.lib.band import inside, keys_of
from aotriton.tritonsrc.flash.lib.features import SOFTCAP, has
from aotriton.tritonsrc.flash.lib.pages import load_from_pages, pages_of
from aotriton.tritonsrc.flash.lib.partial import visited_by_rows
from aotriton.tritonsrc.flash.lib.score import LOG2E, capped
from aotriton.tritonsrc.flash.lib.sequence import Rows, load_rows
from aotriton.tritonsrc.flash.lib.split import load_queries
from aotriton.tritonsrc.flash.lib.tile import Heads
from aotriton.tritonsrc.flash.lib.zero import zero

LATENT = tl.constexpr(constants.LATENT)
ROPE = tl.constexpr(constants.ROPE)
HALF = tl.constexpr(constants.LATENT // 2)  # columns of an accumulator, which is stored before the other one


@triton.jit
def load_parts(Q, stride_b, stride_h, stride_s, tile):
    """[ROWS, HALF], [ROWS, HALF] and [ROWS, ROPE] queries of a tile; those outside are zero."""
    return (
        load_queries(Q, stride_b, stride_h, stride_s, tile, HALF, HALF),
        load_queries(Q + HALF, stride_b, stride_h, stride_s, tile, HALF, HALF),
        load_queries(Q + LATENT, stride_b, stride_h, stride_s, tile, ROPE, ROPE),
    )


@triton.jit
def parts_of(K, stride_b, stride_h, stride_s, rows):
    """The same columns of a tensor of keys, as Heads."""
    return (
        Heads(K, stride_b, stride_h, stride_s, rows, HALF),
        Heads(K + HALF, stride_b, stride_h, stride_s, rows, HALF),
        Heads(K + LATENT, stride_b, stride_h, stride_s, rows, ROPE),
    )


@triton.jit
def load_keys(all_k, pages, tile, page, key, KEYS: tl.constexpr, COLUMNS: tl.constexpr):
    """[KEYS, COLUMNS] elements of one part of the columns, of keys from ``key`` on."""
    if pages is None:
        return load_rows(Rows(all_k, 0), tile.of.batch, tile.head_k, key, KEYS, COLUMNS, "general")
    else:
        return load_from_pages(all_k, pages, tile.head_k, page, key, KEYS, COLUMNS)


@triton.jit
def attend(q, all_k, pages, tile, split, keys_of_split, cap, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """What a tile's queries make of their part of the keys, as `attend` of split.py: the sum of weighted values as two
    fp32 [BLOCK_M, HALF], and [BLOCK_M], [BLOCK_M].
    """
    of = tile.of
    first_row, group = tile.first_row, tile.group
    first, clear, full, after = visited_by_rows(of, first_row // group, tl.cdiv(first_row + BLOCK_M, group))
    begin = first + split * keys_of_split
    end = tl.minimum(begin + keys_of_split, after)
    scale = tl.maximum(cap.sm_scale, 1e-30) * LOG2E  # not zero: a masked score stays minus infinity when scaled
    first_half = tl.zeros([BLOCK_M, HALF], tl.float32)
    other_half = tl.zeros([BLOCK_M, HALF], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    page = None
    if pages is not None:
        page = pages_of(pages, begin, BLOCK_N)
    for key in range(begin, end, BLOCK_N):
        k = load_keys(all_k[0], pages, tile, page, key, BLOCK_N, HALF)
        k_other = load_keys(all_k[1], pages, tile, page, key, BLOCK_N, HALF)
        k_rope = load_keys(all_k[2], pages, tile, page, key, BLOCK_N, ROPE)
        if pages is not None:
            page = pages_of(pages, key + BLOCK_N, BLOCK_N)  # a step ahead: a load that waits for it would be late
        # Not a sum, which the compiler makes one chain of products: all warps would then compute all of the first ones.
        s = tl.fma(tl.dot(q[0], k.T), 1.0, tl.fma(tl.dot(q[1], k_other.T), 1.0, tl.dot(q[2], k_rope.T)))
        if (key < clear) | (key + BLOCK_N > tl.minimum(full, end)) | has(cap.features, SOFTCAP, key):
            s = capped(s, cap)
            rows = (first_row + zero(cap.features, key) + tl.arange(0, BLOCK_M)) // group
            first_key, keys_seen = keys_of(of, rows)
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
        p = p.to(k.dtype)
        first_half = tl.dot(p, k, first_half * correction[:, None])
        other_half = tl.dot(p, k_other, other_half * correction[:, None])
    return first_half, other_half, row_sum, row_max
