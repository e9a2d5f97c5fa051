"""Backward with features, gradients of keys and values: as attn_bwd_dk_dv, where rows see keys by the call's band."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, visited
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads, head_rows, load_pair, load_tile, store_tile


@triton.jit
def attn_bwd_dk_dv_features(
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
    lo,
    hi,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_k, BLOCK_N) * num_heads_k * batch); sums over the query heads that share a key head.

    Row i of the queries sees keys from i + lo to i + hi. L and Delta are contiguous [batch, num_heads_q, max_seqlen_q];
    of a row that sees no key L is minus infinity.
    """
    all_q = Heads(Q, stride_q_b, stride_q_h, stride_q_s, max_seqlen_q, head_dim)
    all_k = Heads(K, stride_k_b, stride_k_h, stride_k_s, max_seqlen_k, head_dim)
    all_v = Heads(V, stride_v_b, stride_v_h, stride_v_s, max_seqlen_k, head_dim)
    all_do = Heads(DO, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim)
    all_dk = Heads(DK, stride_dk_b, stride_dk_h, stride_dk_s, max_seqlen_k, head_dim)
    all_dv = Heads(DV, stride_dv_b, stride_dv_h, stride_dv_s, max_seqlen_k, head_dim)
    tile, head_k, batch = tile_of_program(tl.cdiv(max_seqlen_k, BLOCK_N), num_heads_k)
    key = tile * BLOCK_N  # of a causal call the first tile has the most queries
    group = num_heads_q // num_heads_k
    scale = sm_scale * 1.4426950408889634  # log2(e): exponentials are taken to base 2

    k = load_tile(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    v = load_tile(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    dk = tl.zeros([BLOCK_N, BLOCK_DMODEL], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DMODEL], tl.float32)
    first, clear, full, after = visited(key, key + BLOCK_N, max_seqlen_k, max_seqlen_q, -hi, -lo, BLOCK_M)
    first_row = key - hi + tl.arange(0, BLOCK_N)  # that sees each key; more than there are do no harm
    for member in range(group):
        head = head_k * group + member
        l_rows = head_rows(L, batch, head, num_heads_q, max_seqlen_q)
        delta_rows = head_rows(Delta, batch, head, num_heads_q, max_seqlen_q)
        for row in range(first, after, BLOCK_M):
            # Beyond the end of the queries q, do, lse and delta are all zero, and add nothing.
            q = load_tile(all_q, batch, head, row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
            lse, delta = load_pair(l_rows, delta_rows, row, max_seqlen_q, BLOCK_M, ADDRESSING)
            # Scores are transposed, [keys, queries], so that p and ds are register operands of the products after them.
            s = tl.dot(k, q.T)
            lse = (lse * 1.4426950408889634)[None, :]
            rows = row + tl.arange(0, BLOCK_M)
            partial = (row < clear) | (row >= full)
            # Of a row that sees no key exponentials are infinite, and then hidden.
            if ADDRESSING == "descriptor":
                p = tl.exp2(s * scale - lse)
                # At 256 a branch would hide from the compiler that p is an operand, and cost registers.
                if BLOCK_DMODEL == 256:  # noqa: SIM114 (one test is a constexpr)
                    p = tl.where(inside(rows[None, :], first_row[:, None], hi - lo + 1), p, 0.0)
                elif partial:
                    p = tl.where(inside(rows[None, :], first_row[:, None], hi - lo + 1), p, 0.0)
            elif partial:  # exponentials in both branches: before them, they would take registers beside p
                p = tl.where(inside(rows[None, :], first_row[:, None], hi - lo + 1), tl.exp2(s * scale - lse), 0.0)
            else:
                p = tl.exp2(s * scale - lse)
            do = load_tile(all_do, batch, head, row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
            dv = tl.dot(p.to(do.dtype), do, dv)
            ds = p * (tl.dot(v, do.T) - delta[None, :])
            dk = tl.dot(ds.to(q.dtype), q, dk)

    store_tile(all_dk, dk * sm_scale, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    store_tile(all_dv, dv, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
