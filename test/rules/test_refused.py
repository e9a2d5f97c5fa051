"""What another database may not bring: a row that cannot be true is named with its file, and nothing is taken."""

from __future__ import annotations

import csv
import sqlite3
from pathlib import Path

import pytest
from test_merge import rows, tuned

from aotriton.rules.database import TuningDatabase, TuningDatabaseError, archive, local
from aotriton.tune.dataset.tables import export, take_in

DAY = "2026-05-03T00:00:00"
# Statements that write something false into a database's evidence, and what is said of it.
LIES = {
    "UPDATE session SET started = '9999-01-01T00:00:00+00:00'": "started is '9999-01-01T00:00:00.00:00', in the future",
    "UPDATE session SET started = 'soon'": "started is 'soon', which is no time",
    "UPDATE measurement SET median_us = 0.001": "median_us is 0.001, but the median of its samples is 5",
    "UPDATE measurement SET samples = NULL": "it is ok, and has no samples",
    "UPDATE measurement SET error = 9.0": r"it is ok, but its error of 9\.0 is above 0\.2",
    "UPDATE image SET name = '../../evil'": r"image is '\.\./\.\./evil', which is no name",
    "UPDATE image SET registers = -1": "registers is -1, which is no number of anything",
    "UPDATE device SET multiprocessors = 0": "multiprocessors is 0",
}  # fmt: skip


def lying(tmp_path: Path, statement: str) -> Path:
    """A database whose evidence says something false, in its archive, too."""
    path = tuned(tmp_path / "two.sqlite3", DAY, {"b": 5.0})
    unpacked = archive.folder_of(path) / local.NAME
    with sqlite3.connect(unpacked) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
    return path


@pytest.mark.parametrize("statement", LIES)
def test_a_row_that_cannot_be_true_is_not_merged(tmp_path: Path, statement: str) -> None:
    one = tuned(tmp_path / "one.sqlite3", "2026-05-02T00:00:00", {"a": 10.0})
    two, before = lying(tmp_path, statement), rows(one)
    with TuningDatabase(one) as database:
        with pytest.raises(TuningDatabaseError, match=rf"two\.sqlite3: table \w+, row .*: {LIES[statement]}"):
            database.merge(two)
        assert rows(one) == before


@pytest.mark.parametrize("statement", LIES)
def test_a_row_that_cannot_be_true_is_not_imported(tmp_path: Path, statement: str) -> None:
    one = tuned(tmp_path / "one.sqlite3", "2026-05-02T00:00:00", {"a": 10.0})
    two = tuned(tmp_path / "two.sqlite3", DAY, {"b": 5.0})
    export(two, tmp_path / "measurement.csv")
    column, value = statement.split(" SET ")[1].split(" = ")
    table = list(csv.reader((tmp_path / "measurement.csv").open(newline="")))
    name = {"name": "image"}.get(column, column)
    table[1][table[0].index(name)] = "" if value == "NULL" else value.strip("'")
    with (tmp_path / "measurement.csv").open("w", newline="") as opened:
        csv.writer(opened).writerows(table)
    before = rows(one)
    with TuningDatabase(one) as database:
        with pytest.raises(TuningDatabaseError, match=rf"measurement\.csv: row 1: {LIES[statement]}"):
            take_in(tmp_path / "measurement.csv", database)
        assert rows(one) == before
