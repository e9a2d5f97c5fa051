"""Tiles of [batch, heads, seqlen, head_dim] tensors to and from registers, by pointer or by TMA descriptor."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.bundle import bundle


@bundle
class Heads:
    """A [batch, heads, seqlen, head_dim] tensor: a pointer with strides, or a TMA descriptor, which has its own."""

    tensor: tl.tensor
    stride_b: tl.tensor
    stride_h: tl.tensor
    stride_s: tl.tensor
    seqlen: tl.tensor
    head_dim: tl.tensor


@triton.jit
def load_tile(x, batch, head, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDRESSING: tl.constexpr):
    """[ROWS, COLUMNS] elements from row ``row`` on; those outside [seqlen, head_dim] are zero."""
    if ADDRESSING == "descriptor":
        return x.tensor.load([batch, head, row, 0]).reshape(ROWS, COLUMNS)
    else:
        # The tile's origin is a scalar and the offsets inside it do not change from tile to tile of a loop.
        rows = tl.arange(0, ROWS)
        columns = tl.arange(0, COLUMNS)
        origin = x.tensor + batch * x.stride_b + head * x.stride_h + row * x.stride_s
        mask = (rows[:, None] < x.seqlen - row) & (columns[None, :] < x.head_dim)
        return tl.load(origin + rows[:, None] * x.stride_s + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_tile(x, values, batch, head, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDRESSING: tl.constexpr):
    """Writes [ROWS, COLUMNS] ``values`` in the tensor's type from row ``row`` on; those outside are dropped."""
    if ADDRESSING == "descriptor":
        x.tensor.store([batch, head, row, 0], values.to(x.tensor.dtype).reshape(1, 1, ROWS, COLUMNS))
    else:
        rows = tl.arange(0, ROWS)
        columns = tl.arange(0, COLUMNS)
        origin = x.tensor + batch * x.stride_b + head * x.stride_h + row * x.stride_s
        mask = (rows[:, None] < x.seqlen - row) & (columns[None, :] < x.head_dim)
        tl.store(
            origin + rows[:, None] * x.stride_s + columns[None, :], values.to(x.tensor.dtype.element_ty), mask=mask
        )


@triton.jit
def head_rows(tensor, batch, head, num_heads, seqlen):
    """Pointer to row 0 of one head of a contiguous [batch, num_heads, seqlen] tensor of any size."""
    return tensor + (batch * num_heads + head).to(tl.int64) * seqlen


@triton.jit
def load_pair(first, second, row, seqlen, ROWS: tl.constexpr, ADDRESSING: tl.constexpr):
    """[ROWS] elements of each of two vectors, from ``row`` on; those beyond seqlen are zero."""
    if ADDRESSING == "offset32":
        rows = row + tl.arange(0, ROWS)
        return (
            tl.load(first + rows, mask=rows < seqlen, other=0.0),
            tl.load(second + rows, mask=rows < seqlen, other=0.0),
        )
    else:
        # One load with an element for each of 256 threads: the compiler takes a load with fewer elements than threads
        # to be free, and makes every thread load each column it holds. Surplus copies are dropped in registers.
        COPIES: tl.constexpr = 128 // ROWS if ROWS < 128 else 1
        index = tl.arange(0, 2 * ROWS * COPIES) % (2 * ROWS)
        rows = row + index // 2
        both = tl.load(tl.where(index % 2 == 0, first, second) + rows, mask=rows < seqlen, other=0.0)
        for _ in tl.static_range(4):
            if both.shape[0] > 2 * ROWS:
                both = both.reshape(2, both.shape[0] // 2).permute(1, 0).split()[0]
        return both.reshape(ROWS, 2).split()
