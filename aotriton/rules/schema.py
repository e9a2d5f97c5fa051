"""The SQL that makes the tuning database: its tables, step by step, the merging of two files, and flat rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    # What is one with NULLs is by an index over expressions: a UNIQUE constraint takes every NULL for another value.
    # A winner's product is the one that measured its image in just that time; where none did, it is left to be decided.
    """
    CREATE TABLE device (
        id INTEGER PRIMARY KEY, product TEXT NOT NULL, uuid TEXT, arch TEXT NOT NULL, multiprocessors INTEGER NOT NULL,
        memory INTEGER, power_limit INTEGER, driver TEXT NOT NULL);
    CREATE UNIQUE INDEX device_is_listed_once ON device (
        product, ifnull(uuid, ''), arch, multiprocessors, ifnull(memory, 0), ifnull(power_limit, 0), driver);
    INSERT INTO device (product, arch, multiprocessors, driver)
        SELECT device, arch, multiprocessors, driver FROM session WHERE true ORDER BY id ON CONFLICT DO NOTHING;

    CREATE TABLE session_2 (
        id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, device INTEGER NOT NULL REFERENCES device,
        triton TEXT NOT NULL, torch TEXT NOT NULL, options TEXT NOT NULL, strategy TEXT NOT NULL, seed INTEGER,
        started TEXT NOT NULL);
    INSERT INTO session_2
        SELECT s.id, s.uuid, d.id, s.triton, s.torch, s.options, 'exhaustive', NULL, s.started
        FROM session s JOIN device d ON (d.product, d.arch, d.multiprocessors, d.driver)
            = (s.device, s.arch, s.multiprocessors, s.driver);
    DROP TABLE session;
    ALTER TABLE session_2 RENAME TO session;

    ALTER TABLE measurement ADD COLUMN sm_clock INTEGER;
    ALTER TABLE measurement ADD COLUMN temperature INTEGER;

    CREATE TABLE winner_2 (
        arch TEXT NOT NULL, product TEXT NOT NULL, kernel TEXT NOT NULL, functional TEXT NOT NULL, bin TEXT NOT NULL,
        image TEXT NOT NULL, psels TEXT NOT NULL, copts TEXT NOT NULL,
        provenance TEXT NOT NULL CHECK (provenance IN ('measured', 'predicted', 'imported')),
        source TEXT NOT NULL, median_us REAL NOT NULL, runners_up TEXT NOT NULL,
        low_us REAL NOT NULL DEFAULT 0, high_us REAL NOT NULL DEFAULT 0,
        shape TEXT NOT NULL DEFAULT '', measured TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (arch, product, kernel, functional, bin)) WITHOUT ROWID;
    INSERT INTO winner_2 (arch, product, kernel, functional, bin, image, psels, copts, provenance, source, median_us,
            runners_up)
        SELECT arch, CASE arch WHEN 'gfx942' THEN 'AMD Instinct MI300X' ELSE 'NVIDIA H100 80GB HBM3' END,
            kernel, functional, bin, image, psels, copts, provenance, source, median_us, runners_up
        FROM winner WHERE provenance IN ('predicted', 'imported');
    INSERT OR REPLACE INTO winner_2 (arch, product, kernel, functional, bin, image, psels, copts, provenance, source,
            median_us, runners_up, shape, measured)
        SELECT w.arch, d.product, w.kernel, w.functional, w.bin, w.image, w.psels, w.copts, w.provenance, w.source,
            w.median_us, w.runners_up, p.shape, substr(s.started, 1, 10)
        FROM winner w JOIN problem p USING (arch, kernel, functional, bin) JOIN measurement m ON m.problem = p.id
            JOIN image i ON i.id = m.image JOIN session s ON s.id = m.session JOIN device d ON d.id = s.device
        WHERE w.provenance = 'measured' AND i.name = w.image AND m.status = 'ok' AND m.median_us = w.median_us
        ORDER BY m.id;
    DROP TABLE winner;
    ALTER TABLE winner_2 RENAME TO winner;

    CREATE TABLE sample (
        id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES session, operator TEXT NOT NULL,
        functional TEXT NOT NULL, shape TEXT NOT NULL, sm_clock INTEGER, temperature INTEGER,
        UNIQUE (session, operator, functional, shape));
    CREATE TABLE sequence (
        id INTEGER PRIMARY KEY, operator TEXT NOT NULL, backend TEXT NOT NULL, images TEXT NOT NULL,
        UNIQUE (operator, backend, images));
    CREATE TABLE timing (
        sample INTEGER NOT NULL REFERENCES sample, sequence INTEGER NOT NULL REFERENCES sequence,
        median_us REAL NOT NULL CHECK (median_us > 0), spread REAL NOT NULL, rounds INTEGER NOT NULL,
        PRIMARY KEY (sample, sequence)) WITHOUT ROWID;
    CREATE TRIGGER sample_is_not_changed BEFORE UPDATE ON sample
        BEGIN SELECT RAISE(ABORT, 'sample is append-only'); END;
    CREATE TRIGGER sample_is_not_deleted BEFORE DELETE ON sample
        BEGIN SELECT RAISE(ABORT, 'sample is append-only'); END;
    CREATE TRIGGER timing_is_not_changed BEFORE UPDATE ON timing
        BEGIN SELECT RAISE(ABORT, 'timing is append-only'); END;
    CREATE TRIGGER timing_is_not_deleted BEFORE DELETE ON timing
        BEGIN SELECT RAISE(ABORT, 'timing is append-only'); END;
    CREATE TABLE model (
        arch TEXT NOT NULL, product TEXT NOT NULL, operator TEXT NOT NULL, kernel TEXT NOT NULL,
        functional TEXT NOT NULL, image TEXT NOT NULL, form TEXT NOT NULL, occupancy INTEGER NOT NULL,
        coefficients TEXT NOT NULL, error REAL NOT NULL, samples INTEGER NOT NULL, saves REAL NOT NULL,
        source TEXT NOT NULL, PRIMARY KEY (arch, product, kernel, functional, image)) WITHOUT ROWID;
    """,
    # A session's strategy came to its end on a problem: what it did not try, it did not want to.
    """
    CREATE TABLE search (
        problem INTEGER NOT NULL REFERENCES problem, session INTEGER NOT NULL REFERENCES session,
        trials INTEGER NOT NULL, PRIMARY KEY (problem, session)) WITHOUT ROWID;
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
    INSERT INTO device (product, uuid, arch, multiprocessors, memory, power_limit, driver)
        SELECT product, uuid, arch, multiprocessors, memory, power_limit, driver
        FROM other.device WHERE true ORDER BY id ON CONFLICT DO NOTHING;
    INSERT INTO session (uuid, device, triton, torch, options, strategy, seed, started)
        SELECT os.uuid, d.id, os.triton, os.torch, os.options, os.strategy, os.seed, os.started
        FROM other.session os JOIN other.device od ON od.id = os.device
        JOIN device d ON (d.product, d.uuid, d.arch, d.multiprocessors, d.memory, d.power_limit, d.driver)
            IS (od.product, od.uuid, od.arch, od.multiprocessors, od.memory, od.power_limit, od.driver)
        WHERE true ORDER BY os.id ON CONFLICT DO NOTHING;
    INSERT INTO measurement
        (problem, image, session, phase, status, median_us, samples, error, tolerance, detail, sm_clock, temperature)
        SELECT p.id, i.id, s.id, m.phase, m.status, m.median_us, m.samples, m.error, m.tolerance, m.detail,
            m.sm_clock, m.temperature
        FROM other.measurement m
        JOIN other.problem op ON op.id = m.problem JOIN problem p USING (arch, kernel, functional, bin, shape)
        JOIN other.image oi ON oi.id = m.image JOIN image i ON i.name = oi.name
        JOIN other.session os ON os.id = m.session JOIN session s ON s.uuid = os.uuid
        WHERE true ORDER BY m.id ON CONFLICT DO NOTHING;
    INSERT INTO sample (session, operator, functional, shape, sm_clock, temperature)
        SELECT s.id, os.operator, os.functional, os.shape, os.sm_clock, os.temperature
        FROM other.sample os JOIN other.session oe ON oe.id = os.session JOIN session s ON s.uuid = oe.uuid
        WHERE true ORDER BY os.id ON CONFLICT DO NOTHING;
    INSERT INTO sequence (operator, backend, images)
        SELECT operator, backend, images FROM other.sequence WHERE true ORDER BY id ON CONFLICT DO NOTHING;
    INSERT INTO timing (sample, sequence, median_us, spread, rounds)
        SELECT s.id, q.id, t.median_us, t.spread, t.rounds
        FROM other.timing t JOIN other.sample os ON os.id = t.sample JOIN other.session oe ON oe.id = os.session
        JOIN session e ON e.uuid = oe.uuid
        JOIN sample s ON (s.session, s.operator, s.functional, s.shape)
            = (e.id, os.operator, os.functional, os.shape)
        JOIN other.sequence oq ON oq.id = t.sequence JOIN sequence q USING (operator, backend, images)
        WHERE true ON CONFLICT DO NOTHING;
    INSERT INTO search (problem, session, trials)
        SELECT p.id, s.id, x.trials FROM other.search x
        JOIN other.problem op ON op.id = x.problem JOIN problem p USING (arch, kernel, functional, bin, shape)
        JOIN other.session os ON os.id = x.session JOIN session s ON s.uuid = os.uuid
        WHERE true ON CONFLICT DO NOTHING;
    INSERT INTO winner SELECT * FROM other.winner WHERE true ON CONFLICT DO NOTHING;
    INSERT INTO model SELECT * FROM other.model o WHERE NOT EXISTS (
        SELECT 1 FROM model m WHERE (m.arch, m.product, m.operator) = (o.arch, o.product, o.operator));
"""


@dataclass(frozen=True)
class Column:
    """A column of a table: its SQL type is TEXT, INTEGER or REAL, and it may be NULL where it is ``optional``."""

    name: str
    kind: str
    optional: bool


@dataclass(frozen=True)
class Table:
    """A table's columns but for ``id``, which table those refer to that refer to one, and its primary key."""

    columns: tuple[Column, ...]
    references: Mapping[str, str]
    key: tuple[str, ...]


# What is called otherwise where it stands in a row of something else.
FLAT_NAMES = {("device", "uuid"): "gpu", ("session", "uuid"): "session", ("image", "name"): "image"}


def depth(tables: Mapping[str, Table], table: str) -> int:
    """How long the longest chain of references from a table is."""
    return max((1 + depth(tables, other) for other in tables[table].references.values()), default=0)


def flat_name(table: str, column: str) -> str:
    return FLAT_NAMES.get((table, column), column)


def flat_select(tables: Mapping[str, Table], table: str) -> tuple[list[Column], str]:
    """The statement that gives the rows of a table with those that they refer to in place of ids, and its columns.

    A name may be there twice, as ``arch`` of a measurement: its problem's and its device's.
    """
    parts = list(_parts(tables, table, table))
    columns = [column for column, _, _ in parts if column]
    names = ", ".join(name for column, name, _ in parts if column)
    joins = " ".join(join for _, _, join in parts if join)
    order = ", ".join(f"{table}.{name}" for name in tables[table].key)
    return columns, f"SELECT {names} FROM {table} {joins} ORDER BY {order}"


def _parts(tables: Mapping[str, Table], table: str, alias: str) -> Iterator[tuple[Column | None, str, str]]:
    """Of each column of a flat row itself and its name in SQL; of each table that is joined, how."""
    for column in tables[table].columns:
        if other := tables[table].references.get(column.name):
            joined = f"{alias}_{column.name}"
            yield None, "", f"JOIN {other} {joined} ON {joined}.id = {alias}.{column.name}"
            yield from _parts(tables, other, joined)
        else:
            made = Column(flat_name(table, column.name), column.kind, column.optional)
            yield made, f"{alias}.{column.name}", ""
