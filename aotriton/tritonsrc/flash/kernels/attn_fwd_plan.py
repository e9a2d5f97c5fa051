"""Attention forward for Hopper: plans the items that the programs of attn_fwd_hopper_planned take.

A tile costs as many steps of 128 keys as the one in the middle of its sequence has, and some for its ends. Tiles are
split into parts of about the same cost: of eight candidates for the most steps of a part, from five eighths of what
each program has to do in the mean to two and three eighths of it, that one is taken with which the last program is
expected to end first. Items that cost most come first (R. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib import constants
from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.partial import launch_next
from aotriton.tritonsrc.flash.lib.plan import (
    APART,
    BEHIND,
    DRAWN,
    FAR,
    FIELDS,
    FIRST_KEY,
    FIRST_PLACE,
    HEAD,
    ITEMS,
    OF_HEAD,
    OF_POSITION,
    OF_SEQUENCE,
    PACKED_HEADS,
    PARTS,
    PLACE,
    POSITION,
    SEQUENCE,
    SPLIT_TILES,
    STEP,
    keys_of_tile,
    sequence_at,
)

CANDIDATES = tl.constexpr(8)
ENDS = tl.constexpr(2)  # what the ends of an item cost, in steps, and what is more of one whose tile is split
SPLIT_ENDS = tl.constexpr(2)
LEAST = tl.constexpr(constants.PLAN_LEAST)
NEARLY = tl.constexpr(1.01)  # times the shortest: then fewer parts are better
FAR_COST = tl.constexpr(1e30)


@bundle
class Call:
    """What the tiles of a call depend on; see the kernel."""

    sequences: tl.tensor
    heads: tl.tensor
    positions: tl.tensor
    paged: tl.tensor
    features: tl.tensor
    lo: tl.tensor
    hi: tl.tensor
    CuSeqlensQ: tl.tensor
    CuSeqlensK: tl.tensor
    SequsedQ: tl.tensor
    SequsedK: tl.tensor
    max_seqlen_q: tl.tensor
    max_seqlen_k: tl.tensor


@triton.jit
def tiles_of(call, index, inside):
    """A sequence, or several, its blocks of rows, tiles and the steps of the tile in the middle; of numbers behind the
    last sequence no tiles. ``inside``: the number, or another one that a sequence has.
    """
    of = sequence_at(
        inside, call.paged, call.features, call.lo, call.hi, call.CuSeqlensQ,
        call.CuSeqlensK, call.SequsedQ, call.SequsedK, call.max_seqlen_q, call.max_seqlen_k,
    )  # fmt: skip
    blocks = tl.cdiv(of.q.rows, call.positions)
    first, after = keys_of_tile(of, blocks // 2 * call.positions, call.positions, STEP)
    tiles = tl.where(index < call.sequences, blocks * call.heads, 0)
    return of, blocks, tiles, tl.maximum(tl.cdiv(after - first, STEP), 1)


@triton.jit
def parts_of(steps, most):
    """Into how many parts of at most about so many steps, and what one costs, both in fp32, as that is fast."""
    steps = steps.to(tl.float32)
    parts = tl.ceil(steps * (1.0 / most))
    return parts, steps / parts + tl.where(parts > 1.0, ENDS + SPLIT_ENDS, ENDS)


@triton.jit
def attn_fwd_plan(
    Q,
    K,
    BlockTable,
    Items,
    Splits,
    Counts,
    sequences,
    heads,
    packed,
    positions,
    max_seqlen_q,
    max_seqlen_k,
    lo,
    hi,
    features,
    CuSeqlensQ,
    CuSeqlensK,
    SequsedQ,
    SequsedK,
    paged,
    programs,
    keys_in_cache,
    AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (sequences). A tile has so many ``positions`` in each of ``packed`` heads, which count as one of ``heads``.
    Keys of sequences lie in pages if ``paged`` is not 0; ``keys_in_cache`` of a head fit in the L2 cache. Q, K and
    BlockTable are not read.

    Items, int32 [.., 8], for so many ``programs``, which take them in turns; Splits, int32 [2 * programs, 8], the tiles
    that are split; see plan.py. Counts, int32 [4]: how many there are of both, ``packed``, and how many items are
    drawn. Items have at most 4 * programs places for results of parts.
    """
    launch_next(EARLY)
    own = tl.program_id(0)
    numbers = tl.arange(0, AT_ONCE)
    call = Call(
        sequences, heads, positions, paged, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK,
        max_seqlen_q, max_seqlen_k,
    )  # fmt: skip

    total = own.to(tl.float32) * 0.0
    for first in range(0, sequences, AT_ONCE):
        _, _, tiles, steps = tiles_of(call, first + numbers, tl.minimum(first + numbers, sequences - 1))
        total += tl.sum(tiles.to(tl.float32) * steps.to(tl.float32), 0)
    mean = total / programs

    most = tl.maximum(mean * (5 + 2 * tl.arange(0, CANDIDATES)) / 8, LEAST)
    count = most * 0.0
    cost = count
    largest = count
    smallest = count + FAR_COST
    for first in range(0, sequences, AT_ONCE):
        _, _, tiles, steps = tiles_of(call, first + numbers, tl.minimum(first + numbers, sequences - 1))
        parts, each = parts_of(steps[:, None], most[None, :])
        items = tiles.to(tl.float32)[:, None] * parts
        count += tl.sum(items, 0)
        cost += tl.sum(items * each, 0)
        largest = tl.maximum(largest, tl.max(tl.where(items > 0, each, 0.0), 0))
        smallest = tl.minimum(smallest, tl.min(tl.where(items > 0, each, FAR_COST), 0))
    rounds = tl.floor(count / programs)
    ends = rounds * cost / tl.maximum(count, 1.0) + tl.where(count > rounds * programs, smallest, 0.0)
    ends = tl.maximum(tl.maximum(ends, cost / programs), largest)
    most_of_part = tl.max(tl.where(ends <= tl.min(ends, 0) * NEARLY, most, 0.0), 0)

    of, blocks, own_tiles, own_steps = tiles_of(call, own, own)
    parts_as_real, own_cost = parts_of(own_steps, most_of_part)
    own_parts = parts_as_real.to(tl.int32)
    begin = own * 0  # of its items
    all_items = begin
    place = begin  # of its first part
    tile = begin  # of its split ones
    all_split = begin
    for first in range(0, sequences, AT_ONCE):
        index = first + numbers
        _, _, tiles, steps = tiles_of(call, index, tl.minimum(index, sequences - 1))
        parts, each = parts_of(steps, most_of_part)
        items = tiles * parts.to(tl.int32)
        all_items += tl.sum(items, 0)
        begin += tl.sum(tl.where((each > own_cost) | ((each == own_cost) & (index < own)), items, 0), 0)
        split = parts > 1.0
        all_split += tl.sum(tl.where(split, tiles, 0), 0)
        place += tl.sum(tl.where(split & (index < own), items, 0), 0)
        tile += tl.sum(tl.where(split & (index < own), tiles, 0), 0)
    if own == 0:
        tl.store(Counts + ITEMS, all_items)
        tl.store(Counts + SPLIT_TILES, all_split)
        tl.store(Counts + PACKED_HEADS, packed)
        tl.store(Counts + DRAWN, 0)

    # Parts of tiles that walk the same keys are next to each other. Whole tiles go by groups of heads, whose keys
    # should fit in the L2 cache: of a group, the tiles with most keys come first.
    own_items = own_tiles * own_parts
    blocks = tl.maximum(blocks, 1)
    heads_in_cache = tl.maximum(tl.minimum(keys_in_cache // tl.maximum(of.k.used, 1), heads), 1)
    of_group = tl.where(own_parts > 1, 1, heads_in_cache)
    for first in range(0, own_items, AT_ONCE):
        item = first + numbers
        there = item < own_items
        group = item // (of_group * blocks * own_parts)
        in_group = item - group * (of_group * blocks * own_parts)
        size = tl.maximum(tl.minimum(of_group, heads - group * of_group), 1)
        part = in_group // (size * blocks)
        in_part = in_group - part * (size * blocks)
        number = in_part // size
        head = group * of_group + in_part - number * size
        position = (blocks - 1 - number) * positions
        first_key, after = keys_of_tile(of, position, positions, STEP)
        keys = tl.cdiv(tl.cdiv(after - first_key, STEP), own_parts) * STEP  # of a part
        first_key += part * keys
        to = Items + (begin + item).to(tl.int64) * FIELDS
        tl.store(to + SEQUENCE, own + item * 0, mask=there)
        tl.store(to + HEAD, head, mask=there)
        tl.store(to + POSITION, position, mask=there)
        tl.store(to + FIRST_KEY, tl.where(own_parts > 1, first_key, 0), mask=there)
        tl.store(to + BEHIND, tl.where(own_parts > 1, first_key + keys, FAR), mask=there)
        tl.store(to + PLACE, tl.where(own_parts > 1, place + item, -1), mask=there)
        there &= (part == 0) & (own_parts > 1)
        to = Splits + (tile + head * blocks + number) * FIELDS
        tl.store(to + PARTS, own_parts + item * 0, mask=there)
        tl.store(to + OF_SEQUENCE, own + item * 0, mask=there)
        tl.store(to + OF_HEAD, head, mask=there)
        tl.store(to + OF_POSITION, position, mask=there)
        tl.store(to + FIRST_PLACE, place + item, mask=there)
        tl.store(to + APART, blocks + item * 0, mask=there)
