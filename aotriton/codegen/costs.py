"""Costs: from fitted models to what the runner knows of an image's speed, and to the images that are worth shipping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from aotriton.codegen.cxx import literal, string
from aotriton.rules.borrow import in_a_word, nearest_first
from aotriton.rules.database import Model, Product
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.rules.work import FORM, TERMS, WORTH_SHIPPING


@dataclass(frozen=True)
class Cost:
    """The numbers of v2src/program/cost.h, from which the runtime computes an image's time.

    ``source`` names the image to which the model belongs, if it is another one.
    """

    row_tile: int
    column_tile: int
    depth_tile: int
    programs: int
    sorted_rounds: int
    hiding_rows: int
    occupancy: int
    error: float
    source: str
    coefficients: tuple[float, ...]

    @property
    def of_tile(self) -> tuple[int, ...]:
        """The values of ``Work.of_tile``."""
        sides = self.row_tile, self.column_tile, self.depth_tile
        return (*sides, self.programs, self.sorted_rounds, self.hiding_rows)

    def __str__(self) -> str:
        """As C++ spells it."""
        tile = ", ".join(map(str, (*self.of_tile, self.occupancy)))
        coefficients = ", ".join(map(literal, self.coefficients))
        return f"{{{tile}, {literal(self.error)}, {string(self.source)}, {{{coefficients}}}}}"


class Models:
    """The models of a database.

    A functional uses the models of the functional that is measured for it, or those of its plain one if that has none.
    A product uses its own models of a functional, or those of the nearest product that has any: times on two products
    are not compared.
    """

    def __init__(
        self,
        models: Iterable[Model] = (),
        configs: Mapping[str, str] | None = None,
        products: Mapping[str, Sequence[Product]] | None = None,
    ) -> None:
        """``configs`` by name of image, ``products`` by arch."""
        self._by_image: dict[tuple[str, str, str], Model] = {}
        self._models: dict[tuple[str, str], list[Model]] = {}  # by kernel and functional
        for one in models:
            if one.form != FORM or len(one.coefficients) != len(TERMS):
                continue  # of other terms
            self._by_image[one.product, one.functional, one.image] = one
            self._models.setdefault((f"{one.arch} {one.kernel}", one.functional), []).append(one)
        self._configs = configs or {}
        known = [one for of_arch in (products or {}).values() for one in of_arch]
        self._nearest = cache(lambda arch, product: nearest_first(arch, product, known))

    def shipped(self, functional: Functional) -> list[ImageSpec]:
        """The images of the functional that are worth shipping for any product; those that save most come first.

        The list is empty if no model of the functional is known. If models are of another level, it has all of their
        images, as some may not fit at this one.
        """
        lender = self._lender(functional)
        found = self._models.get((f"{functional.arch} {functional.kernel.name}", str(lender)), [])
        if self.are_of_level(functional):
            found = [one for one in found if one.saves >= WORTH_SHIPPING]
        specs = {}
        for model in sorted(found, key=lambda one: (-one.saves, one.product, one.image)):
            config = self._configs.get(model.image)
            if config and _name(lender, config) == model.image:  # else it is of another source of the kernel
                specs[config] = ImageSpec.parse(functional, config)
        return list(specs.values())

    def are_of_level(self, functional: Functional) -> bool:
        """Whether the models of the functional are of images of its level."""
        return self._lender(functional).level == functional.level

    def _lender(self, functional: Functional) -> Functional:
        """The functional whose models this one uses."""
        measured = functional.measured
        known = (f"{functional.arch} {functional.kernel.name}", str(measured)) in self._models
        return measured if known else measured.plain

    def cost(self, product: Product, spec: ImageSpec) -> Cost | None:
        """The cost of the image on the product; None if the product whose models it uses has none of the image."""
        functional, work = spec.functional, spec.functional.kernel.work
        lender = self._lender(functional)
        models = self._models.get((f"{functional.arch} {functional.kernel.name}", str(lender)))
        if not models or work is None:
            return None
        image = spec.name if lender == functional else _name(lender, spec.config)
        # First the products for which the build has tables, then others that were measured.
        having = {one.product for one in models}
        nearest = (*self._nearest(functional.arch, product.name), *sorted(having))
        name = next(one for one in nearest if one in having)
        if (model := self._by_image.get((name, str(lender), image))) is None:
            return None
        environment = Environment(tunables={**_numbers(functional), **dict(spec.tunables)})
        words = [f"product={in_a_word(name)}"] if name != product.name else []
        words += [] if lender == functional else [str(lender)]
        rows, columns, depth, programs, order, hiding = (evaluate(one, environment) for one in work.of_tile)
        source = " ".join([*words, model.source]).strip()
        # A model with a source was fitted to that, not to timings, and a model of another level to other device code,
        # so its error against timings is not known.
        error = 0.0 if model.source or lender.level != functional.level else model.error
        fitted = model.occupancy, error, source, model.coefficients
        return Cost(rows, columns, depth, programs, order, hiding, *fitted)


@cache
def _name(functional: Functional, config: str) -> str:
    """The name; empty if the kernel's description no longer has such a config."""
    try:
        return ImageSpec.parse(functional, config).name
    except ValueError:
        return ""


def _numbers(functional: Functional) -> dict[str, int]:
    return {name: value for name, value in functional.as_dict().items() if isinstance(value, int)}
