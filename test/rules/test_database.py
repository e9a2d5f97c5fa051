"""The tuning database: nothing lost or doubled, whatever happens to the processes and files around it."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotriton.rules.binning import TuningKey, bin_text
from aotriton.rules.database import (
    Certificate,
    Measurement,
    Model,
    Product,
    Sample,
    SequenceTiming,
    TuningDatabase,
    TuningDatabaseError,
    Winner,
    archive,
    latest_medians,
    local,
    older,
    tuning_database,
)
from aotriton.rules.database import rows as module_rows
from aotriton.rules.database.schema import DECISIONS, VERSION
from aotriton.rules.database.sqlite_file import APPLICATION_ID

ROOT = Path(__file__).resolve().parents[2]
BIN = "max_seqlen_q=512 max_seqlen_k=512 waves=8"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.sqlite3"


def begin(database: TuningDatabase, device: str = "stand-in", **more: Any) -> int:
    given: dict[str, Any] = {
        "driver": "1",
        "triton": "3.6.0",
        "torch": "2",
        "arch": "sm_90",
        "multiprocessors": 132,
        "options": "",
    }
    return database.evidence.begin_session(device=device, **(given | more))


def problem(database: TuningDatabase, bin: str = BIN, heads: int = 4) -> int:
    return database.evidence.problem_id("sm_90", "attn_fwd", "T=bf16", bin, {"batch": 1, "heads": heads})


def winner(
    provenance: str = "measured",
    bin: str = BIN,
    image: str = "attn_fwd_sm_90_1",
    product: str = "stand-in",
    config: str = "BLOCK_M=64 num_warps=4",
) -> Winner:
    runners_up = (("BLOCK_M=128 num_warps=4", 12.5),)
    evidence = (10.0, runners_up, 9.5, 10.5, "{}", "2026-05-01")
    return Winner("sm_90", product, "attn_fwd", "T=bf16", bin, image, config, provenance, "", *evidence)


def medians(database: TuningDatabase) -> dict[tuple[str, str], dict[str, float | None]]:
    found = latest_medians(database.evidence.outcomes("sm_90", "attn_fwd")).items()
    return {place: {one.config: one.median_us for one in outcomes} for place, outcomes in found}


def write_rows(path: Path, writer: int, count: int, acknowledge: Callable[[str], object] = str) -> None:
    """``count`` measurements of images of its own, on a problem that all writers share; acknowledges each."""
    with TuningDatabase(path) as database:
        session, shared = begin(database), problem(database)
        for number in range(count):
            image = database.evidence.image_id(f"image_{writer}_{number}", f"BLOCK_M={number}")
            database.evidence.record(
                Measurement(shared, image, session, "sweep", "ok", 10.0 + number, [10.0] * 8, 1e-3, 2e-3)
            )
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
        images = [database.evidence.image_id(f"image_{number}", f"BLOCK_M={number}") for number in range(4)]
        database.evidence.record(Measurement(row, images[0], one, "sweep", "ok", 10.0, [10.0]))
        database.evidence.record(Measurement(row, images[0], one, "race", "ok", 11.0, [11.0]))
        database.evidence.record(Measurement(row, images[1], one, "race", "ok", 12.0, [12.0]))
        database.evidence.record(Measurement(row, images[1], two, "sweep", "ok", 13.0, [13.0]))
        database.evidence.record(Measurement(row, images[2], one, "sweep", "ok", 9.0, [9.0]))
        database.evidence.record(Measurement(row, images[2], one, "race", "crashed", detail="SIGSEGV"))
        database.evidence.record(Measurement(row, images[3], one, "sweep", "wrong", error=0.5, tolerance=0.01))
        assert medians(database) == {("T=bf16", BIN): {"BLOCK_M=0": 11.0, "BLOCK_M=1": 13.0}}
        assert database.evidence.outcomes("gfx942", "attn_fwd") == []


def test_certificates_are_of_checks(path: Path) -> None:
    """By image and product: the last day, how many problems and checks, the largest error and what was allowed there.

    A time without a check does not count, and an image that was wrong once has no certificate.
    """
    with TuningDatabase(path) as database:
        one, two = begin(database), begin(database)
        problems = problem(database, heads=4), problem(database, heads=8)
        images = [database.evidence.image_id(f"image_{number}", f"BLOCK_M={number}") for number in range(4)]
        for image in images[:3]:
            database.evidence.record(Measurement(problems[0], image, one, "sweep", "ok", 10.0, [10.0], 0.002, 0.004))
        database.evidence.record(Measurement(problems[0], images[0], one, "race", "ok", 10.0, [10.0]))
        database.evidence.record(Measurement(problems[1], images[0], one, "sweep", "ok", 10.0, [10.0], 0.003, 0.005))
        database.evidence.record(Measurement(problems[1], images[0], two, "sweep", "ok", 10.0, [10.0], 0.001, 0.006))
        database.evidence.record(Measurement(problems[1], images[1], two, "sweep", "wrong", error=0.5, tolerance=0.01))
        database.evidence.record(
            Measurement(problems[1], images[2], two, "race", "wrong", detail="it wrote over its inputs")
        )
        database.evidence.record(Measurement(problems[1], images[3], two, "race", "ok", 10.0, [10.0]))
        day = max(session.started for session in database.evidence.sessions())[:10]
        product = database.evidence.sessions()[0].product
        assert database.evidence.certificates() == {
            "image_0": [Certificate("image_0", product, day, 2, 3, 0.003, 0.005)]
        }


def test_what_only_a_certificate_names_is_no_product(path: Path) -> None:
    """It has the arch of the certificate's image, whatever else has the name; once it has a winner, it is a product."""
    with TuningDatabase(path) as database:
        sessions = begin(database, arch="gfx942"), begin(database)
        database.put_winners([winner(product="another")])
        image = database.evidence.image_id("attn_fwd_sm_90_1", "BLOCK_M=64 num_warps=4")
        checked = Measurement(problem(database), image, sessions[1], "sweep", "checked", error=1e-3, tolerance=2e-3)
        database.evidence.record(checked)
    with TuningDatabase(path) as database:
        assert [one.product for one in database.certificates()["attn_fwd_sm_90_1"]] == ["stand-in"]
        assert [one.name for one in database.products()] == ["another"]
        database.put_winners([winner()])
        assert database.products() == [Product("another", "sm_90", 132), Product("stand-in", "sm_90", 132)]


def test_medians_never_mix_shapes(path: Path) -> None:
    """Where a bin was measured in two shapes, only the shape measured last is compared."""
    with TuningDatabase(path) as database:
        session, image = begin(database), database.evidence.image_id("a", "BLOCK_M=1")
        other = database.evidence.image_id("b", "BLOCK_M=2")
        database.evidence.record(Measurement(problem(database, heads=4), image, session, "sweep", "ok", 10.0, [10.0]))
        database.evidence.record(Measurement(problem(database, heads=8), other, session, "sweep", "ok", 20.0, [20.0]))
        assert medians(database) == {("T=bf16", BIN): {"BLOCK_M=2": 20.0}}


def test_winners_come_back_as_they_were(path: Path) -> None:
    """Winners are equal after a round trip, and sorted by product and bin."""
    with TuningDatabase(path) as database:
        other = winner(bin="c", product="another")
        database.put_winners([winner(bin="b"), winner(bin="a", provenance="imported"), other])
        own = [winner(bin="a", provenance="imported"), winner(bin="b")]
        assert database.winners("sm_90") == [other, *own]
        assert database.winners(product="stand-in") == own
        assert database.winners("gfx942") == []


def test_what_is_borrowed_is_not_stored(path: Path) -> None:
    """It is derived whenever it is needed; nothing of what came with it is written."""
    with TuningDatabase(path) as database:
        with pytest.raises(TuningDatabaseError, match="CHECK"):
            database.put_winners([winner(bin="a"), winner(bin="b", provenance="borrowed")])
        assert database.winners() == []


def test_products_have_winners_of_their_own(path: Path) -> None:
    """One product's measured winner does not replace another's."""
    with TuningDatabase(path) as database:
        database.put_winners([winner(image="a", product="one"), winner(image="b", product="two")])
        database.put_winners([winner(image="c", product="two")])
        assert [(found.product, found.image) for found in database.winners()] == [("one", "a"), ("two", "c")]


def test_only_a_measured_winner_replaces_a_measured_one(path: Path) -> None:
    """Predicting and importing never hide a measurement; a new measurement does replace any."""
    with TuningDatabase(path) as database:
        database.put_winners([winner("predicted", image="p")])
        database.put_winners([winner("measured", image="m")])
        for provenance in ("predicted", "imported"):
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
                database._file.execute(statement)
        with pytest.raises(TuningDatabaseError, match="UNIQUE"):
            database.evidence.record(Measurement(1, 1, 1, "sweep", "ok", 5.0, [5.0]))
        assert [outcome.median_us for outcome in database.evidence.outcomes()] == [10.0, 11.0]


def test_an_image_that_spills_counts_as_pruned(path: Path) -> None:
    """However fast it ran: it has no median, and its outcome decides nothing."""
    with TuningDatabase(path) as database:
        session, row = begin(database), problem(database)
        for name, spills, median in (("good", 0, 10.0), ("bad", 8, 5.0)):
            image = database.evidence.image_id(name, name, f"checksum of {name}", 255, spills, 1024)
            database.evidence.record(Measurement(row, image, session, "sweep", "ok", median, [median]))
        assert {o.image: o.status for o in database.evidence.outcomes()} == {"good": "ok", "bad": "pruned"}
        assert medians(database) == {("T=bf16", BIN): {"good": 10.0}}


def test_a_record_of_several_is_all_or_nothing(path: Path) -> None:
    """Where one measurement of a race is refused, none of it stays."""
    write_rows(path, 0, 1)
    with TuningDatabase(path) as database:
        image = database.evidence.image_id("new", "c")
        race = Measurement(1, image, 1, "race", "ok", 1.0, [1.0]), Measurement(1, 1, 1, "sweep", "ok", 1.0, [1.0])
        with pytest.raises(TuningDatabaseError, match="UNIQUE"):
            database.evidence.record(*race)
    with TuningDatabase(path, readonly=True) as database:
        assert len(database.evidence.outcomes()) == 1


def test_image_facts_are_filled_in_once_known(path: Path) -> None:
    """An image that did not compile at first gets its checksum later, and keeps it."""
    with TuningDatabase(path) as database:
        first = database.evidence.image_id("a", "c")
        assert database.evidence.image_id("a", "c", "sha", 32, 0, 1024) == first
        assert database.evidence.image_id("a", "c") == first
        with pytest.raises(TuningDatabaseError, match="a has checksum sha, but was compiled to other"):
            database.evidence.image_id("a", "c", "other", 32, 0, 1024)
        assert database._file.execute("SELECT sha256, registers, shared FROM evidence.image").fetchone() == (
            "sha",
            32,
            1024,
        )


def test_rows_are_compact(path: Path) -> None:
    """A measurement with 12 samples takes less than 200 bytes of the local file, its share of the image table included,
    less than 20 of the archive, and nothing of the database.
    """
    with TuningDatabase(path) as database:
        session = begin(database)
        before, decisions = database.evidence.path.stat().st_size, path.stat().st_size
        for number in range(40):
            row = problem(database, bin=f"max_seqlen_q={number}")
            for config in range(10):
                image = database.evidence.image_id(
                    f"attn_fwd_sm_90_{config:016x}", f"BLOCK_M={config}", "0" * 64, 1, 2, 3
                )
                database.evidence.record(
                    Measurement(row, image, session, "sweep", "ok", 123.456, [123.456] * 12, 1.234567e-3, 2e-3)
                )
        assert (database.evidence.path.stat().st_size - before) / 400 < 200
        assert path.stat().st_size == decisions
    assert sum(archive.files(archive.folder_of(path)).values()) / 400 < 20


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
        names = sorted(outcome.image for outcome in database.evidence.outcomes())
    assert names == sorted(f"image_{writer}_{number}" for writer in range(4) for number in range(40))
    left = {entry.name for entry in path.parent.rglob("*") if not entry.name.endswith(archive.SUFFIX)}
    assert left == {path.name, archive.folder_of(path).name, local.NAME, ".gitignore"}  # no -wal, no -journal


def test_what_is_read_is_of_one_state(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement that another process adds between the reads of images and of measurements is not seen half."""
    write_rows(path, 1, 2)

    def write_one_more() -> None:
        with TuningDatabase(path) as database:
            image = database.evidence.image_id("late", "BLOCK_M=9")
            database.evidence.record(Measurement(1, image, 1, "sweep", "ok", 10.0, [10.0]))

    writers: list[threading.Thread] = []
    read = module_rows.session

    def meanwhile(row: Any) -> Any:
        if not writers:
            writers.append(threading.Thread(target=write_one_more))
            writers[0].start()
            writers[0].join(0.5)  # as long as it would take if it need not wait
        return read(row)

    monkeypatch.setattr(module_rows, "session", meanwhile)
    with TuningDatabase(path) as database:
        assert len(database.evidence.outcomes()) == 2
        writers[0].join()
        assert len(database.evidence.outcomes()) == 3


def test_a_killed_writer_leaves_every_acknowledged_row(path: Path) -> None:
    """kill -9 at any moment: the file stays sound and what was acknowledged is in it."""
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'test')!r}, {str(Path(__file__).parent)!r}]\n"
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
            assert database._file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            names = [outcome.image for outcome in database.evidence.outcomes()]
        assert len(names) == len(set(names))
        assert set(acknowledged) <= set(names)


def unchanged(path: Path, readonly: bool, message: str) -> None:
    def files() -> dict[Path, bytes]:
        return {one: one.read_bytes() for one in path.parent.rglob("*") if one.is_file()}

    before = files()
    with pytest.raises(TuningDatabaseError, match=message):
        TuningDatabase(path, readonly)
    assert files() == before


def test_a_readonly_file_is_refused_for_writing_and_fine_for_reading(path: Path) -> None:
    """The permission bits count, also for root; a reader does not mind."""
    write_rows(path, 0, 1)
    path.chmod(0o444)
    unchanged(path, False, "read-only")
    with TuningDatabase(path, readonly=True) as database:
        assert len(database.evidence.outcomes()) == 1
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
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
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


SESSIONS = (
    (1, "u1", "GPU one", "580", "3.6.0", "2.11", "sm_90", 132, "time_budget=1", "2026-05-01T10:00:00+00:00"),
    (2, "u2", "GPU two", "580", "3.6.0", "2.11", "sm_90", 132, "", "2026-05-02T10:00:00+00:00"),
    (3, "u3", "GPU two", "580", "3.6.0", "2.11", "sm_90", 132, "again=x", "2026-05-03T10:00:00+00:00"),
)
MEASUREMENTS = (
    (1, 1, 1, 1, "sweep", "ok", 10.0, "[10,10.5]", 0.1, 0.2, None),
    (2, 1, 2, 1, "sweep", "pruned", None, None, None, None, "spills: 8"),
    (3, 1, 1, 2, "sweep", "ok", 12.0, "[12]", 0.1, 0.2, None),
    (4, 1, 1, 3, "race", "ok", 11.0, "[11]", None, None, None),
)
IMAGES = ((1, "good", "BLOCK_M=64", "0" * 64, 128, 0, 1024), (2, "bad", "BLOCK_M=128", None, None, None, None))
WINNERS = (
    ("sm_90", "attn_fwd", "T=bf16", BIN, "good", "{}", "{}", "measured", "", 11.0, '[["BLOCK_M=128",12.5]]'),
    ("sm_90", "attn_fwd", "T=bf16", "of another day", "good", "{}", "{}", "measured", "", 3.0, "[]"),
    ("sm_90", "attn_fwd", "T=fp16", BIN, "other", "{}", "{}", "borrowed", "T=bf16 in the same bin", 0.0, "[]"),
    ("sm_90", "attn_fwd", "T=fp32", BIN, "listed", "{}", "{}", "imported", "a list", 0.0, "[]"),
    ("gfx942", "attn_fwd", "T=bf16", BIN, "guessed", "{}", "{}", "predicted", "static model", 0.0, "[]"),
)


def version_1(path: Path) -> None:
    """A file of the first schema, from before winners had a product."""
    connection = sqlite3.connect(path)
    connection.executescript(older.MIGRATIONS[0])
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.execute("INSERT INTO problem VALUES (1, 'sm_90', 'attn_fwd', 'T=bf16', ?, '{\"batch\": 1}')", [BIN])
    for table, rows in (
        ("session", SESSIONS),
        ("image", IMAGES),
        ("measurement", MEASUREMENTS),
        ("winner", WINNERS),
    ):
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.commit()
    connection.close()


def test_version_1_is_migrated_with_every_row(path: Path) -> None:
    """Sessions, problems, images and measurements are what they were; a session's GPU has a row of its own.

    Measurements stay append-only, every reference is to a row that is there, and the file is one of this version.
    """
    version_1(path)
    unchanged(path, True, f"schema is version 1, older than {VERSION}")
    with TuningDatabase(path) as database:

        def rows(sql: str) -> list[Any]:
            return list(database._file.execute(sql))

        assert rows(
            "SELECT s.id, s.uuid, product, driver, triton, torch, arch, multiprocessors, options, started"
            " FROM evidence.session s JOIN evidence.device d ON d.id = s.device ORDER BY s.id"
        ) == list(SESSIONS)
        assert rows("SELECT DISTINCT strategy, seed FROM evidence.session") == [("exhaustive", None)]
        assert rows("SELECT product, uuid, memory, power_limit FROM evidence.device ORDER BY id") == [
            ("GPU one", None, None, None),
            ("GPU two", None, None, None),
        ]
        assert rows("SELECT * FROM evidence.measurement") == [(*row, None, None, None, None) for row in MEASUREMENTS]
        assert rows("SELECT * FROM evidence.image") == list(IMAGES)
        assert rows("SELECT * FROM evidence.problem") == [(1, "sm_90", "attn_fwd", "T=bf16", BIN, '{"batch": 1}')]
        assert rows("PRAGMA foreign_key_check") == []
        assert rows("PRAGMA foreign_keys") == [(1,)]
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database._file.execute("DELETE FROM measurement")
        assert database.evidence.samples_of(1) == (10.0, 10.5)
        assert begin(database) == 4
    assert is_of_today(path)


def is_of_today(path: Path) -> bool:
    """Whether tables and views are those of a new file."""
    fresh = path.with_name("fresh.sqlite3")
    TuningDatabase(fresh).close()
    schemas = [
        sorted(sqlite3.connect(one).execute("SELECT name, sql FROM sqlite_master WHERE sql <> ''"))
        for one in (path, fresh)
    ]
    return schemas[0] == schemas[1]


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the file nor its rows: the next try finds all of them."""
    version_1(path)
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(tuning_database, "DECISIONS", DECISIONS + "SELECT no_such_function();")
        with pytest.raises(TuningDatabaseError, match="no_such_function"):
            TuningDatabase(path)
    assert path.read_bytes() == before
    with TuningDatabase(path) as database:
        assert len(database.evidence.outcomes()) == len(MEASUREMENTS)


def test_migrated_winners_have_the_product_that_measured_them(path: Path) -> None:
    """By their time; one that nobody measured is left to be decided, and what is borrowed to be derived. Where nothing
    was measured, the product is the arch's usual one.
    """
    version_1(path)
    with TuningDatabase(path) as database:
        found = {(w.arch, w.functional, w.bin): w for w in database.winners()}
    assert {place: (w.product, w.image, w.provenance) for place, w in found.items()} == {
        ("sm_90", "T=bf16", BIN): ("GPU two", "good", "measured"),
        ("sm_90", "T=fp32", BIN): ("NVIDIA H100 80GB HBM3", "listed", "imported"),
        ("gfx942", "T=bf16", BIN): ("AMD Instinct MI300X", "guessed", "predicted"),
    }
    measured = found["sm_90", "T=bf16", BIN]
    assert (measured.median_us, measured.runners_up) == (11.0, (("BLOCK_M=128", 12.5),))
    assert (measured.shape, measured.measured, measured.low_us) == ('{"batch": 1}', "2026-05-03", 0.0)


def test_models_of_version_3_are_migrated(path: Path) -> None:
    """As they are, also where nothing else names their functional, image and product."""
    version_1(path)
    row = ("sm_90", "GPU", "gemm", "gemm", "T=bf16", "gemm_1", "waves", 2, "[1.0]", 0.123456789, 80, 0.25, "fit.py")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript("".join(older.MIGRATIONS[1:]) + "PRAGMA user_version = 3;")
        connection.execute(f"INSERT INTO model VALUES ({', '.join('?' * len(row))})", row)
    with TuningDatabase(path) as database:
        assert database._file.execute("SELECT * FROM model").fetchall() == [row]


def test_runners_up_go_with_their_winner(path: Path) -> None:
    """They stay where a winner is not replaced, are replaced with it, in their order, and go with it."""
    two = (("A=2", 12.5), ("A=1", 13.25))
    with TuningDatabase(path) as database:
        database.put_winners([winner(), replace(winner(), bin="another", runners_up=())])
        database.put_winners([replace(winner("predicted"), runners_up=two)])
        assert [one.runners_up for one in database.winners()] == [(), winner().runners_up]
        database.put_winners([replace(winner(), runners_up=two)])
        assert [one.runners_up for one in database.winners()] == [(), two]
        database.forget_winners([winner()])
        assert database._file.value("SELECT count(*) FROM runner_up") == 0


# What was another one in version 6, with what the views of today show.
VERSION_6 = """
    CREATE TEMP TABLE winners AS
        SELECT w.functional, w.product, w.bin, w.image, w.provenance, w.median_us,
            (SELECT v.runners_up FROM winner v JOIN functional f USING (arch, kernel, functional)
                WHERE f.id = w.functional AND v.bin = b.bin), w.low_us, w.high_us, s.shape
        FROM winner_row w JOIN shape s ON s.id = w.shape JOIN bin b ON b.id = w.bin;
    DROP VIEW winner; DROP TABLE runner_up; DROP TABLE winner_row; DROP TABLE shape;
    CREATE TABLE winner_row (
        functional INTEGER NOT NULL REFERENCES functional, product INTEGER NOT NULL REFERENCES product,
        bin INTEGER NOT NULL REFERENCES bin, image INTEGER NOT NULL REFERENCES image_row,
        provenance INTEGER NOT NULL REFERENCES provenance, median_us REAL NOT NULL, runners_up TEXT NOT NULL,
        low_us REAL NOT NULL, high_us REAL NOT NULL, shape TEXT NOT NULL,
        PRIMARY KEY (functional, product, bin)) WITHOUT ROWID;
    CREATE VIEW winner AS SELECT f.arch, p.name AS product, f.kernel, f.functional, b.bin,
            x.prefix || i.digest AS image, c.config, v.provenance, v.source, w.median_us, w.runners_up, w.low_us,
            w.high_us, w.shape, v.measured
        FROM winner_row w JOIN functional f ON f.id = w.functional JOIN product p ON p.id = w.product
        JOIN bin b ON b.id = w.bin JOIN image_row i ON i.id = w.image JOIN image_prefix x ON x.id = i.prefix
        JOIN config c ON c.id = i.config JOIN provenance v ON v.id = w.provenance;
    INSERT INTO winner_row SELECT * FROM winners;
    DROP TABLE temp.winners;
    PRAGMA user_version = 6;
"""
# What was another one in version 5, with what the views of version 6 show.
VERSION_5 = """
    CREATE TEMP TABLE products AS SELECT * FROM product;
    CREATE TEMP TABLE images AS SELECT i.id, i.name, r.config, r.sha256, i.registers, i.spills, i.shared, i.timed
        FROM image i JOIN image_row r ON r.id = i.id;
    CREATE TEMP TABLE models AS SELECT * FROM model;
    CREATE TEMP TABLE certificates AS SELECT r.image, c.product, c.day, c.problems, c.checks, c.error, c.allowed
        FROM certificate c JOIN image i ON i.name = c.image JOIN certificate_row r ON r.image = i.id;
    DROP VIEW image; DROP VIEW winner; DROP VIEW median; DROP VIEW certificate; DROP VIEW model;
    DROP TABLE product; DROP TABLE image_prefix; DROP TABLE image_row; DROP TABLE model_row; DROP TABLE certificate_row;
    CREATE TABLE product (
        id INTEGER PRIMARY KEY, arch TEXT NOT NULL, name TEXT NOT NULL, multiprocessors INTEGER NOT NULL,
        memory INTEGER, UNIQUE (arch, name));
    CREATE TABLE image_row (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, config INTEGER NOT NULL REFERENCES config, sha256 BLOB,
        registers INTEGER, spills INTEGER, shared INTEGER, timed INTEGER NOT NULL CHECK (timed IN (0, 1)));
    CREATE VIEW image AS SELECT i.id, i.name, c.config,
            CASE WHEN i.sha256 IS NOT NULL THEN lower(hex(i.sha256)) END AS sha256,
            i.registers, i.spills, i.shared, i.timed
        FROM image_row i JOIN config c ON c.id = i.config;
    CREATE VIEW winner AS SELECT f.arch, p.name AS product, f.kernel, f.functional, b.bin, i.name AS image, c.config,
            v.provenance, v.source, w.median_us, w.runners_up, w.low_us, w.high_us, w.shape, v.measured
        FROM winner_row w JOIN functional f ON f.id = w.functional JOIN product p ON p.id = w.product
        JOIN bin b ON b.id = w.bin JOIN image_row i ON i.id = w.image JOIN config c ON c.id = i.config
        JOIN provenance v ON v.id = w.provenance;
    CREATE TABLE model (
        arch TEXT NOT NULL, product TEXT NOT NULL, operator TEXT NOT NULL, kernel TEXT NOT NULL,
        functional TEXT NOT NULL, image TEXT NOT NULL, form TEXT NOT NULL, occupancy INTEGER NOT NULL,
        coefficients TEXT NOT NULL, error REAL NOT NULL, samples INTEGER NOT NULL, saves REAL NOT NULL,
        source TEXT NOT NULL, PRIMARY KEY (arch, product, kernel, functional, image)) WITHOUT ROWID;
    CREATE VIEW median AS SELECT f.arch, p.name AS product, f.kernel, f.functional, b.bin, i.name AS image, c.config,
            m.median_us, v.measured
        FROM median_row m JOIN functional f ON f.id = m.functional JOIN product p ON p.id = m.product
        JOIN bin b ON b.id = m.bin JOIN image_row i ON i.id = m.image JOIN config c ON c.id = i.config
        JOIN provenance v ON v.id = m.provenance ORDER BY m.id;
    CREATE TABLE certificate_row (
        image INTEGER NOT NULL REFERENCES image_row, product TEXT NOT NULL, day TEXT NOT NULL,
        problems INTEGER NOT NULL, checks INTEGER NOT NULL, error REAL NOT NULL, allowed REAL NOT NULL,
        PRIMARY KEY (image, product)) WITHOUT ROWID;
    CREATE VIEW certificate AS SELECT i.name AS image, c.product, c.day, c.problems, c.checks, c.error, c.allowed
        FROM certificate_row c JOIN image_row i ON i.id = c.image;
    INSERT INTO product SELECT * FROM products WHERE multiprocessors IS NOT NULL;
    INSERT INTO image_row SELECT * FROM images;
    INSERT INTO model SELECT * FROM models;
    INSERT INTO certificate_row SELECT * FROM certificates;
    DROP TABLE temp.products; DROP TABLE temp.images; DROP TABLE temp.models; DROP TABLE temp.certificates;
    PRAGMA user_version = 5;
"""
# What was another one in version 4, with what the views of version 5 show.
VERSION_4 = """
    CREATE TEMP TABLE images AS SELECT i.id, i.name, r.config, i.sha256, i.registers, i.spills, i.shared, i.timed
        FROM image i JOIN image_row r ON r.id = i.id;
    CREATE TEMP TABLE winners AS
        SELECT w.functional, w.product, w.bin, w.image, v.provenance, v.source, w.median_us, w.runners_up, w.low_us,
            w.high_us, w.shape, v.measured FROM winner_row w JOIN provenance v ON v.id = w.provenance;
    CREATE TEMP TABLE medians AS
        SELECT m.id, m.functional, m.product, m.bin, m.image, m.median_us, v.measured
        FROM median_row m JOIN provenance v ON v.id = m.provenance;
    DROP VIEW image; DROP VIEW winner; DROP VIEW median;
    DROP TABLE image_row; DROP TABLE winner_row; DROP TABLE median_row; DROP TABLE provenance;
    CREATE TABLE image_row (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, config INTEGER NOT NULL REFERENCES config, sha256 TEXT,
        registers INTEGER, spills INTEGER, shared INTEGER, timed INTEGER NOT NULL CHECK (timed IN (0, 1)));
    CREATE VIEW image AS SELECT i.id, i.name, c.config, i.sha256, i.registers, i.spills, i.shared, i.timed
        FROM image_row i JOIN config c ON c.id = i.config;
    CREATE TABLE winner_row (
        functional INTEGER NOT NULL REFERENCES functional, product INTEGER NOT NULL REFERENCES product,
        bin INTEGER NOT NULL REFERENCES bin, image INTEGER NOT NULL REFERENCES image_row,
        provenance TEXT NOT NULL CHECK (provenance IN ('measured', 'predicted', 'imported')),
        source TEXT NOT NULL, median_us REAL NOT NULL, runners_up TEXT NOT NULL, low_us REAL NOT NULL,
        high_us REAL NOT NULL, shape TEXT NOT NULL, measured TEXT NOT NULL,
        PRIMARY KEY (functional, product, bin)) WITHOUT ROWID;
    CREATE VIEW winner AS SELECT f.arch, p.name AS product, f.kernel, f.functional, b.bin, i.name AS image, c.config,
            w.provenance, w.source, w.median_us, w.runners_up, w.low_us, w.high_us, w.shape, w.measured
        FROM winner_row w JOIN functional f ON f.id = w.functional JOIN product p ON p.id = w.product
        JOIN bin b ON b.id = w.bin JOIN image_row i ON i.id = w.image JOIN config c ON c.id = i.config;
    CREATE TABLE median_row (
        id INTEGER PRIMARY KEY, functional INTEGER NOT NULL REFERENCES functional,
        product INTEGER NOT NULL REFERENCES product, bin INTEGER NOT NULL REFERENCES bin,
        image INTEGER NOT NULL REFERENCES image_row, median_us REAL NOT NULL CHECK (median_us > 0),
        measured TEXT NOT NULL);
    CREATE VIEW median AS SELECT f.arch, p.name AS product, f.kernel, f.functional, b.bin, i.name AS image, c.config,
            m.median_us, m.measured
        FROM median_row m JOIN functional f ON f.id = m.functional JOIN product p ON p.id = m.product
        JOIN bin b ON b.id = m.bin JOIN image_row i ON i.id = m.image JOIN config c ON c.id = i.config
        ORDER BY m.id;
    INSERT INTO image_row SELECT * FROM images;
    INSERT INTO winner_row SELECT * FROM winners;
    INSERT INTO median_row SELECT * FROM medians;
    PRAGMA user_version = 4;
"""
COMPILED = {f"image_{number}": f"{number:064x}" for number in range(500)}  # and not measured
PRODUCTS = "product WHERE multiprocessors IS NOT NULL"
SHOWN = ("winner", "median", "image", "certificate", "model", PRODUCTS, "session")
OLDER = {4: VERSION_6 + VERSION_5 + VERSION_4, 5: VERSION_6 + VERSION_5, 6: VERSION_6}
of_older_versions = pytest.mark.parametrize("version", OLDER)


def older_file(path: Path, version: int) -> dict[str, list[Any]]:
    """A file of version 4 to 6, and its rows by table or view. It has a certificate on a product and a model of a
    functional, an image and a product that nothing else names.
    """
    with TuningDatabase(path) as database:
        cell = "sm_90", "mine", "T=bf16", BIN
        number = database.evidence.problem_id(*cell, {"batch": 1})
        image = database.evidence.image_id("mine_sm_90_1", "BLOCK_M=64 num_warps=4", "0a" * 32, 64, 0, 1024)
        database.evidence.record(Measurement(number, image, begin(database), "sweep", "ok", 10.0, [10.0], 1e-3, 2e-3))
        measured = replace(winner(image="mine_sm_90_1"), kernel="mine")
        predicted = replace(winner("predicted", "another"), source="static model", measured="")
        imported = winner("imported", "a fourth", "good")
        database.put_winners([measured, predicted, replace(predicted, bin="a third"), imported])
        model = Model("sm_90", "stand-in", "mine", "mine", "T=bf16", "mine_sm_90_1", "waves", 2, (1.0,), 0.04, 80)
        other = replace(model, arch="gfx942", product="a third", image="alone")
        database.put_models([model, other], ("sm_90", "stand-in", "mine"))
    connection = sqlite3.connect(path)
    connection.executescript(OLDER[version])
    compiled = [(name, sha if version == 4 else bytes.fromhex(sha)) for name, sha in COMPILED.items()]
    named, product = "?", "'another'"
    if version == 6:
        connection.execute("INSERT INTO image_prefix VALUES (-1, 'image_')")
        connection.execute("INSERT INTO product VALUES (-2, 'sm_90', 'another', NULL, NULL)")
        named, product = "substr(?, 7), -1", "-2"
    connection.executemany(f"INSERT INTO image_row VALUES (NULL, {named}, 1, ?, 64, 0, 1024, 0)", compiled)
    connection.execute(f"INSERT INTO certificate_row SELECT image, {product}, day, 1, 1, 0, 1 FROM certificate_row")
    connection.execute("INSERT INTO product VALUES (-1, 'gfx942', 'stand-in', 304, NULL)")
    connection.commit()
    connection.close()
    return shown(path)


def shown(path: Path) -> dict[str, list[Any]]:
    connection = sqlite3.connect(path)
    found = {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=str) for name in SHOWN}
    connection.close()
    return found


@of_older_versions
def test_an_older_file_is_migrated_with_every_row(path: Path, version: int) -> None:
    """What the views show is what it was. Checksums and what many rows share take less room; images that were only
    compiled are found in the decisions, where the local evidence was lost.
    """
    before = older_file(path, version)
    assert {name: len(before[name]) for name in ("certificate", "model", PRODUCTS)} == {
        "certificate": 2, "model": 2, PRODUCTS: 2}  # fmt: skip
    assert all(before.values())
    assert {row[3] for row in before["image"]} == {"0a" * 32, None, *COMPILED.values()}
    unchanged(path, True, f"schema is version {version}, older than {VERSION}")
    (archive.folder_of(path) / local.NAME).unlink()
    with TuningDatabase(path) as database:
        assert database.evidence.unmeasured_images() == set(COMPILED)
        kinds = database._file.execute("SELECT DISTINCT typeof(sha256) FROM image_row ORDER BY 1").fetchall()
        assert kinds == [("blob",), ("null",)]
        assert database._file.value("SELECT count(*) FROM provenance") == 4
        prefixes = database._file.execute("SELECT prefix FROM image_prefix ORDER BY 1").fetchall()
        assert prefixes == [("",), ("attn_fwd_sm_90_",), ("image_",), ("mine_sm_90_",)]
        archs = "SELECT p.arch, p.name FROM certificate_row c JOIN product p ON p.id = c.product ORDER BY p.name"
        assert database._file.execute(archs).fetchall() == [("sm_90", "another"), ("sm_90", "stand-in")]
        assert database._file.execute("PRAGMA main.foreign_key_check").fetchall() == []
        assert database._file.value("PRAGMA main.freelist_count") == 0
        assert {one.name for one in database.products()} == {"stand-in"}
    assert shown(path) == before
    assert is_of_today(path)


@of_older_versions
def test_a_migration_of_an_older_file_that_fails_changes_nothing(
    path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a step fails or the evidence is not there."""
    before = older_file(path, version), path.read_bytes()
    with monkeypatch.context() as patched:
        *steps, last = older.MIGRATIONS_APART
        patched.setattr(older, "MIGRATIONS_APART", (*steps, last + "SELECT no_such_function();"))
        with pytest.raises(TuningDatabaseError, match="no_such_function"):
            TuningDatabase(path)
    kept = archive.folder_of(path).rename(path.parent / "kept")
    with pytest.raises(TuningDatabaseError, match="1 sessions of measurements that it rests on are not in"):
        TuningDatabase(path)
    assert (shown(path), path.read_bytes()) == before
    shutil.rmtree(archive.folder_of(path))
    kept.rename(archive.folder_of(path))
    TuningDatabase(path).close()
    assert shown(path) == before[0]


@of_older_versions
def test_an_older_file_is_read_and_left_as_it_is(path: Path, version: int) -> None:
    """Its decisions without the evidence; with it, the file is merged."""
    older_file(path, version)
    before, other = path.read_bytes(), path.with_name("other.sqlite3")
    with TuningDatabase(other) as database:
        assert database.merge(path, own=True) == 1
        winners = database.winners()
        assert len(winners) == 4
        assert (len(database.evidence.outcomes()), len(database.models())) == (1, 2)
    shutil.rmtree(archive.folder_of(path))
    with tuning_database.decisions(path) as decided:
        assert decided.winners() == winners
        assert len(decided.medians("sm_90", "mine", "stand-in")) == 1
    assert path.read_bytes() == before
    assert not archive.folder_of(path).exists()


@pytest.mark.parametrize("name", ["good", "image_7", "mine_sm_90_1", "_", "_a", "a_", "__"])
def test_an_image_of_any_name_is_found(path: Path, name: str) -> None:
    """By a winner and a model, which both come back; other configs do not go by its name, and it is found renamed."""
    model = Model("sm_90", "stand-in", "mine", "attn_fwd", "T=bf16", name, "waves", 2, (1.0,), 0.04, 80)
    with TuningDatabase(path) as database:
        database.put_winners([winner(image="a_b_c"), winner(bin="another", image=name)])
        database.put_winners([winner(bin="another", image=name)])
        database.put_models([model], ("sm_90", "stand-in", "mine"))
        assert database._file.value("SELECT count(*) FROM image WHERE name = ?", [name]) == 1
        assert [(one.image, one.bin) for one in database.winners()] == [(name, "another"), ("a_b_c", BIN)]
        assert database.models() == [model]
        with pytest.raises(TuningDatabaseError, match=f"image {name} has the config 'BLOCK_M=64 num_warps=4', not 'A"):
            database.put_winners([winner(image=name, config="A=1")])
        database.rename_images({name: "new_1", "a_b_c": name})
        assert [(one.image, one.bin) for one in database.winners()] == [("new_1", "another"), (name, BIN)]
        assert database.models() == [replace(model, image="new_1")]


def test_a_device_is_listed_once(path: Path) -> None:
    """Sessions on the same GPU share its row, whether or not all is known of it; another limit makes another row."""
    known: dict[str, Any] = {"uuid": "GPU-1", "memory": 80 << 30, "power_limit": 700}
    with TuningDatabase(path) as database:
        for more in ({}, known, {}, known, {**known, "power_limit": 500}):
            begin(database, **more)
        assert database._file.execute("SELECT device FROM evidence.session ORDER BY id").fetchall() == [
            (1,),
            (2,),
            (1,),
            (2,),
            (3,),
        ]
        begin(database, strategy="random", seed=7)
        assert database._file.execute("SELECT strategy, seed FROM evidence.session WHERE id = 6").fetchone() == (
            "random",
            7,
        )


def test_products_are_those_that_something_is_known_of(path: Path) -> None:
    """Of what was right, sampled, or has a winner, by name, with the largest memory that is known; a product that no
    session was on has its arch's usual number of multiprocessors.
    """
    timing = SequenceTiming("portable", ("a",), 10.0, 0.1, 20)
    with TuningDatabase(path) as database:
        sessions = [
            begin(database, name, memory=memory) for name, memory in (("C", 1), ("C", 3), ("A", None), ("B", 2))
        ]
        image = database.evidence.image_id("a", "c")
        for session, status in zip(sessions, ("ok", "ok", "wrong", "wrong"), strict=True):
            median = 1.0 if status == "ok" else None
            database.evidence.record(Measurement(problem(database), image, session, "sweep", status, median))
        assert database.products() == [Product("C", "sm_90", 132, 3)]
        database.evidence.add_sample(sessions[3], "attn_fwd", "T=bf16", {}, [timing])
        database.put_winners([replace(winner(product="Z"), arch="gfx942"), winner(product="C")])
        assert database.products("sm_90") == [Product("B", "sm_90", 132, 2), Product("C", "sm_90", 132, 3)]
        assert database.products("gfx942") == [Product("Z", "gfx942", 304, None)]
        assert [one.name for one in database.products()] == ["B", "C", "Z"]


def test_outcomes_are_of_a_product(path: Path) -> None:
    """Each says which, and when its session began; those of one can be asked for."""
    with TuningDatabase(path) as database:
        image = database.evidence.image_id("a", "c")
        for name in ("one", "two"):
            session = begin(database, name)
            database.evidence.record(
                Measurement(problem(database), image, session, "sweep", "ok", 5.0, sm_clock=1980, temperature=41)
            )
        both = database.evidence.outcomes()
        started = [row[0] for row in database._file.execute("SELECT started FROM evidence.session")]
        assert [(one.product, one.started) for one in both] == list(zip(("one", "two"), started, strict=True))
        assert database.evidence.outcomes(product="two") == both[1:]
        assert database._file.execute("SELECT DISTINCT sm_clock, temperature FROM measurement").fetchall() == [
            (1980, 41)
        ]


TIMINGS = (
    SequenceTiming("portable", ("prepare", "run"), 20.0, 0.5, 20),
    SequenceTiming("fast", ("run_fast",), 10.0, 0.25, 21),
)


def test_samples_come_back_as_they_were(path: Path) -> None:
    """A shape with the timings of its sequences, each sequence stored once; of one arch and operator where asked."""
    shape: dict[str, Any] = {"batch": 2, "causal": True, "scale": 0.5}
    with TuningDatabase(path) as database:
        session = begin(database)
        database.evidence.add_sample(session, "attn_fwd", "T=bf16", shape, TIMINGS, 1980, 41)
        database.evidence.add_sample(session, "attn_fwd", "T=bf16", {"batch": 3}, TIMINGS[1:])
        database.evidence.add_sample(session, "gemm", "T=bf16", {"m": 3}, ())
        first, second = database.evidence.samples("sm_90", "attn_fwd")
        assert first == Sample("stand-in", "attn_fwd", "T=bf16", shape, 1, TIMINGS)
        assert second.timings == TIMINGS[1:]
        assert [one.timings for one in database.evidence.samples("sm_90", "gemm")] == [()]
        assert database.evidence.samples("gfx942", "gemm") == []
        assert database._file.value("SELECT count(*) FROM sequence") == 2


def test_samples_are_append_only(path: Path) -> None:
    """Neither a sample nor a timing changes or goes; a shape that the session has, or a bad timing, adds nothing."""
    with TuningDatabase(path) as database:
        session = begin(database)
        database.evidence.add_sample(session, "attn_fwd", "T=bf16", {"batch": 2}, TIMINGS)
        for table in ("sample", "timing"):
            for statement in (f"UPDATE {table} SET rowid = 9" if table == "sample" else "UPDATE timing SET rounds = 1",
                              f"DELETE FROM {table}"):  # fmt: skip
                with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                    database._file.execute(statement)
        with pytest.raises(TuningDatabaseError, match="UNIQUE"):
            database.evidence.add_sample(session, "attn_fwd", "T=bf16", {"batch": 2}, TIMINGS)
        for bad in (replace(TIMINGS[0], median_us=0.0), replace(TIMINGS[0], spread=float("nan")),
                    replace(TIMINGS[0], images=())):  # fmt: skip
            with pytest.raises(TuningDatabaseError, match="table timing"):
                database.evidence.add_sample(session, "attn_fwd", "T=bf16", {"batch": 3}, [TIMINGS[1], bad])
        assert len(database.evidence.samples("sm_90", "attn_fwd")) == 1


def test_models_replace_those_of_their_operator(path: Path) -> None:
    """All of an arch, product and operator or none; others stay, and what was written comes back."""
    one = Model("sm_90", "GPU", "gemm", "gemm_hopper", "T=bf16", "a", "waves", 2, (1.0, 0.25), 0.04, 80, 0.25, "fit.py")
    two, other = replace(one, image="b"), replace(one, operator="attn_fwd", kernel="attn_fwd", image="c")
    with TuningDatabase(path) as database:
        database.put_models([two, one], ("sm_90", "GPU", "gemm"))
        database.put_models([other], ("sm_90", "GPU", "attn_fwd"))
        assert database.models("sm_90") == [other, one, two]
        assert database.models("gfx942") == []
        database.put_models([replace(two, occupancy=1)], ("sm_90", "GPU", "gemm"))
        assert database.models() == [other, replace(two, occupancy=1)]
        for bad in ({"error": float("inf")}, {"coefficients": (1.0, float("nan"))}, {"coefficients": (-1.0,)},
                    {"image": "a b"}, {"occupancy": -1}):  # fmt: skip
            with pytest.raises(TuningDatabaseError, match=r"table model, row sm_90 GPU gemm gemm_hopper T=bf16 "):
                database.put_models([one, replace(two, **bad)], ("sm_90", "GPU", "gemm"))
        assert database.models() == [other, replace(two, occupancy=1)]


def test_the_dump_is_stable_text_with_winners_first(path: Path) -> None:
    """git's textconv: one line a row, winners sorted and first, images by name; an unreadable file is an error."""
    write_rows(path, 0, 2)
    with TuningDatabase(path) as database:
        database.put_winners([winner(bin="b"), winner(bin="a")])
    dump = [sys.executable, "-S", "-E", str(ROOT / "rules" / "dump.py"), str(path)]  # -S: no site-packages
    lines = subprocess.run(dump, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == f"schema version {VERSION}"
    assert [line.split(":")[0] for line in lines[1:]] == ["winner", "winner", "product", "image", "session"]
    assert "| bin a |" in lines[1]
    assert "provenance measured" in lines[1]
    assert "| bin b |" in lines[2]
    assert lines[4] == "image: name attn_fwd_sm_90_1 | config BLOCK_M=64 num_warps=4 | timed 0"
    assert subprocess.run(dump, capture_output=True, text=True, check=True).stdout.splitlines() == lines
    path.write_text("not a database, but long enough to be taken for the header of one" * 20)
    assert subprocess.run(dump, capture_output=True).returncode == 1
