"""Plan: the items that the programs of the planned forward for Hopper take, one after the other.

An item is a tile of rows, in the heads that are packed, and its keys or a part of them, if the tile is split. Tiles of
a sequence are split into the same number of parts.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib import constants
from aotriton.tritonsrc.flash.lib.band import visited
from aotriton.tritonsrc.flash.lib.pages import sequence_in_pages
from aotriton.tritonsrc.flash.lib.sequence import sequence_of

STEP = tl.constexpr(constants.PLAN_STEP)
FIELDS = tl.constexpr(constants.PLAN_FIELDS)
FAR = tl.constexpr(1 << 30)

# Fields of an item. Without a PLACE for a result of parts it has all keys of its tile.
SEQUENCE, HEAD, POSITION, FIRST_KEY, BEHIND, PLACE = (tl.constexpr(i) for i in range(6))
# Counts: of items, of split tiles, of packed heads, and of the items that programs have drawn: none at first.
ITEMS, SPLIT_TILES, PACKED_HEADS, DRAWN = (tl.constexpr(i) for i in range(constants.PLAN_COUNTS))
# Of a split tile: how many parts, where it is, the place of the first part, and how far the places are apart.
PARTS, OF_SEQUENCE, OF_HEAD, OF_POSITION, FIRST_PLACE, APART = (tl.constexpr(i) for i in range(6))


@triton.jit
def sequence_at(index, paged, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k):
    """Sequence ``index``, or those of several, whose keys lie in pages if ``paged`` is not 0."""
    one_each = index * 0
    max_seqlen_q += one_each
    max_seqlen_k += one_each
    lo += one_each
    hi += one_each
    if paged != 0:
        of = sequence_in_pages(
            index, features, lo, hi, CuSeqlensQ, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k
        )  # fmt: skip
    else:
        of = sequence_of(
            index, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k, True
        )
    return of


@triton.jit
def keys_of_tile(of, begin, positions, KEYS: tl.constexpr):
    """Of so many positions from ``begin`` on, the first key that any of them sees, a multiple of KEYS, and the key
    behind the last one; both are the same where they see none.
    """
    first, _, _, after = visited(begin, begin + positions, of.q.used, of.k.used, of.lo, of.hi, KEYS)
    return first, tl.where(begin < of.q.used, tl.maximum(after, first), first)
