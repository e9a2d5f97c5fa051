"""Delta of the backward: the dot products of rows of Out and DO."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.tile import head_rows, load_tile


@triton.jit
def store_delta(
    out, do, Delta, batch, head, row, num_heads,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDRESSING: tl.constexpr,
):  # fmt: skip
    """Delta of ROWS rows of a head of `out` and `do`, from `row` on, to contiguous [batch, num_heads, seqlen] Delta."""
    out_tile = load_tile(out, batch, head, row, ROWS, COLUMNS, ADDRESSING)
    do_tile = load_tile(do, batch, head, row, ROWS, COLUMNS, ADDRESSING)
    delta = tl.sum(out_tile.to(tl.float32) * do_tile.to(tl.float32), 1)
    rows = row + tl.arange(0, ROWS)
    tl.store(head_rows(Delta, batch, head, num_heads, out.seqlen) + rows, delta, mask=rows < out.seqlen)
