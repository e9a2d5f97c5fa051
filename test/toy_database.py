"""A made-up database for the made-up family in toy/, so that tests of codegen do not move when the real kernels do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from toy.rules import APPLY, FAST, KERNEL, WEIGH

from aotriton.codegen.backends import CellKey
from aotriton.codegen.costs import Models
from aotriton.codegen.plan import Timing
from aotriton.rules import family, image
from aotriton.rules.arch import arch_spec
from aotriton.rules.binning import bin_text
from aotriton.rules.borrow import in_a_word
from aotriton.rules.database import Model, Product, TuningDatabase, Winner
from aotriton.rules.database.rows import Borrowed
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription, parse_functional
from aotriton.rules.work import FORM, TERMS

FOLDER = Path(__file__).resolve().parent / "toy"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> KernelDescription:
    """The first kernel of the family, which is known while the test runs. Image names follow from the rules alone."""
    monkeypatch.setenv(family.VARIABLE, "")
    family.add(FOLDER)
    monkeypatch.setattr(image, "source_digest", lambda package, module: module)
    monkeypatch.setattr(image, "TRITON_VERSION", "0.0.0")
    return KERNEL


def usual(*archs: str) -> dict[str, list[Product]]:
    """The usual product of each arch, and no other."""
    rows = [arch_spec(arch) for arch in archs]
    return {row.arch: [Product(row.product, row.arch, row.multiprocessors)] for row in rows}


def key(functional: Functional, cell: str, product: str = "") -> CellKey:
    """A cell of a product, by default the usual one."""
    on = product or functional.arch_spec.product
    return functional.arch, on, functional.kernel.name, str(functional), cell


def cells(functional: Functional) -> list[str]:
    keys = functional.kernel.tuning_keys
    return [bin_text(keys, cell) for cell in functional.kernel.cells()]


def spec(functional: Functional, block_m: int, last: int = 4) -> ImageSpec:
    """``last`` is num_warps on cuda and waves_per_eu on hip."""
    compile_options = (
        {"num_warps": last} if functional.arch_spec.vendor == "cuda" else {"num_warps": 4, "waves_per_eu": last}
    )
    return ImageSpec.of(functional, {"BLOCK_M": block_m}, compile_options)


def session_on(database: TuningDatabase, product: str = "d") -> int:
    """The id of a new session on an sm_90 GPU of this product."""
    return database.evidence.begin_session(
        device=product, driver="1", triton="0", torch="0", arch="sm_90", options="", multiprocessors=132
    )


def winner(given: ImageSpec, cell: str, provenance: str = "measured", median: float = 10.0, **more: Any) -> Winner:
    functional = given.functional
    return Winner(
        arch=functional.arch,
        product=functional.arch_spec.product,
        kernel=functional.kernel.name,
        functional=str(functional),
        bin=cell,
        image=given.name,
        config=given.config,
        provenance=provenance,
        median_us=median if provenance == "measured" else 0.0,
        **more,
    )


def lent(row: Winner, lender: Winner) -> Borrowed:
    """The row as one that was borrowed from ``lender``."""
    given = {field.name: getattr(row, field.name) for field in fields(Winner)} | {"provenance": "borrowed"}
    return Borrowed(**given, lender=lender)


def timed(
    functional: Functional, cell: str, medians: Mapping[tuple[int, int], float]
) -> tuple[CellKey, dict[str, Timing]]:
    """An entry for ``timings``: what each (BLOCK_M, num_warps) took in the cell."""
    specs = [(spec(functional, *block), median) for block, median in medians.items()]
    return key(functional, cell), {s.config: Timing(s.name, median) for s, median in specs}


def database(kernel: KernelDescription) -> tuple[list[Winner], dict[CellKey, dict[str, Timing]]]:
    """Measured, merged, stale, borrowed, imported and predicted winners for sm_90 and gfx942."""
    winners: list[Winner] = []
    timings: dict[CellKey, dict[str, Timing]] = {}
    sm_90, gfx942 = list(kernel.functionals("sm_90")), list(kernel.functionals("gfx942"))
    measured = sm_90[0]
    for place, cell in enumerate(cells(measured)):
        # 64 rows and 8 warps is best in one cell and 0.5 % off the best in the others.
        best = (64, 8) if place == 0 else (128, 8)
        place_of, times = timed(measured, cell, {(64, 8): 20.1, (128, 8): 20.0 if place else 25.0, (32, 4): 30.0})
        timings[place_of] = times
        others = tuple(
            sorted(
                ((c, t.median_us) for c, t in times.items() if c != spec(measured, *best).config), key=lambda p: p[1]
            )
        )
        winners.append(winner(spec(measured, *best), cell, median=20.1 if place == 0 else 20.0, runners_up=others))
    for functional in sm_90[1:]:
        for place, cell in enumerate(cells(functional)):
            own = winner(spec(functional, 32 << place % 3), cell, "borrowed", source=f"{measured} {cell}")
            row: Winner = lent(own, winners[place])
            if place == 1 or functional["HAS_BIAS"]:
                row = winner(spec(functional, 64), cell, "imported", source='a "quoted" list\\of\nwinners?')
            winners.append(row)
    last = winner(spec(sm_90[-1], 64), winners[-1].bin)
    winners[-1] = replace(last, image="scale_rows_sm_90_0000000000000000")
    for functional in gfx942:
        winners += [
            winner(spec(functional, 64, 2), cell, "predicted", source="static model") for cell in cells(functional)
        ]
    return winners, timings


def with_fast(rows: list[Winner]) -> list[Winner]:
    """The rows with one functional of sm_90 measured: the fast backend takes 15, 25 and 16 us to the portable one's 20,
    and has nothing in the fourth cell.
    """
    served = KERNEL.functional("sm_90", T="bf16", BLOCK_DMODEL=32, ADDRESSING="descriptor")
    fast = FAST.like(served)
    assert fast
    rows = [row for row in rows if (row.arch, row.functional) != ("sm_90", str(served))]
    rows += [winner(spec(served, 64), cell, median=20.0) for cell in cells(served)]
    medians = dict(zip(cells(fast), ((32, 15.0), (64, 25.0), (128, 16.0)), strict=False))
    return rows + [winner(spec(fast, block), cell, median=median) for cell, (block, median) in medians.items()]


def with_split(rows: list[Winner]) -> list[Winner]:
    """The rows with the kernels of the split backend measured where they take 15 us together: in the fourth cell of
    what ``with_fast`` measured.
    """
    weigh = ImageSpec.of(WEIGH.functional("sm_90", T="bf16", BLOCK_DMODEL=32), {}, {"num_warps": 4})
    served = APPLY.functional("sm_90", T="bf16", BLOCK_DMODEL=32, ADDRESSING="descriptor")
    apply = ImageSpec.of(served, {"BLOCK_M": 64, "MOST_SPLITS": 4}, {"num_warps": 4})
    return [*rows, winner(weigh, "waves=8", median=5.0), winner(apply, "rows=512", median=10.0)]


OTHER = "NVIDIA H20"  # a product of sm_90 that is not its usual one


def on_another(rows: list[Winner]) -> list[Winner]:
    """The rows with those of another product on sm_90: what is measured on the usual one took twice as long, with other
    configs in the first cell, and all else is borrowed from there.
    """
    more = []
    for row in (row for row in rows if row.arch == "sm_90"):
        given: dict[str, Any] = {"product": OTHER, "provenance": "borrowed", "median_us": 0.0, "runners_up": ()}
        given["source"] = f"product={in_a_word(row.product)} in the same bin"
        if row.provenance == "measured":
            times = {"median_us": 2 * row.median_us, "low_us": 1.9 * row.median_us, "high_us": 2.1 * row.median_us}
            given = {"product": OTHER, "shape": '{"rows": 64, "width": 32}', "measured": "2026-11-21", **times}
            if row.bin == "rows=64 waves=1" and row.kernel == KERNEL.name:
                found = parse_functional(KERNEL, "sm_90", row.functional)
                first = spec(found, 32)
                given |= {"image": first.name, "config": first.config}
        one = replace(row, **given)
        more.append(lent(one, row) if one.provenance == "borrowed" else one)
    return rows + more


def model(given: ImageSpec, product: str = OTHER, **more: Any) -> Model:
    """A model of the image on a product: 1 us, half a one for each round, and so on; worth shipping."""
    functional = given.functional
    fields: dict[str, Any] = {
        "arch": functional.arch,
        "product": product,
        "operator": "scale",
        "kernel": functional.kernel.name,
        "functional": str(functional),
        "image": given.name,
        "form": FORM,
        "occupancy": 2,
        "coefficients": tuple(1 / (place + 1) for place in range(len(TERMS))),
        "error": 0.03,
        "samples": 100,
        "saves": 0.01,
    }
    return Model(**fields | more)


def models_of(products: Mapping[str, Sequence[Product]], *given: tuple[ImageSpec, Model]) -> Models:
    """The models of these images."""
    return Models([one for _, one in given], {spec.name: spec.config for spec, _ in given}, products)


def modelled(products: Mapping[str, Sequence[Product]]) -> Models:
    """Models on the other product, of the functional that ``with_fast`` measured: of two images of the first kernel and
    of one of each of the others, which need no winner then.
    """
    served = KERNEL.functional("sm_90", T="bf16", BLOCK_DMODEL=32, ADDRESSING="descriptor")
    fast, apply, weigh = (kernel.like(served) for kernel in (FAST, APPLY, WEIGH))
    assert fast
    assert apply
    assert weigh
    specs = [spec(served, 64), spec(served, 128, 8), spec(fast, 64)]
    specs.append(ImageSpec.of(apply, {"BLOCK_M": 64, "MOST_SPLITS": 4}, {"num_warps": 4}))
    specs.append(ImageSpec.of(weigh, {}, {"num_warps": 4}))
    return models_of(products, *((one, model(one, saves=0.5 - place / 10)) for place, one in enumerate(specs)))
