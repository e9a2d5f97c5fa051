"""Tiles as tuples of their parts: one, whose columns are a power of two, or two, of 64 + 32 or 128 + 64 columns."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.tile import Heads, load_tile, store_tile


@triton.jit
def columns_from(x, FIRST: tl.constexpr):
    """The columns of all heads from column FIRST on."""
    return Heads(x.tensor + FIRST, x.stride_b, x.stride_h, x.stride_s, x.seqlen, x.head_dim - FIRST)


@triton.jit
def load_parts(x, batch, head, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDRESSING: tl.constexpr):
    """As load_tile, in parts."""
    if COLUMNS % 3:
        return (load_tile(x, batch, head, row, ROWS, COLUMNS, ADDRESSING),)
    else:
        REST: tl.constexpr = COLUMNS // 3
        FIRST: tl.constexpr = COLUMNS - REST
        first = load_tile(x, batch, head, row, ROWS, FIRST, ADDRESSING)
        rest = load_tile(columns_from(x, FIRST), batch, head, row, ROWS, REST, ADDRESSING)
        return first, rest


@triton.jit
def store_parts(x, parts, batch, head, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDRESSING: tl.constexpr):
    """As store_tile, of parts."""
    if COLUMNS % 3:
        store_tile(x, parts[0], batch, head, row, ROWS, COLUMNS, ADDRESSING)
    else:
        REST: tl.constexpr = COLUMNS // 3
        FIRST: tl.constexpr = COLUMNS - REST
        store_tile(x, parts[0], batch, head, row, ROWS, FIRST, ADDRESSING)
        store_tile(columns_from(x, FIRST), parts[1], batch, head, row, ROWS, REST, ADDRESSING)


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
