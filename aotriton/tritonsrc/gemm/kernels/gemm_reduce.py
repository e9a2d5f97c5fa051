"""Second half of a GEMM whose last tiles are split along K: sums the parts of a tile and writes it to D.

The parts are added in their order, so that D is the same bit by bit from run to run.
"""

import triton
import triton.language as tl

from aotriton.tritonsrc.gemm.lib.tile import GROUP_M, activate, tile_at


@triton.jit
def gemm_reduce(
    Partial,
    D,
    Bias,
    alpha,
    activation,
    bias_stride_m,
    bias_stride_n,
    stride_d_b,
    stride_d_m,
    M,
    N,
    tile_m,
    tile_n,
    whole_tiles,
    splits,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid: one program for each ROWS x COLUMNS of each split tile, tile_m * tile_n // (ROWS * COLUMNS) * split tiles.

    Partial: fp32 [split tiles, splits, tile_m, tile_n], from gemm_hopper_split, which tells of whole_tiles, splits and
    `Bias`; tile_m and tile_n, rows and columns of its tiles, are multiples of ROWS and COLUMNS. D: [batch, M, N] with
    contiguous rows.
    """
    across = tile_n // COLUMNS
    pieces = tile_m // ROWS * across
    part = tl.program_id(0) // pieces
    piece = tl.program_id(0) % pieces
    m, n, batch = tile_at(whole_tiles + part, tl.cdiv(M, tile_m), tl.cdiv(N, tile_n), GROUP_M)
    piece_row = piece // across * ROWS
    piece_column = piece % across * COLUMNS
    row = m * tile_m + piece_row
    column = n * tile_n + piece_column
    if (row < M) & (column < N):
        rows = row + tl.arange(0, ROWS)
        columns = column + tl.arange(0, COLUMNS)
        origin = Partial + part.to(tl.int64) * splits * tile_m * tile_n + piece_row * tile_n + piece_column
        offsets = tl.arange(0, ROWS)[:, None] * tile_n + tl.arange(0, COLUMNS)[None, :]
        written = (rows < M)[:, None]
        x = tl.zeros([ROWS, COLUMNS], tl.float32)
        for split in range(0, splits, 4):  # four loads at a time, so that they wait together
            first = origin + split * tile_m * tile_n
            x0 = tl.load(first + offsets, mask=written)
            x1 = tl.load(first + tile_m * tile_n + offsets, mask=written & (split + 1 < splits), other=0.0)
            x2 = tl.load(first + 2 * tile_m * tile_n + offsets, mask=written & (split + 2 < splits), other=0.0)
            x3 = tl.load(first + 3 * tile_m * tile_n + offsets, mask=written & (split + 3 < splits), other=0.0)
            x = x + x0 + x1 + x2 + x3
        x *= alpha
        if bias_stride_n != 0:
            x += tl.load(Bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
        if bias_stride_m != 0:
            x += tl.load(Bias + rows, mask=rows < M, other=0.0).to(tl.float32)[:, None]
        x = activate(x, activation).to(D.dtype.element_ty)
        d = D + batch.to(tl.int64) * stride_d_b + rows[:, None] * stride_d_m + columns[None, :]
        tl.store(d, x, mask=written & (columns < N)[None, :])
