"""RMS norm: one program scales ROWS rows by the root of their mean square, and by the weights."""

import triton
import triton.language as tl


@triton.jit
def rms_norm(
    X,
    Weight,
    Out,
    stride_x_r,
    stride_out_r,
    eps,
    rows,
    width,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Grid (cdiv(rows, ROWS)). WIDTH is not less than width."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row < rows) & (column < width)
    x = tl.load(X + row * stride_x_r + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / width + eps)
    weight = tl.load(Weight + column, mask=column < width, other=0.0).to(tl.float32)
    out = x * scale[:, None] * weight
    tl.store(Out + row * stride_out_r + column, out.to(Out.dtype.element_ty), mask=inside)
