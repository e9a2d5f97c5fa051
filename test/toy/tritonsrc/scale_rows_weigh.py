"""First of two kernels: each split's share of w's rows to their sum."""

import triton
import triton.language as tl

from toy.tritonsrc.weight import sum_rows


@triton.jit
def scale_rows_weigh(W, Partial, stride_w_t, stride_w_c, taps, taps_of_split, width, BLOCK_DMODEL: tl.constexpr):
    """Grid (splits). Partial is contiguous [splits, width]."""
    split = tl.program_id(0)
    first = split * taps_of_split
    last = tl.minimum(first + taps_of_split, taps)
    weight = sum_rows(W, first, last, stride_w_t, stride_w_c, width, BLOCK_DMODEL, 1)
    columns = tl.arange(0, BLOCK_DMODEL)
    tl.store(Partial + split * width + columns, weight, mask=columns < width)
