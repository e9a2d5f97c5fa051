"""Attention forward with features: bands, softcap, ALiBi, sinks, sequences of different lengths, bias and dropout."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, interval, visited
from aotriton.tritonsrc.flash.lib.dropout import dropout_of, kept
from aotriton.tritonsrc.flash.lib.features import FULL, OWN_LAST, PACKED, SINKS, SOFTCAP, USED_K, USED_Q, has
from aotriton.tritonsrc.flash.lib.product import product
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.score import LOG2E, biases, capped, scores_of
from aotriton.tritonsrc.flash.lib.sequence import band_of, heads_of, sequence_of
from aotriton.tritonsrc.flash.lib.tile import head_rows, load_tile, store_tile


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
    head_dim,
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

    Row i sees keys from i + lo to i + hi; where there are none and no sink, Out is zero and L minus infinity. L,
    contiguous [batch, num_heads_q, max_seqlen_q], is untouched when store_lse is 0. ``longest``: the most rows of a
    sequence. ``features``: the bits of lib/features.py; pointers of what the call does not have are not followed.
    """
    tiles = tl.cdiv(longest, BLOCK_M)
    tile, head, sequence = tile_of_program(tiles, num_heads_q)
    tile = tiles - 1 - tile  # of a causal call the longest programs first
    q_row = tile * BLOCK_M
    of_q = sequence_of(sequence, CuSeqlensQ, SequsedQ, features, max_seqlen_q, USED_Q, ADDRESSING)
    if q_row >= of_q.rows:
        return
    of_k = sequence_of(sequence, CuSeqlensK, SequsedK, features, max_seqlen_k, USED_K, ADDRESSING)
    batch = tl.where((features & PACKED) != 0, 0, sequence)
    all_q = heads_of(Q, stride_q_b, stride_q_h, stride_q_s, of_q.begin, of_q.used, head_dim, ADDRESSING)
    all_k = heads_of(K, stride_k_b, stride_k_h, stride_k_s, of_k.begin, of_k.used, head_dim, ADDRESSING)
    all_v = heads_of(V, stride_v_b, stride_v_h, stride_v_s, of_k.begin, of_k.used, head_dim, ADDRESSING)
    all_out = heads_of(Out, stride_out_b, stride_out_h, stride_out_s, of_q.begin, of_q.rows, head_dim, ADDRESSING)
    head_k = head // (num_heads_q // num_heads_k)
    lo, hi = band_of(lo, hi, features, of_q.used, of_k.used, OWN_LAST, ADDRESSING)
    first, clear, full, after = visited(q_row, q_row + BLOCK_M, of_q.used, of_k.used, lo, hi, BLOCK_N)
    if q_row + BLOCK_M > of_q.used:  # rows that are not used see nothing
        full = first
        after = tl.where(q_row < of_q.used, after, first)

    scores = scores_of(
        batch, head, of_k.used - of_q.used, of_q.used, of_k.used, features, sm_scale, softcap,
        AlibiSlopes, stride_alibislopes_b, Bias, stride_bias_b, stride_bias_h, stride_bias_s,
    )  # fmt: skip
    # Exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = tl.maximum(sm_scale, 1e-30) * LOG2E
    rows = q_row + tl.arange(0, BLOCK_M)
    first_key, keys_seen = interval(rows, of_k.used, lo, hi)
    keys_seen = tl.where(rows < of_q.used, keys_seen, 0)
    q = load_tile(all_q, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    out = tl.zeros([BLOCK_M, BLOCK_DMODEL], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)  # scaled, in units of log2
    drop = dropout_of(features, dropout, DropoutSeed, DropoutOffset, sequence * num_heads_q + head)
    for key in range(first, after, BLOCK_N):
        k = load_tile(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        columns = key + tl.arange(0, BLOCK_N)
        if LEVEL == FULL:
            s = product(q, k.T, biases(scores, rows[:, None], columns[None, :]), BF16_PRODUCTS)
        else:
            s = product(q, k.T, None, BF16_PRODUCTS)
        if (key < clear) | (key >= full) | has(features, SOFTCAP, key):
            seen = inside(columns[None, :], first_key[:, None], keys_seen[:, None])
            s = tl.where(seen, capped(s, scores), float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale)
        # Of a row that has seen no key yet anything finite will do: minus infinity less itself is no number.
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(s * scale - base[:, None])
        correction = tl.exp2(row_max - base)
        row_sum = row_sum * correction + tl.sum(p, 1)
        row_max = new_max
        if LEVEL == FULL:
            p = tl.where(kept(drop, q_row, key, BLOCK_M, BLOCK_N), p * drop.scale, 0.0)
        v = load_tile(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        out = product(p.to(v.dtype), v, out * correction[:, None], BF16_PRODUCTS)

    if (features & SINKS) != 0:
        sink = tl.load(Sinks + head) * LOG2E
        new_max = tl.maximum(row_max, sink)
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        correction = tl.exp2(row_max - base)
        row_sum = row_sum * correction + tl.exp2(sink - base)
        out = out * correction[:, None]
        row_max = new_max
    out = out / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    store_tile(all_out, out, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    if store_lse != 0:
        lse = tl.where(rows < of_q.used, (row_max + tl.log2(row_sum)) * 0.6931471805599453, float("-inf"))
        of_head = head_rows(L, batch, head, num_heads_q, max_seqlen_q) + of_q.begin
        tl.store(of_head + rows, lse, mask=rows < of_q.rows)
