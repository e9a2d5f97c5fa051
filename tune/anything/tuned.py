"""``aotriton.autotune``: from a kernel and a few words about it to the best config, measured as the library's are."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotriton.codegen.store import cache_folder, write_atomically
from aotriton.rules.binning import bin_text
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import VARIABLE
from aotriton.rules.image import TRITON_VERSION
from aotriton.rules.kernel import Number, Tensor
from aotriton.rules.target import TARGETS
from aotriton.tune.anything.describe import Described
from aotriton.tune.anything.given import given
from aotriton.tune.anything.wanted import Wanted

if TYPE_CHECKING:
    from aotriton.rules.rows import Winner

DATABASE = Path("rules") / "tuning_database.sqlite3"
STAMP = "tuned.json"  # of each product: a digest of what all of its measurements were made of


@dataclass(frozen=True)
class Best:
    """The config that won at some sizes, how long it takes there, and the image that it makes."""

    sizes: Mapping[str, int]
    config: Mapping[str, int]
    median_us: float
    image: str


class Tuned:
    """A kernel with a family of its own in ``folder``, which is tuned when its winners are first asked for."""

    def __init__(self, kernel: Any, described: Described, folder: Path, product: str | None, options: Sequence[str]):
        self.kernel, self.folder = kernel, folder
        self._described, self._asked, self._options = described, product, tuple(options)
        self._wanted, self._operator = described.wanted, described.operator  # what is wrong with them is told now
        self._description = self._operator.lead

    def write(self) -> None:
        """Brings the family's files up to date."""
        for name, text in self._described.files.items():
            path = self.folder / name
            if not path.is_file() or path.read_text() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, text.encode())

    def tune(self) -> Tuned:
        """Measures what is not measured yet on this machine's GPUs. RuntimeError where that came to no end."""
        self.write()
        if not self._is_tuned():
            self._run()
            stamp = {**self._stamp(), self._product(): self._digest}
            write_atomically(self.folder / STAMP, json.dumps(stamp, indent=1).encode())
        self.__dict__.pop("winners", None)
        return self

    @cached_property
    def winners(self) -> tuple[Best, ...]:
        """What won at each combination of sizes. RuntimeError where that is in the space no more."""
        if not self._is_tuned():
            self.tune()
        found = {(row.functional, row.bin): row for row in self._rows(self._product())}
        rows = [(sizes, found[self._place(sizes)]) for sizes in self._wanted.shapes]
        winners = [Best(sizes, {**row.psels, **row.copts}, row.median_us, row.image) for sizes, row in rows]
        for name, value in (pair for one in winners for pair in one.config.items()):
            if value not in self._wanted.tried.get(name, ()):
                raise RuntimeError(
                    f"{self._name}: {name}={value} won when it was in the space: take another folder, or remove"
                    f" {self.folder / DATABASE}, which has its measurements"
                )
        return tuple(winners)

    def best(self, **sizes: int) -> Best:
        """What won where such sizes belong: each goes to the next larger one that was measured, or to the largest.

        A size that images are compiled for must be one of those. ValueError names it, or one that is unknown.
        """
        known = self._wanted.values
        if sizes.keys() != known.keys():
            raise ValueError(f"{self._name}: its sizes are {', '.join(known)}, not {', '.join(sizes) or 'none'}")
        measured = dict(sizes)
        for key in (one for one in self._description.tuning_keys if one.name in sizes):
            measured[key.name] = key.representatives[key.bin_of(sizes[key.name])]
        for one in self.winners:
            if one.sizes == measured:
                return one
        off = next(name for name, value in measured.items() if value not in known[name])
        raise ValueError(f"{self._name}: {off} is {sizes[off]}, and there are images for {known[off]}")

    @property
    def config(self) -> Mapping[str, int]:
        """The winner's, where one combination of sizes was asked for."""
        return self._only.config

    @property
    def median_us(self) -> float:
        """Microseconds, likewise."""
        return self._only.median_us

    def export(self, folder: str | os.PathLike[str]) -> Path:
        """A copy of the family under ``folder``, for aotriton_add_family() of CMake: the winners become images with a
        C++ header. The folder's name is the family's, and the header's namespace.
        """
        if self._described.given.called:
            raise ValueError(f"{self._name}: a Python function has no image that a build could have")
        into = Path(folder).resolve()
        if into == self.folder.resolve():
            raise ValueError(f"{into}: the family is there already")
        self.tune()
        archs = tuple(sorted({row.arch for row in self._rows()}))
        described = replace(self._described.named(into.name), archs=archs)
        Tuned(self.kernel, described, into, self._asked, self._options).write()
        shutil.copyfile(self.folder / DATABASE, into / DATABASE)
        return into

    def __call__(self, *arguments: Any, **named: Any) -> None:
        """Launches the kernel's best config on tensors and numbers, by name or in the kernel's order; what follows from
        sizes is left out.
        """
        operator, called = self._operator, self._described.given.called
        if self._described.given.provider and not called:
            raise TypeError(f"{self._name}: {self._described.given.place} is launched from C++: see export()")
        names = [one.name for one in self._description.arguments if one.name in self._free]
        given = dict(zip(names, arguments, strict=False)) | named
        if len(arguments) > len(names) or not given.keys() <= set(names):
            raise TypeError(f"{self._name}: it takes {', '.join(names)}, not {', '.join(given)}")
        values = {one.name: one.default for one in operator.scalars} | given
        sizes: dict[str, int] = {}
        for operand in operator.operands:
            if operand.name not in given:
                raise TypeError(f"{self._name}: {operand.name} is not given")
            shape = tuple(given[operand.name].shape)
            if len(shape) != len(operand.dims) or not given[operand.name].is_contiguous():
                raise ValueError(f"{self._name}: {operand.name} must be contiguous, [{', '.join(operand.dims)}]")
            for dim, size in zip(operand.dims, shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    raise ValueError(f"{self._name}: {operand.name} has {dim} {size}, others have {sizes[dim]}")
        config = self.best(**sizes).config
        if called:
            self.kernel(**values, **config)
            return
        scalars = {name: value for name, value in values.items() if isinstance(value, int)}
        environment = Environment(sizes=sizes, scalars=scalars, psels=config)
        for one in self._description.arguments:
            if isinstance(one, Number) and one.name not in values:
                values[one.name] = evaluate(one.value, environment)
            elif one.name in sizes:
                values[one.name] = sizes[one.name]
        grid = tuple(evaluate(axis, environment) for axis in self._description.grid)
        self.kernel[grid](**values, **config)

    @property
    def _name(self) -> str:
        return self._described.given.name

    @property
    def _only(self) -> Best:
        if len(self.winners) > 1:
            raise ValueError(f"{self._name} has {len(self.winners)} winners: ask for best(sizes)")
        return self.winners[0]

    @cached_property
    def _free(self) -> set[str]:
        """The arguments that do not follow from sizes."""
        tensors = {one.name for one in self._description.arguments if isinstance(one, Tensor)}
        return tensors | {one.name for one in self._operator.scalars}

    def _place(self, sizes: Mapping[str, int]) -> tuple[str, str]:
        """The functional and the bin that were measured at these sizes."""
        kernel = self._description
        pinned = {one.name: sizes[one.name] for one in kernel.choices if one.name in sizes}
        functional = kernel.functional(kernel.archs[0], T=kernel.choices[0].values[0], **pinned)
        return str(functional), bin_text(kernel.tuning_keys, [sizes.get(key.name, 1) for key in kernel.tuning_keys])

    def _rows(self, product: str | None = None) -> list[Winner]:
        """The winners at the sizes that are asked for."""
        from aotriton.rules.database import TuningDatabase  # with packages that an import of aotriton can do without

        if not (self.folder / DATABASE).is_file():
            return []
        places = {self._place(sizes) for sizes in self._wanted.shapes}
        with TuningDatabase(self.folder / DATABASE, readonly=True) as database:
            found = database.winners(kernel=self._name, product=product)
        return [row for row in found if (row.functional, row.bin) in places and row.provenance == "measured"]

    def _product(self) -> str:
        """Whose winners are meant: those asked for, this machine's GPU's, or without one the only ones there are."""
        if product := self._asked or product_here():
            return product
        found = sorted({row.product for row in self._rows()})
        if len(found) != 1:
            known = f": it is tuned for {', '.join(found)}" if found else ""
            raise ValueError(f"{self._name}: no GPU is here, so `product` must say which one is meant{known}")
        return found[0]

    def _is_tuned(self) -> bool:
        product = self._asked or product_here()
        stamped = [name for name, digest in self._stamp().items() if digest == self._digest]
        if product is None and len(stamped) == 1:
            product = stamped[0]
        return product in stamped and len(self._rows(product)) == len(list(self._wanted.shapes))

    def _stamp(self) -> dict[str, str]:
        try:
            return dict(json.loads((self.folder / STAMP).read_text()))
        except (OSError, ValueError):
            return {}

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(repr((TRITON_VERSION, sorted(self._described.files.items()))).encode()).hexdigest()

    def _run(self) -> None:
        # A process of its own: GPU workers begin with what a program began with, and this program may be anything.
        root = str(Path(__file__).absolute().parents[3])
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([root, *filter(None, sys.path)]))
        command = [sys.executable, "-m", "aotriton.tune.tune", "--family", str(self.folder), *self._options]
        status = subprocess.run(command, env=environment, check=False).returncode
        if status:
            raise RuntimeError(f"{self._name}: tuning ended with status {status}: it says above why")


def autotune(
    kernel: Any = None,
    inputs: Mapping[str, str | float] | None = None,
    reference: Callable[..., Any] | None = None,
    space: Mapping[str, Sequence[int]] | None = None,
    *,
    results: Mapping[str, str] | None = None,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    grid: str | int | Sequence[str | int] = (),
    tolerance: float = 0.0,
    provider: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    product: str | None = None,
    options: Sequence[str] = (),
) -> Any:
    """Tunes ``kernel`` and returns it as a ``Tuned``; without one, a decorator, whose kernel is tuned at its first use.

    ``kernel``: a triton.jit or Gluon function; the path of a CUDA C++ file, or of one that the module ``provider``
    compiles (``aotriton.rules.provider``); or a Python function, which is called and timed as it is.
    ``inputs``, ``results``: the kernel's arguments by name. "bf16[rows, columns]" is a contiguous tensor of fp16, bf16
    or fp32; a number is passed as such; other text is an expression of sizes. An argument that is called as a size is
    it. Inputs are normal numbers from a seed.
    ``sizes``: of each, the value or the values to measure at. One that is a constexpr is compiled in.
    ``reference``: from inputs by name to the result, or to a tuple of them. It is asked in fp64 for the truth, and in
    the inputs' own types for what an ordinary implementation gets wrong; twice that is allowed, and ``tolerance`` more.
    ``space``: values to try, of the kernel's constexprs or macros, and of num_warps, num_stages, maxnreg, waves_per_eu.
    ``grid``: programs along x, y and z, as expressions of sizes and the space's constexprs or macros.
    ``folder``: where the family is and the database (default: in the user's cache folder); its name is the family's.
    ``product``: the GPU whose winners are meant, where it is not this machine's. ``options``: more of ``tune.py``'s.

    ValueError names the argument that is wrong.
    """

    def tuned(kernel: Any) -> Tuned:
        for name, value in (("inputs", inputs), ("reference", reference), ("space", space), ("sizes", sizes)):
            if value is None:
                raise ValueError(f"{name}: it must be given")
        wanted = Wanted(inputs or {}, results or {}, sizes or {}, space or {}, grid, reference, tolerance)  # type: ignore[arg-type]
        found = given(kernel, provider, space or {})
        described = Described(found, wanted, "", tuple(row.arch for row in TARGETS))
        place = Path(folder).resolve() if folder else _default_folder(described)
        described = described.named(place.name)
        return Tuned(kernel, described, place, product, options)

    return tuned if kernel is None else tuned(kernel).tune()


def _default_folder(described: Described) -> Path:
    """Kernels of one name in two files are two. What is no longer in a space may not win: another space begins anew."""
    made_of = repr((described.given.place, sorted(described.wanted.tried.items())))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    return cache_folder() / "autotuned" / digest / f"tuned_{described.given.name}"


def product_here() -> str | None:
    """What the driver calls the first visible GPU; None where there is none. Makes no context."""
    for library, prefix in (("libcuda.so.1", "cu"), ("libamdhip64.so", "hip")):
        try:
            driver = ctypes.CDLL(library)
        except OSError:
            continue
        device, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
        asked: list[tuple[str, tuple[Any, ...]]] = [
            ("Init", (0,)),
            ("DeviceGet", (ctypes.byref(device), 0)),
            ("DeviceGetName", (name, len(name), device)),
        ]
        if all(getattr(driver, prefix + function)(*arguments) == 0 for function, arguments in asked):
            return name.value.decode()
    return None
