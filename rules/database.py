"""The tuning database: measurements as they were taken, and the winners decided from them, as rows of one SQLite file.

Every line of SQL of the project is here, but for ``dump.py``, which git runs with any Python. Any number of processes
may write at once: each write is a transaction of its own, so neither a reader nor the file after a kill -9 has a half.
"""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

import sqlite_utils

from aotriton.rules import checked

APPLICATION_ID = 0x414F5442  # "AOTB" in the file's header: another program's SQLite file is never taken for ours

Row = TypeVar("Row")
Made = TypeVar("Made")

PROVENANCES = ("measured", "borrowed", "predicted", "imported")
STATUSES = ("ok", "wrong", "compile_failed", "crashed", "timed_out", "pruned")
PHASES = ("sweep", "race")

# Step n takes a file from user_version n to n + 1. A step that was ever committed with a database is never edited.
MIGRATIONS = (
    """
    CREATE TABLE session (
        id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, device TEXT NOT NULL, driver TEXT NOT NULL,
        triton TEXT NOT NULL, torch TEXT NOT NULL, arch TEXT NOT NULL, multiprocessors INTEGER NOT NULL,
        options TEXT NOT NULL, started TEXT NOT NULL);
    CREATE TABLE problem (
        id INTEGER PRIMARY KEY, arch TEXT NOT NULL, kernel TEXT NOT NULL, functional TEXT NOT NULL, bin TEXT NOT NULL,
        shape TEXT NOT NULL, UNIQUE (arch, kernel, functional, bin, shape));
    CREATE TABLE image (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, config TEXT NOT NULL, sha256 TEXT, registers INTEGER,
        spills INTEGER, shared INTEGER);
    CREATE TABLE measurement (
        id INTEGER PRIMARY KEY,
        problem INTEGER NOT NULL REFERENCES problem, image INTEGER NOT NULL REFERENCES image,
        session INTEGER NOT NULL REFERENCES session,
        phase TEXT NOT NULL CHECK (phase IN ('sweep', 'race')),
        status TEXT NOT NULL CHECK (status IN ('ok', 'wrong', 'compile_failed', 'crashed', 'timed_out', 'pruned')),
        median_us REAL CHECK (median_us > 0 OR status <> 'ok'),
        samples TEXT, error REAL, tolerance REAL, detail TEXT,
        UNIQUE (problem, image, session, phase));
    CREATE TRIGGER measurement_is_not_changed BEFORE UPDATE ON measurement
        BEGIN SELECT RAISE(ABORT, 'measurement is append-only'); END;
    CREATE TRIGGER measurement_is_not_deleted BEFORE DELETE ON measurement
        BEGIN SELECT RAISE(ABORT, 'measurement is append-only'); END;
    CREATE TABLE winner (
        arch TEXT NOT NULL, kernel TEXT NOT NULL, functional TEXT NOT NULL, bin TEXT NOT NULL, image TEXT NOT NULL,
        psels TEXT NOT NULL, copts TEXT NOT NULL,
        provenance TEXT NOT NULL CHECK (provenance IN ('measured', 'borrowed', 'predicted', 'imported')),
        source TEXT NOT NULL, median_us REAL NOT NULL, runners_up TEXT NOT NULL,
        PRIMARY KEY (arch, kernel, functional, bin)) WITHOUT ROWID;
    """,
)


# What another file, attached as ``other``, has more. Ids are given anew; rows are found by what makes them unique.
MERGE = """
    INSERT INTO image (name, config, sha256, registers, spills, shared)
        SELECT name, config, sha256, registers, spills, shared FROM other.image WHERE true ORDER BY id
        ON CONFLICT (name) DO UPDATE SET sha256 = excluded.sha256, registers = excluded.registers,
            spills = excluded.spills, shared = excluded.shared WHERE sha256 IS NULL;
    INSERT INTO problem (arch, kernel, functional, bin, shape)
        SELECT arch, kernel, functional, bin, shape FROM other.problem WHERE true ORDER BY id ON CONFLICT DO NOTHING;
    INSERT INTO session (uuid, device, driver, triton, torch, arch, multiprocessors, options, started)
        SELECT uuid, device, driver, triton, torch, arch, multiprocessors, options, started
        FROM other.session WHERE true ORDER BY id ON CONFLICT DO NOTHING;
    INSERT INTO measurement
        (problem, image, session, phase, status, median_us, samples, error, tolerance, detail)
        SELECT p.id, i.id, s.id, m.phase, m.status, m.median_us, m.samples, m.error, m.tolerance, m.detail
        FROM other.measurement m
        JOIN other.problem op ON op.id = m.problem JOIN problem p USING (arch, kernel, functional, bin, shape)
        JOIN other.image oi ON oi.id = m.image JOIN image i ON i.name = oi.name
        JOIN other.session os ON os.id = m.session JOIN session s ON s.uuid = os.uuid
        WHERE true ORDER BY m.id ON CONFLICT DO NOTHING;
    INSERT INTO winner SELECT * FROM other.winner WHERE true ON CONFLICT DO NOTHING;
"""


class TuningDatabaseError(Exception):
    """The database cannot be used as asked; the message names the file and the reason. The file was not changed."""


@dataclass(frozen=True)
class Measurement:
    """One candidate tried on one problem. ``problem``, ``image`` and ``session`` are ids of this database.

    ``samples`` are microseconds in the order taken. ``error`` is the relative error against the reference and
    ``tolerance`` what was allowed; None where the candidate never ran.
    """

    problem: int
    image: int
    session: int
    phase: str
    status: str
    median_us: float | None = None
    samples: Sequence[float] = ()
    error: float | None = None
    tolerance: float | None = None
    detail: str | None = None


@dataclass(frozen=True)
class Outcome:
    """A measurement with its ids replaced by what they stand for, without the samples.

    ``session`` is its session's place among all by when they started.
    """

    id: int
    arch: str
    kernel: str
    functional: str
    bin: str
    shape: str
    image: str
    config: str
    session: int
    phase: str
    status: str
    median_us: float | None


@dataclass(frozen=True)
class Winner:
    """Who serves one bin of one functional, and why. ``median_us`` is 0 where nothing was measured."""

    arch: str
    kernel: str
    functional: str
    bin: str
    image: str
    psels: dict[str, int]
    copts: dict[str, int]
    provenance: str
    source: str = ""
    median_us: float = 0.0
    runners_up: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.provenance not in PROVENANCES:
            raise ValueError(f"provenance must be among {PROVENANCES}, not {self.provenance!r}")


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
        self._db.execute("PRAGMA foreign_keys = ON")
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
            with self._transaction():
                self._migrate(self._check_version(readonly))  # read again: another process may have been faster

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

    def _read(self, table: str, make: Callable[[Row], Made], rows: Iterable[Row], key: int = 1) -> Iterator[Made]:
        """What ``make`` makes of each row; where it will not do, an error with the row's first ``key`` values."""
        for row in rows:
            try:
                yield make(row)
            except ValueError as error:
                named = row[:key] if isinstance(row, tuple) else (row,)
                raise TuningDatabaseError(
                    f"{self.path}: table {table}, row {' '.join(map(str, named))}: {error}"
                ) from None

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
        self, *, device: str, driver: str, triton: str, torch: str, arch: str, multiprocessors: int, options: str
    ) -> int:
        """Id of a new session: the conditions that its measurements share. ``options`` is the command line."""
        row: dict[str, object] = {
            "uuid": str(uuid.uuid4()),
            "device": device,
            "driver": driver,
            "triton": triton,
            "torch": torch,
            "arch": arch,
        }
        row |= {"multiprocessors": multiprocessors, "options": options}
        row |= {"started": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        with self._transaction():
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

    def session_options(self) -> list[str]:
        """The options of each session, the one that began first at the front: as ``Outcome.session`` counts them."""
        with self._errors():
            return [str(row[0]) for row in self._db.execute("SELECT options FROM session ORDER BY started, id")]

    def spills(self) -> dict[str, int]:
        """What each image that was ever compiled spills, by its name; 0 where nothing."""
        with self._errors():
            rows = self._db.execute("SELECT name, spills FROM image WHERE sha256 IS NOT NULL")
            return dict(self._read("image", _spills, rows))

    def checksums(self) -> dict[str, str]:
        """SHA-256 by image name, of every image that was measured."""
        with self._errors():
            rows = self._db.execute(
                "SELECT name, sha256 FROM image WHERE sha256 IS NOT NULL"
                " AND id IN (SELECT image FROM measurement WHERE status = 'ok')"
            )
            return dict(self._read("image", _checksum, rows))

    def record(self, *measurements: Measurement) -> None:
        """Appends the measurements, all of them or none. When it returns they are on disk."""
        with self._transaction():
            for measurement in measurements:
                (measurement,) = self._read("measurement", _sound, [measurement])
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

    def outcomes(self, arch: str | None = None, kernel: str | None = None, problem: int | None = None) -> list[Outcome]:
        """Every measurement, oldest first, of one arch, kernel or problem id where given.

        An image that spills counts as pruned, however fast it ran: it is neither raced nor shipped.
        """
        where, values = _where({"p.arch": arch, "p.kernel": kernel, "p.id": problem})
        with self._errors():
            rows = self._db.execute(
                "WITH age AS (SELECT id, row_number() OVER (ORDER BY started, id) AS place FROM session)"
                " SELECT m.id, p.arch, p.kernel, p.functional, p.bin, p.shape, i.name, i.config, age.place, m.phase,"
                " CASE WHEN i.spills > 0 THEN 'pruned' ELSE m.status END, m.median_us"
                " FROM measurement m JOIN problem p ON p.id = m.problem JOIN image i ON i.id = m.image"
                " JOIN age ON age.id = m.session"
                f" {where} ORDER BY m.id",
                values,
            )
            return list(self._read("measurement", _outcome, rows))

    def medians(self, arch: str, kernel: str) -> dict[tuple[str, str], dict[str, float]]:
        """{(functional, bin): {config: median in µs}} as last measured.

        See ``latest_medians`` for which of several measurements counts.
        """
        found: dict[tuple[str, str], dict[str, float]] = {}
        for (functional, bin), outcomes in latest_medians(self.outcomes(arch, kernel)).items():
            by_age = sorted(outcomes, key=lambda o: o.id)  # of two images of one config the newer counts
            found[functional, bin] = {outcome.config: float(outcome.median_us or 0) for outcome in by_age}
        return found

    def put_winners(self, winners: Iterable[Winner]) -> None:
        """Writes winners, all or none, over those of the same bins; only a measured one replaces a measured one."""
        with self._transaction():
            for winner in winners:
                row = dict(zip((field.name for field in fields(winner)), astuple(winner), strict=True))
                row["median_us"] = float(f"{winner.median_us:.5g}")
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

    def merge(self, path: str | os.PathLike[str]) -> int:
        """Takes over what the database at ``path`` has and this one lacks: all of it or nothing. How many measurements.

        Sessions are told apart by their uuid, so that merging twice changes nothing. A cell that has a winner here
        keeps it; to let the new measurements have their say, decide anew. TuningDatabaseError where that file is none,
        or where both know one image by different checksums.
        """
        with TuningDatabase(path, readonly=True) as other:
            name = other.path.absolute().as_uri()
        if self.path.samefile(path):
            return 0
        with self._errors():
            self._db.execute("ATTACH ? AS other", [f"{name}?mode=ro"])
            try:
                with self._transaction():
                    self._check_same_binaries(Path(path))
                    before = self._value("SELECT count(*) FROM measurement")
                    for statement in _statements(MERGE):
                        self._db.execute(statement)
                    return int(str(self._value("SELECT count(*) FROM measurement"))) - int(str(before))
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

    def winners(self, arch: str | None = None, kernel: str | None = None) -> list[Winner]:
        """Winners of one arch or kernel where given, sorted by arch, kernel, functional and bin."""
        columns = ", ".join(field.name for field in fields(Winner))
        where, values = _where({"arch": arch, "kernel": kernel})
        with self._errors():
            rows = self._db.execute(
                f"SELECT {columns} FROM winner {where} ORDER BY arch, kernel, functional, bin", values
            )
            return list(self._read("winner", _winner, rows, key=4))


def latest_medians(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """The outcomes by (functional, bin) that tell how fast each image is now, one for each image, fastest first.

    Of one image the latest session counts, and in it the race over the sweep; an image whose last outcome is not ok is
    left out. Where a bin was measured in several shapes, the shape measured last stands for it: medians of different
    shapes say nothing of each other.
    """
    shape: dict[tuple[str, str], str] = {}
    latest: dict[tuple[str, str, str], dict[str, Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: (o.session, o.phase == "race", o.id)):
        if outcome.status == "ok":
            shape[outcome.functional, outcome.bin] = outcome.shape
        latest.setdefault((outcome.functional, outcome.bin, outcome.shape), {})[outcome.image] = outcome
    found: dict[tuple[str, str], list[Outcome]] = {}
    for key, text in shape.items():
        ok = [outcome for outcome in latest[key[0], key[1], text].values() if outcome.status == "ok"]
        if ok:
            found[key] = sorted(ok, key=lambda o: (o.median_us or 0, o.config))
    return found


def _winner(row: Sequence[object]) -> Winner:
    arch, kernel, functional, bin, image, psels, copts, provenance, source, median_us, runners_up = row
    return Winner(
        checked.text("arch", arch),
        checked.text("kernel", kernel),
        checked.text("functional", functional),
        checked.text("bin", bin),
        checked.identifier("image", image),
        dict(checked.settings("psels", psels)),
        dict(checked.settings("copts", copts)),
        checked.text("provenance", provenance),
        checked.text("source", source),
        checked.time_us("median_us", median_us),
        checked.runners_up("runners_up", runners_up),
    )


def _outcome(row: Sequence[object]) -> Outcome:
    outcome = Outcome(*row)  # type: ignore[arg-type]
    if set(map(type, row[3:8])) != {str}:
        for column, value in zip(("functional", "bin", "shape", "name of the image", "config"), row[3:8], strict=True):
            checked.text(column, value)
    _check_median(outcome)
    return outcome


def _sound(measurement: Measurement) -> Measurement:
    _check_median(measurement)
    for sample in measurement.samples:
        checked.time_us("samples", sample)
    return measurement


def _check_median(of: Measurement | Outcome) -> None:
    """ValueError where what is ok has no time; a NaN comes back from SQLite as no value at all."""
    if of.status == "ok" and not checked.time_us("median_us", of.median_us):
        raise ValueError("median_us is 0, and its status ok")


def _spills(row: Sequence[object]) -> tuple[str, int]:
    return checked.identifier("name", row[0]), checked.count("spills", row[1] or 0)


def _checksum(row: Sequence[object]) -> tuple[str, str]:
    return checked.identifier("name", row[0]), checked.sha256("sha256", row[1])


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
