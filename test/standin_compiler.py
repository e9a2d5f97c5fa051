"""Compilers without Triton, in the place of codegen's WarmCompiler.

What they make follows from the config: tiles of 128 keys spill, four stages need too much shared memory.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, named_request
from aotriton.rules.image import ImageSpec

KILLED = "the compiler process was killed by SIGKILL"
BINARY = b"no image"


def config_of(request: Mapping[str, Any]) -> dict[str, int]:
    """The values of tunables and compile options."""
    return {**request["tunables"], **request["compile_options"]}


class StandinCompiler:
    def __init__(self, families: Sequence[str] = ()) -> None: ...

    def compile(
        self, request: Mapping[str, Any], store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure:
        values = config_of(request)
        spills = 1600 if values.get("BLOCK_N") == 128 else 0
        shared = 1 << 20 if values.get("num_stages") == 4 else 1024
        metadata = {"registers": 128, "spills": spills, "stack": 0, "shared": shared}
        return store.put(request["name"], "cubin", BINARY, metadata)

    def start(self) -> None: ...

    def close(self) -> None: ...


def standin_images(
    specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None = None
) -> Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]:
    """In the place of ``compile_images``."""
    return ((spec, StandinCompiler().compile(named_request(spec), store)) for spec in specs)


class BrokenCompiler(StandinCompiler):
    """Knows one number of warps only."""

    def compile(
        self, request: Mapping[str, Any], store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure:
        if config_of(request)["num_warps"] == 8:
            return CompileFailure(request["name"], "error: " + "x" * 5000 + " at the end")
        return super().compile(request, store)


class KilledCompiler(StandinCompiler):
    """Is killed at candidates that have ``what`` in their config: so many ``times`` each, and when alone, too."""

    times, what, killed = 0, "num_warps=8", Counter[str]()

    def compile(
        self, request: Mapping[str, Any], store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure:
        name, texts = request["name"], [f"{key}={value}" for key, value in config_of(request).items()]
        if any(self.what in text for text in texts) and self.killed[name] < self.times:
            self.killed[name] += 1
            return CompileFailure(name, KILLED)
        return super().compile(request, store)


class FullDiskCompiler(StandinCompiler):
    """Has room for so many images."""

    left = 40

    def compile(
        self, request: Mapping[str, Any], store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure:
        if FullDiskCompiler.left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        FullDiskCompiler.left -= 1
        return super().compile(request, store)
