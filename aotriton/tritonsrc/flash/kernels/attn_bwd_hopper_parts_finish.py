"""Backward for Hopper in parts, last kernel: the sums to DQ, DK and DV, in their type; DQ and DK scaled."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.dq_layout import load_dq
from aotriton.tritonsrc.flash.lib.scheduler import tile_at, tile_of_two
from aotriton.tritonsrc.flash.lib.sums import convert_sums
from aotriton.tritonsrc.flash.lib.tile import Heads, store_tile


@triton.jit
def attn_bwd_hopper_parts_finish(
    DQSum,
    DKSum,
    DVSum,
    DQ,
    DK,
    DV,
    sm_scale,
    stride_dq_b,
    stride_dq_h,
    stride_dq_s,
    stride_dk_b,
    stride_dk_h,
    stride_dk_s,
    stride_dv_b,
    stride_dv_h,
    stride_dv_s,
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

    DQSum has tiles of `dq_width` columns.
    """
    all_dq = Heads(DQ, stride_dq_b, stride_dq_h, stride_dq_s, max_seqlen_q, head_dim)
    all_dk = Heads(DK, stride_dk_b, stride_dk_h, stride_dk_s, max_seqlen_k, head_dim)
    all_dv = Heads(DV, stride_dv_b, stride_dv_h, stride_dv_s, max_seqlen_k, head_dim)
    tiles_q, tiles_k = tl.cdiv(max_seqlen_q, BLOCK_M), tl.cdiv(max_seqlen_k, BLOCK_M)
    batch, work = tile_of_two(tiles_q, num_heads_q, tiles_k, num_heads_k)
    if work < tiles_q * num_heads_q:
        tile, head = tile_at(work, tiles_q)
        row = tile * BLOCK_M
        dq = load_dq(DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
        store_tile(all_dq, dq * sm_scale, batch, head, row, BLOCK_M, BLOCK_DMODEL, "general")
    else:
        tile, head = tile_at(work - tiles_q * num_heads_q, tiles_k)
        row = tile * BLOCK_M
        convert_sums(DKSum, all_dk, sm_scale, batch, head, row, num_heads_k, BLOCK_M, BLOCK_DMODEL)
        convert_sums(DVSum, all_dv, 1.0, batch, head, row, num_heads_k, BLOCK_M, BLOCK_DMODEL)
