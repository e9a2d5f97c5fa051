"""Generated files: from templates and values to files on disk that change only where their content does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from aotriton.codegen import cxx
from aotriton.codegen.store import write_atomically

MANIFEST = "generated.txt"  # names every file of the folder that is ours, so that a later run knows which are stale

_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "template"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,
)
_environment.filters.update(string=cxx.string, literal=cxx.literal, comment=cxx.comment)


def render(template: str, **values: Any) -> str:
    """The text of ``template/<template>.j2``; a name that ``values`` lacks is an error."""
    return _environment.get_template(f"{template}.j2").render(values)


def write_if_changed(path: Path, content: str | bytes) -> bool:
    """Writes ``content`` unless the file holds it already; returns whether it wrote."""
    data = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == data:
        return False
    write_atomically(path, data)
    return True


class Output:
    """The files of one run in one folder.

    ``finish`` writes them, and removes files of an earlier run that this run did not name. No file changes before
    ``finish``, so a run that fails leaves the folder as it was.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contents: dict[str, str | None] = {}
        self.written: list[str] = []

    def reserve(self, name: str) -> None:
        """Keeps a file of the folder that another step writes; ValueError if it was named before."""
        if name in self.contents:
            raise ValueError(f"{self.folder / name} would be written twice")
        self.contents[name] = None

    def write(self, name: str, content: str) -> None:
        self.reserve(name)
        self.contents[name] = content

    def finish(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            if content is not None and write_if_changed(self.folder / name, content):
                self.written.append(name)
        manifest = self.folder / MANIFEST
        known = manifest.read_text().split() if manifest.is_file() else []
        for name in set(known) - set(self.contents):
            (self.folder / name).unlink(missing_ok=True)
        write_if_changed(manifest, "".join(f"{name}\n" for name in sorted(self.contents)))


def made_files(folder: Path) -> list[str]:
    """The names of the folder's files, without the packed images, which another step writes."""
    return [name for name in (folder / MANIFEST).read_text().split() if ".images." not in name]
