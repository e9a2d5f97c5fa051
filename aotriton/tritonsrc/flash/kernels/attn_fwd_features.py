"""Attention forward with features: bands, softcap, ALiBi, sinks, sequences of different lengths, bias and dropout."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, keys_of, visited_by_queries
from aotriton.tritonsrc.flash.lib.dropout import dropout_of, dropout_of_head, kept, scale_of
from aotriton.tritonsrc.flash.lib.features import ALIBI, BIAS, FULL, SINKS, SOFTCAP, has
from aotriton.tritonsrc.flash.lib.product import product
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.score import LOG2E, bias_of, biased, capped, scores_of
from aotriton.tritonsrc.flash.lib.sequence import (
    load_rows,
    loops,
    own_rows,
    rows_read,
    sequence_of,
    sequences_end,
    steps_of,
    store_rows,
    works_out_again,
)
from aotriton.tritonsrc.flash.lib.tile import head_rows
from aotriton.tritonsrc.flash.lib.zero import zero


@triton.jit
def attn_fwd_features(
    Q,
    K,
    V,
    Out,
    L,
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
    AlibiSlopes,
    stride_alibislopes_b,
    Sinks,
    CuSeqlensQ,
    CuSeqlensK,
    SequsedQ,
    SequsedK,
    longest,
    Bias,
    stride_bias_b,
    stride_bias_h,
    stride_bias_s,
    dropout,
    DropoutSeed,
    DropoutOffset,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    LEVEL: tl.constexpr,
    BF16_PRODUCTS: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid (cdiv(longest, BLOCK_M) * num_heads_q * sequences). ``sm_scale`` must not be negative.

    Q and K have head_dim_qk columns, V and Out head_dim_v, all of them BLOCK_DMODEL at most.

    Row i sees keys from i + lo to i + hi; where there are none and no sink, Out is zero and L minus infinity. L,
    contiguous [batch, num_heads_q, max_seqlen_q], is untouched when store_lse is 0. ``longest``: the most rows of a
    sequence. ``features``: the bits of lib/features.py; pointers of what the call does not have are not followed.
    """
    tiles = tl.cdiv(longest, BLOCK_M)
    tile, head, sequence = tile_of_program(tiles, num_heads_q)
    tile = tiles - 1 - tile  # of a causal call the longest programs first
    q_row = tile * BLOCK_M
    END: tl.constexpr = sequences_end(LEVEL, ADDRESSING)
    AGAIN: tl.constexpr = works_out_again(ADDRESSING)
    of = sequence_of(
        sequence, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k, END,
    )  # fmt: skip
    if q_row >= of.q.rows:
        return
    batch = of.batch
    all_q = rows_read(Q, stride_q_b, stride_q_h, stride_q_s, of.q, head_dim_qk, ADDRESSING)
    all_k = rows_read(K, stride_k_b, stride_k_h, stride_k_s, of.k, head_dim_qk, ADDRESSING)
    all_v = rows_read(V, stride_v_b, stride_v_h, stride_v_s, of.k, head_dim_v, ADDRESSING)
    head_k = head // (num_heads_q // num_heads_k)
    first, clear, full, after = visited_by_queries(of, q_row, BLOCK_M, BLOCK_N)
    drop = dropout_of_head(dropout_of(features, dropout, DropoutSeed, DropoutOffset), sequence * num_heads_q + head)
    scores = scores_of(
        of, head, features, sm_scale, softcap,
        AlibiSlopes, stride_alibislopes_b, Bias, stride_bias_b, stride_bias_h, stride_bias_s,
    )  # fmt: skip
    rows = q_row + tl.arange(0, BLOCK_M)
    m, n = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    first_key, keys_seen = keys_of(of, rows)
    q = load_rows(all_q, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    out = tl.zeros([BLOCK_M, BLOCK_DMODEL], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)  # scaled, in units of log2
    for BEHIND in tl.static_range(loops(LEVEL, ADDRESSING, BLOCK_DMODEL)):
        begin, end = steps_of(BEHIND, first, after, of.k, features, BLOCK_N, ADDRESSING)
        for key in tl.range(begin, end, BLOCK_N, num_stages=1 if BEHIND else None, disable_licm=BEHIND or AGAIN):
            k = load_rows(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
            columns = key + tl.arange(0, BLOCK_N)
            if LEVEL == FULL:
                bias = bias_of(scores, q_row, key, m, n, key)
            s = product(q, k.T, None, BF16_PRODUCTS)
            if (key < clear) | (key >= full) | has(features, SOFTCAP | ALIBI | BIAS, key) | BEHIND:
                seen = inside(columns[None, :], first_key[:, None], keys_seen[:, None])
                if LEVEL == FULL:
                    s = biased(s, bias, scores, q_row, key, m + zero(features, key), n)
                else:
                    s = capped(s, scores)
                s = tl.where(seen, s, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(s, 1) * scores.scale)
            # Of a row that has seen no key yet anything finite will do: minus infinity less itself is no number.
            base = tl.where(new_max == float("-inf"), 0.0, new_max)
            p = tl.exp2(s * scores.scale - base[:, None])
            correction = tl.exp2(row_max - base)
            row_sum = row_sum * correction + tl.sum(p, 1)
            row_max = new_max
            if LEVEL == FULL:
                p = kept(p, drop, q_row, key, m, n, key)
            v = load_rows(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
            if BEHIND:
                v = own_rows(v, of.k, key, BLOCK_N)
            out = product(p.to(v.dtype), v, out * correction[:, None], BF16_PRODUCTS)

    if (features & SINKS) != 0:
        sink = tl.load(Sinks + head) * LOG2E
        new_max = tl.maximum(row_max, sink)
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        correction = tl.exp2(row_max - base)
        row_sum = row_sum * correction + tl.exp2(sink - base)
        out = out * correction[:, None]
        row_max = new_max
    factor = 1.0 / tl.where(row_sum == 0.0, 1.0, row_sum)
    if LEVEL == FULL:
        factor *= scale_of(dropout)
    out = out * factor[:, None]
    store_rows(
        Out, stride_out_b, stride_out_h, stride_out_s, of.q, head_dim_v,
        out, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, END,
    )  # fmt: skip
    if store_lse != 0:
        lse = tl.where(rows < of.q.used, (row_max + tl.log2(row_sum)) * 0.6931471805599453, float("-inf"))
        of_head = head_rows(L, batch, head, num_heads_q, max_seqlen_q) + of.q.begin
        tl.store(of_head + rows, lse, mask=rows < of.q.rows)
