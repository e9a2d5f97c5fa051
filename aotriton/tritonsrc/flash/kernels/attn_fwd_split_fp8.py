"""Attention forward for few queries as attn_fwd_split, of keys and values of 8 bits."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.fp8 import descale_of, rows_in_fp16
from aotriton.tritonsrc.flash.lib.partial import Softcap, launch_next
from aotriton.tritonsrc.flash.lib.sequence import rows_read, sequence_of
from aotriton.tritonsrc.flash.lib.split import Results, attend, load_queries, program_of, store_results, tile_of


@triton.jit
def attn_fwd_split_fp8(
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
    width_qk,
    width_v,
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
    KDescale,
    VDescale,
    stride_kdescale_b,
    stride_kdescale_h,
    stride_vdescale_b,
    stride_vdescale_h,
    descales,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Arguments as of attn_fwd_split, but that K and V are of 8 bits, and width_qk and width_v multiples of 16.
    KDescale and VDescale, fp32 [sequences, num_heads_k], multiply them, where bits 0 and 1 of ``descales`` say so.
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
    q = load_queries(Q, stride_q_b, stride_q_h, stride_q_s, tile, width_qk, BLOCK_DMODEL)
    all_k = rows_read(K, stride_k_b, stride_k_h, stride_k_s, of.k, width_qk, "general")
    all_v = rows_read(V, stride_v_b, stride_v_h, stride_v_s, of.k, width_v, "general")
    q, factor = rows_in_fp16(q)
    factor *= descale_of(KDescale, stride_kdescale_b, stride_kdescale_h, sequence, head_k, descales, 1)
    cap = Softcap(features, sm_scale, softcap)
    out, row_sum, row_max = attend(
        q, factor, all_k, all_v, None, tile, split, keys_of_split, cap, BLOCK_M, BLOCK_N, BLOCK_DMODEL
    )
    out *= descale_of(VDescale, stride_vdescale_b, stride_vdescale_h, sequence, head_k, descales, 2)
    results = Results(
        Out, stride_out_b, stride_out_h, stride_out_s, L, store_lse, Partial, PartialL,
        num_heads_q, max_seqlen_q, width_v, rows_of_all,
    )  # fmt: skip
    store_results(results, out, row_sum, row_max, tile, split, splits, Sinks, features, BLOCK_DMODEL)
