"""Tunes a kernel in CUDA C++: python examples/autotune/swiglu.py, on a machine with a GPU and nvcc."""

from pathlib import Path

import aotriton


def reference(gate, up):
    return gate.sigmoid() * gate * up


def tuned(**more):
    return aotriton.autotune(
        Path(__file__).with_name("swiglu.cu"),
        inputs={"gate": "bf16[rows, columns]", "up": "bf16[rows, columns]", "count": "rows * columns"},
        results={"out": "bf16[rows, columns]"},
        sizes={"rows": 4096, "columns": 8192},
        reference=reference,
        grid="cdiv(rows * columns, THREADS * WIDTH)",
        space={"THREADS": (64, 128, 256, 512), "WIDTH": (1, 2, 4, 8)},
        **more,
    )


if __name__ == "__main__":
    best = tuned()
    print(best.config, f"{best.median_us:.1f} us")
