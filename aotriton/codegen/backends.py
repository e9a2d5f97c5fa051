"""Backends: from the winners of an operator's kernels to the backend that serves each cell, and how long each takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from aotriton.codegen.cxx import literal
from aotriton.rules.binning import bin_text
from aotriton.rules.database.rows import Borrowed, Winner
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Backend, Operator

CellKey = tuple[str, str, str, str, str]  # arch, product, kernel, functional and bin


def key_of(row: Winner) -> CellKey:
    return row.arch, row.product, row.kernel, row.functional, row.bin


@dataclass(slots=True)  # not frozen, as winners are not (rules/database/rows.py)
class BackendCell:
    """The index of one cell's backend. ``medians_us``: the time of each backend, 0 if it is not comparable."""

    bin: tuple[int, ...]
    backend: int
    medians_us: tuple[float, ...]

    def __str__(self) -> str:
        """As C++ spells it."""
        return f"{{{self.backend}, {{{', '.join(map(literal, self.medians_us))}}}}}"


@dataclass(frozen=True)
class OperatorPlan:
    """The backends of an operator on one product: the cells of each functional, by the lead's godel number.

    Only functionals in which another backend was compared with the first one are listed.
    """

    operator: Operator
    arch: str
    product: str
    cells: Mapping[int, tuple[BackendCell, ...]]

    def reached(self, kernel: KernelDescription) -> dict[int, set[tuple[int, ...]]]:
        """The cells, by godel number of ``kernel``, where a backend other than the first runs it."""
        found: dict[int, set[tuple[int, ...]]] = {}
        if not any(kernel in backend.kernels for backend in self.operator.backends[1:]):
            return found
        lead = self.operator.lead
        running = {place for place, backend in enumerate(self.operator.backends) if place and kernel in backend.kernels}
        like = {cell: kernel.cell_like(_keys(lead, cell)) for cell in lead.cells()}
        for functional in lead.functionals(self.arch):
            cells = self.cells.get(functional.godel_number, ())
            own = kernel.like(functional) if cells else None
            if own:
                reached = {like[cell.bin] for cell in cells if running & self._chosen(cell)}
                found.setdefault(own.godel_number, set()).update(reached)
        return found

    def _chosen(self, cell: BackendCell) -> set[int]:
        """The backends that calls in the cell get with a workspace, and without one if the first backend needs none."""
        if self.operator.backends[0].workspace or not self.operator.backends[cell.backend].workspace:
            return {cell.backend}
        without = [place for place, backend in enumerate(self.operator.backends) if not backend.workspace]
        timed = [(cell.medians_us[place], place) for place in without if cell.medians_us[place]]
        return {cell.backend, min(timed)[1]}


def choose(
    operator: Operator, arch: str, product: str, functionals: Sequence[Functional], rows: Mapping[CellKey, Winner]
) -> OperatorPlan:
    """The fastest backend of each cell of the lead's ``functionals``, by the sum of its kernels' times.

    A backend is not compared if it does not serve the cell, if its shapes are its own, or if it was measured neither
    there nor in the cell that lent the first backend's winners. If kernels of the first backend have winners of
    different cells, or no other backend's are of theirs, backends are compared in the cell that lent the lead's. Times
    belong to one product: to ``product``, or, if nothing was compared on it, to the product that lent the first
    backend's winners.
    """
    chosen = {}
    on, lead = (arch, product), operator.lead
    cells = [(cell, _bins(operator, cell)) for cell in lead.cells()]
    by_bin = {bins[lead.name]: bins for _, bins in cells}
    for functional in functionals:
        served = [None if one.own_shapes else _served(one, functional) for one in operator.backends]
        if not any(served[1:]):
            continue
        found = []
        for cell, bins in cells:
            medians: tuple[float, ...] = (0.0,) * len(served)
            if first := _time(served[0], on, bins, rows):
                medians = _comparable([first, *(_time(kernels, on, bins, rows) for kernels in served[1:])])
                row, there = rows.get((*on, lead.name, str(functional), bins[lead.name])), bins
                alike = _consistent(first.bins) and any(medians[1:])
                if not alike and isinstance(row, Borrowed) and row.lender:
                    there = by_bin[row.lender.bin]
                    medians = _comparable([_time(kernels, on, there, rows) for kernels in served])
                lender = arch, first.products[-1]
                if lender != on and not any(medians[1:]):
                    medians = _comparable([_time(kernels, lender, there, rows) for kernels in served])
            best = min((median, place) for place, median in enumerate(medians) if median) if medians[0] else (0.0, 0)
            found.append(BackendCell(cell, best[1], medians))
        if any(any(cell.medians_us[1:]) for cell in found):
            chosen[functional.godel_number] = tuple(found)
    return OperatorPlan(operator, arch, product, chosen)


def _bins(operator: Operator, cell: Sequence[int]) -> dict[str, str]:
    """The bin of each kernel in this cell of the lead."""
    keys = _keys(operator.lead, cell)
    return {kernel.name: bin_text(kernel.tuning_keys, kernel.cell_like(keys)) for kernel in operator.kernels}


def _served(backend: Backend, functional: Functional) -> list[tuple[KernelDescription, str]] | None:
    """The backend's kernels with their functionals for this functional of the lead; None if it does not serve it."""
    found = [(kernel, kernel.like(functional)) for kernel in backend.kernels]
    return [(kernel, str(own)) for kernel, own in found] if all(own for _, own in found) else None


@cache
def _words(text: str) -> Mapping[str, str]:
    """The names and values in the text of a functional, a bin or a source."""
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


@cache
def _choices(kernel: KernelDescription, functional: str) -> str:
    """The text of the functional with all choices, including those at their defaults."""
    defaults = {choice.name: str(choice.default) for choice in kernel.choices if choice.default is not None}
    return " ".join(f"{name}={value}" for name, value in {**defaults, **_words(functional)}.items())


class _Time(NamedTuple):
    """The total time of several kernels, and where each of them was measured."""

    median_us: float
    functionals: tuple[str, ...]
    bins: tuple[str, ...]
    products: tuple[str, ...]


def _time(
    kernels: Sequence[tuple[KernelDescription, str]] | None,
    on: tuple[str, str],
    bins: Mapping[str, str],
    rows: Mapping[CellKey, Winner],
) -> _Time | None:
    """The total time of all kernels' measured winners in a cell of an arch and product; None if a kernel has none.

    A kernel that is not timed does not count: no measured call launches it.
    """
    total: float = 0.0
    places: list[tuple[str, str, str]] = []
    for kernel, functional in kernels or ():
        if not kernel.timed:
            continue
        row = rows.get((*on, kernel.name, functional, bins[kernel.name]))
        if isinstance(row, Borrowed):
            row = row.lender
        if not row or row.provenance != "measured":
            return None
        total += row.median_us
        places.append((_choices(kernel, row.functional), row.bin, row.product))
    return _Time(total, *zip(*places, strict=True)) if places else None


def _comparable(times: Sequence[_Time | None]) -> tuple[float, ...]:
    """The microseconds of each backend; 0 for those that are not comparable with the first."""
    return tuple(time.median_us if time and _agree(time, times[0]) else 0.0 for time in times)


def _agree(time: _Time, first: _Time | None) -> bool:
    """Whether both were measured in one cell: all kernels agree on choices, keys and product."""
    return (
        first is not None
        and len({*time.products, *first.products}) == 1
        and _consistent(time.bins + first.bins)
        and _consistent(time.functionals + first.functionals)
    )


@cache  # there are few bins, and few functionals are compared
def _consistent(texts: tuple[str, ...]) -> bool:
    """Whether the texts agree on every name that they have in common."""
    values: dict[str, str] = {}
    return all(values.setdefault(name, value) == value for text in texts for name, value in _words(text).items())


def _keys(lead: KernelDescription, cell: Sequence[int]) -> dict[str, int]:
    return dict(zip((key.name for key in lead.tuning_keys), cell, strict=True))
