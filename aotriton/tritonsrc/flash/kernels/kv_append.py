"""Keys and values of new tokens, written into their places of a cache, with a rotary embedding of keys and queries."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.fp8 import descale_of, in_fp8


@triton.jit
def sequence_of_token(token, sequences, CuSeqlensK):
    """The packed sequence of each token: the last one that begins at or before it. Of a token before the first
    sequence it is 0, and of one behind the last it is ``sequences``.
    """
    step = 1
    while step * 2 <= sequences:
        step *= 2
    found = token * 0
    while step > 0:
        further = found + step
        begin = tl.load(CuSeqlensK + further, mask=further <= sequences, other=2**31 - 1)
        found = tl.where(begin <= token, further, found)
        step = step // 2
    return found


@triton.jit
def rotate(x_rows, y_rows, cos_rows, sin_rows, own, pairs, width, interleaved, descale, PAIRS: tl.constexpr):
    """Writes the rows at ``x_rows``, of ``width`` elements each, to those at ``y_rows``, which may be the same ones.
    The first 2 ``pairs`` elements are rotated, each with the one that is ``pairs`` further, or if ``interleaved`` with
    its neighbour. The others are copied, as bits. ``own`` says which rows there are. Where those at ``y_rows`` are of 8
    bits, what would be written is divided by ``descale`` before.

    Whoever loads an element also stores it, so that nothing is read that was written before.
    """
    rest = (width - 2 * pairs + 1) // 2  # the others are pairs, too
    for begin in range(0, pairs + rest, PAIRS):
        pair = begin + tl.arange(0, PAIRS)
        rotated = pair < pairs
        first = tl.where(rotated, tl.where(interleaved != 0, 2 * pair, pair), pair + pairs)
        second = first + tl.where(rotated, tl.where(interleaved != 0, 1, pairs), rest)
        there, both = own & (pair < pairs + rest)[None, :], own & (second < width)[None, :]
        x = tl.load(x_rows + first[None, :], mask=there)
        x_second = tl.load(x_rows + second[None, :], mask=both)
        with_angle = own & rotated[None, :]
        cos = tl.load(cos_rows + pair[None, :], mask=with_angle)
        sin = tl.load(sin_rows + pair[None, :], mask=with_angle)
        a, b = x.to(tl.float32), x_second.to(tl.float32)
        y = tl.where(with_angle, (a * cos - b * sin).to(x.dtype), x)
        y_second = tl.where(with_angle, (b * cos + a * sin).to(x.dtype), x_second)
        if y_rows.dtype.element_ty != x.dtype:
            y = in_fp8(y, descale, y_rows.dtype.element_ty)
            y_second = in_fp8(y_second, descale, y_rows.dtype.element_ty)
        tl.store(y_rows + first[None, :], y, mask=there)
        tl.store(y_rows + second[None, :], y_second, mask=both)


@triton.jit
def kv_append(
    K,
    V,
    KCache,
    VCache,
    SequsedK,
    Q,
    RotaryCos,
    RotarySin,
    CuSeqlensK,
    BlockTable,
    stride_k_b,
    stride_k_h,
    stride_k_s,
    stride_v_b,
    stride_v_h,
    stride_v_s,
    stride_kcache_b,
    stride_kcache_h,
    stride_kcache_s,
    stride_vcache_b,
    stride_vcache_h,
    stride_vcache_s,
    stride_q_b,
    stride_q_h,
    stride_q_s,
    stride_rotarycos_s,
    stride_rotarysin_s,
    stride_blocktable_b,
    num_heads_q,
    num_heads_k,
    seqlen_new,
    tokens,
    sequences,
    packed,
    pages_of_sequence,
    page_size,
    pages,
    positions,
    rotary_pairs,
    head_dim,
    head_dim_v,
    rotary_interleaved,
    KDescale,
    VDescale,
    stride_kdescale_b,
    stride_kdescale_h,
    stride_vdescale_b,
    stride_vdescale_h,
    descales,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Grid (tiles of ROWS tokens, times all heads). A program takes one head of a tile: of q, then of k, then of v.

    num_heads_q is 0 without Q, rotary_pairs without RotaryCos, and pages_of_sequence without BlockTable: then the cache
    of a sequence is a page of its own. A token at a position that is negative, that no page has room for or that has no
    row of RotaryCos is left out, and so is one of no sequence, or whose page is none of the cache's. KDescale and
    VDescale: see attn_fwd_split_fp8; they divide what a cache of 8 bits gets.
    """
    heads = num_heads_q + 2 * num_heads_k
    head = tl.program_id(0) % heads
    token = tl.program_id(0) // heads * ROWS + tl.arange(0, ROWS)
    own = token < tokens
    if packed != 0:
        sequence = sequence_of_token(token, sequences, CuSeqlensK)
        own &= sequence < sequences
        begin = tl.load(CuSeqlensK + sequence, mask=own, other=0)
        count = tl.load(CuSeqlensK + sequence + 1, mask=own, other=0) - begin
        batch, row = token * 0, token
        own &= begin <= token
    else:
        sequence = token // seqlen_new
        begin, count = sequence * seqlen_new, token * 0 + seqlen_new
        batch, row = sequence, token - begin
    position = tl.load(SequsedK + sequence, mask=own, other=0) - count + (token - begin)
    own &= position >= 0
    if rotary_pairs > 0:
        own &= position < positions
    number = tl.maximum(position, 0) // page_size
    if pages_of_sequence > 0:
        own &= number < pages_of_sequence
        table = BlockTable + sequence.to(tl.int64) * stride_blocktable_b
        page = tl.load(table + number, mask=own, other=0)
        own &= (page >= 0) & (page < pages)
    else:
        own &= number == 0
        page = sequence

    batch, row, page = batch.to(tl.int64)[:, None], row.to(tl.int64)[:, None], page.to(tl.int64)[:, None]
    place, angle = (position - number * page_size).to(tl.int64)[:, None], position.to(tl.int64)[:, None]
    own = own[:, None]
    cos_rows, sin_rows = RotaryCos + angle * stride_rotarycos_s, RotarySin + angle * stride_rotarysin_s
    if head < num_heads_q:
        q_rows = Q + batch * stride_q_b + head.to(tl.int64) * stride_q_h + row * stride_q_s
        rotate(q_rows, q_rows, cos_rows, sin_rows, own, rotary_pairs, head_dim, rotary_interleaved, 1.0, PAIRS)
    elif head < num_heads_q + num_heads_k:
        of_k = (head - num_heads_q).to(tl.int64)
        k_rows = K + batch * stride_k_b + of_k * stride_k_h + row * stride_k_s
        cache_rows = KCache + page * stride_kcache_b + of_k * stride_kcache_h + place * stride_kcache_s
        scale = descale_of(KDescale, stride_kdescale_b, stride_kdescale_h, sequence[:, None], of_k, descales, 1, own)
        rotate(k_rows, cache_rows, cos_rows, sin_rows, own, rotary_pairs, head_dim, rotary_interleaved, scale, PAIRS)
    else:
        of_v = (head - num_heads_q - num_heads_k).to(tl.int64)
        v_rows = V + batch * stride_v_b + of_v * stride_v_h + row * stride_v_s
        value_rows = VCache + page * stride_vcache_b + of_v * stride_vcache_h + place * stride_vcache_s
        scale = descale_of(VDescale, stride_vdescale_b, stride_vdescale_h, sequence[:, None], of_v, descales, 2, own)
        rotate(v_rows, value_rows, cos_rows, sin_rows, own, 0, head_dim_v, rotary_interleaved, scale, PAIRS)
