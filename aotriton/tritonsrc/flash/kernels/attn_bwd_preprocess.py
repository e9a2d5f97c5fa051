"""Backward, first kernel: rows of Out and DO to Delta, their dot products."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.delta import store_delta
from aotriton.tritonsrc.flash.lib.tile import place


@triton.jit
def attn_bwd_preprocess(
    Out,
    DO,
    Delta,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    stride_do_b,
    stride_do_h,
    stride_do_s,
    num_heads_q,
    max_seqlen_q,
    head_dim,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_q, BLOCK_M) * num_heads_q * batch).

    Delta is contiguous [batch, num_heads_q, max_seqlen_q].
    """
    # Each element is read once, straight to registers: a descriptor would gain nothing.
    POINTERS: tl.constexpr = "general" if ADDRESSING == "descriptor" else ADDRESSING
    tile, head, batch = place(tl.cdiv(max_seqlen_q, BLOCK_M), num_heads_q)
    row = tile * BLOCK_M
    store_delta(
        Out, DO, Delta, batch, head, row, stride_out_b, stride_out_h, stride_out_s,
        stride_do_b, stride_do_h, stride_do_s, num_heads_q, max_seqlen_q, head_dim,
        BLOCK_M, BLOCK_DMODEL, POINTERS,
    )  # fmt: skip
