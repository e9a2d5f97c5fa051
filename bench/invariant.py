"""What the hint batch_invariant costs attention's forward: calls with it and without it, in turns in one process.

python bench/invariant.py --json bench/results/h100-invariant.json
python bench/invariant.py --from bench/results/h100-invariant.json   # the table again, without a GPU
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attention import race, rows_of
from decode_calls import Cell

ROUNDS = 31
HINT = "batch_invariant"
# Decoding steps, chunks and prompts; of queries and keys that are as many, causal.
CELLS = (
    Cell(1, 32, 8, 1, 1024, 128),
    Cell(1, 32, 8, 1, 32768, 128),
    Cell(8, 32, 8, 1, 8192, 128),
    Cell(16, 8, 8, 1, 8192, 64),
    Cell(4, 16, 8, 1, 16384, 256),
    Cell(64, 32, 8, 1, 4096, 128),
    Cell(128, 28, 4, 1, 8192, 128),
    Cell(8, 32, 8, 4, 8192, 128),
    Cell(1, 32, 8, 128, 32768, 128),
    Cell(1, 32, 8, 512, 16384, 128),
    Cell(16, 16, 16, 512, 512, 128),
    Cell(4, 16, 16, 2048, 2048, 64),
    Cell(1, 32, 8, 4096, 4096, 128),
    Cell(2, 8, 8, 4096, 4096, 256),
    Cell(1, 16, 4, 16384, 16384, 128),
)


def measure(rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each cell: median microseconds and bytes of workspace, without the hint and with it."""
    import torch

    import aotriton

    torch.zeros(1, device="cuda")  # makes the device current for the library
    for cell in CELLS:
        generator = torch.Generator(device="cuda").manual_seed(cell.keys + cell.head_dim)
        of_q = cell.batch, cell.heads, cell.queries, cell.head_dim
        of_k = cell.batch, cell.heads_k, cell.keys, cell.head_dim
        sizes = {"q": of_q, "k": of_k, "v": of_k, "out": of_q}
        given: dict[str, Any] = {
            name: torch.randn(one, generator=generator, device="cuda").bfloat16() for name, one in sizes.items()
        }
        given |= cell.mask
        row: dict[str, Any] = {"cell": vars(cell), "text": str(cell), "workspace": {}}
        calls = {}
        for hints in ("", HINT):
            size = aotriton.attn_fwd_workspace_size(**given, hints=hints)
            workspace = {"workspace": torch.empty(size, dtype=torch.uint8, device="cuda")} if size else {}
            calls[hints] = partial(aotriton.attn_fwd, **given, **workspace, hints=hints)
            row["workspace"][hints] = size
        samples = race(calls, rounds)
        yield row | {"us": {hints: statistics.median(samples[hints]) for hints in calls}}


def ratio(row: Mapping[str, Any]) -> float:
    """How many times as long the call takes with the hint."""
    return float(row["us"][HINT] / row["us"][""])


def table(record: Mapping[str, Any]) -> str:
    """Calls by what the hint costs, the most first."""
    lines = ["| call | without, µs | with the hint, µs | times as long |", "|---|---|---|---|"]
    for row in sorted(record["rows"], key=ratio, reverse=True):
        us = row["us"]
        lines.append(f"| {row['text']} | {us['']:.1f} | {us[HINT]:.1f} | {ratio(row):.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    rows_of(__doc__, ROUNDS, measure, table)
