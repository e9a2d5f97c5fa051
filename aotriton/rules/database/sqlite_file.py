"""SQLite files of a tuning database: opened, checked, and written in transactions. Errors name the file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import sqlite_utils

APPLICATION_ID = 0x414F5442  # "AOTB" in the header of a tuning database: another program's file is not taken for ours

Row = TypeVar("Row")
Made = TypeVar("Made")


class TuningDatabaseError(Exception):
    """The database cannot be used as asked; the message names the file and the reason. The file was not changed."""


class File:
    """An open SQLite file. It belongs to the thread that opened it."""

    def __init__(self, path: Path, readonly: bool, application: int) -> None:
        self.path = path
        self._application = application
        check_access(path, readonly)
        with self.errors():
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}",
                uri=True,
                timeout=60,  # seconds to wait for another writer, whose transactions take milliseconds
                isolation_level=None,
            )
            connection.create_function("unhex", 1, _unhex, deterministic=True)  # SQLite has its own from 3.41 on
            self._db = sqlite_utils.Database(connection)

    def close(self) -> None:
        self._db.close()

    def version(self) -> int:
        """The schema's version, 0 of an empty file; TuningDatabaseError where the file is another program's."""
        with self.errors():
            version = int(str(self.value("PRAGMA user_version")))
            empty = not self.value("SELECT count(*) FROM main.sqlite_master")
            if self.value("PRAGMA application_id") != self._application and not empty:
                raise TuningDatabaseError(f"{self.path}: a SQLite file, but not a tuning database")
            return version

    def is_empty(self) -> bool:
        with self.errors():
            return not self.value("SELECT count(*) FROM main.sqlite_master")

    def check(self) -> None:
        """TuningDatabaseError where the file is damaged."""
        with self.errors():
            damage = self.value("PRAGMA main.quick_check(1)")
            if damage != "ok":
                raise TuningDatabaseError(f"{self.path}: damaged: {damage}")

    def make(self, script: str, version: int) -> None:
        """Executes a script that makes the schema of this version. Within a transaction."""
        self.script(script)
        self.execute(f"PRAGMA application_id = {self._application}")
        self.execute(f"PRAGMA user_version = {version}")

    def execute(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> sqlite3.Cursor:
        made: sqlite3.Cursor = self._db.execute(sql, parameters)
        return made

    def script(self, script: str) -> None:
        """Executes the statements of a script; ``executescript`` would commit the transaction that it is in."""
        statement = ""
        for line in script.splitlines():
            statement += line + "\n"
            if sqlite3.complete_statement(statement):
                self.execute(statement)
                statement = ""

    def many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        self._db.conn.executemany(sql, rows)

    def drop(self, kind: str, schema: str) -> None:
        """Drops each "table" or "view"."""
        for (name,) in self.execute(f"SELECT name FROM {schema}.sqlite_master WHERE type = ?", [kind]).fetchall():
            self.execute(f"DROP {kind} {schema}.{name}")

    def backup(self, to: File) -> None:
        """Copies the file, in one state, into another one."""
        self._db.conn.backup(to._db.conn)

    def value(self, sql: str, parameters: Sequence[object] = ()) -> object:
        row = self.execute(sql, parameters).fetchone()
        return row[0] if row else None

    def insert(self, table: str, row: Mapping[str, object]) -> int:
        """The id of the new row."""
        columns, marks = ", ".join(row), ", ".join("?" * len(row))
        return int(self.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values())).lastrowid or 0)

    def id_of(self, table: str, row: Mapping[str, object]) -> int:
        """The id of a row with these values, which is added where there is none."""
        same = " AND ".join(f"{column} IS ?" for column in row)
        found = self.value(f"SELECT id FROM {table} WHERE {same}", list(row.values()))
        return self.insert(table, row) if found is None else int(str(found))

    def read(self, table: str, make: Callable[[Row], Made], given: Iterable[Row], key: int = 1) -> Iterator[Made]:
        """What ``make`` makes of each row; where it will not do, an error with the row's first ``key`` values."""
        for row in given:
            try:
                yield make(row)
            except ValueError as error:
                named = row[:key] if isinstance(row, tuple) else (row,)
                raise TuningDatabaseError(
                    f"{self.path}: table {table}, row {' '.join(map(str, named))}: {error}"
                ) from None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """SQLite's errors, with the file's name and without the need to know SQLite."""
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            if "not a database" in text:
                text = "damaged, or not a SQLite database"
            elif "malformed" in text:
                text = f"damaged: {text}"
            elif "readonly" in text or "unable to open" in text:
                text = left_behind(self.path) or ("read-only" if "readonly" in text else text)
            elif "locked" in text:
                text = "another process has held it locked for a minute"
            raise TuningDatabaseError(f"{self.path}: {text}") from error

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read within is of one state of the file, whatever another process writes meanwhile."""
        with self.errors():
            if self._db.conn.in_transaction:
                yield
                return
            self.execute("BEGIN")
            try:
                yield
            finally:
                self._db.conn.rollback()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written within is there as a whole or not at all, in attached files, too."""
        with self.errors():
            # IMMEDIATE: the lock is taken before anything is read, so that two writers wait instead of deadlocking.
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.conn.rollback()
                raise
            self._db.conn.commit()


def _unhex(digits: str | None) -> bytes | str | None:
    """The bytes; what is no hexadecimal number stays what it is, and who reads it finds that."""
    try:
        return None if digits is None else bytes.fromhex(digits)
    except ValueError:
        return digits


def where(wanted: Mapping[str, object]) -> tuple[str, list[object]]:
    """The condition that columns have these values, those that are None left out, and the values."""
    given = {column: value for column, value in wanted.items() if value is not None}
    return ("WHERE " if given else "") + " AND ".join(f"{column} = ?" for column in given), list(given.values())


def left_behind(path: Path, *suffixes: str) -> str:
    """What there is to say of a journal beside the file; empty where there is none."""
    for suffix in suffixes or ("-wal", "-journal"):
        journal = path.with_name(path.name + suffix)
        if journal.is_file() and journal.stat().st_size:
            return (
                f"{journal.name} is beside it: a program that was writing was killed, or still runs. The two belong"
                " together; opening it for writing, as every run of the tuner does, finishes or undoes what is in there"
            )
    return ""


def check_access(path: Path, readonly: bool) -> None:
    """TuningDatabaseError where the file cannot be there or be written."""
    if path.is_dir():
        raise TuningDatabaseError(f"{path}: a folder, not a database file")
    if not path.parent.is_dir():
        raise TuningDatabaseError(f"{path}: the folder {path.parent} does not exist")
    if readonly:
        if not path.exists():
            raise TuningDatabaseError(f"{path}: there is no such file")
        return
    # The bits are looked at too, because root may write to a file that its owner has marked read-only.
    if path.exists() and not (os.access(path, os.W_OK) and path.stat().st_mode & 0o222):
        raise TuningDatabaseError(f"{path}: {left_behind(path) or 'read-only'}")
    if not os.access(path.parent, os.W_OK):
        raise TuningDatabaseError(f"{path}: the folder {path.parent} is read-only, and SQLite keeps its journal there")


def foreign_tables(path: Path) -> dict[str, list[dict[str, object]]]:
    """The tables of another program's SQLite file, with their rows by column; TuningDatabaseError where it is none."""
    check_access(path, readonly=True)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            quoted = {name: name.replace('"', '""') for name in names}
            return {
                name: [dict(row) for row in connection.execute(f'SELECT * FROM "{quoted[name]}"')] for name in names
            }
    except sqlite3.Error as error:
        raise TuningDatabaseError(f"{path}: damaged, or not a SQLite database: {error}") from None
