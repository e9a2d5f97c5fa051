"""Dropout: which weights are kept, by Philox 4x32 with 7 rounds (Salmon et al., 2011).

A weight's random bits follow from the seed, the offset, its head and its position, so that every kernel finds the same
ones whatever its tiles are.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import DROPOUT, has

AT_ONCE = tl.constexpr(8)  # keys of a row for which one counter has the bits, 16 each
ROUNDS = tl.constexpr(7)


@bundle
class Dropout:
    """The random numbers of one head. ``threshold``: of 65,536 numbers, those below it drop a weight."""

    features: tl.tensor
    seed: tl.tensor
    low: tl.tensor  # half of the offset
    head: tl.tensor  # and the other half
    threshold: tl.tensor
    scale: tl.tensor  # of weights that are kept


@triton.jit
def dropout_of(features, probability, DropoutSeed, DropoutOffset, head):
    """Dropout of a head, whose number counts heads of all sequences."""
    seed = features.to(tl.int64) * 0
    offset = seed
    if (features & DROPOUT) != 0:
        seed = tl.load(DropoutSeed)
        offset = tl.load(DropoutOffset)
    threshold = tl.minimum(tl.floor(probability * 65536 + 0.5).to(tl.int32), 65535)
    low = (offset & 0xFFFFFFFF).to(tl.uint32)
    high = ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return Dropout(
        features, seed, low, high + head.to(tl.uint32), threshold, 65536.0 / (65536 - threshold).to(tl.float32)
    )


@triton.jit
def kept(dropout, row, key, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS], from ``row`` and ``key`` on: whether a weight is kept. ``key`` is a multiple of AT_ONCE."""
    keep = tl.full([ROWS, COLUMNS], 1, tl.int8)
    if has(dropout.features, DROPOUT, key):
        rows = (row + tl.arange(0, ROWS)).to(tl.uint32)[:, None]
        groups = (tl.arange(0, COLUMNS // AT_ONCE) + key // AT_ONCE).to(tl.uint32)[None, :]
        zeros = tl.zeros([ROWS, COLUMNS // AT_ONCE], tl.uint32)
        w0, w1, w2, w3 = tl.philox(
            dropout.seed, groups + zeros, rows + zeros, zeros + dropout.low, zeros + dropout.head, ROUNDS
        )
        words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # of the last two dimensions, the second counts first
        threshold = dropout.threshold.to(tl.uint32)
        low = ((words & 0xFFFF) >= threshold).to(tl.int8)
        high = ((words >> 16) >= threshold).to(tl.int8)
        keep = tl.join(low, high).reshape(ROWS, COLUMNS)
    return keep != 0
