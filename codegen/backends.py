"""Backends: from the winners of an operator's kernels to the backend that serves each cell, and how long each takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aotriton.rules.binning import bin_text
from aotriton.rules.database import Winner
from aotriton.rules.kernel import Functional, KernelDescription, parse_functional
from aotriton.rules.operators import Backend, Operator

CellKey = tuple[str, str, str]  # arch, kernel, and the cell as "<functional> <bin>"


@dataclass(frozen=True)
class BackendCell:
    """The backend of one cell of an operator, by its place. ``medians_us``: of each backend, 0 where not comparable."""

    bin: tuple[int, ...]
    backend: int
    medians_us: tuple[float, ...]


@dataclass(frozen=True)
class OperatorPlan:
    """The backends of an operator on one arch: by the lead's godel number, the cells of those functionals where another
    backend was compared with the first one.
    """

    operator: Operator
    arch: str
    cells: Mapping[int, tuple[BackendCell, ...]]

    def reached(self, kernel: KernelDescription) -> dict[int, set[tuple[int, ...]]]:
        """The cells, by godel number of ``kernel``, where a backend other than the first runs it."""
        found: dict[int, set[tuple[int, ...]]] = {}
        for functional in self.operator.lead.functionals(self.arch):
            own = kernel.like(functional)
            for cell in self.cells.get(functional.godel_number, ()):
                of = [self.operator.backends[place] for place in self._chosen(cell) if place]
                if own and any(kernel in backend.kernels for backend in of):
                    keys = _keys(self.operator.lead, cell.bin)
                    found.setdefault(own.godel_number, set()).add(kernel.cell_like(keys))
        return found

    def _chosen(self, cell: BackendCell) -> set[int]:
        """The backends that calls in the cell get: with a workspace, and without where the first one needs none."""
        if self.operator.backends[0].workspace or not self.operator.backends[cell.backend].workspace:
            return {cell.backend}
        without = [place for place, backend in enumerate(self.operator.backends) if not backend.workspace]
        timed = [(cell.medians_us[place], place) for place in without if cell.medians_us[place]]
        return {cell.backend, min(timed)[1]}


def choose(
    operator: Operator, arch: str, functionals: Sequence[Functional], rows: Mapping[CellKey, Winner]
) -> OperatorPlan:
    """Each cell of the lead's ``functionals`` gets the backend whose kernels' winners take the least time together.

    A backend that does not serve a cell, or was not measured in it or in the cell that the first one's winners were
    borrowed from, is not compared.
    """
    chosen = {}
    for functional in functionals:
        cells = []
        for cell in operator.lead.cells():
            keys = _keys(operator.lead, cell)
            times = [_time(backend, functional, keys, rows) for backend in operator.backends]
            medians = tuple(time[0] if time and _agree(time, times[0]) else 0.0 for time in times)
            best = min((median, place) for place, median in enumerate(medians) if median) if medians[0] else (0.0, 0)
            cells.append(BackendCell(cell, best[1], medians))
        if any(any(cell.medians_us[1:]) for cell in cells):
            chosen[functional.godel_number] = tuple(cells)
    return OperatorPlan(operator, arch, chosen)


def lender(kernel: KernelDescription, row: Winner) -> str:
    """The cell that a borrowed winner was measured in; its source names what differs: ``T=bf16 in the same bin``."""
    differs = dict(word.split("=", 1) for word in row.source.split() if "=" in word)
    choices = parse_functional(kernel, row.arch, row.functional).as_dict()
    choices |= {choice.name: choice.read(differs[choice.name]) for choice in kernel.choices if choice.name in differs}
    own = (word.split("=", 1) for word in row.bin.split())
    bins = " ".join(f"{name}={differs.get(name, value)}" for name, value in own)
    return f"{kernel.functional(row.arch, **choices)} {bins}"


Time = tuple[float, list[dict[str, str]]]  # microseconds, and the choices and bin that each kernel was measured in


def _time(
    backend: Backend, functional: Functional, keys: Mapping[str, int], rows: Mapping[CellKey, Winner]
) -> Time | None:
    """What the measured winners of all kernels take in a cell; None where one of them has none."""
    total, places = 0.0, []
    for kernel in backend.kernels:
        own = kernel.like(functional)
        place = f"{own} {bin_text(kernel.tuning_keys, kernel.cell_like(keys))}"
        row = rows.get((functional.arch, kernel.name, place)) if own else None
        if row and row.provenance == "borrowed":
            place = lender(kernel, row)
            row = rows.get((functional.arch, kernel.name, place))
        if not row or row.provenance != "measured":
            return None
        total += row.median_us
        spelled = dict(word.split("=", 1) for word in place.split())
        places.append(
            {choice.name: str(choice.default) for choice in kernel.choices if choice.default is not None} | spelled
        )
    return total, places


def _agree(time: Time, first: Time | None) -> bool:
    """Whether both were measured in one cell: no two kernels name different values of a choice or a key."""
    values: dict[str, str] = {}
    places = [*time[1], *first[1]] if first else []
    return bool(places) and all(
        values.setdefault(name, value) == value for place in places for name, value in place.items()
    )


def _keys(lead: KernelDescription, cell: Sequence[int]) -> dict[str, int]:
    return dict(zip((key.name for key in lead.tuning_keys), cell, strict=True))
