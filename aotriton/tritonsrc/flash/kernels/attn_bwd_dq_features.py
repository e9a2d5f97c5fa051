"""Backward with features, gradients of queries and of the bias."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, keys_of, visited_by_queries
from aotriton.tritonsrc.flash.lib.dropout import dropout_of, dropout_of_head, kept, scale_of
from aotriton.tritonsrc.flash.lib.features import ALIBI, BIAS, DBIAS, FULL, SOFTCAP, has
from aotriton.tritonsrc.flash.lib.product import product, waited_for
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
from aotriton.tritonsrc.flash.lib.tile import head_rows
from aotriton.tritonsrc.flash.lib.zero import zero


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
    DBias,
    stride_dbias_b,
    stride_dbias_h,
    stride_dbias_s,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    LEVEL: tl.constexpr,
    BF16_PRODUCTS: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid (cdiv(longest, BLOCK_M) * num_heads_q * sequences).

    Row i sees keys from i + lo to i + hi. L and Delta are contiguous [batch, num_heads_q, max_seqlen_q]; of a row that
    sees no key L is minus infinity, and DQ zero. ``longest``: the most rows of a sequence. ``features``: as of
    attn_fwd_features. DBias, [batch, num_heads_q, max_seqlen_q, max_seqlen_k], is written where its bit is set.
    """
    tiles = tl.cdiv(longest, BLOCK_M)
    tile, head, sequence = tile_of_program(tiles, num_heads_q)
    tile = tiles - 1 - tile  # of a causal call the longest programs first
    q_row = tile * BLOCK_M
    END: tl.constexpr = sequences_end(LEVEL, ADDRESSING)
    AGAIN: tl.constexpr = works_out_again(ADDRESSING)
    of = sequence_of(
        sequence, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k, END,
    )  # fmt: skip
    if q_row >= of.q.rows:
        return
    batch = of.batch
    all_q = rows_read(Q, stride_q_b, stride_q_h, stride_q_s, of.q, head_dim_qk, ADDRESSING)
    all_k = rows_read(K, stride_k_b, stride_k_h, stride_k_s, of.k, head_dim_qk, ADDRESSING)
    all_v = rows_read(V, stride_v_b, stride_v_h, stride_v_s, of.k, head_dim_v, ADDRESSING)
    all_do = rows_read(DO, stride_do_b, stride_do_h, stride_do_s, of.q, head_dim_v, ADDRESSING)
    head_k = head // (num_heads_q // num_heads_k)
    first, clear, full, after = visited_by_queries(of, q_row, BLOCK_M, BLOCK_N)
    if LEVEL == FULL:  # noqa: SIM102 (known when compiled, as the next is not)
        if (features & DBIAS) != 0:  # what nobody sees has a gradient, too: zero
            first, clear, full, after = first * 0, max_seqlen_k, first * 0, max_seqlen_k
    rows = q_row + tl.arange(0, BLOCK_M)
    m, n = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    first_key, keys_seen = keys_of(of, rows)
    stored = rows < of.q.used
    scores = scores_of(
        of, head, features, sm_scale, softcap,
        AlibiSlopes, stride_alibislopes_b, Bias, stride_bias_b, stride_bias_h, stride_bias_s,
    )  # fmt: skip
    drop = dropout_of_head(dropout_of(features, dropout, DropoutSeed, DropoutOffset), sequence * num_heads_q + head)
    of_head = head_rows(L, batch, head, num_heads_q, max_seqlen_q) + of.q.begin
    lse = tl.load(of_head + rows, mask=stored, other=0.0)
    lse = tl.where(lse == float("-inf"), 0.0, lse * LOG2E)  # of a row that sees no key anything finite will do
    of_head = head_rows(Delta, batch, head, num_heads_q, max_seqlen_q) + of.q.begin
    delta = tl.load(of_head + rows, mask=stored, other=0.0)
    q = load_rows(all_q, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    do = load_rows(all_do, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    dq = tl.zeros([BLOCK_M, BLOCK_DMODEL], tl.float32)
    # One loop with a branch: with loops of their own for steps with and without a mask, each has registers of its own.
    for BEHIND in tl.static_range(loops(LEVEL, ADDRESSING, BLOCK_DMODEL)):
        begin, end = steps_of(BEHIND, first, after, of.k, features, BLOCK_N, ADDRESSING)
        for key in tl.range(begin, end, BLOCK_N, num_stages=1 if BEHIND else None, disable_licm=BEHIND or AGAIN):
            k = load_rows(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
            columns = key + tl.arange(0, BLOCK_N)
            if LEVEL == FULL:
                bias = bias_of(scores, q_row, key, m, n, key)
            s = product(q, k.T, None, BF16_PRODUCTS)
            if (key < clear) | (key >= full) | has(features, SOFTCAP | ALIBI | BIAS, key) | BEHIND:
                seen = inside(columns[None, :], first_key[:, None], keys_seen[:, None])
                if LEVEL == FULL:
                    s = biased(s, bias, scores, q_row, key, m + zero(features, key), n)
                else:
                    s = capped(s, scores)
                s = tl.where(seen, s, float("-inf"))
            p = tl.exp2(s * scores.scale - lse[:, None])
            if LEVEL == FULL:
                pk = kept(p, drop, q_row, key, m, n, key)
            v = load_rows(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
            dp = product(do, v.T, None, BF16_PRODUCTS)
            ds = p * (dp - delta[:, None])
            if LEVEL == FULL:
                ds = pk * (dp * scale_of(dropout)) - p * delta[:, None]
            if LEVEL == FULL:  # noqa: SIM102 (known when compiled, as the next is not)
                if has(features, DBIAS, key):
                    place = DBias + batch * stride_dbias_b + head * stride_dbias_h
                    row = (rows + zero(features, key))[:, None]
                    column = (columns + zero(features, key))[None, :]
                    there = (row < max_seqlen_q) & (column < max_seqlen_k)
                    place = place + row.to(tl.int64) * stride_dbias_s + column
                    tl.store(place, tl.where(row < of.q.used, ds, 0.0).to(DBias.dtype.element_ty), mask=there)
            if LEVEL != FULL:  # noqa: SIM102 (known when compiled, as the next is not)
                if has(features, SOFTCAP, key):
                    ds *= cap_gradient(p, lse[:, None], scores)
            if BEHIND:
                ds = tl.where((columns < of.k.used)[None, :], ds, 0.0)
                k = own_rows(k, of.k, key, BLOCK_N)
            dq = product(ds.to(k.dtype), k, dq, BF16_PRODUCTS)
            if LEVEL == FULL:
                dq = waited_for(dq)

    if END:  # rows that are not used may be no numbers
        dq = tl.where(stored[:, None], dq, 0.0)
    store_rows(
        DQ, stride_dq_b, stride_dq_h, stride_dq_s, of.q, head_dim_qk,
        dq * sm_scale, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, END,
    )  # fmt: skip
