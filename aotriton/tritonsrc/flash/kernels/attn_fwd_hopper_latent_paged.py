"""Attention forward of a latent cache for Hopper, as attn_fwd_hopper_latent, of keys in pages."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.hopper_latent import forward_latent
from aotriton.tritonsrc.flash.lib.partial import launch_next


@gluon.jit
def attn_fwd_hopper_latent_paged(
    Q,
    KPages,
    Out,
    L,
    Partial,
    PartialL,
    store_lse,
    sm_scale,
    stride_q_b,
    stride_q_h,
    stride_q_s,
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
    pages,
    box,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    EARLY: gl.constexpr,
):
    """Grid and results as of attn_fwd_hopper_latent. KPages: a TMA descriptor of [pages, num_heads_k, page_size, LATENT
    + ROPE] with boxes of 64 columns and of `box` rows, which the compiler takes for 16; `box` is a power of two, 16 or
    more, that divides page_size and BLOCK_N. BlockTable, int32 [sequences, ..], has the pages of each sequence.
    SequsedK is given. magic: see Pages of pages.py.
    """
    launch_next(EARLY)
    forward_latent(
        Q, KPages, Out, L, Partial, PartialL, store_lse, sm_scale, stride_q_b, stride_q_h, stride_q_s,
        stride_out_b, stride_out_h, stride_out_s, num_heads_q, num_heads_k, max_seqlen_q, max_seqlen_k, lo, hi,
        features, Sinks, CuSeqlensQ, CuSeqlensQ, SequsedQ, SequsedK, longest, rows_of_all, splits, keys_of_split,
        BlockTable, stride_blocktable_b, page_size, magic, pages, box,
        BLOCK_N, STAGES, True,
    )  # fmt: skip
