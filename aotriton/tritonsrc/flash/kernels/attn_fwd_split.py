"""Attention forward for few queries: one program turns a part of the keys and values of a tile into partial results.

A tile has rows of all query heads that share a key head. Where keys are not split, the results are Out and L.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, keys_of
from aotriton.tritonsrc.flash.lib.features import SOFTCAP, has
from aotriton.tritonsrc.flash.lib.partial import Softcap, finished, launch_next, place_in_l, visited_by_rows
from aotriton.tritonsrc.flash.lib.score import LOG2E, capped
from aotriton.tritonsrc.flash.lib.sequence import load_rows, rows_read, sequence_of


@triton.jit
def attn_fwd_split(
    Q,
    K,
    V,
    Out,
    L,
    Partial,
    PartialL,
    store_lse,
    sm_scale,
    stride_q_b,
    stride_q_h,
    stride_q_s,
    stride_k_b,
    stride_k_h,
    stride_k_s,
    stride_v_b,
    stride_v_h,
    stride_v_s,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim_qk,
    head_dim_v,
    lo,
    hi,
    features,
    softcap,
    Sinks,
    CuSeqlensQ,
    CuSeqlensK,
    SequsedQ,
    SequsedK,
    longest,
    rows_of_all,
    splits,
    keys_of_split,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (cdiv(longest * num_heads_q / num_heads_k, BLOCK_M) * splits * num_heads_k * sequences).

    Split i of a tile has keys_of_split keys from the first one on that any of the tile's rows sees, and i times as many
    further. Partial, fp32 [splits, rows_of_all, head_dim_v], and PartialL, fp32 [splits, rows_of_all], have each row's
    result of the split and its logsumexp in units of log2. rows_of_all is batch * num_heads_q * max_seqlen_q, with rows
    in the order of L. With one split, Out and L are written instead. Other arguments are as for attn_fwd_features.
    """
    launch_next(EARLY)
    group = num_heads_q // num_heads_k
    tiles = tl.cdiv(longest * group, BLOCK_M)
    index = tl.program_id(0)
    tile, index = index % tiles, index // tiles
    split, index = index % splits, index // splits
    head_k, sequence = index % num_heads_k, index // num_heads_k
    of = sequence_of(
        sequence, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k, True,
    )  # fmt: skip
    first_row = tile * BLOCK_M
    if first_row >= of.q.rows * group:
        return
    packed = first_row + tl.arange(0, BLOCK_M)
    rows, heads = packed // group, head_k * group + packed % group
    there = rows < of.q.rows

    columns = tl.arange(0, BLOCK_DMODEL)
    origin = Q + of.batch * stride_q_b + of.q.begin.to(tl.int64) * stride_q_s
    q = tl.load(
        origin + (heads * stride_q_h + rows * stride_q_s)[:, None] + columns[None, :],
        mask=there[:, None] & (columns[None, :] < head_dim_qk),
        other=0.0,
    )
    all_k = rows_read(K, stride_k_b, stride_k_h, stride_k_s, of.k, head_dim_qk, "general")
    all_v = rows_read(V, stride_v_b, stride_v_h, stride_v_s, of.k, head_dim_v, "general")

    first, clear, full, after = visited_by_rows(of, first_row // group, tl.cdiv(first_row + BLOCK_M, group))
    begin = first + split * keys_of_split
    end = tl.minimum(begin + keys_of_split, after)
    first_key, keys_seen = keys_of(of, rows)
    scale = tl.maximum(sm_scale, 1e-30) * LOG2E  # not zero: a masked score stays minus infinity when scaled
    out = tl.zeros([BLOCK_M, BLOCK_DMODEL], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)  # scaled, in units of log2
    for key in range(begin, end, BLOCK_N):
        k = load_rows(all_k, of.batch, head_k, key, BLOCK_N, BLOCK_DMODEL, "general")
        s = tl.dot(q, k.T)
        if (key < clear) | (key + BLOCK_N > tl.minimum(full, end)) | has(features, SOFTCAP, key):
            s = capped(s, Softcap(features, sm_scale, softcap))
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
        v = load_rows(all_v, of.batch, head_k, key, BLOCK_N, BLOCK_DMODEL, "general")
        out = tl.dot(p.to(v.dtype), v, out * correction[:, None])

    in_l = place_in_l(of, rows, heads, num_heads_q, max_seqlen_q)
    stored = there[:, None] & (columns[None, :] < head_dim_v)
    if splits == 1:
        heads = tl.where(there, heads, 0)
        factor, lse = finished(row_max, row_sum, Sinks, heads, features, rows < of.q.used)
        origin = Out + of.batch * stride_out_b + of.q.begin.to(tl.int64) * stride_out_s
        place = origin + (heads * stride_out_h + rows * stride_out_s)[:, None] + columns[None, :]
        tl.store(place, (out * factor[:, None]).to(Out.dtype.element_ty), mask=stored)
        if store_lse != 0:
            tl.store(L + in_l, lse, mask=there)
    else:
        in_l += split.to(tl.int64) * rows_of_all
        out = out * (1.0 / tl.where(row_sum == 0.0, 1.0, row_sum))[:, None]
        tl.store(Partial + in_l[:, None] * head_dim_v + columns[None, :], out, mask=stored)
        tl.store(PartialL + in_l, row_max + tl.log2(row_sum), mask=there)
