"""Which tiles of DQSum, of 64 query rows each, a sequence has."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.features import PACKED


@triton.jit
def first_tile(sequence, begin, features):
    """The first one of a sequence that begins at row `begin`. No two packed sequences share a tile: from one to the
    next there is one tile more than rows fill whole.
    """
    return tl.where((features & PACKED) != 0, begin // 64 + sequence, 0)
