"""Packed images: from the images of one kernel on one arch to one binary and the C++ that embeds it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from aotriton.codegen.render import render, write_if_changed
from aotriton.codegen.store import CompiledImage
from aotriton.rules.checked import count, identifier, text

LEVEL = 7  # of zlib: the highest takes five times as long, and saves a hundredth more
ALIGNMENT = 16  # bytes, at which each image starts: drivers read an uncompressed one in place


def write(out: Path, family: str, kernel: str, arch: str, images: Sequence[CompiledImage], compress: bool) -> None:
    """Writes ``<kernel>.<arch>.images.cc`` and ``.bin`` in ``out``, where their content changed."""
    packed = bytearray()
    rows = []
    for image in images:
        _check(image)
        binary = image.binary
        stored = zlib.compress(binary, LEVEL) if compress else binary
        rows.append({**image.metadata, "offset": len(packed), "size": len(stored), "unpacked_size": len(binary)})
        packed += stored + bytes(-len(stored) % ALIGNMENT)
    stem = f"{kernel}.{arch}.images"
    write_if_changed(out / f"{stem}.bin", bytes(packed))
    values = {"family": family, "symbol": f"aotriton_v2_{family}_{kernel}_{arch}_images", "binary": f"{stem}.bin"}
    write_if_changed(
        out / f"{stem}.cc", render("images.cc", **values, alignment=ALIGNMENT, bytes=len(packed), images=rows)
    )


def _check(image: CompiledImage) -> None:
    """ValueError where the metadata is not what C++ can have: the store is a folder that others write, too."""
    identifier("name", image.metadata["name"])
    for name in ("functional", "config", "entry"):
        text(f"{image.name}: {name}", image.metadata[name])
    numbers = {name: image.metadata[name] for name in ("threads", "shared", "global_scratch", "registers", "spills")}
    for name, value in numbers.items():
        count(f"{image.name}: {name}", value)
    for descriptor in image.metadata["descriptors"]:
        for number in (descriptor["rank"], descriptor["swizzle"], *descriptor["block"]):
            count(f"{image.name}: a number of a descriptor", number)
