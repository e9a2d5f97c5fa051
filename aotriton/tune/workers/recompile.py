"""Compilers that were killed or starved: their image is compiled again alone, and it is at fault only if another image
compiles right afterwards.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore
from aotriton.tune.problem.tuning_error import TuningError

ImageRequest = Mapping[str, Any]  # as ``named_request`` makes it
CompileOne = Callable[[ImageRequest, ImageStore], CompiledImage | CompileFailure]

# What compile_images says of a process that died or hung, and what programs say where memory or disk space ends. -9 is
# ptxas killed.
INCIDENT = re.compile(
    r"^the compiler process |^not compiled within |^MemoryError|error code -9\b|"
    r"No space left on device|Cannot allocate memory|Disk quota exceeded"
)


def is_incident(result: CompiledImage | CompileFailure) -> bool:
    """Whether the machine may be at fault and not the image."""
    return isinstance(result, CompileFailure) and bool(INCIDENT.search(result.message))


def recompile(
    request: ImageRequest, known_good: ImageRequest | None, store: ImageStore, compile: CompileOne
) -> CompiledImage | CompileFailure:
    """The result of compiling again an image whose compiler met an incident; TuningError where nothing compiles here
    now.
    """
    result = compile(request, store)
    if not is_incident(result):
        return result
    assert isinstance(result, CompileFailure)
    with tempfile.TemporaryDirectory(prefix="aotriton-canary-") as scratch:  # stored images would prove nothing
        proof = compile(known_good, ImageStore(scratch)) if known_good else result
    if isinstance(proof, CompileFailure):
        folders = f"{tempfile.gettempdir()} and {store.path}"
        raise TuningError(f"nothing compiles here now (it takes memory, and room in {folders}): {proof.message}")
    return result
