"""Attention forward whose results of a sequence have the same bits in every call: see invariant.py.

A tile has rows of all query heads that share a key head. Where keys are not split, the results are Out and L.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.invariant import attend_and_store, halved_if_wide
from aotriton.tritonsrc.flash.lib.partial import Softcap, launch_next
from aotriton.tritonsrc.flash.lib.sequence import rows_read, sequence_of
from aotriton.tritonsrc.flash.lib.split import Results, load_queries, program_of, tile_of


@triton.jit
def attn_fwd_invariant(
    Q,
    K,
    V,
    Out,
    L,
    Partial,
    PartialL,
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
    head_dim_qk,
    head_dim_v,
    lo,
    hi,
    features,
    softcap,
    Sinks,
    CuSeqlensQ,
    CuSeqlensK,
    SequsedQ,
    SequsedK,
    longest,
    rows_of_all,
    splits,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (cdiv(longest * num_heads_q / num_heads_k, rows) * splits * num_heads_k * sequences), where a tile has
    BLOCK_M rows, or half as many in more than 128 columns.

    With one split, a program writes Out and L. Otherwise there are as many splits as the longest sequence has parts,
    and each has one. Partial, fp32 [splits, rows_of_all, head_dim_v], and PartialL, fp32 [splits, rows_of_all], have
    each row's result of the part and its logsumexp in units of log2; of a part that a row does not see, Partial is as
    it was. rows_of_all is batch * num_heads_q * max_seqlen_q, with rows in the order of L. Other arguments are as for
    attn_fwd_features.
    """
    ROWS: tl.constexpr = halved_if_wide(BLOCK_M, BLOCK_DMODEL)
    launch_next(EARLY)
    group = num_heads_q // num_heads_k
    tile, split, head_k, sequence = program_of(tl.cdiv(longest * group, ROWS), splits, num_heads_k)
    of = sequence_of(
        sequence, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k, True,
    )  # fmt: skip
    first_row = tile * ROWS
    if first_row >= of.q.rows * group:
        return
    tile = tile_of(of, head_k, first_row, group, ROWS)
    q = load_queries(Q, stride_q_b, stride_q_h, stride_q_s, tile, head_dim_qk, BLOCK_DMODEL)
    all_k = rows_read(K, stride_k_b, stride_k_h, stride_k_s, of.k, head_dim_qk, "general")
    all_v = rows_read(V, stride_v_b, stride_v_h, stride_v_s, of.k, head_dim_v, "general")
    cap = Softcap(features, sm_scale, softcap)
    results = Results(
        Out, stride_out_b, stride_out_h, stride_out_s, L, store_lse, Partial, PartialL,
        num_heads_q, max_seqlen_q, head_dim_v, rows_of_all,
    )  # fmt: skip
    attend_and_store(
        results, q, all_k, all_v, None, tile, split, splits, cap, Sinks, features, ROWS, BLOCK_N, BLOCK_DMODEL
    )
