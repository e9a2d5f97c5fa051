"""Tuning databases of older versions. In those up to 3, decisions and evidence were in one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from aotriton.rules.database import rows
from aotriton.rules.database.rows import Model, Winner
from aotriton.rules.database.schema import APART, EVIDENCE_1_TO_2, VERSION, VIEWS
from aotriton.rules.database.sqlite_file import APPLICATION_ID, File

# Step n takes a file from version n to n + 1. No step is ever edited.
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

# The same from version 4 on. A table is copied and made again under its name, to which others refer. Views have no
# rows: those of today replace them after the last step.
MIGRATIONS_APART = (
    # Checksums were text, and every winner and median had the text of its provenance.
    """
    DROP VIEW main.image;
    DROP VIEW main.winner;
    DROP VIEW main.median;
    CREATE TEMP TABLE older_image AS SELECT * FROM main.image_row;
    CREATE TEMP TABLE older_winner AS SELECT * FROM main.winner_row;
    CREATE TEMP TABLE older_median AS SELECT * FROM main.median_row;
    DROP TABLE main.image_row;
    DROP TABLE main.winner_row;
    DROP TABLE main.median_row;
    CREATE TABLE provenance (
        id INTEGER PRIMARY KEY, provenance TEXT NOT NULL CHECK (provenance IN ('measured', 'predicted', 'imported')),
        source TEXT NOT NULL, measured TEXT NOT NULL, UNIQUE (provenance, source, measured));
    CREATE TABLE image_row (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, config INTEGER NOT NULL REFERENCES config, sha256 BLOB,
        registers INTEGER, spills INTEGER, shared INTEGER, timed INTEGER NOT NULL CHECK (timed IN (0, 1)));
    CREATE TABLE winner_row (
        functional INTEGER NOT NULL REFERENCES functional, product INTEGER NOT NULL REFERENCES product,
        bin INTEGER NOT NULL REFERENCES bin, image INTEGER NOT NULL REFERENCES image_row,
        provenance INTEGER NOT NULL REFERENCES provenance, median_us REAL NOT NULL, runners_up TEXT NOT NULL,
        low_us REAL NOT NULL, high_us REAL NOT NULL, shape TEXT NOT NULL,
        PRIMARY KEY (functional, product, bin)) WITHOUT ROWID;
    CREATE TABLE median_row (
        id INTEGER PRIMARY KEY, functional INTEGER NOT NULL REFERENCES functional,
        product INTEGER NOT NULL REFERENCES product, bin INTEGER NOT NULL REFERENCES bin,
        image INTEGER NOT NULL REFERENCES image_row, median_us REAL NOT NULL CHECK (median_us > 0),
        provenance INTEGER NOT NULL REFERENCES provenance);
    INSERT INTO provenance (provenance, source, measured)
        SELECT provenance, source, measured FROM older_winner
        UNION SELECT 'measured', '', measured FROM older_median ORDER BY 1, 2, 3;
    INSERT INTO image_row SELECT id, name, config, unhex(sha256), registers, spills, shared, timed FROM older_image;
    INSERT INTO winner_row
        SELECT w.functional, w.product, w.bin, w.image, v.id, w.median_us, w.runners_up, w.low_us, w.high_us, w.shape
        FROM older_winner w JOIN provenance v USING (provenance, source, measured);
    INSERT INTO median_row
        SELECT m.id, m.functional, m.product, m.bin, m.image, m.median_us, v.id FROM older_median m
        JOIN provenance v ON (v.provenance, v.source, v.measured) = ('measured', '', m.measured);
    DROP TABLE temp.older_image;
    DROP TABLE temp.older_winner;
    DROP TABLE temp.older_median;
    CREATE VIEW image AS SELECT i.id, i.name, c.config,
            CASE WHEN i.sha256 IS NOT NULL THEN lower(hex(i.sha256)) END AS sha256,
            i.registers, i.spills, i.shared, i.timed
        FROM image_row i JOIN config c ON c.id = i.config;
    CREATE VIEW winner AS SELECT f.arch, p.name AS product, f.kernel, f.functional, b.bin, i.name AS image, c.config,
            v.provenance, v.source, w.median_us, w.runners_up, w.low_us, w.high_us, w.shape, v.measured
        FROM winner_row w JOIN functional f ON f.id = w.functional JOIN product p ON p.id = w.product
        JOIN bin b ON b.id = w.bin JOIN image_row i ON i.id = w.image JOIN config c ON c.id = i.config
        JOIN provenance v ON v.id = w.provenance;
    CREATE VIEW median AS SELECT f.arch, p.name AS product, f.kernel, f.functional, b.bin, i.name AS image, c.config,
            m.median_us, v.measured
        FROM median_row m JOIN functional f ON f.id = m.functional JOIN product p ON p.id = m.product
        JOIN bin b ON b.id = m.bin JOIN image_row i ON i.id = m.image JOIN config c ON c.id = i.config
        JOIN provenance v ON v.id = m.provenance ORDER BY m.id;
    """,
    # The names of images, and those of products and functionals in models and certificates, were texts.
    """
    CREATE TEMP TABLE older_product AS SELECT * FROM main.product;
    CREATE TEMP TABLE older_image AS
        SELECT *, rtrim(name, replace(name, '_', '')) AS prefix FROM main.image_row;
    CREATE TEMP TABLE older_model AS
        SELECT *, rtrim(image, replace(image, '_', '')) AS prefix FROM main.model;
    CREATE TEMP TABLE older_certificate AS SELECT * FROM main.certificate_row;
    DROP TABLE main.product;
    DROP TABLE main.image_row;
    DROP TABLE main.model;
    DROP TABLE main.certificate_row;
    CREATE TABLE product (
        id INTEGER PRIMARY KEY, arch TEXT NOT NULL, name TEXT NOT NULL, multiprocessors INTEGER, memory INTEGER,
        UNIQUE (arch, name));
    CREATE TABLE image_prefix (id INTEGER PRIMARY KEY, prefix TEXT NOT NULL UNIQUE);
    CREATE TABLE image_row (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL, prefix INTEGER NOT NULL REFERENCES image_prefix,
        config INTEGER NOT NULL REFERENCES config, sha256 BLOB, registers INTEGER, spills INTEGER, shared INTEGER,
        timed INTEGER NOT NULL CHECK (timed IN (0, 1)), UNIQUE (digest, prefix));
    CREATE TABLE model_row (
        functional INTEGER NOT NULL REFERENCES functional, product INTEGER NOT NULL REFERENCES product,
        digest TEXT NOT NULL, prefix INTEGER NOT NULL REFERENCES image_prefix, operator TEXT NOT NULL,
        form TEXT NOT NULL, occupancy INTEGER NOT NULL, coefficients TEXT NOT NULL, error REAL NOT NULL,
        samples INTEGER NOT NULL, saves REAL NOT NULL, source TEXT NOT NULL,
        PRIMARY KEY (functional, product, digest, prefix)) WITHOUT ROWID;
    CREATE TABLE certificate_row (
        image INTEGER NOT NULL REFERENCES image_row, product INTEGER NOT NULL REFERENCES product, day TEXT NOT NULL,
        problems INTEGER NOT NULL, checks INTEGER NOT NULL, error REAL NOT NULL, allowed REAL NOT NULL,
        PRIMARY KEY (image, product)) WITHOUT ROWID;
    INSERT INTO product SELECT id, arch, name, multiprocessors, memory FROM older_product;
    INSERT INTO product (arch, name)
        SELECT DISTINCT arch, product FROM older_model WHERE true ORDER BY 1, 2 ON CONFLICT DO NOTHING;
    INSERT INTO product (arch, name)
        SELECT DISTINCT
            ifnull((SELECT min(arch) FROM functional WHERE instr(i.name, '_' || arch || '_')), ''), c.product
        FROM older_certificate c JOIN older_image i ON i.id = c.image
        WHERE c.product NOT IN (SELECT name FROM product) ORDER BY 1, 2;
    INSERT INTO functional (arch, kernel, functional)
        SELECT DISTINCT arch, kernel, functional FROM older_model WHERE true ORDER BY 1, 2, 3 ON CONFLICT DO NOTHING;
    INSERT INTO image_prefix (prefix) SELECT prefix FROM older_image UNION SELECT prefix FROM older_model ORDER BY 1;
    INSERT INTO image_row
        SELECT i.id, substr(i.name, length(i.prefix) + 1), x.id, i.config, i.sha256, i.registers, i.spills, i.shared,
            i.timed
        FROM older_image i JOIN image_prefix x USING (prefix);
    INSERT INTO model_row
        SELECT f.id, p.id, substr(m.image, length(m.prefix) + 1), x.id, m.operator, m.form, m.occupancy,
            m.coefficients, m.error, m.samples, m.saves, m.source
        FROM older_model m JOIN functional f USING (arch, kernel, functional)
        JOIN product p ON (p.arch, p.name) = (m.arch, m.product) JOIN image_prefix x USING (prefix);
    INSERT INTO certificate_row
        SELECT c.image,
            ifnull((SELECT min(id) FROM product WHERE name = c.product AND instr(i.name, '_' || arch || '_')),
                (SELECT min(id) FROM product WHERE name = c.product)),
            c.day, c.problems, c.checks, c.error, c.allowed
        FROM older_certificate c JOIN older_image i ON i.id = c.image;
    DROP TABLE temp.older_product;
    DROP TABLE temp.older_image;
    DROP TABLE temp.older_model;
    DROP TABLE temp.older_certificate;
    """,
    # Of winners, shapes and the configs of runners-up were texts.
    """
    CREATE TEMP TABLE older_winner AS SELECT * FROM main.winner_row;
    CREATE TEMP TABLE older_runner_up AS
        SELECT w.functional, w.product, w.bin, r.key AS place, json_extract(r.value, '$[0]') AS config,
            json_extract(r.value, '$[1]') AS median_us
        FROM main.winner_row w, json_each(w.runners_up) r;
    DROP TABLE main.winner_row;
    CREATE TABLE shape (id INTEGER PRIMARY KEY, shape TEXT NOT NULL UNIQUE);
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
    INSERT INTO shape (shape) SELECT DISTINCT shape FROM older_winner ORDER BY 1;
    INSERT INTO config (config)
        SELECT DISTINCT config FROM older_runner_up WHERE true ORDER BY 1 ON CONFLICT DO NOTHING;
    INSERT INTO winner_row
        SELECT w.functional, w.product, w.bin, w.image, w.provenance, w.median_us, w.low_us, w.high_us, s.id
        FROM older_winner w JOIN shape s USING (shape);
    INSERT INTO runner_up
        SELECT r.functional, r.product, r.bin, r.place, c.id, r.median_us
        FROM older_runner_up r JOIN config c USING (config);
    DROP TABLE temp.older_runner_up;
    DROP TABLE temp.older_winner;
    """,
)


def migrate(file: File) -> None:
    """Brings a file of version 4 or later to that of today. Within a transaction, while foreign keys are off."""
    for step in MIGRATIONS_APART[file.version() - APART :]:
        file.script(step)
    file.drop("view", "main")
    file.script(VIEWS)
    file.execute(f"PRAGMA user_version = {VERSION}")


def copy(path: Path, to: Path) -> None:
    """Copies an older file and brings the copy to version 3, its evidence to what evidence is now, or to that of today
    if the evidence is in files of its own.
    """
    source, made = File(path, True, APPLICATION_ID), File(to, False, APPLICATION_ID)
    try:
        with source.errors():
            source.backup(made)
            made.execute("PRAGMA foreign_keys = OFF")  # a step makes tables anew that others refer to
            with made.transaction():
                if made.version() >= APART:
                    migrate(made)
                else:
                    for step in MIGRATIONS[made.version() :]:
                        made.script(step)
                    made.script(EVIDENCE_1_TO_2)
                    made.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    finally:
        source.close()
        made.close()


def winners(path: Path) -> list[Winner]:
    """The winners of a file of version 3."""
    file = File(path, True, APPLICATION_ID)
    try:
        found = file.execute(
            "SELECT arch, product, kernel, functional, bin, image, psels, copts, provenance, source, median_us,"
            " runners_up, low_us, high_us, shape, measured FROM winner"
        )
        return list(file.read("winner", _winner, found, key=5))
    finally:
        file.close()


def models(path: Path) -> list[dict[str, object]]:
    """The models of a file of version 3, by column."""
    file = File(path, True, APPLICATION_ID)
    try:
        columns = [field.name for field in fields(Model)]
        found = file.execute(f"SELECT {', '.join(columns)} FROM model")
        return [dict(zip(columns, row, strict=True)) for row in found]
    finally:
        file.close()


def _winner(row: Sequence[object]) -> Winner:
    """A config stood in two columns, as JSON."""
    *cell, psels, copts = row[:8]
    values = {**json.loads(str(psels)), **json.loads(str(copts))}
    return rows.winner((*cell, " ".join(f"{name}={value}" for name, value in values.items()), *row[8:]))
