"""Backward for Hopper, first kernel: rows of Out and DO to Delta, their dot products, and zeros to DQSum."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.tile import head_rows, load_tile, place


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
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_q, BLOCK_M) * num_heads_q * batch).

    Delta is contiguous [batch, num_heads_q, max_seqlen_q], DQSum contiguous fp32 [batch, num_heads_q, max_seqlen_q,
    head_dim].
    """
    tile, head, batch = place(tl.cdiv(max_seqlen_q, BLOCK_M), num_heads_q)
    row = tile * BLOCK_M
    out = load_tile(
        Out, batch, head, row, stride_out_b, stride_out_h, stride_out_s, max_seqlen_q, head_dim,
        BLOCK_M, BLOCK_DMODEL, "general",
    )  # fmt: skip
    dout = load_tile(
        DO, batch, head, row, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim,
        BLOCK_M, BLOCK_DMODEL, "general",
    )  # fmt: skip
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    rows = row + tl.arange(0, BLOCK_M)
    tl.store(head_rows(Delta, batch, head, num_heads_q, max_seqlen_q) + rows, delta, mask=rows < max_seqlen_q)

    # What the rows of this tile have in DQSum lies in one piece.
    sums = DQSum + ((batch * num_heads_q + head).to(tl.int64) * max_seqlen_q + row) * head_dim
    index = tl.arange(0, BLOCK_M * BLOCK_DMODEL)
    zeros = tl.zeros([BLOCK_M * BLOCK_DMODEL], tl.float32)
    tl.store(sums + index, zeros, mask=index < tl.minimum(max_seqlen_q - row, BLOCK_M) * head_dim)
