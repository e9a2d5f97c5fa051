"""Tiles of packed sequences: from one sequence to the next there is one tile more than its rows fill whole, so that no
two share one, and which tiles a sequence has follows from where it begins.

For Triton and for Gluon.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.features import PACKED
from aotriton.tritonsrc.flash.lib.scheduler import tile_of_program


@triton.jit
def first_tile(begin, sequence, ROWS: tl.constexpr):
    """The first tile of ROWS rows of a sequence that begins at row `begin`."""
    return begin // ROWS + sequence


@triton.jit
def tile_of_sequences(features, CuSeqlens, sequences, longest, rows, heads, ROWS: tl.constexpr):
    """Tile, head and sequence of this program, of a grid along x, head after head.

    Packed sequences in so many `rows` have rows // ROWS + sequences tiles in each head, of which some are none: they
    begin before the first row or behind the last one of their sequence. Otherwise each of `heads` in each batch has
    cdiv(longest, ROWS).
    """
    tile, head, sequence = tile_of_program(tl.cdiv(longest, ROWS), heads)
    if (features & PACKED) != 0:
        tiles = rows // ROWS + sequences
        head = tl.program_id(0) // tiles
        tile = tl.program_id(0) - head * tiles
        sequence = tile * 0
        behind = sequence + sequences
        while behind - sequence > 1:
            middle = (sequence + behind) // 2
            begun = first_tile(tl.load(CuSeqlens + middle), middle, ROWS) <= tile
            sequence = tl.where(begun, middle, sequence)
            behind = tl.where(begun, behind, middle)
        tile -= first_tile(tl.load(CuSeqlens + sequence), sequence, ROWS)
    return tile, head, sequence
