"""Rows of w to their sum."""

import triton
import triton.language as tl


@triton.jit
def sum_rows(W, first, last, stride_t, stride_c, width, COLUMNS: tl.constexpr, UNROLL: tl.constexpr):
    """[COLUMNS] sums of the rows from ``first`` to before ``last``; those outside of width are zero."""
    columns = tl.arange(0, COLUMNS)
    weight = tl.zeros([COLUMNS], tl.float32)
    for tap in tl.range(first, last, loop_unroll_factor=UNROLL):
        weight += tl.load(W + tap * stride_t + columns * stride_c, mask=columns < width, other=0.0)
    return weight
