"""Second of two kernels: rows of x times the sum of what the splits left."""

import triton
import triton.language as tl


@triton.jit
def scale_rows_apply(
    X,
    Partial,
    Bias,
    Y,
    factor,
    times,
    stride_x_b,
    stride_x_h,
    stride_x_s,
    stride_y_b,
    stride_y_h,
    stride_y_s,
    splits,
    num_heads,
    num_rows,
    width,
    all_rows,
    BLOCK_M: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid (cdiv(all_rows, BLOCK_M)): the rows of all heads of all batches. Partial is contiguous [splits, width]."""
    columns = tl.arange(0, BLOCK_DMODEL)
    split = tl.arange(0, MOST_SPLITS)
    summed = (split[:, None] < splits) & (columns[None, :] < width)
    weight = tl.sum(tl.load(Partial + split[:, None] * width + columns[None, :], mask=summed, other=0.0), 0)
    number = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = number // num_rows
    row = number - head * num_rows
    batch = head // num_heads
    visible = (number[:, None] < all_rows) & (columns[None, :] < width)
    of_batch = head - batch * num_heads
    place_x = batch * stride_x_b + of_batch * stride_x_h + row * stride_x_s
    place_y = batch * stride_y_b + of_batch * stride_y_h + row * stride_y_s
    x = tl.load(X + place_x[:, None] + columns[None, :], mask=visible, other=0.0)
    y = factor * times * x.to(tl.float32) * weight[None, :]
    if HAS_BIAS:
        y += tl.load(Bias + head, mask=number < all_rows, other=0.0)[:, None]
    tl.store(Y + place_y[:, None] + columns[None, :], y.to(Y.dtype.element_ty), mask=visible)
