"""Backward, gradients of keys and values: all queries of a key tile to BLOCK_N rows of DK and DV."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.column_parts import add_dot, dot_rows, load_parts, store_parts, zero_parts
from aotriton.tritonsrc.flash.lib.tile import head_rows, load_pair, place


@triton.jit
def attn_bwd_dk_dv(
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
    """Grid (cdiv(max_seqlen_k, BLOCK_N) * num_heads_k * batch); sums over the query heads that share a key head.

    CAUSAL needs max_seqlen_q == max_seqlen_k. L and Delta are contiguous [batch, num_heads_q, max_seqlen_q].
    """
    tile, head_k, batch = place(tl.cdiv(max_seqlen_k, BLOCK_N), num_heads_k)
    key = tile * BLOCK_N  # causal: the first tile has the most queries
    group = num_heads_q // num_heads_k
    scale = sm_scale * 1.4426950408889634  # log2(e): exponentials are taken to base 2

    k = load_parts(
        K, batch, head_k, key, stride_k_b, stride_k_h, stride_k_s, max_seqlen_k, head_dim,
        BLOCK_N, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
    v = load_parts(
        V, batch, head_k, key, stride_v_b, stride_v_h, stride_v_s, max_seqlen_k, head_dim,
        BLOCK_N, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
    dk = zero_parts(BLOCK_N, BLOCK_DMODEL)
    dv = zero_parts(BLOCK_N, BLOCK_DMODEL)
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
            q = load_parts(
                Q, batch, head, row, stride_q_b, stride_q_h, stride_q_s, max_seqlen_q, head_dim,
                BLOCK_M, BLOCK_DMODEL, ADDRESSING,
            )  # fmt: skip
            lse, delta = load_pair(l_rows, delta_rows, row, max_seqlen_q, BLOCK_M, ADDRESSING)
            # Scores are transposed, [keys, queries], so that p and ds are register operands of the products after them.
            p = tl.exp2(dot_rows(k, q) * scale - (lse * 1.4426950408889634)[None, :])
            if CAUSAL:
                visible = keys[:, None] <= (row + tl.arange(0, BLOCK_M))[None, :]
                # At 256 a branch would hide from the compiler that p is an operand, and cost registers.
                if BLOCK_DMODEL == 256:  # noqa: SIM114 (one test is a constexpr)
                    p = tl.where(visible, p, 0.0)
                elif row < full:
                    p = tl.where(visible, p, 0.0)
            do = load_parts(
                DO, batch, head, row, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim,
                BLOCK_M, BLOCK_DMODEL, ADDRESSING,
            )  # fmt: skip
            dv = add_dot(p.to(do[0].dtype), do, dv)
            ds = p * (dot_rows(v, do) - delta[None, :])
            dk = add_dot(ds.to(q[0].dtype), q, dk)

    store_parts(
        DK, [part * sm_scale for part in dk], batch, head_k, key, stride_dk_b, stride_dk_h, stride_dk_s,
        max_seqlen_k, head_dim, BLOCK_N, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
    store_parts(
        DV, dv, batch, head_k, key, stride_dv_b, stride_dv_h, stride_dv_s, max_seqlen_k, head_dim,
        BLOCK_N, BLOCK_DMODEL, ADDRESSING,
    )  # fmt: skip
