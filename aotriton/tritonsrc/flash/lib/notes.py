"""Notes: numbers in shared memory, left by some warps for others that have no registers for them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def notes(COUNT: gl.constexpr):
    """Shared memory for so many numbers."""
    return gl.allocate_shared_memory(gl.int32, [COUNT, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def note(numbers, place, number, WARPS: gl.constexpr = 4):
    """Writes a number, as one of so many warps that all do."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    numbers.index(place).store(gl.full([1], number, gl.int32, LAYOUT))


@gluon.jit
def noted(numbers, place, WARPS: gl.constexpr = 4):
    """Reads a number, as one of so many warps that all do."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    return gl.sum(numbers.index(place).load(LAYOUT), 0)
