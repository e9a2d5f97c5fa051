"""Dropout: which weights are kept, by Philox 2x32 with 7 rounds (Salmon et al., 2011).

A weight's random number follows from the seed, the offset, its head and its position, so that every kernel finds the
same one whatever its tiles are. One counter has the numbers of eight weights, 15 bits each: of rows i and i + 8, and of
keys j, j + 1, j + 8 and j + 9, where i % 16 is below 8 and j even and j % 16 below 8. A thread with sums of a product
on tensor cores of NVIDIA has all eight or, where rows are keys, four of them, so nothing passes between threads.

A counter's two words are of one row each. The numbers of keys j and j + 1 are a word's halves, those of j + 8 and j + 9
the halves of the word turned by a byte; the highest bit of a half does not count. So the highest seven bits of all
eight numbers are bits of their own.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import DROPOUT, has
from aotriton.tritonsrc.flash.lib.zero import zero

ROUNDS = tl.constexpr(7)


@bundle
class Dropout:
    """The random numbers of one head. ``threshold``: of all numbers, those below it drop a weight."""

    features: tl.tensor
    seed: tl.tensor  # Philox's key of the head
    of_keys: tl.tensor  # the counters of key 0 and
    of_rows: tl.tensor  # of row 0
    threshold: tl.tensor


@triton.jit
def threshold_of(probability):
    """Of 32,768 numbers, how many drop a weight: as bits of a bfloat16, those of a finite one."""
    return tl.minimum(tl.floor(probability * 32768 + 0.5).to(tl.int32), 32640)


@triton.jit
def scale_of(probability):
    """What weights that are kept are multiplied by."""
    return 32768.0 / (32768 - threshold_of(probability)).to(tl.float32)


@triton.jit
def dropout_of(features, probability, DropoutSeed, DropoutOffset):
    """Dropout of head 0 of a call. Philox 4x32 makes three words of its seed and its offset."""
    seed = features.to(tl.uint32) * 0
    of_keys = seed
    of_rows = seed
    if (features & DROPOUT) != 0:
        offset = tl.load(DropoutOffset)
        low = (offset & 0xFFFFFFFF).to(tl.uint32)
        high = ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32)
        seed, of_keys, of_rows, _ = tl.philox(tl.load(DropoutSeed), low, high, seed, seed, ROUNDS)
    return Dropout(features, seed, of_keys, of_rows, threshold_of(probability))


@triton.jit
def seed_of(seed, heads):
    """Philox's key of the head that is so many heads, of all sequences, behind that of ``seed``."""
    return seed + heads.to(tl.uint32) * 0xBB67AE85


@triton.jit
def dropout_of_head(dropout, head):
    """Dropout of a head, whose number counts heads of all sequences."""
    seed = seed_of(dropout.seed, head)
    return Dropout(dropout.features, seed, dropout.of_keys, dropout.of_rows, dropout.threshold)


@triton.jit
def words_of(seed, c0, c1):
    """The two words of Philox for counters, all of uint32."""
    for _ in tl.static_range(ROUNDS):
        product = c0.to(tl.uint64) * 0xD256D193
        c0 = (product >> 32).to(tl.uint32) ^ c1 ^ seed
        c1 = product.to(tl.uint32)
        seed += 0x9E3779B9
    return c0, c1


@triton.jit
def drawn(dropout, row, key, rows, keys, step):
    """The words of rows i and those of rows i + 8, for the weights of `rows` from `row` on and `keys` from `key` on.

    These are two vectors that broadcast to the weights; `row` and `key` are multiples of 16. `step` is that of
    the loop.

    As if each weight had a counter of its own: the compiler sees which ones of a thread are the same.
    """
    nothing = zero(dropout.features, step)
    c0 = ((key + nothing) // 4 + (keys >> 4) * 4 + ((keys & 6) >> 1)).to(tl.uint32) + dropout.of_keys
    c1 = ((row + nothing) // 2 + (rows >> 4) * 8 + (rows & 7)).to(tl.uint32) + dropout.of_rows
    return words_of(dropout.seed + nothing.to(tl.uint32), c0, c1)


@triton.jit
def kept(p, dropout, row, key, rows, keys, step):
    """The weights `p` that are kept, before their scale, and zeros in place of the others. Of the rest see `drawn`."""
    if has(dropout.features, DROPOUT, step):
        w0, w1 = drawn(dropout, row, key, rows, keys, step)
        word = tl.where((rows & 8) != 0, w1, w0)
        word = tl.where((keys & 8) != 0, (word >> 8) | (word << 24), word)
        bits = tl.where((keys & 1) != 0, word << 1, word << 17)  # and others behind them, which decide nothing
        p = tl.where(bits >= (dropout.threshold.to(tl.uint32) << 17), p, 0.0)
    return p
