"""Attention of queries, keys and values of 8 bits beside that of 16, the same calls in turns in one process.

python bench/fp8_queries.py --json bench/results/h100-fp8-queries.json
python bench/fp8_queries.py --from bench/results/h100-fp8-queries.json   # the table again, without a GPU

All are of this library, but for FlashAttention-3's (`fa3_fwd`, where it is installed), which has 8 bits. A call counts
whole, with the copy of values that the library makes of them. Its result is bf16.
"""

from __future__ import annotations

import importlib
import random
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attention import race, rows_of
from decode_calls import Call, error
from fp8_keys import library

ROUNDS = 15
ROWS, NARROW, FA3 = "16 bits", "8 bits", "FA3, 8 bits"
SCALE = 1 / 16
TOLERANCE = 0.1  # of weights in 8 bits, beside exact ones, of flat scores
SEED, DRAWN = 90210, 10  # of shapes that no tuning has seen


@dataclass(frozen=True)
class Cell:
    batch: int
    heads: int
    heads_k: int
    rows: int
    head_dim: int
    causal: bool

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"{self.batch} × {self.heads}:{self.heads_k} heads, {self.rows:,} rows, D {self.head_dim}, {mask}"

    @property
    def flops(self) -> float:
        return 4 * self.batch * self.heads * self.rows**2 * self.head_dim / (2 if self.causal else 1)


def cells() -> Iterator[Cell]:
    """16,384 tokens of 2,048 columns, and what is drawn from a seed: other lengths, groups and batches."""
    for head_dim in (128, 64, 256):
        for rows in (8192, 2048, 512):
            for causal in (False, True):
                heads = 2048 // head_dim
                yield Cell(16384 // rows, heads, heads, rows, head_dim, causal)
    draw = random.Random(SEED)
    for _ in range(DRAWN):
        group, heads_k = draw.choice((1, 2, 4, 8)), draw.randint(1, 8)
        rows, head_dim = int(2 ** draw.uniform(8, 14)), draw.choice((64, 96, 128, 128, 192, 256))
        batch = max(1, min(32, int(2e5 / rows / heads_k / group)))
        yield Cell(batch, group * heads_k, heads_k, rows, head_dim, draw.random() < 0.5)


def _given(cell: Cell) -> dict[str, dict[str, Any]]:
    """The arguments of both of the library's calls."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(cell.rows + cell.head_dim)
    scale = torch.full((cell.batch, cell.heads_k), SCALE, device="cuda")
    narrow: dict[str, Any] = {}
    for name, heads in (("q", cell.heads), ("k", cell.heads_k), ("v", cell.heads_k)):
        numbers = torch.randn((cell.batch, heads, cell.rows, cell.head_dim), generator=generator, device="cuda")
        narrow[name] = (numbers / SCALE).to(torch.float8_e4m3fn)
    wide = {name: (one.float() * SCALE).bfloat16() for name, one in narrow.items()}
    scales = {f"{name}_descale": scale for name in "qkv"}
    return {
        name: {**one, "out": torch.empty_like(wide["q"]), "causal": cell.causal}
        for name, one in ((ROWS, wide), (NARROW, narrow | scales))
    }


def _fa3(cell: Cell, given: Mapping[str, Any]) -> Call:
    import torch

    importlib.import_module("fa3_fwd._C")  # it registers the operator
    q, k, v = (given[name].transpose(1, 2).contiguous() for name in "qkv")
    scales = [given[f"{name}_descale"] for name in "qkv"]
    call = [q, k, v, *[None] * 17, *scales, cell.head_dim**-0.5, cell.causal, -1, -1, 0, 0.0, True, None, 0, None, 0]
    return lambda: torch.ops.fa3_fwd.fwd(*call)[0].transpose(1, 2)


def measure(rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each cell: median microseconds of each call, and how far its answer is from that with 16 bits."""
    import torch

    torch.zeros(1, device="cuda")  # makes the device current for the library
    for cell in cells():
        given = _given(cell)
        row: dict[str, Any] = {"cell": vars(cell), "text": str(cell), "error": {}, "left out": {}}
        calls = {name: library(one) for name, one in given.items()}
        expected = calls[ROWS]().float().clone()
        for name in (*given, FA3):
            try:
                if name == FA3:
                    calls[name] = _fa3(cell, given[NARROW])
                row["error"][name] = error(calls[name](), expected)
            except (ImportError, RuntimeError) as reason:
                row["left out"][name] = str(reason).splitlines()[0]
                calls.pop(name, None)
        if not row["error"][NARROW] < TOLERANCE:
            raise RuntimeError(f"{cell}: {row['error']}")
        samples = race(calls, rounds)
        yield row | {"flops": cell.flops, "us": {name: statistics.median(samples[name]) for name in calls}}


def times_as_fast(row: Mapping[str, Any], as_what: str) -> float | None:
    """How many times as fast as this the library is with 8 bits."""
    return float(row["us"][as_what] / row["us"][NARROW]) if as_what in row["us"] else None


def table(record: Mapping[str, Any]) -> str:
    """Calls by how fast they are beside FlashAttention-3, the slowest first."""
    lines = [
        "| call | 8 bits, µs | TFLOP/s | × 16 bits | FA3, µs | × FA3 |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(record["rows"], key=lambda one: times_as_fast(one, FA3) or 0.0):
        us, beside = row["us"], times_as_fast(row, FA3)
        fa3 = f"{us[FA3]:.1f} | {beside:.2f}" if beside else " | "
        rate = row["flops"] / us[NARROW] / 1e6
        lines.append(f"| {row['text']} | {us[NARROW]:.1f} | {rate:.0f} | {times_as_fast(row, ROWS):.2f} | {fa3} |")
    return "\n".join(lines)


if __name__ == "__main__":
    rows_of(__doc__, ROUNDS, measure, table)
