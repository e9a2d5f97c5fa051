"""Decoding, and chunks of prompts, with keys and values of 8 bits beside those of 16, in turns in one process.

python bench/fp8_keys.py --json bench/results/h100-fp8-keys.json
python bench/fp8_keys.py --from bench/results/h100-fp8-keys.json   # the table again, without a GPU

A cache in pages has pages of 64 rows. Where FlashAttention-3 (`fa3_fwd`) is installed, it takes the same keys and
values of 8 bits, and queries of 8 bits, too, as it has no others.
"""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attention import race, rows_of
from contenders import with_workspace
from decode_calls import TOLERANCE, Call, Cell, error

ROUNDS = 31
PAGE, SCALE = 64, 1 / 64
ROWS, NARROW, PAGES, NARROW_PAGES, FA3 = "16 bits", "8 bits", "16 bits, pages", "8 bits, pages", "FA3, 8 bits"
CELLS = (
    Cell(1, 32, 8, 1, 32768, 128),
    Cell(1, 64, 8, 1, 131072, 128),
    Cell(8, 32, 8, 1, 8192, 128),
    Cell(8, 64, 8, 1, 32768, 128),
    Cell(16, 8, 8, 1, 8192, 64),
    Cell(32, 32, 8, 1, 16384, 64),
    Cell(4, 16, 8, 1, 16384, 256),
    Cell(16, 16, 2, 1, 32768, 256),
    Cell(64, 32, 8, 1, 4096, 128),
    Cell(128, 28, 4, 1, 8192, 128),
    Cell(8, 32, 8, 4, 8192, 128),
    Cell(4, 64, 8, 4, 32768, 128),
    # Chunks of prompts
    Cell(1, 32, 8, 128, 32768, 128),
    Cell(1, 32, 8, 2048, 16384, 128),
    Cell(4, 32, 8, 512, 8192, 128),
    Cell(1, 32, 8, 512, 16384, 64),
    Cell(1, 16, 4, 512, 8192, 256),
)
FEWEST_QUERIES = 64  # of a chunk


def _given(cell: Cell) -> dict[str, dict[str, Any]]:
    """The arguments of each of the library's calls."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(cell.keys + cell.head_dim)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device="cuda")

    q = normal(cell.batch, cell.heads, cell.queries, cell.head_dim).bfloat16()
    pages = cell.batch * cell.keys // PAGE
    order = torch.randperm(pages, generator=generator, device="cuda")
    table = order.to(torch.int32).view(cell.batch, -1)
    used = torch.full((cell.batch,), cell.keys, dtype=torch.int32, device="cuda")
    scale = torch.full((cell.batch, cell.heads_k), SCALE, device="cuda")
    scales = {"k_descale": scale, "v_descale": scale}
    rows: dict[str, Any] = {}
    pools: dict[str, Any] = {}
    for name in "kv":
        rows[name] = (normal(cell.batch, cell.heads_k, cell.keys, cell.head_dim) / SCALE).to(torch.float8_e4m3fn)
        pool = torch.empty((pages, PAGE, cell.heads_k, cell.head_dim), dtype=torch.uint8, device="cuda")
        pool[order] = rows[name].view(torch.uint8).transpose(1, 2).reshape(pool.shape)
        pools[name] = pool.view(torch.float8_e4m3fn).transpose(1, 2)

    def wide(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: (one.float() * SCALE).bfloat16() for name, one in tensors.items()}

    of_pages = {"block_table": table, "seqused_k": used}
    made = {
        ROWS: wide(rows),
        NARROW: rows | scales,
        PAGES: wide(pools) | of_pages,
        NARROW_PAGES: pools | scales | of_pages,
    }
    return {name: {"q": q, "out": torch.empty_like(q), **one, **cell.mask} for name, one in made.items()}


def library(given: Mapping[str, Any]) -> Call:
    import aotriton

    arguments = with_workspace("attn_fwd", given)

    def call() -> Any:
        aotriton.attn_fwd(**arguments)
        return given["out"]

    return call


def _fa3(cell: Cell, given: Mapping[str, Any]) -> Call:
    import torch

    importlib.import_module("fa3_fwd._C")  # it registers the operator
    q, k, v = (given[name].transpose(1, 2) for name in "qkv")
    scale = given["k_descale"]
    new, starts, ends, longest, pages, rotary = [None] * 4, [None] * 3, [None] * 2, [None] * 2, [None] * 3, [None] * 3
    scales, mask = [torch.ones_like(scale), scale, scale], [cell.queries > 1, -1, -1, 0]
    tensors = [q.to(torch.float8_e4m3fn), k.contiguous(), v.contiguous()]
    call = [*tensors, *new, *starts, *ends, *longest, *pages, *rotary, *scales, cell.head_dim**-0.5, *mask, 0.0, True]
    return lambda: torch.ops.fa3_fwd.fwd(*call, None, 0, None, 0)[0].transpose(1, 2)


def measure(rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each cell: median microseconds of each call, and how far its answer is from that with 16 bits."""
    import torch

    torch.zeros(1, device="cuda")  # makes the device current for the library
    for cell in CELLS:
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
        if wrong := {name: one for name, one in row["error"].items() if name != FA3 and not one < TOLERANCE}:
            raise RuntimeError(f"{cell}: {wrong}")
        samples = race(calls, rounds)
        yield row | {"us": {name: statistics.median(samples[name]) for name in calls}}


def is_chunk(row: Mapping[str, Any]) -> bool:
    """Whether the call is a chunk of a prompt, and no decoding step."""
    return bool(row["cell"]["queries"] >= FEWEST_QUERIES)


def gain(row: Mapping[str, Any], of: str = ROWS, by: str = NARROW) -> float:
    """How many times as fast the call is with 8 bits."""
    return float(row["us"][of] / row["us"][by])


def table(record: Mapping[str, Any]) -> str:
    """Calls by what 8 bits gain, the least first."""
    lines = [
        "| call | 16 bits, µs | 8 bits, µs | gain | in pages | gain | FA3, all of 8 bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(record["rows"], key=gain):
        us = row["us"]
        fa3 = f"{us[FA3]:.1f}" if FA3 in us else ""
        lines.append(
            f"| {row['text']} | {us[ROWS]:.1f} | {us[NARROW]:.1f} | {gain(row):.2f} | {us[NARROW_PAGES]:.1f}"
            f" | {gain(row, PAGES, NARROW_PAGES):.2f} | {fa3} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    rows_of(__doc__, ROUNDS, measure, table)
