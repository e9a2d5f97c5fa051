"""The metadata for Datasette: it describes tables and columns that are there, and its queries run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aotriton.rules.dump import ORDER

RULES = Path(__file__).resolve().parent.parent / "rules"
DATABASE = RULES / "tuning_database.sqlite3"
(METADATA,) = json.loads((RULES / "datasette.json").read_text())["databases"].values()
PARAMETERS = {"kernel": "attn_fwd_hopper", "operator": "attn_fwd"}


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{DATABASE.as_uri()}?mode=ro", uri=True)) as made:
        yield made


def test_it_is_found_by_the_name_of_the_file() -> None:
    """Datasette names a database after its file."""
    assert list(json.loads((RULES / "datasette.json").read_text())["databases"]) == [DATABASE.stem]


def test_every_table_is_described(connection: sqlite3.Connection) -> None:
    """All of them, and no column that is not there."""
    assert set(METADATA["tables"]) == set(ORDER)
    for table, about in METADATA["tables"].items():
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        sorted_by = {about[name] for name in ("sort", "sort_desc") if name in about}
        assert {*about.get("columns", ()), *about.get("facets", ()), *sorted_by} <= columns, table
        assert about["description"]


@pytest.mark.parametrize("name", METADATA["queries"])
def test_every_query_finds_something(name: str, connection: sqlite3.Connection) -> None:
    """In the shipped database."""
    about: dict[str, Any] = METADATA["queries"][name]
    assert about["title"]
    assert connection.execute(about["sql"], PARAMETERS).fetchone()
