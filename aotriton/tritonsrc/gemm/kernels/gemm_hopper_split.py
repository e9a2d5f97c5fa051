"""GEMM for Hopper whose last tiles are split along K: gemm_hopper, and parts of tiles that gemm_reduce sums."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from aotriton.tritonsrc.gemm.lib.hopper import multiply


@gluon.jit
def gemm_hopper_split(
    A,
    B,
    D,
    Bias,
    Partial,
    alpha,
    activation,
    bias_stride_m,
    bias_stride_n,
    M,
    N,
    K,
    batch,
    whole_tiles,
    splits,
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
    """As gemm_hopper, but of its tiles only the first whole_tiles are whole, and end in D.

    Each of the others is `splits` units of work; `splits` is at most cdiv(K, BLOCK_K). They end in
    `Partial`: fp32 [split tiles, splits, rows of D in a tile, columns of D in a tile].
    """
    multiply(
        A, B, D, Bias, Partial, alpha, activation, bias_stride_m, bias_stride_n, M, N, K, batch, whole_tiles, splits,
        ROWS, COLUMNS, BLOCK_K, CONSUMERS, TURNS, STAGES, SWAP, True, TRANS_A, TRANS_B,
    )  # fmt: skip
