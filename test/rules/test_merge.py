"""Two tuning databases become one: nothing is lost, nothing is taken twice, and the newer timing counts."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from aotriton.rules.database import (
    Measurement,
    SequenceTiming,
    TuningDatabase,
    TuningDatabaseError,
    Winner,
    archive,
    latest_medians,
    local,
)

CELL = ("sm_90", "scale_rows", "T=bf16", "rows=64")


def tuned(
    path: Path, started: str, times: dict[str, float], sha256: str = "aa", product: str = "GPU", power: int | None = 700
) -> Path:
    """A database with one session that began at ``started``, and a winner: the fastest."""
    with TuningDatabase(path) as database:
        conditions: dict[str, Any] = {
            "device": product,
            "driver": "1",
            "triton": "3",
            "torch": "2",
            "arch": "sm_90",
            "options": "",
        }
        own = database.evidence.begin_session(multiprocessors=132, power_limit=power, **conditions)
        problem = database.evidence.problem_id(*CELL, {"rows": 64})
        for name, median in times.items():
            image = database.evidence.image_id(name, f"ROWS={ord(name)}", (sha256 + name).zfill(64))
            database.evidence.record(Measurement(problem, image, own, "sweep", "ok", median, (median,), 0.1, 0.2))
        best = min(times, key=lambda name: times[name])
        arch, kernel, functional, bin = CELL
        database.put_winners(
            [Winner(arch, product, kernel, functional, bin, best, f"ROWS={ord(best)}", "measured", "", times[best])]
        )
        database._file.execute("UPDATE evidence.session SET started = ? WHERE id = ?", [started, own])
    return path


def medians(database: TuningDatabase) -> dict[str, float]:
    (found,) = latest_medians(database.evidence.outcomes()).values()
    return {outcome.image: float(outcome.median_us or 0) for outcome in found}


def rows(path: Path) -> list[str]:
    """Of the decisions and of the evidence."""
    found = []
    for one in (path, archive.folder_of(path) / local.NAME):
        connection = sqlite3.connect(one)
        found += list(connection.iterdump())
        connection.close()
    return found


@pytest.mark.parametrize("later", [True, False])
def test_of_two_timings_the_newer_counts_whichever_was_merged(tmp_path: Path, later: bool) -> None:
    one = tuned(tmp_path / "one.sqlite3", "2026-05-02T00:00:00", {"a": 10.0, "b": 12.0})
    started = "2026-05-03T00:00:00" if later else "2026-05-01T00:00:00"
    two = tuned(tmp_path / "two.sqlite3", started, {"a": 20.0, "c": 5.0})
    with TuningDatabase(one) as database:
        assert database.merge(two, own=True) == 2
        assert medians(database) == {"a": 20.0 if later else 10.0, "b": 12.0, "c": 5.0}
        assert [winner.image for winner in database.winners()] == ["a"]  # it is decided anew, not taken over
        assert {outcome.session for outcome in database.evidence.outcomes()} == {1, 2}


def test_merging_twice_changes_nothing(tmp_path: Path) -> None:
    one = tuned(tmp_path / "one.sqlite3", "2026-05-02T00:00:00", {"a": 10.0})
    two = tuned(tmp_path / "two.sqlite3", "2026-05-03T00:00:00", {"a": 20.0, "b": 5.0})
    with TuningDatabase(one) as database:
        assert database.merge(two, own=True) == 2
    before = rows(one)
    with TuningDatabase(one) as database:
        assert database.merge(two, own=True) == 0
        assert database.merge(one, own=True) == 0
    assert rows(one) == before


def test_an_empty_database_takes_all(tmp_path: Path) -> None:
    two = tuned(tmp_path / "two.sqlite3", "2026-05-03T00:00:00", {"a": 20.0, "b": 5.0})
    untouched = two.read_bytes()
    with TuningDatabase(tmp_path / "new.sqlite3") as database:
        assert database.merge(two, own=True) == 2
        assert medians(database) == {"b": 5.0, "a": 20.0}
        assert [winner.image for winner in database.winners()] == ["b"]
        assert database.evidence.checksums() == {"a": "aaa".zfill(64), "b": "aab".zfill(64)}
    assert two.read_bytes() == untouched


def test_what_can_not_be_merged_changes_nothing(tmp_path: Path) -> None:
    """Another binary of one name, a file that is no database, or is not there: the message says which."""
    one = tuned(tmp_path / "one.sqlite3", "2026-05-02T00:00:00", {"a": 10.0})
    two = tuned(tmp_path / "two.sqlite3", "2026-05-03T00:00:00", {"b": 1.0, "a": 20.0}, sha256="bb")
    (tmp_path / "text").write_text("no database")
    before = rows(one)
    with TuningDatabase(one) as database:
        with pytest.raises(
            TuningDatabaseError, match=r"two\.sqlite3: a has checksum 0*bba, but 0*aaa in .*one\.sqlite3"
        ):
            database.merge(two, own=True)
        with pytest.raises(TuningDatabaseError, match="text: damaged, or not a SQLite database"):
            database.merge(tmp_path / "text")
        with pytest.raises(TuningDatabaseError, match=r"none\.sqlite3: there is no such file"):
            database.merge(tmp_path / "none.sqlite3")
        assert rows(one) == before
        assert database.merge(tuned(tmp_path / "three.sqlite3", "2026-05-01T00:00:00", {"c": 1.0}), own=True) == 1


def test_products_stay_apart(tmp_path: Path) -> None:
    """Each keeps its devices, timings and winners; a device that both know is one."""
    one = tuned(tmp_path / "one.sqlite3", "2026-05-02T00:00:00", {"a": 10.0, "b": 12.0}, product="One", power=None)
    two = tuned(tmp_path / "two.sqlite3", "2026-05-03T00:00:00", {"a": 20.0, "b": 5.0}, product="Two")
    three = tuned(tmp_path / "three.sqlite3", "2026-05-04T00:00:00", {"b": 6.0}, product="One", power=None)
    with TuningDatabase(one) as database:
        assert database.merge(two, own=True) == 2
        assert database.merge(three, own=True) == 1
        assert [(w.product, w.image) for w in database.winners()] == [("One", "a"), ("Two", "b")]
        assert [o.product for o in database.evidence.outcomes()] == ["One", "One", "Two", "Two", "One"]
        assert database._file.execute("SELECT product, power_limit FROM evidence.device").fetchall() == [
            ("One", None),
            ("Two", 700),
        ]


def test_samples_come_along(tmp_path: Path) -> None:
    """With their sessions, sequences and timings, none of them twice; sequences that both know are one."""
    timings = [SequenceTiming("portable", ("a", "b"), 10.0, 0.5, 20), SequenceTiming("fast", ("c",), 5.0, 0.25, 20)]
    one = tuned(tmp_path / "one.sqlite3", "2026-05-02T00:00:00", {"a": 10.0})
    two = tuned(tmp_path / "two.sqlite3", "2026-05-03T00:00:00", {"a": 20.0})
    for path, given in ((one, timings[:1]), (two, timings[::-1])):
        with TuningDatabase(path) as database:
            database.evidence.add_sample(1, "scale", "T=bf16", {"rows": 64}, given, 1980, 41)
    with TuningDatabase(one) as database:
        for _ in range(2):
            database.merge(two, own=True)
            first, second = database.evidence.samples("sm_90", "scale")
            assert (first.session, first.timings) == (1, tuple(timings[:1]))
            assert (second.session, set(second.timings)) == (2, set(timings))
        assert database._file.value("SELECT count(*) FROM sequence") == 2
        assert database._file.execute("SELECT DISTINCT sm_clock, temperature FROM sample").fetchall() == [(1980, 41)]
