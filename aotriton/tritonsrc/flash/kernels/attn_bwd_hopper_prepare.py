"""Backward for Hopper, first kernel: rows of Out and DO to Delta, their dot products, and zeros to DQSum."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.delta import store_delta
from aotriton.tritonsrc.flash.lib.dq_order import clear_dq
from aotriton.tritonsrc.flash.lib.tile import place


@triton.jit
def attn_bwd_hopper_prepare(
    Out,
    DO,
    Delta,
    DQSum,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    stride_do_b,
    stride_do_h,
    stride_do_s,
    num_heads_q,
    max_seqlen_q,
    head_dim,
    dq_width,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_q, BLOCK_M) * num_heads_q * batch).

    Delta is contiguous [batch, num_heads_q, max_seqlen_q]. DQSum has tiles of `dq_width` columns; what has a row and a
    column of DQ is cleared.
    """
    tile, head, batch = place(tl.cdiv(max_seqlen_q, BLOCK_M), num_heads_q)
    row = tile * BLOCK_M
    store_delta(
        Out, DO, Delta, batch, head, row, stride_out_b, stride_out_h, stride_out_s,
        stride_do_b, stride_do_h, stride_do_s, num_heads_q, max_seqlen_q, head_dim,
        BLOCK_M, BLOCK_DMODEL, "general",
    )  # fmt: skip
    clear_dq(DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
