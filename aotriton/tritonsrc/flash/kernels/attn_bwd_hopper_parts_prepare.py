"""Backward for Hopper in parts, first kernel: rows of Out and DO to Delta, their dot products; zeros to the sums."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.delta import store_delta
from aotriton.tritonsrc.flash.lib.dq_layout import clear_dq
from aotriton.tritonsrc.flash.lib.scheduler import tile_at, tile_of_two
from aotriton.tritonsrc.flash.lib.sums import clear_sums
from aotriton.tritonsrc.flash.lib.tile import Heads


@triton.jit
def attn_bwd_hopper_parts_prepare(
    Out,
    DO,
    Delta,
    DQSum,
    DKSum,
    DVSum,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    stride_do_b,
    stride_do_h,
    stride_do_s,
    num_heads_q,
    num_heads_k,
    max_seqlen_q,
    max_seqlen_k,
    head_dim,
    dq_width,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid ((cdiv(max_seqlen_q, BLOCK_M) * num_heads_q + cdiv(max_seqlen_k, BLOCK_M) * num_heads_k) * batch).

    Delta is contiguous [batch, num_heads_q, max_seqlen_q], DKSum and DVSum are contiguous fp32 [batch, num_heads_k,
    max_seqlen_k, head_dim]. DQSum has tiles of `dq_width` columns; what has a row and a column of DQ is cleared.
    """
    out = Heads(Out, stride_out_b, stride_out_h, stride_out_s, max_seqlen_q, head_dim)
    do = Heads(DO, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim)
    tiles_q, tiles_k = tl.cdiv(max_seqlen_q, BLOCK_M), tl.cdiv(max_seqlen_k, BLOCK_M)
    batch, work = tile_of_two(tiles_q, num_heads_q, tiles_k, num_heads_k)
    if work < tiles_q * num_heads_q:
        tile, head = tile_at(work, tiles_q)
        row = tile * BLOCK_M
        store_delta(out, do, Delta, batch, head, row, num_heads_q, BLOCK_M, BLOCK_DMODEL, "general")
        clear_dq(DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
    else:
        tile, head = tile_at(work - tiles_q * num_heads_q, tiles_k)
        row = tile * BLOCK_M
        clear_sums(DKSum, batch, head, row, num_heads_k, max_seqlen_k, head_dim, BLOCK_M, BLOCK_DMODEL)
        clear_sums(DVSum, batch, head, row, num_heads_k, max_seqlen_k, head_dim, BLOCK_M, BLOCK_DMODEL)
