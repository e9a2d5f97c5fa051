"""Lookup tables: from the planned cells of a functional to the bins, index, entries and evidence that C++ holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from aotriton.codegen.missing import where
from aotriton.codegen.plan import Cell, FunctionalPlan
from aotriton.rules.binning import TuningKey, bin_text
from aotriton.rules.kernel import KernelDescription

MAX_ENTRIES = 256  # the index is uint8_t


@dataclass(frozen=True)
class Entry:
    """One image of a functional, with its psels in the order of the kernel description."""

    image: str
    psels: tuple[int, ...]
    psels_text: str
    copts_text: str


@dataclass(frozen=True)
class Evidence:
    """Why a cell has its entry. ``first`` and ``count`` are its slice of the functional's runners-up."""

    bin: str
    provenance: str
    source: str
    median_us: float
    first: int
    count: int


@dataclass(frozen=True)
class Lut:
    """One functional's tables. ``index`` holds rows of (entries, comment), one for all bins of the last key."""

    functional: str
    godel_number: int
    bins: tuple[TuningKey, ...]
    index: tuple[tuple[tuple[int, ...], str], ...]
    entries: tuple[Entry, ...]
    evidence: tuple[Evidence, ...]
    runners_up: tuple[tuple[str, float], ...]

    def entry_of(self, values: tuple[int, ...]) -> Entry:
        """The entry that serves these values of the tuning keys: what Lut::cell and the index do in C++."""
        cell = 0
        for key, value in zip(self.bins, values, strict=True):
            cell = cell * len(key.representatives) + key.bin_of(value)
        return self.entries[[entry for row, _ in self.index for entry in row][cell]]


def lut(plan: FunctionalPlan) -> Lut:
    """The table of ``plan``; ValueError where it has more images than the index can name."""
    keys, texts = plan.functional.kernel.tuning_keys, _bins(plan.functional.kernel)
    entries: dict[str, Entry] = {}
    places: dict[str, int] = {}
    evidence: list[Evidence] = []
    runners_up: list[tuple[str, float]] = []
    index: list[int] = []
    for cell in plan.cells:
        index.append(places.setdefault(cell.image, len(places)))
        if cell.image not in entries:
            entries[cell.image] = _entry(cell)
        text = texts[cell.bin]
        count = len(cell.runners_up)
        evidence.append(Evidence(text, cell.provenance, cell.source, cell.median_us, len(runners_up), count))
        runners_up += cell.runners_up
    functional = plan.functional
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"{where(functional)}: {len(entries)} images, and the index can name {MAX_ENTRIES}")
    width = len(keys[-1].representatives)
    rows = tuple(
        (tuple(index[start : start + width]), bin_text(keys[:-1], plan.cells[start].bin[:-1]))
        for start in range(0, len(index), width)
    )
    return Lut(
        str(functional),
        functional.godel_number,
        keys,
        rows,
        tuple(entries.values()),
        tuple(evidence),
        tuple(runners_up),
    )


@cache
def _bins(kernel: KernelDescription) -> Mapping[tuple[int, ...], str]:
    """Every bin as it is spelled."""
    return {cell: bin_text(kernel.tuning_keys, cell) for cell in kernel.cells()}


def _entry(cell: Cell) -> Entry:
    psels, copts = (
        " ".join(f"{name}={value}" for name, value in pairs) for pairs in (cell.spec.psels, cell.spec.copts)
    )
    return Entry(cell.image, tuple(value for _, value in cell.spec.psels), psels, copts)
