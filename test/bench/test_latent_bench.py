"""The benchmark of latent caches without a GPU: its cells, its measure, and the table of a record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import latent  # it is no package
from attention import WARM_UP
from contenders import LIBRARY

from aotriton.rules.flash.features import LATENT_DIMS

SLOW, GPU_SECONDS = 1e12, 60  # bytes per second; of all cells


def test_cells_are_of_the_library_and_take_less_than_a_minute() -> None:
    """They have its head dims, keys that fill pages, and each is another one."""
    assert (latent.DIM, latent.DIM_V) == LATENT_DIMS
    assert len(set(latent.CELLS)) == len(latent.CELLS)
    assert all(cell.keys % latent.PAGE == 0 for cell in latent.CELLS)
    moved = sum(cell.bytes for cell in latent.CELLS)
    assert moved / SLOW * len(latent.MAKERS) * (latent.ROUNDS + WARM_UP) < GPU_SECONDS


def test_the_bound_is_memory_or_tensor_cores() -> None:
    """Few heads wait for keys, many for products."""
    record: dict[str, Any] = {"copy_tb_s": 2.0, "product_tflop_s": 500.0}
    few, many = (latent.Cell(8, heads, queries, 8192) for heads, queries in ((16, 1), (128, 4)))
    assert latent.bound(few, record) == few.bytes / 2e6 > few.flops / 500e6
    assert latent.bound(many, record) == many.flops / 500e6 > many.bytes / 2e6
    assert few.bytes == 2 * 8 * (8192 * 576 + 16 * (576 + 512))
    assert many.flops == 2 * 8 * 128 * 4 * 8192 * (576 + 512)


def test_the_table_has_a_line_for_each_cell() -> None:
    """With what the library reaches of the bound, the peers that took part, and the best of them. The worst is first,
    and what has no peer is last.
    """
    cells = [latent.Cell(8, 16, queries, 8192) for queries in (1, 2, 4)]
    record: dict[str, Any] = {"copy_tb_s": 2.0, "product_tflop_s": 500.0, "rows": []}
    for cell, beside in zip(cells, ({}, {"torch": 0.9, "FA3": 0.6}, {"torch": 0.4}), strict=True):
        us = latent.bound(cell, record)
        times = {LIBRARY: us / 0.5, latent.PAGED: us / 0.25} | {who: us / 0.5 * one for who, one in beside.items()}
        record["rows"].append({"cell": vars(cell), "us": times})
    titles, rule, *lines = latent.table(record).splitlines()
    assert {line.count("|") for line in (titles, rule, *lines)} == {8}
    assert [line.split(" heads, ")[1].split(" on")[0] for line in lines] == ["4 queries", "2 queries", "1 query"]
    assert all("| 0.50 |" in line and "| 0.25 |" in line for line in lines)
    assert [line.split(" | ")[-1] for line in lines] == ["0.40 |", "0.60 |", "– |"]
    assert lines[2].endswith("| none | – |")
    assert latent.ratio(record["rows"][1], latent.PAGED) == 0.3
