"""Kernels with tensor descriptors: those that a kernel makes itself, and those that its caller passes."""

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def multiplied(a, b, c, row, column, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """The tile of c = a b^T at this row and column; all three are descriptors."""
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
    c.store([row, column], total.to(c.dtype))


@triton.jit
def persistent(
    a, b, c, M, N, K,
    PROGRAMS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """c = a b^T by so many programs, each of which makes three descriptors."""
    of_a = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    of_b = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    of_c = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    columns = tl.cdiv(N, BLOCK_N)
    for tile in range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * columns, PROGRAMS):
        row, column = tile // columns * BLOCK_M, tile % columns * BLOCK_N
        multiplied(of_a, of_b, of_c, row, column, K, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit
def softmax(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The softmax of rows, by descriptors that the kernel makes."""
    of_x = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [ROWS, COLUMNS])
    of_out = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [ROWS, COLUMNS])
    row = tl.program_id(0) * ROWS
    inside = (tl.arange(0, COLUMNS) < columns)[None, :]
    values = tl.where(inside, of_x.load([row, 0]).to(tl.float32), float("-inf"))
    powers = tl.exp(values - tl.max(values, 1)[:, None])
    of_out.store([row, 0], (powers / tl.sum(powers, 1)[:, None]).to(x.dtype.element_ty))


@triton.jit
def by_host(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """c = a b^T, of three descriptors that the caller passes."""
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    multiplied(a, b, c, row, column, K, BLOCK_M, BLOCK_N, BLOCK_K)


def set_blocks(nargs):
    """As authors do: without effect on tensors."""
    if not isinstance(nargs["a"], TensorDescriptor):
        return
    nargs["a"].block_shape = [nargs["BLOCK_M"], nargs["BLOCK_K"]]
    nargs["b"].block_shape = [nargs["BLOCK_N"], nargs["BLOCK_K"]]
    nargs["c"].block_shape = [nargs["BLOCK_M"], nargs["BLOCK_N"]]


def clear(nargs):
    nargs["c"].base.zero_()


def configs(hook):
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64}, num_warps=4, num_stages=stages, pre_hook=hook)
        for m, n, stages in ((64, 64, 2), (128, 64, 3), (128, 128, 3))
    ]


with_hooks = triton.autotune(configs(set_blocks), key=["M", "N", "K"])(by_host)
clearing = triton.autotune(configs(clear), key=["M", "N", "K"])(by_host)


@triton.jit
def scaled(x, out, BLOCK: tl.constexpr):
    """out = 2 x, in blocks of 32 rows of descriptors that the caller passes."""
    row, column = tl.program_id(0) * 32, tl.program_id(1) * BLOCK
    out.store([row, column], (2 * x.load([row, column]).to(tl.float32)).to(x.dtype))
