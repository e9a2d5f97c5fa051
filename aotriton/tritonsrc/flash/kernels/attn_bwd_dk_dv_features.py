"""Backward with features, gradients of keys and values."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, visited
from aotriton.tritonsrc.flash.lib.dropout import dropout_of, kept
from aotriton.tritonsrc.flash.lib.features import FULL, OWN_LAST, PACKED, SOFTCAP, USED_K, USED_Q, has
from aotriton.tritonsrc.flash.lib.product import product
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.score import LOG2E, biases, cap_gradient, capped, scores_of
from aotriton.tritonsrc.flash.lib.sequence import band_of, heads_of, sequence_of
from aotriton.tritonsrc.flash.lib.tile import head_rows, load_pair, load_tile, store_tile


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
    of_k = sequence_of(sequence, CuSeqlensK, SequsedK, features, max_seqlen_k, USED_K, ADDRESSING)
    if key >= of_k.rows:
        return
    of_q = sequence_of(sequence, CuSeqlensQ, SequsedQ, features, max_seqlen_q, USED_Q, ADDRESSING)
    batch = tl.where((features & PACKED) != 0, 0, sequence)
    all_q = heads_of(Q, stride_q_b, stride_q_h, stride_q_s, of_q.begin, of_q.used, head_dim, ADDRESSING)
    all_k = heads_of(K, stride_k_b, stride_k_h, stride_k_s, of_k.begin, of_k.used, head_dim, ADDRESSING)
    all_v = heads_of(V, stride_v_b, stride_v_h, stride_v_s, of_k.begin, of_k.used, head_dim, ADDRESSING)
    all_do = heads_of(DO, stride_do_b, stride_do_h, stride_do_s, of_q.begin, of_q.used, head_dim, ADDRESSING)
    all_dk = heads_of(DK, stride_dk_b, stride_dk_h, stride_dk_s, of_k.begin, of_k.rows, head_dim, ADDRESSING)
    all_dv = heads_of(DV, stride_dv_b, stride_dv_h, stride_dv_s, of_k.begin, of_k.rows, head_dim, ADDRESSING)
    group = num_heads_q // num_heads_k
    lo, hi = band_of(lo, hi, features, of_q.used, of_k.used, OWN_LAST, ADDRESSING)

    k = load_tile(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    v = load_tile(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    dk = tl.zeros([BLOCK_N, BLOCK_DMODEL], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DMODEL], tl.float32)
    first, clear, full, after = visited(key, key + BLOCK_N, of_k.used, of_q.used, -hi, -lo, BLOCK_M)
    keys = key + tl.arange(0, BLOCK_N)
    first_row = keys - hi  # that sees each key; more than there are do no harm
    for member in range(group):
        head = head_k * group + member
        l_rows = head_rows(L, batch, head, num_heads_q, max_seqlen_q) + of_q.begin
        delta_rows = head_rows(Delta, batch, head, num_heads_q, max_seqlen_q) + of_q.begin
        scores = scores_of(
            batch, head, of_k.used - of_q.used, of_q.used, of_k.used, features, sm_scale, softcap,
            AlibiSlopes, stride_alibislopes_b, Bias, stride_bias_b, stride_bias_h, stride_bias_s,
        )  # fmt: skip
        # Exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
        scale = tl.maximum(sm_scale, 1e-30) * LOG2E
        drop = dropout_of(features, dropout, DropoutSeed, DropoutOffset, sequence * num_heads_q + head)
        for row in range(first, after, BLOCK_M):
            # Beyond the end of the queries q, do, lse and delta are all zero, and add nothing.
            q = load_tile(all_q, batch, head, row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
            lse, delta = load_pair(l_rows, delta_rows, row, of_q.used, BLOCK_M, ADDRESSING)
            # Scores are transposed, [keys, queries], so that p and ds are register operands of the products after them.
            # Of a row that sees no key anything finite will do.
            lse = tl.where(lse == float("-inf"), 0.0, lse * LOG2E)[None, :]
            rows = row + tl.arange(0, BLOCK_M)
            if LEVEL == FULL:
                s = product(k, q.T, biases(scores, rows[None, :], keys[:, None]), BF16_PRODUCTS)
            else:
                s = product(k, q.T, None, BF16_PRODUCTS)
            if (row < clear) | (row >= full) | has(features, SOFTCAP, row):
                seen = inside(rows[None, :], first_row[:, None], hi - lo + 1)
                s = tl.where(seen, capped(s, scores), float("-inf"))
            p = tl.exp2(s * scale - lse)
            do = load_tile(all_do, batch, head, row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
            if LEVEL == FULL:
                keep = kept(drop, row, key, BLOCK_M, BLOCK_N).T
                dv = product(tl.where(keep, p * drop.scale, 0.0).to(do.dtype), do, dv, BF16_PRODUCTS)
                ds = p * (tl.where(keep, product(v, do.T, None, BF16_PRODUCTS) * drop.scale, 0.0) - delta[None, :])
            else:
                dv = product(p.to(do.dtype), do, dv, BF16_PRODUCTS)
                ds = p * (product(v, do.T, None, BF16_PRODUCTS) - delta[None, :])
            if LEVEL != FULL:  # noqa: SIM102 (known when compiled, as the next is not)
                if has(features, SOFTCAP, row):
                    ds *= cap_gradient(p, lse, scores)
            dk = product(ds.to(q.dtype), q, dk, BF16_PRODUCTS)

    if of_k.used < of_k.rows:
        dk = tl.where((keys < of_k.used)[:, None], dk, 0.0)
        dv = tl.where((keys < of_k.used)[:, None], dv, 0.0)
    store_tile(all_dk, dk * sm_scale, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
    store_tile(all_dv, dv, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
