"""The SQL that makes the tuning database and its evidence: tables, the merging of two, and flat rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VERSION = 7  # of the database
APART = 4  # the first version whose evidence is in files of its own

# What code generation reads. A text that thousands of rows share stands once; the views have it in place of its id.
# An image's name is a prefix, to its last underscore, and a digest. A model may name an image that has no row. A
# product that only models and certificates name has no multiprocessors.
TABLES = """
    CREATE TABLE product (
        id INTEGER PRIMARY KEY, arch TEXT NOT NULL, name TEXT NOT NULL, multiprocessors INTEGER, memory INTEGER,
        UNIQUE (arch, name));
    CREATE TABLE functional (
        id INTEGER PRIMARY KEY, arch TEXT NOT NULL, kernel TEXT NOT NULL, functional TEXT NOT NULL,
        UNIQUE (arch, kernel, functional));
    CREATE TABLE bin (id INTEGER PRIMARY KEY, bin TEXT NOT NULL UNIQUE);
    CREATE TABLE shape (id INTEGER PRIMARY KEY, shape TEXT NOT NULL UNIQUE);
    CREATE TABLE config (id INTEGER PRIMARY KEY, config TEXT NOT NULL UNIQUE);
    CREATE TABLE image_prefix (id INTEGER PRIMARY KEY, prefix TEXT NOT NULL UNIQUE);
    CREATE TABLE image_row (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL, prefix INTEGER NOT NULL REFERENCES image_prefix,
        config INTEGER NOT NULL REFERENCES config, sha256 BLOB, registers INTEGER, spills INTEGER, shared INTEGER,
        timed INTEGER NOT NULL CHECK (timed IN (0, 1)), UNIQUE (digest, prefix));
    CREATE TABLE provenance (
        id INTEGER PRIMARY KEY, provenance TEXT NOT NULL CHECK (provenance IN ('measured', 'predicted', 'imported')),
        source TEXT NOT NULL, measured TEXT NOT NULL, UNIQUE (provenance, source, measured));
    CREATE TABLE winner_row (
        functional INTEGER NOT NULL REFERENCES functional, product INTEGER NOT NULL REFERENCES product,
        bin INTEGER NOT NULL REFERENCES bin, image INTEGER NOT NULL REFERENCES image_row,
        provenance INTEGER NOT NULL REFERENCES provenance, median_us REAL NOT NULL, low_us REAL NOT NULL,
        high_us REAL NOT NULL, shape INTEGER NOT NULL REFERENCES shape,
        PRIMARY KEY (functional, product, bin)) WITHOUT ROWID;
    CREATE TABLE runner_up (
        functional INTEGER NOT NULL, product INTEGER NOT NULL, bin INTEGER NOT NULL, place INTEGER NOT NULL,
        config INTEGER NOT NULL REFERENCES config, median_us REAL NOT NULL,
        PRIMARY KEY (functional, product, bin, place),
        FOREIGN KEY (functional, product, bin) REFERENCES winner_row ON DELETE CASCADE) WITHOUT ROWID;
    CREATE TABLE model_row (
        functional INTEGER NOT NULL REFERENCES functional, product INTEGER NOT NULL REFERENCES product,
        digest TEXT NOT NULL, prefix INTEGER NOT NULL REFERENCES image_prefix, operator TEXT NOT NULL,
        form TEXT NOT NULL, occupancy INTEGER NOT NULL, coefficients TEXT NOT NULL, error REAL NOT NULL,
        samples INTEGER NOT NULL, saves REAL NOT NULL, source TEXT NOT NULL,
        PRIMARY KEY (functional, product, digest, prefix)) WITHOUT ROWID;
    CREATE TABLE median_row (
        id INTEGER PRIMARY KEY, functional INTEGER NOT NULL REFERENCES functional,
        product INTEGER NOT NULL REFERENCES product, bin INTEGER NOT NULL REFERENCES bin,
        image INTEGER NOT NULL REFERENCES image_row, median_us REAL NOT NULL CHECK (median_us > 0),
        provenance INTEGER NOT NULL REFERENCES provenance);
    CREATE TABLE certificate_row (
        image INTEGER NOT NULL REFERENCES image_row, product INTEGER NOT NULL REFERENCES product, day TEXT NOT NULL,
        problems INTEGER NOT NULL, checks INTEGER NOT NULL, error REAL NOT NULL, allowed REAL NOT NULL,
        PRIMARY KEY (image, product)) WITHOUT ROWID;
    CREATE TABLE session (uuid TEXT PRIMARY KEY) WITHOUT ROWID;
"""
VIEWS = """
    CREATE VIEW image AS SELECT i.id, x.prefix || i.digest AS name, c.config,
            CASE WHEN i.sha256 IS NOT NULL THEN lower(hex(i.sha256)) END AS sha256,
            i.registers, i.spills, i.shared, i.timed
        FROM image_row i JOIN image_prefix x ON x.id = i.prefix JOIN config c ON c.id = i.config;
    CREATE VIEW winner AS SELECT f.arch, p.name AS product, f.kernel, f.functional, b.bin,
            x.prefix || i.digest AS image, c.config, v.provenance, v.source, w.median_us,
            (SELECT '[' || ifnull(group_concat(pair, ', '), '') || ']' FROM (
                SELECT '["' || k.config || '", ' || u.median_us || ']' AS pair
                FROM runner_up u JOIN config k ON k.id = u.config
                WHERE (u.functional, u.product, u.bin) = (w.functional, w.product, w.bin) ORDER BY u.place)
            ) AS runners_up,
            w.low_us, w.high_us, s.shape, v.measured
        FROM winner_row w JOIN functional f ON f.id = w.functional JOIN product p ON p.id = w.product
        JOIN bin b ON b.id = w.bin JOIN image_row i ON i.id = w.image JOIN image_prefix x ON x.id = i.prefix
        JOIN config c ON c.id = i.config JOIN provenance v ON v.id = w.provenance JOIN shape s ON s.id = w.shape;
    CREATE VIEW model AS SELECT f.arch, p.name AS product, m.operator, f.kernel, f.functional,
            x.prefix || m.digest AS image, m.form, m.occupancy, m.coefficients, m.error, m.samples, m.saves, m.source
        FROM model_row m JOIN functional f ON f.id = m.functional JOIN product p ON p.id = m.product
        JOIN image_prefix x ON x.id = m.prefix;
    CREATE VIEW median AS SELECT f.arch, p.name AS product, f.kernel, f.functional, b.bin,
            x.prefix || i.digest AS image, c.config, m.median_us, v.measured
        FROM median_row m JOIN functional f ON f.id = m.functional JOIN product p ON p.id = m.product
        JOIN bin b ON b.id = m.bin JOIN image_row i ON i.id = m.image JOIN image_prefix x ON x.id = i.prefix
        JOIN config c ON c.id = i.config JOIN provenance v ON v.id = m.provenance ORDER BY m.id;
    CREATE VIEW certificate AS SELECT x.prefix || i.digest AS image, p.name AS product, c.day, c.problems, c.checks,
            c.error, c.allowed
        FROM certificate_row c JOIN image_row i ON i.id = c.image JOIN image_prefix x ON x.id = i.prefix
        JOIN product p ON p.id = c.product;
"""
DECISIONS = TABLES + VIEWS

# What was measured, unpacked. ``packed`` is how many rows of a session a file of the archive has; -1 if none has it.
EVIDENCE_VERSION = 5
EVIDENCE = """
    CREATE TABLE archived (name TEXT PRIMARY KEY, size INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE device (
        id INTEGER PRIMARY KEY, product TEXT NOT NULL, uuid TEXT, arch TEXT NOT NULL, multiprocessors INTEGER NOT NULL,
        memory INTEGER, power_limit INTEGER, driver TEXT NOT NULL);
    CREATE UNIQUE INDEX device_is_listed_once ON device (
        product, ifnull(uuid, ''), arch, multiprocessors, ifnull(memory, 0), ifnull(power_limit, 0), driver);
    CREATE TABLE session (
        id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, device INTEGER NOT NULL REFERENCES device (id),
        triton TEXT NOT NULL, torch TEXT NOT NULL, options TEXT NOT NULL, strategy TEXT NOT NULL, seed INTEGER,
        started TEXT NOT NULL, packed INTEGER NOT NULL DEFAULT -1);
    CREATE TABLE problem (
        id INTEGER PRIMARY KEY, arch TEXT NOT NULL, kernel TEXT NOT NULL, functional TEXT NOT NULL, bin TEXT NOT NULL,
        shape TEXT NOT NULL, UNIQUE (arch, kernel, functional, bin, shape));
    CREATE TABLE image (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, config TEXT NOT NULL, sha256 TEXT, registers INTEGER,
        spills INTEGER, shared INTEGER);
    CREATE TABLE measurement (
        id INTEGER PRIMARY KEY,
        problem INTEGER NOT NULL REFERENCES problem (id), image INTEGER NOT NULL REFERENCES image (id),
        session INTEGER NOT NULL REFERENCES session (id),
        phase TEXT NOT NULL CHECK (phase IN ('sweep', 'race')),
        status TEXT NOT NULL CHECK (
            status IN ('ok', 'checked', 'wrong', 'compile_failed', 'crashed', 'timed_out', 'pruned')),
        median_us REAL CHECK (median_us > 0 OR status <> 'ok'),
        samples TEXT, error REAL, tolerance REAL, detail TEXT, sm_clock INTEGER, temperature INTEGER, judge TEXT,
        checks INTEGER, UNIQUE (problem, image, session, phase));
    CREATE TABLE search (
        problem INTEGER NOT NULL REFERENCES problem (id), session INTEGER NOT NULL REFERENCES session (id),
        trials INTEGER NOT NULL, judge TEXT, PRIMARY KEY (problem, session)) WITHOUT ROWID;
    CREATE TABLE sample (
        id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES session (id), operator TEXT NOT NULL,
        functional TEXT NOT NULL, shape TEXT NOT NULL, sm_clock INTEGER, temperature INTEGER,
        UNIQUE (session, operator, functional, shape));
    CREATE TABLE sequence (
        id INTEGER PRIMARY KEY, operator TEXT NOT NULL, backend TEXT NOT NULL, images TEXT NOT NULL,
        UNIQUE (operator, backend, images));
    CREATE TABLE timing (
        sample INTEGER NOT NULL REFERENCES sample (id), sequence INTEGER NOT NULL REFERENCES sequence (id),
        median_us REAL NOT NULL CHECK (median_us > 0), spread REAL NOT NULL, rounds INTEGER NOT NULL,
        PRIMARY KEY (sample, sequence)) WITHOUT ROWID;
    CREATE TRIGGER measurement_is_not_changed BEFORE UPDATE ON measurement
        BEGIN SELECT RAISE(ABORT, 'measurement is append-only'); END;
    CREATE TRIGGER measurement_is_not_deleted BEFORE DELETE ON measurement
        BEGIN SELECT RAISE(ABORT, 'measurement is append-only'); END;
    CREATE TRIGGER sample_is_not_changed BEFORE UPDATE ON sample
        BEGIN SELECT RAISE(ABORT, 'sample is append-only'); END;
    CREATE TRIGGER sample_is_not_deleted BEFORE DELETE ON sample
        BEGIN SELECT RAISE(ABORT, 'sample is append-only'); END;
    CREATE TRIGGER timing_is_not_changed BEFORE UPDATE ON timing
        BEGIN SELECT RAISE(ABORT, 'timing is append-only'); END;
    CREATE TRIGGER timing_is_not_deleted BEFORE DELETE ON timing
        BEGIN SELECT RAISE(ABORT, 'timing is append-only'); END;
"""

# What is said of sessions after they were measured; rows are only added. Beside the version of the evidence: a local
# file without the table gets it. A session from somebody whom nobody named has UNKNOWN before its uuid, so that it is
# never taken for the session that it says it is.
MARKS = """
    CREATE TABLE IF NOT EXISTS mark (
        session TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('signed', 'retracted')), said TEXT NOT NULL,
        PRIMARY KEY (session, kind)) WITHOUT ROWID;
"""
UNKNOWN = "unknown "


def counts(session: str) -> str:
    """The condition that a session, by its name in a statement, takes part in decisions."""
    retracted = "SELECT session FROM evidence.mark WHERE kind = 'retracted'"
    return f"({session}.uuid NOT LIKE '{UNKNOWN}%' AND {session}.uuid NOT IN ({retracted}))"


# How much the rows of a session ``s`` weigh beside those of others about the same image and problem.
RANK = f"""CASE WHEN s.uuid LIKE '{UNKNOWN}%' THEN 0
    WHEN s.uuid IN (SELECT session FROM evidence.mark WHERE kind = 'signed') THEN 1 ELSE 2 END"""

# The images that were measured in such sessions, and not only checked.
MEASURED = (
    "SELECT m.image FROM evidence.measurement m JOIN evidence.session s ON s.id = m.session"
    f" WHERE m.status <> 'checked' AND {counts('s')}"
)

# Makes what is in ``other``, a copy, rows of unknown sessions, without those that are known here. What it says of the
# binaries of images does not hold here.
_KNOWN = "SELECT id FROM other.session WHERE uuid IN (SELECT uuid FROM evidence.session)"
DISTRUST = f"""
    UPDATE other.image SET sha256 = NULL, registers = NULL, spills = NULL, shared = NULL;
    DELETE FROM other.timing WHERE sample IN (SELECT id FROM other.sample WHERE session IN ({_KNOWN}));
    DELETE FROM other.sample WHERE session IN ({_KNOWN});
    DELETE FROM other.search WHERE session IN ({_KNOWN});
    DELETE FROM other.measurement WHERE session IN ({_KNOWN});
    DELETE FROM other.session WHERE id IN ({_KNOWN});
    UPDATE other.session SET uuid = '{UNKNOWN}' || uuid WHERE uuid NOT LIKE '{UNKNOWN}%';
"""


# From version 1 of the evidence to 2. Version 3 has another status, and 4 names the column that an id refers to, which
# Datasette needs. Local files of version 4 may have images under old names. Files of the archive that were written
# before version 2 lack these columns, too.
EVIDENCE_1_TO_2 = """
    ALTER TABLE measurement ADD COLUMN judge TEXT;
    ALTER TABLE measurement ADD COLUMN checks INTEGER;
    ALTER TABLE search ADD COLUMN judge TEXT;
"""
SINCE_2 = (("measurement", "judge"), ("measurement", "checks"), ("search", "judge"))

# The tables of a file of the archive, each behind those that it refers to, and those whose rows are of a session.
ARCHIVED = ("device", "session", "problem", "image", "measurement", "search", "sequence", "sample", "timing")
COUNTED = ("measurement", "search", "sample")
NOT_EXCHANGED = ("id", "packed")  # columns that say something of this file alone

# What other evidence, attached as ``other``, has more than that of ``{to}``. Ids are given anew; rows are found by what
# makes them unique.
MERGE = """
    INSERT INTO {to}.image (name, config, sha256, registers, spills, shared)
        SELECT name, config, sha256, registers, spills, shared FROM other.image WHERE true ORDER BY id
        ON CONFLICT (name) DO UPDATE SET config = excluded.config, sha256 = excluded.sha256,
            registers = excluded.registers, spills = excluded.spills, shared = excluded.shared
            WHERE sha256 IS NULL AND excluded.sha256 IS NOT NULL;
    INSERT INTO {to}.problem (arch, kernel, functional, bin, shape)
        SELECT arch, kernel, functional, bin, shape FROM other.problem WHERE true ORDER BY id ON CONFLICT DO NOTHING;
    INSERT INTO {to}.device (product, uuid, arch, multiprocessors, memory, power_limit, driver)
        SELECT product, uuid, arch, multiprocessors, memory, power_limit, driver
        FROM other.device WHERE true ORDER BY id ON CONFLICT DO NOTHING;
    INSERT INTO {to}.session (uuid, device, triton, torch, options, strategy, seed, started)
        SELECT os.uuid, d.id, os.triton, os.torch, os.options, os.strategy, os.seed, os.started
        FROM other.session os JOIN other.device od ON od.id = os.device
        JOIN {to}.device d ON (d.product, d.uuid, d.arch, d.multiprocessors, d.memory, d.power_limit, d.driver)
            IS (od.product, od.uuid, od.arch, od.multiprocessors, od.memory, od.power_limit, od.driver)
        WHERE true ORDER BY os.id ON CONFLICT DO NOTHING;
    INSERT INTO {to}.measurement
        (problem, image, session, phase, status, median_us, samples, error, tolerance, detail, sm_clock, temperature,
            judge, checks)
        SELECT p.id, i.id, s.id, m.phase, m.status, m.median_us, m.samples, m.error, m.tolerance, m.detail,
            m.sm_clock, m.temperature, m.judge, m.checks
        FROM other.measurement m
        JOIN other.problem op ON op.id = m.problem JOIN {to}.problem p USING (arch, kernel, functional, bin, shape)
        JOIN other.image oi ON oi.id = m.image JOIN {to}.image i ON i.name = oi.name
        JOIN other.session os ON os.id = m.session JOIN {to}.session s ON s.uuid = os.uuid
        WHERE true ORDER BY m.id ON CONFLICT DO NOTHING;
    INSERT INTO {to}.sample (session, operator, functional, shape, sm_clock, temperature)
        SELECT s.id, os.operator, os.functional, os.shape, os.sm_clock, os.temperature
        FROM other.sample os JOIN other.session oe ON oe.id = os.session JOIN {to}.session s ON s.uuid = oe.uuid
        WHERE true ORDER BY os.id ON CONFLICT DO NOTHING;
    INSERT INTO {to}.sequence (operator, backend, images)
        SELECT operator, backend, images FROM other.sequence WHERE true ORDER BY id ON CONFLICT DO NOTHING;
    INSERT INTO {to}.timing (sample, sequence, median_us, spread, rounds)
        SELECT s.id, q.id, t.median_us, t.spread, t.rounds
        FROM other.timing t JOIN other.sample os ON os.id = t.sample JOIN other.session oe ON oe.id = os.session
        JOIN {to}.session e ON e.uuid = oe.uuid
        JOIN {to}.sample s ON (s.session, s.operator, s.functional, s.shape)
            = (e.id, os.operator, os.functional, os.shape)
        JOIN other.sequence oq ON oq.id = t.sequence JOIN {to}.sequence q USING (operator, backend, images)
        WHERE true ON CONFLICT DO NOTHING;
    INSERT INTO {to}.search (problem, session, trials, judge)
        SELECT p.id, s.id, x.trials, x.judge FROM other.search x
        JOIN other.problem op ON op.id = x.problem JOIN {to}.problem p USING (arch, kernel, functional, bin, shape)
        JOIN other.session os ON os.id = x.session JOIN {to}.session s ON s.uuid = os.uuid
        WHERE true ON CONFLICT DO NOTHING;
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
    schema: str  # as it is attached


def tables_of(execute: Callable[[str], Iterable[Sequence[Any]]], schema: str) -> dict[str, Table]:
    """The tables of an attached file."""
    made: dict[str, Table] = {}
    found = execute(f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table' ORDER BY name")
    for name in [str(row[0]) for row in found]:
        about = list(execute(f"SELECT name, type, [notnull], pk FROM pragma_table_info('{name}', '{schema}')"))
        columns = [Column(one, kind, not required) for one, kind, required, _ in about if one not in NOT_EXCHANGED]
        keys = execute(f"SELECT [from], [table] FROM pragma_foreign_key_list('{name}', '{schema}')")
        references = {str(column): str(other) for column, other in keys}
        primary = sorted((number, str(column)) for column, _, _, number in about if number)
        made[name] = Table(tuple(columns), references, tuple(column for _, column in primary), schema)
    return made


# What is called otherwise where it stands in a row of something else.
FLAT_NAMES = {("device", "uuid"): "gpu", ("session", "uuid"): "session", ("image", "name"): "image"}


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
    return columns, f"SELECT {names} FROM {tables[table].schema}.{table} {joins} ORDER BY {order}"


def _parts(tables: Mapping[str, Table], table: str, alias: str) -> Iterator[tuple[Column | None, str, str]]:
    """Of each column of a flat row itself and its name in SQL; of each table that is joined, how."""
    for column in tables[table].columns:
        if other := tables[table].references.get(column.name):
            joined = f"{alias}_{column.name}"
            yield None, "", f"JOIN {tables[other].schema}.{other} {joined} ON {joined}.id = {alias}.{column.name}"
            yield from _parts(tables, other, joined)
        else:
            made = Column(flat_name(table, column.name), column.kind, column.optional)
            yield made, f"{alias}.{column.name}", ""
