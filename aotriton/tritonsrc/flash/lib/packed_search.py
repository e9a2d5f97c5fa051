"""Which packed sequence a tile is of, as several warps find it. `tile_of_sequences` bisects instead, as any code can;
but each step of that waits for memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.packed_tiles import first_tile


@gluon.jit
def sequence_of_tile(
    tile, CuSeqlens, sequences, ROWS: gl.constexpr, AT_ONCE: gl.constexpr = 128, WARPS: gl.constexpr = 4
):  # fmt: skip
    """The last of the sequences whose first tile of ROWS rows is not behind `tile`, which counts through all of them;
    the first one if there is none. So many warps look at as many sequences at once as they have threads.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    sequence = 0
    left = sequences
    while left > 1:
        apart = gl.cdiv(left, AT_ONCE)
        some = sequence + gl.arange(0, AT_ONCE, LAYOUT) * apart
        begin = gl.load(CuSeqlens + some, mask=some < sequences, other=0)
        begun = (some < sequences) & (first_tile(begin, some, ROWS) <= tile)
        sequence += gl.maximum(gl.sum(begun.to(gl.int32), 0) - 1, 0) * apart
        left = gl.where(apart > 1, apart, 1)
    return sequence
