"""Images as they are embedded: compressed, some of them as their difference from another one."""

from __future__ import annotations

import random
import re
import zlib
from pathlib import Path

from aotriton.codegen.pack import difference, write
from aotriton.codegen.store import CompiledImage

METADATA = {
    "functional": "T=bf16", "config": "num_warps=4", "entry": "kernel", "threads": 128, "shared": 0,
    "global_scratch": 0, "descriptors": [], "registers": 64, "spills": 0,
}  # fmt: skip


def packed(folder: Path, binaries: dict[str, bytes], compress: bool) -> dict[str, tuple[bytes, int, str]]:
    """By image what is stored of it, its size unpacked, and the name of its base."""
    images = []
    for name, binary in binaries.items():
        (folder / name).write_bytes(binary)
        images.append(CompiledImage(name, {**METADATA, "name": name}, folder / name))
    write(folder, "toy", "kernel", "sm_90", images, compress)
    stored = (folder / "kernel.sm_90.images.bin").read_bytes()
    found = re.findall(
        r"Image (\w+)\{.*?_images \+ (\d+),\s*\.size = (\d+),\s*\.unpacked_size = (\d+),(?:\s*\.base = &(\w+),)?",
        (folder / "kernel.sm_90.images.cc").read_text(),
        re.DOTALL,
    )
    return {
        name: (stored[int(offset) : int(offset) + int(size)], int(unpacked), base)
        for name, offset, size, unpacked, base in found
    }


def similar(binary: bytes, places: range) -> bytes:
    changed = bytearray(binary)
    for place in places:
        changed[place] ^= 0x41
    return bytes(changed)


def test_an_image_that_differs_little_is_stored_as_its_difference(tmp_path: Path) -> None:
    """From the nearest one of its size that is stored whole; unpacked again, each is what it was."""
    one, other = (random.Random(seed).randbytes(5000) for seed in (1, 2))
    binaries = {
        "one": one,
        "other": other,
        "like_one": similar(one, range(100, 200, 16)),
        "like_other": similar(other, range(0, 4000, 500)),
        "longer": one + b"\0",
    }
    found = packed(tmp_path, binaries, compress=True)
    assert {name: base for name, (_, _, base) in found.items()} == {
        "one": "", "other": "", "like_one": "one", "like_other": "other", "longer": "",
    }  # fmt: skip
    whole = {name: zlib.decompress(stored) for name, (stored, _, _) in found.items()}
    for name, (stored, size, base) in found.items():
        made = difference(whole[name], whole[base]) if base else whole[name]
        assert made == binaries[name]
        assert len(made) == size
        assert not base or len(stored) < 300


def test_without_compression_each_is_stored_as_it_is(tmp_path: Path) -> None:
    """Drivers read it in place."""
    one = random.Random(1).randbytes(5000)
    binaries = {"one": one, "like_one": similar(one, range(3))}
    found = packed(tmp_path, binaries, compress=False)
    assert {name: (stored, base) for name, (stored, _, base) in found.items()} == {
        name: (binary, "") for name, binary in binaries.items()
    }
