"""Packed images: from the images of one kernel on one arch to one binary and the C++ that embeds it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from aotriton.codegen.render import render, write_if_changed
from aotriton.codegen.store import CompiledImage
from aotriton.rules.checked import count, identifier, relative, text

LEVEL = 7  # of zlib: the highest takes five times as long, and saves a hundredth more
ALIGNMENT = 16  # bytes, at which each image starts: drivers read an uncompressed one in place


def write(
    out: Path,
    family: str,
    kernel: str,
    arch: str,
    images: Sequence[CompiledImage],
    compress: bool,
    certificates: Mapping[str, Sequence[Mapping[str, float]]] | None = None,
) -> None:
    """Writes ``<kernel>.<arch>.images.cc`` and ``.bin`` into ``out`` if their content changed.

    ``certificates`` has, for each image, rows of numbers in the form of the image list. With ``compress`` an image may
    be stored as its difference from another one, its base: images of two types often differ in a few instructions.
    """
    packed = bytearray()
    rows = []
    listed: list[Mapping[str, float]] = []
    whole: list[tuple[str, bytes]] = []  # that are stored without a base
    for image in images:
        _check(image)
        binary, base = image.binary, ""
        stored = zlib.compress(binary, LEVEL) if compress else binary
        if compress and (nearest := _nearest(binary, whole)):
            changed = zlib.compress(difference(binary, nearest[1]), LEVEL)
            if len(changed) < len(stored):
                stored, base = changed, nearest[0]
        if not base:
            whole.append((image.name, binary))
        own = [_certificate(image.name, row) for row in (certificates or {}).get(image.name, ())]
        where = {"offset": len(packed), "size": len(stored), "unpacked_size": len(binary), "base": base}
        where["level"] = count(f"{image.name}: level", image.metadata.get("level", 0))
        rows.append({**image.metadata, **where, "first_certificate": len(listed), "certificates": len(own)})
        listed += own
        packed += stored + bytes(-len(stored) % ALIGNMENT)
    stem = f"{kernel}.{arch}.images"
    write_if_changed(out / f"{stem}.bin", bytes(packed))
    values = {"family": family, "symbol": f"aotriton_v2_{family}_{kernel}_{arch}_images", "binary": f"{stem}.bin"}
    source = render("images.cc", **values, alignment=ALIGNMENT, bytes=len(packed), images=rows, certificates=listed)
    write_if_changed(out / f"{stem}.cc", source)


def difference(one: bytes, other: bytes) -> bytes:
    """The exclusive or of two binaries of the same size."""
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(len(one), "little")


def _nearest(binary: bytes, others: Sequence[tuple[str, bytes]]) -> tuple[str, bytes] | None:
    """Of the named binaries of the same size the one with the most equal bytes."""
    alike = (one for one in others if len(one[1]) == len(binary))
    return max(alike, key=lambda one: difference(binary, one[1]).count(0), default=None)


def _certificate(image: str, row: Mapping[str, float]) -> dict[str, float]:
    """The row in C++; ValueError if a value does not fit."""
    whole = {name: count(f"{image}: {name}", row[name]) for name in ("product", "problems", "checks", "day")}
    return whole | {name: relative(f"{image}: {name}", row[name]) for name in ("error", "allowed")}


def _check(image: CompiledImage) -> None:
    """Raises ValueError if the metadata does not fit C++: other processes write to the store, too."""
    identifier("name", image.metadata["name"])
    for name in ("functional", "config", "entry"):
        text(f"{image.name}: {name}", image.metadata[name])
    numbers = {name: image.metadata[name] for name in ("threads", "shared", "global_scratch", "registers", "spills")}
    for name, value in numbers.items():
        count(f"{image.name}: {name}", value)
    for descriptor in image.metadata["descriptors"]:
        for number in (descriptor["rank"], descriptor["swizzle"], *descriptor["block"]):
            count(f"{image.name}: a number of a descriptor", number)
