"""Attention forward for Hopper, as attn_fwd_hopper_planned_paged, with keys and values of 8 bits."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.forward_planned import forward_planned


@gluon.jit
def attn_fwd_hopper_planned_paged_fp8(
    Items,
    Counts,
    Q,
    KPagesFp8,
    VPagesFp8,
    Out,
    L,
    Parts,
    PartsL,
    store_lse,
    sm_scale,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim_v,
    packed,
    lo,
    hi,
    features,
    Sinks,
    CuSeqlensQ,
    SequsedQ,
    SequsedK,
    BlockTable,
    stride_blocktable_b,
    page_size,
    magic,
    pages,
    box,
    KDescale,
    VDescale,
    stride_kdescale_b,
    stride_kdescale_h,
    stride_vdescale_b,
    stride_vdescale_h,
    descales,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
):
    """As attn_fwd_hopper_planned_paged, with pages of e4m3. KDescale and VDescale, fp32 [sequences, num_heads_k], are
    what keys and values are multiplied by, if bits 0 and 1 of `descales` say that there are any.
    """
    forward_planned(
        Items, Counts, (Q,), (KPagesFp8,), (VPagesFp8,), Out, stride_out_b, stride_out_h, stride_out_s, L, Parts,
        PartsL, store_lse, sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_v, packed, lo, hi,
        features, Sinks, CuSeqlensQ, CuSeqlensQ, SequsedQ, SequsedK, BlockTable, stride_blocktable_b, page_size, magic,
        pages, box,
        BLOCK_N, BLOCK_DMODEL, STAGES, True, KDescale, VDescale, stride_kdescale_b, stride_kdescale_h,
        stride_vdescale_b, stride_vdescale_h, descales,
    )  # fmt: skip
