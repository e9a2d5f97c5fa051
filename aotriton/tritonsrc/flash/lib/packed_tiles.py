"""Tiles of packed sequences: from one sequence to the next there is one tile more than its rows fill whole, so that no
two share one, and which tiles a sequence has follows from where it begins.

For Triton and for Gluon.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.features import PACKED
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_heads_together


@triton.jit
def first_tile(begin, sequence, ROWS: tl.constexpr):
    """The first tile of ROWS rows of a sequence that begins at row `begin`."""
    return begin // ROWS + sequence


@triton.jit
def last_first(tile, CuSeqlens, sequence, log2_packed, ROWS: tl.constexpr):
    """The tile in whose place this one is where each packed sequence has its last tile first. It has no rows if this
    one has none.
    """
    rows = tl.load(CuSeqlens + sequence + 1) - tl.load(CuSeqlens + sequence)
    return tl.cdiv(rows << log2_packed, ROWS) - 1 - tile


@triton.jit
def place_in_grid(features, sequences, longest, rows, heads, together, ROWS: tl.constexpr, log2_packed=0):
    """Tile, head and sequence of this program, as `tile_of_sequences` has them; but of packed sequences the tile is one
    of those of all sequences, and the sequence is 0.
    """
    tiles = tl.cdiv(longest << log2_packed, ROWS)
    if (features & PACKED) != 0:
        tiles = (rows << log2_packed) // ROWS + sequences
    tile, head, _ = tile_of_heads_together(tiles, 1, together)
    sequence = head // heads
    return tile, head - sequence * heads, sequence


@triton.jit
def tile_of_sequences(
    features, CuSeqlens, sequences, longest, rows, heads, together, ROWS: tl.constexpr, log2_packed=0,
):  # fmt: skip
    """Tile, head and sequence of this program, of a grid along x in which so many heads `together` have their tiles
    side by side.

    Packed sequences in so many `rows` have rows // ROWS + sequences tiles in each head, of which some are none: they
    begin before the first row or behind the last one of their sequence. Otherwise each of `heads` in each batch has
    cdiv(longest, ROWS). Of packed heads, 2 ** log2_packed rows have a position, and `longest` and `rows` are positions.
    """
    tile, head, sequence = place_in_grid(features, sequences, longest, rows, heads, together, ROWS, log2_packed)
    if (features & PACKED) != 0:
        behind = sequence + sequences
        while behind - sequence > 1:
            middle = (sequence + behind) // 2
            begun = first_tile(tl.load(CuSeqlens + middle) << log2_packed, middle, ROWS) <= tile
            sequence = tl.where(begun, middle, sequence)
            behind = tl.where(begun, behind, middle)
        tile -= first_tile(tl.load(CuSeqlens + sequence) << log2_packed, sequence, ROWS)
    return tile, head, sequence
