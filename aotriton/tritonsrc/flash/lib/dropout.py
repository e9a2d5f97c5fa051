"""Dropout: which weights are kept, by Philox 4x32 with 7 rounds (Salmon et al., 2011).

A weight's random bits follow from the seed, the offset, its head and its position, so that every kernel finds the same
ones whatever its tiles are. One counter has the bits of eight weights, 16 each: of rows i and i + 8, and of keys j,
j + 1, j + 8 and j + 9, where i % 16 is below 8 and j even and j % 16 below 8. A thread with fp32 sums of a product on
tensor cores of NVIDIA has all eight or, where rows are keys, four of them, so nothing passes between threads.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import DROPOUT, has
from aotriton.tritonsrc.flash.lib.zero import zero

ROUNDS = tl.constexpr(7)


@bundle
class Dropout:
    """The random numbers of one head. ``threshold``: of 65,536 numbers, those below it drop a weight."""

    features: tl.tensor
    seed: tl.tensor
    low: tl.tensor  # half of the offset
    head: tl.tensor  # and the other half
    threshold: tl.tensor


@triton.jit
def threshold_of(probability):
    """Of 65,536 numbers, how many drop a weight."""
    return tl.minimum(tl.floor(probability * 65536 + 0.5).to(tl.int32), 65535)


@triton.jit
def scale_of(probability):
    """What weights that are kept are multiplied by."""
    return 65536.0 / (65536 - threshold_of(probability)).to(tl.float32)


@triton.jit
def dropout_of(features, probability, DropoutSeed, DropoutOffset, head):
    """Dropout of a head, whose number counts heads of all sequences."""
    seed = features.to(tl.int64) * 0
    offset = seed
    if (features & DROPOUT) != 0:
        seed = tl.load(DropoutSeed)
        offset = tl.load(DropoutOffset)
    low = (offset & 0xFFFFFFFF).to(tl.uint32)
    high = ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return Dropout(features, seed, low, high + head.to(tl.uint32), threshold_of(probability))


@triton.jit
def words_of(seed, c0, c1, c2, c3):
    """The four words of Philox for counters, all of uint32. Products of 64 bits are one instruction, where tl.philox
    has two.
    """
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        a = c0.to(tl.uint64) * 0xD2511F53
        b = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (b >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = b.to(tl.uint32)
        c3 = a.to(tl.uint32)
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def kept(p, dropout, row, key, rows, keys, step):
    """The weights ``p`` that are kept, before their scale, and zeros in place of the others.

    They are of ``rows`` from ``row`` on and ``keys`` from ``key`` on, two vectors that broadcast to p; ``row`` and
    ``key`` are multiples of 16. ``step`` is that of the loop.
    """
    if has(dropout.features, DROPOUT, step):
        nothing = zero(dropout.features, step)
        # As if each weight had a counter of its own: the compiler sees which ones of a thread are the same.
        c0 = ((key + nothing) // 4 + (keys >> 4) * 4 + ((keys & 6) >> 1)).to(tl.uint32)
        c1 = ((row + nothing) // 2 + (rows >> 4) * 8 + (rows & 7)).to(tl.uint32)
        low = dropout.low + nothing.to(tl.uint32)
        w0, w1, w2, w3 = words_of(dropout.seed + nothing, c0, c1, low, dropout.head)
        word = tl.where((rows & 8) != 0, tl.where((keys & 8) != 0, w3, w2), tl.where((keys & 8) != 0, w1, w0))
        bits = tl.where((keys & 1) != 0, word, word << 16)  # and others behind them, which decide nothing
        p = tl.where(bits >= (dropout.threshold.to(tl.uint32) << 16), p, 0.0)
    return p
