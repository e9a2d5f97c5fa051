"""Backward for Hopper in shares, last kernel: sums of DK and DV of split tiles, and DQSum to DQ in its type, scaled.

The portions of a tile are added in their order, so that DK and DV are the same bit by bit from run to run.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.dq_layout import load_dq
from aotriton.tritonsrc.flash.lib.scheduler import tile_at
from aotriton.tritonsrc.flash.lib.tile import Heads, store_tile

ROWS = tl.constexpr(16)  # of a tile of 128 keys, for each program


@triton.jit
def _others(tiles_of, tile, splits):
    """How many places in Split have a portion of the tile that is not its first."""
    found = 0
    for start in range(0, splits, 256):
        places = start + tl.arange(0, 256)
        found += tl.sum((tl.load(tiles_of + places, mask=places < splits, other=-1) == 2 * tile).to(tl.int32))
    return found


@triton.jit
def _portion(Split, place, half, row, within, BLOCK_DMODEL: tl.constexpr):
    """[ROWS, BLOCK_DMODEL] fp32 of a place in Split: bits 16 to 31 in `half`, the others in the next; or zeros."""
    rows = row + tl.arange(0, ROWS)[:, None]
    origin = Split + (place * 4 + half).to(tl.int64) * 128 * BLOCK_DMODEL
    numbers = origin + rows * BLOCK_DMODEL + tl.arange(0, BLOCK_DMODEL)[None, :]
    high = tl.load(numbers, mask=within, other=0.0).to(tl.int16, bitcast=True).to(tl.int32) << 16
    low = tl.load(numbers + 128 * BLOCK_DMODEL, mask=within, other=0.0).to(tl.int16, bitcast=True).to(tl.int32)
    return (high | low & 0xFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _sum(Split, first, more, half, row, BLOCK_DMODEL: tl.constexpr):
    """Of the portion at `first` and so many `more`, which the next programs began with."""
    x = _portion(Split, first, half, row, True, BLOCK_DMODEL)
    for i in range(0, more, 2):  # two at a time, so that they wait together
        place = first // 2 * 2 + 2 * i + 2
        this = _portion(Split, place, half, row, True, BLOCK_DMODEL)
        x = x + this + _portion(Split, place + 2, half, row, i + 1 < more, BLOCK_DMODEL)
    return x


@triton.jit
def attn_bwd_hopper_shares_finish(
    DQSum,
    Split,
    SplitOf,
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
    splits,
    BLOCK_M: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
):
    """Grid (splits * 8 + cdiv(max_seqlen_q, BLOCK_M) * num_heads_q * batch): 8 programs for each place in Split, first.

    DQSum has tiles of `dq_width` columns, Split and SplitOf have `splits` places.
    """
    all_dq = Heads(DQ, stride_dq_b, stride_dq_h, stride_dq_s, max_seqlen_q, head_dim)
    all_dk = Heads(DK, stride_dk_b, stride_dk_h, stride_dk_s, max_seqlen_k, head_dim)
    all_dv = Heads(DV, stride_dv_b, stride_dv_h, stride_dv_s, max_seqlen_k, head_dim)
    program = tl.program_id(0)
    if program >= splits * 8:
        program -= splits * 8
        tile, head = tile_at(program, tl.cdiv(max_seqlen_q, BLOCK_M))
        row = tile * BLOCK_M
        batch = head // num_heads_q
        head -= batch * num_heads_q
        dq = load_dq(DQSum, batch, head, row, num_heads_q, max_seqlen_q, head_dim, dq_width, BLOCK_M, BLOCK_DMODEL)
        store_tile(all_dq, dq * sm_scale, batch, head, row, BLOCK_M, BLOCK_DMODEL, "general")
    else:
        tiles_of = SplitOf.to(tl.pointer_type(tl.int32), bitcast=True)
        place = program // (128 // ROWS)
        tile = tl.load(tiles_of + place)
        if (tile >= 0) & (tile % 2 == 1):
            tile = tile // 2
            more = _others(tiles_of, tile, splits)
            row = (program - place * (128 // ROWS)) * ROWS
            tiles = tl.cdiv(max_seqlen_k, 128)
            head = tile // tiles
            key = (tile - head * tiles) * 128 + row
            batch = head // num_heads_k
            head -= batch * num_heads_k
            dv = _sum(Split, place, more, 0, row, BLOCK_DMODEL)
            store_tile(all_dv, dv, batch, head, key, ROWS, BLOCK_DMODEL, "general")
            dk = _sum(Split, place, more, 2, row, BLOCK_DMODEL)
            store_tile(all_dk, dk, batch, head, key, ROWS, BLOCK_DMODEL, "general")
