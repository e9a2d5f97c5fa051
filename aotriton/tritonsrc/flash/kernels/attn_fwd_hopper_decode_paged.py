"""Attention forward for few queries on keys of 8 bits, for Hopper, as attn_fwd_hopper_decode, of keys in pages."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.hopper_decode import decode
from aotriton.tritonsrc.flash.lib.partial import launch_next


@gluon.jit
def attn_fwd_hopper_decode_paged(
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
    KDescale,
    VDescale,
    stride_kdescale_b,
    stride_kdescale_h,
    stride_vdescale_b,
    stride_vdescale_h,
    descales,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    EARLY: gl.constexpr,
):
    """Arguments as of attn_fwd_hopper_decode, but that keys lie in pages, as of attn_fwd_split_paged."""
    launch_next(EARLY)
    decode(
        Q, K, V, Out, L, Partial, PartialL, store_lse, sm_scale, stride_q_b, stride_q_h, stride_q_s,
        stride_k_b, stride_k_h, stride_k_s, stride_v_b, stride_v_h, stride_v_s,
        stride_out_b, stride_out_h, stride_out_s, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k,
        width_qk, width_v, lo, hi, features, softcap, Sinks, CuSeqlensQ, CuSeqlensQ, SequsedQ, SequsedK,
        longest, rows_of_all, splits, keys_of_split, BlockTable, stride_blocktable_b, page_size, magic,
        KDescale, VDescale, stride_kdescale_b, stride_kdescale_h, stride_vdescale_b, stride_vdescale_h, descales,
        BLOCK_M, BLOCK_N, BLOCK_DMODEL, True,
    )  # fmt: skip
