"""Backward for Hopper in parts, last kernel: the sums to DQ, DK and DV, in their type; DQ and DK scaled."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.dq_order import load_dq
from aotriton.tritonsrc.flash.lib.tile import load_tile, store_tile


@triton.jit
def convert(
    sums, result, scale, batch, head, row, stride_b, stride_h, stride_s, num_heads, seqlen, head_dim,
    BLOCK_M: tl.constexpr, BLOCK_DMODEL: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of a head of contiguous [batch, num_heads, seqlen, head_dim] `sums` to `result`, from `row` on."""
    origin = sums + (batch * num_heads + head).to(tl.int64) * seqlen * head_dim
    stride = head_dim.to(tl.int64)
    summed = load_tile(origin, 0, 0, row, 0, 0, stride, seqlen, head_dim, BLOCK_M, BLOCK_DMODEL, "general")
    store_tile(
        result, summed * scale, batch, head, row, stride_b, stride_h, stride_s, seqlen, head_dim,
        BLOCK_M, BLOCK_DMODEL, "general",
    )  # fmt: skip


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
    tiles_q, tiles_k = tl.cdiv(max_seqlen_q, BLOCK_M), tl.cdiv(max_seqlen_k, BLOCK_M)
    each = tiles_q * num_heads_q + tiles_k * num_heads_k
    batch = tl.program_id(0) // each
    tile = tl.program_id(0) - batch * each
    if tile < tiles_q * num_heads_q:
        head = tile // tiles_q
        row = (tile - head * tiles_q) * BLOCK_M
        dq = load_dq(DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
        store_tile(
            DQ, dq * sm_scale, batch, head, row, stride_dq_b, stride_dq_h, stride_dq_s, max_seqlen_q, head_dim,
            BLOCK_M, BLOCK_DMODEL, "general",
        )  # fmt: skip
    else:
        tile -= tiles_q * num_heads_q
        head = tile // tiles_k
        row = (tile - head * tiles_k) * BLOCK_M
        convert(
            DKSum, DK, sm_scale, batch, head, row, stride_dk_b, stride_dk_h, stride_dk_s, num_heads_k, max_seqlen_k,
            head_dim, BLOCK_M, BLOCK_DMODEL,
        )  # fmt: skip
        convert(
            DVSum, DV, 1.0, batch, head, row, stride_dv_b, stride_dv_h, stride_dv_s, num_heads_k, max_seqlen_k,
            head_dim, BLOCK_M, BLOCK_DMODEL,
        )  # fmt: skip
