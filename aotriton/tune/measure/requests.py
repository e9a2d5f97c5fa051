"""Requests to a process that owns a GPU, its replies, and what its launcher does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from aotriton.codegen.compile import CompiledImage
from aotriton.rules.database.rows import SequenceTiming
from aotriton.rules.family import kernel as description
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, parse_functional
from aotriton.tune.measure.clock import Clocks, Sample
from aotriton.tune.problem.accuracy import Check
from aotriton.tune.problem.problems import Problem, Shape


@dataclass(frozen=True)
class Device:
    """What a session records of its GPU. ``name`` is the product's, ``memory`` in bytes, ``power_limit`` in watts."""

    arch: str
    name: str
    driver: str
    torch: str
    multiprocessors: int
    uuid: str | None = None
    memory: int | None = None
    power_limit: int | None = None


@dataclass(frozen=True)
class Conditions:
    """The GPU's clock in MHz and temperature in °C when timings were taken; None where it does not report them.
    ``remark``: what is to be said of the clock. ``others``: processes that are not the tuner's and computed on the GPU
    meanwhile; ``silent``: those on it that may have, where the driver does not tell.
    """

    sm_clock: int | None = None
    temperature: int | None = None
    remark: str = ""
    others: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    def of(self, clocks: Clocks) -> Conditions:
        """These, taken at the end, with the clock of the rounds that count."""
        return replace(self, sm_clock=clocks.of_counting or self.sm_clock, remark=clocks.remark)


UNKNOWN_CONDITIONS = Conditions()


@dataclass(frozen=True)
class Request:
    """An image to launch. ``metadata`` is the image store's json, ``path`` the binary."""

    name: str
    kernel: str
    config: str
    path: Path
    metadata: dict[str, Any]
    tunables: dict[str, int]


def launch_request(spec: ImageSpec, image: CompiledImage) -> Request:
    # The store may be older than this description, whose text of the functional the program is read by.
    metadata = {**image.metadata, "functional": str(spec.functional)}
    return Request(image.name, spec.functional.kernel.name, spec.config, image.path, metadata, dict(spec.tunables))


@dataclass(frozen=True)
class Result:
    """The result of a candidate: ``status`` is ``ok``, ``checked`` or ``wrong``, ``samples`` are in microseconds.
    ``check`` is the worst of so many ``checks``.
    """

    status: str
    samples: Sequence[float]
    check: Check
    conditions: Conditions = UNKNOWN_CONDITIONS
    checks: int = 1


@dataclass(frozen=True)
class Race:
    """Samples in microseconds by image name, taken side by side."""

    samples: dict[str, list[float]]
    conditions: Conditions = UNKNOWN_CONDITIONS


@dataclass(frozen=True)
class LaunchSequence:
    """A backend with an image for each of its kernels, in launch order."""

    backend: str
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Draw:
    """A shape of a lead functional, and the sequences to be timed on it."""

    functional: Functional
    shape: Shape
    sequences: tuple[LaunchSequence, ...]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the description by its name: it may hold functions, which cannot be pickled."""
        kernel = self.functional.kernel.name
        return _again, (kernel, self.functional.arch, str(self.functional), self.shape, self.sequences)


def _again(kernel: str, arch: str, functional: str, shape: Shape, sequences: tuple[LaunchSequence, ...]) -> Draw:
    return Draw(parse_functional(description(kernel), arch, functional), shape, sequences)


@dataclass(frozen=True)
class Timed:
    """Launch sequences on one shape."""

    timings: Sequence[SequenceTiming]
    conditions: Conditions = UNKNOWN_CONDITIONS


class Launcher(Protocol):
    """What the child does with its GPU. Exceptions are the candidate's fault, unless ``healthy`` says no afterwards."""

    def device(self) -> Device: ...

    def prepare(self, problem: Problem) -> None:
        """Makes inputs and reference, in place of the last problem's; those that ``check_further`` needs, too."""

    def open(self, request: Request) -> Any:
        """Loads an image."""

    def check(self, opened: Any) -> Check:
        """Launches once and compares; this is the warm-up too."""

    def check_further(self, opened: Any) -> tuple[Check, int]:
        """Compares more launches, of what may win: on other inputs, and whether bits change that must not. Returns the
        worst check and the number of launches.
        """

    def intact(self) -> bool:
        """Whether the inputs are what ``prepare`` made: a candidate may have written over them."""

    def round(self, opened: Sequence[Any]) -> Sequence[Sample]:
        """Microseconds of one launch of each, in this order; None where the sample does not count."""

    def sm_clock(self) -> int | None:
        """The GPU's clock now."""

    def conditions(self, since: float) -> Conditions:
        """The GPU's clock and temperature now, and who else has computed on it since then, by ``time.time()``."""

    def close(self, opened: Any) -> None: ...

    def sequences(self, draw: Draw) -> Timed:
        """Times launch sequences; afterwards no problem is prepared."""

    def healthy(self) -> bool:
        """Whether the GPU still works."""
