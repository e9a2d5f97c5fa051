"""Backward, gradients of keys and values as attn_bwd_dk_dv, with columns in two parts: 96 or 192."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.slim_tile import load_slim_tile, slim_dot, slim_zeros, store_slim_tile
from aotriton.tritonsrc.flash.tile import head_rows, load_pair, place


@triton.jit
def attn_bwd_dk_dv_slim(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
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
    stride_dk_b,
    stride_dk_h,
    stride_dk_s,
    stride_dv_b,
    stride_dv_h,
    stride_dv_s,
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
    """Grid and arguments as of attn_bwd_dk_dv."""
    tile, head_k, batch = place(tl.cdiv(max_seqlen_k, BLOCK_N), num_heads_k)
    key = tile * BLOCK_N  # causal: the first tile has the most queries
    group = num_heads_q // num_heads_k
    scale = sm_scale * 1.4426950408889634  # log2(e): exponentials are taken to base 2

    k, k_rest = load_slim_tile(
        K, batch, head_k, key, stride_k_b, stride_k_h, stride_k_s, max_seqlen_k, head_dim,
        BLOCK_N, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
    v, v_rest = load_slim_tile(
        V, batch, head_k, key, stride_v_b, stride_v_h, stride_v_s, max_seqlen_k, head_dim,
        BLOCK_N, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
    dk, dk_rest = slim_zeros(BLOCK_N, BLOCK_DMODEL)
    dv, dv_rest = slim_zeros(BLOCK_N, BLOCK_DMODEL)
    # Query tiles before `first` see none of the keys, those from `full` on see all of them.
    first = 0
    if CAUSAL:
        first = key // BLOCK_M * BLOCK_M
        full = key + BLOCK_N - 1
    keys = key + tl.arange(0, BLOCK_N)
    for member in range(group):
        head = head_k * group + member
        l_rows = head_rows(L, batch, head, num_heads_q, max_seqlen_q)
        delta_rows = head_rows(Delta, batch, head, num_heads_q, max_seqlen_q)
        for row in range(first, max_seqlen_q, BLOCK_M):
            # Beyond the end of the queries q, do, lse and delta are all zero, and add nothing. Keys beyond the end need
            # no mask either: their rows of dk and dv are not stored.
            q, q_rest = load_slim_tile(
                Q, batch, head, row, stride_q_b, stride_q_h, stride_q_s, max_seqlen_q, head_dim,
                BLOCK_M, BLOCK_DMODEL, ADDRESSING,
            )  # fmt: skip
            lse, delta = load_pair(l_rows, delta_rows, row, max_seqlen_q, BLOCK_M, ADDRESSING)
            # Scores are transposed, [keys, queries], so that p and ds are register operands of the products after them.
            p = tl.exp2(slim_dot(k, k_rest, q, q_rest) * scale - (lse * 1.4426950408889634)[None, :])
            if CAUSAL:
                visible = keys[:, None] <= (row + tl.arange(0, BLOCK_M))[None, :]
                if row < full:
                    p = tl.where(visible, p, 0.0)
            do, do_rest = load_slim_tile(
                DO, batch, head, row, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim,
                BLOCK_M, BLOCK_DMODEL, ADDRESSING,
            )  # fmt: skip
            p_low = p.to(do.dtype)
            dv = tl.dot(p_low, do, dv)
            dv_rest = tl.dot(p_low, do_rest, dv_rest)
            ds = (p * (slim_dot(v, v_rest, do, do_rest) - delta[None, :])).to(q.dtype)
            dk = tl.dot(ds, q, dk)
            dk_rest = tl.dot(ds, q_rest, dk_rest)

    store_slim_tile(
        DK, dk * sm_scale, dk_rest * sm_scale, batch, head_k, key, stride_dk_b, stride_dk_h, stride_dk_s,
        max_seqlen_k, head_dim, BLOCK_N, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
    store_slim_tile(
        DV, dv, dv_rest, batch, head_k, key, stride_dv_b, stride_dv_h, stride_dv_s, max_seqlen_k, head_dim,
        BLOCK_N, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
