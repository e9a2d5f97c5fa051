"""What was measured: sessions, problems, images, measurements and samples, as rows of the local file.

``archive.py`` packs the rows into the files that git carries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

from aotriton.rules.database import rows
from aotriton.rules.database.images import Images
from aotriton.rules.database.rows import (
    Certificate,
    Measurement,
    Outcome,
    Product,
    Sample,
    Searched,
    SequenceTiming,
    Session,
)
from aotriton.rules.database.schema import MEASURED, RANK, UNKNOWN, counts
from aotriton.rules.database.sqlite_file import File, TuningDatabaseError, where

# The place of each session among all: unknown ones, then those that somebody signed, then one's own, each by when they
# began. Of two that say something of one image and problem, the later place counts.
PLACES = (
    f"(SELECT id, uuid, options, row_number() OVER (ORDER BY {RANK}, started, id) AS place FROM evidence.session s) p"
)
AGE = f"age AS (SELECT id, place FROM {PLACES} WHERE {counts('p')})"
UNKNOWN_AGE = f"age AS (SELECT id, place FROM {PLACES} WHERE p.uuid LIKE '{UNKNOWN}%')"


class Evidence(Images):
    """The evidence of a tuning database, attached to its ``file`` as ``evidence``.

    It is append-only. Each write is a transaction of its own, so that neither a reader nor the file after a kill -9 has
    a half.
    """

    _images = "evidence.image"

    def __init__(self, file: File, path: Path) -> None:
        self._file, self.path = file, path  # the database that it is attached to, and the file that has it

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
        with self._file.transaction():
            row["device"] = self._file.id_of("evidence.device", gpu)
            return self._file.insert("evidence.session", row)

    def problem_id(self, arch: str, kernel: str, functional: str, bin: str, shape: Mapping[str, object]) -> int:
        """Id of a functional and bin in the ``shape`` (plain data) that stands for it; added where it is new."""
        row = {
            "arch": arch,
            "kernel": kernel,
            "functional": functional,
            "bin": bin,
            "shape": json.dumps(shape, sort_keys=True),
        }
        with self._file.transaction():
            return self._file.id_of("evidence.problem", row)

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
        with self._file.transaction():
            self._file.execute(
                "INSERT INTO evidence.image (name, config, sha256, registers, spills, shared) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET config = excluded.config, sha256 = excluded.sha256,"
                " registers = excluded.registers, spills = excluded.spills, shared = excluded.shared"
                " WHERE sha256 IS NULL",
                (name, config, sha256, registers, spills, shared),
            )
            known = self._file.value("SELECT sha256 FROM evidence.image WHERE name = ?", [name])
            if sha256 and known != sha256:
                raise TuningDatabaseError(
                    f"{self._file.path}: {name} has checksum {known}, but was compiled to {sha256}: timings would mix"
                )
            return int(str(self._file.value("SELECT id FROM evidence.image WHERE name = ?", [name])))

    def unmeasured_images(self) -> set[str]:
        """Those that were compiled, and neither swept nor raced; some were checked."""
        with self._file.errors():
            found = self._file.execute(f"SELECT name FROM evidence.image WHERE id NOT IN ({MEASURED})")
            return {str(row[0]) for row in found}

    def checked_images(self, arch: str, kernel: str) -> list[tuple[str, str]]:
        """Functional and name of each image of a kernel that was checked and not timed."""
        with self._file.errors():
            found = self._file.execute(
                "SELECT DISTINCT p.functional, i.name FROM evidence.measurement m JOIN evidence.problem p"
                " ON p.id = m.problem JOIN evidence.image i ON i.id = m.image JOIN evidence.session s"
                f" ON s.id = m.session WHERE (p.arch, p.kernel, m.status) = (?, ?, 'checked') AND {counts('s')}"
                " ORDER BY i.id",
                [arch, kernel],
            )
            return [(str(functional), str(name)) for functional, name in found]

    def kernels(self, sessions: Sequence[int]) -> set[tuple[str, str]]:
        """Arch and name of the kernels that were measured in these sessions."""
        marks = ", ".join("?" * len(sessions))
        with self._file.errors():
            found = self._file.execute(
                "SELECT DISTINCT arch, kernel FROM evidence.problem WHERE id IN"
                f" (SELECT problem FROM evidence.measurement WHERE session IN ({marks}))",
                sessions,
            )
            return {(str(arch), str(kernel)) for arch, kernel in found}

    def session_options(self) -> list[str]:
        """The options of each session, as ``Outcome.session`` counts them."""
        with self._file.errors():
            found = self._file.execute(f"SELECT options FROM {PLACES} ORDER BY place")
            return [str(row[0]) for row in found]

    def sessions(self) -> list[Session]:
        """Every session, the one that began first at the front."""
        with self._file.errors():
            found = self._file.execute(
                "SELECT s.started, d.product, d.driver, s.triton, s.options, s.strategy, ifnull(m.rows, 0),"
                " ifnull(x.rows, 0), s.uuid, (SELECT kind || ': ' || said FROM evidence.mark WHERE session = s.uuid"
                " ORDER BY kind LIMIT 1) FROM evidence.session s JOIN evidence.device d ON d.id = s.device"
                " LEFT JOIN (SELECT session, count(*) AS rows FROM evidence.measurement GROUP BY session) m"
                " ON m.session = s.id"
                " LEFT JOIN (SELECT session, count(*) AS rows FROM evidence.sample GROUP BY session) x"
                " ON x.session = s.id"
                " ORDER BY s.started, s.id"
            )
            told = [(*row[:-1], row[-1] or ("unknown" if row[-2].startswith(UNKNOWN) else "own")) for row in found]
            return [Session(*row) for row in told]

    def failures(self, kernel: str, judge: str) -> list[tuple[str, str, str, str]]:
        """Functional, bin, config and what was said, of the kernel's measurements by this judge that are not ok, oldest
        first.
        """
        with self._file.errors():
            found = self._file.execute(
                "SELECT functional, bin, config, status || ifnull(': ' || detail, '') FROM evidence.measurement"
                " JOIN evidence.problem ON problem.id = problem JOIN evidence.image ON image.id = image"
                " JOIN evidence.session s ON s.id = session"
                f" WHERE (problem.kernel, judge) = (?, ?) AND status NOT IN ('ok', 'checked') AND {counts('s')}"
                " ORDER BY measurement.id",
                [kernel, judge],
            )
            return [(str(functional), str(bin), str(config), str(said)) for functional, bin, config, said in found]

    def checksums(self) -> dict[str, str]:
        """SHA-256 by name of every image that was timed or checked, the one that is known longest at the front."""
        with self._file.errors():
            found = self._file.execute(
                "SELECT name, sha256 FROM evidence.image WHERE sha256 IS NOT NULL"
                " AND id IN (SELECT image FROM evidence.measurement WHERE status IN ('ok', 'checked')) ORDER BY id"
            )
            return dict(self._file.read("image", rows.checksum, found))

    def compiled_checksums(self) -> dict[str, str]:
        """SHA-256 by name of every image that was compiled."""
        with self._file.errors():
            found = self._file.execute("SELECT name, sha256 FROM evidence.image WHERE sha256 IS NOT NULL ORDER BY id")
            return dict(self._file.read("image", rows.checksum, found))

    def record(self, *measurements: Measurement) -> None:
        """Appends the measurements, all of them or none. When it returns they are on disk."""
        with self._file.transaction():
            for measurement in measurements:
                (measurement,) = self._file.read("measurement", rows.sound, [measurement])
                row = dict(zip((field.name for field in fields(measurement)), astuple(measurement), strict=True))
                for name in ("median_us", "error", "tolerance"):
                    row[name] = None if row[name] is None else float(f"{row[name]:.5g}")
                row["samples"] = ",".join(f"{sample:.5g}" for sample in measurement.samples)
                row["samples"] = f"[{row['samples']}]" if measurement.samples else None
                self._file.insert("evidence.measurement", row)

    def outcomes(
        self,
        arch: str | None = None,
        kernel: str | None = None,
        problem: int | None = None,
        product: str | None = None,
        unknown: bool = False,
    ) -> list[Outcome]:
        """Every measurement that counts, oldest first, of one arch, kernel, problem id or product where given, without
        those that say nothing of a time: of images that were only checked, or timed beside another process.
        ``unknown``: those of unknown sessions instead.

        An image that spills counts as pruned, however fast it ran: it is neither raced nor shipped.
        """
        condition, values = where({"arch": arch, "kernel": kernel, "id": problem})
        these = f"(SELECT id FROM evidence.problem {condition})"
        with self._file.snapshot():
            # What a measurement refers to is read apart: few problems, images and sessions have many measurements.
            found = self._file.execute(
                f"SELECT id, arch, kernel, functional, bin, shape FROM evidence.problem {condition}", values
            )
            problems = dict(self._file.read("problem", rows.problem, found))
            found = self._file.execute(
                "SELECT id, name, config, ifnull(spills, 0) > 0 FROM evidence.image"
                f" WHERE id IN (SELECT image FROM evidence.measurement WHERE problem IN {these})",
                values,
            )
            images = dict(self._file.read("image", rows.image, found))
            on, product_values = where({"d.product": product})
            found = self._file.execute(
                f"WITH {UNKNOWN_AGE if unknown else AGE} SELECT s.id, d.product, age.place, s.started"
                f" FROM evidence.session s JOIN age ON age.id = s.id JOIN evidence.device d ON d.id = s.device {on}",
                product_values,
            )
            sessions = dict(self._file.read("session", rows.session, found))
            found = self._file.execute(
                "SELECT id, problem, image, session, phase, status, median_us, judge, sm_clock"
                f" FROM evidence.measurement WHERE problem IN {these}"
                f" AND session IN ({', '.join(map(str, sessions))}) AND status <> 'checked'"
                f" AND (status <> 'ok' OR ifnull(detail, '') NOT LIKE '{rows.BESIDE} %') ORDER BY id",
                values,
            )
            outcome = rows.outcomes(problems, images, sessions)
            return list(self._file.read("measurement", outcome, found))

    def end_search(self, problem: int, session: int, trials: int, judge: str | None = None) -> None:
        """Records that the session's strategy is through with a problem, whose trials had this judge."""
        with self._file.transaction():
            self._file.execute(
                "INSERT OR REPLACE INTO evidence.search (problem, session, trials, judge) VALUES (?, ?, ?, ?)",
                [problem, session, trials, judge],
            )

    def searched(self, arch: str, kernel: str, product: str) -> list[Searched]:
        """The searches that came to their end and count."""
        with self._file.errors():
            found = self._file.execute(
                f"WITH {AGE} SELECT p.kernel, p.functional, p.bin, p.shape, age.place, s.strategy, x.trials,"
                " ifnull(x.judge, '')"
                " FROM evidence.search x JOIN evidence.problem p ON p.id = x.problem"
                " JOIN evidence.session s ON s.id = x.session"
                " JOIN age ON age.id = s.id JOIN evidence.device d ON d.id = s.device"
                " WHERE (p.arch, p.kernel, d.product) = (?, ?, ?) ORDER BY age.place, p.id",
                [arch, kernel, product],
            )
            return [Searched(*row) for row in found]

    def samples_of(self, measurement: int) -> tuple[float, ...]:
        """The microseconds of one measurement by ``Outcome.id``, in the order taken; empty where it has none."""
        with self._file.errors():
            found = self._file.execute("SELECT id, samples FROM evidence.measurement WHERE id = ?", [measurement])
            return next(self._file.read("measurement", rows.times, found), ())

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
        with self._file.transaction():
            sample = self._file.insert("evidence.sample", row)
            for timing in self._file.read("timing", rows.sound_timing, timings):
                made: dict[str, object] = {"sample": sample, "sequence": self._sequence_id(operator, timing)}
                made |= {"median_us": float(f"{timing.median_us:.5g}"), "spread": float(f"{timing.spread:.5g}")}
                self._file.insert("evidence.timing", made | {"rounds": timing.rounds})

    def _sequence_id(self, operator: str, timing: SequenceTiming) -> int:
        row = {"operator": operator, "backend": timing.backend, "images": json.dumps(timing.images)}
        return self._file.id_of("evidence.sequence", row)

    def samples(self, arch: str, operator: str) -> list[Sample]:
        """Every sample of the operator on the arch's products that counts, oldest first, with its timings."""
        with self._file.snapshot():
            found = self._file.execute(
                "SELECT t.sample, t.sequence, q.backend, q.images, t.median_us, t.spread, t.rounds"
                " FROM evidence.timing t JOIN evidence.sequence q ON q.id = t.sequence WHERE q.operator = ?"
                " ORDER BY t.sample, t.sequence",
                [operator],
            )
            timings: dict[object, list[SequenceTiming]] = {}
            for sample, timing in self._file.read("timing", lambda row: (row[0], rows.timing(row[2:])), found, key=2):
                timings.setdefault(sample, []).append(timing)
            found = self._file.execute(
                f"WITH {AGE}"
                " SELECT m.id, d.product, m.operator, m.functional, m.shape, age.place FROM evidence.sample m"
                " JOIN age ON age.id = m.session JOIN evidence.session s ON s.id = m.session"
                " JOIN evidence.device d ON d.id = s.device"
                " WHERE d.arch = ? AND m.operator = ? ORDER BY m.id",
                [arch, operator],
            )
            return list(self._file.read("sample", lambda row: rows.sample(row[1:], timings.get(row[0], ())), found))

    def certificates(self) -> dict[str, list[Certificate]]:
        """By image, what the checks of its results found on each product, the products by name."""
        with self._file.errors():
            found = self._file.execute(
                "SELECT i.name, d.product, p.kernel, ifnull(m.judge, ''), m.problem,"
                " ifnull(m.checks, 1), s.started, m.status,"
                " CASE m.status WHEN 'wrong' THEN 0 ELSE ifnull(m.error, 0) END, ifnull(m.tolerance, 0)"
                " FROM evidence.measurement m JOIN evidence.problem p ON p.id = m.problem"
                " JOIN evidence.image i ON i.id = m.image JOIN evidence.session s ON s.id = m.session"
                " JOIN evidence.device d ON d.id = s.device"
                f" WHERE {counts('s')} AND (m.status = 'wrong' OR (m.status IN ('ok', 'checked')"
                " AND m.error IS NOT NULL))"
            )
            return rows.certificates(self._file.read("measurement", rows.check, found))

    def products(self) -> list[Product]:
        """The products that anything right was measured on, by name."""
        with self._file.errors():
            found = self._file.execute(
                "SELECT product, arch, max(multiprocessors), max(memory) FROM evidence.device"
                f" WHERE id IN (SELECT device FROM evidence.session s WHERE {counts('s')} AND id IN"
                " (SELECT session FROM evidence.measurement WHERE status = 'ok'"
                " UNION SELECT session FROM evidence.sample)) GROUP BY product, arch"
            )
            return list(self._file.read("device", rows.product, found))
