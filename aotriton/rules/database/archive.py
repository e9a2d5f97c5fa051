"""The archive of the evidence: a folder of files that git carries. Files are only added, until ``repack`` joins them.

A file has the sessions that were packed at once, as a rule those of one run. It is UTF-8 text in xz, named after the
time when the first of them began and a digest of the content. Its first line names the format. Each further line is one
column of a table as JSON, for example ``{"measurement.status": ["ok"]}``. Tables stand in the order of ``ARCHIVED``,
their rows in the order in which they were added. A reference to another table is the position of a row in this file,
from 0 on. Times are as ``ticks.py`` says; in formats 1 and 2 they are as in the database. If a session goes on after it
was packed, it is packed once more; a row that is in two files is one row.

A file of renamed images has one line after the first: old names with the new ones. It applies to the files that are
named after an earlier time. A file of marks has one line, too: what is said of sessions, each with what it is and a
text; it holds whatever is added later.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from aotriton.rules.database import ticks
from aotriton.rules.database.schema import ARCHIVED, COUNTED, MERGE, SINCE_2, Table, tables_of
from aotriton.rules.database.sqlite_file import File, TuningDatabaseError

FORMATS = tuple({"aotriton evidence": version} for version in (1, 2, 3))  # the last one is written
SUFFIX = ".json.xz"
RENAMED, MARKS = f"-renamed{SUFFIX}", f"-marks{SUFFIX}"
SMALL = 1 << 20  # bytes of a file that ``repack`` joins with others
KINDS_OF_MARKS = ("signed", "retracted")
TIME = len("2026-05-01T100000")  # of the name of a file
KINDS = {"TEXT": str, "INTEGER": int, "REAL": float}
# Eight bits of the byte before predict the next one best in text, and alignment predicts nothing.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]

Content = dict[str, dict[str, Sequence[object]]]  # of each table its columns
Mark = tuple[str, str, str]  # uuid of a session, what it is, and a text

ROWS = " + ".join(f"(SELECT count(*) FROM {{at}}.{table} WHERE session = s.id)" for table in COUNTED)
# The rows of each table that belong to sessions: {at} is the database, {ids} are theirs.
OF_SESSIONS = {
    "device": "id IN (SELECT device FROM {at}.session WHERE id IN ({ids}))",
    "session": "id IN ({ids})",
    "problem": "id IN (SELECT problem FROM {at}.measurement WHERE session IN ({ids})"
               " UNION SELECT problem FROM {at}.search WHERE session IN ({ids}))",
    "image": "id IN (SELECT image FROM {at}.measurement WHERE session IN ({ids}))",
    "measurement": "session IN ({ids})",
    "search": "session IN ({ids})",
    "sequence": "id IN (SELECT sequence FROM {at}.timing WHERE sample IN"
                " (SELECT id FROM {at}.sample WHERE session IN ({ids})))",
    "sample": "session IN ({ids})",
    "timing": "sample IN (SELECT id FROM {at}.sample WHERE session IN ({ids}))",
}  # fmt: skip


def folder_of(database: Path) -> Path:
    """The archive of the database at this path."""
    return database.with_suffix(".evidence")


def files(folder: Path) -> dict[str, int]:
    """The files of the archive, by name in order, with their sizes in bytes."""
    found = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    return {one.name: one.stat().st_size for one in found}


def names_today(folder: Path) -> dict[str, str]:
    """The names today of images whose sources changed and whose bits did not, by each of the earlier names."""
    today: dict[str, str] = {}
    for name in files(folder):
        if name.endswith(RENAMED):
            renamed = _read_renamed(folder / name)
            today = {old: renamed.get(new, new) for old, new in today.items()} | renamed
    return today


def unpacked(file: File, at: str) -> list[int]:
    """Ids of the sessions that have rows which the archive lacks."""
    sql = f"SELECT id FROM {at}.session s WHERE packed <> {ROWS.format(at=at)} ORDER BY started, id"
    return [int(row[0]) for row in file.execute(sql)]


def pack(file: File, at: str, folder: Path, sessions: Sequence[int]) -> Path | None:
    """Writes these sessions, which are in the database attached as ``at``, as one more file, and returns it; None where
    there are none. Within a transaction.
    """
    if not sessions:
        return None
    content = _content(file, at, sessions)
    lines = [
        {f"{table}.{column}": values}
        for table, columns in content.items()
        for column, values in ticks.written(columns).items()
    ]
    path = _write(folder, str(min(map(str, content["session"]["started"]))), SUFFIX, lines)
    _loaded(file, at, path)
    ids = ", ".join(map(str, sessions))
    file.execute(f"UPDATE {at}.session AS s SET packed = {ROWS.format(at=at)} WHERE id IN ({ids})")
    return path


def repack(file: File, at: str, folder: Path) -> int:
    """Writes the sessions of all files below SMALL bytes, which are in the database attached as ``at``, as one file in
    their place. Returns the number of files that it replaces. Within a transaction.

    If it ends early, rows are in two files, which count once.
    """
    small = [name for name, size in files(folder).items() if size < SMALL and not name.endswith((RENAMED, MARKS))]
    if len(small) < 2:
        return 0
    known = tables_of(file.execute, at)
    uuids = {uuid for name in small for uuid in _read(folder / name, known)["session"]["uuid"]}
    found = file.execute(f"SELECT id, uuid FROM {at}.session ORDER BY started, id").fetchall()
    made = pack(file, at, folder, [int(id) for id, uuid in found if uuid in uuids])
    for name in small:
        if made and name == made.name:  # one of them had all that the others have
            continue
        (folder / name).unlink()
        file.execute(f"DELETE FROM {at}.archived WHERE name = ?", [name])
    return len(small)


def _content(file: File, at: str, sessions: Sequence[int]) -> Content:
    """The rows of sessions with all that they refer to."""
    tables, ids = tables_of(file.execute, at), ", ".join(map(str, sessions))
    content: Content = {}
    positions: dict[str, dict[object, int]] = {}  # by table: the position of each id in the file
    for table in ARCHIVED:
        columns, references = [one.name for one in tables[table].columns], tables[table].references
        has_id = table not in ("search", "timing")
        order = ", ".join(tables[table].key)
        names = ", ".join(["id" if has_id else "NULL", *columns])
        condition = OF_SESSIONS[table].format(at=at, ids=ids)
        found = file.execute(f"SELECT {names} FROM {at}.{table} WHERE {condition} ORDER BY {order}").fetchall()
        keys, *values = [list(one) for one in zip(*found, strict=True)] or [[] for _ in ("id", *columns)]
        positions[table] = {id: position for position, id in enumerate(keys)}
        own: dict[str, Sequence[object]] = dict(zip(columns, values, strict=True))
        for column, other in references.items():
            own[column] = [positions[other][id] for id in own[column]]
        content[table] = own
    return content


def pack_renamed(file: File, at: str, folder: Path, names: Mapping[str, str]) -> None:
    """Writes new names of images, by the old ones, to the archive. Within a transaction."""
    _loaded(file, at, _write(folder, datetime.now(timezone.utc).isoformat(), RENAMED, [{"renamed": dict(names)}]))


def pack_marks(file: File, at: str, folder: Path, marks: Sequence[Mark]) -> None:
    """Writes marks to the archive and to the database that is attached as ``at``. Within a transaction."""
    if marks:
        _loaded(file, at, _write(folder, datetime.now(timezone.utc).isoformat(), MARKS, [{"marks": marks}]))
        file.many(f"INSERT OR IGNORE INTO {at}.mark VALUES (?, ?, ?)", marks)


def _loaded(file: File, at: str, path: Path) -> None:
    file.execute(f"INSERT OR REPLACE INTO {at}.archived VALUES (?, ?)", [path.name, path.stat().st_size])


def _write(folder: Path, time: str, suffix: str, lines: Sequence[object]) -> Path:
    """The new file, which is there as a whole or not at all."""
    text = "".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n" for one in (FORMATS[-1], *lines))
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    path = folder / f"{time[:19].replace(':', '')}-{digest}{suffix}"
    folder.mkdir(exist_ok=True)
    unfinished = folder / f".{path.name}.{uuid4().hex}"
    try:
        with unfinished.open("xb") as opened:
            opened.write(lzma.compress(text.encode(), check=lzma.CHECK_CRC64, filters=FILTERS))
            opened.flush()
            os.fsync(opened.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise TuningDatabaseError(f"{path}: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def load(file: File, folder: Path, names: Sequence[str]) -> None:
    """Adds these files of the archive to the evidence that is ``main`` here: files of new names first, then all others
    in this order. What a file of an earlier time brings is renamed before it is added, and is the same row as one that
    is there only if that one was renamed before, too.

    Within a transaction; a database in memory, which is empty, is attached as ``other``.
    """
    known = tables_of(file.execute, "main")
    for table in ARCHIVED:
        columns = ", ".join(f"{one.name} {one.kind}" for one in known[table].columns)
        file.execute(f"CREATE TABLE other.{table} (id INTEGER PRIMARY KEY, {columns})")
    renamed = {name: _read_renamed(folder / name) for name in files(folder) if name.endswith(RENAMED)}
    for name in sorted(names, key=lambda one: one not in renamed):
        if name in renamed:
            rename(file, "main", renamed[name])
        elif name.endswith(MARKS):
            file.many("INSERT OR IGNORE INTO main.mark VALUES (?, ?, ?)", _read_marks(folder / name))
        else:
            for table, content in _read(folder / name, known).items():
                file.execute(f"DELETE FROM other.{table}")
                marks = ", ".join("? + 1" if one in known[table].references else "?" for one in content)
                rows = zip(*content.values(), strict=True)
                file.many(f"INSERT INTO other.{table} ({', '.join(content)}) VALUES ({marks})", rows)
            for later, new_names in renamed.items():
                if later[:TIME] >= name[:TIME]:
                    rename(file, "other", new_names)
            check_same_binaries(file, "main", folder / name)
            file.script(MERGE.format(to="main"))
            file.execute(
                f"UPDATE main.session AS m SET packed = max(packed, {ROWS.format(at='other')})"
                " FROM other.session s WHERE s.uuid = m.uuid"
            )
        _loaded(file, "main", folder / name)
    for table in ARCHIVED:
        file.execute(f"DROP TABLE other.{table}")


def _lines(path: Path) -> list[dict[str, object]]:
    """The lines; TuningDatabaseError names the one that cannot be read."""
    number = 1
    made: list[dict[str, object]] = []
    try:
        with lzma.open(path, "rt", encoding="utf-8") as opened:
            made.append(json.loads(next(opened, "null")))
            if made[0] not in FORMATS:
                raise ValueError("no evidence, or of a newer version of this program")
            for number, line in enumerate(opened, 2):  # noqa: B007 (errors name it)
                read = json.loads(line)
                if not isinstance(read, dict) or len(read) != 1:
                    raise ValueError("not a name with its values")
                made.append(read)
    except (ValueError, lzma.LZMAError, EOFError, OSError) as error:  # of UTF-8 and JSON, too
        raise TuningDatabaseError(f"{path}: line {number}: {error or 'damaged'}") from None
    return made


def _read(path: Path, tables: Mapping[str, Table]) -> Content:
    """What a file of sessions holds; TuningDatabaseError names file and line of what is not valid."""
    content: Content = {}
    expected = [(table, column) for table in ARCHIVED for column in tables[table].columns]
    first, *lines = _lines(path)
    if first == FORMATS[0]:
        expected = [(table, column) for table, column in expected if (table, column.name) not in SINCE_2]
    if len(lines) != len(expected):
        raise TuningDatabaseError(f"{path}: it has {len(lines) + 1} lines, not {len(expected) + 1}")
    for number, (line, (table, column)) in enumerate(zip(lines, expected, strict=True), 2):
        ((name, values),) = line.items()
        own = content.setdefault(table, {})
        try:
            if name != f"{table}.{column.name}" or not isinstance(values, list):
                raise ValueError(f"{name} stands in place of {table}.{column.name}")
            if len(values) != len(next(iter(own.values()), values)):
                raise ValueError(f"{name} has {len(values)} values, the first column of the table another number")
            values = values if first in FORMATS[:2] else ticks.read(column.name, values, own)
            _check(name, values, {KINDS[column.kind]} | ({type(None)} if column.optional else set()))
            if other := tables[table].references.get(column.name):
                rows = range(len(next(iter(content[other].values()))))
                if any(value not in rows for value in values):
                    raise ValueError(f"{name} refers to a row of {other} that is not there")
        except ValueError as error:
            raise TuningDatabaseError(f"{path}: line {number}: {error}") from None
        own[column.name] = values
    return content


def _check(name: str, values: Sequence[object], kinds: set[type]) -> None:
    if wrong := set(map(type, values)) - kinds:
        number, value = next((number, one) for number, one in enumerate(values, 1) if type(one) in wrong)
        raise ValueError(f"{name}: value {number} is {value!r}, not {' or '.join(sorted(k.__name__ for k in kinds))}")


def _read_renamed(path: Path) -> dict[str, str]:
    _, *lines = _lines(path)
    names = lines[0].get("renamed") if len(lines) == 1 else None
    if not isinstance(names, dict) or not all(isinstance(one, str) for one in names.values()):
        raise TuningDatabaseError(f"{path}: line 2: not the old names of images with the new ones")
    return names


def _read_marks(path: Path) -> list[Mark]:
    _, *lines = _lines(path)
    marks: Any = lines[0].get("marks") if len(lines) == 1 else None
    sound = isinstance(marks, list) and all(
        isinstance(one, list) and len(one) == 3 and set(map(type, one)) == {str} and one[1] in KINDS_OF_MARKS
        for one in marks
    )
    if not sound:
        raise TuningDatabaseError(f"{path}: line 2: not marks: a session, one of {KINDS_OF_MARKS}, and a text")
    return [(session, kind, said) for session, kind, said in marks]


def rename(file: File, at: str, names: Mapping[str, str]) -> None:
    """Gives images new names; an image stays as it is if another one that was measured has its new name."""
    measured = f"SELECT 1 FROM {at}.measurement WHERE image = (SELECT id FROM {at}.image WHERE name = ?) LIMIT 1"
    known = {str(name) for (name,) in file.execute(f"SELECT name FROM {at}.image")}
    for old, new in names.items():
        if old in known and not file.value(measured, [new]):
            file.execute(f"DELETE FROM {at}.image WHERE name = ?", [new])
            file.execute(f"UPDATE {at}.image SET name = ? WHERE name = ?", [new, old])
    for number, images in file.execute(f"SELECT id, images FROM {at}.sequence").fetchall():
        renamed = json.dumps([names.get(name, name) for name in json.loads(images)])
        if renamed != images:
            file.execute(f"UPDATE OR IGNORE {at}.sequence SET images = ? WHERE id = ?", [renamed, number])


def check_same_binaries(file: File, at: str, path: Path) -> None:
    """TuningDatabaseError where ``other`` knows an image by another checksum."""
    found = file.execute(
        f"SELECT name, i.sha256, o.sha256 FROM {at}.image i JOIN other.image o USING (name) WHERE i.sha256 <> o.sha256"
    ).fetchone()
    if found:
        image, here, there = found
        raise TuningDatabaseError(f"{path}: {image} has checksum {there}, but {here} in {file.path}: timings would mix")
