"""The image store: from an image's name to its binary and its metadata, in a folder that many processes share."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CompiledImage:
    """An image in the store. ``metadata`` is its json: entry, threads, shared (bytes), registers, spills and so on.

    ``seconds``: the time that it took to compile; 0 if it was in the store.
    """

    name: str
    metadata: dict[str, Any]
    path: Path  # the cubin or hsaco
    seconds: float = field(default=0.0, compare=False)

    @property
    def spills(self) -> bool:
        """Whether the kernel spills registers. It has no arrays, so that its whole stack is spills."""
        return bool(self.metadata["spills"] or self.metadata["stack"])

    @property
    def serialised(self) -> tuple[str, ...]:
        """The codes of ptxas's messages about matrix products that wait for each other.

        It is empty for images of an older store, which has no such codes.
        """
        return tuple(self.metadata.get("serialised", ()))

    @property
    def binary(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class CompileFailure:
    """An image that could not be compiled, with the message of the compiler or of the process that supervises it."""

    name: str
    message: str
    seconds: float = field(default=0.0, compare=False)  # until it failed


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces ``path`` by a rename, so that neither a reader nor an interruption ever leaves half a file."""
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def cache_folder() -> Path:
    """``aotriton`` in the user's cache folder."""
    return _user_folder("XDG_CACHE_HOME", ".cache")


def data_folder() -> Path:
    """``aotriton`` in the user's data folder."""
    return _user_folder("XDG_DATA_HOME", ".local/share")


def config_folder() -> Path:
    """``aotriton`` in the user's folder of settings."""
    return _user_folder("XDG_CONFIG_HOME", ".config")


def _user_folder(variable: str, usual: str) -> Path:
    given = os.environ.get(variable, "")
    home = Path(given) if os.path.isabs(given) else Path.home() / usual  # the standard wants others ignored
    return home / "aotriton"


def default_store() -> Path:
    """$AOTRITON_IMAGE_STORE, or aotriton/images in the user's cache folder."""
    return Path(os.environ.get("AOTRITON_IMAGE_STORE") or cache_folder() / "images")


class ImageStore:
    """Files ``<name>.cubin`` or ``<name>.hsaco`` beside ``<name>.json``, content-addressed.

    An entry exists once its json does; json and binary appear by rename, so that no reader sees half a file. An entry
    never changes: a binary with another checksum is stored beside it as ``<name>-<checksum>``.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path or default_store()).expanduser().resolve()
        self.path.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, sha256: str | None = None) -> CompiledImage | None:
        """The image called ``name``, with this checksum if one is given; None if it is absent or damaged."""
        found = self._read(name, name)
        if sha256 is None or (found and found.metadata["sha256"] == sha256):
            return found
        found = self._read(name, _beside(name, sha256))
        return found if found and found.metadata["sha256"] == sha256 else None

    def put(
        self, name: str, suffix: str, binary: bytes, metadata: Mapping[str, Any], sha256: str | None = None
    ) -> CompiledImage:
        """The image, after it is stored; if another process stored it first, that process's image.

        With ``sha256``, an image with this checksum is stored beside one with another checksum, and returned.
        """
        with self._lock():
            if stored := self.get(name, sha256) or self.get(name):
                made = hashlib.sha256(binary).hexdigest()
                if sha256 is None or made != sha256 or stored.metadata["sha256"] == sha256:
                    return stored
                return self._write(name, _beside(name, sha256), suffix, binary, metadata)
            return self._write(name, name, suffix, binary, metadata)

    def _read(self, name: str, stem: str) -> CompiledImage | None:
        try:
            metadata = json.loads((self.path / f"{stem}.json").read_text())
            binary = self.path / metadata["file"]
            if metadata["name"] != name or hashlib.sha256(binary.read_bytes()).hexdigest() != metadata["sha256"]:
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return CompiledImage(name, metadata, binary)

    def _write(self, name: str, stem: str, suffix: str, binary: bytes, metadata: Mapping[str, Any]) -> CompiledImage:
        path = self.path / f"{stem}.{suffix}"
        entry = {"name": name, "file": path.name, "sha256": hashlib.sha256(binary).hexdigest(), **metadata}
        write_atomically(path, binary)
        write_atomically(self.path / f"{stem}.json", (json.dumps(entry, indent=1) + "\n").encode())
        return CompiledImage(name, entry, path)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keeps writers apart, so that a binary never lands beside the json of another process's binary."""
        with (self.path / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _beside(name: str, sha256: str) -> str:
    return f"{name}-{sha256[:16]}"
