"""The plan of a build: from the winners and timings of the tuning database to the image of every cell."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
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

REBUILT = "another binary of this image was measured"
UNREACHED = "the image of another bin: here another backend is faster"


@dataclass(frozen=True)
class Timing:
    """How long one config took in one cell, and the image that was timed."""

    image: str
    median_us: float


Ranked = Mapping[str, Timing]  # the configs that were timed in a cell, the fastest first


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
    ranked: dict[CellKey, Ranked] = {}
    if coverage != "full":
        ranked = {key: dict(sorted(times.items(), key=lambda one: one[1].median_us)) for key, times in timings.items()}
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
            reached: dict[int, set[tuple[int, ...]]] = {}
            for one in of_arch:
                for number, cells_reached in one.reached(kernel).items():
                    reached.setdefault(number, set()).update(cells_reached)
            bins = [(cell, bin_text(kernel.tuning_keys, cell)) for cell in kernel.cells()]
            for functional in covered(kernel, arch, coverage):
                specs = _Specs(functional, spills)
                wanted = bins
                if kernel.name not in always:
                    wanted = [(cell, bin) for cell, bin in bins if cell in reached.get(functional.godel_number, ())]
                present: list[tuple[tuple[int, ...], Winner, ImageSpec]] = []
                absent = []
                for cell, bin in wanted:
                    row = rows.get((arch, kernel.name, f"{functional} {bin}"))
                    if row is None:
                        absent.append(cell)
                        continue
                    try:
                        present.append((cell, row, specs.of(row.psels, row.copts)))
                    except ValueError as error:
                        problems.append(f"{where(functional)} {row.bin}: a winner of another time: {error}")
                if absent:
                    missing.append(Missing(functional, tuple(absent)))
                elif wanted and len(present) == len(wanted):
                    cells = _cells(present, ranked, specs)
                    planned.append(FunctionalPlan(functional, _filled(kernel, cells)))
            tables.append(TablePlan(kernel, arch, tuple(planned)))
    if problems or missing:
        measured = {row.arch for row in rows.values() if row.provenance == "measured"}
        raise PlanError(report(problems, missing, measured))
    return Plan(tuple(tables), tuple(chosen))


def without_measured(made: Plan, rebuilt: Collection[str]) -> Plan:
    """The plan where none of these images counts as measured: what ships is another binary than what was."""
    if not rebuilt:
        return made

    def told(cell: Cell) -> Cell:
        measured = cell.provenance == "measured" and cell.image in rebuilt
        return replace(cell, provenance="borrowed", source=REBUILT) if measured else cell

    tables = (
        replace(
            table,
            functionals=tuple(replace(one, cells=tuple(map(told, one.cells))) for one in table.functionals),
        )
        for table in made.tables
    )
    return replace(made, tables=tuple(tables))


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
    unreached = (filler.spec, filler.image, "borrowed", UNREACHED, 0.0, ())
    return tuple(by_bin.get(bin) or Cell(bin, *unreached) for bin in kernel.cells())


class _Specs:
    """The images of a functional, each worked out once, when it is asked for."""

    def __init__(self, functional: Functional, spills: Mapping[str, int] | None) -> None:
        self._functional, self._spills = functional, spills
        self._by_parts: dict[Hashable, ImageSpec] = {}
        self._by_config: dict[str, ImageSpec | None] = {}

    def of(self, psels: Mapping[str, int], copts: Mapping[str, int]) -> ImageSpec:
        """ValueError where the kernel has not these psels and copts."""
        parts = tuple(psels.items()), tuple(copts.items())
        if parts not in self._by_parts:
            self._by_parts[parts] = ImageSpec.of(self._functional, psels, copts)
        return self._by_parts[parts]

    def fitting(self, config: str) -> ImageSpec | None:
        """The image with this config, where the kernel has it and it is not known to spill, nor unknown if it does."""
        if config not in self._by_config:
            self._by_config[config] = self._parsed(config)
        return self._by_config[config]

    def _parsed(self, config: str) -> ImageSpec | None:
        with suppress(ValueError):
            spec = ImageSpec.parse(self._functional, config)
            if self._spills is None or self._spills.get(spec.name) == 0:
                return spec
        return None


def _cells(
    present: Sequence[tuple[tuple[int, ...], Winner, ImageSpec]], ranked: Mapping[CellKey, Ranked], specs: _Specs
) -> tuple[Cell, ...]:
    """The cells of a functional, each with its winner or with an image that is as good and serves other cells too."""
    near = [_near(row, spec, specs, ranked) for _, row, spec in present]
    chosen = _cover([{config: ratio for config, (ratio, _) in one.items()} for one in near])
    cells = []
    for (cell, row, own), times, config in zip(present, near, chosen, strict=True):
        spec, timed_image, median, runners_up = own, row.image, row.median_us, row.runners_up
        if config != own.config:
            timing = times[config][1]
            spec = specs.fitting(config) or own
            if row.provenance == "measured":  # else the timings are of the cell that the winner was borrowed from
                others = {**dict(row.runners_up), own.config: row.median_us}
                others.pop(config, None)
                timed_image, median = timing.image, timing.median_us
                runners_up = tuple(sorted(others.items(), key=lambda pair: (pair[1], pair[0])))
        provenance, source = row.provenance, row.source
        if provenance == "measured" and timed_image != spec.name:
            provenance, source = "borrowed", f"{timed_image}: the kernel's source has changed since"
        cells.append(Cell(cell, spec, spec.name, provenance, source, median, runners_up[:RUNNERS_UP]))
    return tuple(cells)


def _near(
    row: Winner, own: ImageSpec, specs: _Specs, ranked: Mapping[CellKey, Ranked]
) -> dict[str, tuple[float, Timing]]:
    """Configs that may serve the cell, the winner's first, with their time over the best one's, and with their timing.

    Timings that may stand beside the winner's are of this cell, or of the cell that it was borrowed from. Those of a
    measured cell must be as up to date with the kernel's source as its winner is.
    """
    borrowed = row.provenance == "borrowed"
    cell = lender(own.functional.kernel, row) if borrowed else f"{row.functional} {row.bin}"
    times = ranked.get((row.arch, row.kernel, cell), {})
    current = own.name == row.image if times else True

    def counts(config: str, timing: Timing) -> bool:
        spec = specs.fitting(config)
        return spec is not None and (borrowed or (spec.name == timing.image) == current)

    best, near = 0.0, {}
    for config, timing in times.items():
        if best and timing.median_us / best > 1 + TOLERANCE:
            break
        if counts(config, timing):
            measured = row.provenance == "measured" and row.median_us
            best = best or (min(timing.median_us, row.median_us) if measured else timing.median_us)
            near[config] = timing.median_us / best, timing
    mine = times.get(own.config)
    ratio = mine.median_us / best if mine and best and counts(own.config, mine) else 1.0
    within = {config: one for config, one in near.items() if one[0] <= 1 + TOLERANCE}
    return {own.config: (ratio, mine or Timing(row.image, row.median_us)), **within}


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
