"""Claims about backends: who serves a cell, by whose medians, and what a backend brings into a build."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toy.rules import APPLY, FAST, KERNEL, OPERATOR, WEIGH
from toy_database import cells, database, lent, spec, usual, with_fast, with_split

from aotriton.codegen.backends import BackendCell, choose, key_of
from aotriton.codegen.plan import UNREACHED, Plan, TablePlan, plan
from aotriton.rules.binning import bin_text
from aotriton.rules.database import Winner
from aotriton.rules.flash import backward, forward
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Backend, Operator

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
DIAGONAL, SHORT = (512, 512, 8), (64, 512, 8)

ATTN_FWD = replace(forward.OPERATOR, backends=forward.OPERATOR.backends[:2])  # portable and hopper


def attn(kernel: KernelDescription, T: str = "bf16", head_dim: int = 128, addressing: str = "descriptor") -> Functional:
    values: dict[str, Any] = {"LEVEL": 0, "T": T, "BLOCK_DMODEL": head_dim, "CAUSAL": False, "ADDRESSING": addressing}
    return kernel.functional("sm_90", **{choice.name: values[choice.name] for choice in kernel.choices})


def row(
    functional: Functional,
    cell: tuple[int, ...],
    median: float = 0.0,
    product: str = H100,
    lender: Winner | None = None,
) -> Winner:
    """A measured winner where a median is given, else one borrowed from ``lender``."""
    kernel = functional.kernel
    tunables = {name: values[0] for name, values in kernel.tunable_values("cuda").items()}
    compile_options = {name: values[0] for name, values in kernel.compile_option_values("cuda").items()}
    image = ImageSpec.of(functional, tunables, compile_options)
    provenance = "measured" if median else "borrowed"
    bin = bin_text(kernel.tuning_keys, cell)
    of = image.name, image.config, provenance
    made = Winner("sm_90", product, kernel.name, str(functional), bin, *of, "", median)
    return lent(made, lender) if lender else made


def chosen(
    operator: Operator, functional: Functional, cell: tuple[int, ...], *rows: Winner
) -> tuple[int, tuple[float, ...]]:
    """Backend and medians of one cell; (0, ()) where nothing was compared in the functional."""
    made = choose(operator, "sm_90", H100, [functional], {key_of(one): one for one in rows})
    for found in made.cells.get(functional.godel_number, ()):
        if found.bin == cell:
            return found.backend, found.medians_us
    return 0, ()


def test_the_faster_backend_serves_a_cell() -> None:
    """The lower median wins, the first backend a tie; a cell where another backend has no winner is the first's."""
    one, other = attn(forward.ATTN_FWD), attn(forward.ATTN_FWD_HOPPER)
    assert chosen(ATTN_FWD, one, DIAGONAL, row(one, DIAGONAL, 10.0), row(other, DIAGONAL, 9.9)) == (1, (10.0, 9.9))
    assert chosen(ATTN_FWD, one, DIAGONAL, row(one, DIAGONAL, 10.0), row(other, DIAGONAL, 10.1)) == (0, (10.0, 10.1))
    assert chosen(ATTN_FWD, one, DIAGONAL, row(one, DIAGONAL, 10.0), row(other, DIAGONAL, 10.0))[0] == 0
    rows = row(one, DIAGONAL, 10.0), row(one, SHORT, 5.0), row(other, SHORT, 4.0)
    assert chosen(ATTN_FWD, one, DIAGONAL, *rows) == (0, (10.0, 0.0))
    assert chosen(ATTN_FWD, one, SHORT, *rows) == (1, (5.0, 4.0))
    assert chosen(ATTN_FWD, one, DIAGONAL, row(one, DIAGONAL, 10.0)) == (0, ())


def test_only_measurements_choose() -> None:
    """A predicted or imported winner is compared with nothing, on either side."""
    one, other = row(attn(forward.ATTN_FWD), DIAGONAL, 10.0), row(attn(forward.ATTN_FWD_HOPPER), DIAGONAL, 1.0)
    for provenance in ("predicted", "imported"):
        assert chosen(ATTN_FWD, attn(forward.ATTN_FWD), DIAGONAL, one, replace(other, provenance=provenance))[0] == 0
        assert chosen(ATTN_FWD, attn(forward.ATTN_FWD), DIAGONAL, replace(one, provenance=provenance), other)[0] == 0


def test_a_backend_with_shapes_of_its_own_is_not_compared() -> None:
    """Its medians are of other calls than the first backend's, so that no cell goes to it."""
    portable, hopper = ATTN_FWD.backends
    own = replace(ATTN_FWD, backends=(portable, replace(hopper, own_shapes=True)))
    one, other = attn(forward.ATTN_FWD), attn(forward.ATTN_FWD_HOPPER)
    rows = row(one, DIAGONAL, 10.0), row(other, DIAGONAL, 5.0)
    assert chosen(ATTN_FWD, one, DIAGONAL, *rows) == (1, (10.0, 5.0))
    assert chosen(own, one, DIAGONAL, *rows) == (0, ())


def test_what_a_backend_does_not_serve_is_the_first_ones() -> None:
    """General addressing has no Hopper kernel, so that nothing is compared there."""
    general, other = attn(forward.ATTN_FWD, addressing="general"), attn(forward.ATTN_FWD_HOPPER)
    assert chosen(ATTN_FWD, general, DIAGONAL, row(general, DIAGONAL, 10.0), row(other, DIAGONAL, 1.0)) == (0, ())


def test_borrowed_cells_compare_their_lender() -> None:
    """fp16 gets bf16's choice, and an unmeasured bin that of the bin that the first backend borrows from, also where
    another backend borrows from elsewhere.
    """
    kernels = forward.ATTN_FWD, forward.ATTN_FWD_HOPPER
    one, other = (attn(kernel) for kernel in kernels)
    one16, other16 = (attn(kernel, "fp16") for kernel in kernels)
    measured = row(one, DIAGONAL, 10.0), row(other, DIAGONAL, 8.0), row(one, SHORT, 3.0), row(other, SHORT, 4.0)
    rows = *measured, row(one16, DIAGONAL, lender=measured[0]), row(other16, DIAGONAL, lender=measured[1])
    assert chosen(ATTN_FWD, one16, DIAGONAL, *rows) == (1, (10.0, 8.0))
    near, far = measured[:2], measured[2:]
    empty = (2048, 64, 8)
    for (first, second), expected in (((near, near), 1), ((far, far), 0), ((near, far), 1), ((far, near), 0)):
        borrowed = row(one, empty, lender=first[0]), row(other, empty, lender=second[1])
        assert chosen(ATTN_FWD, one, empty, *measured, *borrowed)[0] == expected


def test_products_are_not_compared() -> None:
    """Times of two products say nothing of each other; where nothing was compared on the product itself, the choice is
    that of the product that lent the first backend's winners, with its times.
    """
    one, other = attn(forward.ATTN_FWD), attn(forward.ATTN_FWD_HOPPER)
    there = row(one, DIAGONAL, 10.0, product=H200), row(other, DIAGONAL, 8.0, product=H200)
    borrowed = row(one, DIAGONAL, lender=there[0]), row(other, DIAGONAL, lender=there[1])
    assert chosen(ATTN_FWD, one, DIAGONAL, *there, *borrowed) == (1, (10.0, 8.0))
    assert chosen(ATTN_FWD, one, DIAGONAL, *there, borrowed[0], row(other, DIAGONAL, 9.0)) == (1, (10.0, 8.0))
    assert chosen(ATTN_FWD, one, DIAGONAL, *there, row(one, DIAGONAL, 9.0), borrowed[1]) == (0, ())
    own = row(one, DIAGONAL, 7.0), row(other, DIAGONAL, 7.5)
    assert chosen(ATTN_FWD, one, DIAGONAL, *there, *own) == (0, (7.0, 7.5))


def test_the_kernels_of_a_backend_count_together() -> None:
    """Medians of all kernels are added, each of its own cell of the same bins; without one of them there is no time.
    What is not timed does not count.
    """
    first = backward.OPERATOR.backends[0]
    pre, dsinks, dk_dv, dq = first.kernels
    assert not dsinks.timed
    operator = replace(backward.OPERATOR, backends=(first, Backend("other", (pre, dq), first.workspace)))
    rows = row(attn(pre), (512,), 1.0), row(attn(dk_dv), DIAGONAL, 5.0), row(attn(dq), DIAGONAL, 4.0)
    assert chosen(operator, attn(dq), DIAGONAL, *rows) == (1, (10.0, 5.0))
    assert chosen(operator, attn(dq), DIAGONAL, *rows[1:]) == (0, ())
    assert chosen(operator, attn(dq), DIAGONAL, rows[0], rows[2]) == (0, ())


def test_kernels_with_winners_of_different_cells_are_compared_where_the_leads_is_of() -> None:
    """A kernel with fewer keys has winners of its own where others borrow: their sum says nothing of either cell."""
    first = backward.OPERATOR.backends[0]
    pre, _, dk_dv, dq = first.kernels
    operator = replace(backward.OPERATOR, backends=(first, Backend("other", (pre, dq), first.workspace)))
    empty = (2048, 2048, 8)
    rows = row(attn(pre), (512,), 1.0), row(attn(dk_dv), DIAGONAL, 5.0), row(attn(dq), DIAGONAL, 4.0)
    borrowed = (row(attn(kernel), empty, lender=rows[place]) for place, kernel in ((1, dk_dv), (2, dq)))
    assert chosen(operator, attn(dq), empty, *rows, row(attn(pre), (2048,), 8.0), *borrowed) == (1, (10.0, 5.0))


def test_that_cell_may_be_another_products() -> None:
    """A product that measured the first kernel alone compares backends as the product does that lent it the others."""
    first = backward.OPERATOR.backends[0]
    pre, _, dk_dv, dq = first.kernels
    operator = replace(backward.OPERATOR, backends=(first, Backend("other", (pre, dq), first.workspace)))
    empty = (2048, 2048, 8)
    there = [row(attn(kernel), cell, us, product=H200) for kernel, cell, us in (
        (pre, (512,), 1.0), (dk_dv, DIAGONAL, 5.0), (dq, DIAGONAL, 4.0), (pre, (2048,), 8.0)
    )]  # fmt: skip
    lent_there = [row(attn(one), empty, product=H200, lender=there[place]) for place, one in ((1, dk_dv), (2, dq))]
    borrowed = [row(attn(one), empty, lender=there[place]) for place, one in ((1, dk_dv), (2, dq))]
    own = row(attn(pre), (2048,), 7.0)
    assert chosen(operator, attn(dq), empty, *there, *lent_there, own, *borrowed) == (1, (10.0, 5.0))


def planned(toy: KernelDescription, rows: list[Winner], coverage: str = "default") -> tuple[Plan, TablePlan]:
    """The plan for sm_90, and the table of the fast backend's kernel."""
    made = plan([OPERATOR], usual("sm_90"), coverage, [row for row in rows if row.arch == "sm_90"], {})
    (table,) = (table for table in made.tables if table.kernel is FAST)
    return made, table


def test_a_backend_brings_the_images_that_are_reached(toy: KernelDescription) -> None:
    """Cells that it does not serve have an image of those that it does, and say so; one that it never wins has none."""
    rows = with_fast(database(toy)[0])
    made, table = planned(toy, rows)
    (functional,) = table.functionals
    fast = functional.functional
    assert [cell.backend for cell in next(iter(made.operators[0].cells.values()))] == [1, 0, 1, 0]
    assert list(made.operators[0].cells) == [KERNEL.functional("sm_90", **fast.as_dict()).godel_number]
    assert list(table.images) == sorted({spec(fast, 32).name, spec(fast, 128).name})
    assert [cell.source for cell in functional.cells] == ["", UNREACHED, "", UNREACHED]
    assert [bin_text(KERNEL.tuning_keys, cell.bin) for cell in functional.cells] == cells(fast)
    slow = [replace(row, median_us=30.0) if row.kernel == FAST.name else row for row in rows]
    assert planned(toy, slow)[1].functionals == ()


def test_a_backend_of_kernels_with_fewer_choices_and_keys(toy: KernelDescription) -> None:
    """Each kernel's median is that of its own cell: the one whose choices and keys the cell of the operator has."""
    rows = [row for row in with_split(with_fast(database(toy)[0])) if row.arch == "sm_90"]
    made = plan([OPERATOR], usual("sm_90"), "default", rows, {})
    (compared,) = made.operators[0].cells.values()
    assert [cell.backend for cell in compared] == [1, 0, 1, 2]
    assert compared[3] == BackendCell((512, 8), 2, (20.0, 0.0, 15.0))
    tables = {table.kernel.name: table for table in made.tables}
    for kernel, sources in ((WEIGH, [UNREACHED, ""]), (APPLY, [UNREACHED, ""])):
        (functional,) = tables[kernel.name].functionals
        assert [cell.source for cell in functional.cells] == sources
        assert len(tables[kernel.name].images) == 1


def test_a_backend_needs_no_winners(toy: KernelDescription) -> None:
    """Without measurements of it a build has the first backend everywhere, and no gap is reported."""
    rows = [row for row in with_fast(database(toy)[0]) if row.kernel != FAST.name]
    for coverage in ("none", "small", "default", "full"):
        made, table = planned(toy, rows, coverage)
        assert table.functionals == ()
        assert made.operators[0].cells == {}


def test_a_changed_kernel_keeps_its_place(toy: KernelDescription) -> None:
    """Until it is measured again the last measurement chooses, and the cell says that the kernel has changed."""
    old = [replace(row, image="old") if row.kernel == FAST.name else row for row in with_fast(database(toy)[0])]
    made, table = planned(toy, old)
    assert next(iter(made.operators[0].cells.values()))[0] == BackendCell((64, 1), 1, (20.0, 15.0, 0.0))
    assert table.functionals[0].cells[0].source == "old: the kernel's source has changed since"
