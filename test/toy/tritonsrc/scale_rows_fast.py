"""Rows of x times the sum of w's rows, on Hopper: x comes by TMA."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


@gluon.jit
def scale_rows_fast(
    X,
    W,
    Bias,
    Y,
    factor,
    times,
    stride_x_b: gl.constexpr,
    stride_x_h: gl.constexpr,
    stride_x_s: gl.constexpr,
    stride_y_b,
    stride_y_h,
    stride_y_s,
    stride_w_t,
    stride_w_c,
    taps,
    num_rows,
    width,
    BLOCK_M: gl.constexpr,
    UNROLL: gl.constexpr,
    BLOCK_DMODEL: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    ADDRESSING: gl.constexpr,
):
    """Grid (cdiv(num_rows, BLOCK_M), heads, batch). X: TMA descriptor with boxes [1, 1, BLOCK_M, BLOCK_DMODEL]."""
    COLUMNS: gl.constexpr = BLOCK_DMODEL // 8  # threads along a row
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // COLUMNS, COLUMNS], [gl.num_warps(), 1], [1, 0])
    row = gl.program_id(0) * BLOCK_M
    head = gl.program_id(1)
    batch = gl.program_id(2)
    slot = gl.allocate_shared_memory(X.dtype, [1, 1, BLOCK_M, BLOCK_DMODEL], X.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.expect(full, X.block_type.nbytes)
    tma.async_copy_global_to_shared(X, [batch, head, row, 0], full, slot)

    rows = gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, BLOCK_DMODEL, gl.SliceLayout(0, LAYOUT))
    weight = gl.zeros([BLOCK_DMODEL], gl.float32, gl.SliceLayout(0, LAYOUT))
    for tap in range(0, taps):
        weight += gl.load(W + tap * stride_w_t + columns * stride_w_c, mask=columns < width, other=0.0).to(gl.float32)
    mbarrier.wait(full, 0)
    x = slot.reshape([BLOCK_M, BLOCK_DMODEL]).load(LAYOUT).to(gl.float32)
    y = factor * times * x * gl.expand_dims(weight, 0)
    place = gl.expand_dims(row + rows, 1) * stride_y_s + gl.expand_dims(columns, 0)
    visible = (gl.expand_dims(row + rows, 1) < num_rows) & (gl.expand_dims(columns, 0) < width)
    gl.store(Y + batch * stride_y_b + head * stride_y_h + place, y.to(Y.dtype.element_ty), mask=visible)
