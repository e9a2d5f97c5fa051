"""The tables of a database as flat rows: out of it, and into it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

from aotriton.rules.database import flat_rows, rows
from aotriton.rules.database.decisions import add_model, put_winners
from aotriton.rules.database.rows import Model, Winner
from aotriton.rules.database.schema import ARCHIVED, Column, Table, counts, flat_name, flat_select, tables_of
from aotriton.rules.database.sqlite_file import File, TuningDatabaseError

KINDS = {"str": "TEXT", "int": "INTEGER", "float": "REAL"}  # other fields are JSON
WINNER = tuple(Column(field.name, KINDS.get(str(field.type), "TEXT"), False) for field in fields(Winner))
MODEL = tuple(Column(field.name, KINDS.get(str(field.type), "TEXT"), False) for field in fields(Model))
# The views of what was decided, by name.
VIEWS = {
    "winner": Table(WINNER, {}, ("arch", "product", "kernel", "functional", "bin"), "main"),
    "model": Table(MODEL, {}, ("arch", "product", "kernel", "functional", "image"), "main"),
}


class Exchange:
    """What an open tuning database gives to others and takes from them: the evidence, winners and models.

    The rest follows from these.
    """

    def __init__(self, file: File) -> None:
        self._file = file

    def tables(self) -> dict[str, list[Column]]:
        """Every table, and the columns of its flat rows: its own, and those of what it refers to in place of ids.

        A table stands behind those that it refers to.
        """
        with self._file.snapshot():
            return {table: list({one.name: one for one in columns}.values()) for table, columns, _ in self._tables()}

    def flat_rows(self, *tables: str) -> Iterator[tuple[str, Iterator[tuple[object, ...]]]]:
        """Of each of the tables its flat rows, as ``tables`` has their columns; all of them of one state of the file.
        Rows of sessions that do not count are left out.

        TuningDatabaseError names what stands in a row and can not be.
        """
        with self._file.snapshot():
            known = {table: (columns, statement) for table, columns, statement in self._tables()}
            for table in tables:
                columns, statement = known[table]
                made = partial(_values, columns)
                yield table, self._file.read(table, made, self._file.execute(statement), key=5)

    def add_flat(self, table: str, given: Iterable[Mapping[str, object]]) -> None:
        """Adds flat rows of a table, by column, with all that they refer to; none twice, and all or none.

        ValueError if a row contradicts another one or is none that the table takes, with its number from 1 on.
        """
        with self._file.transaction():
            tables = tables_of(self._file.execute, "evidence")
            known = dict[tuple[object, ...], object]()
            for number, row in enumerate(given, 1):
                try:
                    flat_rows.sound_row(table, row)
                    if table == "winner":
                        put_winners(self._file, [rows.winner([row[one.name] for one in WINNER])])
                    elif table == "model":
                        self._put_model(row)
                    else:
                        self._put_flat(tables, known, table, row)
                except sqlite3.IntegrityError as error:
                    why = "it contradicts another one" if "UNIQUE" in str(error) else "it is not valid"
                    raise ValueError(f"row {number}: {why}: {error}") from None
                except ValueError as error:
                    raise ValueError(f"row {number}: {error}") from None

    def check(self, called: Path) -> None:
        """TuningDatabaseError names the file, as ``called``, and table, row and column of what cannot be true."""
        with self._file.snapshot():
            tables = tables_of(self._file.execute, "evidence")
            for table in ARCHIVED:
                self._check(called, table, tables[table], flat_select(tables, table)[1])
            self._check_references(called)
            for name, view in VIEWS.items():
                self._check(called, name, view, flat_select(VIEWS, name)[1])

    def _check(self, called: Path, name: str, table: Table, statement: str) -> None:
        """Checks the columns of a table's own; ``statement`` gives its rows with all that they refer to."""
        own = [one for one in table.columns if one.name not in table.references]
        columns = [Column(flat_name(name, one.name), one.kind, one.optional) for one in own]
        order = f" ORDER BY {', '.join(table.key)}" if table.key else ""
        found = self._file.execute(f"SELECT {', '.join(one.name for one in own)} FROM {table.schema}.{name}{order}")
        for number, row in enumerate(found):
            try:
                flat_rows.sound_row(name, _flat(columns, row))
            except ValueError as error:
                told = self._file.execute(f"{statement} LIMIT 1 OFFSET {number}").fetchone()
                where = " ".join(map(str, told[:6]))
                raise TuningDatabaseError(f"{called}: table {name}, row {where}: {error}") from None

    def _check_references(self, called: Path) -> None:
        """Every row that another one refers to is there, and a problem was measured on a GPU of its arch."""
        if missing := self._file.execute("PRAGMA evidence.foreign_key_check").fetchone():
            raise TuningDatabaseError(
                f"{called}: table {missing[0]}, row {missing[1]}: {missing[2]} lacks what it names"
            )
        other = self._file.execute(
            "SELECT p.kernel, p.functional, p.bin, p.arch, d.arch, d.product FROM evidence.measurement m"
            " JOIN evidence.problem p ON p.id = m.problem JOIN evidence.session s ON s.id = m.session"
            " JOIN evidence.device d ON d.id = s.device WHERE p.arch <> d.arch"
        ).fetchone()
        if other:
            *cell, arch, of_gpu, product = other
            where = " ".join(map(str, cell))
            raise TuningDatabaseError(f"{called}: table measurement, row {where}: of {arch}, on {product}: {of_gpu}")

    def _put_model(self, row: Mapping[str, object]) -> None:
        made = {one.name: row[one.name] for one in MODEL}
        same = " AND ".join(f"{name} IS ?" for name in made)
        if self._file.value(f"SELECT 1 FROM main.model WHERE {same}", list(made.values())) is None:
            add_model(self._file, made)

    def _put_flat(
        self,
        tables: Mapping[str, Table],
        known: dict[tuple[object, ...], object],
        table: str,
        row: Mapping[str, object],
    ) -> object:
        """Id of what a flat row says of a table, where that has ids; added where it is new."""
        made: dict[str, object] = {}
        for column in tables[table].columns:
            other = tables[table].references.get(column.name)
            made[column.name] = (
                self._put_flat(tables, known, other, row) if other else row[flat_name(table, column.name)]
            )
        values = (table, *made.values())
        if values not in known:
            same, at = " AND ".join(f"{name} IS ?" for name in made), f"{tables[table].schema}.{table}"
            found = self._file.value(f"SELECT {tables[table].key[0]} FROM {at} WHERE {same}", values[1:])
            known[values] = self._file.insert(at, made) if found is None else found
        return known[values]

    def _tables(self) -> Iterator[tuple[str, Sequence[Column], str]]:
        """Name, columns and statement of each table, without the rows of sessions that do not count."""
        evidence = tables_of(self._file.execute, "evidence")
        for table in ARCHIVED:
            columns, statement = flat_select(evidence, table)
            if "session" in [one.name for one in columns]:
                session = {"session": "session", "timing": "timing_sample_session"}.get(table, f"{table}_session")
                selected, order, by = statement.rpartition(" ORDER BY ")
                statement = f"{selected} WHERE {counts(session)}{order}{by}"
            yield table, columns, statement
        for view in VIEWS:
            yield view, *flat_select(VIEWS, view)


def _values(columns: Sequence[Column], row: Sequence[object]) -> tuple[object, ...]:
    return tuple(_flat(columns, row).values())


def _flat(columns: Sequence[Column], row: Sequence[object]) -> dict[str, object]:
    """A flat row by column; ValueError where it holds what it can not, or two things in one column."""
    made: dict[str, object] = {}
    for column, value in zip(columns, row, strict=True):
        if made.setdefault(column.name, value) != value:
            raise ValueError(f"{column.name} is {value!r}, but {made[column.name]!r} in what else it refers to")
        flat_rows.sound(column, value)
    return made
