"""Backward, gradients of keys and values: all queries of a key tile to BLOCK_N rows of DK and DV."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.column_parts import add_dot, dot_rows, load_parts, store_parts, zero_parts
from aotriton.tritonsrc.flash.lib.mask import first_query, visible
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads, head_rows, load_pair


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
    all_q = Heads(Q, stride_q_b, stride_q_h, stride_q_s, max_seqlen_q, head_dim)
    all_k = Heads(K, stride_k_b, stride_k_h, stride_k_s, max_seqlen_k, head_dim)
    all_v = Heads(V, stride_v_b, stride_v_h, stride_v_s, max_seqlen_k, head_dim)
    all_do = Heads(DO, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim)
    all_dk = Heads(DK, stride_dk_b, stride_dk_h, stride_dk_s, max_seqlen_k, head_dim)
    all_dv = Heads(DV, stride_dv_b, stride_dv_h, stride_dv_s, max_seqlen_k, head_dim)
    tile, head_k, batch = tile_of_program(tl.cdiv(max_seqlen_k, BLOCK_N), num_heads_k)
    key = tile * BLOCK_N  # causal: the first tile has the most queries
    group = num_heads_q // num_heads_k
    scale = sm_scale * 1.4426950408889634  # log2(e): exponentials are taken to base 2

    k = load_parts(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    v = load_parts(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    dk = zero_parts(BLOCK_N, BLOCK_DMODEL)
    dv = zero_parts(BLOCK_N, BLOCK_DMODEL)
    # Query tiles before `first` see none of the keys, those from `full` on see all of them.
    first = first_query(key, CAUSAL, BLOCK_M)
    if CAUSAL:
        full = key + BLOCK_N - 1
    keys = key + tl.arange(0, BLOCK_N)
    for member in range(group):
        head = head_k * group + member
        l_rows = head_rows(L, batch, head, num_heads_q, max_seqlen_q)
        delta_rows = head_rows(Delta, batch, head, num_heads_q, max_seqlen_q)
        for row in range(first, max_seqlen_q, BLOCK_M):
            # Beyond the end of the queries q, do, lse and delta are all zero, and add nothing. Keys beyond the end need
            # no mask either: their rows of dk and dv are not stored.
            q = load_parts(all_q, batch, head, row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
            lse, delta = load_pair(l_rows, delta_rows, row, max_seqlen_q, BLOCK_M, ADDRESSING)
            # Scores are transposed, [keys, queries], so that p and ds are register operands of the products after them.
            p = tl.exp2(dot_rows(k, q) * scale - (lse * 1.4426950408889634)[None, :])
            if CAUSAL:
                queries = row + tl.arange(0, BLOCK_M)
                seen = visible(keys[:, None], queries[None, :], max_seqlen_k, CAUSAL)
                # At 256 a branch would hide from the compiler that p is an operand, and cost registers.
                if BLOCK_DMODEL == 256:  # noqa: SIM114 (one test is a constexpr)
                    p = tl.where(seen, p, 0.0)
                elif row < full:
                    p = tl.where(seen, p, 0.0)
            do = load_parts(all_do, batch, head, row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
            dv = add_dot(p.to(do[0].dtype), do, dv)
            ds = p * (dot_rows(v, do) - delta[None, :])
            dk = add_dot(ds.to(q[0].dtype), q, dk)

    dk = [part * sm_scale for part in dk]
    store_parts(all_dk, dk, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    store_parts(all_dv, dv, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
