"""Borrowing: a cell without a winner gets the nearest one, of its own product first; the source names what differs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from toy.rules import KERNEL as TOY
from toy.rules import WEIGH
from toy_database import spec, winner

from aotriton.rules import borrow, image
from aotriton.rules.binning import bin_text
from aotriton.rules.borrow import filled, siblings
from aotriton.rules.database import Product, Winner
from aotriton.rules.expression import scalar
from aotriton.rules.flash.backward import ATTN_BWD_DSINKS
from aotriton.rules.flash.forward import ATTN_FWD as KERNEL
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Choice, Constexpr, Functional, KernelDescription

FAST, SLOW = ({"BLOCK_M": m, "BLOCK_N": 64} for m in (128, 64))
COMPILE_OPTIONS = {"num_warps": 4, "num_stages": 2}
KEYS = KERNEL.tuning_keys
CELL = (512, 512, 8)
HOME = Product("HOME 80GB", "sm_90", 132, 80)
PRODUCTS = (
    Product("Big", "sm_90", 144, 80),
    HOME,
    Product("Like it 96GB", "sm_90", 132, 96),
    Product("Like it 94GB", "sm_90", 132, 94),
    Product("Untold", "sm_90", 132),
    Product("Other arch", "gfx942", 132, 80),
)


def functional(T: str = "bf16", addressing: str = "descriptor", causal: bool = False) -> Functional:
    return KERNEL.functional("sm_90", T=T, BLOCK_DMODEL=64, CAUSAL=causal, ADDRESSING=addressing)


def config(tunables: dict[str, int]) -> str:
    return ImageSpec.of(functional(), tunables, COMPILE_OPTIONS).config


def row(
    where: Functional,
    cell: tuple[int, ...],
    tunables: dict[str, int],
    product: str = HOME.name,
    runners_up: Iterable[dict[str, int]] = (),
) -> Winner:
    own = ImageSpec.of(where, tunables, COMPILE_OPTIONS)
    others = tuple((config(one), 20.0) for one in runners_up)
    place = str(where), bin_text(KEYS, cell)
    return Winner("sm_90", product, KERNEL.name, *place, own.name, own.config, "measured", "", 10.0, others)


def fill(*rows: Winner, **given: Any) -> dict[tuple[str, str], Winner]:
    found = filled(KERNEL, "sm_90", HOME.name, rows, PRODUCTS, **given)
    made = {(one.functional, one.bin): one for one in found}
    assert len(made) == len(found)
    return made


def at(made: dict[tuple[str, str], Winner], where: Functional, cell: tuple[int, ...]) -> Winner:
    return made[str(where), bin_text(KEYS, cell)]


def test_siblings_differ_in_type_addressing_and_level_only() -> None:
    """Nothing is borrowed across head dims or masks, but across levels."""
    found = siblings(functional())
    assert functional() in found
    assert len(found) == 12
    assert {one.level for one in found} == {0, 4, 5}
    assert {(one["BLOCK_DMODEL"], one["CAUSAL"]) for one in found} == {(64, False)}


def test_every_cell_of_every_sibling_gets_a_winner() -> None:
    """One winner is enough; it stays as it is, each borrowed one names its source and the image of its own functional.
    Those that nobody has anything to lend to are left out.
    """
    own = row(functional(), CELL, FAST, runners_up=[SLOW])
    made = fill(own)
    assert len(made) == 12 * len(list(KERNEL.cells()))
    assert made.pop((own.functional, own.bin)) is own
    named = {str(one): one for one in siblings(functional())}
    for one in made.values():
        assert one.image == ImageSpec.of(named[one.functional], FAST, COMPILE_OPTIONS).name
        assert (one.provenance, one.product, one.median_us, one.runners_up) == ("borrowed", HOME.name, 0.0, ())
        assert one.source
    assert fill() == {}


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_what_is_not_timed_needs_no_winner(arch: str) -> None:
    """Each cell has the only config that there is, unless some product has a winner."""
    kernel, product = ATTN_BWD_DSINKS, Product("Any", arch, 100)
    made = filled(kernel, arch, product.name, [], [product])
    (functional,) = kernel.functionals(arch)
    assert [one.bin for one in made] == [bin_text(kernel.tuning_keys, cell) for cell in kernel.cells()]
    for one in made:
        assert one.image == ImageSpec.parse(functional, one.config).name
        assert (one.functional, one.provenance, one.product) == (str(functional), "predicted", "Any")
        assert (one.source, one.median_us, one.runners_up) == ("the only config that there is", 0.0, ())
    measured = replace(made[0], provenance="measured", source="", median_us=5.0)
    again = filled(kernel, arch, product.name, [measured], [product])
    assert again[0] == measured
    assert [one.provenance for one in again] == ["measured"] + ["borrowed"] * (len(again) - 1)


@pytest.mark.usefixtures("toy")
def test_the_only_config_of_a_timed_kernel_does_not_win_by_itself() -> None:
    """Where it has no winner it may have failed, so its cells are left out."""
    assert {
        len(of_one) for of_one in {**WEIGH.tunable_values("cuda"), **WEIGH.compile_option_values("cuda")}.values()
    } == {1}
    assert filled(WEIGH, "sm_90", HOME.name, [], PRODUCTS) == []


def test_rows_are_in_the_order_of_the_description() -> None:
    """Functionals by godel number, their cells row-major, whatever order the winners come in."""
    rows = [row(functional(causal=causal), CELL, FAST) for causal in (True, False)]
    found = filled(KERNEL, "sm_90", HOME.name, rows, PRODUCTS)
    assert found == filled(KERNEL, "sm_90", HOME.name, rows[::-1], PRODUCTS)
    places = [(str(one), bin_text(KEYS, cell)) for one in KERNEL.functionals("sm_90") for cell in KERNEL.cells()]
    kept = {(one.functional, one.bin) for one in found}
    assert [(one.functional, one.bin) for one in found] == [place for place in places if place in kept]


def test_a_bin_borrows_from_the_nearest() -> None:
    """Nearest in octaves of the keys; at the same distance the own type before the other, and the larger bin."""
    rows = [row(functional(), (64, 64, 8), SLOW), row(functional(), (8192, 8192, 8), FAST)]
    made = fill(*rows)
    assert at(made, functional(), (2048, 8192, 8)).source == "max_seqlen_q=8192 max_seqlen_k=8192 waves=8"
    assert at(made, functional(), (64, 512, 1)).source == "max_seqlen_q=64 max_seqlen_k=64 waves=8"
    assert at(made, functional("fp16"), (64, 64, 8)).source == "T=bf16 in the same bin"
    assert at(made, functional("fp16"), (64, 64, 1)).source == "T=bf16 max_seqlen_q=64 max_seqlen_k=64 waves=8"
    made = fill(*rows, row(functional("fp16"), CELL, FAST))
    assert at(made, functional("fp16"), (64, 64, 8)).source == "T=bf16 in the same bin"
    assert at(made, functional("fp16"), (512, 512, 1)).source == "max_seqlen_q=512 max_seqlen_k=512 waves=8"


def test_general_prefers_its_own_kind() -> None:
    """The general addressing borrows from its one measured bin, and from the fast addressing only where it has none."""
    general, fast = functional(addressing="general"), row(functional(), (8192, 8192, 8), FAST)
    made = fill(fast)
    assert at(made, general, (8192, 8192, 8)).source == "ADDRESSING=descriptor in the same bin"
    made = fill(fast, row(general, CELL, SLOW))
    assert at(made, general, (8192, 8192, 8)).source == "max_seqlen_q=512 max_seqlen_k=512 waves=8"
    assert at(made, functional("fp16", "general"), CELL).source == "T=bf16 in the same bin"


@pytest.mark.parametrize(
    ("unfit", "expected"), [((), FAST), ((FAST,), SLOW), ((SLOW,), FAST), ((FAST, SLOW), FAST)], ids=str
)
def test_what_would_spill_where_it_is_borrowed_makes_way(
    unfit: Iterable[dict[str, int]], expected: dict[str, int]
) -> None:
    """The lender's next best takes its place; where none is left, the best stays, for the build to tell. What the
    lender itself has stays too.
    """
    other = functional("fp16")
    own = row(functional(), CELL, FAST, runners_up=[SLOW])
    names = {ImageSpec.of(one, tunables, COMPILE_OPTIONS).name for tunables in unfit for one in (other, functional())}
    made = fill(own, unfit=names)
    assert at(made, other, CELL).image == ImageSpec.of(other, expected, COMPILE_OPTIONS).name
    assert at(made, other, CELL).source == "T=bf16 in the same bin"
    assert at(made, functional(), CELL) == own


def test_another_product_lends_where_the_own_has_nothing() -> None:
    """Then all that it has, and the source names it first; but one winner of the product itself keeps it out of the
    functionals that may borrow from that one.
    """
    theirs = [row(functional(), CELL, SLOW, "Like it 94GB"), row(functional("fp16"), (64, 64, 8), FAST, "Like it 94GB")]
    made = fill(*theirs)
    assert at(made, functional(), CELL).source == "product=Like_it_94GB in the same bin"
    assert at(made, functional("fp16"), CELL).source == "product=Like_it_94GB T=bf16 in the same bin"
    assert at(made, functional("fp16"), (64, 64, 1)).source == (
        "product=Like_it_94GB max_seqlen_q=64 max_seqlen_k=64 waves=8"
    )
    assert {one.product for one in made.values()} == {HOME.name}
    assert {one.provenance for one in made.values()} == {"borrowed"}
    causal = row(functional(causal=True), CELL, FAST, "Like it 94GB")
    made = fill(*theirs, causal, row(functional(), (8192, 8192, 8), FAST))
    assert at(made, functional(), CELL).source == "max_seqlen_q=8192 max_seqlen_k=8192 waves=8"
    assert at(made, functional(causal=True), CELL).source == "product=Like_it_94GB in the same bin"


def test_the_product_most_like_it_lends() -> None:
    """By multiprocessors, then by memory, then by name; one whose memory is not known comes after those that are."""
    lenders = ["Like it 94GB", "Like it 96GB", "Untold", "Big"]
    for place, name in enumerate(lenders):
        rows = [row(functional(), CELL, FAST, product) for product in reversed(lenders[place:])]
        assert at(fill(*rows), functional(), CELL).source == f"product={name.replace(' ', '_')} in the same bin"
    stranger = filled(KERNEL, "sm_90", "Unheard of", rows, PRODUCTS)
    assert {one.source.split()[0] for one in stranger} == {"product=Big"}


def banded(**given: Any) -> Functional:
    """The functional of the level with bands that is as ``functional``."""
    plain = functional(**given)
    return KERNEL.functional("sm_90", **(plain.as_dict() | {"LEVEL": 4}))


def test_a_level_borrows_from_plain_ones_of_its_addressing() -> None:
    """What differs in the level alone lends before what differs in more; what is measured at the level, before both."""
    rows = [row(functional(), CELL, FAST), row(functional(addressing="general"), CELL, SLOW)]
    made = fill(*rows)
    assert at(made, banded(), CELL).source == "LEVEL=0 in the same bin"
    assert at(made, banded(addressing="general"), CELL).config == config(SLOW)
    assert at(made, banded(T="fp16", addressing="general"), (64, 64, 8)).config == config(SLOW)
    own = fill(*rows, row(banded(), CELL, SLOW))
    assert at(own, banded(T="fp16"), CELL).source == "T=bf16 in the same bin"
    assert at(own, functional("fp16"), CELL).config == config(FAST)


def test_a_level_borrows_nothing_that_cannot_run_there() -> None:
    """What spills as a plain image, causal or not, is passed over for a runner-up; what a restriction rules out at the
    level, for the nearest winner that it leaves, a causal one if need be.
    """
    good = row(functional(), CELL, FAST, runners_up=[SLOW])
    for causal in (False, True):
        spilling = {ImageSpec.of(functional("fp16", causal=causal), FAST, COMPILE_OPTIONS).name}
        assert at(fill(good, unfit=spilling), banded(T="fp16"), CELL).config == config(SLOW)
    wide = {"BLOCK_M": 128, "BLOCK_N": 128}  # 128 x 64 and 128 x 128 accumulators of 128 threads: 192 of each
    assert banded().ruled_out(CELL, {**wide, **COMPILE_OPTIONS})
    assert not functional().ruled_out(CELL, {**wide, **COMPILE_OPTIONS})
    full = row(functional(), CELL, wide)
    assert at(fill(full), banded(), CELL).config == config(wide)  # there is no other
    assert at(fill(full, row(functional(), (2048, 2048, 8), SLOW)), banded(), CELL).config == config(SLOW)
    lent = at(fill(full, row(functional(causal=True), CELL, FAST)), banded(), CELL)
    assert (lent.config, lent.source) == (config(FAST), "LEVEL=0 CAUSAL=True in the same bin")
    assert at(fill(full), functional("fp16"), CELL).config == config(wide)


def test_a_further_product_lends_where_no_image_of_the_nearest_fits() -> None:
    """As where a product has been measured in part: what it has of another addressing or level may spill here."""
    descriptors = row(banded(), CELL, FAST)
    spilling = {ImageSpec.of(banded(addressing="general"), FAST, COMPILE_OPTIONS).name}
    theirs = row(banded(addressing="general"), (2048, 2048, 8), SLOW, "Like it 94GB")
    lent = at(fill(descriptors, theirs, unfit=spilling), banded(addressing="general"), CELL)
    assert lent.config == config(SLOW)
    assert lent.source == "product=Like_it_94GB max_seqlen_q=2048 max_seqlen_k=2048 waves=8"
    assert at(fill(descriptors, theirs), banded(addressing="general"), CELL).config == config(FAST)
    assert at(fill(descriptors, unfit=spilling), banded(addressing="general"), CELL).config == config(FAST)


def test_winners_of_another_time_lend_nothing() -> None:
    """A functional, a bin or a tunable that the description no longer has is passed over; a cell's own row is the
    plan's to judge.
    """
    good = row(functional(), CELL, FAST)
    odd = [
        replace(good, functional="T=fp8"),
        replace(good, bin="max_seqlen_q=7"),
        replace(good, bin=bin_text(KEYS, (64, 64, 8)), config="GONE=1"),
    ]
    made = fill(*odd, good)
    assert at(made, functional(), (64, 64, 8)) == odd[2]
    assert at(made, functional("fp16"), (64, 64, 8)).source == "T=bf16 max_seqlen_q=512 max_seqlen_k=512 waves=8"
    unknown = replace(good, runners_up=(("GONE=1", 1.0), (config(SLOW), 20.0)))
    spills = {ImageSpec.of(functional("fp16"), FAST, COMPILE_OPTIONS).name}
    assert at(fill(unknown, unfit=spills), functional("fp16"), CELL).config == config(SLOW)


def calls(run: Callable[[], object], of: str | None = None) -> int:
    """How many calls of Python functions there are, or of those of this name."""
    count = 0

    def seen(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and of in (None, frame.f_code.co_name)

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def wide(values: int) -> tuple[KernelDescription, list[Winner]]:
    """A kernel with a choice of so many values, of which one is measured, in all but one of its bins."""
    more = Choice("MORE", tuple(range(values)), scalar("times"), default=0, measured_as=0)
    kernel = replace(TOY, choices=(*TOY.choices, more), arguments=(*TOY.arguments, Constexpr("MORE")))
    cells = [bin_text(kernel.tuning_keys, cell) for cell in kernel.cells()]
    measured = [one for one in kernel.functionals("sm_90") if one["MORE"] == 0]
    return kernel, [winner(spec(one, 64), cell) for one in measured for cell in cells[1:]]


def test_work_is_linear_in_what_borrows(toy: KernelDescription) -> None:
    """Four times as many functionals take at most four times as many calls; distances are worked out once for each bin
    that is not measured, and an image's name once for each functional that borrows its config.
    """

    def work(values: int, of: str | None = None) -> int:
        kernel, rows = wide(values)
        for known in (image._name, image._arguments):
            known.cache_clear()  # what another run has asked for
        product = Product(rows[0].product, "sm_90", 132)
        return calls(lambda: filled(kernel, "sm_90", product.name, rows, [product]), of)

    work(2)  # what is worked out once for all
    assert work(80) < 4.1 * work(20)
    groups = len({one.functional for one in wide(1)[1]})
    assert work(20, borrow._closest.__name__) == groups
    assert work(20, "compiler_request") == groups * 20
