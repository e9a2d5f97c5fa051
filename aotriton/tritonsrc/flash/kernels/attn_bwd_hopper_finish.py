"""Backward for Hopper, last kernel: DQSum to DQ, in its type and scaled."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.dq_layout import load_dq
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads, store_tile


@triton.jit
def attn_bwd_hopper_finish(
    DQSum,
    DQ,
    sm_scale,
    stride_dq_b,
    stride_dq_h,
    stride_dq_s,
    num_heads_q,
    max_seqlen_q,
    head_dim,
    dq_width,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_q, BLOCK_M) * num_heads_q * batch). DQSum has tiles of `dq_width` columns."""
    all_dq = Heads(DQ, stride_dq_b, stride_dq_h, stride_dq_s, max_seqlen_q, head_dim)
    tile, head, batch = tile_of_program(tl.cdiv(max_seqlen_q, BLOCK_M), num_heads_q)
    row = tile * BLOCK_M
    dq = load_dq(DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
    store_tile(all_dq, dq * sm_scale, batch, head, row, BLOCK_M, BLOCK_DMODEL, "general")
