"""The metadata for Datasette: it describes tables and columns that are there, and its queries run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from aotriton.rules.database import TuningDatabase
from aotriton.rules.database.local import NAME

RULES = Path(__file__).resolve().parents[2] / "rules"
DATABASE = RULES / "tuning_database.sqlite3"
METADATA: dict[str, dict[str, Any]] = json.loads((RULES / "datasette.json").read_text())["databases"]
QUERIES = [(name, query) for name, about in METADATA.items() for query in about["queries"]]
PARAMETERS = {"kernel": "attn_fwd_hopper", "operator": "attn_fwd"}


@pytest.fixture(scope="module")
def connections() -> Iterator[dict[str, sqlite3.Connection]]:
    """The database and its evidence, unpacked, by the names that Datasette gives them."""
    with TuningDatabase(DATABASE, readonly=True) as database, ExitStack() as stack:
        yield {
            path.stem: stack.enter_context(closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)))
            for path in (DATABASE, database.evidence.path)
        }


def test_databases_are_found_by_the_names_of_their_files() -> None:
    """Datasette names a database after its file."""
    assert list(METADATA) == [DATABASE.stem, Path(NAME).stem]


@pytest.mark.parametrize("database", METADATA)
def test_every_table_is_described(database: str, connections: dict[str, sqlite3.Connection]) -> None:
    """All of them, and no column that is not there."""
    connection, tables = connections[database], METADATA[database]["tables"]
    there = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    assert set(tables) == {name for (name,) in there}
    for table, about in tables.items():
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        sorted_by = {about[name] for name in ("sort", "sort_desc") if name in about}
        assert {*about.get("columns", ()), *about.get("facets", ()), *sorted_by} <= columns, table
        assert about["description"]


@pytest.mark.parametrize(("database", "name"), QUERIES)
def test_every_query_finds_something(database: str, name: str, connections: dict[str, sqlite3.Connection]) -> None:
    """In the shipped database."""
    about: dict[str, Any] = METADATA[database]["queries"][name]
    assert about["title"]
    assert connections[database].execute(about["sql"], PARAMETERS).fetchone()
