"""The stamp of a generated folder: whether its inputs and the generated files are unchanged.

Code is compared by its content, large files by size and modification time, as build tools do.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from aotriton.codegen.store import write_atomically

STAMP = "generated.stamp"
PACKAGE = Path(__file__).parent.parent
STOPS = ("rules", "tritonsrc", "codegen")  # the folders whose code affects the result


def digest(words: Sequence[object], families: Iterable[Path], databases: Iterable[Path]) -> str:
    """The digest of a run's inputs: options, code, the code of families outside of the tree, and databases."""
    made = hashlib.sha256(repr([sys.version, version("jinja2"), *map(str, words)]).encode())
    code = [path for stop in STOPS for path in _code(PACKAGE / stop)]
    for family in families:
        code += [*_code(family / "rules"), *_sources(family / "tritonsrc")]
    for path in code:
        made.update(f"{path}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    for database in databases:
        beside = [database.with_name(database.name + suffix) for suffix in ("-wal", "-journal")]
        made.update(repr([(str(path), _state(path)) for path in (database, *beside)]).encode())
    return made.hexdigest()


def _code(folder: Path) -> list[Path]:
    return sorted([*folder.rglob("*.py"), *folder.rglob("*.j2")])


def _sources(folder: Path) -> list[Path]:
    """The files of device code, in any language."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")


def _state(path: Path) -> list[int] | None:
    with suppress(OSError):
        found = path.stat()
        return [found.st_size, found.st_mtime_ns]
    return None


def read(out: Path, digest: str) -> str | None:
    """The messages of the run that made the folder, if this run would make the same; else None."""
    try:
        kept = json.loads((out / STAMP).read_text())
        same = kept["digest"] == digest and all(_state(out / name) == state for name, state in kept["files"].items())
        return str(kept["summary"]) if same else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(out: Path, digest: str, names: Iterable[str], summary: str) -> None:
    """Stamps the folder, into which the files ``names`` were generated."""
    kept = {"digest": digest, "files": {name: _state(out / name) for name in sorted(names)}, "summary": summary}
    write_atomically(out / STAMP, json.dumps(kept, indent=1).encode())
