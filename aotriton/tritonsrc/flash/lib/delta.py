"""Delta of the backward: the dot products of rows of Out and DO."""

import triton
import triton.language as tl

from aotriton.tritonsrc.flash.lib.tile import head_rows, load_tile


@triton.jit
def store_delta(
    Out,
    DO,
    Delta,
    batch,
    head,
    row,
    stride_out_b,
    stride_out_h,
    stride_out_s,
    stride_do_b,
    stride_do_h,
    stride_do_s,
    num_heads,
    seqlen,
    head_dim,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Of ROWS rows of one head, from row ``row`` on, to contiguous [batch, num_heads, seqlen] Delta."""
    out = load_tile(
        Out, batch, head, row, stride_out_b, stride_out_h, stride_out_s, seqlen, head_dim, ROWS, COLUMNS, ADDRESSING
    )  # fmt: skip
    dout = load_tile(
        DO, batch, head, row, stride_do_b, stride_do_h, stride_do_s, seqlen, head_dim, ROWS, COLUMNS, ADDRESSING
    )  # fmt: skip
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    rows = row + tl.arange(0, ROWS)
    tl.store(head_rows(Delta, batch, head, num_heads, seqlen) + rows, delta, mask=rows < seqlen)
