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
    """With what the library reaches of the bound, and the peers that took part."""
    cell = latent.Cell(8, 16, 1, 8192)
    record: dict[str, Any] = {"copy_tb_s": 2.0, "product_tflop_s": 500.0}
    us = latent.bound(cell, record)
    times = {LIBRARY: us / 0.5, latent.PAGED: us / 0.25, "torch": 90.0}
    record["rows"] = [{"cell": vars(cell), "us": times}]
    line = latent.table(record).splitlines()[-1]
    assert line.startswith("| 8 × 16 heads, 1 query on 8,192 keys |")
    assert "| 0.50 |" in line
    assert "| 0.25 |" in line
    assert line.endswith("| torch 90.0 |")
