"""The images that a build would have, for those who do not build: the tuner checks and times them."""

from __future__ import annotations

from collections.abc import Sequence

from aotriton.codegen import read_database
from aotriton.codegen.plan import plan
from aotriton.rules.database import Decisions
from aotriton.rules.image import ImageSpec
from aotriton.rules.operators import Operator, kernels_of


def shipped_images(database: Decisions, operators: Sequence[Operator], arch: str) -> list[ImageSpec]:
    """The images of these operators in default coverage, for all products of the arch that the database knows.

    ValueError names what is missing where the database does not fill the coverage.
    """
    products = read_database.products_in([database], [arch])
    winners, timings, _, spills = read_database.read(database, kernels_of(operators), products)
    models = read_database.models_in(database, products)
    planned = plan(operators, products, "default", winners, timings, spills, models)
    return [spec for table in planned.tables for spec in table.images.values()]
