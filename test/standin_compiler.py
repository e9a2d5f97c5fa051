"""Compilers without Triton, in the place of codegen's WarmCompiler.

What they make follows from the config: tiles of 128 keys spill, four stages need too much shared memory.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Iterator

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.image import ImageSpec

KILLED = "the compiler process was killed by SIGKILL"
BINARY = b"no image"


class StandinCompiler:
    def compile(
        self, spec: ImageSpec, store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure:
        values = dict(spec.psels + spec.copts)
        spills = 1600 if values.get("BLOCK_N") == 128 else 0
        shared = 1 << 20 if values.get("num_stages") == 4 else 1024
        metadata = {"registers": 128, "spills": spills, "stack": 0, "shared": shared}
        return store.put(spec.name, "cubin", BINARY, metadata)

    def close(self) -> None: ...


def standin_images(
    specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None = None
) -> Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]:
    """In the place of ``compile_images``."""
    return ((spec, StandinCompiler().compile(spec, store)) for spec in specs)


class BrokenCompiler(StandinCompiler):
    """Knows one number of warps only."""

    def compile(
        self, spec: ImageSpec, store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure:
        if dict(spec.copts)["num_warps"] == 8:
            return CompileFailure(spec.name, "error: " + "x" * 5000 + " at the end")
        return super().compile(spec, store)


class KilledCompiler(StandinCompiler):
    """Is killed at candidates that have ``what`` in their config: so many ``times`` each, and when alone, too."""

    times, what, killed = 0, "num_warps=8", Counter[str]()

    def compile(
        self, spec: ImageSpec, store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure:
        if self.what in spec.config and self.killed[spec.name] < self.times:
            self.killed[spec.name] += 1
            return CompileFailure(spec.name, KILLED)
        return super().compile(spec, store)


class FullDiskCompiler(StandinCompiler):
    """Has room for so many images."""

    left = 40

    def compile(
        self, spec: ImageSpec, store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure:
        if FullDiskCompiler.left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        FullDiskCompiler.left -= 1
        return super().compile(spec, store)
