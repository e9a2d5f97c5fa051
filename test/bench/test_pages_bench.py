"""The benchmark of pages without a GPU: its batches, and the table of a record."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import pages  # they are no package


def test_batches_are_what_they_say() -> None:
    """A chunk ends at the last key of its sequence; decoding steps have one query."""
    for batch in (*pages.DECODING, *pages.MIXED):
        assert len(batch.queries) == len(batch.keys)
        assert all(1 <= q <= k for q, k in zip(batch.queries, batch.keys, strict=True))
        assert batch.heads % batch.heads_k == 0
        assert (max(batch.queries) == 1) == (batch in pages.DECODING)
        assert min(batch.queries) == 1
    assert len({str(one) for one in (*pages.DECODING, *pages.MIXED)}) == len(pages.DECODING) + len(pages.MIXED)


def row(batch: pages.Batch, other: dict[str, float], times: tuple[float, float, float]) -> dict[str, Any]:
    us = other | {f"pages of {size}": one for size, one in zip(pages.PAGE_SIZES, times, strict=True)}
    return {"batch": asdict(batch), "us": us, "errors": {}, "absent": {}}


def test_the_worst_row_comes_first() -> None:
    """Ratios are of the other side's time, and a row without another side has times."""
    rows = [
        row(pages.DECODING[0], {pages.CONTIGUOUS: 10.0}, (11.0, 10.0, 10.0)),
        row(pages.MIXED[0], {pages.FA3: 10.0}, (20.0, 10.0, 8.0)),
        row(pages.MIXED[1], {}, (20.0, 10.0, 8.0)),
    ]
    lines = pages.table(rows).splitlines()[2:]
    assert lines[0].endswith("| FA3 10.0 | 0.50 | 1.00 | 1.25 |")
    assert lines[1].endswith("| contiguous 10.0 | 0.91 | 1.00 | 1.00 |")
    assert lines[2].endswith("| none | 20.0 µs | 10.0 µs | 8.0 µs |")


def test_a_pool_has_the_rows_of_the_sequences() -> None:
    """Each page is where the order says, and the table finds it."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    sequences = [torch.arange(n * 6, dtype=torch.float32).reshape(n, 2, 3) + 100 * n for n in (5, 33, 16)]
    order = torch.tensor([4, 0, 2, 1, 3])
    pool, table = pages.paged(sequences, 16, order)
    assert pool.shape == (5, 16, 2, 3)
    for rows, numbers in zip(sequences, table, strict=True):
        assert torch.equal(pool[numbers.long()].flatten(0, 1)[: len(rows)], rows)
