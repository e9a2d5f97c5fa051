"""The order of the programs that walk tiles of keys, and which program has a tile: `tile_of_heads_together` of others.

For Triton and for Gluon.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.packed_tiles import first_tile


@triton.jit
def walked_by(program, programs, tiles, together):
    """The tile, and its head, counted through all batches, of one of so many programs."""
    begun = program // (tiles * together) * together  # heads before these
    width = tl.minimum(together, programs // tiles - begun)
    program -= begun * tiles
    tile = program // width
    return tile, begun + program - tile * width


@triton.jit
def who_walks(tile, head, programs, tiles, together):
    """The program that has a tile of a head, counted through all batches."""
    begun = head // together * together
    width = tl.minimum(together, programs // tiles - begun)
    return begun * tiles + tile * width + head - begun


@triton.jit
def sequence_walked(tile, CuSeqlens, sequences, ROWS: tl.constexpr):
    """The packed sequence of a tile that counts through all of them, by bisection, as `tile_of_sequences` finds it."""
    sequence = 0
    behind = sequences
    while behind - sequence > 1:
        middle = (sequence + behind) // 2
        begun = first_tile(tl.load(CuSeqlens + middle), middle, ROWS) <= tile
        sequence = tl.where(begun, middle, sequence)
        behind = tl.where(begun, behind, middle)
    return sequence
