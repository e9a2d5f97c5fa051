"""Attention forward with features: as attn_fwd, where rows see keys by the call's band."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, interval, visited
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads, head_rows, load_tile, store_tile


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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_q, BLOCK_M) * num_heads_q * batch). ``sm_scale`` must not be negative.

    Row i sees keys from i + lo to i + hi; where there are none, Out is zero and L minus infinity. L, contiguous
    [batch, num_heads_q, max_seqlen_q], is untouched when store_lse is 0.
    """
    all_q = Heads(Q, stride_q_b, stride_q_h, stride_q_s, max_seqlen_q, head_dim)
    all_k = Heads(K, stride_k_b, stride_k_h, stride_k_s, max_seqlen_k, head_dim)
    all_v = Heads(V, stride_v_b, stride_v_h, stride_v_s, max_seqlen_k, head_dim)
    all_out = Heads(Out, stride_out_b, stride_out_h, stride_out_s, max_seqlen_q, head_dim)
    tiles = tl.cdiv(max_seqlen_q, BLOCK_M)
    tile, head, batch = tile_of_program(tiles, num_heads_q)
    tile = tiles - 1 - tile  # of a causal call the longest programs first
    head_k = head // (num_heads_q // num_heads_k)
    q_row = tile * BLOCK_M
    first, clear, full, after = visited(q_row, q_row + BLOCK_M, max_seqlen_q, max_seqlen_k, lo, hi, BLOCK_N)

    # log2(e): exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = tl.maximum(sm_scale * 1.4426950408889634, 1e-30)
    rows = q_row + tl.arange(0, BLOCK_M)
    first_key, keys_seen = interval(rows, max_seqlen_k, lo, hi)
    q = load_tile(all_q, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    out = tl.zeros([BLOCK_M, BLOCK_DMODEL], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)  # scaled, in units of log2
    for key in range(first, after, BLOCK_N):
        k = load_tile(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        s = tl.dot(q, k.T)
        if (key < clear) | (key >= full):
            columns = key + tl.arange(0, BLOCK_N)
            s = tl.where(inside(columns[None, :], first_key[:, None], keys_seen[:, None]), s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale)
        # Of a row that has seen no key yet anything finite will do: minus infinity less itself is no number.
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(s * scale - base[:, None])
        correction = tl.exp2(row_max - base)
        row_sum = row_sum * correction + tl.sum(p, 1)
        row_max = new_max
        v = load_tile(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        out = tl.dot(p.to(v.dtype), v, out * correction[:, None])

    out = out / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    store_tile(all_out, out, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    if store_lse != 0:
        lse = (row_max + tl.log2(row_sum)) * 0.6931471805599453
        tl.store(head_rows(L, batch, head, num_heads_q, max_seqlen_q) + rows, lse, mask=rows < max_seqlen_q)
