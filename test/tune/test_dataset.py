"""The database as Parquet and CSV: nothing is lost on the way out and back; nothing is taken in that will not do."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aotriton.rules.database import (
    Measurement,
    Model,
    SequenceTiming,
    TuningDatabase,
    TuningDatabaseError,
    Winner,
    archive,
    local,
)
from aotriton.tune.cli.main import main
from aotriton.tune.dataset.tables import export, take_in

PLACE = ("sm_90", "scale_rows", "T=bf16", "rows=64")
TABLES = (
    "device", "image", "model", "problem", "sequence", "winner", "session", "measurement", "sample", "search", "timing",
)  # fmt: skip
FLAT = (
    "arch", "kernel", "functional", "bin", "shape", "image", "config", "sha256", "registers", "spills", "shared",
    "session", "product", "gpu", "multiprocessors", "memory", "power_limit", "driver", "triton", "torch", "options",
    "strategy", "seed", "started", "phase", "status", "median_us", "samples", "error", "tolerance", "detail",
    "sm_clock", "temperature", "judge", "checks",
)  # fmt: skip

Tables = dict[str, list[tuple[object, ...]]]


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A database with something in every table, NULL wherever it may stand, and rows that nothing refers to."""
    path = tmp_path / "full.sqlite3"
    common: dict[str, Any] = {"driver": "1", "triton": "3.6.0", "torch": "2", "arch": "sm_90", "multiprocessors": 132}
    with TuningDatabase(path) as database:
        bare = database.evidence.begin_session(device="One", options="", **common)
        known = database.evidence.begin_session(
            device="Two", options='a "b", c\nd', uuid="GPU-1", memory=2**37, power_limit=700, strategy="random", seed=7,
            **common,
        )  # fmt: skip
        problem = database.evidence.problem_id(*PLACE, {"rows": 64})
        database.evidence.problem_id(*PLACE, {"rows": 65})
        good = database.evidence.image_id("good", "ROWS=1", "a" * 64, 32, 0, 1024)
        broken = database.evidence.image_id("broken", "ROWS=2")
        database.evidence.image_id("borrowed", "ROWS=3", "b" * 64, 64, 8, 0)
        database.evidence.record(
            Measurement(problem, good, bare, "sweep", "ok", 10.25, (10.0, 10.5)),
            Measurement(problem, good, known, "sweep", "ok", 10.1, (10.1,), 0.1, 0.2, None, 1980, 41),
            Measurement(problem, good, known, "race", "wrong", None, (1e-05,), float("inf"), 0.2),
            Measurement(problem, broken, known, "sweep", "compile_failed", detail="line 1\nline 2, käse"),
        )
        database.evidence.end_search(problem, known, 3)
        arch, kernel, functional, bin = PLACE
        database.put_winners(
            [
                Winner(arch, "Two", kernel, functional, bin, "good", "ROWS=1", "measured", "",
                       10.1, (("ROWS=2", 11.0),), 10.0, 10.2, '{"rows": 64}', "2026-01-02"),
                Winner(arch, "Three", kernel, functional, bin, "good", "ROWS=1", "imported", "a list"),
            ]
        )  # fmt: skip
        timings = [
            SequenceTiming("portable", ("good", "borrowed"), 5.5, 0.25, 7),
            SequenceTiming("x", ("good",), 5, 0, 1),
        ]
        database.evidence.add_sample(known, "scale", "T=bf16", {"rows": 3}, timings, 1980, 41)
        database.evidence.add_sample(bare, "scale", "T=bf16", {"rows": 4}, [])
        model = ("scale_rows", "T=bf16", "good", "whole", 2, (0.1, 0.0), 0.01, 150, 0.5)
        database.put_models([Model(arch, "Two", "scale", *model)], (arch, "Two", "scale"))
    return path


def rows(path: Path) -> Tables:
    """Every flat row of a database: all that it says, but for its ids."""
    with TuningDatabase(path, readonly=True) as database:
        return {table: list(found) for table, found in database.exchange.flat_rows(*database.exchange.tables())}


def exported(path: Path, to: Path, suffix: str) -> Path:
    """All tables: in a folder at once, or one after the other."""
    if suffix == ".parquet":
        export(path, to)
    else:
        to.mkdir(exist_ok=True)
        for table in TABLES:
            export(path, to / f"{table}{suffix}")
    return to


def taken(path: Path, into: Path) -> int:
    with TuningDatabase(into) as database:
        return take_in(path, database, own=True)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_nothing_is_lost(full: Path, tmp_path: Path, suffix: str) -> None:
    """What is taken into an empty database is all that there was, in its order; a second time there is nothing new."""
    (tmp_path / "tables.v2").mkdir()
    folder = exported(full, tmp_path / "tables.v2", suffix)
    assert {one.name for one in folder.iterdir()} == {f"{table}{suffix}" for table in TABLES}
    assert all(rows(full).values())
    other = tmp_path / "other.sqlite3"
    assert taken(folder, other) == 4 + 2
    assert rows(other) == rows(full)
    before = other.read_bytes()
    assert taken(folder, other) == 0
    assert other.read_bytes() == before


def test_a_database_that_has_some_of_it_takes_the_rest(full: Path, tmp_path: Path) -> None:
    """Its own rows and winners stay; of what both have there is one."""
    folder = exported(full, tmp_path / "tables", ".csv")
    (folder / "README.md").write_text("what is not a table is nobody's business")
    lines = (folder / "measurement.csv").read_text()
    some, other = tmp_path / "measurement.csv", tmp_path / "other.sqlite3"
    some.write_text("".join(lines.splitlines(keepends=True)[:2]))
    assert taken(some, other) == 1
    with TuningDatabase(other) as database:
        arch, kernel, functional, bin = PLACE
        own = Winner(arch, "Two", kernel, functional, bin, "mine", "", "measured", "", 1.0)
        database.put_winners([own])
    assert taken(folder, other) == 3 + 2
    with TuningDatabase(other, readonly=True) as database:
        assert {winner.image for winner in database.winners(product="Two")} == {"mine"}
    found = rows(other)
    assert len(found["winner"]) == 2
    assert {name: set(one) for name, one in found.items() if name != "winner"} == {
        name: set(one) for name, one in rows(full).items() if name != "winner"
    }


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_stands_by_itself(full: Path, tmp_path: Path, suffix: str) -> None:
    """Measurements come with their sessions, devices, problems and images, and each row tells all of them."""
    file, other = tmp_path / f"measurement{suffix}", tmp_path / "other.sqlite3"
    assert export(full, file) == {"measurement": 4}
    assert taken(file, other) == 4
    found = rows(other)
    assert found["measurement"] == rows(full)["measurement"]
    assert found["session"] == rows(full)["session"]
    assert [len(found[name]) for name in ("problem", "image", "device", "winner", "timing")] == [1, 2, 2, 0, 0]
    with TuningDatabase(other, readonly=True) as database:
        assert tuple(column.name for column in database.exchange.tables()["measurement"]) == FLAT
    row = dict(zip(FLAT, found["measurement"][1], strict=True))
    assert row["product"] == "Two"
    assert (row["gpu"], row["image"], row["median_us"], row["samples"]) == ("GPU-1", "good", 10.1, "[10.1]")
    assert row["session"] != row["gpu"]


def test_columns_may_stand_in_any_order(full: Path, tmp_path: Path) -> None:
    """As a spreadsheet leaves them, which begins the file with a mark of its own; and a Parquet file's."""
    import pyarrow.parquet

    file = tmp_path / "measurement.csv"
    export(full, file)
    turned = [cells[::-1] for cells in csv.reader(file.open(newline=""))]
    with file.open("w", newline="", encoding="utf-8-sig") as opened:
        csv.writer(opened).writerows(turned)
    assert taken(file, tmp_path / "csv.sqlite3") == 4
    parquet = tmp_path / "measurement.parquet"
    export(full, parquet)
    table = pyarrow.parquet.read_table(parquet)
    pyarrow.parquet.write_table(table.select(table.column_names[::-1]), parquet)
    assert taken(parquet, tmp_path / "parquet.sqlite3") == 4
    assert rows(tmp_path / "csv.sqlite3") == rows(tmp_path / "parquet.sqlite3")


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_tables_from_before_there_were_judges_are_taken_in(full: Path, tmp_path: Path, suffix: str) -> None:
    """Their rows name none."""
    import pyarrow.parquet

    file, other = tmp_path / f"measurement{suffix}", tmp_path / "other.sqlite3"
    export(full, file)
    if suffix == ".csv":
        table = list(csv.reader(file.open(newline="")))
        for column in ("judge", "checks"):
            without(column)(table)
        with file.open("w", newline="") as opened:
            csv.writer(opened).writerows(table)
    else:
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(file).drop_columns(["judge", "checks"]), file)
    assert taken(file, other) == 4
    with TuningDatabase(other, readonly=True) as database:
        assert {one.judge for one in database.evidence.outcomes()} == {""}


def put(column: str, value: str) -> Callable[[list[list[str]]], None]:
    """Writes a value into the second row."""

    def change(table: list[list[str]]) -> None:
        table[2][table[0].index(column)] = value

    return change


def without(column: str) -> Callable[[list[list[str]]], None]:
    def change(table: list[list[str]]) -> None:
        place = table[0].index(column)
        for cells in table:
            del cells[place]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("median_us", "fast"), "row 2: median_us is 'fast', which is no number"),
        (put("median_us", "nan"), "row 2: median_us is nan, which is no number"),
        (put("median_us", "-1"), "row 2: median_us is -1.0, which is no time in microseconds"),
        (put("median_us", "0"), "row 2: median_us is 0.0, but the median of its samples is 10.1"),
        (put("registers", "1.5"), "row 2: registers is '1.5', which is no number"),
        (put("memory", str(2**63)), f"row 2: memory is {2**63}, not a whole number of 64 bits"),
        (put("samples", "[1, -2]"), "row 2: a number in samples is -2"),
        (put("sha256", "beef"), "row 2: sha256 is 'beef', which is no SHA-256"),
        (put("shape", "5"), "row 2: shape is '5', not names with values"),
        (put("triton", "3.7.0"), None),
        (put("multiprocessors", ""), "row 2: multiprocessors is missing"),
        (put("phase", "walk"), "row 2: it is not valid: CHECK constraint failed: phase IN"),
        (put("config", "ROWS=9"), r"row 2: it contradicts another one: UNIQUE constraint failed: image\.name"),
        (without("driver"), "it has no column driver"),
        (lambda table: table[0].append("mine"), "column 'mine' is one too many"),
        (lambda table: table[0].append("arch"), "column 'arch' is one too many"),
        (lambda table: table[3].pop(), "row 3: it has 34 columns, not 35"),
        (lambda table: table.clear(), "it has no column arch"),
    ],
)
def test_what_will_not_do_is_named_and_changes_nothing(
    full: Path, tmp_path: Path, change: Callable[[list[list[str]]], None], message: str | None
) -> None:
    """The file, the row and the column; the database is, bit for bit, what it was."""
    folder = exported(full, tmp_path / "tables", ".csv")
    file, other = folder / "measurement.csv", tmp_path / "other.sqlite3"
    with TuningDatabase(other) as database:
        database.evidence.problem_id(*PLACE, {"rows": 1})
    before = other.read_bytes()
    table = list(csv.reader(file.open(newline="")))
    change(table)
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows(table)
    expected = message or r"row 2: it contradicts another one: UNIQUE constraint failed: session\.uuid"
    with pytest.raises(TuningDatabaseError, match=f"{re.escape(str(file))}: {expected}"):
        taken(folder, other)
    assert other.read_bytes() == before


@pytest.mark.parametrize("name", ["measurement.csv", "measurement.parquet"])
def test_a_file_of_something_else_is_named(tmp_path: Path, name: str) -> None:
    """Whatever stands in it."""
    file = tmp_path / name
    for content in (b"", b"\x00\xff" * 64, b'arch,"kernel\n'):
        file.write_bytes(content)
        told = "damaged, or not a Parquet file" if name.endswith(".parquet") else ""
        with pytest.raises(TuningDatabaseError, match=f"{re.escape(str(file))}: {told}"):
            taken(file, tmp_path / "other.sqlite3")
    assert rows(tmp_path / "other.sqlite3") == {table: [] for table in TABLES}


@pytest.mark.parametrize("where", [0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_a_damaged_parquet_file_is_never_read_as_something_else(full: Path, tmp_path: Path, where: float) -> None:
    """It has checksums: whichever bytes of it are others, nothing is taken in, or what is right."""
    file, other = tmp_path / "measurement.parquet", tmp_path / "other.sqlite3"
    export(full, file)
    content = bytearray(file.read_bytes())
    place = int(len(content) * where)
    content[place : place + 8] = bytes(255 - one for one in content[place : place + 8])
    file.write_bytes(content)
    with suppress(TuningDatabaseError):
        taken(file, other)
    assert rows(other)["measurement"] in ([], rows(full)["measurement"])


def test_a_parquet_value_of_another_type_is_named(full: Path, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    file = tmp_path / "winner.parquet"
    export(full, file)
    table = pyarrow.parquet.read_table(file)
    place = table.column_names.index("median_us")
    made = table.set_column(place, "median_us", pyarrow.array(["10.1", "0.0"]))
    pyarrow.parquet.write_table(made, file)
    with pytest.raises(TuningDatabaseError, match=r"winner\.parquet: row 1: median_us is '.*', which is no number"):
        taken(file, tmp_path / "other.sqlite3")


@pytest.mark.parametrize("name", ["results.csv", "measurement.txt"])
def test_a_file_is_named_after_its_table(full: Path, tmp_path: Path, name: str) -> None:
    """On the way in and out."""
    with pytest.raises(TuningDatabaseError, match=rf"{name}: a file is named after its table"):
        export(full, tmp_path / name)
    assert not (tmp_path / name).exists()
    (tmp_path / name).write_text("")
    with pytest.raises(TuningDatabaseError, match=rf"{name}: a file is named after its table.* winner, model"):
        taken(tmp_path / name, tmp_path / "other.sqlite3")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TuningDatabaseError, match="empty: there is no table in it"):
        taken(empty, tmp_path / "other.sqlite3")


def test_without_pyarrow_there_is_csv(full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said what is missing, and nothing is left behind."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for out in (tmp_path / "tables", tmp_path / "winner.parquet"):
        with pytest.raises(TuningDatabaseError, match=f"{out.name}: Parquet needs pyarrow"):
            export(full, out)
        assert not out.exists()
    assert export(full, tmp_path / "winner.csv") == {"winner": 2}


def test_another_binary_is_refused_under_the_name_of_the_file(full: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "image.csv", tmp_path / "other.sqlite3"
    export(full, file)
    with TuningDatabase(other) as database:
        database.evidence.image_id("good", "ROWS=1", "c" * 64, 32, 0, 1024)
    with pytest.raises(TuningDatabaseError, match=rf"{re.escape(str(file))}: good has checksum a{{64}}, but c{{64}}"):
        taken(file, other)


def test_a_row_that_says_two_things_is_not_written(full: Path, tmp_path: Path) -> None:
    """A column that stands for two of the database says what both say."""
    with sqlite3.connect(archive.folder_of(full) / local.NAME) as connection:
        connection.execute("UPDATE device SET arch = 'sm_80' WHERE product = 'Two'")
    with pytest.raises(TuningDatabaseError, match=r"table measurement, row .*: arch is 'sm_80', but 'sm_90'"):
        export(full, tmp_path / "measurement.csv")
    assert not (tmp_path / "measurement.csv").exists()


def test_models_come_along_where_there_are_none(full: Path, tmp_path: Path) -> None:
    """All of an operator's on a product, or none of them: models of two fits do not mix."""
    one, two = ("scale_rows", "T=bf16", "good"), ("scale_rows", "T=bf16", "borrowed")
    more: Any = ("whole", 2, (0.5, 0.0), 0.01, 150, 0.5)
    for path, images in ((full, [one, two]), (tmp_path / "other.sqlite3", [one])):
        with TuningDatabase(path) as database:
            models = [Model("sm_90", "Two", "scale", *image, *more) for image in images]
            database.put_models(models, ("sm_90", "Two", "scale"))
    with TuningDatabase(tmp_path / "new.sqlite3") as database:
        database.merge(full, own=True)
        assert [model.image for model in database.models()] == ["borrowed", "good"]
    with TuningDatabase(tmp_path / "other.sqlite3") as database:
        database.merge(full, own=True)
        assert [model.image for model in database.models()] == ["good"]


def test_the_commands_say_what_they_did(full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And end with status 1 where they could not."""
    folder, other = tmp_path / "tables", tmp_path / "other.sqlite3"
    assert main(["--database", str(full), "--export", str(folder)]) == 0
    assert "4 rows of measurement" in capsys.readouterr().out
    assert main(["--database", str(other), "--import", str(folder), "--own"]) == 0
    assert "6 timings were new" in capsys.readouterr().out
    assert rows(other) == rows(full)
    assert main(["--database", str(full), "--export", str(tmp_path / "none" / "winner.csv")]) == 1
    assert "none" in capsys.readouterr().err
    assert main(["--database", str(full), "--export", str(tmp_path / "none" / "tables")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["--database", str(other), "--import", str(tmp_path / "none.csv")]) == 1
    assert "none.csv: a file is named after" in capsys.readouterr().err
    assert main(["--database", str(other), "--import", str(tmp_path / "winner.csv")]) == 1
    assert "winner.csv: No such file" in capsys.readouterr().err


def test_analysts_read_it(full: Path, tmp_path: Path) -> None:
    """Times are numbers, and lists and shapes JSON, in either format."""
    import pyarrow.parquet

    export(full, tmp_path / "tables")
    (row,) = (
        row
        for row in pyarrow.parquet.read_table(tmp_path / "tables" / "measurement.parquet").to_pylist()
        if row["product"] == "One"
    )
    assert row["median_us"] == sum(json.loads(row["samples"])) / 2 == 10.25
    assert json.loads(row["shape"]) == {"rows": 64}
    assert row["error"] is None
