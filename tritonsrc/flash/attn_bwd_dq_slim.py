"""Backward, gradient of queries as attn_bwd_dq, with columns in two parts: 96 or 192."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.slim_tile import load_slim_tile, slim_dot, slim_zeros, store_slim_tile
from aotriton.tritonsrc.flash.tile import head_rows, place


@triton.jit
def attn_bwd_dq_slim(
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    CAUSAL: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid and arguments as of attn_bwd_dq."""
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

    rows = q_row + tl.arange(0, BLOCK_M)
    inside = rows < max_seqlen_q
    scale = sm_scale * 1.4426950408889634  # log2(e): exponentials are taken to base 2
    lse = tl.load(head_rows(L, batch, head, num_heads_q, max_seqlen_q) + rows, mask=inside, other=0.0)
    lse = lse * 1.4426950408889634
    delta = tl.load(head_rows(Delta, batch, head, num_heads_q, max_seqlen_q) + rows, mask=inside, other=0.0)
    q, q_rest = load_slim_tile(
        Q, batch, head, q_row, stride_q_b, stride_q_h, stride_q_s, max_seqlen_q, head_dim,
        BLOCK_M, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
    do, do_rest = load_slim_tile(
        DO, batch, head, q_row, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim,
        BLOCK_M, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
    dq, dq_rest = slim_zeros(BLOCK_M, BLOCK_DMODEL)
    for key in range(0, last, BLOCK_N):
        k, k_rest = load_slim_tile(
            K, batch, head_k, key, stride_k_b, stride_k_h, stride_k_s, max_seqlen_k, head_dim,
            BLOCK_N, BLOCK_DMODEL, ADDRESSING,
        )  # fmt: skip
        p = tl.exp2(slim_dot(q, q_rest, k, k_rest) * scale - lse[:, None])
        if key >= full:
            # As in attn_bwd_dq, p of a key beyond the end could be infinite.
            columns = key + tl.arange(0, BLOCK_N)
            if CAUSAL:
                p = tl.where(columns[None, :] <= rows[:, None], p, 0.0)
            else:
                p = tl.where(columns[None, :] < max_seqlen_k, p, 0.0)
        v, v_rest = load_slim_tile(
            V, batch, head_k, key, stride_v_b, stride_v_h, stride_v_s, max_seqlen_k, head_dim,
            BLOCK_N, BLOCK_DMODEL, ADDRESSING,
        )  # fmt: skip
        ds = (p * (slim_dot(do, do_rest, v, v_rest) - delta[:, None])).to(k.dtype)
        dq = tl.dot(ds, k, dq)
        dq_rest = tl.dot(ds, k_rest, dq_rest)

    store_slim_tile(
        DQ, dq * sm_scale, dq_rest * sm_scale, batch, head, q_row, stride_dq_b, stride_dq_h, stride_dq_s,
        max_seqlen_q, head_dim, BLOCK_M, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
