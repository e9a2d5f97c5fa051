"""The tile scheduler of the persistent forward: which tiles a program takes, and in which order."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.mask import key_interval
from aotriton.tritonsrc.flash.lib.opaque import special_register


@bundle
class Schedule:
    """What does not change from tile to tile: how many programs there are, blocks of rows of a head, heads, heads of a
    group, and groups.
    """

    programs: gl.tensor
    blocks: gl.tensor
    heads: gl.tensor
    size: gl.tensor
    groups: gl.tensor


@gluon.jit
def heads_of_group(group, groups, size, heads):
    """`size`, but the last group has all heads that are left."""
    return gl.where(group == groups - 1, heads - group * size, size)


@gluon.jit
def work_index(group, round, rank, programs):
    """Which of a group's tiles the program of this rank has in a round: see `work_at`."""
    rank = gl.where((group + round) & 1 == 1, programs - 1 - rank, rank)
    return round * programs + rank


@gluon.jit
def schedule_of(heads, rows, BLOCK_M: gl.constexpr, CAUSAL: gl.constexpr, GROUP_ROUNDS: gl.constexpr):
    """The schedule of blocks of BLOCK_M of the `rows` of each of so many heads, of all batches."""
    programs = special_register("%nctaid.x")
    blocks = gl.cdiv(rows, BLOCK_M)
    size = heads
    if CAUSAL:
        gl.static_assert(GROUP_ROUNDS > 0, "causal tiles are dealt out by groups")
        size = gl.minimum(gl.cdiv(GROUP_ROUNDS * programs, blocks), heads)
    return Schedule(programs, blocks, heads, size, heads // size)


@gluon.jit
def quotient(a, b):
    """a // b, of which neither is negative: that takes fewer registers."""
    return (a.to(gl.uint32) // b.to(gl.uint32)).to(gl.int32)


@gluon.jit
def work_at(
    schedule, group, round, rank, max_seqlen_k, log2_packed,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """This program's tile of a round of a group of heads, or its first one of the next group where that round has none
    for it: group, round, the program's rank, first row, head (of all packed heads of the batch) and number of key
    tiles, which is 0 beyond the last tile.

    Tiles are dealt out in rounds, one to each rank, and every second round goes through the ranks backwards. Full, all
    heads are one group, one after the other, and all tiles are alike. Causal, a group has the least heads that fill
    GROUP_ROUNDS rounds, whose keys and values should fit in the L2 cache, and the last group those that are left, too;
    its tiles are sorted, the longest first. So ranks have about the same to do in a group; what differs evens out over
    the groups: every second one is dealt out backwards, and behind it programs move on by three eighths of the ranks.
    """
    programs, blocks, size = schedule.programs, schedule.blocks, schedule.size
    tile = work_index(group, round, rank, programs)
    if CAUSAL:
        past = gl.where(tile >= heads_of_group(group, schedule.groups, size, schedule.heads) * blocks, 1, 0)
        group += past
        round *= 1 - past
        rank += past * (1 - (group & 1)) * (programs * 3 // 8)
        rank = gl.where(rank >= programs, rank - programs, rank)
        tile = work_index(group, round, rank, programs)
        of_group = heads_of_group(group, schedule.groups, size, schedule.heads)
        block = quotient(tile, of_group)
        head = group * size + tile - block * of_group
        block = blocks - 1 - block
        _, keys = key_interval(block * BLOCK_M, (block + 1) * BLOCK_M >> log2_packed, max_seqlen_k, BLOCK_N, CAUSAL)
        beyond = group == schedule.groups
    else:
        head = quotient(tile, blocks)
        block = tile - head * blocks
        _, keys = key_interval(block * BLOCK_M, 0, max_seqlen_k, BLOCK_N, CAUSAL)
        beyond = head >= schedule.heads
    return group, round, rank, block * BLOCK_M, head, gl.where(beyond, 0, gl.cdiv(keys, BLOCK_N))
