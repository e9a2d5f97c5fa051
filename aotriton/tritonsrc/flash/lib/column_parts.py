"""Tiles as tuples of their parts: one, whose columns are a power of two, or two, of 64 + 32 or 128 + 64 columns."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.tile import load_tile, store_tile


@triton.jit
def load_parts(
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
    """As load_tile, in parts."""
    if COLUMNS % 3:
        whole = load_tile(
            tensor, batch, head, row, stride_b, stride_h, stride_s, seqlen, head_dim, ROWS, COLUMNS, ADDRESSING
        )  # fmt: skip
        return (whole,)
    else:
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
def store_parts(
    tensor,
    parts,
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
    """As store_tile, of parts."""
    if COLUMNS % 3:
        store_tile(
            tensor, parts[0], batch, head, row, stride_b, stride_h, stride_s, seqlen, head_dim,
            ROWS, COLUMNS, ADDRESSING,
        )  # fmt: skip
    else:
        REST: tl.constexpr = COLUMNS // 3
        FIRST: tl.constexpr = COLUMNS - REST
        store_tile(
            tensor, parts[0], batch, head, row, stride_b, stride_h, stride_s, seqlen, head_dim, ROWS, FIRST, ADDRESSING
        )  # fmt: skip
        store_tile(
            tensor + FIRST, parts[1], batch, head, row, stride_b, stride_h, stride_s, seqlen, head_dim - FIRST,
            ROWS, REST, ADDRESSING,
        )  # fmt: skip


@triton.jit
def zero_parts(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Accumulators of [ROWS, COLUMNS]."""
    if COLUMNS % 3:
        return (tl.zeros([ROWS, COLUMNS], tl.float32),)
    else:
        REST: tl.constexpr = COLUMNS // 3
        return tl.zeros([ROWS, COLUMNS - REST], tl.float32), tl.zeros([ROWS, REST], tl.float32)


@triton.jit
def dot_rows(a, b):
    """a · bᵀ, [rows of a, rows of b]."""
    product = tl.dot(a[0], b[0].T)
    if len(a) == 2:
        product = tl.dot(a[1], b[1].T, product)
    return product


@triton.jit
def add_dot(a, b, parts):
    """``parts`` + a · b, of which a has one part, [rows of a, columns of b]."""
    if len(b) == 1:
        return (tl.dot(a, b[0], parts[0]),)
    else:
        return tl.dot(a, b[0], parts[0]), tl.dot(a, b[1], parts[1])
