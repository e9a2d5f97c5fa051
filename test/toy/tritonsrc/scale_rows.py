"""Rows of x times the sum of w's rows."""

import triton
import triton.language as tl

from toy.tritonsrc.weight import sum_rows


@triton.jit
def scale_rows(
    X,
    W,
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
    stride_w_t,
    stride_w_c,
    taps,
    num_rows,
    width,
    BLOCK_M: tl.constexpr,
    UNROLL: tl.constexpr,
    BLOCK_DMODEL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid (cdiv(num_rows, BLOCK_M), heads, batch)."""
    row = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    batch = tl.program_id(2)
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_DMODEL)
    visible = (rows[:, None] < num_rows - row) & (columns[None, :] < width)
    if ADDRESSING == "descriptor":
        x = X.load([batch, head, row, 0]).reshape(BLOCK_M, BLOCK_DMODEL)
    else:
        origin = X + batch * stride_x_b + head * stride_x_h + row * stride_x_s
        x = tl.load(origin + rows[:, None] * stride_x_s + columns[None, :], mask=visible, other=0.0)
    weight = sum_rows(W, 0, taps, stride_w_t, stride_w_c, width, BLOCK_DMODEL, UNROLL)
    y = factor * times * x.to(tl.float32) * weight[None, :]
    if HAS_BIAS:
        y += tl.load(Bias + batch * tl.num_programs(1) + head)
    origin = Y + batch * stride_y_b + head * stride_y_h + row * stride_y_s
    tl.store(origin + rows[:, None] * stride_y_s + columns[None, :], y.to(Y.dtype.element_ty), mask=visible)
