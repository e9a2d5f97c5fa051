"""Prints a tuning database as stable text, one line for each row, so that ``git diff`` on the file can be read.

Git runs it as the file's textconv: ``git config diff.tuning_database.textconv "python3 rules/dump.py"``. It needs
nothing beyond the standard library, and prints whatever columns it finds, so that old and new schemas compare.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

# The tables and views, and what their rows are sorted by, as far as the file's schema has it. What is decided comes
# first: it is what a reader of a diff wants to see. Only files of versions 1 to 3 have those from ``device`` on.
ORDER = {
    "winner": ("arch", "product", "kernel", "functional", "bin"),
    "model": ("arch", "product", "kernel", "functional", "image"),
    "product": ("arch", "name"),
    "median": ("arch", "product", "kernel", "functional", "bin", "image"),
    "certificate": ("image", "product"),
    "image": ("name",),
    "session": ("uuid",),
    "device": ("id",),
    "problem": ("id",),
    "search": ("problem", "session"),
    "measurement": ("id",),
    "sequence": ("id",),
    "sample": ("id",),
    "timing": ("sample", "sequence"),
}


def dump(path: Path) -> Iterator[str]:
    """The lines of the database at ``path``; sqlite3.Error where it is not one."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        yield f"schema version {version}"
        existing = {
            row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        }
        for table, order in ORDER.items():
            if table not in existing:
                continue
            columns = [row["name"] for row in connection.execute(f"PRAGMA table_info({table})")]
            if version > 3:  # an id says nothing: no other row is printed with it
                columns = [column for column in columns if column != "id"]
            known = ", ".join(column for column in order if column in columns)
            for row in connection.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {known}"):
                values = (f"{name} {row[name]}" for name in columns if row[name] not in (None, ""))
                yield f"{table}: " + " | ".join(values)
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python3 rules/dump.py FILE", file=sys.stderr)
        return 2
    try:
        for line in dump(Path(arguments[0])):
            print(line)
    except sqlite3.Error as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
