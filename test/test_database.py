"""The tuning database: nothing lost or doubled, whatever happens to the processes and files around it."""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aotriton.rules import database as module
from aotriton.rules.binning import TuningKey, bin_text
from aotriton.rules.database import Measurement, TuningDatabase, TuningDatabaseError, Winner

ROOT = Path(__file__).resolve().parent.parent
BIN = "max_seqlen_q=512 max_seqlen_k=512 waves=8"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.sqlite3"


def begin(database: TuningDatabase) -> int:
    return database.begin_session(
        device="stand-in", driver="1", triton="3.6.0", torch="2", arch="sm_90", multiprocessors=132, options=""
    )


def problem(database: TuningDatabase, bin: str = BIN, heads: int = 4) -> int:
    return database.problem_id("sm_90", "attn_fwd", "T=bf16", bin, {"batch": 1, "heads": heads})


def winner(provenance: str = "measured", bin: str = BIN, image: str = "attn_fwd_sm_90_1") -> Winner:
    runners_up = (("BLOCK_M=128 num_warps=4", 12.5),)
    return Winner(
        "sm_90", "attn_fwd", "T=bf16", bin, image, {"BLOCK_M": 64}, {"num_warps": 4}, provenance, "", 10.0, runners_up
    )


def write_rows(path: Path, writer: int, count: int, acknowledge: Callable[[str], object] = str) -> None:
    """``count`` measurements of images of its own, on a problem that all writers share; acknowledges each."""
    with TuningDatabase(path) as database:
        session, shared = begin(database), problem(database)
        for number in range(count):
            image = database.image_id(f"image_{writer}_{number}", f"BLOCK_M={number}")
            database.record(Measurement(shared, image, session, "sweep", "ok", 10.0 + number, [10.0] * 8, 1e-3, 2e-3))
            acknowledge(f"image_{writer}_{number}")


def test_bins_are_spelled_key_by_key() -> None:
    """A bin is spelled key by key, in the table's order."""
    keys = TuningKey("rows", (64, 512)), TuningKey("waves", (1, 8))
    assert bin_text(keys, (64, 8)) == "rows=64 waves=8"


def test_medians_prefer_the_race_and_the_latest_session(path: Path) -> None:
    """Of one image the latest session counts, and in it the race; what failed last has no median."""
    with TuningDatabase(path) as database:
        one, two = begin(database), begin(database)
        row = problem(database)
        images = [database.image_id(f"image_{number}", f"BLOCK_M={number}") for number in range(4)]
        database.record(Measurement(row, images[0], one, "sweep", "ok", 10.0, [10.0]))
        database.record(Measurement(row, images[0], one, "race", "ok", 11.0, [11.0]))
        database.record(Measurement(row, images[1], one, "race", "ok", 12.0, [12.0]))
        database.record(Measurement(row, images[1], two, "sweep", "ok", 13.0, [13.0]))
        database.record(Measurement(row, images[2], one, "sweep", "ok", 9.0, [9.0]))
        database.record(Measurement(row, images[2], one, "race", "crashed", detail="SIGSEGV"))
        database.record(Measurement(row, images[3], one, "sweep", "wrong", error=0.5, tolerance=0.01))
        assert database.medians("sm_90", "attn_fwd") == {("T=bf16", BIN): {"BLOCK_M=0": 11.0, "BLOCK_M=1": 13.0}}
        assert database.medians("gfx942", "attn_fwd") == {}


def test_medians_never_mix_shapes(path: Path) -> None:
    """Where a bin was measured in two shapes, only the shape measured last is compared."""
    with TuningDatabase(path) as database:
        session, image = begin(database), database.image_id("a", "BLOCK_M=1")
        other = database.image_id("b", "BLOCK_M=2")
        database.record(Measurement(problem(database, heads=4), image, session, "sweep", "ok", 10.0, [10.0]))
        database.record(Measurement(problem(database, heads=8), other, session, "sweep", "ok", 20.0, [20.0]))
        assert database.medians("sm_90", "attn_fwd") == {("T=bf16", BIN): {"BLOCK_M=2": 20.0}}


def test_winners_come_back_as_they_were(path: Path) -> None:
    """Winners are equal after a round trip, and sorted by bin."""
    with TuningDatabase(path) as database:
        database.put_winners([winner(bin="b"), winner(bin="a", provenance="borrowed")])
        assert database.winners("sm_90") == [winner(bin="a", provenance="borrowed"), winner(bin="b")]
        assert database.winners("gfx942") == []


def test_only_a_measured_winner_replaces_a_measured_one(path: Path) -> None:
    """Borrowing, predicting and importing never hide a measurement; a new measurement does replace any."""
    with TuningDatabase(path) as database:
        database.put_winners([winner("predicted", image="p")])
        database.put_winners([winner("measured", image="m")])
        for provenance in ("borrowed", "predicted", "imported"):
            database.put_winners([winner(provenance, image="other")])
            assert [found.image for found in database.winners()] == ["m"]
        database.put_winners([winner("measured", image="m2")])
        assert [found.image for found in database.winners()] == ["m2"]


def test_measurements_are_append_only(path: Path) -> None:
    """UPDATE, DELETE and INSERT OR REPLACE on measurement fail; the same measurement twice does, too."""
    write_rows(path, 0, 2)
    with TuningDatabase(path) as database:
        for statement in (
            "UPDATE measurement SET median_us = 1",
            "DELETE FROM measurement",
            "INSERT OR REPLACE INTO measurement SELECT * FROM measurement LIMIT 1",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                database._db.execute(statement)
        with pytest.raises(TuningDatabaseError, match="UNIQUE"):
            database.record(Measurement(1, 1, 1, "sweep", "ok", 5.0, [5.0]))
        assert [outcome.median_us for outcome in database.outcomes()] == [10.0, 11.0]


def test_an_image_that_spills_counts_as_pruned(path: Path) -> None:
    """However fast it ran: it has no median, and its outcome decides nothing."""
    with TuningDatabase(path) as database:
        session, row = begin(database), problem(database)
        for name, spills, median in (("good", 0, 10.0), ("bad", 8, 5.0)):
            image = database.image_id(name, name, f"checksum of {name}", 255, spills, 1024)
            database.record(Measurement(row, image, session, "sweep", "ok", median, [median]))
        assert {o.image: o.status for o in database.outcomes()} == {"good": "ok", "bad": "pruned"}
        assert database.medians("sm_90", "attn_fwd") == {("T=bf16", BIN): {"good": 10.0}}


def test_a_record_of_several_is_all_or_nothing(path: Path) -> None:
    """Where one measurement of a race is refused, none of it stays."""
    write_rows(path, 0, 1)
    with TuningDatabase(path) as database:
        image = database.image_id("new", "c")
        race = Measurement(1, image, 1, "race", "ok", 1.0, [1.0]), Measurement(1, 1, 1, "sweep", "ok", 1.0, [1.0])
        with pytest.raises(TuningDatabaseError, match="UNIQUE"):
            database.record(*race)
    with TuningDatabase(path, readonly=True) as database:
        assert len(database.outcomes()) == 1


def test_image_facts_are_filled_in_once_known(path: Path) -> None:
    """An image that did not compile at first gets its checksum later, and keeps it."""
    with TuningDatabase(path) as database:
        first = database.image_id("a", "c")
        assert database.image_id("a", "c", "sha", 32, 0, 1024) == first
        assert database.image_id("a", "c") == first
        with pytest.raises(TuningDatabaseError, match="a has checksum sha, but was compiled to other"):
            database.image_id("a", "c", "other", 32, 0, 1024)
        assert database._db.execute("SELECT sha256, registers, shared FROM image").fetchone() == ("sha", 32, 1024)


def test_rows_are_compact(path: Path) -> None:
    """A measurement with 12 samples takes less than 200 bytes of the file, its share of the image table included."""
    with TuningDatabase(path) as database:
        session = begin(database)
        before = path.stat().st_size
        for number in range(40):
            row = problem(database, bin=f"max_seqlen_q={number}")
            for config in range(10):
                image = database.image_id(f"attn_fwd_sm_90_{config:016x}", f"BLOCK_M={config}", "0" * 64, 1, 2, 3)
                database.record(
                    Measurement(row, image, session, "sweep", "ok", 123.456, [123.456] * 12, 1.234567e-3, 2e-3)
                )
    assert (path.stat().st_size - before) / 400 < 200


def test_processes_that_write_at_once_lose_and_double_nothing(path: Path) -> None:
    """Four processes create, migrate and fill one file together: every row is there once."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_rows, args=(path, number, 40)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    with TuningDatabase(path, readonly=True) as database:
        names = sorted(outcome.image for outcome in database.outcomes())
    assert names == sorted(f"image_{writer}_{number}" for writer in range(4) for number in range(40))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # no -wal, no -journal


def test_a_killed_writer_leaves_every_acknowledged_row(path: Path) -> None:
    """kill -9 at any moment: the file stays sound and what was acknowledged is in it."""
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'test')!r}]\n"
        "from pathlib import Path; from test_database import write_rows\n"
        f"write_rows(Path({str(path)!r}), int(sys.argv[1]), 10**6, lambda name: print(name, flush=True))"
    )
    acknowledged: list[str] = []
    for attempt in range(6):
        child = subprocess.Popen([sys.executable, "-c", script, str(attempt)], stdout=subprocess.PIPE, text=True)
        assert child.stdout
        for _ in range(3 + 5 * attempt):
            acknowledged.append(child.stdout.readline().strip())
        child.send_signal(signal.SIGKILL)
        acknowledged += child.stdout.read().split()
        child.wait()
        with TuningDatabase(path) as database:
            assert database._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            names = [outcome.image for outcome in database.outcomes()]
        assert len(names) == len(set(names))
        assert set(acknowledged) <= set(names)


def unchanged(path: Path, readonly: bool, message: str) -> None:
    before = path.read_bytes()
    with pytest.raises(TuningDatabaseError, match=message):
        TuningDatabase(path, readonly)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_readonly_file_is_refused_for_writing_and_fine_for_reading(path: Path) -> None:
    """The permission bits count, also for root; a reader does not mind."""
    write_rows(path, 0, 1)
    path.chmod(0o444)
    unchanged(path, False, "read-only")
    with TuningDatabase(path, readonly=True) as database:
        assert len(database.outcomes()) == 1
        with pytest.raises(TuningDatabaseError, match="read-only"):
            begin(database)


@pytest.mark.parametrize("readonly", [False, True])
def test_damaged_files_are_refused_and_left_alone(path: Path, readonly: bool) -> None:
    """Text, a truncated file, a file with overwritten pages: each is named as damaged."""
    path.write_text("winner: sm_90 attn_fwd\n" * 100)
    unchanged(path, readonly, "damaged, or not a SQLite database")
    path.unlink()
    write_rows(path, 0, 60)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    unchanged(path, readonly, "damaged")
    path.write_bytes(whole[:8192] + b"\xff" * 8192 + whole[16384:])
    unchanged(path, readonly, "damaged")


@pytest.mark.parametrize("readonly", [False, True])
def test_other_and_newer_files_are_refused(path: Path, readonly: bool) -> None:
    """Another program's SQLite file is not taken over; a newer schema asks for a newer program."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE winner (name TEXT)")
    connection.close()
    unchanged(path, readonly, "not a tuning database")
    path.unlink()
    TuningDatabase(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(module.MIGRATIONS) + 1}")
    connection.close()
    unchanged(path, readonly, "newer than this program's")


def test_missing_places_are_named(tmp_path: Path) -> None:
    """No folder, no file for a reader, a folder in place of the file: nothing is created."""
    with pytest.raises(TuningDatabaseError, match="does not exist"):
        TuningDatabase(tmp_path / "none" / "a.sqlite3")
    with pytest.raises(TuningDatabaseError, match="no such file"):
        TuningDatabase(tmp_path / "a.sqlite3", readonly=True)
    with pytest.raises(TuningDatabaseError, match="a folder"):
        TuningDatabase(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_older_schema_is_migrated_with_its_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer adds the steps that are missing, a reader is told that it cannot; a failing step changes nothing."""
    write_rows(path, 0, 3)
    step = "ALTER TABLE session ADD COLUMN host TEXT NOT NULL DEFAULT 'unknown';"
    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, step + "\nSELECT no_such_function();"))
    unchanged(path, False, "no_such_function")
    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS[:-1], step))
    unchanged(path, True, "older than 2")
    with TuningDatabase(path) as database:
        assert len(database.outcomes()) == 3
        assert database._db.execute("SELECT host FROM session").fetchone() == ("unknown",)
        assert database._db.execute("PRAGMA user_version").fetchone() == (2,)
    monkeypatch.undo()
    unchanged(path, True, "version 2, newer")


def test_the_dump_is_stable_text_with_winners_first(path: Path) -> None:
    """git's textconv: one line a row, winners sorted and first, images by name; an unreadable file is an error."""
    write_rows(path, 0, 2)
    with TuningDatabase(path) as database:
        database.put_winners([winner(bin="b"), winner(bin="a")])
    dump = [sys.executable, "-S", "-E", str(ROOT / "rules" / "dump.py"), str(path)]  # -S: no site-packages
    lines = subprocess.run(dump, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == "schema version 1"
    assert [line.split(":")[0] for line in lines[1:]] == (
        ["winner", "winner", "session", "problem", "image", "image", "measurement", "measurement"]
    )
    assert "| bin a |" in lines[1]
    assert "provenance measured" in lines[1]
    assert "| bin b |" in lines[2]
    assert lines[-1] == (
        "measurement: id 2 | problem 1 | image image_0_1 (BLOCK_M=1) | session 1 | phase sweep | status ok"
        " | median_us 11.0 | samples [10,10,10,10,10,10,10,10] | error 0.001 | tolerance 0.002"
    )
    assert subprocess.run(dump, capture_output=True, text=True, check=True).stdout.splitlines() == lines
    path.write_text("not a database, but long enough to be taken for the header of one" * 20)
    assert subprocess.run(dump, capture_output=True).returncode == 1
