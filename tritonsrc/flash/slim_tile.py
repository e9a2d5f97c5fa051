"""Tiles with columns in two parts, each a power of two wide: 64 + 32 columns, or 128 + 64.

A pair is of both parts. ``COLUMNS`` are those of both: 96 or 192.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.tile import load_tile, store_tile


@triton.jit
def load_slim_tile(
    tensor,
    batch,
    head,
    row,
    stride_b,
    stride_h,
    stride_s,
    seqlen,
    head_dim,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """A pair with ROWS rows, from row ``row`` on; what is outside [seqlen, head_dim] is zero."""
    REST: tl.constexpr = COLUMNS // 3
    FIRST: tl.constexpr = COLUMNS - REST
    first = load_tile(
        tensor, batch, head, row, stride_b, stride_h, stride_s, seqlen, head_dim, ROWS, FIRST, ADDRESSING
    )  # fmt: skip
    rest = load_tile(
        tensor + FIRST, batch, head, row, stride_b, stride_h, stride_s, seqlen, head_dim - FIRST,
        ROWS, REST, ADDRESSING,
    )  # fmt: skip
    return first, rest


@triton.jit
def store_slim_tile(
    tensor,
    first,
    rest,
    batch,
    head,
    row,
    stride_b,
    stride_h,
    stride_s,
    seqlen,
    head_dim,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Writes a pair in the tensor's type from row ``row`` on; what is outside [seqlen, head_dim] is dropped."""
    REST: tl.constexpr = COLUMNS // 3
    FIRST: tl.constexpr = COLUMNS - REST
    store_tile(
        tensor, first, batch, head, row, stride_b, stride_h, stride_s, seqlen, head_dim, ROWS, FIRST, ADDRESSING
    )  # fmt: skip
    store_tile(
        tensor + FIRST, rest, batch, head, row, stride_b, stride_h, stride_s, seqlen, head_dim - FIRST,
        ROWS, REST, ADDRESSING,
    )  # fmt: skip


@triton.jit
def slim_dot(a, a_rest, b, b_rest):
    """a · bᵀ of two pairs, [rows of a, rows of b]."""
    return tl.dot(a_rest, b_rest.T, tl.dot(a, b.T))


@triton.jit
def slim_zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A pair of accumulators."""
    REST: tl.constexpr = COLUMNS // 3
    return tl.zeros([ROWS, COLUMNS - REST], tl.float32), tl.zeros([ROWS, REST], tl.float32)
