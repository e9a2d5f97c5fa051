"""Sequence: where the rows of one sequence lie in tensors of queries and keys, and how many of them count."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.bundle import bundle
from aotriton.tritonsrc.flash.lib.features import FULL, OWN_LAST, PACKED, USED_K, USED_Q
from aotriton.tritonsrc.flash.lib.tile import Heads, load_tile, store_tile

# By descriptor, images of less than FULL features and of up to MOST_COLUMNS have registers for sequences that end where
# their tensors do not. Calls that have such sequences and need more take pointers: see v2src/flash/band.cc.
MOST_COLUMNS = tl.constexpr(128)


@triton.constexpr_function
def sequences_end(LEVEL, ADDRESSING):
    """Whether sequences of an image's calls may end where their tensors do not."""
    return ADDRESSING != "descriptor" or LEVEL != FULL


@triton.constexpr_function
def loops(LEVEL, ADDRESSING, COLUMNS):
    """How many loops go through a tile's steps: see steps_of."""
    return 2 if ADDRESSING == "descriptor" and LEVEL != FULL and COLUMNS <= MOST_COLUMNS else 1


@triton.constexpr_function
def works_out_again(ADDRESSING):
    """Whether loops work out in each step what is the same in all of them. With general addressing each element has a
    mask of its own, and those of two head dims do not fit in registers.
    """
    return ADDRESSING == "general"


@bundle
class Side:
    """Its first row in the tensor, its rows, and those of them that are `used`: the others are hidden."""

    begin: tl.tensor
    rows: tl.tensor
    used: tl.tensor


@bundle
class Sequence:
    """Queries and keys of one sequence, and its band: row i sees the keys from i + lo to i + hi."""

    index: tl.tensor
    batch: tl.tensor
    q: Side
    k: Side
    lo: tl.tensor
    hi: tl.tensor


@bundle
class Rows:
    """The rows of a sequence in a [batch, heads, seqlen, head_dim] tensor. ``begin`` is the first one's place in what
    `heads` is: a descriptor is of the whole tensor, a pointer is to the first row.
    """

    heads: Heads
    begin: tl.tensor


@triton.jit
def _side_of(index, CuSeqlens, Seqused, features, seqlen, USED: tl.constexpr, END: tl.constexpr):
    """A side whose tensor has ``seqlen`` rows. ``USED`` is the bit of `features` that Seqused is given."""
    begin = seqlen * 0
    rows = seqlen
    used = seqlen
    if END:
        if (features & PACKED) != 0:
            begin = tl.load(CuSeqlens + index)
            rows = tl.load(CuSeqlens + index + 1) - begin
        used = rows
        if (features & USED) != 0:
            used = tl.minimum(tl.load(Seqused + index), rows)
    return Side(begin, rows, used)


@triton.jit
def sequence_of(
    index, features, lo, hi, CuSeqlensQ, CuSeqlensK, SequsedQ, SequsedK, max_seqlen_q, max_seqlen_k, END: tl.constexpr,
):  # fmt: skip
    """Sequence ``index`` of a call. Relative to its last key, the ends of the band move with the lengths in use.

    ``END``: see sequences_end.
    """
    q = _side_of(index, CuSeqlensQ, SequsedQ, features, max_seqlen_q, USED_Q, END)
    k = _side_of(index, CuSeqlensK, SequsedK, features, max_seqlen_k, USED_K, END)
    batch = index
    if END:
        batch = tl.where((features & PACKED) != 0, 0, index)
        if (features & OWN_LAST) != 0:
            lo += k.used - q.used
            hi += k.used - q.used
    return Sequence(index, batch, q, k, lo, hi)


@triton.jit
def rows_read(tensor, stride_b, stride_h, stride_s, side, head_dim, ADDRESSING: tl.constexpr):
    """The rows of a side that count, to load."""
    if ADDRESSING == "descriptor":
        return Rows(Heads(tensor, stride_b, stride_h, stride_s, side.used, head_dim), side.begin)
    else:
        first = tensor + side.begin.to(tl.int64) * stride_s
        return Rows(Heads(first, stride_b, stride_h, stride_s, side.used, head_dim), 0)


@triton.jit
def load_rows(x, batch, head, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDRESSING: tl.constexpr):
    """[ROWS, COLUMNS] elements from row ``row`` of the sequence on. Rows behind the last that counts are zero by
    pointer; by descriptor they are what the tensor has there, maybe no numbers.
    """
    return load_tile(x.heads, batch, head, x.begin + row, ROWS, COLUMNS, ADDRESSING)


@triton.jit
def own_rows(tile, side, row, ROWS: tl.constexpr):
    """The tile from row ``row`` on, with zeros in place of rows that do not count: zero times no number is none."""
    return tl.where((tl.arange(0, ROWS) < side.used - row)[:, None], tile, 0.0)


@triton.jit
def steps_of(BEHIND: tl.constexpr, first, after, side, features, STEP: tl.constexpr, ADDRESSING: tl.constexpr):
    """Where a loop begins and ends, of two that share the steps from `first`, a multiple of STEP, to before `after`.

    By descriptor, steps that reach BEHIND the rows that count have a loop of their own: what they set to zero goes
    through registers, where products cannot read it. By pointer the first loop has all steps.
    """
    if ADDRESSING == "descriptor":
        inside = tl.minimum(tl.maximum(side.used // STEP * STEP, first), after)
        if (features & (PACKED | USED_Q | USED_K)) == 0:
            inside = after  # behind the whole tensor a descriptor loads zeros
        if BEHIND:
            first = inside
        else:
            after = inside
    return first, after


@triton.jit
def store_rows(
    tensor, stride_b, stride_h, stride_s, side, head_dim, values, batch, head, row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, END: tl.constexpr,
):  # fmt: skip
    """Writes [ROWS, COLUMNS] ``values`` from row ``row`` of the sequence on, and nothing behind its last row: by
    pointer, as a descriptor ends where the tensor does, but where sequences END there, too.
    """
    if END:
        first = tensor + side.begin.to(tl.int64) * stride_s
        heads = Heads(first, stride_b, stride_h, stride_s, side.rows, head_dim)
        store_tile(heads, values, batch, head, row, ROWS, COLUMNS, "general")
    else:
        heads = Heads(tensor, stride_b, stride_h, stride_s, side.rows, head_dim)
        store_tile(heads, values, batch, head, row, ROWS, COLUMNS, "descriptor")
