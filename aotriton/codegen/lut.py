"""Lookup tables: from the planned cells of a functional to the bins, index, entries and origins that C++ holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product

from aotriton.codegen.costs import Cost, Models
from aotriton.codegen.cxx import literal, string
from aotriton.codegen.missing_winners import where
from aotriton.codegen.plan import Cell, FunctionalPlan
from aotriton.rules.binning import TuningKey, bin_text
from aotriton.rules.database import Product
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import KernelDescription

MAX_ENTRIES = 256  # the index is uint8_t


@dataclass(frozen=True)
class Entry:
    """One image of a functional, with its tunables in the order of the kernel description."""

    image: str
    tunables: tuple[int, ...]
    tunables_text: str
    compile_options_text: str

    def __str__(self) -> str:
        """As C++ spells it."""
        tunables = ", ".join(map(str, self.tunables))
        return f"{{&{self.image}, {{{tunables}}}, {string(self.tunables_text)}, {string(self.compile_options_text)}}}"


@dataclass(slots=True)  # not frozen, as winners are not (rules/database/rows.py)
class Origin:
    """The reason for the entry of some cells. ``first`` and ``count`` are a slice of the functional's runners-up."""

    provenance: str
    source: str
    shape: str
    measured: str
    median_us: float
    low_us: float
    high_us: float
    first: int
    count: int

    def __str__(self) -> str:
        """As C++ spells it."""
        runners_up = f"{{runners_up + {self.first}, {self.count}}}" if self.count else "{}"
        texts = _texts(self.provenance, self.source, self.shape, self.measured)
        return f"{{{texts}, {_times(self.median_us, self.low_us, self.high_us)}, {runners_up}}}"


@dataclass(frozen=True)
class ProductTable:
    """The part of a table that belongs to one product.

    ``index`` has rows of (entries, comment), each for all bins of the last key; ``origin_of`` the number of each cell's
    origin in the same rows. Most cells have the origin of others: what they borrow is the same.
    """

    index: tuple[tuple[tuple[int, ...], str], ...]
    origin_of: tuple[tuple[tuple[int, ...], str], ...]
    origins: tuple[Origin, ...]
    costs: tuple[Cost | None, ...] = ()  # one for each entry; empty if no predicted time decides

    @property
    def entries(self) -> list[int]:
        """The entry of each cell."""
        return [entry for row, _ in self.index for entry in row]

    @property
    def origins_of_cells(self) -> list[Origin]:
        """The origin of each cell."""
        return [self.origins[number] for row, _ in self.origin_of for number in row]


@dataclass(frozen=True)
class Lut:
    """The tables of one functional; ``products`` has one item for each product of the arch."""

    functional: str
    godel_number: int
    bins: tuple[TuningKey, ...]
    entries: tuple[Entry, ...]
    products: tuple[ProductTable, ...]
    runners_up: tuple[tuple[str, float], ...]


def lut(plan: FunctionalPlan, products: Sequence[Product] = (), models: Models | None = None) -> Lut:
    """The table of ``plan``; ValueError if it has more images than the index can number.

    ``models`` give the costs of entries on each of the ``products``.
    """
    entries: dict[str, Entry] = {spec.name: _entry(spec) for spec in plan.shipped}
    runners_up: list[tuple[str, float]] = []
    tables = tuple(_product_table(plan.functional.kernel, cells, entries, runners_up) for cells in plan.products)
    functional = plan.functional
    if models and plan.shipped:
        specs = plan.images
        costs = [tuple(models.cost(one, specs[name]) for name in entries) for one in products]
        tables = tuple(replace(one, costs=of) for one, of in zip(tables, costs, strict=True))
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"{where(functional)}: {len(entries)} images, and the index can name {MAX_ENTRIES}")
    return Lut(
        str(functional),
        functional.godel_number,
        functional.kernel.tuning_keys,
        tuple(entries.values()),
        tables,
        tuple(runners_up),
    )


def _product_table(
    kernel: KernelDescription, cells: Sequence[Cell], entries: dict[str, Entry], runners_up: list[tuple[str, float]]
) -> ProductTable:
    """The part of a table that belongs to one product. Adds its images and runners-up to those of other products."""
    shared, width = _rows(kernel), len(kernel.tuning_keys[-1].representatives)
    places = {image: place for place, image in enumerate(entries)}
    index: list[int] = []
    numbers: dict[str, int] = {}  # of origins, by what C++ has of them
    origins: list[Origin] = []
    origin_of: list[int] = []
    for cell in cells:
        index.append(places.setdefault(cell.image, len(places)))
        if cell.image not in entries:
            entries[cell.image] = _entry(cell.spec)
        times = cell.median_us, cell.low_us, cell.high_us
        told = cell.provenance, cell.source, cell.shape, cell.measured
        origin = Origin(*told, *times, len(runners_up), len(cell.runners_up))
        runners_up += cell.runners_up
        number = numbers.setdefault(str(origin), len(origins))
        if number == len(origins):
            origins.append(origin)
        origin_of.append(number)

    def in_rows(values: Sequence[int]) -> tuple[tuple[tuple[int, ...], str], ...]:
        starts = range(0, len(values), width)
        return tuple((tuple(values[start : start + width]), shared[cells[start].bin[:-1]]) for start in starts)

    return ProductTable(in_rows(index), in_rows(origin_of), tuple(origins))


@cache  # many cells have the same text, except for the bin
def _texts(provenance: str, *texts: str) -> str:
    return ", ".join((f"Provenance::{provenance}", *map(string, texts)))


@lru_cache(1 << 16)
def _times(*times: float) -> str:
    return ", ".join(map(literal, times))


@cache
def _rows(kernel: KernelDescription) -> Mapping[tuple[int, ...], str]:
    """The text that the bins of each row of an index have in common: all keys except the last."""
    keys = kernel.tuning_keys[:-1]
    return {row: bin_text(keys, row) for row in product(*(key.representatives for key in keys))}


def _entry(spec: ImageSpec) -> Entry:
    tunables, compile_options = (
        " ".join(f"{name}={value}" for name, value in pairs) for pairs in (spec.tunables, spec.compile_options)
    )
    return Entry(spec.name, tuple(value for _, value in spec.tunables), tunables, compile_options)
