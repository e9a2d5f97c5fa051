"""Backward for Hopper, last kernel: DQSum to DQ, in its type and scaled."""

import triton
import triton.language as tl

from aotriton.tritonsrc.tile import load_tile, store_tile


@triton.jit
def attn_bwd_hopper_finish(
    DQSum,
    DQ,
    sm_scale,
    stride_dqsum_b,
    stride_dqsum_h,
    stride_dqsum_s,
    stride_dq_b,
    stride_dq_h,
    stride_dq_s,
    max_seqlen_q,
    head_dim,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_q, BLOCK_M), num_heads_q, batch)."""
    row = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    batch = tl.program_id(2)
    dq = load_tile(
        DQSum, batch, head, row, stride_dqsum_b, stride_dqsum_h, stride_dqsum_s, max_seqlen_q, head_dim,
        BLOCK_M, BLOCK_DMODEL, "general",
    )  # fmt: skip
    store_tile(
        DQ, dq * sm_scale, batch, head, row, stride_dq_b, stride_dq_h, stride_dq_s, max_seqlen_q, head_dim,
        BLOCK_M, BLOCK_DMODEL, "general",
    )  # fmt: skip
