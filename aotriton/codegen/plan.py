"""The plan of a build: from the winners and timings of the tuning database to the image of every cell and product.

All products of an arch share its images; each product has its own choice of the image that serves a cell.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property

from aotriton.codegen.backends import CellKey, OperatorPlan, choose, key_of
from aotriton.codegen.costs import Models
from aotriton.codegen.missing_winners import Missing, report, where
from aotriton.rules.binning import bin_text
from aotriton.rules.commands import tuner
from aotriton.rules.database import Product, Winner
from aotriton.rules.database.rows import Borrowed
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Operator, kernels_of, with_own_shapes, without_samples

COVERAGES = ("none", "small", "default", "full")

TOLERANCE = 0.01  # how much slower than its best a cell may get, so that a functional needs fewer images

# The same if predicted times choose for all but the measured problems: another image serves few calls.
EXACT_TOLERANCE = 0.04

RUNNERS_UP = 3

MOST_LENT = 2  # images of a functional that ship by the models of another level

REBUILT = "another binary of this image was measured"
UNTIMED = "no image of this build was measured in this bin"
UNREACHED = "the image of another bin: here another backend is faster"


# Timings and cells are many, and not frozen for the same reason as winners are not (rules/database/rows.py).
@dataclass(slots=True)
class Timing:
    """The time of one config in one cell, with the image that was timed and the day."""

    image: str
    median_us: float
    measured: str = ""


Ranked = Mapping[str, Timing]  # the configs that were timed in a cell, the fastest first
# Functionals, each with the images that it may have; none: those that it has in default coverage.
Selected = Mapping[Functional, Sequence[ImageSpec]]


@dataclass(slots=True)
class Cell:
    """The image that serves one bin of a functional, and why."""

    bin: tuple[int, ...]
    spec: ImageSpec
    image: str  # the spec's name
    provenance: str
    source: str
    median_us: float
    runners_up: tuple[tuple[str, float], ...]
    low_us: float = 0.0
    high_us: float = 0.0
    shape: str = ""  # that was measured, for a reader
    measured: str = ""


@dataclass(frozen=True)
class FunctionalPlan:
    """Every cell of one functional: by product of its arch, row-major over the tuning keys."""

    functional: Functional
    products: tuple[tuple[Cell, ...], ...]
    shipped: tuple[ImageSpec, ...] = ()  # the images among which predicted times decide; none without models

    @property
    def images(self) -> dict[str, ImageSpec]:
        """Every image by name."""
        return {spec.name: spec for spec in self.shipped} | {cell.image: cell.spec for cell in self.cells}

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of all products."""
        return tuple(cell for cells in self.products for cell in cells)


@dataclass(frozen=True)
class TablePlan:
    """The compiled functionals of one kernel on one arch, by ascending godel number."""

    kernel: KernelDescription
    arch: str
    functionals: tuple[FunctionalPlan, ...]

    @cached_property
    def images(self) -> dict[str, ImageSpec]:
        """Every image of the table by ascending name."""
        found = {name: spec for functional in self.functionals for name, spec in functional.images.items()}
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Plan:
    """A build: one table for each kernel and arch, one choice of backends for each operator and product, by arch.

    ``products`` has the products of each arch, in the order of the tables.
    """

    tables: tuple[TablePlan, ...]
    operators: tuple[OperatorPlan, ...]
    products: Mapping[str, Sequence[Product]]


class PlanError(ValueError):
    """The database does not fill the coverage. The message lists every gap and the commands that would fill it."""


def plan(
    operators: Sequence[Operator],
    products: Mapping[str, Sequence[Product]],
    coverage: str,
    winners: Iterable[Winner],
    timings: Mapping[CellKey, Mapping[str, Timing]],
    spills: Mapping[str, int] | None = None,
    models: Models | None = None,
    selected: Selected | None = None,
) -> Plan:
    """The plan of a build for the ``products`` of each arch, from the ``winners`` of all of them.

    ``timings`` maps a cell to its timed configs. ``spills`` maps compiled images to the bytes that they spill: only an
    image that is known to spill nothing may replace a borrowed winner; with None every image may. If ``models`` know
    which images are worth shipping, a functional has these and, unless coverage is full, no others. If functionals are
    ``selected``, there are no others, and images that are selected of them serve all cells.

    PlanError if a cell of an operator's first backend has no winner, or if a needed winner has a config that its kernel
    does not have.
    """
    rows = {key_of(row): row for row in winners}
    models = models or Models()
    ranked: dict[CellKey, Ranked] = {}
    if coverage != "full":
        ranked = {key: dict(sorted(times.items(), key=lambda one: one[1].median_us)) for key, times in timings.items()}
    always = {kernel.name for operator in operators for kernel in operator.backends[0].kernels}
    own_shapes, by_cells = with_own_shapes(operators), without_samples(operators)
    tables: list[TablePlan] = []
    chosen: list[OperatorPlan] = []
    exact = {kernel.name for operator in operators if operator.exact_cells for kernel in operator.kernels}
    problems: list[str] = []
    missing: list[Missing] = []
    for arch in sorted(products):
        of_arch: list[list[OperatorPlan]] = []  # by product
        for product in products[arch]:
            of_arch.append(
                [
                    choose(one, arch, product.name, covered(one.lead, arch, coverage, selected), rows)
                    for one in operators
                ]
            )
        chosen += [one for of_product in of_arch for one in of_product]
        for kernel in kernels_of(operators):
            planned = []
            name, everywhere = kernel.name, kernel.name in always
            reached = [_reached(kernel, of_product) for of_product in of_arch]
            bins = [(cell, bin_text(kernel.tuning_keys, cell)) for cell in kernel.cells()]
            for functional in covered(kernel, arch, coverage, selected):
                kept = (selected or {}).get(functional, ())
                specs = _Specs(functional, spills, kept)
                # What the models of plain images say of those of another level may wait for its measurements, unless
                # only predicted times choose these.
                own = models.are_of_level(functional)
                shipped = models.shipped(functional) if own or name in own_shapes else []
                worth = [one for one in shipped if specs.fitting(one.config) and (not kept or one in kept)]
                worth = worth if own else [one for one in worth if not _runs_nowhere(one)][:MOST_LENT]
                among: Sequence[ImageSpec] = () if coverage == "full" else worth or kept
                text, number = str(functional), functional.godel_number
                present: list[list[_Present]] = []  # by product
                absent: dict[tuple[int, ...], None] = {}
                complete = True
                for product, reached_on in zip(products[arch], reached, strict=True):
                    found: list[_Present] = []
                    present.append(found)
                    on, here = product.name, reached_on.get(number, ())
                    for cell, bin in bins:
                        needed = everywhere or cell in here
                        # Of what is not timed, or on no random shapes, no time could say where it is worth shipping.
                        by_time = kernel.timed and name not in by_cells
                        if not needed and by_time and (not worth or kernel.name in exact):
                            continue
                        row = rows.get((arch, on, name, text, bin))
                        if row is None:
                            if everywhere or (by_time and not worth):
                                absent[cell] = None
                            continue
                        try:
                            found.append((cell, row, specs.of(row.config)))
                        except ValueError as error:
                            if needed:
                                complete = False
                                stale = f"a winner of another time, which `{tuner()} --decide` forgets"
                                problems.append(f"{where(functional)} {row.bin}: {stale}: {error}")
                if absent:
                    missing.append(Missing(functional, tuple(sorted(absent))))
                elif complete and (any(present) or worth):
                    cells = _cells(present, ranked, specs, among, kernel.name in exact)
                    planned.append(FunctionalPlan(functional, _filled(kernel, cells, worth), tuple(worth)))
            tables.append(TablePlan(kernel, arch, tuple(planned)))
    if problems or missing:
        measured = {row.arch for row in rows.values() if row.provenance == "measured"}
        raise PlanError(report(problems, missing, measured))
    return Plan(tuple(tables), tuple(chosen), products)


def _reached(kernel: KernelDescription, of_product: Iterable[OperatorPlan]) -> dict[int, set[tuple[int, ...]]]:
    """The cells of the kernel, by godel number, in which a backend other than an operator's first one runs it."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for one in of_product:
        for number, cells in one.reached(kernel).items():
            found.setdefault(number, set()).update(cells)
    return found


def without_measured(made: Plan, rebuilt: Collection[str]) -> Plan:
    """The plan with these images no longer counted as measured, because the shipped binary is not the measured one."""
    if not rebuilt:
        return made

    def told(cell: Cell) -> Cell:
        measured = cell.provenance == "measured" and cell.image in rebuilt
        return replace(cell, provenance="borrowed", source=REBUILT) if measured else cell

    tables = (
        replace(
            table,
            functionals=tuple(
                replace(one, products=tuple(tuple(map(told, cells)) for cells in one.products))
                for one in table.functionals
            ),
        )
        for table in made.tables
    )
    return replace(made, tables=tuple(tables))


def covered(
    kernel: KernelDescription, arch: str, coverage: str, selected: Collection[Functional] | None = None
) -> list[Functional]:
    """The functionals that ``coverage`` compiles, of those that are ``selected``; ValueError names the coverages that
    exist.
    """
    if coverage not in COVERAGES:
        raise ValueError(f"unknown coverage {coverage!r}: choose from {', '.join(COVERAGES)}")
    functionals = list(kernel.functionals(arch)) if coverage != "none" else []
    if selected is not None:
        functionals = [one for one in functionals if one in selected]
    if coverage != "small":
        return functionals
    pinned = [(place, choice.small) for place, choice in enumerate(kernel.choices) if choice.small is not None]
    return [f for f in functionals if all(f.values[place] == value for place, value in pinned)]


def _filled(
    kernel: KernelDescription, products: Sequence[Sequence[Cell]], worth: Sequence[ImageSpec]
) -> tuple[tuple[Cell, ...], ...]:
    """A cell for every bin; cells that another backend serves get an image that ships anyway."""
    there = [cell.spec for cells in products for cell in cells] + list(worth)
    made = []
    for cells in products:
        if len(cells) == kernel.cell_count:
            made.append(tuple(cells))
            continue
        by_bin = {cell.bin: cell for cell in cells}
        filler = cells[0].spec if cells else there[0]
        unreached = (filler, filler.name, "borrowed", UNREACHED, 0.0, ())
        made.append(tuple(by_bin.get(bin) or Cell(bin, *unreached) for bin in kernel.cells()))
    return tuple(made)


def _runs_nowhere(spec: ImageSpec) -> bool:
    """Whether it is certain that the image, which another level lends, is of no use at this one: it may not fit."""
    return spec.functional.wins_nowhere({**dict(spec.tunables), **dict(spec.compile_options)})


class _Specs:
    """The image specs of a functional, each computed once, when it is first needed. Those ``kept`` are known to fit."""

    def __init__(
        self, functional: Functional, spills: Mapping[str, int] | None, kept: Collection[ImageSpec] = ()
    ) -> None:
        self._functional, self._spills, self._kept = functional, spills, kept
        self._of: dict[str, ImageSpec] = {}
        self._fitting: dict[str, ImageSpec | None] = {}

    def of(self, config: str) -> ImageSpec:
        """The image spec of a config; ValueError if the kernel does not have it."""
        if config not in self._of:
            self._of[config] = ImageSpec.parse(self._functional, config)
        return self._of[config]

    def fitting(self, config: str) -> ImageSpec | None:
        """The image with this config, or None if the kernel has no such config or the image may spill."""
        if config not in self._fitting:
            self._fitting[config] = self._fit(config)
        return self._fitting[config]

    def _fit(self, config: str) -> ImageSpec | None:
        with suppress(ValueError):
            spec = self.of(config)
            if self._spills is None or self._spills.get(spec.name) == 0 or spec in self._kept:
                return spec
        return None


_Present = tuple[tuple[int, ...], Winner, ImageSpec]  # a bin, its winner and the image that this asks for today


def _cells(
    present: Sequence[Sequence[_Present]],
    ranked: Mapping[CellKey, Ranked],
    specs: _Specs,
    worth: Sequence[ImageSpec],
    exact: bool,
) -> list[list[Cell]]:
    """The cells of a functional by product, each with its winner or with an equally good image that serves other cells.

    If images are ``worth`` shipping, a cell gets the fastest of these; if cells are ``exact``, a few others, too.
    """
    one_near = _near_exact if exact and worth else _near
    known: dict[Hashable, dict[str, tuple[float, Timing]]] = {}  # many cells borrow from few
    near = []
    for _, row, spec in (one for rows in present for one in rows):
        timed_in = key_of(row.lender if isinstance(row, Borrowed) and row.lender else row)
        like = timed_in, row.provenance, row.image, spec.config
        if like not in known:
            known[like] = one_near(row, spec, specs, ranked.get(timed_in, {}), worth)
        near.append(known[like])
    ratios = [{config: ratio for config, (ratio, _) in one.items()} for one in near]
    if worth and not exact:
        chosen = [min(one, key=one.__getitem__) for one in ratios]
    else:
        chosen = _cover(ratios, [one.config for one in worth])
    picked = zip(near, chosen, strict=True)
    return [[_cell(one, *next(picked), specs) for one in rows] for rows in present]


def _cell(present: _Present, near: Mapping[str, tuple[float, Timing]], config: str, specs: _Specs) -> Cell:
    """The cell with this config and its measurements."""
    cell, row, own = present
    spec, timed_image, median, runners_up = own, row.image, row.median_us, row.runners_up
    low, high, measured = row.low_us, row.high_us, row.measured
    if config != own.config:
        timing = near[config][1]
        spec = specs.fitting(config) or own
        if not timing.image:
            return Cell(cell, spec, spec.name, "borrowed", UNTIMED, 0.0, ())
        if row.provenance == "measured":  # else the timings are of the cell that the winner was borrowed from
            others = {**dict(row.runners_up), own.config: row.median_us}
            others.pop(config, None)
            timed_image, median, low, high = timing.image, timing.median_us, 0.0, 0.0
            measured = timing.measured
            runners_up = tuple(sorted(others.items(), key=lambda pair: (pair[1], pair[0])))
    provenance, source = row.provenance, row.source
    if provenance == "measured" and timed_image != spec.name:
        provenance, source = "borrowed", f"{timed_image}: the kernel's source has changed since"
    more = low, high, _readable(row.shape), measured
    return Cell(cell, spec, spec.name, provenance, source, median, runners_up[:RUNNERS_UP], *more)


@cache
def _readable(shape: str) -> str:
    """``{"rows": 256, "width": 64}`` as ``rows 256 width 64``."""
    return " ".join(f"{name} {value}" for name, value in json.loads(shape or "{}").items())


def _near(
    row: Winner,
    own: ImageSpec,
    specs: _Specs,
    times: Ranked,
    worth: Sequence[ImageSpec] = (),
    tolerance: float = TOLERANCE,
) -> dict[str, tuple[float, Timing]]:
    """Configs that may serve the cell, the winner's first, with their time over the best one's, and their timing.

    ``times`` are comparable with the winner's time: they belong to this cell, or to the cell that lent the winner. The
    times of a measured cell must be of the same state of the kernel's source as its winner. All timed images that are
    ``worth`` shipping may serve, regardless of their time. If none was timed, the winner serves if it is worth
    shipping, else the first of them.
    """
    borrowed = row.provenance == "borrowed"
    current = own.name == row.image if times else True

    def counts(config: str, timing: Timing) -> bool:
        spec = specs.fitting(config)
        return spec is not None and (borrowed or (spec.name == timing.image) == current)

    best, near = 0.0, {}
    if worth:
        timed = {one.config: times[one.config] for one in worth if one.config in times}
        near = {config: (timing.median_us, timing) for config, timing in timed.items() if counts(config, timing)}
        if not near and own.config in {one.config for one in worth}:
            return {own.config: (0.0, Timing(row.image, row.median_us))}  # predicted, for instance
        return near or {worth[0].config: (0.0, Timing("", 0.0))}
    for config, timing in times.items():
        if best and timing.median_us / best > 1 + tolerance:
            break
        if counts(config, timing):
            measured = row.provenance == "measured" and row.median_us
            best = best or (min(timing.median_us, row.median_us) if measured else timing.median_us)
            near[config] = timing.median_us / best, timing
    mine = times.get(own.config)
    ratio = mine.median_us / best if mine and best and counts(own.config, mine) else 1.0
    within = {config: one for config, one in near.items() if one[0] <= 1 + tolerance}
    return {own.config: (ratio, mine or Timing(row.image, row.median_us)), **within}


def _near_exact(
    row: Winner, own: ImageSpec, specs: _Specs, times: Ranked, worth: Sequence[ImageSpec]
) -> dict[str, tuple[float, Timing]]:
    """As ``_near``, of a cell that decides about the problem that was measured for it; an own image that spills gives
    way to those that are ``worth`` shipping.
    """
    near = _near(row, own, specs, times, tolerance=EXACT_TOLERANCE)
    if worth and specs.fitting(own.config) is None:
        near.pop(own.config)
        return near or _near(row, own, specs, times, worth)
    return near


def _cover(acceptable: Sequence[Mapping[str, float]], there: Sequence[str] = ()) -> list[str]:
    """A config for each cell, from a small set that is chosen greedily: by cells served, then time lost, then name.

    A cell takes its winner if the set has it, else the fastest of the set. The set includes ``there``, the configs that
    ship anyway.
    """
    chosen = list(there)
    open_cells = [cell for cell in acceptable if not any(config in cell for config in there)]
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
