"""Dropout in the walk of a Hopper backward.

A weight of 16 bits that is dropped becomes minus zero, so that nothing else need be kept of it until its score's
gradient is known.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.flash.lib.accumulators import halves, joined
from aotriton.tritonsrc.flash.lib.features import DROPOUT, has
from aotriton.tritonsrc.flash.lib.noted_dropout import FEATURES, marked_of_keys
from aotriton.tritonsrc.flash.lib.notes import noted


@gluon.jit
def marked(p, numbers, heads, row, first_key: gl.constexpr, AT_ONCE: gl.constexpr):
    """Weights of 16 bits, [keys, queries], with minus zero in place of those that are dropped: of queries from `row`
    on, of the head that is so many `heads` behind the tile's first one, and of keys from the tile's key number
    `first_key` on. Random numbers are drawn for AT_ONCE queries, a multiple of 16, at once.
    """
    if p.shape[1] > AT_ONCE:
        first, second = halves(p)
        first = marked(first, numbers, heads, row, first_key, AT_ONCE)
        second = marked(second, numbers, heads, row + second.shape[1], first_key, AT_ONCE)
        return joined(first, second)
    else:
        if has(noted(numbers, FEATURES), DROPOUT, row):
            p = marked_of_keys(p, numbers, heads, row, first_key)
        return p
