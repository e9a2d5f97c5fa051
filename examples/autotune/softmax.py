"""Tunes a softmax in Triton: python examples/autotune/softmax.py, on a machine with a GPU."""

import triton
import triton.language as tl

import aotriton


def reference(x):
    return x.softmax(-1)


@aotriton.autotune(
    inputs={"x": "bf16[rows, columns]"},
    results={"out": "bf16[rows, columns]"},
    sizes={"rows": 4096, "columns": (1024, 8192)},
    reference=reference,
    grid="rows",
    space={"BLOCK": (256, 512, 1024, 2048), "num_warps": (1, 2, 4, 8)},
)
@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    """A program a row, which it walks twice in blocks: for the maximum and the sum, then for the results."""
    x += tl.program_id(0).to(tl.int64) * columns
    out += tl.program_id(0).to(tl.int64) * columns
    offsets = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        value = tl.load(x + start + offsets, mask=start + offsets < columns, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, value)
        total = total * tl.exp(largest - larger) + tl.exp(value - larger)
        largest = larger
    top = tl.max(largest, 0)
    total = tl.sum(total * tl.exp(largest - top), 0)
    for start in range(0, columns, BLOCK):
        inside = start + offsets < columns
        value = tl.load(x + start + offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + start + offsets, (tl.exp(value - top) / total).to(out.dtype.element_ty), mask=inside)


if __name__ == "__main__":
    for one in softmax.winners:
        print(one.sizes, one.config, f"{one.median_us:.1f} us")
