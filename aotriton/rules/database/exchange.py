"""The tables of a database as flat rows: out of it, and into it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial

from aotriton.rules.database import flat, rows
from aotriton.rules.database.decisions import put_winners
from aotriton.rules.database.file import File
from aotriton.rules.database.rows import Winner
from aotriton.rules.database.schema import ARCHIVED, Column, Table, flat_name, flat_select, tables_of

KINDS = {"str": "TEXT", "float": "REAL", "tuple[tuple[str, float], ...]": "TEXT"}
WINNER = tuple(Column(field.name, KINDS[str(field.type)], False) for field in fields(Winner))


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

        TuningDatabaseError names what stands in a row and can not be.
        """
        with self._file.snapshot():
            known = {table: (columns, statement) for table, columns, statement in self._tables()}
            for table in tables:
                columns, statement = known[table]
                yield table, self._file.read(table, partial(_flat, columns), self._file.execute(statement), key=5)

    def add_flat(self, table: str, given: Iterable[Mapping[str, object]]) -> None:
        """Adds flat rows of a table, by column, with all that they refer to; none twice, and all or none.

        ValueError if a row contradicts another one or is none that the table takes, with its number from 1 on.
        """
        with self._file.transaction():
            tables = tables_of(self._file.execute, "evidence") | tables_of(self._file.execute, "main", "model")
            known = dict[tuple[object, ...], object]()
            for number, row in enumerate(given, 1):
                try:
                    if table == "winner":
                        put_winners(self._file, [rows.winner([row[one.name] for one in WINNER])])
                    else:
                        self._put_flat(tables, known, table, row)
                except sqlite3.IntegrityError as error:
                    why = "it contradicts another one" if "UNIQUE" in str(error) else "it is not valid"
                    raise ValueError(f"row {number}: {why}: {error}") from None
                except ValueError as error:
                    raise ValueError(f"row {number}: {error}") from None

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
        """Name, columns and statement of each table."""
        evidence = tables_of(self._file.execute, "evidence")
        for table in ARCHIVED:
            yield table, *flat_select(evidence, table)
        yield (
            "winner",
            WINNER,
            f"SELECT {', '.join(one.name for one in WINNER)} FROM main.winner ORDER BY 1, 2, 3, 4, 5",
        )
        yield "model", *flat_select(tables_of(self._file.execute, "main", "model"), "model")


def _flat(columns: Sequence[Column], row: Sequence[object]) -> tuple[object, ...]:
    """A flat row, each of its columns once; ValueError where it holds what it can not, or two things in one column."""
    made: dict[str, object] = {}
    for column, value in zip(columns, row, strict=True):
        if made.setdefault(column.name, value) != value:
            raise ValueError(f"{column.name} is {value!r}, but {made[column.name]!r} in what else it refers to")
        flat.sound(column, value)
    return tuple(made.values())
