"""The tile scheduler of the persistent backward: which tiles of keys a program takes, and in which order."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.mask import first_query
from aotriton.tritonsrc.flash.lib.opaque import opaque, special_register

KEYS = gl.constexpr(64)  # of a consumer


@gluon.jit
def heads_of_group(group, heads, together):
    """The first head of a group, and how many it has: `together`, but the last one has all that are left, and none is
    behind it.
    """
    first = group * together
    left = heads - first
    width = gl.where((left > 0) & (left < 2 * together), left, together)
    return first, width


@gluon.jit
def work_index(group, round):
    """Which of a group's tiles this program has in a round.

    A round has a tile for each place; every second one goes through them backwards. Behind every second group programs
    move on by three eighths of the places.
    """
    programs = special_register("%nctaid.x")
    place = (special_register("%ctaid.x") + (group + 1) // 2 * (programs * 3 // 8)) % programs
    place = gl.where((group + round) % 2 == 1, programs - 1 - place, place)
    return round * programs + place


@gluon.jit
def work_at(ticket, num_heads_k, max_seqlen_k, batches, together, CAUSAL: gl.constexpr):
    """This program's tile for a ticket, or, where its group has none for it any more, its first one of the next group:
    the ticket, first key, and key head, counted through all batches; or a negative key beyond the last tile.

    A ticket is twice the number of a round, counted through all groups as if each had as many as the last one can have,
    and one more for every second tile: the phase of what happens once a tile.
    """
    programs = special_register("%nctaid.x")
    tiles = gl.cdiv(opaque(max_seqlen_k), 2 * KEYS)
    heads = opaque(num_heads_k) * batches
    if CAUSAL:
        together = opaque(together)
        rounds = gl.cdiv(2 * together * tiles, programs)
        group = (ticket >> 1) // rounds
        round = (ticket >> 1) - group * rounds
        first, width = heads_of_group(group, heads, together)
        if work_index(group, round) >= width * tiles:
            group += 1
            round = 0
            ticket = 2 * group * rounds + (ticket & 1)
        first, width = heads_of_group(group, heads, together)
        index = work_index(group, round)
        tile = index // width
        head = first + index - tile * width
        key = gl.where(first + together > heads, -1, tile * 2 * KEYS)
    else:
        index = (ticket >> 1) * programs + special_register("%ctaid.x")
        head = index // tiles
        key = gl.where(head < heads, (index - head * tiles) * 2 * KEYS, -1)
    return ticket, key, head


@gluon.jit
def steps_of(num_heads_q, num_heads_k, max_seqlen_q, key, BLOCK_M: gl.constexpr, CAUSAL: gl.constexpr):
    """Of a tile of keys: how many query heads share them, the first row of queries that see any of them, the row to
    begin with, and how many steps there are in all.

    Full, tiles of a head begin with different rows, so that not all of them add to the same part of DQSum at once.
    """
    first = first_query(key, CAUSAL)
    if CAUSAL:  # noqa: SIM108 (known when compiled)
        begin = key
    else:
        begin = gl.where(key < opaque(max_seqlen_q), key, 0)
    group = num_heads_q // opaque(num_heads_k)
    return group, first, begin, group * gl.cdiv(opaque(max_seqlen_q) - first, BLOCK_M)


@gluon.jit
def next_rows(head, row, first, begin, max_seqlen_q, BLOCK_M: gl.constexpr):
    """Head and row of the next step."""
    row += BLOCK_M
    row = gl.where(row >= max_seqlen_q, first, row)
    return head + (row == begin).to(gl.int32), row
