"""Kernels with the traits of public ones, each in few lines. They import what they need from their package."""

from __future__ import annotations

import triton
import triton.language as tl

from kernel_package import functions, other
from kernel_package.functions import WEIGHT, apart, larger
from kernel_package.functions import weigh as heavy


@triton.jit
def imported(x, out, n, BLOCK: tl.constexpr):
    """out = weighed x + 1.5, by functions of other modules."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size: tl.constexpr = larger(BLOCK, WEIGHT)
    value = heavy(tl.load(x + place, mask=place < n)) + apart(0.0)
    tl.store(out + place, value + size // BLOCK, mask=place < n)


@triton.jit
def by_module(x, out, n, BLOCK: tl.constexpr):
    """It reaches functions through their modules, which may change."""
    tl.store(out, functions.weigh(other.root(tl.load(x))))


def plain(x: float) -> float:
    return x


@triton.jit
def confused(x, out, n, BLOCK: tl.constexpr):
    """It calls a function of Python."""
    tl.store(out, plain(tl.load(x)))
