"""Functions that test_autotune.py hands to ``aotriton.autotune``, with what belongs to them and what does not."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from standin_launcher import time_of  # no kernel may need it
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import aotriton

FACTOR = tl.constexpr(3.0)
OTHER = time_of
TOLD: list[object] = []


@triton.jit
def helper(value):
    return value * FACTOR


@triton.jit
def scaled(x, out, count, shift, steps, BLOCK: tl.constexpr):
    """out = 3 x + shift, ``steps`` times over."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(steps):
        tl.store(out + place, helper(tl.load(x + place, mask=place < count)) + shift, mask=place < count)


@triton.jit
def row_sum(x, out, rows, columns: tl.constexpr, ROWS: tl.constexpr):
    """A kernel that is compiled for its columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    value = tl.load(x + row[:, None] * columns + tl.arange(0, columns)[None, :], mask=row[:, None] < rows)
    tl.store(out + row, tl.sum(value.to(tl.float32), 1), mask=row < rows)


@triton.jit
def whole(x, out, columns: tl.constexpr):
    """A kernel of which all is compiled in."""
    tl.store(out + tl.arange(0, columns), tl.load(x + tl.arange(0, columns)))


@triton.jit
def needy(x, out, BLOCK: tl.constexpr):
    """It needs what an image's name would not cover."""
    tl.store(out + OTHER, tl.load(x))


@gluon.jit
def swapped(x, y, out, count, BLOCK: gl.constexpr):
    """A kernel in Gluon: y - x, whose layout it spells out."""
    layout: gl.constexpr = gl.BlockedLayout([2], [32], [gl.num_warps()], [0])
    place = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    inside = place < count
    gl.store(out + place, gl.load(y + place, mask=inside) - gl.load(x + place, mask=inside), mask=inside)


wrapped = triton.autotune([triton.Config({"BLOCK": 64})], key=["count"])(scaled)


@cache
def twice() -> float:
    return 2.0


def doubled(x, out, bias, CHUNK, num_warps=4):
    """Something that Python launches."""
    TOLD.append((x, out, bias, CHUNK, twice()))


def of_softmax(x):
    return x.softmax(-1)


def of_scaled(x, shift=0.0):
    return 3 * x + shift


def of_doubled(x, bias):
    return 2 * x + bias


def of_gluon(x, y):
    return y - x


def of_gate(gate):
    return gate


def of_rows(x):
    return x.sum(-1)


@aotriton.autotune(
    inputs={"x": "fp32[n]", "count": "n", "shift": 0.5, "steps": 1},
    results={"out": "fp32[n]"},
    sizes={"n": (1024, 4096)},
    reference=of_scaled,
    grid="cdiv(n, BLOCK)",
    space={"BLOCK": (64, 128), "num_warps": (1, 4)},
)
@triton.jit
def decorated(x, out, count, shift, steps, BLOCK: tl.constexpr):
    """The same, decorated."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, helper(tl.load(x + place, mask=place < count)) + shift, mask=place < count)


lambda_ = lambda x: 3 * x  # noqa: E731


def nested():
    def inner(x):
        return x

    return inner


INNER = nested()


def of_doubled_rightly(x, bias):
    return x + x + bias
