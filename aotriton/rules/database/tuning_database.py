"""A tuning database with its evidence, as the tuner opens it: what is measured goes into the evidence, what follows
from it into the decisions.

Closing it packs the sessions that have new rows into the archive, and brings up to date what decisions keep of the
evidence. If a process is killed, the next one that opens the database for writing does that.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from aotriton.rules.database import archive, local, older
from aotriton.rules.database.decisions import (
    NAMED,
    Decisions,
    add_model,
    check_version,
    named,
    put_models,
    put_winners,
    split_name,
)
from aotriton.rules.database.derive import derive
from aotriton.rules.database.evidence import Evidence
from aotriton.rules.database.exchange import Exchange
from aotriton.rules.database.rows import Model, Product, Session, Winner
from aotriton.rules.database.schema import APART, DECISIONS, DISTRUST, MERGE, UNKNOWN, VERSION
from aotriton.rules.database.sqlite_file import APPLICATION_ID, File, TuningDatabaseError, left_behind


class TuningDatabase(Decisions):
    """An open tuning database with its ``evidence``. It is made if there is none, and migrated if it is older; not if
    ``readonly``. Any number of processes may write at once: each write is a transaction of its own.

    An object belongs to the thread that made it; open one for each thread. TuningDatabaseError if the file is missing
    and ``readonly``, is not writable, is damaged, is not a tuning database or comes from a newer version, or if the
    evidence that it rests on is missing.
    """

    def __init__(self, path: str | os.PathLike[str], readonly: bool = False) -> None:
        self._readonly = readonly
        self._decided: set[tuple[str, str]] = set()  # arch and name of kernels with other winners or models than before
        if readonly:
            super().__init__(path)
        else:
            self.path = Path(path)
            self._file = File(self.path, False, APPLICATION_ID)
        with ExitStack() as stack:
            stack.callback(self._file.close)
            if not readonly:
                self._check()
            unpacked = stack.enter_context(local.unpacked(self.path, readonly))
            self._attach(unpacked)
            if not readonly:
                self._make()
            self._check_evidence()
            self._opened = stack.pop_all()
        self.evidence = Evidence(self._file, unpacked)
        self.exchange = Exchange(self._file)

    def close(self) -> None:
        with self._opened:
            if not self._readonly:
                self.conclude()

    def __enter__(self) -> TuningDatabase:
        return self

    def _check(self) -> None:
        if not self._file.is_empty():
            check_version(self._file)
            self._file.check()
        with self._file.errors():
            self._file.execute("PRAGMA journal_mode = DELETE")  # one file, whatever another tool has set

    def _attach(self, unpacked: Path) -> None:
        mode = "ro" if self._readonly else "rw"
        with self._file.errors():
            self._file.execute("ATTACH ? AS evidence", [f"{unpacked.absolute().as_uri()}?mode={mode}"])

    def _make(self) -> None:
        """Makes the tables if there are none, and migrates an older file; one of both parts is taken apart."""
        if self._file.version() < VERSION:
            with TemporaryDirectory() as folder, self._file.errors():
                copied = Path(folder) / "older.sqlite3"
                if 0 < self._file.version() < APART:
                    older.copy(self.path, copied)
                self._file.execute("PRAGMA foreign_keys = OFF")  # tables are dropped that others refer to
                with self._attached(copied), self._file.transaction():
                    version = self._file.version()  # read again: another process may have been faster
                    if APART <= version < VERSION:
                        self._check_evidence()
                        older.migrate(self._file)
                    elif version < VERSION:
                        self._file.drop("table", "main")
                        self._file.make(DECISIONS, VERSION)
                        if copied.exists():
                            self._take_evidence(self.path)
                            found = older.winners(copied)
                            put_winners(self._file, found)
                            for row in older.models(copied):
                                add_model(self._file, row)
                            self._decided |= {(one.arch, one.kernel) for one in found}
                if version >= APART:
                    self._shrink()
        self._file.execute("PRAGMA foreign_keys = ON")

    def _check_evidence(self) -> None:
        with self._file.errors():
            missing = self._file.value(
                "SELECT count(*) FROM main.session WHERE uuid NOT IN (SELECT uuid FROM evidence.session)"
            )
            if missing:
                folder = archive.folder_of(self.path)
                raise TuningDatabaseError(
                    f"{self.path}: {missing} sessions of measurements that it rests on are not in {folder}; copy that"
                    " folder with the database"
                )

    @contextmanager
    def _attached(self, other: Path, writing: bool = False) -> Iterator[None]:
        """Within, the other file, if it is there, is attached as ``other``, for reading or for ``writing``, too."""
        if not other.exists():
            yield
            return
        self._file.execute("ATTACH ? AS other", [f"{other.absolute().as_uri()}?mode={'rw' if writing else 'ro'}"])
        try:
            yield
        finally:
            self._file.execute("DETACH other")

    def _take_evidence(self, called: Path) -> None:
        archive.check_same_binaries(self._file, "evidence", called)
        self._file.script(MERGE.format(to="evidence"))

    def conclude(self) -> None:
        """Packs the sessions that have new rows, and brings up to date what decisions keep of the evidence."""
        with self._file.transaction():
            sessions = archive.unpacked(self._file, "evidence")
            changed = derive(self._file, self, self.evidence, self._decided | self.evidence.kernels(sessions))
            archive.pack(self._file, "evidence", archive.folder_of(self.path), sessions)
        self._decided.clear()
        if changed:
            self._shrink()

    def repack(self) -> int:
        """Joins the small files of the archive in one, which is smaller; returns how many files they were."""
        with self._file.transaction():
            return archive.repack(self._file, "evidence", archive.folder_of(self.path))

    def _shrink(self) -> None:
        with suppress(sqlite3.OperationalError):  # another process is reading: the file is larger than it could be
            self._file.execute("VACUUM main")

    def products(self, arch: str | None = None) -> list[Product]:
        known = {(one.name, one.arch): one for one in (*super().products(), *self.evidence.products())}
        return [known[key] for key in sorted(known) if arch in (None, key[1])]

    def measured(self) -> int:
        """The number of measurements."""
        with self._file.errors():
            return int(str(self._file.value("SELECT count(*) FROM evidence.measurement")))

    def stale(self) -> int:
        """The number of measurements of images that the source of today no longer makes, as of the last ``conclude``.

        Decisions keep nothing of them, unless a winner or a model rests on it.
        """
        with self._file.errors():
            return int(
                str(
                    self._file.value(
                        "SELECT count(*) FROM evidence.measurement WHERE image IN (SELECT id FROM evidence.image"
                        " WHERE name NOT IN (SELECT name FROM main.image))"
                    )
                )
            )

    def put_winners(self, winners: Iterable[Winner]) -> None:
        """Writes winners, all or none, over those of the same bins; only a measured one replaces a measured one."""
        winners = list(winners)
        with self._file.transaction():
            put_winners(self._file, winners)
        self._decided |= {(one.arch, one.kernel) for one in winners}

    def forget_winners(self, winners: Iterable[Winner]) -> None:
        """Removes the winners of these bins, all or none; what was measured stays."""
        with self._file.transaction():
            for one in winners:
                self._file.execute(
                    "DELETE FROM main.winner_row WHERE (product, bin, functional) = ("
                    "(SELECT id FROM product WHERE (arch, name) = (?, ?)), (SELECT id FROM bin WHERE bin = ?),"
                    " (SELECT id FROM functional WHERE (arch, kernel, functional) = (?, ?, ?)))",
                    [one.arch, one.product, one.bin, one.arch, one.kernel, one.functional],
                )
                self._decided.add((one.arch, one.kernel))

    def put_models(self, models: Iterable[Model], replacing: tuple[str, str, str]) -> None:
        """Writes models in place of all those of an (arch, product, operator), all or none."""
        with self._file.transaction():
            self._file.execute(
                "DELETE FROM main.model_row WHERE product = (SELECT id FROM main.product WHERE (arch, name) = (?, ?))"
                " AND operator = ?",
                list(replacing),
            )
            models = list(models)
            put_models(self._file, models)
        self._decided |= {(one.arch, one.kernel) for one in models}  # other types than theirs ship by them, too

    def rename_images(self, names: Mapping[str, str]) -> None:
        """Gives images new names everywhere, all or none: another source makes the bits that were measured now.

        ``names`` maps old names to new ones, of which nothing was measured.
        """
        with self._file.transaction():
            archive.rename(self._file, "evidence", names)
            for old, new in names.items():
                self._file.execute(f"DELETE FROM main.image_row WHERE {NAMED}", split_name(new))
                parts = [*named(self._file, new).values(), *split_name(old)]
                for table in ("image_row", "model_row"):
                    self._file.execute(f"UPDATE main.{table} SET (digest, prefix) = (?, ?) WHERE {NAMED}", parts)
            if names:
                archive.pack_renamed(self._file, "evidence", archive.folder_of(self.path), names)
        self._decided |= {(one.arch, one.kernel) for one in self.winners()}

    def merge(
        self, path: str | os.PathLike[str], called: Path | None = None, own: bool = False, signer: str = ""
    ) -> int:
        """Takes over what the database at ``path`` has and this one lacks: all of it or nothing. Returns the number of
        measurements and of timings of launch sequences.

        It is trusted if it is the caller's ``own``, or signed by a ``signer``, who was checked. Else its sessions are
        unknown: their rows take part in no decision, and its winners, its models and what it says of images are left.
        A session is known by its uuid, so that merging twice changes nothing. A cell that has a winner here keeps it,
        and an operator on a product keeps its models; deciding and fitting anew takes the new rows into account.
        TuningDatabaseError if that file is not a tuning database, if it holds what cannot be true, or if both know one
        image by different checksums; the message names the file as ``called``.
        """
        called = called or Path(path)
        with _readable(Path(path)) as other:
            if self.path.samefile(path):
                return 0
            other.exchange.check(called)
            trusted = own or bool(signer)
            count = "SELECT (SELECT count(*) FROM evidence.measurement) + (SELECT count(*) FROM evidence.timing)"
            with TemporaryDirectory() as folder, self._file.errors():
                evidence = other.evidence.path
                if not trusted:
                    evidence = Path(shutil.copy(evidence, Path(folder) / "unknown.sqlite3"))
                with self._attached(evidence, writing=not trusted), self._file.transaction():
                    before = self._file.value(count)
                    archive.check_same_binaries(self._file, "evidence", called)
                    marks = self._marks(own, signer) if trusted else []
                    if not trusted:
                        self._distrust()
                    self._file.script(MERGE.format(to="evidence"))
                    if trusted:
                        self._take_decisions(other, called)
                    archive.pack_marks(self._file, "evidence", archive.folder_of(self.path), marks)
                    self._decided |= self.kernels_of(session for session, kind, _ in marks if kind == "retracted")
                    return int(str(self._file.value(count))) - int(str(before))

    def _distrust(self) -> None:
        """Makes what is attached as ``other`` rows of unknown sessions."""
        triggers = self._file.execute("SELECT name FROM other.sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            self._file.execute('DROP TRIGGER other."{}"'.format(str(name).replace('"', '""')))
        self._file.script(DISTRUST)

    def _marks(self, own: bool, signer: str) -> list[archive.Mark]:
        """What ``other`` says of its sessions, and who signed them, where it is new here.

        Nobody else's file retracts a session that was measured here.
        """
        measured_here = (
            set()
            if own
            else self._uuids("evidence")
            - {str(one) for (one,) in self._file.execute("SELECT session FROM evidence.mark WHERE kind = 'signed'")}
        )
        found = self._file.execute("SELECT session, kind, said FROM other.mark ORDER BY session, kind").fetchall()
        marks = [(str(session), str(kind), str(said)) for session, kind, said in found]
        if signer:
            marks += [(uuid, "signed", f"by {signer}") for uuid in sorted(self._uuids("other"))]
        known = set(self._file.execute("SELECT session, kind FROM evidence.mark").fetchall())
        new = {
            (session, kind): said
            for session, kind, said in marks
            if session not in measured_here and (session, kind) not in known and not session.startswith(UNKNOWN)
        }
        return [(session, kind, said) for (session, kind), said in sorted(new.items())]

    def _uuids(self, at: str) -> set[str]:
        return {str(one) for (one,) in self._file.execute(f"SELECT uuid FROM {at}.session")}

    def _take_decisions(self, other: TuningDatabase, called: Path) -> None:
        """Takes over winners and models, without those that rest on what is retracted here. TuningDatabaseError if a
        winner is called measured and no measurement says so.
        """
        winners, models, taken = other.winners(), other.models(), list[Winner]()
        kernels = {(one.arch, one.kernel) for one in winners if one.provenance == "measured"}
        here, there = self._timed(kernels), other._timed(kernels)
        for one in winners:
            cell = one.arch, one.product, one.kernel, one.functional, one.bin
            timing = (*cell, one.image, one.median_us)
            if one.provenance != "measured" or timing in here:
                taken.append(one)
            elif timing not in there:
                raise TuningDatabaseError(
                    f"{called}: table winner, row {' '.join(cell)}: measured with {one.median_us} us, but no"
                    f" measurement of {one.image} says so"
                )
        put_winners(self._file, taken, over=False)
        retracted = {one.uuid for one in self.evidence.sessions() if one.standing.startswith("retracted")}
        if retracted.isdisjoint(one.uuid for one in other.evidence.sessions()):
            modelled = {(one.arch, one.product, one.operator) for one in self.models()}
            put_models(self._file, (m for m in models if (m.arch, m.product, m.operator) not in modelled))
        self._decided |= {(one.arch, one.kernel) for one in taken}

    def _timed(self, kernels: Iterable[tuple[str, str]]) -> set[tuple[object, ...]]:
        """Cell, image and median of each measurement of these kernels that is ok and counts."""
        return {
            (one.arch, one.product, one.kernel, one.functional, one.bin, one.image, one.median_us)
            for arch, kernel in sorted(kernels)
            for one in self.evidence.outcomes(arch, kernel)
            if one.status == "ok"
        }

    def session(self, uuid: str) -> Session:
        """The session whose uuid begins so; TuningDatabaseError if there is none, or more than one."""
        sessions = self.evidence.sessions()
        found = [one for one in sessions if one.uuid.startswith(uuid)] if uuid else []
        if len(found) != 1:
            latest = "; ".join(f"{one.uuid} of {one.started} on {one.product}" for one in sessions[-5:])
            raise TuningDatabaseError(
                f"{self.path}: {len(found)} sessions have a uuid that begins with {uuid!r}; the latest are {latest}"
            )
        return found[0]

    def retract(self, session: Session, why: str) -> None:
        """Takes the rows of a session out of all that is decided from now on. They stay in the evidence, and the
        archive says that they are retracted, and ``why``.
        """
        with self._file.transaction():
            if not session.standing.startswith("retracted"):
                folder = archive.folder_of(self.path)
                archive.pack_marks(self._file, "evidence", folder, [(session.uuid, "retracted", why)])
            self._decided |= self.kernels_of([session.uuid])

    def kernels_of(self, sessions: Iterable[str]) -> set[tuple[str, str]]:
        """Arch and name of the kernels that were measured in these sessions, by their uuids."""
        wanted = set(sessions)
        found = self._file.execute("SELECT id, uuid FROM evidence.session").fetchall()
        return self.evidence.kernels([int(number) for number, uuid in found if uuid in wanted])

    def operators_of(self, session: str) -> set[tuple[str, str]]:
        """Arch and name of the operators that were timed on random shapes in a session, by its uuid."""
        with self._file.errors():
            found = self._file.execute(
                "SELECT DISTINCT d.arch, x.operator FROM evidence.sample x JOIN evidence.session s ON s.id = x.session"
                " JOIN evidence.device d ON d.id = s.device WHERE s.uuid = ?",
                [session],
            )
            return {(str(arch), str(operator)) for arch, operator in found}


@contextmanager
def decisions(path: Path) -> Iterator[Decisions]:
    """The decisions of the database at ``path``, which may be older; its evidence need not be there."""
    version = _version(path)
    with ExitStack() as stack:
        if APART <= version < VERSION:
            path = stack.enter_context(_migrated(path))
        yield stack.enter_context(Decisions(path) if version >= APART else _readable(path))


@contextmanager
def _readable(path: Path) -> Iterator[TuningDatabase]:
    """The database at ``path``, open for reading; if it is older, a copy that is migrated."""
    version = _version(path)
    if version == VERSION:
        with TuningDatabase(path, readonly=True) as database:
            yield database
        return
    with _migrated(path) as copy:
        if version >= APART and archive.folder_of(path).is_dir():
            shutil.copytree(archive.folder_of(path), archive.folder_of(copy))
        with TuningDatabase(copy, readonly=version >= APART) as database:
            yield database


@contextmanager
def _migrated(path: Path) -> Iterator[Path]:
    """A copy of an older database, migrated; without the evidence that is in files of its own."""
    if left := left_behind(path, "-wal"):
        raise TuningDatabaseError(f"{path}: {left}")
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        older.copy(path, copy)
        yield copy


def _version(path: Path) -> int:
    """TuningDatabaseError if the file is none of this or an older version of the program."""
    file = File(path, True, APPLICATION_ID)
    try:
        check_version(file)
        return file.version()
    finally:
        file.close()
