"""GEMM for any GPU: one program turns BLOCK_M rows of A and BLOCK_N columns of B into a tile of D."""

import triton
import triton.language as tl

from aotriton.tritonsrc.gemm.lib.tile import activate, tile_at


@triton.jit
def load_operand(
    tensor, batch, row, column, stride_b, stride_r, stride_c, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDRESSING: tl.constexpr, TRANS: tl.constexpr, MASK_ROWS: tl.constexpr,
    MASK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """[ROWS, COLUMNS] elements of a [batch, rows, columns] operand, zero outside.

    TRANS: its descriptor is of [batch, columns, rows]. A dimension without a mask must hold the whole tile.
    """
    if ADDRESSING == "descriptor":
        if TRANS:
            return tensor.load([batch, column, row]).reshape(COLUMNS, ROWS).T
        else:
            return tensor.load([batch, row, column]).reshape(ROWS, COLUMNS)
    else:
        r = tl.arange(0, ROWS)[:, None]
        c = tl.arange(0, COLUMNS)[None, :]
        origin = tensor + batch * stride_b + row * stride_r + column * stride_c
        inside = tl.full([ROWS, COLUMNS], True, tl.int1)
        if MASK_ROWS:
            inside &= r < rows - row
        if MASK_COLUMNS:
            inside &= c < columns - column
        return tl.load(origin + r * stride_r + c * stride_c, mask=inside, other=0.0)


@triton.jit
def products(
    A, B, batch, row, column, stride_a_b, stride_a_m, stride_a_k, stride_b_b, stride_b_k, stride_b_n, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, ADDRESSING: tl.constexpr,
):  # fmt: skip
    """The tile of A @ B at [row, column], fp32."""
    accumulator = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    whole = tl.cdiv(K, BLOCK_K) * BLOCK_K if ADDRESSING == "descriptor" else K // BLOCK_K * BLOCK_K
    for k in range(0, whole, BLOCK_K):
        a = load_operand(
            A, batch, row, k, stride_a_b, stride_a_m, stride_a_k, M, K, BLOCK_M, BLOCK_K, ADDRESSING, TRANS_A,
            True, False,
        )  # fmt: skip
        b = load_operand(
            B, batch, k, column, stride_b_b, stride_b_k, stride_b_n, K, N, BLOCK_K, BLOCK_N, ADDRESSING, TRANS_B,
            False, True,
        )  # fmt: skip
        accumulator = tl.dot(a, b, accumulator)
    if ADDRESSING != "descriptor" and whole < K:  # a mask in the loop would keep its loads from being wide
        a = load_operand(
            A, batch, row, whole, stride_a_b, stride_a_m, stride_a_k, M, K, BLOCK_M, BLOCK_K, ADDRESSING, TRANS_A,
            True, True,
        )  # fmt: skip
        b = load_operand(
            B, batch, whole, column, stride_b_b, stride_b_k, stride_b_n, K, N, BLOCK_K, BLOCK_N, ADDRESSING, TRANS_B,
            True, True,
        )  # fmt: skip
        accumulator = tl.dot(a, b, accumulator)
    return accumulator


@triton.jit
def gemm(
    A,
    B,
    D,
    Bias,
    alpha,
    activation,
    bias_stride_m,
    bias_stride_n,
    stride_a_b,
    stride_a_m,
    stride_a_k,
    stride_b_b,
    stride_b_k,
    stride_b_n,
    stride_d_b,
    stride_d_m,
    stride_d_n,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    TRANS_A: tl.constexpr,
    TRANS_B: tl.constexpr,
    ADDRESSING: tl.constexpr,
):
    """Grid: cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N) * batch programs. D = act(alpha * A @ B + Bias).

    A [batch, M, K], B [batch, K, N], D [batch, M, N] by any strides, in elements. Where ADDRESSING is not "general",
    k of A, n of B and n of D are contiguous, but m of A with TRANS_A and k of B with TRANS_B. Their descriptors are of
    the tensors as they are stored, so [batch, K, M] for A with TRANS_A and [batch, N, K] for B with TRANS_B; N is a
    multiple of 8 then, as a descriptor's store ends at a multiple of 16 bytes.
    `Bias`: a vector along n if bias_stride_n is 1, along m if bias_stride_m is 1, unread if both are 0.
    """
    if ADDRESSING != "general":
        stride_d_n = 1
        if TRANS_A:
            stride_a_m = 1
        else:
            stride_a_k = 1
        if TRANS_B:
            stride_b_k = 1
        else:
            stride_b_n = 1
    m, n, batch = tile_at(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    row = m * BLOCK_M
    column = n * BLOCK_N
    if ADDRESSING == "offset32" and (TRANS_A or not TRANS_B):
        # Loads along m or n are wide only where the compiler sees that their ends are.
        if (M % 8 == 0) & (N % 8 == 0):
            accumulator = products(
                A, B, batch, row, column, stride_a_b, stride_a_m, stride_a_k, stride_b_b, stride_b_k, stride_b_n,
                M // 8 * 8, N // 8 * 8, K, BLOCK_M, BLOCK_N, BLOCK_K, TRANS_A, TRANS_B, ADDRESSING,
            )  # fmt: skip
        else:
            accumulator = products(
                A, B, batch, row, column, stride_a_b, stride_a_m, stride_a_k, stride_b_b, stride_b_k, stride_b_n,
                M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, TRANS_A, TRANS_B, ADDRESSING,
            )  # fmt: skip
    else:
        accumulator = products(
            A, B, batch, row, column, stride_a_b, stride_a_m, stride_a_k, stride_b_b, stride_b_k, stride_b_n,
            M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, TRANS_A, TRANS_B, ADDRESSING,
        )  # fmt: skip

    x = accumulator * alpha
    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, BLOCK_N)
    if bias_stride_n != 0:
        x += tl.load(Bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    if bias_stride_m != 0:
        x += tl.load(Bias + rows, mask=rows < M, other=0.0).to(tl.float32)[:, None]
    x = activate(x, activation)
    if ADDRESSING == "descriptor":
        D.store([batch, row, column], x.to(D.dtype).reshape(1, BLOCK_M, BLOCK_N))
    else:
        d = D + batch * stride_d_b + rows[:, None] * stride_d_m + columns[None, :] * stride_d_n
        tl.store(d, x.to(D.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])
