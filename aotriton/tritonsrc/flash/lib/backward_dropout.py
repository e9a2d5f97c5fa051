"""Dropout in the walk of a Hopper backward: which weights of a step are kept.

Registers are full there. What stays the same is noted in shared memory, random numbers are drawn for few queries at
once, and a weight that is dropped becomes negative, so that nothing else need be kept of it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.accumulators import halves, joined
from aotriton.tritonsrc.flash.lib.dropout import Dropout, dropout_of, kept, scale_of
from aotriton.tritonsrc.flash.lib.notes import note, noted

AT_ONCE = gl.constexpr(32)  # queries, a multiple of 16, whose random numbers have room
# Places of notes, behind four of others.
FEATURES, SEED, SEED_HIGH, LOW, HEAD, THRESHOLD, FACTOR, KEY, NOTES = (gl.constexpr(4 + i) for i in range(9))


@gluon.jit
def note_dropout(numbers, features, probability, DropoutSeed, DropoutOffset, head, key):
    """Notes the dropout of a tile of keys from `key` on. `head`: its first query head, counted over all sequences."""
    dropout = dropout_of(features, probability, DropoutSeed, DropoutOffset, head)
    note(numbers, FEATURES, features)
    note(numbers, SEED, dropout.seed.to(gl.int32))
    note(numbers, SEED_HIGH, (dropout.seed >> 32).to(gl.int32))
    note(numbers, LOW, dropout.low.to(gl.int32, bitcast=True))
    note(numbers, HEAD, dropout.head.to(gl.int32, bitcast=True))
    note(numbers, THRESHOLD, dropout.threshold)
    note(numbers, FACTOR, scale_of(probability).to(gl.int32, bitcast=True))
    note(numbers, KEY, key)


@gluon.jit
def factor_of(numbers):
    """What weights that are kept are multiplied by."""
    return noted(numbers, FACTOR).to(gl.float32, bitcast=True)


@gluon.jit
def signed(p, numbers, heads, row, first_key: gl.constexpr):
    """Weights [keys, queries], negative where they are dropped: of queries from `row` on, of the head that is so many
    `heads` behind the tile's first one, and of keys from the tile's key number `first_key` on.
    """
    if p.shape[1] > AT_ONCE:
        first, second = halves(p)
        first = signed(first, numbers, heads, row, first_key)
        second = signed(second, numbers, heads, row + second.shape[1], first_key)
        return joined(first, second)
    else:
        LAYOUT: gl.constexpr = p.type.layout
        keys = gl.expand_dims(gl.arange(0, p.shape[0], gl.SliceLayout(1, LAYOUT)), 1)
        queries = gl.expand_dims(gl.arange(0, p.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
        low_half = noted(numbers, SEED).to(gl.uint32, bitcast=True).to(gl.int64)
        seed = (noted(numbers, SEED_HIGH).to(gl.int64) << 32) | low_half
        low = noted(numbers, LOW).to(gl.uint32, bitcast=True)
        head = (noted(numbers, HEAD) + heads).to(gl.uint32, bitcast=True)
        dropout = Dropout(noted(numbers, FEATURES), seed, low, head, noted(numbers, THRESHOLD))
        return 2.0 * kept(p, dropout, row, noted(numbers, KEY) + first_key, queries, keys, row) - p
