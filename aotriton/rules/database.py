"""The tuning database: measurements as they were taken, and the winners decided from them, as rows of one SQLite file.

Every line of SQL of the project is here and in ``schema.py``, but for ``dump.py``, which git runs with any Python. Any
number of processes may write at once: each write is a transaction of its own, so neither a reader nor the file after a
kill -9 has a half.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import sqlite_utils

from aotriton.rules import flat, rows
from aotriton.rules.arch import arch_spec
from aotriton.rules.rows import (
    PHASES,
    PROVENANCES,
    STATUSES,
    Certificate,
    Measurement,
    Model,
    Outcome,
    Product,
    Sample,
    Searched,
    SequenceTiming,
    Session,
    Winner,
    latest_medians,
)
from aotriton.rules.schema import MERGE, MIGRATIONS, Column, Table, depth, flat_name, flat_select

__all__ = [
    "PHASES",
    "PROVENANCES",
    "STATUSES",
    "Measurement",
    "Model",
    "Outcome",
    "Product",
    "Sample",
    "Searched",
    "SequenceTiming",
    "TuningDatabase",
    "TuningDatabaseError",
    "Winner",
    "foreign_tables",
    "latest_medians",
]

APPLICATION_ID = 0x414F5442  # "AOTB" in the file's header: another program's SQLite file is never taken for ours

# The place of each session among all, by when they began.
AGE = "age AS (SELECT id, row_number() OVER (ORDER BY started, id) AS place FROM session)"

Row = TypeVar("Row")
Made = TypeVar("Made")


class TuningDatabaseError(Exception):
    """The database cannot be used as asked; the message names the file and the reason. The file was not changed."""


class TuningDatabase:
    """An open tuning database. Made where there is none, migrated where it is older; neither when ``readonly``.

    An object belongs to the thread that made it; open one for each thread. TuningDatabaseError where the file is
    missing and ``readonly``, is not writable, is damaged, is not a tuning database or comes from a newer version.
    """

    def __init__(self, path: str | os.PathLike[str], readonly: bool = False) -> None:
        self.path = Path(path)
        _check_access(self.path, readonly)
        with self._errors():
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}",
                uri=True,
                timeout=60,  # seconds to wait for another writer, whose transactions take milliseconds
                isolation_level=None,
            )
            self._db = sqlite_utils.Database(connection)
        try:
            with self._errors():
                self._open(readonly)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> TuningDatabase:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open(self, readonly: bool) -> None:
        version = self._check_version(readonly)
        if version:
            damage = self._value("PRAGMA quick_check(1)")
            if damage != "ok":
                raise TuningDatabaseError(f"{self.path}: damaged: {damage}")
        if readonly:
            # It could be read with its log, but who copies, commits or compares the file has only half of it.
            if left := _left_behind(self.path, "-wal"):
                raise TuningDatabaseError(f"{self.path}: {left}")
            return
        self._db.execute("PRAGMA journal_mode = DELETE")  # one file, whatever another tool has set
        if version < len(MIGRATIONS):
            self._db.execute("PRAGMA foreign_keys = OFF")  # a step makes tables anew that others refer to
            with self._transaction():
                self._migrate(self._check_version(readonly))  # read again: another process may have been faster
        self._db.execute("PRAGMA foreign_keys = ON")

    def _check_version(self, readonly: bool) -> int:
        version = int(str(self._value("PRAGMA user_version")))
        empty = not self._value("SELECT count(*) FROM sqlite_master")
        if self._value("PRAGMA application_id") != APPLICATION_ID and not (empty and not readonly):
            raise TuningDatabaseError(f"{self.path}: a SQLite file, but not a tuning database")
        if version > len(MIGRATIONS):
            raise TuningDatabaseError(
                f"{self.path}: its schema is version {version}, newer than this program's {len(MIGRATIONS)};"
                " update the program"
            )
        if readonly and version < len(MIGRATIONS):
            raise TuningDatabaseError(
                f"{self.path}: its schema is version {version}, older than {len(MIGRATIONS)},"
                " and migrating it needs write access"
            )
        return version

    def _migrate(self, version: int) -> None:
        self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for step in MIGRATIONS[version:]:
            for statement in _statements(step):
                self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _value(self, sql: str, parameters: Sequence[object] = ()) -> object:
        row = self._db.execute(sql, parameters).fetchone()
        return row[0] if row else None

    @contextmanager
    def _errors(self) -> Iterator[None]:
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
                text = _left_behind(self.path) or ("read-only" if "readonly" in text else text)
            elif "locked" in text:
                text = "another process has held it locked for a minute"
            raise TuningDatabaseError(f"{self.path}: {text}") from error

    def _read(self, table: str, make: Callable[[Row], Made], given: Iterable[Row], key: int = 1) -> Iterator[Made]:
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
    def _snapshot(self) -> Iterator[None]:
        """What is read within is of one state of the file, whatever another process writes meanwhile."""
        with self._errors():
            if self._db.conn.in_transaction:
                yield
                return
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.conn.rollback()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors():
            # IMMEDIATE: the lock is taken before anything is read, so that two writers wait instead of deadlocking.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.conn.rollback()
                raise
            self._db.conn.commit()

    def begin_session(
        self,
        *,
        device: str,
        driver: str,
        triton: str,
        torch: str,
        arch: str,
        multiprocessors: int,
        options: str,
        uuid: str | None = None,
        memory: int | None = None,
        power_limit: int | None = None,
        strategy: str = "exhaustive",
        seed: int | None = None,
    ) -> int:
        """Id of a new session: the conditions that its measurements share.

        ``device`` is the product as the driver names it, ``uuid`` this very GPU, with ``memory`` in bytes and
        ``power_limit`` in watts; ``options`` is the command line, ``strategy`` how candidates or shapes were chosen.
        """
        gpu: dict[str, object] = {"product": device, "uuid": uuid, "arch": arch, "multiprocessors": multiprocessors}
        gpu |= {"memory": memory, "power_limit": power_limit, "driver": driver}
        row: dict[str, object] = {"uuid": str(uuid4()), "triton": triton, "torch": torch, "options": options}
        row |= {"strategy": strategy, "seed": seed}
        row |= {"started": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        with self._transaction():
            known = self._value(
                f"SELECT id FROM device WHERE ({', '.join(gpu)}) IS ({', '.join('?' * len(gpu))})", list(gpu.values())
            )
            row["device"] = known or self._insert("device", gpu)
            return self._insert("session", row)

    def problem_id(self, arch: str, kernel: str, functional: str, bin: str, shape: Mapping[str, object]) -> int:
        """Id of a functional and bin in the ``shape`` (plain data) that stands for it; added where it is new."""
        row = {
            "arch": arch,
            "kernel": kernel,
            "functional": functional,
            "bin": bin,
            "shape": json.dumps(shape, sort_keys=True),
        }
        with self._transaction():
            found = self._value(
                "SELECT id FROM problem WHERE (arch, kernel, functional, bin, shape) = (?, ?, ?, ?, ?)",
                list(row.values()),
            )
            return int(str(found)) if found else self._insert("problem", row)

    def image_id(
        self,
        name: str,
        config: str,
        sha256: str | None = None,
        registers: int | None = None,
        spills: int | None = None,
        shared: int | None = None,
    ) -> int:
        """Id of an image; added where it is new, its facts filled in where it had not compiled before.

        TuningDatabaseError where the image is known by another checksum: timings of two binaries must not mix.
        """
        with self._transaction():
            self._db.execute(
                "INSERT INTO image (name, config, sha256, registers, spills, shared) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET sha256 = excluded.sha256, registers = excluded.registers,"
                " spills = excluded.spills, shared = excluded.shared WHERE sha256 IS NULL",
                (name, config, sha256, registers, spills, shared),
            )
            known = self._value("SELECT sha256 FROM image WHERE name = ?", [name])
            if sha256 and known != sha256:
                raise TuningDatabaseError(
                    f"{self.path}: {name} has checksum {known}, but was compiled to {sha256}: timings would mix"
                )
            return int(str(self._value("SELECT id FROM image WHERE name = ?", [name])))

    def rename_images(self, names: Mapping[str, str]) -> None:
        """Gives images new names wherever they stand, all or none: the bits that were measured are those of another
        source now. ``names`` maps those that are known to those that are not, or of which nothing was measured.
        """
        with self._transaction():
            for old, new in names.items():
                self._db.execute("DELETE FROM image WHERE name = ?", [new])
                self._db.execute("UPDATE image SET name = ? WHERE name = ?", [new, old])
                for table in ("winner", "model"):
                    self._db.execute(f"UPDATE {table} SET image = ? WHERE image = ?", [new, old])
            for number, images in self._db.execute("SELECT id, images FROM sequence").fetchall():
                renamed = json.dumps([names.get(name, name) for name in json.loads(images)])
                if renamed != images:
                    self._db.execute("UPDATE sequence SET images = ? WHERE id = ?", [renamed, number])

    def unmeasured_images(self) -> set[str]:
        """Those that were compiled, and neither swept nor raced."""
        with self._errors():
            found = self._db.execute("SELECT name FROM image WHERE id NOT IN (SELECT image FROM measurement)")
            return {str(row[0]) for row in found}

    def session_options(self) -> list[str]:
        """The options of each session, the one that began first at the front: as ``Outcome.session`` counts them."""
        with self._errors():
            return [str(row[0]) for row in self._db.execute("SELECT options FROM session ORDER BY started, id")]

    def sessions(self) -> list[Session]:
        """Every session, the one that began first at the front."""
        with self._errors():
            found = self._db.execute(
                "SELECT s.started, d.product, d.driver, s.triton, s.options, s.strategy, ifnull(m.rows, 0),"
                " ifnull(x.rows, 0) FROM session s JOIN device d ON d.id = s.device"
                " LEFT JOIN (SELECT session, count(*) AS rows FROM measurement GROUP BY session) m ON m.session = s.id"
                " LEFT JOIN (SELECT session, count(*) AS rows FROM sample GROUP BY session) x ON x.session = s.id"
                " ORDER BY s.started, s.id"
            )
            return [Session(*row) for row in found]

    def spills(self) -> dict[str, int]:
        """What each image that was ever compiled spills, by its name; 0 where nothing."""
        with self._errors():
            found = self._db.execute("SELECT name, spills FROM image WHERE sha256 IS NOT NULL")
            return dict(self._read("image", rows.spills, found))

    def facts(self) -> dict[str, tuple[str, int, int]]:
        """Config, registers and bytes of shared memory of each image that was ever compiled, by its name."""
        with self._errors():
            found = self._db.execute("SELECT name, config, registers, shared FROM image WHERE sha256 IS NOT NULL")
            return dict(self._read("image", rows.facts, found))

    def failures(self, kernel: str) -> list[tuple[str, str, str, str]]:
        """Functional, bin, config and what was said, of the kernel's measurements that are not ok, oldest first."""
        with self._errors():
            found = self._db.execute(
                "SELECT functional, bin, config, status || ifnull(': ' || detail, '') FROM measurement"
                " JOIN problem ON problem.id = problem JOIN image ON image.id = image"
                " WHERE problem.kernel = ? AND status <> 'ok' ORDER BY measurement.id",
                [kernel],
            )
            return [(str(functional), str(bin), str(config), str(said)) for functional, bin, config, said in found]

    def checksums(self) -> dict[str, str]:
        """SHA-256 by image name, of every image that was measured, the one that is known longest at the front."""
        with self._errors():
            found = self._db.execute(
                "SELECT name, sha256 FROM image WHERE sha256 IS NOT NULL"
                " AND id IN (SELECT image FROM measurement WHERE status = 'ok') ORDER BY id"
            )
            return dict(self._read("image", rows.checksum, found))

    def certificates(self) -> dict[str, list[Certificate]]:
        """By image, what the checks of its results found on each product, the products by name."""
        with self._errors():
            found = self._db.execute(
                "SELECT i.name, d.product, m.problem, s.started, m.status, ifnull(m.error, 0),"
                " ifnull(m.tolerance, 0) FROM measurement m"
                " JOIN image i ON i.id = m.image JOIN session s ON s.id = m.session JOIN device d ON d.id = s.device"
                " WHERE m.status = 'wrong' OR (m.status = 'ok' AND m.error IS NOT NULL)"
            )
            return rows.certificates(self._read("measurement", rows.check, found))

    def record(self, *measurements: Measurement) -> None:
        """Appends the measurements, all of them or none. When it returns they are on disk."""
        with self._transaction():
            for measurement in measurements:
                (measurement,) = self._read("measurement", rows.sound, [measurement])
                row = dict(zip((field.name for field in fields(measurement)), astuple(measurement), strict=True))
                for name in ("median_us", "error", "tolerance"):
                    row[name] = None if row[name] is None else float(f"{row[name]:.5g}")
                row["samples"] = ",".join(f"{sample:.5g}" for sample in measurement.samples)
                row["samples"] = f"[{row['samples']}]" if measurement.samples else None
                self._insert("measurement", row)

    def _insert(self, table: str, row: Mapping[str, object]) -> int:
        columns = ", ".join(row)
        marks = ", ".join("?" * len(row))
        return int(self._db.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values())).lastrowid)

    def outcomes(
        self,
        arch: str | None = None,
        kernel: str | None = None,
        problem: int | None = None,
        product: str | None = None,
    ) -> list[Outcome]:
        """Every measurement, oldest first, of one arch, kernel, problem id or product where given.

        An image that spills counts as pruned, however fast it ran: it is neither raced nor shipped.
        """
        where, values = _where({"arch": arch, "kernel": kernel, "id": problem})
        these = f"(SELECT id FROM problem {where})"
        with self._snapshot():
            # What a measurement refers to is read apart: few problems, images and sessions have many measurements.
            found = self._db.execute(f"SELECT id, arch, kernel, functional, bin, shape FROM problem {where}", values)
            problems = dict(self._read("problem", rows.problem, found))
            found = self._db.execute(
                "SELECT id, name, config, ifnull(spills, 0) > 0 FROM image"
                f" WHERE id IN (SELECT image FROM measurement WHERE problem IN {these})",
                values,
            )
            images = dict(self._read("image", rows.image, found))
            on, product_values = _where({"d.product": product})
            found = self._db.execute(
                f"WITH {AGE} SELECT s.id, d.product, age.place, s.started"
                f" FROM session s JOIN age ON age.id = s.id JOIN device d ON d.id = s.device {on}",
                product_values,
            )
            sessions = dict(self._read("session", rows.session, found))
            found = self._db.execute(
                "SELECT id, problem, image, session, phase, status, median_us FROM measurement"
                f" WHERE problem IN {these} AND session IN ({', '.join(map(str, sessions))}) ORDER BY id",
                values,
            )
            outcome = rows.outcomes(problems, images, sessions)
            return list(self._read("measurement", outcome, found))

    def end_search(self, problem: int, session: int, trials: int) -> None:
        """Records that the session's strategy is through with a problem."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO search VALUES (?, ?, ?)", [problem, session, trials])

    def searched(self, arch: str, kernel: str, product: str) -> list[Searched]:
        """The searches that came to their end."""
        with self._errors():
            found = self._db.execute(
                f"WITH {AGE} SELECT p.kernel, p.functional, p.bin, p.shape, age.place, s.strategy, x.trials"
                " FROM search x JOIN problem p ON p.id = x.problem JOIN session s ON s.id = x.session"
                " JOIN age ON age.id = s.id JOIN device d ON d.id = s.device"
                " WHERE (p.arch, p.kernel, d.product) = (?, ?, ?) ORDER BY age.place, p.id",
                [arch, kernel, product],
            )
            return [Searched(*row) for row in found]

    def samples_of(self, measurement: int) -> tuple[float, ...]:
        """The microseconds of one measurement by ``Outcome.id``, in the order taken; empty where it has none."""
        with self._errors():
            found = self._db.execute("SELECT id, samples FROM measurement WHERE id = ?", [measurement])
            return next(self._read("measurement", rows.times, found), ())

    def products(self, arch: str | None = None) -> list[Product]:
        """The products that anything right was measured on or any winner is for, by name; of one arch where given.

        Of a product that no session was on, the multiprocessors are those of its arch's usual one.
        """
        with self._snapshot():
            found = self._db.execute(
                "SELECT product, arch, max(multiprocessors), max(memory) FROM device"
                " WHERE id IN (SELECT device FROM session WHERE id IN"
                " (SELECT session FROM measurement WHERE status = 'ok' UNION SELECT session FROM sample))"
                " OR (arch, product) IN (SELECT arch, product FROM winner) GROUP BY product, arch"
            )
            known = {(one.name, one.arch): one for one in self._read("device", rows.product, found)}
            for product, on in self._db.execute("SELECT DISTINCT product, arch FROM winner").fetchall():
                if (product, on) not in known:
                    known[product, on] = self._product(product, on)
        return [known[key] for key in sorted(known) if arch in (None, key[1])]

    def _product(self, name: object, arch: object) -> Product:
        def made(row: Sequence[object]) -> Product:
            return rows.product((*row, arch_spec(str(arch)).multiprocessors, None))

        return next(self._read("winner", made, [(name, arch)]))

    def put_winners(self, winners: Iterable[Winner]) -> None:
        """Writes winners, all or none, over those of the same bins; only a measured one replaces a measured one."""
        with self._transaction():
            for winner in winners:
                row = dict(zip((field.name for field in fields(winner)), astuple(winner), strict=True))
                for name in ("median_us", "low_us", "high_us"):
                    row[name] = float(f"{row[name]:.5g}")
                runners_up = [(config, float(f"{median:.5g}")) for config, median in winner.runners_up]
                for name, value in (("psels", winner.psels), ("copts", winner.copts), ("runners_up", runners_up)):
                    row[name] = json.dumps(value)
                updates = ", ".join(f"{name} = excluded.{name}" for name in row)
                self._db.execute(
                    f"INSERT INTO winner ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
                    f" ON CONFLICT DO UPDATE SET {updates}"
                    " WHERE provenance <> 'measured' OR excluded.provenance = 'measured'",
                    list(row.values()),
                )

    def forget_winners(self, winners: Iterable[Winner]) -> None:
        """Takes the winners of these bins back, all or none; what was measured stays."""
        with self._transaction():
            for one in winners:
                self._db.execute(
                    "DELETE FROM winner WHERE (arch, product, kernel, functional, bin) = (?, ?, ?, ?, ?)",
                    [one.arch, one.product, one.kernel, one.functional, one.bin],
                )

    def merge(self, path: str | os.PathLike[str], called: Path | None = None) -> int:
        """Takes over what the database at ``path`` has and this one lacks: all of it or nothing. How many
        measurements, and timings of launch sequences.

        Sessions are told apart by their uuid, so that merging twice changes nothing. A cell that has a winner here
        keeps it, and so does an operator on a product its models; to let what is new have its say, decide and fit
        anew. TuningDatabaseError where that file is none, or where both know one image by different checksums; it names
        the file as ``called``.
        """
        with TuningDatabase(path, readonly=True) as other:
            name = other.path.absolute().as_uri()
        if self.path.samefile(path):
            return 0
        with self._errors():
            self._db.execute("ATTACH ? AS other", [f"{name}?mode=ro"])
            try:
                with self._transaction():
                    self._check_same_binaries(called or Path(path))
                    count = "SELECT (SELECT count(*) FROM measurement) + (SELECT count(*) FROM timing)"
                    before = self._value(count)
                    for statement in _statements(MERGE):
                        self._db.execute(statement)
                    return int(str(self._value(count))) - int(str(before))
            finally:
                self._db.execute("DETACH other")

    def _check_same_binaries(self, path: Path) -> None:
        found = self._db.execute(
            "SELECT name, i.sha256, o.sha256 FROM image i JOIN other.image o USING (name) WHERE i.sha256 <> o.sha256"
        ).fetchone()
        if found:
            image, here, there = found
            raise TuningDatabaseError(
                f"{path}: {image} has checksum {there}, but {here} in {self.path}: timings would mix"
            )

    def tables(self) -> dict[str, list[Column]]:
        """Every table, and the columns of its flat rows: its own, and those of what it refers to in place of ids.

        A table stands behind those that it refers to.
        """
        with self._snapshot():
            tables = self._tables()
        return {table: list({one.name: one for one in flat_select(tables, table)[0]}.values()) for table in tables}

    def flat_rows(self, *tables: str) -> Iterator[tuple[str, Iterator[tuple[object, ...]]]]:
        """Of each of the tables its flat rows, as ``tables`` has their columns; all of them of one state of the file.

        TuningDatabaseError names what stands in a row and can not be.
        """
        with self._snapshot():
            known = self._tables()
            for table in tables:
                columns, statement = flat_select(known, table)
                yield table, self._read(table, partial(_flat, columns), self._db.execute(statement), key=5)

    def add_flat(self, table: str, given: Iterable[Mapping[str, object]]) -> None:
        """Adds flat rows of a table, by column, with all that they refer to; none twice, and all or none.

        ValueError where a row contradicts another one or is none that the table takes, with its number from 1 on.
        """
        with self._transaction():
            tables, known = self._tables(), dict[tuple[object, ...], object]()
            for number, row in enumerate(given, 1):
                try:
                    self._put_flat(tables, known, table, row)
                except sqlite3.IntegrityError as error:
                    told = "it contradicts another one" if "UNIQUE" in str(error) else "it will not do"
                    raise ValueError(f"row {number}: {told}: {error}") from None

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
            where = " AND ".join(f"{name} IS ?" for name in made)
            found = self._value(f"SELECT {tables[table].key[0]} FROM {table} WHERE {where}", values[1:])
            known[values] = self._insert(table, made) if found is None else found
        return known[values]

    def _tables(self) -> dict[str, Table]:
        names = [row[0] for row in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        made: dict[str, Table] = {}
        for name in sorted(name for name in names if not name.startswith("sqlite_")):
            found = self._db.execute(f"SELECT name, type, [notnull], pk FROM pragma_table_info('{name}')").fetchall()
            columns = [Column(column, kind, not given) for column, kind, given, _ in found if column != "id"]
            references = self._db.execute(f"SELECT [from], [table] FROM pragma_foreign_key_list('{name}')").fetchall()
            key = [(place, column) for column, _, _, place in found if place]
            made[name] = Table(tuple(columns), dict(references), tuple(column for _, column in sorted(key)))
        return dict(sorted(made.items(), key=lambda item: depth(made, item[0])))

    def winners(self, arch: str | None = None, kernel: str | None = None, product: str | None = None) -> list[Winner]:
        """Winners of one arch, kernel or product where given, sorted by arch, product, kernel, functional and bin."""
        columns = ", ".join(field.name for field in fields(Winner))
        where, values = _where({"arch": arch, "kernel": kernel, "product": product})
        with self._errors():
            found = self._db.execute(
                f"SELECT {columns} FROM winner {where} ORDER BY arch, product, kernel, functional, bin", values
            )
            return list(self._read("winner", rows.winner, found, key=5))

    def add_sample(
        self,
        session: int,
        operator: str,
        functional: str,
        shape: Mapping[str, object],
        timings: Sequence[SequenceTiming],
        sm_clock: int | None = None,
        temperature: int | None = None,
    ) -> None:
        """Appends a shape of an operator with its timings, all or none; sequences that are new are added."""
        row: dict[str, object] = {"session": session, "operator": operator, "functional": functional}
        row |= {"shape": json.dumps(shape, sort_keys=True), "sm_clock": sm_clock, "temperature": temperature}
        with self._transaction():
            sample = self._insert("sample", row)
            for timing in self._read("timing", rows.sound_timing, timings):
                made: dict[str, object] = {"sample": sample, "sequence": self._sequence_id(operator, timing)}
                made |= {"median_us": float(f"{timing.median_us:.5g}"), "spread": float(f"{timing.spread:.5g}")}
                self._insert("timing", made | {"rounds": timing.rounds})

    def _sequence_id(self, operator: str, timing: SequenceTiming) -> int:
        row = {"operator": operator, "backend": timing.backend, "images": json.dumps(timing.images)}
        known = self._value("SELECT id FROM sequence WHERE (operator, backend, images) = (?, ?, ?)", list(row.values()))
        return int(str(known)) if known else self._insert("sequence", row)

    def samples(self, arch: str, operator: str) -> list[Sample]:
        """Every sample of the operator on the arch's products, oldest first, with its timings."""
        with self._snapshot():
            found = self._db.execute(
                "SELECT t.sample, t.sequence, q.backend, q.images, t.median_us, t.spread, t.rounds"
                " FROM timing t JOIN sequence q ON q.id = t.sequence WHERE q.operator = ?"
                " ORDER BY t.sample, t.sequence",
                [operator],
            )
            timings: dict[object, list[SequenceTiming]] = {}
            for sample, timing in self._read("timing", lambda row: (row[0], rows.timing(row[2:])), found, key=2):
                timings.setdefault(sample, []).append(timing)
            found = self._db.execute(
                f"WITH {AGE}"
                " SELECT m.id, d.product, m.operator, m.functional, m.shape, age.place FROM sample m"
                " JOIN age ON age.id = m.session JOIN session s ON s.id = m.session JOIN device d ON d.id = s.device"
                " WHERE d.arch = ? AND m.operator = ? ORDER BY m.id",
                [arch, operator],
            )
            return list(self._read("sample", lambda row: rows.sample(row[1:], timings.get(row[0], ())), found))

    def put_models(self, models: Iterable[Model], replacing: tuple[str, str, str]) -> None:
        """Writes models in place of all that there are of an (arch, product, operator), all or none."""
        with self._transaction():
            self._db.execute("DELETE FROM model WHERE (arch, product, operator) = (?, ?, ?)", list(replacing))
            for model in models:
                row = dict(zip((field.name for field in fields(model)), astuple(model), strict=True))
                row["coefficients"] = json.dumps([float(f"{one:.9g}") for one in model.coefficients])
                row |= {name: float(f"{row[name]:.5g}") for name in ("error", "saves")}
                next(self._read("model", rows.model, [tuple(row.values())], key=6))
                self._insert("model", row)

    def models(self, arch: str | None = None) -> list[Model]:
        """Models, of one arch where given, sorted by arch, product, kernel, functional and image."""
        columns = ", ".join(field.name for field in fields(Model))
        where, values = _where({"arch": arch})
        with self._errors():
            found = self._db.execute(
                f"SELECT {columns} FROM model {where} ORDER BY arch, product, kernel, functional, image", values
            )
            return list(self._read("model", rows.model, found, key=6))


def foreign_tables(path: Path) -> dict[str, list[dict[str, object]]]:
    """The tables of another program's SQLite file, with their rows by column; TuningDatabaseError where it is none."""
    _check_access(path, readonly=True)
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


def _flat(columns: Sequence[Column], row: Sequence[object]) -> tuple[object, ...]:
    """A flat row, each of its columns once; ValueError where it holds what it can not, or two things in one column."""
    made: dict[str, object] = {}
    for column, value in zip(columns, row, strict=True):
        if made.setdefault(column.name, value) != value:
            raise ValueError(f"{column.name} is {value!r}, but {made[column.name]!r} in what else it refers to")
        flat.sound(column, value)
    return tuple(made.values())


def _where(wanted: Mapping[str, object]) -> tuple[str, list[object]]:
    """The condition that columns have these values, those that are None left out, and the values."""
    given = {column: value for column, value in wanted.items() if value is not None}
    return ("WHERE " if given else "") + " AND ".join(f"{column} = ?" for column in given), list(given.values())


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; ``executescript`` would commit the migration's transaction."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _left_behind(path: Path, *suffixes: str) -> str:
    """What there is to say of a journal beside the file; empty where there is none."""
    for suffix in suffixes or ("-wal", "-journal"):
        journal = path.with_name(path.name + suffix)
        if journal.is_file() and journal.stat().st_size:
            return (
                f"{journal.name} is beside it: a program that was writing was killed, or still runs. The two belong"
                " together; opening it for writing, as every run of the tuner does, finishes or undoes what is in there"
            )
    return ""


def _check_access(path: Path, readonly: bool) -> None:
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
        raise TuningDatabaseError(f"{path}: {_left_behind(path) or 'read-only'}")
    if not os.access(path.parent, os.W_OK):
        raise TuningDatabaseError(f"{path}: the folder {path.parent} is read-only, and SQLite keeps its journal there")
