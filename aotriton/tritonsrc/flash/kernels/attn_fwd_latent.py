"""Attention forward of a latent cache: one program turns a part of the keys of a tile into partial results.

Values are the first columns of the keys: see latent.py. A tile has rows of all query heads that share a key head. Where
keys are not split, the results are Out and L.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.latent import HALF, LATENT, attend, load_parts, parts_of
from aotriton.tritonsrc.flash.lib.partial import Softcap, launch_next
from aotriton.tritonsrc.flash.lib.sequence import sequence_of
from aotriton.tritonsrc.flash.lib.split import Results, program_of, store_results, tile_of
from aotriton.tritonsrc.flash.lib.zero import zero


@triton.jit
def attn_fwd_latent(
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
    CuSeqlensK,
    SequsedQ,
    SequsedK,
    longest,
    rows_of_all,
    splits,
    keys_of_split,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (cdiv(longest * num_heads_q / num_heads_k, BLOCK_M) * splits * num_heads_k * sequences).

    Split i of a tile has keys_of_split keys from the first one on that any of the tile's rows sees, and i times as many
    further. Partial, fp32 [splits, rows_of_all, LATENT], and PartialL, fp32 [splits, rows_of_all], have each row's
    result of the split and its logsumexp in units of log2. rows_of_all is batch * num_heads_q * max_seqlen_q, with rows
    in the order of L. With one split, Out and L are written instead. Other arguments are as for attn_fwd_features.
    """
    launch_next(EARLY)
    group = num_heads_q // num_heads_k
    tile, split, head_k, sequence = program_of(tl.cdiv(longest * group, BLOCK_M), splits, num_heads_k)
    of = sequence_of(
        sequence, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k, True,
    )  # fmt: skip
    first_row = tile * BLOCK_M
    if first_row >= of.q.rows * group:
        return
    tile = tile_of(of, head_k, first_row, group, BLOCK_M)
    q = load_parts(Q, stride_q_b, stride_q_h, stride_q_s, tile)
    first = K + of.k.begin.to(tl.int64) * stride_k_s
    all_k = parts_of(first, stride_k_b, stride_k_h, stride_k_s, of.k.used)
    cap = Softcap(features, sm_scale, softcap)
    out, other, row_sum, row_max = attend(q, all_k, None, tile, split, keys_of_split, cap, BLOCK_M, BLOCK_N)
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
