"""Facts of compiled images, which decisions and evidence both have."""

from __future__ import annotations

from aotriton.rules.database import rows
from aotriton.rules.database.sqlite_file import File


class Images:
    """The compiled images in the table or view ``_images`` of a ``_file``."""

    _file: File
    _images: str

    def spills(self) -> dict[str, int]:
        """What each compiled image spills, by its name; 0 where nothing."""
        with self._file.errors():
            found = self._file.execute(f"SELECT name, spills FROM {self._images} WHERE sha256 IS NOT NULL ORDER BY id")
            return dict(self._file.read("image", rows.spills, found))

    def facts(self) -> dict[str, tuple[str, int, int]]:
        """Config, registers and bytes of shared memory of each compiled image, by its name."""
        with self._file.errors():
            found = self._file.execute(
                f"SELECT name, config, registers, shared FROM {self._images} WHERE sha256 IS NOT NULL ORDER BY id"
            )
            return dict(self._file.read("image", rows.facts, found))
