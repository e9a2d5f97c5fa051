"""Backward with features, gradient of queries: as attn_bwd_dq, where rows see keys by the call's band."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, interval, visited
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads, head_rows, load_tile, store_tile


@triton.jit
def attn_bwd_dq_features(
    Q,
    K,
    V,
    DO,
    DQ,
    L,
    Delta,
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
    stride_do_b,
    stride_do_h,
    stride_do_s,
    stride_dq_b,
    stride_dq_h,
    stride_dq_s,
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
    """Grid (cdiv(max_seqlen_q, BLOCK_M) * num_heads_q * batch).

    Row i sees keys from i + lo to i + hi. L and Delta are contiguous [batch, num_heads_q, max_seqlen_q]; of a row that
    sees no key L is minus infinity, and DQ zero.
    """
    all_q = Heads(Q, stride_q_b, stride_q_h, stride_q_s, max_seqlen_q, head_dim)
    all_k = Heads(K, stride_k_b, stride_k_h, stride_k_s, max_seqlen_k, head_dim)
    all_v = Heads(V, stride_v_b, stride_v_h, stride_v_s, max_seqlen_k, head_dim)
    all_do = Heads(DO, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim)
    all_dq = Heads(DQ, stride_dq_b, stride_dq_h, stride_dq_s, max_seqlen_q, head_dim)
    tiles = tl.cdiv(max_seqlen_q, BLOCK_M)
    tile, head, batch = tile_of_program(tiles, num_heads_q)
    tile = tiles - 1 - tile  # of a causal call the longest programs first
    head_k = head // (num_heads_q // num_heads_k)
    q_row = tile * BLOCK_M
    first, clear, full, after = visited(q_row, q_row + BLOCK_M, max_seqlen_q, max_seqlen_k, lo, hi, BLOCK_N)

    rows = q_row + tl.arange(0, BLOCK_M)
    first_key, keys_seen = interval(rows, max_seqlen_k, lo, hi)
    stored = rows < max_seqlen_q
    scale = sm_scale * 1.4426950408889634  # log2(e): exponentials are taken to base 2
    lse = tl.load(head_rows(L, batch, head, num_heads_q, max_seqlen_q) + rows, mask=stored, other=0.0)
    lse = lse * 1.4426950408889634
    delta = tl.load(head_rows(Delta, batch, head, num_heads_q, max_seqlen_q) + rows, mask=stored, other=0.0)
    q = load_tile(all_q, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    do = load_tile(all_do, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    dq = tl.zeros([BLOCK_M, BLOCK_DMODEL], tl.float32)
    # One loop with a branch: with loops of their own for steps with and without a mask, each has registers of its own.
    for key in range(first, after, BLOCK_N):
        k = load_tile(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        p = tl.exp2(tl.dot(q, k.T) * scale - lse[:, None])
        if (key < clear) | (key >= full):
            # A hidden key's p could be infinite, and infinity times a row of zeros is not a number.
            columns = key + tl.arange(0, BLOCK_N)
            p = tl.where(inside(columns[None, :], first_key[:, None], keys_seen[:, None]), p, 0.0)
        v = load_tile(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        ds = p * (tl.dot(do, v.T) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)

    store_tile(all_dq, dq * sm_scale, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
