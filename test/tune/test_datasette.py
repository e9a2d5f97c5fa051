"""What Datasette is given: its metadata describe what is there, its queries run, and its pages open."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

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


@pytest.fixture(scope="module")
def pages(connections: dict[str, sqlite3.Connection]) -> Callable[[str], str]:
    """Gets a page of Datasette with the shipped databases, started as the documents say: its HTML."""
    from datasette.app import Datasette

    files = [connection.execute("PRAGMA database_list").fetchone()[2] for connection in connections.values()]
    limit = {"sql_time_limit_ms": 10_000}
    shown = Datasette(files, metadata=json.loads((RULES / "datasette.json").read_text()), settings=limit)

    def page(address: str) -> str:
        reply = asyncio.run(shown.client.get(address))
        assert reply.status_code == 200, f"{address}: {reply.text[:500]}"
        return str(reply.text)

    return page


def test_the_page_of_measurements_opens(pages: Callable[[str], str]) -> None:
    """With the first hundred candidates, as links to their images, problems and sessions; also of one phase alone, as a
    facet leads to it.
    """
    for address in ("/evidence/measurement", "/evidence/measurement?phase=race"):
        page = pages(address)
        rows = re.findall(r'<td class="col-phase[^"]*">(.*?)</td>', page)
        assert len(rows) == 100, address
        for other in ("problem", "image", "session"):
            assert len(re.findall(rf'<td class="col-{other}[^"]*"><a href="/evidence/{other}/', page)) == 100, other
    assert set(rows) == {"race"}


@pytest.mark.parametrize("database", METADATA)
def test_every_page_opens(database: str, pages: Callable[[str], str]) -> None:
    """Of a database, of its tables and views, and of its queries; tables behind views without the names of ids."""
    page = pages(f"/{database}")
    for table, about in METADATA[database]["tables"].items():
        pages(f"/{database}/{table}" + ("?_labels=off" if about.get("hidden") else ""))
        assert (f'"/{database}/{table}"' in page) is not about.get("hidden", False), table
    for name in METADATA[database]["queries"]:
        pages(f"/{database}/{name}?{urlencode(PARAMETERS)}")
