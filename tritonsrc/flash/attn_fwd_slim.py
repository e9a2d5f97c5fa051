"""Attention forward as attn_fwd, with columns in two parts: 96 or 192."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.slim_tile import load_slim_tile, slim_dot, slim_zeros, store_slim_tile
from aotriton.tritonsrc.flash.tile import head_rows, place


@triton.jit
def attn_fwd_slim(
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    CAUSAL: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid and arguments as of attn_fwd."""
    tiles = tl.cdiv(max_seqlen_q, BLOCK_M)
    tile, head, batch = place(tiles, num_heads_q)
    if CAUSAL:  # longest programs first
        tile = tiles - 1 - tile
    head_k = head // (num_heads_q // num_heads_k)
    q_row = tile * BLOCK_M

    # Key tiles before `full` need no mask.
    if CAUSAL:
        full = q_row // BLOCK_N * BLOCK_N
        last = tl.minimum(q_row + BLOCK_M, max_seqlen_k)
    else:
        full = max_seqlen_k // BLOCK_N * BLOCK_N
        last = max_seqlen_k

    # log2(e): exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = tl.maximum(sm_scale * 1.4426950408889634, 1e-30)
    rows = q_row + tl.arange(0, BLOCK_M)
    q, q_rest = load_slim_tile(
        Q, batch, head, q_row, stride_q_b, stride_q_h, stride_q_s, max_seqlen_q, head_dim,
        BLOCK_M, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
    out, out_rest = slim_zeros(BLOCK_M, BLOCK_DMODEL)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)  # scaled, in units of log2
    for key in range(0, last, BLOCK_N):
        k, k_rest = load_slim_tile(
            K, batch, head_k, key, stride_k_b, stride_k_h, stride_k_s, max_seqlen_k, head_dim,
            BLOCK_N, BLOCK_DMODEL, ADDRESSING,
        )  # fmt: skip
        s = slim_dot(q, q_rest, k, k_rest)
        if key >= full:
            columns = key + tl.arange(0, BLOCK_N)
            if CAUSAL:  # this hides keys beyond the end, too: no row that is stored reaches them
                s = tl.where(columns[None, :] <= rows[:, None], s, float("-inf"))
            else:
                s = tl.where(columns[None, :] < max_seqlen_k, s, float("-inf"))
        # Every row sees key 0, so that row_max is finite from the first tile on.
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new_max[:, None])
        correction = tl.exp2(row_max - new_max)
        row_sum = row_sum * correction + tl.sum(p, 1)
        row_max = new_max
        v, v_rest = load_slim_tile(
            V, batch, head_k, key, stride_v_b, stride_v_h, stride_v_s, max_seqlen_k, head_dim,
            BLOCK_N, BLOCK_DMODEL, ADDRESSING,
        )  # fmt: skip
        p = p.to(v.dtype)
        out = tl.dot(p, v, out * correction[:, None])
        out_rest = tl.dot(p, v_rest, out_rest * correction[:, None])

    store_slim_tile(
        Out, out / row_sum[:, None], out_rest / row_sum[:, None], batch, head, q_row,
        stride_out_b, stride_out_h, stride_out_s, max_seqlen_q, head_dim, BLOCK_M, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
    if store_lse != 0:
        lse = (row_max + tl.log2(row_sum)) * 0.6931471805599453
        tl.store(head_rows(L, batch, head, num_heads_q, max_seqlen_q) + rows, lse, mask=rows < max_seqlen_q)
