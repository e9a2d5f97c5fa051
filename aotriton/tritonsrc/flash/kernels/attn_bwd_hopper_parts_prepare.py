"""Backward for Hopper in parts, first kernel: rows of Out and DO to Delta, their dot products; zeros to the sums."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.delta import store_delta
from aotriton.tritonsrc.flash.lib.dq_order import clear_dq


@triton.jit
def clear(sums, batch, head, row, num_heads, seqlen, head_dim, BLOCK_M: tl.constexpr, BLOCK_DMODEL: tl.constexpr):
    """Zeros to BLOCK_M rows of a head of contiguous [batch, num_heads, seqlen, head_dim] `sums`, from `row` on."""
    origin = sums + ((batch * num_heads + head).to(tl.int64) * seqlen + row) * head_dim
    index = tl.arange(0, BLOCK_M * BLOCK_DMODEL)
    zeros = tl.zeros([BLOCK_M * BLOCK_DMODEL], tl.float32)
    tl.store(origin + index, zeros, mask=index < tl.minimum(seqlen - row, BLOCK_M) * head_dim)


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
    tiles_q, tiles_k = tl.cdiv(max_seqlen_q, BLOCK_M), tl.cdiv(max_seqlen_k, BLOCK_M)
    each = tiles_q * num_heads_q + tiles_k * num_heads_k
    batch = tl.program_id(0) // each
    tile = tl.program_id(0) - batch * each
    if tile < tiles_q * num_heads_q:
        head = tile // tiles_q
        row = (tile - head * tiles_q) * BLOCK_M
        store_delta(
            Out, DO, Delta, batch, head, row, stride_out_b, stride_out_h, stride_out_s,
            stride_do_b, stride_do_h, stride_do_s, num_heads_q, max_seqlen_q, head_dim,
            BLOCK_M, BLOCK_DMODEL, "general",
        )  # fmt: skip
        clear_dq(DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
    else:
        tile -= tiles_q * num_heads_q
        head = tile // tiles_k
        row = (tile - head * tiles_k) * BLOCK_M
        clear(DKSum, batch, head, row, num_heads_k, max_seqlen_k, head_dim, BLOCK_M, BLOCK_DMODEL)
        clear(DVSum, batch, head, row, num_heads_k, max_seqlen_k, head_dim, BLOCK_M, BLOCK_DMODEL)
