"""The kernel that a user tunes: its arguments, and the source that images are made of."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from aotriton.rules.provider import Compiler, Provider
from aotriton.tune.autotune.device_source import device_source
from aotriton.tune.autotune.source import slice_of

CONSTEXPR = "constexpr"
BY_SUFFIX = {".cu": "aotriton.codegen.cuda"}  # the provider of a file where none is named
CALLED = "aotriton.codegen.called"


@dataclass(frozen=True)
class UserKernel:
    """A kernel and its arguments in order, each with the type that the source declares: CONSTEXPR, "*bf16", "i32", ...,
    or nothing. ``origin`` is the file that has it; ``source`` becomes the family's file.
    """

    name: str
    origin: str
    arguments: tuple[tuple[str, str], ...]
    source: str
    provider: Provider | None = None
    gluon: bool = False

    @property
    def called(self) -> bool:
        return self.provider is not None and self.provider.called


def read_kernel(kernel: Any, provider: str | None = None, space: Collection[str] = ()) -> UserKernel:
    """Reads ``kernel``: a triton.jit or Gluon function, the path of a file that the module named ``provider`` compiles,
    or a Python function. ValueError names what cannot be tuned, and why.
    """
    if isinstance(kernel, (str, os.PathLike)):
        return _file(Path(kernel), provider, space)
    if provider is not None:
        raise ValueError(f"provider: {provider} compiles a file, and the kernel is {kernel!r}")
    if isinstance(kernel, FunctionType):
        arguments = tuple((name, "") for name in inspect.signature(kernel).parameters)
        made = Provider(CALLED, importlib.import_module(CALLED).version(), "py", called=True)
        return UserKernel(kernel.__name__, str(inspect.getsourcefile(kernel)), arguments, slice_of(kernel), made)
    function = getattr(kernel, "fn", None)
    if not isinstance(function, FunctionType) or not hasattr(kernel, "params"):
        raise ValueError(
            f"kernel: {kernel!r} is neither a triton.jit function, nor a file, nor a Python function; one within"
            " triton.autotune or triton.heuristics is to be given without them"
        )
    arguments = tuple((one.name, CONSTEXPR if one.is_constexpr else "") for one in kernel.params)
    origin = str(inspect.getsourcefile(function))
    return UserKernel(function.__name__, origin, arguments, device_source(kernel), gluon=bool(kernel.is_gluon()))


def _file(path: Path, provider: str | None, space: Collection[str]) -> UserKernel:
    module = provider or BY_SUFFIX.get(path.suffix)
    if module is None:
        raise ValueError(f"kernel: who compiles {path}? {', '.join(BY_SUFFIX)} are known, for others name a provider")
    try:
        source = path.read_text()
    except OSError as error:
        raise ValueError(f"kernel: {path}: {error.strerror}") from None
    compiler: Compiler = importlib.import_module(module)
    arguments = tuple(compiler.parameters(path.stem, source, space))
    made = Provider(module, compiler.version(), path.suffix.removeprefix("."))
    return UserKernel(path.stem, str(path.resolve()), arguments, source, made)
