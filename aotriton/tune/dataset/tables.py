"""The tuning database as tables that any program reads, Parquet or CSV, and back.

A file is named after its table, ``measurement.csv``. Its rows are flat: each has all that it refers to, so that it can
be read, and taken in, by itself.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aotriton.codegen.store import write_atomically
from aotriton.rules.database import TuningDatabase, TuningDatabaseError, flat_rows
from aotriton.rules.database.schema import SINCE_2, Column

FORMATS = (".parquet", ".csv")
BATCH = 16384  # rows of Parquet that are made at once
TYPES = {"TEXT": "string", "INTEGER": "int64", "REAL": "float64"}

Rows = Iterator[tuple[object, ...]]


def export(path: Path, out: Path) -> dict[str, int]:
    """Writes the database at ``path`` to ``out``, and returns the number of rows of each table. A file is named after
    its table and has the format of its suffix; a folder, which is made where there is none, receives all tables as
    Parquet.

    TuningDatabaseError where that is impossible, OSError where it cannot be written.
    """
    with TuningDatabase(path, readonly=True) as database:
        tables = database.exchange.tables()
        if alone := bool(out.suffix) and not out.is_dir():
            _check_name(out, tables)
        else:
            _pyarrow(out)
            out.mkdir(exist_ok=True)
        written = {}
        for table, rows in database.exchange.flat_rows(*([out.stem] if alone else tables)):
            file = out if alone else out / f"{table}.parquet"
            content, written[table] = (_csv if file.suffix == ".csv" else _parquet)(file, tables[table], rows)
            write_atomically(file, content)
    return written


def take_in(
    path: Path, database: TuningDatabase, own: bool = False, signer: str = "", called: Path | None = None
) -> int:
    """Merges the file at ``path``, or all files of the folder, into the database, as ``merge`` does.

    TuningDatabaseError names file, row (from 1 on) and column of what is not valid; nothing is taken in then.
    """
    files = sorted(one for one in path.iterdir() if one.suffix in FORMATS) if path.is_dir() else [path]
    if not files:
        raise TuningDatabaseError(f"{path}: there is no table in it, such as measurement.parquet")
    with TemporaryDirectory() as folder:
        staged = Path(folder) / "staged.sqlite3"
        with TuningDatabase(staged) as made:
            tables = made.exchange.tables()
            for file in files:
                _check_name(file, tables)
            for file in sorted(files, key=lambda one: list(tables).index(one.stem)):  # so that ids keep their order
                try:
                    columns = tables[file.stem]
                    read = _csv_rows(file, columns) if file.suffix == ".csv" else _parquet_rows(file, columns)
                    made.exchange.add_flat(
                        file.stem, (dict(zip((c.name for c in columns), row, strict=True)) for row in read)
                    )
                except OSError as error:
                    raise TuningDatabaseError(f"{file}: {error.strerror}") from None
                except ValueError as error:
                    raise TuningDatabaseError(f"{file}: {error}") from None
        return database.merge(staged, called or path, own, signer)


def _check_name(file: Path, tables: Iterable[str]) -> None:
    if file.suffix not in FORMATS or file.stem not in tables:
        known = ", ".join(tables)
        raise TuningDatabaseError(f"{file}: a file is named after its table, .csv or .parquet; tables are {known}")


def _csv(file: Path, columns: Sequence[Column], rows: Rows) -> tuple[bytes, int]:
    text, count = io.StringIO(newline=""), 0
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    for count, row in enumerate(rows, 1):  # noqa: B007 (they are counted as they are written)
        writer.writerow(row)
    return text.getvalue().encode(), count


def _csv_rows(file: Path, columns: Sequence[Column]) -> Rows:
    with file.open(newline="", encoding="utf-8-sig") as opened:
        found = csv.reader(opened, strict=True)
        try:
            names = next(found, [])
            _check_columns(names, columns)
            for number, cells in enumerate(found, 1):
                if len(cells) != len(names):
                    raise ValueError(f"row {number}: it has {len(cells)} columns, not {len(names)}")
                own = dict(zip(names, cells, strict=True))
                yield _row(number, (flat_rows.read(one, own.get(one.name, "")) for one in columns))
        except csv.Error as error:
            raise ValueError(f"line {found.line_num}: {error}") from None


def _parquet(file: Path, columns: Sequence[Column], rows: Rows) -> tuple[bytes, int]:
    pa = _pyarrow(file)
    schema = pa.schema([(column.name, getattr(pa, TYPES[column.kind])()) for column in columns])
    content, count = io.BytesIO(), 0
    with pa.parquet.ParquetWriter(content, schema, compression="zstd", write_page_checksum=True) as writer:
        while batch := list(islice(rows, BATCH)):
            values = zip(*batch, strict=True)
            made = [pa.array(of_column, field.type) for of_column, field in zip(values, schema, strict=True)]
            writer.write_batch(pa.record_batch(made, schema=schema))
            count += len(batch)
    return content.getvalue(), count


def _parquet_rows(file: Path, columns: Sequence[Column]) -> Rows:
    pa = _pyarrow(file)
    number = 0
    content = io.BytesIO(file.read_bytes())
    try:
        with pa.parquet.ParquetFile(content, page_checksum_verification=True) as opened:
            names = opened.schema_arrow.names
            _check_columns(names, columns)
            for batch in opened.iter_batches(BATCH, columns=names):
                found, missing = batch.to_pydict(), [None] * batch.num_rows
                for row in zip(*(found.get(column.name, missing) for column in columns), strict=True):
                    number += 1
                    yield _row(number, (flat_rows.sound(*pair) for pair in zip(columns, row, strict=True)))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"damaged, or not a Parquet file: {error}") from None


def _row(number: int, values: Iterable[object]) -> tuple[object, ...]:
    try:
        return tuple(values)
    except ValueError as error:
        raise ValueError(f"row {number}: {error}") from None


def _check_columns(found: Sequence[str], columns: Sequence[Column]) -> None:
    """ValueError where a file has other columns; it may lack those that there were not when it was written."""
    names, later = [column.name for column in columns], {column for _, column in SINCE_2}
    if missing := [name for name in names if name not in found and name not in later]:
        raise ValueError(f"it has no column {missing[0]}")
    if more := [name for index, name in enumerate(found) if name not in names or name in found[:index]]:
        raise ValueError(f"column {more[0]!r} is one too many; the columns are {', '.join(names)}")


def _pyarrow(file: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise TuningDatabaseError(
            f"{file}: Parquet needs pyarrow (pip install pyarrow); a table by itself can be CSV: measurement.csv"
        ) from None
    return pyarrow
