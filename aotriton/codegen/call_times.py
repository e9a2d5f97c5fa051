"""Times of a call: from a plan to the images that may run it, and how long it takes with each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aotriton.codegen.backends import BackendCell, CellKey, OperatorPlan, key_of
from aotriton.codegen.costs import Models
from aotriton.codegen.plan import Cell, FunctionalPlan, Plan, Timing
from aotriton.codegen.reach import Placed
from aotriton.rules.binning import bin_text
from aotriton.rules.database import Product, Winner
from aotriton.rules.database.rows import Borrowed
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.savings import Image
from aotriton.rules.work import OfCall, OfTile, formulas, tile_of, work_of_call

# How much longer than its cell's own image one counts as taking that was never timed there, where no time is predicted.
UNTIMED = 2.0

# Of a call: by the number of each backend that may be chosen, for each of its kernels, the times of its images.
Times = Mapping[int, Sequence[Mapping[Image, float]]]


class CallTimes:
    """A plan as calls see it: which images may run a call, and how long each takes."""

    def __init__(
        self,
        made: Plan,
        products: Mapping[str, Sequence[Product]],
        winners: Iterable[Winner],
        timings: Mapping[CellKey, Mapping[str, Timing]],
        models: Models,
    ) -> None:
        tables = [one for table in made.tables for one in table.functionals]
        self._of: dict[Functional, FunctionalPlan] = {one.functional: one for one in tables}
        self._images = {functional: one.images for functional, one in self._of.items()}
        self._cells: dict[tuple[Functional, int], dict[tuple[int, ...], Cell]] = {}
        self._products = products
        self._rows = {key_of(row): row for row in winners}
        self._timings, self._models = timings, models
        self._costs: dict[tuple[str, str], tuple[OfTile, tuple[float, ...]] | None] = {}
        self._operators: dict[tuple[str, str, str], OperatorPlan] = {
            (one.operator.name, one.arch, one.product): one for one in made.operators
        }
        self.specs: dict[Image, ImageSpec] = {
            (functional.kernel.name, name): spec for functional, images in self._images.items()
            for name, spec in images.items()
        }  # fmt: skip
        self.by_cell = 0  # the calls of which a kernel has no predicted time

    def of(self, one: Placed) -> Times:
        """The times of the images of each kernel of each backend that may be chosen for the call; empty if the plan has
        none that serves it.

        As v2src/dispatch/select.cc: if the first backend has predicted times, or no times at all, so must others; where
        it was measured in its cell alone, those whose shapes are their own are for the calls that they serve, and the
        cell decides among the others.
        """
        there = {
            number: functionals
            for number, functionals in one.backends.items()
            if all(functional in self._of for functional in functionals)
        }
        times = {number: [self._predicted(one, own) for own in there[number]] for number in there}
        predicted = {
            number: [images for images in kernels if images is not None]
            for number, kernels in times.items()
            if None not in kernels and any(own.kernel.work for own in there[number])
        }
        if 0 in predicted or (0 not in there and predicted):
            return predicted
        if not there:
            return {}
        backends = one.operator.backends
        cell = self._backends_in(one)
        in_cell = cell is not None and any(cell.medians_us[:1])
        if left := {
            number: kernels for number, kernels in predicted.items() if backends[number].own_shapes or not in_cell
        }:
            return left
        self.by_cell += 1
        among = {0, cell.backend if cell else 0} & there.keys() or set(list(there)[:1])
        found = {}
        for number in sorted(among):
            pairs = zip(there[number], times[number], strict=True)
            kernels = [
                self._of_cell(one, own) if known is None or (own.kernel.timed and not own.kernel.work) else known
                for own, known in pairs
            ]
            if cell and cell.medians_us[number]:  # measured side by side, and comparable
                factor = cell.medians_us[number] / sum(min(images.values()) for images in kernels)
                kernels = [{image: factor * time for image, time in images.items()} for images in kernels]
            found[number] = kernels
        return found

    def _predicted(self, one: Placed, functional: Functional) -> dict[Image, float] | None:
        """The predicted times of the functional's images; None if there are none. A kernel without a described work is
        in the times of others.
        """
        kernel, images = functional.kernel, self._images[functional]
        if kernel.work is None:
            return {(kernel.name, name): 0.0 for name in images}
        if not self._of[functional].shipped:
            return None
        form, call = work_of_call(kernel.work, one.environment)
        found = {}
        for name, spec in images.items():
            if cost := self._cost(one.product, spec):
                found[kernel.name, name] = _time(form, call, *cost)
        return found or None

    def _cost(self, product: Product, spec: ImageSpec) -> tuple[OfTile, tuple[float, ...]] | None:
        key = product.name, spec.name
        if key not in self._costs:
            cost, known = self._models.cost(product, spec), None
            if cost:
                known = tile_of(cost.of_tile, cost.occupancy), cost.coefficients
            self._costs[key] = known
        return self._costs[key]

    def _of_cell(self, one: Placed, functional: Functional) -> dict[Image, float]:
        """The medians of the functional's images in the call's cell; UNTIMED for one that was never timed there."""
        number = [product.name for product in self._products[one.product.arch]].index(one.product.name)
        if (functional, number) not in self._cells:
            self._cells[functional, number] = {cell.bin: cell for cell in self._of[functional].products[number]}
        bin = _bin(functional.kernel, one.environment)
        cell = self._cells[functional, number][bin]
        kernel, text = functional.kernel, bin_text(functional.kernel.tuning_keys, bin)
        row = self._rows.get((one.product.arch, one.product.name, kernel.name, str(functional), text))
        lender = row.lender if isinstance(row, Borrowed) and row.lender else row
        timed = self._timings.get(key_of(lender), {}) if lender else {}
        own = timed[cell.spec.config].median_us if cell.spec.config in timed else cell.median_us or 1.0
        return {
            (kernel.name, name): own if name == cell.image
            else timed[spec.config].median_us if spec.config in timed else UNTIMED * own
            for name, spec in self._images[functional].items()
        }  # fmt: skip

    def _backends_in(self, one: Placed) -> BackendCell | None:
        """The call's cell in the table of the operator's backends; None where they were not compared."""
        cells = self._operators[one.operator.name, one.product.arch, one.product.name].cells
        if 0 not in one.backends:
            return None
        bin = _bin(one.lead.kernel, one.environment)
        return next((cell for cell in cells.get(one.lead.godel_number, ()) if cell.bin == bin), None)


def _bin(kernel: KernelDescription, environment: Environment) -> tuple[int, ...]:
    keys = kernel.tuning_keys
    return tuple(key.representatives[key.bin_of(evaluate(key.quantity, environment))] for key in keys)


def _time(form: int, call: OfCall, tile: OfTile, coefficients: Sequence[float]) -> float:
    if call.rows == 0:
        return 0.0  # it has no programs
    terms = formulas(form, call, tile)
    return sum(factor * float(term) for factor, term in zip(coefficients, terms, strict=True))  # type: ignore[arg-type,misc] # of floats no formula is a symbol
