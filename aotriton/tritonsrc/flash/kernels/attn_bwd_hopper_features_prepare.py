"""Backward for Hopper with features, first kernel: rows of Out and DO to Delta, their dot products, zeros to DQSum."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.delta import store_delta
from aotriton.tritonsrc.flash.lib.dq_layout import clear_dq
from aotriton.tritonsrc.flash.lib.partial import launch_next
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads


@triton.jit
def attn_bwd_hopper_features_prepare(
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
    widest,
    dq_tiles,
    dq_width,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (cdiv(dq_tiles * 64, BLOCK_M) * num_heads_q * batch).

    Out and DO have head_dim columns, Q no more than `widest`. Delta is contiguous [batch, num_heads_q, max_seqlen_q].
    DQSum is contiguous [batch, num_heads_q, dq_tiles * dq_width, 64] and has a tile for each 64 rows of queries, and
    one more for each packed sequence but one: all of them are cleared, whichever sequence has them.
    """
    launch_next(True)
    out = Heads(Out, stride_out_b, stride_out_h, stride_out_s, max_seqlen_q, head_dim)
    do = Heads(DO, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim)
    tile, head, batch = tile_of_program(tl.cdiv(dq_tiles * 64, BLOCK_M), num_heads_q)
    row = tile * BLOCK_M
    if row < max_seqlen_q:
        store_delta(out, do, Delta, batch, head, row, num_heads_q, BLOCK_M, BLOCK_DMODEL, "general")
    clear_dq(DQSum, batch, head, row, num_heads_q, dq_tiles * 64, widest, dq_width, BLOCK_M, BLOCK_DMODEL)
