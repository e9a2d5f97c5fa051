"""Backward for Hopper, DK and DV in parts, last kernel: the sums to DK and DV, in their type; DK scaled."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.sums import convert_sums
from aotriton.tritonsrc.flash.lib.tile import Heads


@triton.jit
def attn_bwd_hopper_split_finish(
    DKSum,
    DVSum,
    DK,
    DV,
    sm_scale,
    stride_dk_b,
    stride_dk_h,
    stride_dk_s,
    stride_dv_b,
    stride_dv_h,
    stride_dv_s,
    num_heads_k,
    max_seqlen_k,
    head_dim,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_k, BLOCK_M) * num_heads_k * batch)."""
    all_dk = Heads(DK, stride_dk_b, stride_dk_h, stride_dk_s, max_seqlen_k, head_dim)
    all_dv = Heads(DV, stride_dv_b, stride_dv_h, stride_dv_s, max_seqlen_k, head_dim)
    tile, head, batch = tile_of_program(tl.cdiv(max_seqlen_k, BLOCK_M), num_heads_k)
    row = tile * BLOCK_M
    convert_sums(DKSum, all_dk, sm_scale, batch, head, row, num_heads_k, BLOCK_M, BLOCK_DMODEL)
    convert_sums(DVSum, all_dv, 1.0, batch, head, row, num_heads_k, BLOCK_M, BLOCK_DMODEL)
