"""Backward for Hopper, last kernel: DQSum to DQ, in its type and scaled."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.dq_order import load_dq
from aotriton.tritonsrc.flash.lib.tile import place, store_tile


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
    tile, head, batch = place(tl.cdiv(max_seqlen_q, BLOCK_M), num_heads_q)
    row = tile * BLOCK_M
    dq = load_dq(DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
    store_tile(
        DQ, dq * sm_scale, batch, head, row, stride_dq_b, stride_dq_h, stride_dq_s, max_seqlen_q, head_dim,
        BLOCK_M, BLOCK_DMODEL, "general",
    )  # fmt: skip
