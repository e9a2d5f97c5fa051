"""Backward with features, gradients of queries and of the bias."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.band import inside, interval, visited
from aotriton.tritonsrc.flash.lib.dropout import dropout_of, kept
from aotriton.tritonsrc.flash.lib.features import DBIAS, FULL, OWN_LAST, PACKED, SOFTCAP, USED_K, USED_Q, has
from aotriton.tritonsrc.flash.lib.product import product
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.score import LOG2E, biases, cap_gradient, capped, scores_of
from aotriton.tritonsrc.flash.lib.sequence import band_of, heads_of, sequence_of
from aotriton.tritonsrc.flash.lib.tile import head_rows, load_tile, store_tile


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
    of_q = sequence_of(sequence, CuSeqlensQ, SequsedQ, features, max_seqlen_q, USED_Q, ADDRESSING)
    if q_row >= of_q.rows:
        return
    of_k = sequence_of(sequence, CuSeqlensK, SequsedK, features, max_seqlen_k, USED_K, ADDRESSING)
    batch = tl.where((features & PACKED) != 0, 0, sequence)
    all_q = heads_of(Q, stride_q_b, stride_q_h, stride_q_s, of_q.begin, of_q.used, head_dim, ADDRESSING)
    all_k = heads_of(K, stride_k_b, stride_k_h, stride_k_s, of_k.begin, of_k.used, head_dim, ADDRESSING)
    all_v = heads_of(V, stride_v_b, stride_v_h, stride_v_s, of_k.begin, of_k.used, head_dim, ADDRESSING)
    all_do = heads_of(DO, stride_do_b, stride_do_h, stride_do_s, of_q.begin, of_q.used, head_dim, ADDRESSING)
    all_dq = heads_of(DQ, stride_dq_b, stride_dq_h, stride_dq_s, of_q.begin, of_q.rows, head_dim, ADDRESSING)
    head_k = head // (num_heads_q // num_heads_k)
    lo, hi = band_of(lo, hi, features, of_q.used, of_k.used, OWN_LAST, ADDRESSING)
    first, clear, full, after = visited(q_row, q_row + BLOCK_M, of_q.used, of_k.used, lo, hi, BLOCK_N)
    if q_row + BLOCK_M > of_q.used:  # rows that are not used see nothing
        full = first
        after = tl.where(q_row < of_q.used, after, first)
    if LEVEL == FULL:  # noqa: SIM102 (known when compiled, as the next is not)
        if (features & DBIAS) != 0:  # what nobody sees has a gradient, too: zero
            first, clear, full, after = first * 0, max_seqlen_k, first * 0, max_seqlen_k

    rows = q_row + tl.arange(0, BLOCK_M)
    first_key, keys_seen = interval(rows, of_k.used, lo, hi)
    stored = rows < of_q.used
    keys_seen = tl.where(stored, keys_seen, 0)
    scores = scores_of(
        batch, head, of_k.used - of_q.used, of_q.used, of_k.used, features, sm_scale, softcap,
        AlibiSlopes, stride_alibislopes_b, Bias, stride_bias_b, stride_bias_h, stride_bias_s,
    )  # fmt: skip
    # Exponentials are taken to base 2. Not zero: a masked score stays minus infinity when scaled.
    scale = tl.maximum(sm_scale, 1e-30) * LOG2E
    drop = dropout_of(features, dropout, DropoutSeed, DropoutOffset, sequence * num_heads_q + head)
    of_head = head_rows(L, batch, head, num_heads_q, max_seqlen_q) + of_q.begin
    lse = tl.load(of_head + rows, mask=stored, other=0.0)
    lse = tl.where(lse == float("-inf"), 0.0, lse * LOG2E)  # of a row that sees no key anything finite will do
    of_head = head_rows(Delta, batch, head, num_heads_q, max_seqlen_q) + of_q.begin
    delta = tl.load(of_head + rows, mask=stored, other=0.0)
    q = load_tile(all_q, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    do = load_tile(all_do, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
    dq = tl.zeros([BLOCK_M, BLOCK_DMODEL], tl.float32)
    # One loop with a branch: with loops of their own for steps with and without a mask, each has registers of its own.
    for key in range(first, after, BLOCK_N):
        k = load_tile(all_k, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        columns = key + tl.arange(0, BLOCK_N)
        if LEVEL == FULL:
            s = product(q, k.T, biases(scores, rows[:, None], columns[None, :]), BF16_PRODUCTS)
        else:
            s = product(q, k.T, None, BF16_PRODUCTS)
        if (key < clear) | (key >= full) | has(features, SOFTCAP, key):
            seen = inside(columns[None, :], first_key[:, None], keys_seen[:, None])
            s = tl.where(seen, capped(s, scores), float("-inf"))
        p = tl.exp2(s * scale - lse[:, None])
        v = load_tile(all_v, batch, head_k, key, BLOCK_N, BLOCK_DMODEL, ADDRESSING)
        dp = product(do, v.T, None, BF16_PRODUCTS)
        if LEVEL == FULL:
            dp = tl.where(kept(drop, q_row, key, BLOCK_M, BLOCK_N), dp * drop.scale, 0.0)
        ds = p * (dp - delta[:, None])
        if LEVEL == FULL:  # noqa: SIM102 (known when compiled, as the next is not)
            if has(features, DBIAS, key):
                place = DBias + batch * stride_dbias_b + head * stride_dbias_h
                place = place + rows.to(tl.int64)[:, None] * stride_dbias_s + columns[None, :]
                there = (rows < max_seqlen_q)[:, None] & (columns < max_seqlen_k)[None, :]
                tl.store(place, ds.to(DBias.dtype.element_ty), mask=there)
        if LEVEL != FULL:  # noqa: SIM102 (known when compiled, as the next is not)
            if has(features, SOFTCAP, key):
                ds *= cap_gradient(p, lse[:, None], scores)
        dq = product(ds.to(k.dtype), k, dq, BF16_PRODUCTS)

    store_tile(all_dq, dq * sm_scale, batch, head, q_row, BLOCK_M, BLOCK_DMODEL, ADDRESSING)
