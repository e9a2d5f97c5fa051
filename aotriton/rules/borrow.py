"""Borrowed winners: from the winners of a kernel on one arch to a winner for all of its cells.

A cell without a winner borrows the product's nearest winner among the functionals that differ only in choices that
lend. If the product has none of the cell's level, it borrows the nearest winner of the most similar product that has
one; if no product has, of the most similar one that has any. The source names the differences, a product first:
``product=NVIDIA_H200 T=bf16 in the same bin``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import inf, log2

from aotriton.rules.arch import arch_spec
from aotriton.rules.binning import bin_text
from aotriton.rules.database.rows import Borrowed, Product, Winner
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Choice, Functional, KernelDescription, Value

Cell = tuple[int, ...]
_Kind = tuple[Value, ...]
_Image = tuple[str, str]  # its name and its config
_Winners = dict[str, dict[str, Winner]]  # of a product, by functional and bin


def in_a_word(product: str) -> str:
    """The product's name with underscores instead of spaces, as in a source."""
    return product.replace(" ", "_")


def siblings(functional: Functional) -> list[Functional]:
    """The functionals that may borrow from each other, including ``functional``."""
    own = _pinned(functional)
    return [one for one in functional.kernel.functionals(functional.arch) if _pinned(one) == own]


def differences(one: Functional, other: Functional) -> list[Choice]:
    """The choices in which two functionals of a kernel differ."""
    rows = zip(one.kernel.choices, one.values, other.values, strict=True)
    return [choice for choice, mine, theirs in rows if mine != theirs]


def filled(
    kernel: KernelDescription,
    arch: str,
    product: str,
    winners: Iterable[Winner],
    products: Sequence[Product],
    unfit: Collection[str] = (),
) -> list[Winner]:
    """A winner for every cell of every functional of the kernel on the arch: the product's own, else a borrowed one.

    ``winners`` are the kernel's winners on the arch, on all ``products``. A cell that can borrow no winner is left
    out, unless its kernel is not timed: that has one config, while the only config of a timed kernel may have failed.
    An image whose name is in ``unfit`` is not borrowed if the lender's runners-up, or else a further product, have
    another one: one element type may spill registers where another does not.
    """
    texts = {cell: bin_text(kernel.tuning_keys, cell) for cell in kernel.cells()}
    by_product: dict[str, _Winners] = {}
    for winner in winners:
        by_product.setdefault(winner.product, {}).setdefault(winner.functional, {})[winner.bin] = winner
    order = [one for one in nearest_first(arch, product, products) if one in by_product]
    groups: dict[_Kind, list[Functional]] = {}
    for functional in kernel.functionals(arch):
        groups.setdefault(_pinned(functional), []).append(functional)
    own = by_product.get(product, {})
    found: dict[int, list[Winner]] = {}
    for group in groups.values():
        plain = dict.fromkeys(other for one in group for other in one.plain_ones if other not in group)
        lenders, others = (
            [made for one in order if (made := _lenders(some, texts, by_product[one]))] for some in (group, plain)
        )
        markets: dict[int, _Market] = {}
        for functional in group:
            level = functional.level
            if level not in markets:
                of_level = [made for made in lenders if any(one.functional.level == level for one in made)]
                nearest, *further = of_level or lenders[:1] or [[]]
                markets[level] = _Market(nearest, next(iter(others), []), [one for made in further for one in made])
            market = markets[level]
            borrower = _Borrower(functional, product, unfit)
            rows = found[functional.godel_number] = []
            mine = own.get(str(functional), {})
            for cell, text in texts.items():
                if row := mine.get(text):
                    rows.append(row)
                elif lender := market.nearest(borrower, cell):
                    rows.append(borrower.borrow(text, lender))
                elif not kernel.timed:
                    spec = ImageSpec.parse(functional, _only_config(kernel, arch))
                    where = arch, product, kernel.name, str(functional), text
                    rows.append(Winner(*where, spec.name, spec.config, "predicted", "the only config that there is"))
    return [row for number in sorted(found) for row in found[number]]


def _only_config(kernel: KernelDescription, arch: str) -> str:
    """The config of a kernel that is not timed."""
    vendor = arch_spec(arch).vendor
    values = {**kernel.tunable_values(vendor), **kernel.compile_option_values(vendor)}
    return " ".join(f"{name}={of_one[0]}" for name, of_one in values.items())


@dataclass(frozen=True)
class _Lender:
    """A winner that others may borrow, with its configs, the fastest first."""

    functional: Functional
    cell: Cell
    winner: Winner
    configs: tuple[str, ...]


class _Market:
    """The lenders of a group of siblings, and which of them are the nearest to a cell.

    ``others`` lend if the configs of the siblings may not run, and those of ``further`` products if no image of the
    siblings fits.
    """

    def __init__(self, lenders: Sequence[_Lender], others: Sequence[_Lender], further: Sequence[_Lender]) -> None:
        self._lenders, self._others, self._further = lenders, others, further
        self._pools: dict[_Kind, dict[Cell, list[_Lender]]] = {}  # by borrower's kind
        self._near: dict[tuple[_Kind, Cell], list[_Lender]] = {}

    def nearest(self, borrower: _Borrower, cell: Cell) -> _Lender | None:
        """Of the lenders that are most like the borrower's kind: in the nearest cell, the one that differs least.

        Of two cells at the same distance it is the larger one: a lack of tiles costs less than a lack of waves.
        """
        kind = borrower.kind
        if kind not in self._pools:
            self._pools[kind] = _most_like(kind, self._lenders)
        near = self._pools[kind].get(cell) or self._near.get((kind, cell))
        if near is None:
            near = self._near[kind, cell] = _closest(self._pools[kind], cell)
        found = min(near, key=borrower.strangeness) if len(near) > 1 else next(iter(near), None)
        if found and not borrower.may_run(found):
            for lenders in (self._lenders, self._others):
                pool = _most_like(kind, [one for one in lenders if borrower.may_run(one)])
                if pool:
                    return min(_closest(pool, cell), key=borrower.strangeness)
        elif found and self._further and not borrower.fits(found):
            pool = _most_like(kind, [one for one in self._further if borrower.may_run(one) and borrower.fits(one)])
            if pool:
                return min(_closest(pool, cell), key=borrower.strangeness)
        return found


class _Borrower:
    """A functional of a product that borrows. It computes everything once, because it has many cells."""

    def __init__(self, functional: Functional, product: str, unfit: Collection[str]) -> None:
        self.kind = _kind(functional)
        self._functional, self._product, self._unfit = functional, product, frozenset(unfit)
        self._differing: dict[int, tuple[int, str]] = {}
        self._images: dict[str, tuple[_Image, bool] | None] = {}  # by config; None if the kernel no longer has it

    def strangeness(self, lender: _Lender) -> tuple[object, ...]:
        """The sort key of lenders whose cells have the same distance."""
        number = lender.functional.godel_number
        return self._differences(lender.functional)[0], tuple(-value for value in lender.cell), number

    def may_run(self, lender: _Lender) -> bool:
        """Whether the lender's config may run at the borrower's level, in the lender's cell."""
        own = self._functional
        if not own.level or lender.functional.level == own.level:
            return True
        spec = ImageSpec.parse(own, lender.configs[0])
        return not own.ruled_out(lender.cell, {**dict(spec.tunables), **dict(spec.compile_options)})

    def fits(self, lender: _Lender) -> bool:
        """Whether an image of a config of the lender is fit."""
        return self._fitting(lender.configs)[1]

    def borrow(self, bin: str, lender: _Lender) -> Borrowed:
        image, config = self._fitting(lender.configs)[0]
        theirs = lender.winner
        product = "" if theirs.product == self._product else f"product={in_a_word(theirs.product)} "
        where = "in the same bin" if theirs.bin == bin else theirs.bin
        return Borrowed(
            arch=self._functional.arch,
            product=self._product,
            kernel=self._functional.kernel.name,
            functional=str(self._functional),
            bin=bin,
            image=image,
            config=config,
            provenance="borrowed",
            source=f"{product}{self._differences(lender.functional)[1]}{where}",
            lender=theirs,
        )

    def _differences(self, lender: Functional) -> tuple[int, str]:
        """The number of choices that differ, and the lender's values of them."""
        number = lender.godel_number
        if number not in self._differing:
            found = differences(lender, self._functional)
            self._differing[number] = len(found), "".join(f"{choice.name}={lender[choice.name]} " for choice in found)
        return self._differing[number]

    def _fitting(self, configs: Sequence[str]) -> tuple[_Image, bool]:
        """The first config whose image is fit; if none is, the first one, which the build then reports. Whether it is
        fit.
        """
        first: _Image | None = None
        for config in configs:
            if config not in self._images:
                self._images[config] = self._image(config)
            if found := self._images[config]:
                image, fit = found
                if fit:
                    return image, True
                first = first or image
        assert first, "a lender's own config is of today"
        return first, False

    def _image(self, config: str) -> tuple[_Image, bool] | None:
        """The image, and whether it is fit."""
        try:
            spec = ImageSpec.parse(self._functional, config)
        except ValueError:  # a runner-up of another time
            return None
        fit = self._unfit.isdisjoint((spec.name, *spec.plain_names))
        return (spec.name, spec.config), fit


def _pinned(functional: Functional) -> _Kind:
    """The values of the choices that must be equal to borrow."""
    pairs = zip(functional.kernel.choices, functional.values, strict=True)
    return tuple(
        value for choice, value in pairs if not choice.borrows and (choice.measured_as is None or value in choice.apart)
    )


def _kind(functional: Functional) -> _Kind:
    """The values of the choices that lend only if there is nothing nearer."""
    pairs = zip(functional.kernel.choices, functional.values, strict=True)
    return tuple(value for choice, value in pairs if choice.borrows)


def nearest_first(arch: str, product: str, products: Iterable[Product]) -> list[str]:
    """The product, then the others of its arch by similarity, or by name if it is not known."""
    others = {one.name: one for one in products if one.arch == arch}
    own = others.pop(product, None)

    def distance(other: Product) -> tuple[float, float, str]:
        if own is None:
            return 0, 0, other.name
        memory = inf if own.memory is None or other.memory is None else abs(own.memory - other.memory)
        return abs(own.multiprocessors - other.multiprocessors), memory, other.name

    return [product, *(one.name for one in sorted(others.values(), key=distance))]


def _lenders(group: Iterable[Functional], bins: Mapping[Cell, str], winners: _Winners) -> list[_Lender]:
    """The lenders for a group of siblings, without winners that today's description does not know."""
    found = []
    for functional in group:
        theirs = winners.get(str(functional), {})
        for cell, bin in bins.items() if theirs else ():
            if winner := theirs.get(bin):
                with suppress(ValueError):
                    config = ImageSpec.parse(functional, winner.config).config
                    found.append(_Lender(functional, cell, winner, (config, *(one for one, _ in winner.runners_up))))
    return found


def _most_like(kind: _Kind, lenders: Sequence[_Lender]) -> dict[Cell, list[_Lender]]:
    """The lenders that differ in the fewest of the choices that lend, by cell."""
    unlike = [sum(a != b for a, b in zip(kind, _kind(one.functional), strict=True)) for one in lenders]
    found: dict[Cell, list[_Lender]] = {}
    for lender, count in zip(lenders, unlike, strict=True):
        if count == min(unlike):
            found.setdefault(lender.cell, []).append(lender)
    return found


def _closest(pool: Mapping[Cell, Sequence[_Lender]], cell: Cell) -> list[_Lender]:
    """The lenders of the cells that are the least octaves away."""
    steps = {other: _octaves(cell, other) for other in pool}
    least = min(steps.values(), default=0.0)
    return [lender for other, lenders in pool.items() if steps[other] == least for lender in lenders]


@cache  # the cells of a kernel are those of each of its functionals
def _octaves(cell: Cell, other: Cell) -> float:
    return round(sum(abs(log2(a) - log2(b)) for a, b in zip(cell, other, strict=True)), 6)
