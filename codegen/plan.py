"""The plan of a build: from the winners and timings of the tuning database to the image of every cell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from aotriton.codegen.backends import CellKey, OperatorPlan, choose, lender
from aotriton.codegen.missing import Missing, report, where
from aotriton.rules.binning import bin_text
from aotriton.rules.database import Winner
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Operator, kernels_of

COVERAGES = ("none", "small", "default", "full")

TOLERANCE = 0.01  # how much slower than its best a cell may get, so that a functional needs fewer images

RUNNERS_UP = 3

UNREACHED = "the image of another bin: here another backend is faster"


@dataclass(frozen=True)
class Timing:
    """How long one config took in one cell, and the image that was timed."""

    image: str
    median_us: float


@dataclass(frozen=True)
class Cell:
    """What serves one bin of a functional, and why."""

    bin: tuple[int, ...]
    spec: ImageSpec
    image: str  # the spec's name
    provenance: str
    source: str
    median_us: float
    runners_up: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class FunctionalPlan:
    """Every cell of one functional, row-major over the tuning keys."""

    functional: Functional
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class TablePlan:
    """The compiled functionals of one kernel on one arch, by ascending godel number."""

    kernel: KernelDescription
    arch: str
    functionals: tuple[FunctionalPlan, ...]

    @cached_property
    def images(self) -> dict[str, ImageSpec]:
        """Every image of the table by ascending name."""
        found = {cell.image: cell.spec for functional in self.functionals for cell in functional.cells}
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Plan:
    """A build: one table for each kernel and arch, one choice of backends for each operator and arch, by arch."""

    tables: tuple[TablePlan, ...]
    operators: tuple[OperatorPlan, ...]


class PlanError(ValueError):
    """The database does not fill the coverage; the message lists every gap and the commands that would fill it."""


def plan(
    operators: Sequence[Operator],
    archs: Sequence[str],
    coverage: str,
    winners: Iterable[Winner],
    timings: Mapping[CellKey, Mapping[str, Timing]],
    spills: Mapping[str, int] | None = None,
) -> Plan:
    """``timings`` maps a cell to its timed configs. ``spills`` says of images that were compiled what they spill: only
    one that is known to spill nothing takes the place of a winner that was borrowed; None: every one may.

    PlanError where a cell of an operator's first backend has no winner, or where a needed winner has psels or copts
    that its kernel does not have.
    """
    rows = {(row.arch, row.kernel, f"{row.functional} {row.bin}"): row for row in winners}
    always = {kernel.name for operator in operators for kernel in operator.backends[0].kernels}
    tables: list[TablePlan] = []
    chosen: list[OperatorPlan] = []
    problems: list[str] = []
    missing: list[Missing] = []
    for arch in sorted(archs):
        of_arch = [choose(one, arch, covered(one.lead, arch, coverage), rows) for one in operators]
        chosen += of_arch
        for kernel in kernels_of(operators):
            planned = []
            here = {
                key: times for key, times in timings.items() if key[:2] == (arch, kernel.name) and coverage != "full"
            }
            configs = {config for times in here.values() for config in times}
            reached: dict[int, set[tuple[int, ...]]] = {}
            for one in of_arch:
                for number, cells_reached in one.reached(kernel).items():
                    reached.setdefault(number, set()).update(cells_reached)
            for functional in covered(kernel, arch, coverage):
                wanted = list(kernel.cells())
                if kernel.name not in always:
                    wanted = [cell for cell in wanted if cell in reached.get(functional.godel_number, ())]
                present: list[tuple[tuple[int, ...], Winner, ImageSpec]] = []
                absent = []
                for cell in wanted:
                    row = rows.get((arch, kernel.name, f"{functional} {bin_text(kernel.tuning_keys, cell)}"))
                    if row is None:
                        absent.append(cell)
                        continue
                    try:
                        present.append((cell, row, ImageSpec.of(functional, row.psels, row.copts)))
                    except ValueError as error:
                        problems.append(f"{where(functional)} {row.bin}: a winner of another time: {error}")
                if absent:
                    missing.append(Missing(functional, tuple(absent)))
                elif wanted and len(present) == len(wanted):
                    cells = _cells(present, here, _named(functional, configs, spills))
                    planned.append(FunctionalPlan(functional, _filled(kernel, cells)))
            tables.append(TablePlan(kernel, arch, tuple(planned)))
    if problems or missing:
        measured = {row.arch for row in rows.values() if row.provenance == "measured"}
        raise PlanError(report(problems, missing, measured))
    return Plan(tuple(tables), tuple(chosen))


def covered(kernel: KernelDescription, arch: str, coverage: str) -> list[Functional]:
    """The functionals that ``coverage`` compiles; ValueError names the coverages that exist."""
    if coverage not in COVERAGES:
        raise ValueError(f"unknown coverage {coverage!r}: choose from {', '.join(COVERAGES)}")
    functionals = list(kernel.functionals(arch)) if coverage != "none" else []
    if coverage != "small":
        return functionals
    pinned = [(place, choice.small) for place, choice in enumerate(kernel.choices) if choice.small is not None]
    return [f for f in functionals if all(f.values[place] == value for place, value in pinned)]


def _filled(kernel: KernelDescription, cells: Collection[Cell]) -> tuple[Cell, ...]:
    """A cell for every bin: those that another backend serves get an image that is there anyway."""
    by_bin = {cell.bin: cell for cell in cells}
    filler = next(iter(cells))
    other = replace(filler, provenance="borrowed", source=UNREACHED, median_us=0.0, runners_up=())
    return tuple(by_bin.get(bin, replace(other, bin=bin)) for bin in kernel.cells())


def _cells(
    present: Sequence[tuple[tuple[int, ...], Winner, ImageSpec]],
    timings: Mapping[CellKey, Mapping[str, Timing]],
    named: Mapping[str, tuple[ImageSpec, str]],
) -> tuple[Cell, ...]:
    """The cells of a functional, each with its winner or with an image that is as good and serves other cells too."""
    timed = [_timed(row, spec, named, timings) for _, row, spec in present]
    chosen = _cover([_acceptable(row, spec, times) for (_, row, spec), times in zip(present, timed, strict=True)])
    cells = []
    for (cell, row, own), times, config in zip(present, timed, chosen, strict=True):
        spec, name, timed_image, median, runners_up = own, own.name, row.image, row.median_us, row.runners_up
        if config != own.config:
            spec, name = named[config]
            if row.provenance == "measured":  # else the timings are of the cell that the winner was borrowed from
                others = {**dict(row.runners_up), own.config: row.median_us}
                others.pop(config, None)
                timed_image, median = times[config].image, times[config].median_us
                runners_up = tuple(sorted(others.items(), key=lambda pair: (pair[1], pair[0])))
        provenance, source = row.provenance, row.source
        if provenance == "measured" and timed_image != name:
            provenance, source = "borrowed", f"{timed_image}: the kernel's source has changed since"
        cells.append(Cell(cell, spec, name, provenance, source, median, runners_up[:RUNNERS_UP]))
    return tuple(cells)


def _named(
    functional: Functional, configs: Iterable[str], spills: Mapping[str, int] | None
) -> dict[str, tuple[ImageSpec, str]]:
    """Spec and image name of each config, as ``ImageSpec.config`` spells it, that the kernel has and that fits."""
    found = {}
    for config in configs:
        with suppress(ValueError):
            spec = ImageSpec.parse(functional, config)
            if spills is None or spills.get(spec.name) == 0:
                found[config] = spec, spec.name
    return found


def _timed(
    row: Winner,
    own: ImageSpec,
    named: Mapping[str, tuple[ImageSpec, str]],
    timings: Mapping[CellKey, Mapping[str, Timing]],
) -> dict[str, Timing]:
    """Timings that may stand beside the winner's: of this cell, or of the cell that it was borrowed from.

    Those of a measured cell must be as up to date with the kernel's source as its winner is.
    """
    if row.provenance == "borrowed":
        times = timings.get((row.arch, row.kernel, lender(own.functional.kernel, row)), {})
        return {config: timing for config, timing in times.items() if config in named}
    times = timings.get((row.arch, row.kernel, f"{row.functional} {row.bin}"), {})
    if not times:
        return {}
    current = own.name == row.image
    return {c: timing for c, timing in times.items() if c in named and (named[c][1] == timing.image) == current}


def _acceptable(row: Winner, own: ImageSpec, times: Mapping[str, Timing]) -> dict[str, float]:
    """Configs that may serve the cell, the winner's first, with their time over the best one's."""
    best = min((timing.median_us for timing in times.values()), default=0.0)
    if row.provenance == "measured" and row.median_us:
        best = min(best or row.median_us, row.median_us)
    ratios = {config: timing.median_us / best for config, timing in times.items()}
    near = {config: ratio for config, ratio in ratios.items() if ratio <= 1 + TOLERANCE}
    return {own.config: ratios.get(own.config, 1.0), **near}


def _cover(acceptable: Sequence[Mapping[str, float]]) -> list[str]:
    """A config for each cell from a small set: greedily what serves most cells, then loses least, then sorts first.

    A cell takes its winner where the set has it, else the fastest of the set.
    """
    chosen: list[str] = []
    open_cells = list(acceptable)
    while open_cells:

        def rank(config: str, cells: Sequence[Mapping[str, float]] = open_cells) -> tuple[int, float, str]:
            ratios = [cell[config] for cell in cells if config in cell]
            return -len(ratios), sum(ratios), config

        chosen.append(min({config for cell in open_cells for config in cell}, key=rank))
        open_cells = [cell for cell in open_cells if chosen[-1] not in cell]
    picked = []
    for cell in acceptable:
        own = next(iter(cell))
        picked.append(own if own in chosen else min(set(cell) & set(chosen), key=lambda config: (cell[config], config)))
    return picked
