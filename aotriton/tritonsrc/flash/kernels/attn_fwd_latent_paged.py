"""Attention forward of a latent cache as attn_fwd_latent, of keys in pages."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.latent import HALF, LATENT, attend, load_parts, parts_of
from aotriton.tritonsrc.flash.lib.pages import Pages, sequence_in_pages
from aotriton.tritonsrc.flash.lib.partial import Softcap, launch_next
from aotriton.tritonsrc.flash.lib.split import Results, program_of, store_results, tile_of
from aotriton.tritonsrc.flash.lib.zero import zero


@triton.jit
def attn_fwd_latent_paged(
    Q,
    K,
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
    stride_out_b,
    stride_out_h,
    stride_out_s,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
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
    keys_of_split,
    BlockTable,
    stride_blocktable_b,
    page_size,
    magic,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid and results as of attn_fwd_latent. K is [pages, num_heads_k, page_size, LATENT + ROPE], its stride b is a
    page's, and BlockTable, int32 [sequences, ..], has the pages of each sequence. SequsedK is given. magic: see Pages.
    """
    launch_next(EARLY)
    group = num_heads_q // num_heads_k
    tile, split, head_k, sequence = program_of(tl.cdiv(longest * group, BLOCK_M), splits, num_heads_k)
    of = sequence_in_pages(
        sequence, features, lo, hi, CuSeqlensQ, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k,
    )  # fmt: skip
    first_row = tile * BLOCK_M
    if first_row >= of.q.rows * group:
        return
    tile = tile_of(of, head_k, first_row, group, BLOCK_M)
    q = load_parts(Q, stride_q_b, stride_q_h, stride_q_s, tile)
    all_k = parts_of(K, stride_k_b, stride_k_h, stride_k_s, page_size)
    pages = Pages(BlockTable + sequence.to(tl.int64) * stride_blocktable_b, page_size, magic, of.k.used)
    cap = Softcap(features, sm_scale, softcap)
    out, other, row_sum, row_max = attend(q, all_k, pages, tile, split, keys_of_split, cap, BLOCK_M, BLOCK_N)
    tile = tile_of(of, head_k, first_row + zero(features, split), group, BLOCK_M)  # not kept in registers until here
    results = Results(
        Out, stride_out_b, stride_out_h, stride_out_s, L, store_lse, Partial, PartialL,
        num_heads_q, max_seqlen_q, LATENT, rows_of_all,
    )  # fmt: skip
    store_results(results, out, row_sum, row_max, tile, split, splits, Sinks, features, HALF)
    others = Results(
        Out + HALF, stride_out_b, stride_out_h, stride_out_s, L, 0, Partial + HALF, PartialL,
        num_heads_q, max_seqlen_q, LATENT, rows_of_all,
    )  # fmt: skip
    store_results(others, other, row_sum, row_max, tile, split, splits, Sinks, features, HALF)
