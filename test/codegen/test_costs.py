"""Claims about costs: whose model an entry has on each product, and which images ship by what they save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from toy.rules import APPLY, FAST, KERNEL, OPERATOR, PORTABLE, WEIGH
from toy_database import OTHER, cells, key, model, models_of, spec, usual, winner

from aotriton.codegen import costs
from aotriton.codegen.backends import CellKey
from aotriton.codegen.costs import Cost, Models
from aotriton.codegen.lut import lut
from aotriton.codegen.plan import UNTIMED, FunctionalPlan, Plan, PlanError, Timing, plan
from aotriton.rules.database import Model, Product, Winner
from aotriton.rules.expression import constant, tunable
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.work import TERMS, WORTH_SHIPPING, Work

USUAL = usual("sm_90")["sm_90"][0]
PRODUCTS = {"sm_90": [USUAL, Product(OTHER, "sm_90", 78, 96 << 30)]}
NEAR, FAR = Product("near", "sm_90", 130, 80 << 30), Product("far", "sm_90", 60, 80 << 30)


@pytest.fixture(autouse=True)
def names_are_new(monkeypatch: pytest.MonkeyPatch, toy: KernelDescription) -> None:
    """Those that are remembered of other tests are of images named otherwise."""
    monkeypatch.setattr(costs, "_name", cache(costs._name.__wrapped__))


def served(kernel: KernelDescription = KERNEL, width: int = 32) -> Functional:
    own = KERNEL.functional("sm_90", T="bf16", BLOCK_DMODEL=width, ADDRESSING="descriptor")
    found = kernel.like(own)
    assert found
    return found


def made(*models: tuple[ImageSpec, Model], more: Sequence[Product] = ()) -> Models:
    return models_of({"sm_90": [*PRODUCTS["sm_90"], *more]}, *models)


def cost_of(models: Models, product: Product, one: ImageSpec) -> Cost:
    found = models.cost(product, one)
    assert found
    return found


def test_a_cost_is_the_model_of_its_image(toy: KernelDescription) -> None:
    """With the sides of the image's own tile, and nothing to be said of where it comes from."""
    one = ImageSpec.of(served(), {"BLOCK_M": 128, "UNROLL": 2}, {"num_warps": 8})
    coefficients = tuple(float(place) for place in range(len(TERMS)))
    given = model(one, USUAL.name, coefficients=coefficients, occupancy=3, error=0.07)
    assert cost_of(made((one, given)), USUAL, one) == Cost(128, 1, 16, 1, 0, 0, 3, 0.07, "", coefficients)
    guessed = cost_of(made((one, replace(given, source="guess"))), USUAL, one)
    assert (guessed.source, guessed.error) == ("guess", 0), "its error is not against anything that was measured"


def test_a_tile_may_follow_from_choices(toy: KernelDescription, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sides are of tunables and of the functional's choices that are numbers."""
    one = spec(served(width=64), 32)
    monkeypatch.setitem(
        vars(KERNEL), "work", Work(rows=constant(1), row_tile=tunable("BLOCK_DMODEL"), programs=tunable("BLOCK_M"))
    )
    found = cost_of(made((one, model(one, USUAL.name))), USUAL, one)
    assert (found.row_tile, found.programs) == (64, 32)


def test_a_type_that_is_not_measured_has_the_model_of_the_one_that_is() -> None:
    """fp16 is served by bf16's model, of the image with the same config, and says so."""
    half, brain = (
        ATTN_FWD.functional("sm_90", T=dtype, BLOCK_DMODEL=64, CAUSAL=True, ADDRESSING="descriptor")
        for dtype in ("fp16", "bf16")
    )
    config = ImageSpec.of(brain, {"BLOCK_M": 64, "BLOCK_N": 32}, {"num_warps": 4, "num_stages": 2}).config
    own, lent = (ImageSpec.parse(functional, config) for functional in (half, brain))
    models = made((lent, model(lent, USUAL.name, operator="attn_fwd")))
    assert own.name != lent.name
    assert cost_of(models, USUAL, own).source == str(brain)
    assert cost_of(models, USUAL, lent).source == ""
    assert cost_of(models, PRODUCTS["sm_90"][1], own).source == f"product=NVIDIA_H100_80GB_HBM3 {brain}"
    assert [one.name for one in models.shipped(half)] == [own.name]


def test_a_level_has_the_models_of_plain_images_until_it_has_its_own() -> None:
    """They are of the images with the same config, whose error at another level nobody knows. All of them may ship, as
    some may not fit at the level.
    """
    choices: dict[str, Any] = {"T": "bf16", "BLOCK_DMODEL": 64, "CAUSAL": False, "ADDRESSING": "descriptor"}
    plain, banded = (ATTN_FWD.functional("sm_90", LEVEL=level, **choices) for level in (0, 4))
    config = ImageSpec.of(plain, {"BLOCK_M": 64, "BLOCK_N": 32}, {"num_warps": 4, "num_stages": 2}).config
    lent, own = (ImageSpec.parse(functional, config) for functional in (plain, banded))
    models = made((lent, model(lent, USUAL.name, operator="attn_fwd", error=0.02)))
    assert (cost_of(models, USUAL, own).source, cost_of(models, USUAL, own).error) == (str(plain), 0)
    assert cost_of(models, USUAL, lent).error == 0.02
    assert [one.name for one in models.shipped(banded)] == [own.name]
    little = made((lent, model(lent, USUAL.name, operator="attn_fwd", saves=0.005)))
    assert [one.name for one in little.shipped(plain)] == [lent.name]
    least = made((lent, model(lent, USUAL.name, operator="attn_fwd", saves=1e-5)))
    assert [[one.name for one in least.shipped(functional)] for functional in (plain, banded)] == [[], [own.name]]
    assert [least.are_of_level(functional) for functional in (plain, banded)] == [True, False]
    both = made(*((one, model(one, USUAL.name, operator="attn_fwd")) for one in (lent, own)))
    assert cost_of(both, USUAL, own).source == ""
    assert both.are_of_level(banded)


def test_a_product_has_its_own_model_or_the_nearest_ones(toy: KernelDescription) -> None:
    """Of those with a model of the image, first the product itself, then the nearest by multiprocessors, then by
    memory; one that nobody knows comes last.
    """
    one = spec(served(), 64)
    unknown = "gone"

    def lender(*names: str) -> str:
        given = [(one, model(one, name)) for name in names]
        return cost_of(made(*given, more=(NEAR, FAR)), USUAL, one).source

    assert lender(unknown, "far", "near", USUAL.name) == ""
    assert lender(unknown, "far", "near") == "product=near"
    assert lender(unknown, "far") == "product=far"
    assert lender(unknown) == "product=gone"
    twins = [Product(name, "sm_90", 130, size << 30) for name, size in (("large", 141), ("small", 40), ("same", 64))]
    asking = Product("asking", "sm_90", 130, 80 << 30)
    models = made(*((one, model(one, product.name)) for product in twins), more=(*twins, asking))
    assert cost_of(models, asking, one).source == "product=same"


def test_times_on_two_products_are_not_compared(toy: KernelDescription) -> None:
    """A product with models of some images of a functional borrows none of the others."""
    one, two, other = spec(served(), 64), spec(served(), 32), spec(served(width=64), 32)
    models = made((one, model(one, USUAL.name)), *((image, model(image, OTHER)) for image in (two, other)))
    assert cost_of(models, USUAL, one).source == ""
    assert models.cost(USUAL, two) is None
    assert cost_of(models, USUAL, other).source == "product=NVIDIA_H20"


def test_what_has_no_model_has_no_cost(toy: KernelDescription, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image, functional or kernel without a model, one without work, and a model of other terms."""
    one = spec(served(), 64)
    models = made((one, model(one)))
    assert models.cost(USUAL, one)
    assert models.cost(USUAL, spec(served(), 32)) is None
    assert models.cost(USUAL, spec(served(width=64), 64)) is None
    assert models.cost(USUAL, spec(served(FAST), 64)) is None
    assert Models().cost(USUAL, one) is None
    for change in ({"form": "lines"}, {"coefficients": (1.0,)}):
        other = made((one, model(one, **change)))
        assert other.cost(USUAL, one) is None
        assert other.shipped(served()) == []
    monkeypatch.setitem(vars(KERNEL), "work", None)
    assert models.cost(USUAL, one) is None


def test_models_of_another_source_are_ignored(toy: KernelDescription) -> None:
    """A model of an image that the kernel's source does not give any more neither serves nor ships, nor one whose
    config the description has not.
    """
    one = spec(served(), 64)
    old = replace(model(one), image=f"{one.name}_old")
    models = Models([old], {old.image: one.config}, PRODUCTS)
    assert models.cost(USUAL, one) is None
    assert models.shipped(served()) == []
    assert Models([model(one)], {one.name: "BLOCK_Q=3"}, PRODUCTS).shipped(served()) == []
    assert Models([model(one)], {}, PRODUCTS).shipped(served()) == []


def test_what_is_worth_it_ships_in_the_order_of_what_it_saves(toy: KernelDescription) -> None:
    """Images that save enough on some product, once each, those first that save most; none of another functional."""
    one, two, three, four = (spec(served(), 64), spec(served(), 32), spec(served(), 128), spec(served(), 128, 8))
    models = made(
        (one, model(one, saves=0.1)),
        (two, model(two, saves=WORTH_SHIPPING)),
        (two, model(two, USUAL.name, saves=0.3)),
        (three, model(three, saves=0.99 * WORTH_SHIPPING)),
        (four, model(four, saves=0.2)),
    )
    assert models.shipped(served()) == [two, four, one]
    assert models.shipped(served(width=64)) == []
    assert models.shipped(served(FAST)) == []


def rows_of(kernel: KernelDescription, arch: str = "sm_90") -> tuple[list[Winner], dict[CellKey, dict[str, Timing]]]:
    """Of every functional, the winner (128, 8) in 10 us; (64, 4) takes 14 and (32, 4) 12, but 16 in the last cell."""
    rows, timings = [], {}
    for functional in kernel.functionals(arch):
        for place, cell in enumerate(cells(functional)):
            last = place == len(cells(functional)) - 1
            medians = {(128, 8): 10.0, (64, 4): 14.0, (32, 4): 16.0 if last else 12.0}
            specs = {spec(functional, *block): median for block, median in medians.items()}
            timings[key(functional, cell)] = {one.config: Timing(one.name, median) for one, median in specs.items()}
            rows.append(winner(next(iter(specs)), cell))
    return rows, timings


def planned(models: Models, coverage: str = "default", spills: dict[str, int] | None = None) -> Plan:
    rows, timings = rows_of(KERNEL)
    return plan([PORTABLE], {"sm_90": [USUAL]}, coverage, rows, timings, spills, models)


def functional_plan(made: Plan, functional: Functional) -> FunctionalPlan:
    (found,) = [one for table in made.tables for one in table.functionals if one.functional == functional]
    return found


def test_a_functional_ships_just_what_is_worth_it(toy: KernelDescription) -> None:
    """Each cell is served by the one of them that is the fastest there, however slow; winners that are not worth it do
    not ship. A functional without models ships its winners.
    """
    two, one = spec(served(), 64), spec(served(), 32)
    models = made((one, model(one, saves=0.2)), (two, model(two, saves=0.1)))
    found = functional_plan(planned(models), served())
    assert found.shipped == (one, two)
    assert set(found.images) == {one.name, two.name}
    assert [cell.spec for cell in found.cells] == [one, one, one, two]
    assert [cell.median_us for cell in found.cells] == [12, 12, 12, 14]
    assert {cell.provenance for cell in found.cells} == {"measured"}
    assert found.cells[0].runners_up == (("BLOCK_M=128 num_warps=8", 10.0),)
    other = functional_plan(planned(models), served(width=64))
    assert other.shipped == ()
    assert set(other.images) == {spec(served(width=64), 128, 8).name}


def test_a_cell_where_none_was_timed_has_the_first(toy: KernelDescription) -> None:
    """And says that it was not measured."""
    one = spec(served(), 128)
    found = functional_plan(planned(made((one, model(one)))), served())
    assert {(cell.spec, cell.provenance, cell.source, cell.median_us) for cell in found.cells} == {
        (one, "borrowed", UNTIMED, 0.0)
    }


def test_full_coverage_keeps_every_winner(toy: KernelDescription) -> None:
    """Beside what is worth shipping, which predicted times choose among all the same."""
    one = spec(served(), 32)
    found = functional_plan(planned(made((one, model(one))), "full"), served())
    best = spec(served(), 128, 8)
    assert found.shipped == (one,)
    assert [cell.spec for cell in found.cells] == [best] * 4
    assert list(found.images) == [one.name, best.name]


def test_what_spills_is_not_worth_shipping(toy: KernelDescription) -> None:
    """Nor an image that nobody compiled: it may spill."""
    one, two, three = spec(served(), 32), spec(served(), 64), spec(served(), 128)
    models = made((one, model(one, saves=0.3)), (two, model(two, saves=0.2)), (three, model(three, saves=0.1)))
    assert functional_plan(planned(models, spills={one.name: 8, two.name: 0}), served()).shipped == (two,)
    assert functional_plan(planned(models, spills={one.name: 8}), served()).shipped == ()


def test_kernels_of_other_backends_ship_though_no_cell_reaches_them(toy: KernelDescription) -> None:
    """Predicted times may choose them: where an image of one is worth it, its functional is planned, with that image in
    every cell, whether it won any or not. Kernels that are not worth it, and are not reached, are left out.
    """
    fast, weigh = spec(served(FAST), 64), ImageSpec.of(served(WEIGH), {}, {"num_warps": 4})
    rows, timings = rows_of(KERNEL)
    rows.append(winner(spec(served(FAST), 32), cells(served(FAST))[0], median=99.0))

    def tables(models: Models) -> dict[str, list[FunctionalPlan]]:
        made = plan([OPERATOR], {"sm_90": [USUAL]}, "default", rows, timings, None, models)
        return {table.kernel.name: list(table.functionals) for table in made.tables}

    assert {name for name, found in tables(Models()).items() if found} == {"scale_rows"}
    found = tables(made((fast, model(fast)), (weigh, model(weigh))))
    assert [one.functional for one in found["scale_rows_fast"]] == [served(FAST)]
    assert {(cell.bin, cell.spec) for cell in found["scale_rows_fast"][0].cells} == {
        (bin, fast) for bin in FAST.cells()
    }
    assert [one.shipped for one in found["scale_rows_weigh"]] == [(weigh,)]
    assert len(found["scale_rows_weigh"][0].cells) == 2
    assert found["scale_rows_apply"] == []


def test_a_winner_of_another_time_counts_where_it_is_needed(toy: KernelDescription) -> None:
    """In a cell that no measured time reaches it is nothing; in one of the first backend it is told."""
    fast = spec(served(FAST), 64)
    models = made((fast, model(fast)))
    rows, timings = rows_of(KERNEL)
    old = replace(winner(spec(served(FAST), 32), cells(served(FAST))[0], median=99.0), config="BLOCK_Q=3")
    tables = plan([OPERATOR], {"sm_90": [USUAL]}, "default", [*rows, old], timings, None, models).tables
    assert [one.shipped for table in tables if table.kernel is FAST for one in table.functionals] == [(fast,)]
    rows[0] = replace(rows[0], config="BLOCK_Q=3")
    with pytest.raises(PlanError, match="a winner of another time"):
        plan([OPERATOR], {"sm_90": [USUAL]}, "default", rows, timings, None, models)


def test_a_missing_winner_of_the_first_backend_is_told_all_the_same(toy: KernelDescription) -> None:
    """It serves what no predicted time chooses: an image that is worth shipping takes no winner's place."""
    one = spec(served(), 32)
    rows, timings = rows_of(KERNEL)
    rows = [row for row in rows if (row.functional, row.bin) != (str(served()), cells(served())[1])]
    with pytest.raises(PlanError, match="scale_rows"):
        plan([PORTABLE], {"sm_90": [USUAL]}, "default", rows, timings, None, made((one, model(one))))


def test_a_table_has_a_cost_for_each_entry_and_product(toy: KernelDescription) -> None:
    """In the order of its entries, which are first those that ship; none for an image without a model, and no costs at
    all where none ships by them.
    """
    one, two = spec(served(), 32), spec(served(), 64)
    models = made((one, model(one, USUAL.name, saves=0.2)), (two, model(two, OTHER, saves=0.1)))
    rows, timings = rows_of(KERNEL)
    rows += [replace(row, product=OTHER) for row in rows]
    made_plan = plan([PORTABLE], PRODUCTS, "full", rows, timings, None, models)
    table = lut(functional_plan(made_plan, served()), PRODUCTS["sm_90"], models)
    assert [entry.image for entry in table.entries] == [one.name, two.name, spec(served(), 128, 8).name]
    for product, table_of in zip(PRODUCTS["sm_90"], table.products, strict=True):
        assert table_of.costs == (models.cost(product, one), models.cost(product, two), None)
        assert set(table_of.entries) == {2}
    assert table.products[0].costs != table.products[1].costs
    other = lut(functional_plan(made_plan, served(width=64)), PRODUCTS["sm_90"], models)
    assert [one.costs for one in other.products] == [(), ()]


def test_kernels_with_their_own_choices_have_their_own_models(toy: KernelDescription) -> None:
    """The functional of each kernel of a backend is its own: the same call's kernels are found by their own names."""
    weigh = ImageSpec.of(served(WEIGH), {}, {"num_warps": 4})
    apply = ImageSpec.of(served(APPLY), {"BLOCK_M": 64, "MOST_SPLITS": 4}, {"num_warps": 4})
    models = made((weigh, model(weigh)), (apply, model(apply)))
    assert cost_of(models, USUAL, weigh).row_tile == 16
    assert cost_of(models, USUAL, apply).row_tile == 64
    assert models.shipped(served(WEIGH)) == [weigh]
