"""Backward, first kernel: rows of Out and DO to Delta, their dot products."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.delta import store_delta
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.tile import Heads


@triton.jit
def attn_bwd_preprocess(
    Out,
    DO,
    Delta,
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
    ADDRESSING: tl.constexpr,
):
    """Grid (cdiv(max_seqlen_q, BLOCK_M) * num_heads_q * batch).

    Delta is contiguous [batch, num_heads_q, max_seqlen_q].
    """
    # Each element is read once, straight to registers: a descriptor would gain nothing.
    POINTERS: tl.constexpr = "general" if ADDRESSING == "descriptor" else ADDRESSING
    out = Heads(Out, stride_out_b, stride_out_h, stride_out_s, max_seqlen_q, head_dim)
    do = Heads(DO, stride_do_b, stride_do_h, stride_do_s, max_seqlen_q, head_dim)
    tile, head, batch = tile_of_program(tl.cdiv(max_seqlen_q, BLOCK_M), num_heads_q)
    row = tile * BLOCK_M
    store_delta(out, do, Delta, batch, head, row, num_heads_q, BLOCK_M, BLOCK_DMODEL, POINTERS)
