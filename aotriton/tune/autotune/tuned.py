"""A kernel with a family of its own: from its description to the best config at each of its sizes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotriton.codegen.store import write_atomically
from aotriton.rules.binning import bin_text
from aotriton.rules.image import TRITON_VERSION, config_values
from aotriton.rules.judge import judge
from aotriton.rules.kernel import Tensor
from aotriton.tune.autotune import graph, jit
from aotriton.tune.autotune.call import Call
from aotriton.tune.autotune.declaration import followed
from aotriton.tune.autotune.describe import Described
from aotriton.tune.autotune.device import product_here
from aotriton.tune.autotune.tuner import OnEvent, run_tuner
from aotriton.tune.autotune.tuning import chosen, of_sizes
from aotriton.tune.problem.product import is_called

if TYPE_CHECKING:
    from aotriton.rules.database.rows import Winner

DATABASE = Path("rules") / "tuning_database.sqlite3"
STAMP = "tuned.json"  # of each product: a digest of what all of its measurements were made of


@dataclass(frozen=True)
class Best:
    """The config that won at some sizes, how long it takes there, and the image that it makes."""

    sizes: Mapping[str, int]
    config: Mapping[str, Any]
    median_us: float
    image: str


class Tuned:
    """A kernel whose family is in ``folder``; it is tuned when its winners are first asked for.

    ``product`` is the GPU whose winners are meant, by default this machine's; ``options`` are the tuner's. ``original``
    is the kernel with its author's decorators. ``on_event`` is called with each event of tuning.
    """

    def __init__(
        self,
        kernel: Any,
        described: Described,
        folder: Path,
        product: str | None = None,
        options: Sequence[str] = (),
        original: Any = None,
        on_event: OnEvent | None = None,
    ) -> None:
        self.kernel, self.folder, self._original = kernel, folder, kernel if original is None else original
        self._described, self._asked, self._options, self._on_event = described, product, tuple(options), on_event
        self._operator, self._declared = described.operator, described.declared  # what is wrong with them is raised now
        self._description, self._name = self._operator.lead, self._operator.name
        self._winners: tuple[Best, ...] | None = None
        operands = self._operator.operands
        free = {one.name for one in operands} | {one.name for one in self._operator.scalars}
        self._names = tuple(one.name for one in self._description.arguments if one.name in free)
        self._results = tuple(one.name for one in operands if one.written)
        self._inputs = tuple(one.name for one in operands if not one.written)
        self._numbers = {one.name: one.default for one in self._operator.scalars}
        self._has_blocks = any(isinstance(one, Tensor) and one.block for one in self._description.arguments)
        self._key = f"{self._name}-{self._digest[:16]}"
        graph.LAUNCHED[self._key] = self
        self._in_graph = graph.operator() if "torch" in sys.modules else None

    def write(self) -> None:
        """Brings the family's files up to date."""
        if not self._declared.prepare:
            (self.folder / "tune" / "prepare.py").unlink(missing_ok=True)  # of an earlier description
        for name, text in self._described.files.items():
            path = self.folder / name
            if not path.is_file() or path.read_text() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, text.encode())

    def tune(self) -> Tuned:
        """Measures on this machine's GPUs what is not measured yet.

        RuntimeError where tuning did not finish, where no config is right, or where a config won that is not tried any
        more.
        """
        self.write()
        if not self._is_tuned():
            self._run()
            stamp = {**self._stamp(), self._product(): self._digest}
            write_atomically(self.folder / STAMP, json.dumps(stamp, indent=1).encode())
        rows = {(row.functional, row.bin): row for row in self._rows(self._product())}
        self._winners = tuple(self._best(sizes, rows.get(self._cell_of(sizes))) for sizes in self._declared.shapes)
        return self

    @property
    def winners(self) -> tuple[Best, ...]:
        """The winner at each combination of sizes."""
        if self._winners is None:
            self.tune()
        assert self._winners is not None
        return self._winners

    def best(self, **sizes: int) -> Best:
        """The winner for these sizes: each size belongs to the next larger one that was measured, or to the largest.

        A size that images are compiled for must be a measured one. ValueError names a size that is not, or is unknown.
        """
        known, following = self._declared.values, self._declared.following
        own = {name: value for name, value in sizes.items() if name not in following}
        if own.keys() != known.keys():
            raise ValueError(f"{self._name}: its sizes are {', '.join(known)}, not {', '.join(sizes) or 'none'}")
        for name, value in followed(following, own).items():
            if sizes.get(name, value) != value:
                raise ValueError(f"{self._name}: {name} is {sizes[name]}, and {value} follows from the other sizes")
        measured = {**own, **self._described.fixed}
        for key in self._description.tuning_keys:
            if key.name in own:
                measured[key.name] = key.representatives[key.bin_of(own[key.name])]
        for name, value in measured.items():
            if value not in known[name]:
                raise ValueError(f"{self._name}: {name} is {value}, and there are images for {known[name]}")
        return next(one for one in self.winners if measured.items() <= one.sizes.items())

    @property
    def config(self) -> Mapping[str, Any]:
        """The winner's config, where one combination of sizes was asked for."""
        return self._only.config

    @property
    def median_us(self) -> float:
        """The winner's time in microseconds, where one combination of sizes was asked for."""
        return self._only.median_us

    def __call__(self, *arguments: Any, **named: Any) -> None:
        """Launches the best config on tensors and numbers, in the kernel's order or by name; what follows from sizes is
        left out. Errors as ``Call.of`` says. torch.compile has it as one operator in its graph.
        """
        if graph.is_compiling():
            self._call_in_graph(arguments, named)
            return
        if self._description.provider and not self._description.called:
            raise TypeError(f"{self._name}: {self._described.kernel.origin} is launched from C++: see export()")
        call = Call.of(self._operator, arguments, named)
        config = self.best(**call.sizes).config
        grid, values = call.launch(config, self._described.constants_at(call.sizes))
        if self._description.called:
            self.kernel(**values, **config)
        else:
            self._launch(grid, {**values, **config})

    def _launch(self, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> None:
        """Launches the kernel of Triton's JIT with all of its arguments, of which those with a block become tensor
        descriptors.
        """
        if self._has_blocks:
            blocks = self._description.blocks(arguments).items()
            arguments = {**arguments, **{name: jit.descriptor(name, arguments[name], block) for name, block in blocks}}
        if self._description.scratch:
            jit.with_scratch(self.kernel[grid], arguments)
        else:
            self.kernel[grid](**arguments)

    def _call_in_graph(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """The call as torch.compile traces it, which looks at no more than names: what does not fit is said when the
        operator runs.
        """
        if self._in_graph is None:
            raise RuntimeError(f"{self._name}: import torch before the kernel is described")
        if len(arguments) > len(self._names) or [name for name in named if name not in self._names]:
            raise TypeError(f"{self._name}: it takes {', '.join(self._names)}")
        given = {**self._numbers, **dict(zip(self._names, arguments)), **named}  # noqa: B905 - torch cannot trace it
        for name in (*self._results, *self._inputs):
            if name not in given:
                raise TypeError(f"{self._name}: {name} is not given")
        self._in_graph(
            self._key,
            [given[name] for name in self._results],
            [given[name] for name in self._inputs],
            [float(given[name]) for name in self._numbers],
        )

    def launch_in_order(self, results: Sequence[Any], inputs: Sequence[Any], numbers: Sequence[float]) -> None:
        """The call with results, inputs and numbers in the description's order, as a graph has it."""
        tensors = dict(zip((*self._results, *self._inputs), (*results, *inputs), strict=True))
        kinds = {one.name: float if one.dtype == "fp32" else int for one in self._operator.scalars}
        values = zip(kinds.items(), numbers, strict=True)
        self(**tensors, **{name: kind(value) for (name, kind), value in values})

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """The launch of Triton's JIT, which this object stands in for: ``kernel[grid](...)`` takes all arguments of the
        kernel. The best config is launched on the described grid, whatever config and ``grid`` the caller has.

        Another call than the described ones, of other types for instance, is launched as it is, on the kernel as its
        author made it, and a warning says why.
        """
        if self._description.provider:
            raise TypeError(f"{self._name}: {self._described.kernel.origin} has no grid of Triton's")
        return partial(self._launch_as_jit, grid)

    def _launch_as_jit(self, grid: Any, *arguments: Any, **named: Any) -> None:
        names = [name for name, _ in self._described.kernel.arguments]
        if self._winners is None:
            self.tune()
        try:
            given = dict(zip(names, arguments, strict=False)) | named
            call = Call.of_jit(self._operator, given, self._described.constants_at)
            config = self.best(**call.sizes).config
        except ValueError as error:
            warnings.warn(f"{error}: this call is launched with its own config", stacklevel=2)
            self._original[grid](*arguments, **named)
            return
        own, values = call.launch(config, self._described.constants_at(call.sizes))
        options = {name: value for name, value in named.items() if name not in (*names, *config)}
        self._launch(own, {**values, **config, **options})

    def export(self, folder: str | os.PathLike[str]) -> Path:
        """A copy of the family, for aotriton_add_family() of CMake: the winners become images with a C++ header. The
        folder's name is the family's, and the header's namespace.
        """
        if self._description.called:
            raise ValueError(f"{self._name}: a Python function has no image that a build could have")
        into = Path(folder).resolve()
        if into == self.folder.resolve():
            raise ValueError(f"{into}: the family is there already")
        self.tune()
        archs = tuple(sorted({row.arch for row in self._rows()}))
        Tuned(self.kernel, replace(self._described.named(into.name), archs=archs), into).write()
        shutil.copyfile(self.folder / DATABASE, into / DATABASE)
        return into

    @property
    def _only(self) -> Best:
        if len(self.winners) > 1:
            raise ValueError(f"{self._name} has {len(self.winners)} winners: ask for best(sizes)")
        return self.winners[0]

    def _best(self, sizes: Mapping[str, int], row: Winner | None) -> Best:
        if row is None:
            raise RuntimeError(f"{self._name}: no config won at {self._text(sizes)}: {self._failures(sizes)}")
        numbers = config_values(row.config)
        for name, number in numbers.items():
            if number not in self._declared.numbers(name) if name in self._declared.tried else True:
                self._refuse(f"{name}={number}", sizes)
        if self._declared.configs and not any(
            numbers.items() <= one.items() for one in self._declared.numbered_configs
        ):
            self._refuse(row.config, sizes)
        config = {name: self._declared.value(name, number) for name, number in numbers.items()}
        return Best(sizes, config, row.median_us, row.image)

    def _refuse(self, what: str, sizes: Mapping[str, int]) -> None:
        """Says that a config won which is not in the space."""
        raise RuntimeError(
            f"{self._name}: {what} won at {self._text(sizes)}, and is tried no more: take another folder, or remove"
            f" {self.folder / DATABASE}, which has its measurements"
        )

    def _text(self, sizes: Mapping[str, int]) -> str:
        return " ".join(f"{name}={value}" for name, value in sizes.items())

    def _failures(self, sizes: Mapping[str, int]) -> str:
        """The verdicts on the configs at these sizes: how many of each, and the last one in full."""
        from aotriton.rules.database import TuningDatabase

        with TuningDatabase(self.folder / DATABASE, readonly=True) as database:
            failures = database.evidence.failures(self._name, self._judge)
            found = [row for row in failures if row[:2] == self._cell_of(sizes)]
        counts = Counter(said.partition(":")[0] for *_, said in found)
        last = f"; {found[-1][2]}: {found[-1][3]}" if found else ""
        return ", ".join(f"{count} {status}" for status, count in counts.items()) + last or "it was not finished"

    def _cell_of(self, sizes: Mapping[str, int]) -> tuple[str, str]:
        """The functional and the bin that were measured at these sizes."""
        kernel = self._description
        pinned = {one.name: chosen(one, sizes) for one in of_sizes(kernel)}
        functional = kernel.functional(kernel.archs[0], T=kernel.choices[0].values[0], **pinned)
        return str(functional), bin_text(kernel.tuning_keys, [sizes.get(key.name, 1) for key in kernel.tuning_keys])

    def _rows(self, product: str | None = None) -> list[Winner]:
        """The measured winners at the sizes that are asked for."""
        from aotriton.rules.database import decisions  # with packages that an import of aotriton can do without

        if not (self.folder / DATABASE).is_file():
            return []
        cells = {self._cell_of(sizes) for sizes in self._declared.shapes}
        with decisions(self.folder / DATABASE) as database:
            found = database.winners(kernel=self._name, product=product)
        return [row for row in found if (row.functional, row.bin) in cells and row.provenance == "measured"]

    def _product(self) -> str:
        """The product whose winners are meant: the one asked for, this machine's if it tunes, or the only one there is
        of those that the options mean.
        """
        if product := self._asked or self._here:
            return product
        meant = self._option("--product") or ""
        found = sorted({row.product for row in self._rows() if is_called(row.product, meant)})
        if len(found) != 1:
            known = f": it is tuned for {', '.join(found)}" if found else ""
            raise ValueError(f"{self._name}: no GPU of this machine tunes it: `product` must say which is meant{known}")
        return found[0]

    @property
    def _here(self) -> str | None:
        """The product of this machine's GPU, where that is the one to be tuned on."""
        return None if self._option("--scheduler") else product_here()

    def _option(self, name: str) -> str | None:
        """The value of one of the tuner's options, where it is given."""
        words = [part for word in self._options for part in str(word).split("=", 1)]
        return next((value for word, value in pairwise(words) if word == name), None)

    def _is_tuned(self) -> bool:
        meant = self._option("--product") or ""
        stamped = [name for name, digest in self._stamp().items() if digest == self._digest and is_called(name, meant)]
        product = self._asked or self._here or (stamped[0] if len(stamped) == 1 else None)
        return product in stamped and len(self._rows(product)) == len(list(self._declared.shapes))

    def _stamp(self) -> dict[str, str]:
        try:
            return dict(json.loads((self.folder / STAMP).read_text()))
        except (OSError, ValueError):
            return {}

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(repr((TRITON_VERSION, sorted(self._described.files.items()))).encode()).hexdigest()

    @property
    def _judge(self) -> str:
        """``rules.judge.judge_of`` the kernel, whose family this process does not load."""
        files = self._described.files.items()
        own = {name.removeprefix("tune/"): text for name, text in files if name.startswith("tune/")}
        return judge(self._description, self._operator, own)

    def _run(self) -> None:
        options = ["--family", str(self.folder), *self._options]
        if self._asked and self._option("--scheduler"):
            options += ["--product", self._asked]
        if status := run_tuner(options, self._on_event):
            raise RuntimeError(f"{self._name}: tuning ended with status {status}: it says above why")
