"""The kernel that a user tunes: its arguments, and the source that images are made of."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

from aotriton.rules.provider import Compiler, Provider
from aotriton.tune.autotune.device_source import device_source
from aotriton.tune.autotune.source import slice_of

CONSTEXPR = "constexpr"
BY_SUFFIX = {".cu": "aotriton.codegen.cuda"}  # the provider of a file where none is named
CALLED = "aotriton.codegen.called"

Hook = Callable[[Mapping[str, object]], object]  # of a config: called with all arguments before a launch


@dataclass(frozen=True)
class UserKernel:
    """A kernel and its arguments in order, each with the type that the source declares: CONSTEXPR, "*bf16", "i32", ...,
    or nothing. ``origin`` is the file that has it; ``source`` becomes the family's file.

    Of a Triton kernel there are the ``defaults`` of arguments, the functions that ``heuristics`` has for them, the
    ``configs`` that its author tried, each with its hook, and the tensors that this author's tuner resets or restores
    (``updated``).
    """

    name: str
    origin: str
    arguments: tuple[tuple[str, str], ...]
    source: str
    provider: Provider | None = None
    gluon: bool = False
    function: Any = None  # what triton.jit made
    defaults: Mapping[str, object] = field(default_factory=dict)
    heuristics: Mapping[str, Callable[[Mapping[str, object]], object]] = field(default_factory=dict)
    configs: tuple[Mapping[str, object], ...] = ()
    hooks: tuple[Hook | None, ...] = ()
    pruned: bool = False  # the author's tuner leaves configs out by the call
    updated: tuple[str, ...] = ()

    @property
    def called(self) -> bool:
        return self.provider is not None and self.provider.called

    @property
    def makes_descriptors(self) -> bool:
        """Whether the device code names what makes tensor descriptors, in Triton or Gluon."""
        return self.provider is None and "make_tensor_descriptor" in self.source


def read_kernel(kernel: Any, provider: str | None = None, space: Collection[str] = ()) -> UserKernel:
    """Reads ``kernel``: a triton.jit or Gluon function, alone or within triton.autotune and triton.heuristics, the path
    of a file that the module named ``provider`` compiles, or a Python function. ``space`` has the names to try.
    ValueError names what cannot be tuned, and why.
    """
    if isinstance(kernel, (str, os.PathLike)):
        return _file(Path(kernel), provider, space)
    if provider is not None:
        raise ValueError(f"provider: {provider} compiles a file, and the kernel is {kernel!r}")
    if isinstance(kernel, FunctionType):
        arguments = tuple((name, "") for name in inspect.signature(kernel).parameters)
        made = Provider(CALLED, importlib.import_module(CALLED).version(), "py", called=True)
        return UserKernel(kernel.__name__, str(inspect.getsourcefile(kernel)), arguments, slice_of(kernel), made)
    inner, pruned = kernel, False
    configs: tuple[Mapping[str, object], ...] = ()
    hooks: tuple[Hook | None, ...] = ()
    heuristics: dict[str, Callable[[Mapping[str, object]], object]] = {}
    updated: list[str] = []
    while hasattr(inner, "fn") and not hasattr(inner, "params"):
        if hasattr(inner, "configs"):
            configs, pruned = _author_configs(inner), inner.early_config_prune is not None
            hooks = tuple(one.pre_hook for one in inner.configs)
            updated += [*inner.reset_to_zero, *inner.restore_value]
        else:
            heuristics |= inner.values
        inner = inner.fn
    function = getattr(inner, "fn", None)
    if not isinstance(function, FunctionType):
        raise ValueError(f"kernel: {kernel!r} is neither a triton.jit function, nor a file, nor a Python function")
    parameters = inspect.signature(function).parameters.values()
    return UserKernel(
        function.__name__,
        str(inspect.getsourcefile(function)),
        tuple((one.name, CONSTEXPR if one.is_constexpr else "") for one in inner.params),
        device_source(inner),
        gluon=bool(inner.is_gluon()),
        function=inner,
        defaults={one.name: one.default for one in parameters if one.default is not one.empty},
        heuristics=heuristics,
        configs=configs,
        hooks=hooks,
        pruned=pruned,
        updated=tuple(updated),
    )


def _author_configs(tuner: Any) -> tuple[Mapping[str, object], ...]:
    """The configs of triton.autotune, each with its compiler options."""
    found = []
    for one in tuner.configs:
        if one.num_ctas != 1 or one.ir_override:
            raise ValueError(f"kernel: its config {one} has clusters or an IR of its own, which are not supported")
        registers = {} if one.maxnreg is None else {"maxnreg": one.maxnreg}
        found.append({**one.kwargs, "num_warps": one.num_warps, "num_stages": one.num_stages, **registers})
    return tuple(found)


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
