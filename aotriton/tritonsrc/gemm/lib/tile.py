"""What the GEMM kernels share beside the products: the order of tiles, and the activation.

For Triton and for Gluon: these functions take tensors of any layout.
"""

import triton
import triton.language as tl

GROUP_M = tl.constexpr(8)  # of gemm_hopper's tiles, which gemm_reduce has to find again
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_at(tile, tiles_m, tiles_n, group_m):
    """Row and column, in tiles, and batch of one of tiles_m * tiles_n * batch tiles.

    Tiles that are near in number share rows of A and columns of B, which so stay in the L2 cache: a matrix goes by
    bands of `group_m` rows, and a band column by column.
    """
    band = group_m * tiles_n
    batch = tile // (tiles_m * tiles_n)
    tile -= batch * tiles_m * tiles_n
    first = tile // band * group_m
    rows = tl.minimum(tiles_m - first, group_m)
    tile = tile % band
    return first + tile % rows, tile // rows, batch


@triton.jit
def erfc(z):
    """erfc(z) for z >= 0, to seven digits of its own size however small it is (W. H. Press et al., erfcc)."""
    t = 1.0 / (1.0 + 0.5 * z)
    p = 0.17087277
    p = p * t - 0.82215223
    p = p * t + 1.48851587
    p = p * t - 1.13520398
    p = p * t + 0.27886807
    p = p * t - 0.18628806
    p = p * t + 0.09678418
    p = p * t + 0.37409196
    p = p * t + 1.00002368
    p = p * t - 1.26551223
    return t * tl.exp2((p - z * z) * LOG2_E)


@triton.jit
def activate(x, activation):
    """`activation` of fp32 x: 0 none, 1 relu, 2 gelu (exact, by erf), 3 silu."""
    if activation == 1:
        x = tl.maximum(x, 0.0)
    elif activation == 2:
        below = 0.5 * erfc(tl.abs(x) * 0.7071067811865476)  # the normal distribution's, at -|x|
        x = x * tl.where(x < 0.0, below, 1.0 - below)
    elif activation == 3:
        x = x / (1.0 + tl.exp2(-LOG2_E * x))
    return x
