"""GEMM for Hopper, with whole tiles only: `multiply` of lib/hopper.py says how, and who waits for whom."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.gemm.lib.hopper import multiply


@gluon.jit
def gemm_hopper(
    A,
    B,
    D,
    Bias,
    alpha,
    activation,
    bias_stride_m,
    bias_stride_n,
    M,
    N,
    K,
    batch,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    BLOCK_K: gl.constexpr,
    CONSUMERS: gl.constexpr,
    TURNS: gl.constexpr,
    STAGES: gl.constexpr,
    SWAP: gl.constexpr,
    TRANS_A: gl.constexpr,
    TRANS_B: gl.constexpr,
):
    """D = act(alpha * A @ B + Bias). Grid: as many programs as run at once, but no more than there are tiles.

    A tile has COLUMNS columns of Y and ROWS, without TURNS CONSUMERS * ROWS, rows of X.

    A, B, D: TMA descriptors of the tensors as they are stored: [batch, M, K], or with TRANS_A [batch, K, M];
    [batch, K, N], or with TRANS_B [batch, N, K]; [batch, M, N], N a multiple of 8. Boxes are [1, rows, BLOCK_K] of X,
    ROWS rows, and of Y, COLUMNS rows, the last two sides exchanged where k is not contiguous. D's, [1, ROWS, columns],
    or with SWAP [1, columns, ROWS], says how many columns of its tile a consumer stages at a time.
    `Bias`: a vector along n if bias_stride_n is 1, along m if bias_stride_m is 1, unread if both are 0.
    """
    multiply(
        A, B, D, Bias, Bias, alpha, activation, bias_stride_m, bias_stride_n, M, N, K, batch, 0, 1,
        ROWS, COLUMNS, BLOCK_K, CONSUMERS, TURNS, STAGES, SWAP, False, TRANS_A, TRANS_B,
    )  # fmt: skip
