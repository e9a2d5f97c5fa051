"""Backward for Hopper with features, last kernel: DQSum to DQ, in its type and scaled."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.dq_layout import load_dq
from aotriton.tritonsrc.flash.lib.dq_tiles import first_tile
from aotriton.tritonsrc.flash.lib.features import PACKED
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program
from aotriton.tritonsrc.flash.lib.sequence import heads_of, sequence_of
from aotriton.tritonsrc.flash.lib.tile import store_tile


@triton.jit
def attn_bwd_hopper_features_finish(
    DQSum,
    DQ,
    sm_scale,
    stride_dq_b,
    stride_dq_h,
    stride_dq_s,
    num_heads_q,
    max_seqlen_q,
    head_dim,
    dq_tiles,
    dq_width,
    features,
    CuSeqlensQ,
    longest,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (cdiv(longest, BLOCK_M) * num_heads_q * sequences). `longest`: the most rows of a sequence.

    DQSum: as of attn_bwd_hopper_features_prepare. It is zero where rows are not used or see no key.
    """
    tile, head, sequence = tile_of_program(tl.cdiv(longest, BLOCK_M), num_heads_q)
    row = tile * BLOCK_M
    of_q = sequence_of(sequence, CuSeqlensQ, CuSeqlensQ, features, max_seqlen_q, 0, "general")
    if row >= of_q.rows:
        return
    batch = tl.where((features & PACKED) != 0, 0, sequence)
    all_dq = heads_of(DQ, stride_dq_b, stride_dq_h, stride_dq_s, of_q.begin, of_q.rows, head_dim, "general")
    at = first_tile(sequence, of_q.begin, features) * 64 + row
    dq = load_dq(DQSum, batch, head, at, num_heads_q, dq_tiles * 64, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
    store_tile(all_dq, dq * sm_scale, batch, head, row, BLOCK_M, BLOCK_DMODEL, "general")
