"""The local file of the evidence: the archive unpacked, and what was measured since it was packed last.

What is measured is written there first. Git ignores the file; if it is lost, it is made again from the archive.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from aotriton.rules.database import archive
from aotriton.rules.database.schema import APART, EVIDENCE, EVIDENCE_1_TO_2, EVIDENCE_VERSION, MARKS
from aotriton.rules.database.sqlite_file import File, TuningDatabaseError

APPLICATION_ID = 0x414F5445  # "AOTE"
NAME = "evidence.sqlite3"


@contextmanager
def unpacked(database: Path, readonly: bool) -> Iterator[Path]:
    """The local file of this database's evidence, up to date with the archive.

    If one only reads and cannot write there, it is a temporary file. Of several processes one brings it up to date, and
    the others wait. TuningDatabaseError if a file of the archive is not valid.
    """
    folder = archive.folder_of(database)
    if not readonly:
        _make(folder)
    if not (folder.is_dir() and os.access(folder, os.W_OK) and folder.stat().st_mode & 0o222):
        if not readonly:
            raise TuningDatabaseError(f"{folder}: read-only, and what is measured is written there")
        with TemporaryDirectory(prefix="aotriton-evidence-") as temporary:
            _refresh(Path(temporary) / NAME, folder, database)
            yield Path(temporary) / NAME
        return
    _refresh(folder / NAME, folder, database)
    yield folder / NAME


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
        ignored = folder / ".gitignore"
        if not ignored.exists():
            ignored.write_text(f"{NAME}*\n")
    except OSError as error:
        raise TuningDatabaseError(f"{folder}: {error.strerror}") from None


def _refresh(path: Path, folder: Path, database: Path) -> None:
    file = File(path, False, APPLICATION_ID)
    try:
        with file.errors():
            file.execute("PRAGMA journal_mode = DELETE")
            file.execute("ATTACH ':memory:' AS other")
            file.execute("ATTACH ? AS decisions", [f"{database.absolute().as_uri()}?mode=ro"])
        with file.transaction():
            version = file.version()
            if version not in range(EVIDENCE_VERSION + 1):
                raise TuningDatabaseError(f"{path}: its schema is version {version}, not {EVIDENCE_VERSION}")
            if not version:
                file.make(EVIDENCE, EVIDENCE_VERSION)
            elif version == 1:
                file.script(EVIDENCE_1_TO_2)
            file.script(MARKS)
            there, known = archive.files(folder), dict(file.execute("SELECT name, size FROM archived").fetchall())
            other_checkout = not known.keys() <= there.keys()
            if other_checkout or 0 < version < EVIDENCE_VERSION:  # it is made again from the archive
                archive.pack(file, "main", folder, archive.unpacked(file, "main"))
                there, known = archive.files(folder), {}
                file.drop("table", "main")
                file.make(EVIDENCE, EVIDENCE_VERSION)
                file.script(MARKS)
            archive.load(file, folder, [name for name, size in there.items() if known.get(name) != size])
            if int(str(file.value("PRAGMA decisions.user_version"))) >= APART:
                # Images that were compiled and not measured are in no session.
                file.execute(
                    "INSERT INTO image (name, config, sha256, registers, spills, shared)"
                    " SELECT name, config, sha256, registers, spills, shared FROM decisions.image"
                    " WHERE sha256 IS NOT NULL AND name NOT IN (SELECT name FROM image) ORDER BY id"
                )
    finally:
        file.close()
