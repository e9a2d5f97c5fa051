"""Backward for Hopper, first kernel: rows of Out and DO to Delta, their dot products, and zeros to DQSum."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.delta import store_delta
from aotriton.tritonsrc.flash.lib.dq_layout import clear_dq
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads


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
    out = Heads(Out, stride_out_b, stride_out_h, stride_out_s, max_seqlen_q, head_dim)
    do = Heads(DO, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim)
    tile, head, batch = tile_of_program(tl.cdiv(max_seqlen_q, BLOCK_M), num_heads_q)
    row = tile * BLOCK_M
    store_delta(out, do, Delta, batch, head, row, num_heads_q, BLOCK_M, BLOCK_DMODEL, "general")
    clear_dq(DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
