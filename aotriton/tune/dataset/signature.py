"""Signatures of what is handed to others: a database with its archive, exported tables, finalists.

Beside what is signed stand a list of its files with their SHA-256, ``tables.signed``, and OpenSSH's signature of the
list, ``tables.signed.sig``. Both come from and are read by ``ssh-keygen -Y``, with the keys and the file of allowed
signers that git uses, too.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from aotriton.rules.database import archive
from aotriton.tune.problem.tuning_error import TuningError

NAMESPACE = "aotriton-tuning"  # a signature of something else is none of this


def sign(path: Path, key: Path) -> Path:
    """Signs a database, a folder of tables or a file with a private key, and returns the path of the signature.

    TuningError where that is impossible.
    """
    listed, signature = _beside(path)
    try:
        lines = [f"{_digest(one.read_bytes())}  {one.relative_to(path.parent).as_posix()}\n" for one in _files(path)]
        listed.write_text("".join(lines))
        signature.unlink(missing_ok=True)
    except OSError as error:
        raise TuningError(f"{path} cannot be signed: {error}") from error
    _ssh_keygen(f"{path} cannot be signed", ["sign", "-f", str(key), "-n", NAMESPACE, str(listed)])
    return signature


def verified(path: Path, signers: Path, folder: Path) -> tuple[Path, str]:
    """A copy of what is at ``path`` in a ``folder``, of signed files only, and who signed it.

    TuningError where there is no signature, where none of the ``signers`` made it, and where a file is another one.
    """
    listed, signature = _beside(path)
    try:
        text = listed.read_bytes()
        signed = folder / "signature"
        signed.write_bytes(signature.read_bytes())
        why = f"{path} is not signed by anybody in {signers}"
        found = _ssh_keygen(why, ["find-principals", "-s", str(signed), "-f", str(signers)])
        signer = found.splitlines()[0]
        _ssh_keygen(why, ["verify", "-f", str(signers), "-I", signer, "-n", NAMESPACE, "-s", str(signed)], text)
        for line in text.decode().splitlines():
            digest, _, name = line.partition("  ")
            content = (path.parent / _safe(path, name)).read_bytes()
            if _digest(content) != digest:
                raise TuningError(f"{path.parent / name}: it was changed after {signer} signed it")
            copied = folder / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(content)
    except OSError as error:
        raise TuningError(f"{path}: what was signed cannot be read: {error}") from error
    return folder / path.name, signer


def _beside(path: Path) -> tuple[Path, Path]:
    """The list of files, and its signature."""
    return path.with_name(f"{path.name}.signed"), path.with_name(f"{path.name}.signed.sig")


def _files(path: Path) -> Sequence[Path]:
    if path.is_dir():
        return sorted(one for one in path.iterdir() if one.is_file())
    folder = archive.folder_of(path)
    return [path, *(folder / name for name in archive.files(folder))] if path.suffix == ".sqlite3" else [path]


def _safe(path: Path, name: str) -> str:
    """The name of a file of what is at ``path``, relative to its folder; TuningError if it is another one."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0] not in (path.name, archive.folder_of(path).name):
        raise TuningError(f"{path}: {name!r} is signed, which is no part of it")
    return name


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _ssh_keygen(why: str, arguments: Sequence[str], given: bytes | None = None) -> str:
    """What it prints; TuningError, which begins with ``why``, where it fails or is missing."""
    try:
        done = subprocess.run(["ssh-keygen", "-Y", *arguments], input=given, capture_output=True)
    except FileNotFoundError:
        raise TuningError(f"{why}: signatures need ssh-keygen of OpenSSH 8.2 or later") from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise TuningError(f"{why}: {said or f'ssh-keygen ended with status {done.returncode}'}")
    return done.stdout.decode()
