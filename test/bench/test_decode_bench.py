"""The benchmark of decoding without a GPU: its cells, and the tables of a record."""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import decode  # they are no package
import readme
from attention import WARM_UP
from decode_calls import PEERS, Cell
from figures.results import Results

STORED, GPU_SECONDS = 30e9, 60  # at most: bytes of a cell, and of all
SLOW = 1e12  # bytes per second: a third of what an H100 copies


def test_cells_fit_a_gpu_and_a_minute() -> None:
    """The fixed ones and those of any seed: they span the sizes, and all contenders take less than a minute."""
    cells = [*decode.CELLS, *decode.drawn(7, 500)]
    assert len(set(decode.CELLS)) == len(decode.CELLS)
    for some in (decode.CELLS, cells[len(decode.CELLS) :]):
        assert {one.heads // one.heads_k for one in some} == set(decode.GROUPS)
        assert {one.head_dim for one in some} == set(decode.HEAD_DIMS)
        assert {one.queries for one in some} == set(decode.QUERIES)
        assert {one.used for one in some} == {False, True}
        assert max(one.stored for one in some) <= STORED
    for one in cells:
        assert one.heads % one.heads_k == 0
        assert 1 <= one.batch <= decode.MOST_BATCH
        assert decode.KEYS[0] <= one.keys <= decode.KEYS[1]
    assert min(one.batch for one in decode.CELLS) == 1
    assert max(one.batch for one in decode.CELLS) == decode.MOST_BATCH
    assert {decode.KEYS[0], decode.KEYS[1]} <= {one.keys for one in decode.CELLS}
    most = sum(one.bytes for one in decode.CELLS) + decode.DRAWN * decode.MOST_DRAWN
    assert most / SLOW * (1 + len(PEERS)) * (decode.ROUNDS + WARM_UP) < GPU_SECONDS


def test_a_seed_says_which_cells_are_drawn() -> None:
    """The same ones each time, others for another seed, and none that is fixed."""
    drawn = decode.drawn(7)
    assert len(drawn) == decode.DRAWN
    assert drawn == decode.drawn(7)
    assert drawn != decode.drawn(8)
    assert not set(drawn) & set(decode.CELLS)


def test_bytes_are_of_what_counts() -> None:
    """2 bytes of each element of keys, values, queries and the answer; of used lengths, not of the room for them."""
    cell = Cell(3, 8, 2, 4, 1000, 64)
    assert cell.stored == 2 * (2 * 3 * 2 * 1000 * 64)
    assert cell.bytes == cell.stored + 2 * (2 * 3 * 8 * 4 * 64)
    used = replace(cell, batch=64, used=True)
    assert used.lengths == replace(used).lengths
    assert len(set(used.lengths)) > 32
    assert all(4 <= one <= 1000 for one in used.lengths)
    assert 150 < statistics.median(used.lengths) < 400
    assert used.bytes == 2 * 2 * 64 * (2 * sum(used.lengths) + 64 * 8 * 4) < used.stored


def row(cell: Cell, us: dict[str, float], **absent: str) -> dict[str, Any]:
    return {"cell": asdict(cell), "bytes": cell.bytes, "us": us, "absent": absent}


def record() -> dict[str, Any]:
    """A cell that leads, one that is behind, one without a peer, and a large one that was drawn."""
    cells = Cell(1, 32, 8, 1, 1024, 128), Cell(4, 32, 8, 4, 8192, 128), Cell(2, 7, 1, 1, 5000, 64, used=True)
    large = Cell(64, 32, 8, 1, 4096, 128)
    rows = [
        row(cells[0], {"aotriton": 8.0, "FA3": 12.0, "cuDNN": 10.0}, FA2="off", FA4="not installed"),
        row(cells[1], {"aotriton": 50.0, "FA3": 40.0}, cuDNN="its mask", FA2="off", FA4="not installed"),
        row(cells[2], {"aotriton": 20.0}, FA3="it is not", cuDNN="no lengths", FA2="off", FA4="not installed"),
    ]
    drawn = [row(large, {"aotriton": 400.0, "FA3": 500.0, "cuDNN": 480.0}, FA2="off", FA4="not installed")]
    machine = {"gpu": "a GPU", "torch": "2", "cudnn": "9", "fa3": "0.0.3", "fa4": "none", "date": "2026-11-26T01:00"}
    return {"machine": machine, "copy_tb_s": 4.0, "seed": 7, "rows": rows, "drawn": drawn}


def test_tables() -> None:
    """The worst first, with its best peer; the share of a copy follows from the bytes; who was absent is counted."""
    rows, copy = record()["rows"], record()["copy_tb_s"]
    assert list(map(decode.best, rows)) == ["cuDNN", "FA3", ""]
    assert [decode.ratio(one) for one in rows] == [1.25, 0.8, math.inf]
    assert decode.share(rows[0], copy) == pytest.approx(rows[0]["bytes"] / 8e-6 / 4e12)
    assert decode.speed(rows) == "1.00 ×, at worst 0.80"
    assert decode.speed(rows[2:]) == "not compared"
    assert decode.table(rows, copy).splitlines()[2:] == [
        "| 4 × 32:8 heads, 4 queries on 8,192 keys, D 128 | 50.0 | FA3 40.0 | 0.80 | 0.67 |",
        "| 1 × 32:8 heads, 1 query on 1,024 keys, D 128 | 8.0 | cuDNN 10.0 | 1.25 | 0.13 |",
        f"| 2 × 7:1 heads, 1 query on up to 5,000 keys, D 64 | 20.0 | none | – | {decode.share(rows[2], copy):.2f} |",
    ]
    assert list(decode.absences(rows)) == [
        "FA3 in 1 of 3 cells (it is not)", "cuDNN in 2 of 3 cells (its mask)", "FA4 in 3 of 3 cells (not installed)",
        "FA2 in 3 of 3 cells (off)",
    ]  # fmt: skip


def test_the_document_has_the_newest_record(tmp_path: Path) -> None:
    """What there is none of is called so; a record gives summaries of all cells, of those drawn and of large ones."""
    older = {"h100-decode"}
    results = Results(tmp_path, lambda name, record: name in older)
    text = "a\n<!-- figures: decoding -->\n<!-- end of decoding -->\nb"
    assert "Not measured yet" in readme.written(text, results)
    about = record() | {"state": {"commit": "abc1234", "images": "0badcafe"}}
    (tmp_path / "h200-decode.json").write_text(json.dumps(about))
    told = readme.written(text, results)
    assert "the best of FA3 and cuDNN for each cell" in told
    assert "a GPU, torch 2, cuDNN 9, FA3 0.0.3, 2026-11-26, commit abc1234, images 0badcafe" in told
    assert "in the geometric mean **1.06 ×, at worst 0.80**. On 1 of the 4 cells" in told
    assert "a seed (7) and which no tuning has seen: 1.20 ×, at worst 1.20." in told
    assert (
        "Cells with 256 MB of keys and values or more reach 0.67 to 0.67 of the bandwidth of a copy, 4.00 TB/s" in told
    )
    assert told.index("| 4 × 32:8") < told.index("| 1 × 32:8")
    assert "drawn: 64 × 32:8 heads, 1 query on 4,096 keys, D 128 (400.0 µs, 1.20 × cuDNN)." in told
    assert "cuDNN in 2 of 4 cells (its mask)" in told
    about["machine"] |= {"gpu": "another GPU", "date": "2026-11-27T01:00"}
    (tmp_path / "h100-decode.json").write_text(json.dumps(about))
    both = readme.written(text, results)
    assert both.startswith(told.partition("\n<!-- end of")[0])
    assert "Also on an H100 (2026-11-27, **of an older state**, commit abc1234, images 0badcafe, [result](" in both
    assert both.count("at worst 0.80") == 2
    older.clear()
    assert "another GPU, torch 2" in readme.written(text, results)
