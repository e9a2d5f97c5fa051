"""Attention forward for Hopper: combines what attn_fwd_hopper_planned makes of parts of a tile's keys."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib import constants
from aotriton.tritonsrc.flash.lib.features import PACKED, USED_Q
from aotriton.tritonsrc.flash.lib.partial import await_results, finished, place_in_l
from aotriton.tritonsrc.flash.lib.plan import (
    APART,
    FIELDS,
    FIRST_PLACE,
    OF_HEAD,
    OF_POSITION,
    OF_SEQUENCE,
    PACKED_HEADS,
    PARTS,
    SPLIT_TILES,
)
from aotriton.tritonsrc.flash.lib.sequence import sequence_of

TILE_ROWS = tl.constexpr(constants.PLAN_TILE_ROWS)
CONSUMER_ROWS = tl.constexpr(constants.PLAN_TILE_ROWS // 2)


@triton.jit
def attn_fwd_planned_combine(
    Splits,
    Counts,
    Parts,
    PartsL,
    Out,
    L,
    store_lse,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    num_heads_q,
    max_seqlen_q,
    head_dim_v,
    features,
    Sinks,
    CuSeqlensQ,
    SequsedQ,
    ROWS: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (2 * programs * 128 / ROWS): ROWS rows of each tile that Splits may have. Splits and Counts as attn_fwd_plan
    leaves them, Parts and PartsL as attn_fwd_hopper_planned does: where a row sees no key of a part, PartsL has minus
    infinity.
    """
    PIECES: tl.constexpr = TILE_ROWS // ROWS
    tile, piece = tl.program_id(0) // PIECES, tl.program_id(0) % PIECES
    await_results(EARLY)
    if tile >= tl.load(Counts + SPLIT_TILES):
        return
    split = Splits + tile * FIELDS
    packed = tl.load(Counts + PACKED_HEADS)
    parts = tl.load(split + PARTS)
    place = tl.load(split + FIRST_PLACE)
    apart = tl.load(split + APART)
    row = piece * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_DMODEL)
    out = tl.zeros([ROWS, BLOCK_DMODEL], tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    for _ in range(0, parts):
        first = place.to(tl.int64) * TILE_ROWS
        lse = tl.load(PartsL + first + row)
        there = (lse > float("-inf"))[:, None] & (columns < head_dim_v)[None, :]
        part = tl.load(Parts + (first + row)[:, None] * head_dim_v + columns[None, :], mask=there, other=0.0)
        top = tl.maximum(row_max, lse)
        base = tl.where(top == float("-inf"), 0.0, top)
        correction, weight = tl.exp2(row_max - base), tl.exp2(lse - base)
        row_sum = row_sum * correction + weight
        out = out * correction[:, None] + part * weight[:, None]
        row_max = top
        place += apart

    sequence = tl.load(split + OF_SEQUENCE)
    # Its keys and its band are not asked for: they are anything of the right type.
    of = sequence_of(
        sequence, features & (PACKED | USED_Q), sequence, sequence, CuSeqlensQ, CuSeqlensQ, SequsedQ, SequsedQ,
        max_seqlen_q, max_seqlen_q, True,
    )  # fmt: skip
    each = CONSUMER_ROWS // packed  # positions of a consumer
    own = row % CONSUMER_ROWS
    at = tl.load(split + OF_POSITION) + row // CONSUMER_ROWS * each + own // packed
    stored = (own < each * packed) & (at < of.q.rows)
    heads = tl.where(stored, tl.load(split + OF_HEAD) * packed + own % packed, 0)
    factor, lse = finished(row_max, row_sum, Sinks, heads, features, at < of.q.used)
    origin = Out + of.batch * stride_out_b + of.q.begin.to(tl.int64) * stride_out_s
    places = origin + (heads * stride_out_h + at * stride_out_s)[:, None] + columns[None, :]
    mask = stored[:, None] & (columns < head_dim_v)[None, :]
    tl.store(places, (out * factor[:, None]).to(Out.dtype.element_ty), mask=mask)
    if store_lse != 0:
        tl.store(L + place_in_l(of, at, heads, num_heads_q, max_seqlen_q), lse, mask=stored)
