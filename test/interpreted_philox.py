"""Triton's own Philox, run by the interpreter; to be imported in a process of its own, as interpreted.py."""

from __future__ import annotations

from typing import Any

import interpreted  # before triton: it sets TRITON_INTERPRET
import numpy as np
import triton
import triton.language as tl


@triton.jit
def _words(seed: Any, counters: Any, out: Any, COUNT: tl.constexpr) -> None:
    at = tl.arange(0, COUNT)
    c0 = tl.load(counters + at)
    c1 = tl.load(counters + COUNT + at)
    c2 = tl.load(counters + 2 * COUNT + at)
    c3 = tl.load(counters + 3 * COUNT + at)
    w0, w1, w2, w3 = tl.philox(tl.load(seed), c0, c1, c2, c3, 7)
    tl.store(out + at, w0)
    tl.store(out + COUNT + at, w1)
    tl.store(out + 2 * COUNT + at, w2)
    tl.store(out + 3 * COUNT + at, w3)


def words(seed: int, counters: np.ndarray) -> np.ndarray:
    """[4, count] words of 7 rounds for [4, count] counters of 32 bits; the count is a power of two."""
    views = [interpreted.View(shape, interpreted.DTYPES[dtype], 0, tuple(range(len(shape))))
             for shape, dtype in (((1,), "i64"), (counters.shape, "i32"), (counters.shape, "i32"))]  # fmt: skip
    views[0].array[...] = seed
    views[1].array[...] = counters.astype(np.uint32).view(np.int32)
    with np.errstate(all="ignore"):
        _words[(1,)](*views, counters.shape[1])
    found: np.ndarray = views[2].array.view(np.uint32).astype(np.int64)
    return found
