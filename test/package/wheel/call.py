"""A call on a GPU by a Python that has the wheel and nothing else: attention, checked against the formula.

``python call.py``: memory and copies are the CUDA driver's, by ctypes.
"""

from __future__ import annotations

import ctypes
import math
import random
import struct

import aotriton

HEADS, ROWS, WIDTH = 2, 48, 64
COUNT = HEADS * ROWS * WIDTH
cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *args: object) -> None:
    status = getattr(cuda, name)(*args)
    assert status == 0, f"{name}: {status}"


class Tensor:
    """[1, HEADS, ROWS, WIDTH] of fp16 on the GPU, as the binding asks of a tensor."""

    dtype, shape = "float16", (1, HEADS, ROWS, WIDTH)

    def __init__(self, values: list[float]) -> None:
        self._address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(2 * COUNT))
        data = struct.pack(f"{COUNT}e", *values)
        call("cuMemcpyHtoD_v2", self._address, data, ctypes.c_size_t(len(data)))

    def data_ptr(self) -> int:
        return self._address.value

    def stride(self) -> tuple[int, ...]:
        return (COUNT, ROWS * WIDTH, WIDTH, 1)

    def values(self) -> list[float]:
        data = ctypes.create_string_buffer(2 * COUNT)
        call("cuMemcpyDtoH_v2", data, self._address, ctypes.c_size_t(2 * COUNT))
        return list(struct.unpack(f"{COUNT}e", data.raw))


def row(of: list[float], head: int, i: int) -> list[float]:
    start = (head * ROWS + i) * WIDTH
    return of[start : start + WIDTH]


def main() -> None:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    given = [Tensor([random.gauss(0, 1) for _ in range(COUNT)]) for _ in "qkv"]
    out = Tensor([0.0] * COUNT)
    aotriton.attn_fwd(*given, out, causal=True)
    call("cuCtxSynchronize")
    q, k, v = (one.values() for one in given)
    got, worst = out.values(), 0.0
    for head in range(HEADS):
        for i in range(ROWS):
            scores = [sum(map(float.__mul__, row(q, head, i), row(k, head, j))) / 8 for j in range(i + 1)]
            weights = [math.exp(score - max(scores)) for score in scores]
            for d, value in enumerate(row(got, head, i)):
                expected = sum(w * row(v, head, j)[d] for j, w in enumerate(weights)) / sum(weights)
                worst = max(worst, abs(value - expected))
    assert worst < 0.005, worst
    print(f"aotriton {aotriton.__version__}: attention on {aotriton.product()}, off by {worst:.1e} at most")


if __name__ == "__main__":
    main()
