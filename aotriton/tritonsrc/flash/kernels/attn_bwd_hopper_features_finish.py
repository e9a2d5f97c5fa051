"""Backward for Hopper with features, last kernel: DQSum to DQ, in its type and scaled."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.dq_layout import load_dq
from aotriton.tritonsrc.flash.lib.features import PACKED
from aotriton.tritonsrc.flash.lib.packed_tiles import first_tile, tile_of_sequences
from aotriton.tritonsrc.flash.lib.partial import await_results
from aotriton.tritonsrc.flash.lib.sequence import sequence_of, store_rows
from aotriton.tritonsrc.flash.lib.walk_order import sequence_walked, walked_by


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
    sequences,
    num_heads_k,
    programs,
    tiles,
    together,
    behind,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (tiles * num_heads_q), of tiles of BLOCK_M rows: cdiv(longest, BLOCK_M) of each batch, or as
    tile_of_sequences has them where sequences are packed. `longest`: the most rows of a sequence.

    But where `behind` is less than the number of `programs` of attn_bwd_hopper_features, grid (behind * num_heads_q /
    num_heads_k * (128 / BLOCK_M)): the rows of the tiles of the last `behind` ones. They have so many `tiles` of 128
    keys for each of num_heads_k heads, and so many heads `together`.

    DQSum: as of attn_bwd_hopper_features_prepare. It is zero where rows are not used or see no key.
    """
    if behind < programs:
        group = num_heads_q // num_heads_k
        place = tl.program_id(0) // (group * (128 // BLOCK_M))
        part = tl.program_id(0) - place * (group * (128 // BLOCK_M))
        tile, head_of_all = walked_by(programs - behind + place, programs, tiles, together)
        sequence = head_of_all // num_heads_k
        head = (head_of_all - sequence * num_heads_k) * group + part // (128 // BLOCK_M)
        if (features & PACKED) != 0:
            sequence = sequence_walked(tile, CuSeqlensQ, sequences, 128)
            tile -= first_tile(tl.load(CuSeqlensQ + sequence), sequence, 128)
        row = tile * 128 + part % (128 // BLOCK_M) * BLOCK_M
    else:
        tile, head, sequence = tile_of_sequences(
            features, CuSeqlensQ, sequences, longest, max_seqlen_q, num_heads_q, 1, BLOCK_M
        )
        row = tile * BLOCK_M
    no_band = max_seqlen_q * 0
    of = sequence_of(
        sequence, features & PACKED, no_band, no_band, CuSeqlensQ, CuSeqlensQ, CuSeqlensQ, CuSeqlensQ, max_seqlen_q,
        max_seqlen_q, True,
    )  # fmt: skip
    await_results(True)
    if (row < 0) | (row >= of.q.rows):
        return
    at = tl.where((features & PACKED) != 0, first_tile(of.q.begin, sequence, 64), 0) * 64 + row
    dq = load_dq(DQSum, of.batch, head, at, num_heads_q, dq_tiles * 64, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
    store_rows(
        DQ, stride_dq_b, stride_dq_h, stride_dq_s, of.q, head_dim,
        dq * sm_scale, of.batch, head, row, BLOCK_M, BLOCK_DMODEL, True,
    )  # fmt: skip
