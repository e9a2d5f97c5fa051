"""Accumulators of a warp group's product, fp32 [64, columns]: the two halves of their columns, and both together."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def halves(x):
    """The two halves of a tile's columns."""
    HALF: gl.constexpr = x.shape[1] // 2
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    first, second = x.reshape([x.shape[0], 2, HALF]).permute((0, 2, 1)).split()
    return (
        gl.convert_layout(first, LAYOUT, assert_trivial=True),
        gl.convert_layout(second, LAYOUT, assert_trivial=True),
    )


@gluon.jit
def joined(first, second):
    """A tile of two halves of its columns."""
    x = gl.join(first, second).permute((0, 2, 1)).reshape([first.shape[0], 2 * first.shape[1]])
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, x.shape[1], 16])
    return gl.convert_layout(x, LAYOUT, assert_trivial=True)
