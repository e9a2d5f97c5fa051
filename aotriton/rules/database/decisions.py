"""What was decided, and all that code generation needs: winners, models, and what of the evidence they rest on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import astuple, fields
from pathlib import Path

from aotriton.rules.arch import arch_spec
from aotriton.rules.database import rows
from aotriton.rules.database.images import Images
from aotriton.rules.database.rows import Certificate, Median, Model, Product, Winner
from aotriton.rules.database.schema import VERSION
from aotriton.rules.database.sqlite_file import APPLICATION_ID, File, TuningDatabaseError, left_behind, where

# The condition that a row has an image's name, whose parts ``split_name`` gives.
NAMED = "(digest, prefix) = (?, (SELECT id FROM main.image_prefix WHERE prefix = ?))"


class Decisions(Images):
    """The decisions of a tuning database, open for reading. Any number of processes may read at once.

    TuningDatabaseError where the file is missing, damaged, no tuning database or of another version.
    """

    _images = "main.image"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = File(self.path, True, APPLICATION_ID)
        try:
            check_version(self._file)
            if self._file.version() < VERSION:
                raise TuningDatabaseError(
                    f"{self.path}: its schema is version {self._file.version()}, older than {VERSION}, and migrating it"
                    f" needs write access: python3 -m aotriton.rules.database {self.path}"
                )
            self._file.check()
            # It could be read with its log, but who copies, commits or compares the file has only half of it.
            if left := left_behind(self.path, "-wal"):
                raise TuningDatabaseError(f"{self.path}: {left}")
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Decisions:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def winners(self, arch: str | None = None, kernel: str | None = None, product: str | None = None) -> list[Winner]:
        """Winners of one arch, kernel or product where given, sorted by arch, product, kernel, functional and bin."""
        condition, values = where({"arch": arch, "kernel": kernel, "product": product})
        with self._file.errors():
            found = self._file.execute(
                f"SELECT {', '.join(rows.WINNER_COLUMNS)} FROM main.winner {condition}"
                " ORDER BY arch, product, kernel, functional, bin",
                values,
            )
            return list(self._file.read("winner", rows.winner, found, key=5))

    def models(self, arch: str | None = None) -> list[Model]:
        """Models, of one arch where given, sorted by arch, product, kernel, functional and image."""
        columns = ", ".join(field.name for field in fields(Model))
        condition, values = where({"arch": arch})
        with self._file.errors():
            found = self._file.execute(
                f"SELECT {columns} FROM main.model {condition} ORDER BY arch, product, kernel, functional, image",
                values,
            )
            return list(self._file.read("model", rows.model, found, key=6))

    def products(self, arch: str | None = None) -> list[Product]:
        """The products that anything right was measured on or that have a winner, by name; of one arch where given."""
        condition, values = where({"arch": arch})
        with self._file.errors():
            found = self._file.execute(
                "SELECT name, arch, multiprocessors, memory FROM"
                f" (SELECT * FROM main.product WHERE multiprocessors IS NOT NULL) {condition} ORDER BY name, arch",
                values,
            )
            return list(self._file.read("product", rows.product, found))

    def medians(self, arch: str, kernel: str, product: str) -> list[Median]:
        """The timings that count of each cell of a kernel that was measured on a product, in the order taken."""
        with self._file.errors():
            found = self._file.execute(
                "SELECT functional, bin, config, image, median_us, measured FROM main.median"
                " WHERE (arch, kernel, product) = (?, ?, ?)",
                [arch, kernel, product],
            )
            return list(self._file.read("median", rows.median, found, key=3))

    def checksums(self) -> dict[str, str]:
        """SHA-256 by image name, of every image that was measured, the one that is known longest at the front."""
        with self._file.errors():
            found = self._file.execute(
                "SELECT name, sha256 FROM main.image WHERE sha256 IS NOT NULL AND timed ORDER BY id"
            )
            return dict(self._file.read("image", rows.checksum, found))

    def certificates(self) -> dict[str, list[Certificate]]:
        """By image, what the checks of its results found on each product, the products by name."""
        with self._file.errors():
            found = self._file.execute("SELECT * FROM main.certificate ORDER BY image, product")
            made: dict[str, list[Certificate]] = {}
            for one in self._file.read("certificate", rows.certificate, found, key=2):
                made.setdefault(one.image, []).append(one)
            return made


def put_winners(file: File, winners: Iterable[Winner], over: bool = True) -> None:
    """Writes winners; if ``over``, over those of the same bins, but over a measured one only a measured one."""
    for winner in winners:
        row: dict[str, object] = {
            "functional": functional_id(file, winner.arch, winner.kernel, winner.functional),
            "product": product_id(file, winner.arch, winner.product),
            "bin": file.id_of("main.bin", {"bin": winner.bin}),
            "image": _image_id(file, winner.image, winner.config),
            "provenance": provenance_id(file, winner.provenance, winner.source, winner.measured),
            "shape": file.id_of("main.shape", {"shape": winner.shape}),
        }
        row |= {name: float(f"{getattr(winner, name):.5g}") for name in ("median_us", "low_us", "high_us")}
        updates = "UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in row)
        if winner.provenance != "measured":
            updates += " WHERE provenance NOT IN (SELECT id FROM main.provenance WHERE provenance = 'measured')"
        written = file.execute(
            f"INSERT INTO main.winner_row ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
            f" ON CONFLICT DO {updates if over else 'NOTHING'}",
            list(row.values()),
        ).rowcount
        if written:
            _put_runners_up(file, (row["functional"], row["product"], row["bin"]), winner.runners_up)


def _put_runners_up(file: File, key: tuple[object, ...], runners_up: Iterable[tuple[str, float]]) -> None:
    """Writes the runners-up of the winner with this key in place of those that are there."""
    file.execute("DELETE FROM main.runner_up WHERE (functional, product, bin) = (?, ?, ?)", key)
    found = [(config_id(file, config), float(f"{median:.5g}")) for config, median in runners_up]
    file.many(
        "INSERT INTO main.runner_up VALUES (?, ?, ?, ?, ?, ?)",
        ((*key, place, *one) for place, one in enumerate(found)),
    )


def functional_id(file: File, arch: str, kernel: str, functional: str) -> int:
    return file.id_of("main.functional", {"arch": arch, "kernel": kernel, "functional": functional})


def product_id(file: File, arch: str, name: str) -> int:
    """A product that no session was on has the multiprocessors of its arch's usual one."""
    number = named_product_id(file, arch, name)
    if file.value("SELECT multiprocessors FROM main.product WHERE id = ?", [number]) is None:
        usual = arch_spec(arch).multiprocessors
        file.execute("UPDATE main.product SET multiprocessors = ? WHERE id = ?", [usual, number])
    return number


def named_product_id(file: File, arch: str, name: str) -> int:
    """A product that only models and certificates name is none of ``products``."""
    return file.id_of("main.product", {"arch": arch, "name": name})


def provenance_id(file: File, provenance: str, source: str, measured: str) -> int:
    return file.id_of("main.provenance", {"provenance": provenance, "source": source, "measured": measured})


def _image_id(file: File, name: str, config: str) -> int:
    """The id of an image; TuningDatabaseError if it is known by another config."""
    known = file.execute(
        f"SELECT i.id, c.config FROM main.image_row i JOIN main.config c ON c.id = i.config WHERE {NAMED}",
        split_name(name),
    ).fetchone()
    if not known:
        return file.insert("main.image_row", {**named(file, name), "config": config_id(file, config), "timed": 0})
    if known[1] != config:
        raise TuningDatabaseError(f"{file.path}: image {name} has the config {known[1]!r}, not {config!r}")
    return int(known[0])


def split_name(name: str) -> tuple[str, str]:
    """Digest and prefix of an image's name; the prefix is empty where the name has no underscore."""
    before, underscore, digest = name.rpartition("_")
    return digest, before + underscore


def named(file: File, name: str) -> dict[str, object]:
    """The columns of a row that has an image's name; a prefix that is new is added."""
    digest, prefix = split_name(name)
    return {"digest": digest, "prefix": file.id_of("main.image_prefix", {"prefix": prefix})}


def config_id(file: File, config: str) -> int:
    return file.id_of("main.config", {"config": config})


def put_models(file: File, models: Iterable[Model]) -> None:
    for model in models:
        row = dict(zip((field.name for field in fields(model)), astuple(model), strict=True))
        row["coefficients"] = json.dumps([float(f"{one:.9g}") for one in model.coefficients])
        row |= {name: float(f"{row[name]:.5g}") for name in ("error", "saves")}
        next(file.read("model", rows.model, [tuple(row.values())], key=6))
        add_model(file, row)


def add_model(file: File, row: Mapping[str, object]) -> None:
    """Adds a model, by the columns of the view."""
    own = dict(row)
    arch, product, kernel, functional, image = (
        str(own.pop(name)) for name in ("arch", "product", "kernel", "functional", "image")
    )
    own |= {"functional": functional_id(file, arch, kernel, functional)}
    own |= {"product": named_product_id(file, arch, product), **named(file, image)}
    file.insert("main.model_row", own)


def check_version(file: File) -> None:
    """TuningDatabaseError where the file is empty, another program's or of a newer version."""
    version = file.version()
    if not version and file.is_empty():
        raise TuningDatabaseError(f"{file.path}: a SQLite file, but not a tuning database")
    if version > VERSION:
        raise TuningDatabaseError(
            f"{file.path}: its schema is version {version}, newer than this program's {VERSION}; update the program"
        )
