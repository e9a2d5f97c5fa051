"""Sequence: where the rows of one sequence lie in a tensor, and how many of them count."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import PACKED
from aotriton.tritonsrc.flash.lib.tile import Heads


@bundle
class Sequence:
    """Its first row in the tensor, its rows, and those of them that are `used`: the others are hidden."""

    begin: tl.tensor
    rows: tl.tensor
    used: tl.tensor


@triton.jit
def sequence_of(
    index, CuSeqlens, Seqused, features, seqlen, USED: tl.constexpr, ADDRESSING: tl.constexpr,
):  # fmt: skip
    """Sequence ``index`` of a tensor with ``seqlen`` rows. ``USED`` is the bit of `features` that Seqused is given."""
    begin = seqlen * 0
    rows = seqlen
    used = seqlen
    if ADDRESSING != "descriptor":  # which begins at the tensor's first row, and ends at its last
        if (features & PACKED) != 0:
            begin = tl.load(CuSeqlens + index)
            rows = tl.load(CuSeqlens + index + 1) - begin
        used = rows
        if (features & USED) != 0:
            used = tl.minimum(tl.load(Seqused + index), rows)
    return Sequence(begin, rows, used)


@triton.jit
def heads_of(tensor, stride_b, stride_h, stride_s, begin, rows, head_dim, ADDRESSING: tl.constexpr):
    """A [batch, heads, rows, head_dim] view that begins at a sequence's first row."""
    if ADDRESSING == "descriptor":
        return Heads(tensor, stride_b, stride_h, stride_s, rows, head_dim)
    else:
        return Heads(tensor + begin.to(tl.int64) * stride_s, stride_b, stride_h, stride_s, rows, head_dim)


@triton.jit
def band_of(lo, hi, features, of_queries, of_keys, OWN_LAST: tl.constexpr, ADDRESSING: tl.constexpr):
    """The ends of the band of a sequence: relative to its last key, they move with the lengths that are used."""
    if ADDRESSING != "descriptor":  # noqa: SIM102 (known when compiled, as the next is not)
        if (features & OWN_LAST) != 0:
            lo += of_keys - of_queries
            hi += of_keys - of_queries
    return lo, hi
