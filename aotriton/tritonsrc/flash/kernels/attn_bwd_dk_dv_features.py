"""Backward with features, gradients of keys and values."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, visited_by_keys
from aotriton.tritonsrc.flash.lib.dropout import dropout_of, dropout_of_head, kept, scale_of
from aotriton.tritonsrc.flash.lib.features import ALIBI, BIAS, FULL, SOFTCAP, has
from aotriton.tritonsrc.flash.lib.product import product
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.score import LOG2E, bias_of, biased, cap_gradient, capped, scores_of
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
from aotriton.tritonsrc.flash.lib.tile import head_rows, load_pair
from aotriton.tritonsrc.flash.lib.zero import zero


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
    head_dim_qk,
    head_dim_v,
    lo,
    hi,
    features,
    softcap,
    AlibiSlopes,
    stride_alibislopes_b,
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
    """Grid (cdiv(longest, BLOCK_N) * num_heads_k * sequences); sums over the query heads that share a key head.

    Row i of the queries sees keys from i + lo to i + hi. L and Delta are contiguous [batch, num_heads_q, max_seqlen_q];
    of a row that sees no key L is minus infinity. ``longest``: the most keys of a sequence. ``features``: as of
    attn_fwd_features.
    """
    tile, head_k, sequence = tile_of_program(tl.cdiv(longest, BLOCK_N), num_heads_k)
    key = tile * BLOCK_N  # of a causal call the first tile has the most queries
    END: tl.constexpr = sequences_end(LEVEL, ADDRESSING)
    AGAIN: tl.constexpr = works_out_again(ADDRESSING)
    of = sequence_of(
        sequence, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k, END,
    )  # fmt: skip
    if key >= of.k.rows:
        return
    batch = of.batch
    all_q = rows_read(Q, stride_q_b, stride_q_h, stride_q_s, of.q, head_dim_qk, ADDRESSING)
    all_k = rows_read(K, stride_k_b, stride_k_h, stride_k_s, of.k, head_dim_qk, ADDRESSING)
    all_v = rows_read(V, stride_v_b, stride_v_h, stride_v_s, of.k, head_dim_v, ADDRESSING)
    all_do = rows_read(DO, stride_do_b, stride_do_h, stride_do_s, of.q, head_dim_v, ADDRESSING)
    group = num_heads_q // num_heads_k

    k = load_rows(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    v = load_rows(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    dk = tl.zeros([BLOCK_N, BLOCK_DMODEL], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DMODEL], tl.float32)
    first, clear, full, after = visited_by_keys(of, key, BLOCK_N, BLOCK_M)
    keys = key + tl.arange(0, BLOCK_N)
    m, n = tl.arange(0, BLOCK_M)[None, :], tl.arange(0, BLOCK_N)[:, None]
    first_row = keys - of.hi  # that sees each key; without ALiBi more than there are do no harm
    rows_seen = of.hi - of.lo + 1
    of_call = dropout_of(features, dropout, DropoutSeed, DropoutOffset)
    if LEVEL == FULL:
        rows_seen = tl.minimum(rows_seen, tl.maximum(of.q.used - first_row, 0))[:, None]
    for BEHIND in tl.static_range(loops(LEVEL, ADDRESSING, BLOCK_DMODEL)):
        begin, end = steps_of(BEHIND, first, after, of.q, features, BLOCK_M, ADDRESSING)
        for member in range(group):
            head = head_k * group + member
            l_rows = head_rows(L, batch, head, num_heads_q, max_seqlen_q) + of.q.begin
            delta_rows = head_rows(Delta, batch, head, num_heads_q, max_seqlen_q) + of.q.begin
            scores = scores_of(
                of, head, features, sm_scale, softcap,
                AlibiSlopes, stride_alibislopes_b, Bias, stride_bias_b, stride_bias_h, stride_bias_s,
            )  # fmt: skip
            drop = dropout_of_head(of_call, sequence * num_heads_q + head)
            for row in tl.range(begin, end, BLOCK_M, num_stages=1 if BEHIND else None, disable_licm=BEHIND or AGAIN):
                # Beyond the end of the queries q, do, lse and delta are all zero, and add nothing.
                q = load_rows(all_q, batch, head, row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
                if BEHIND:
                    q = own_rows(q, of.q, row, BLOCK_M)
                lse, delta = load_pair(l_rows, delta_rows, row, of.q.used, BLOCK_M, ADDRESSING)
                # Scores are transposed, [keys, queries], so that p and ds are register operands of the products after
                # them. Of a row that sees no key anything finite will do.
                lse = tl.where(lse == float("-inf"), 0.0, lse * LOG2E)[None, :]
                rows = row + tl.arange(0, BLOCK_M)
                if LEVEL == FULL:
                    bias = bias_of(scores, row, key, m, n, row)
                s = product(k, q.T, None, BF16_PRODUCTS)
                if (row < clear) | (row >= full) | has(features, SOFTCAP | ALIBI | BIAS, row) | BEHIND:
                    seen = inside(rows[None, :], (first_row + zero(features, row))[:, None], rows_seen)
                    if LEVEL == FULL:
                        s = biased(s, bias, scores, row, key, m, n + zero(features, row))
                    else:
                        s = capped(s, scores)
                    s = tl.where(seen, s, float("-inf"))
                p = tl.exp2(s * scores.scale - lse)
                do = load_rows(all_do, batch, head, row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
                if BEHIND:
                    do = own_rows(do, of.q, row, BLOCK_M)
                if LEVEL == FULL:
                    pk = kept(p, drop, row, key, m, n, row)
                    dv = product(pk.to(do.dtype), do, dv, BF16_PRODUCTS)
                    ds = pk * (product(v, do.T, None, BF16_PRODUCTS) * scale_of(dropout)) - p * delta[None, :]
                else:
                    dv = product(p.to(do.dtype), do, dv, BF16_PRODUCTS)
                    ds = p * (product(v, do.T, None, BF16_PRODUCTS) - delta[None, :])
                if LEVEL != FULL:  # noqa: SIM102 (known when compiled, as the next is not)
                    if has(features, SOFTCAP, row):
                        ds *= cap_gradient(p, lse, scores)
                dk = product(ds.to(q.dtype), q, dk, BF16_PRODUCTS)

    if LEVEL == FULL:
        dv *= scale_of(dropout)
    if of.k.used < of.k.rows:
        dk = tl.where((keys < of.k.used)[:, None], dk, 0.0)
        dv = tl.where((keys < of.k.used)[:, None], dv, 0.0)
    store_rows(
        DK, stride_dk_b, stride_dk_h, stride_dk_s, of.k, head_dim_qk,
        dk * sm_scale, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, END,
    )  # fmt: skip
    store_rows(
        DV, stride_dv_b, stride_dv_h, stride_dv_s, of.k, head_dim_v,
        dv, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, END,
    )  # fmt: skip
