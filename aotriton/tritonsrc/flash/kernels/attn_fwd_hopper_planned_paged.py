"""Attention forward for Hopper, as attn_fwd_hopper_planned, of keys and values in pages."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.forward_planned import forward_planned


@gluon.jit
def attn_fwd_hopper_planned_paged(
    Items,
    Counts,
    Q,
    KPages,
    VPages,
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
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
):
    """Grid and results as of attn_fwd_hopper_planned. KPages and VPages: TMA descriptors of [pages, num_heads_k,
    page_size, head_dim] with boxes of the columns that are swizzled together and of `box` rows, which the compiler
    takes for 16; `box` is a power of two, 16 or more, that divides page_size and BLOCK_N. BlockTable, int32
    [sequences, ..], has the pages of each sequence. SequsedK is given. magic: see Pages of pages.py.
    """
    forward_planned(
        Items, Counts, (Q,), (KPages,), (VPages,), Out, stride_out_b, stride_out_h, stride_out_s, L, Parts, PartsL,
        store_lse, sm_scale, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, head_dim_v, packed, lo, hi, features,
        Sinks, CuSeqlensQ, CuSeqlensQ, SequsedQ, SequsedK, BlockTable, stride_blocktable_b, page_size, magic, pages,
        box,
        BLOCK_N, BLOCK_DMODEL, STAGES, True,
    )  # fmt: skip
