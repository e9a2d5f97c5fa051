"""``aotriton.autotune``: from a kernel and a few words about it to its best config, measured as the library's are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from aotriton.codegen.store import cache_folder
from aotriton.rules.arch import ARCHS
from aotriton.tune.autotune.declaration import Space, declaration_of, values_of
from aotriton.tune.autotune.describe import Described
from aotriton.tune.autotune.hooks import check_hooks
from aotriton.tune.autotune.tuned import Tuned
from aotriton.tune.autotune.user_kernel import read_kernel


@overload
def autotune(
    kernel: None = None,
    inputs: Mapping[str, object] | None = None,
    reference: Callable[..., Any] | None = None,
    space: Space | None = None,
    *,
    results: Mapping[str, str] | None = None,
    sizes: Mapping[str, int | str | Sequence[int]] | None = None,
    grid: str | int | Sequence[str | int] = (),
    descriptors: Mapping[str, Sequence[str | int]] | None = None,
    tolerance: float = 0.0,
    prepare: Callable[..., Any] | None = None,
    provider: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    product: str | None = None,
    options: Sequence[str] = (),
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
) -> Callable[[Any], Tuned]: ...
@overload
def autotune(
    kernel: object,
    inputs: Mapping[str, object] | None = None,
    reference: Callable[..., Any] | None = None,
    space: Space | None = None,
    *,
    results: Mapping[str, str] | None = None,
    sizes: Mapping[str, int | str | Sequence[int]] | None = None,
    grid: str | int | Sequence[str | int] = (),
    descriptors: Mapping[str, Sequence[str | int]] | None = None,
    tolerance: float = 0.0,
    prepare: Callable[..., Any] | None = None,
    provider: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    product: str | None = None,
    options: Sequence[str] = (),
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
) -> Tuned: ...
def autotune(
    kernel: Any = None,
    inputs: Mapping[str, object] | None = None,
    reference: Callable[..., Any] | None = None,
    space: Space | None = None,
    *,
    results: Mapping[str, str] | None = None,
    sizes: Mapping[str, int | str | Sequence[int]] | None = None,
    grid: str | int | Sequence[str | int] = (),
    descriptors: Mapping[str, Sequence[str | int]] | None = None,
    tolerance: float = 0.0,
    prepare: Callable[..., Any] | None = None,
    provider: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    product: str | None = None,
    options: Sequence[str] = (),
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
) -> Callable[[Any], Tuned] | Tuned:
    """Tunes ``kernel`` and returns it as a ``Tuned``; without one, a decorator, whose kernel is tuned at its first use.

    ``kernel``: a triton.jit or Gluon function, also within triton.autotune and triton.heuristics; the path of a CUDA
    C++ file, or of one that the module ``provider`` compiles (``aotriton.rules.provider``); or a Python function, which
    is called and timed as it is.
    ``inputs``, ``results``: the kernel's arguments by name. "bf16[rows, columns]" is a contiguous tensor of fp16, bf16
    or fp32; a number is passed as such; other text is an expression of sizes. An argument that is called as a size is
    it. Constexprs have their values here, too, and None stands for a tensor that is not given. Inputs are normal
    numbers from a seed; ``prepare`` makes others of them, a dictionary, where they must be.
    ``sizes``: of each, the value or the values to measure at. One that is a constexpr is compiled in. Text is what it
    follows from, "cdiv(rows, 64)", or the only value that is right, "2".
    ``reference``: from inputs by name to the result, or to a tuple of them. It is asked in fp64 for the truth, and in
    the inputs' own types for what an ordinary implementation gets wrong; twice that is allowed, and ``tolerance`` more.
    ``space``: values to try, of the kernel's constexprs or macros, and of num_warps, num_stages, maxnreg, waves_per_eu;
    or a list of configs, each with a value of every name. Of a kernel in triton.autotune, its configs are the default.
    ``grid``: programs along x, y and z, as expressions of sizes and the space's constexprs or macros.
    ``descriptors``: of each tensor that the kernel takes as a TensorDescriptor, the sides of its block, outermost
    first: whole numbers, or expressions of the space's constexprs and of constants.
    ``folder``: where the family is and the database (default: in the user's cache folder); its name is the family's.
    ``product``: the GPU whose winners are meant, where it is not this machine's. ``options``: more of ``tune.py``'s, as
    ``--scheduler``: then the machines of a cluster tune, and need nothing of the kernel's. ``on_event`` is called with
    what happens meanwhile, as ``aotriton.service`` says.

    ValueError names the argument that is wrong.
    """

    def tuned(kernel: Any) -> Tuned:
        for name, value in (("inputs", inputs), ("reference", reference), ("sizes", sizes)):
            if value is None:
                raise ValueError(f"{name}: it must be given")
        assert reference is not None
        found = read_kernel(kernel, provider, () if space is None else values_of(space))
        declared = declaration_of(
            found,
            inputs or {},
            results or {},
            sizes or {},
            space,
            grid,
            descriptors or {},
            reference,
            prepare,
            tolerance,
        )
        described = Described(found, declared, "", tuple(row.arch for row in ARCHS))
        home = Path(folder).resolve() if folder else _default_folder(described)
        described = described.named(home.name)
        check_hooks(described)
        return Tuned(found.function or kernel, described, home, product, options, kernel, on_event)

    return tuned if kernel is None else tuned(kernel).tune()


def _default_folder(described: Described) -> Path:
    """The folder of a kernel with its space. Kernels of one name in two files have two; another space begins anew, so
    that a config that is no longer in it cannot win.
    """
    declared = described.declared
    values = sorted((name, [*map(repr, several)]) for name, several in declared.tried.items())
    made_of = repr((described.kernel.origin, values, declared.configs, sorted(declared.constants.items())))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    return cache_folder() / "autotuned" / digest / f"tuned_{described.kernel.name}"
