"""Families outside of the tree on their way to other machines: their files, and the folder where a worker has them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from aotriton.codegen.store import cache_folder
from aotriton.tune.problem.tuning_error import TuningError

STOPS = ("rules", "tune", "tritonsrc")  # the folders of a family that tuning takes, without v2src


@dataclass(frozen=True)
class FamilyFiles:
    """The family called ``name``, as its files by their paths in its folder."""

    name: str
    files: Mapping[str, bytes]

    @classmethod
    def read(cls, folder: Path) -> FamilyFiles:
        """What is in the folder, without databases and what Python keeps there."""
        return cls(folder.name, {path.relative_to(folder).as_posix(): path.read_bytes() for path in _sources(folder)})

    @cached_property
    def place(self) -> str:
        """The folder's name on workers: a digest of the files, and the family's name."""
        digest = hashlib.sha256(self.name.encode())
        for path, content in sorted(self.files.items()):
            digest.update(f"\n{path} {len(content)}\n".encode() + content)
        return f"{digest.hexdigest()[:32]}/{self.name}"

    def unpack(self) -> None:
        """Writes the files into their place on this machine, unless they are there."""
        place = Path(folders_of([self.place])[0])
        if place.is_dir() and FamilyFiles.read(place).place == self.place:
            return
        parent = place.parent.parent
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=parent) as scratch:
            made = Path(scratch) / "made"
            for path, content in self.files.items():
                file = made / self.name / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            if place.parent.exists():  # somebody changed it: nothing may be made of that
                os.rename(place.parent, Path(scratch) / "damaged")
            try:
                os.rename(made, place.parent)
            except OSError:  # another worker of this machine was first
                if not place.is_dir():
                    raise
            shutil.rmtree(Path(scratch) / "damaged", ignore_errors=True)


def folders_of(places: Sequence[str]) -> list[str]:
    """The folders on this machine of families: a ``FamilyFiles.place`` is in the user's cache, others are paths."""
    return [str(cache_folder() / "families" / place) for place in places]


def known_folders(places: Sequence[str]) -> tuple[str, ...]:
    """As ``folders_of``; TuningError where one is not there."""
    found = tuple(folders_of(places))
    for folder in found:
        if not Path(folder).is_dir():
            raise TuningError(f"{folder} is not there any more, which the run's coordinator had sent")
    return found


def _sources(folder: Path) -> Iterator[Path]:
    for stop in STOPS:
        for path in sorted((folder / stop).rglob("*")):
            parts = path.relative_to(folder).parts
            kept = not any(part.startswith((".", "__pycache__", "tuning_database.")) for part in parts)
            if kept and path.is_file():
                yield path
    yield from sorted(folder.glob("*.py"))
