"""Attention forward as attn_fwd_invariant, of keys and values in pages."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.invariant import attend_and_store, halved_if_wide
from aotriton.tritonsrc.flash.lib.pages import Pages, sequence_in_pages
from aotriton.tritonsrc.flash.lib.partial import Softcap, launch_next
from aotriton.tritonsrc.flash.lib.split import Results, load_queries, program_of, tile_of
from aotriton.tritonsrc.flash.lib.tile import Heads


@triton.jit
def attn_fwd_invariant_paged(
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
    SequsedQ,
    SequsedK,
    longest,
    rows_of_all,
    splits,
    BlockTable,
    stride_blocktable_b,
    page_size,
    magic,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid and results as of attn_fwd_invariant. K and V are [pages, num_heads_k, page_size, head_dim], their stride b
    is a page's, and BlockTable, int32 [sequences, ..], has the pages of each sequence. SequsedK is given. magic: see
    Pages.
    """
    ROWS: tl.constexpr = halved_if_wide(BLOCK_M, BLOCK_DMODEL)
    launch_next(EARLY)
    group = num_heads_q // num_heads_k
    tile, split, head_k, sequence = program_of(tl.cdiv(longest * group, ROWS), splits, num_heads_k)
    of = sequence_in_pages(
        sequence, features, lo, hi, CuSeqlensQ, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k,
    )  # fmt: skip
    first_row = tile * ROWS
    if first_row >= of.q.rows * group:
        return
    tile = tile_of(of, head_k, first_row, group, ROWS)
    q = load_queries(Q, stride_q_b, stride_q_h, stride_q_s, tile, head_dim_qk, BLOCK_DMODEL)
    all_k = Heads(K, stride_k_b, stride_k_h, stride_k_s, page_size, head_dim_qk)
    all_v = Heads(V, stride_v_b, stride_v_h, stride_v_s, page_size, head_dim_v)
    pages = Pages(BlockTable + sequence.to(tl.int64) * stride_blocktable_b, page_size, magic, of.k.used)
    cap = Softcap(features, sm_scale, softcap)
    results = Results(
        Out, stride_out_b, stride_out_h, stride_out_s, L, store_lse, Partial, PartialL,
        num_heads_q, max_seqlen_q, head_dim_v, rows_of_all,
    )  # fmt: skip
    attend_and_store(
        results, q, all_k, all_v, pages, tile, split, splits, cap, Sinks, features, ROWS, BLOCK_N, BLOCK_DMODEL
    )
