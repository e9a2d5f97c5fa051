"""Device functions that kernels of other modules import. Which ones there are follows from the surroundings."""

from __future__ import annotations

import os

import triton
import triton.language as tl

from kernel_package import missing

try:
    import triton.no_such_module as math
except ImportError:
    import triton.language as math

WEIGHT = tl.constexpr(int(os.environ.get("KERNEL_PACKAGE_WEIGHT", "3")))
HALF = tl.constexpr(0.5)

if missing.FAST:

    @triton.jit
    def weigh(x):
        return missing.nothing(x)

else:

    @triton.jit
    def weigh(x):
        """x, weighed."""
        return x * WEIGHT + root(x * 0 + HALF)


@triton.jit
def root(x):
    return math.sqrt(x * x)


@triton.constexpr_function
def larger(a, b):
    return max(a, b)


@triton.jit(noinline=True)
def apart(x, FIRST: tl.constexpr = HALF):
    return x + FIRST
