"""Claims about the plan: which image serves which cell, what its evidence says, and what an error tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy.rules import KERNEL, PORTABLE
from toy_database import FOLDER, OTHER, cells, database, key, lent, session_on, spec, timed, usual, winner

from aotriton.codegen.backends import CellKey
from aotriton.codegen.costs import Models
from aotriton.codegen.generate import main
from aotriton.codegen.plan import Cell, PlanError, TablePlan, Timing, covered, plan, without_measured
from aotriton.codegen.read_database import products_in, read
from aotriton.rules.database import Measurement, Product, TuningDatabase, Winner
from aotriton.rules.database.rows import Model
from aotriton.rules.flash.forward import ATTN_FWD as ATTN_FWD_KERNEL
from aotriton.rules.flash.forward import OPERATOR as ATTN_FWD
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.work import FORM, TERMS


def plan_of(
    rows: list[Winner], timings: dict[CellKey, dict[str, Timing]], coverage: str = "default"
) -> dict[str, Cell]:
    """The planned cells, by bin, of the first functional on sm_90; the other functionals get some winner."""
    given = {row.functional for row in rows}
    for functional in KERNEL.functionals("sm_90"):
        if str(functional) not in given:
            rows = rows + [winner(spec(functional, 64), cell) for cell in cells(functional)]
    (table,) = plan([PORTABLE], usual("sm_90"), coverage, rows, timings).tables
    return dict(zip(cells(table.functionals[0].functional), table.functionals[0].cells, strict=True))


def first(kernel: KernelDescription) -> Functional:
    return next(kernel.functionals("sm_90"))


def near_and_far(kernel: KernelDescription) -> tuple[list[Winner], dict[CellKey, dict[str, Timing]]]:
    """(64, 8) wins the first cell; elsewhere (128, 8) wins, by 0.9 % in the second cell and by 2 % in the others."""
    functional = first(kernel)
    rows, timings = [], {}
    for place, cell in enumerate(cells(functional)):
        loss = (0.0, 0.9, 2.0, 2.0)[place]
        medians = {(64, 8): 100 + loss, (128, 8): 100.0 if place else 150.0, (32, 4): 120.0}
        timed_in, timings[timed_in] = timed(functional, cell, medians)
        own = spec(functional, *((128, 8) if place else (64, 8)))
        others = [(config, timing.median_us) for config, timing in timings[timed_in].items() if config != own.config]
        rows.append(winner(own, cell, median=100.0, runners_up=tuple(sorted(others, key=lambda pair: pair[1]))))
    return rows, timings


def test_merging_needs_one_percent(toy: KernelDescription) -> None:
    """A cell gives its winner up only for an image within 1 % of its best median, and then the set is smaller."""
    rows, timings = near_and_far(toy)
    got = [cell.spec.config for cell in plan_of(rows, timings).values()]
    assert got == ["BLOCK_M=64 num_warps=8"] + ["BLOCK_M=128 num_warps=8"] * 3

    for cell in cells(first(toy))[2:]:
        times = timings[key(first(toy), cell)]
        for config in (config for config in times if "=64 " in config):
            times[config] = replace(times[config], median_us=100.9)
    got = [cell.spec.config for cell in plan_of(rows, timings).values()]
    assert got == ["BLOCK_M=64 num_warps=8"] * 4


def test_merged_evidence_is_its_own(toy: KernelDescription) -> None:
    """A merged cell stays measured, shows the median of the image that serves it, and names the faster one."""
    rows, timings = near_and_far(toy)
    for times in timings.values():
        for config in times:
            if "=64 " in config and times[config].median_us > 101:
                times[config] = replace(times[config], median_us=100.9)
    cell = list(plan_of(rows, timings).values())[1]
    assert (cell.provenance, cell.source, cell.median_us) == ("measured", "", 100.9)
    assert cell.runners_up == (("BLOCK_M=128 num_warps=8", 100.0), ("BLOCK_M=32 num_warps=4", 120.0))


def test_full_coverage_merges_nothing(toy: KernelDescription) -> None:
    """With full coverage every cell has the winner that the database names, however close another one is."""
    winners, timings = database(toy)
    rows = [row for row in winners if row.arch == "sm_90"]
    got = plan_of(rows, timings, "full")
    assert [cell.spec.config for cell in got.values()] == ["BLOCK_M=64 num_warps=8"] + ["BLOCK_M=128 num_warps=8"] * 3
    assert len({cell.spec.name for cell in plan_of(rows, timings).values()}) == 1


def test_a_predicted_winner_that_ships_keeps_its_cell(toy: KernelDescription) -> None:
    """Where models say what ships and a cell was never timed, its winner stays, and stays predicted, if it ships; else
    the image that saves most takes its place, and the cell says that nothing was measured there.
    """
    functional = next(toy.functionals("gfx942"))
    first, second = spec(functional, 64), spec(functional, 32)
    product = functional.arch_spec.product
    made = [
        Model(
            "gfx942",
            product,
            "scale",
            toy.name,
            str(functional),
            one.name,
            FORM,
            1,
            (1.0,) * len(TERMS),
            0.1,
            60,
            saves,
        )
        for one, saves in ((first, 1.0), (second, 0.2))
    ]
    models = Models(made, {one.name: one.config for one in (first, second)}, usual("gfx942"))
    rows = [
        winner(spec(one, 32 if place else 128), cell, "predicted", source="static model")
        for one in toy.functionals("gfx942")
        for place, cell in enumerate(cells(one))
    ]
    (table,) = plan([PORTABLE], usual("gfx942"), "default", rows, {}, models=models).tables
    planned = next(one for one in table.functionals if one.functional == functional)
    assert planned.shipped == (first, second)
    assert [(one.spec.config, one.provenance) for one in planned.cells] == [
        (first.config, "borrowed"), *[(second.config, "predicted")] * (len(planned.cells) - 1)
    ]  # fmt: skip
    assert {one.source for one in planned.cells[1:]} == {"static model"}


def two_products(
    rows: list[Winner], timings: dict[CellKey, dict[str, Timing]], here: list[Winner]
) -> tuple[TablePlan, list[list[str]]]:
    """The table of sm_90 where ``rows`` are the usual product's and ``here`` another one's; the configs of the first
    functional's cells on both.
    """
    products = {"sm_90": [*usual("sm_90")["sm_90"], Product(OTHER, "sm_90", 78)]}
    every = [row for functional in KERNEL.functionals("sm_90") for row in fallback(functional)]
    on_both = [replace(row, product=product.name) for row in every for product in products["sm_90"]]
    (table,) = plan([PORTABLE], products, "default", [*on_both, *rows, *here], timings).tables
    return table, [[cell.spec.config for cell in cells] for cells in table.functionals[0].products]


def fallback(functional: Functional) -> list[Winner]:
    return [winner(spec(functional, 64), cell, "imported") for cell in cells(functional)]


def test_products_share_images_and_not_choices(toy: KernelDescription) -> None:
    """Each product's cells have its own winners; where one within 1 % of the best is an image that another product
    needs anyway, that serves both. The timings of one product say nothing of the other's.
    """
    rows, timings = near_and_far(toy)
    near, far = "BLOCK_M=64 num_warps=8", "BLOCK_M=128 num_warps=8"
    functional, here = first(toy), []
    for place, cell in enumerate(cells(functional)):
        medians = {(64, 8): 200.0 if place else 300.0, (128, 8): 201.0, (32, 4): 199.0}
        best = 199.0 if place else 201.0
        timings[key(functional, cell, OTHER)] = timed(functional, cell, medians)[1]
        own = spec(functional, 32, 4) if place else spec(functional, 128, 8)
        here.append(replace(winner(own, cell, median=best), product=OTHER, low_us=190.0, high_us=210.0))
    table, configs = two_products(rows, timings, here)
    assert configs == [[near, far, far, far], [far, near, near, near]]
    assert len({cell.image for cell in table.functionals[0].cells}) == 2
    exact, merged = table.functionals[0].products[1][:2]
    assert (exact.median_us, exact.low_us, exact.high_us) == (201.0, 190.0, 210.0)
    assert (merged.low_us, merged.high_us) == (0.0, 0.0)
    assert merged.median_us in (200.0, 201.0)
    assert merged.runners_up[0] == ("BLOCK_M=32 num_warps=4", 199.0)


def test_what_is_lent_by_another_product_merges_as_there(toy: KernelDescription) -> None:
    """Its timings count where they were taken, and the cell says whose they are."""
    rows, timings = near_and_far(toy)
    source = "product=NVIDIA_H100_80GB_HBM3 in the same bin"
    functional = first(toy)
    here: list[Winner] = [
        lent(replace(winner(spec(functional, 32), cell, source=source, median=0.0), product=OTHER), row)
        for cell, row in zip(cells(functional), rows, strict=True)
    ]
    table, configs = two_products(rows, timings, here)
    assert configs[1] == configs[0]
    assert {cell.source for cell in table.functionals[0].products[1]} == {source}


def test_evidence_tells_of_the_measurement(toy: KernelDescription) -> None:
    """The shape as a reader takes it, the day, and between which times the median is."""
    rows, timings = near_and_far(toy)
    told: dict[str, Any] = {
        "shape": '{"batch": 4, "rows": 64}',
        "measured": "2026-11-21",
        "low_us": 99.0,
        "high_us": 101.0,
    }
    cell = next(iter(plan_of([replace(rows[0], **told), *rows[1:]], timings).values()))
    assert (cell.shape, cell.measured, cell.low_us, cell.high_us) == ("batch 4 rows 64", "2026-11-21", 99.0, 101.0)


def test_ties_are_broken_alike(toy: KernelDescription) -> None:
    """Of two configs that serve as many cells at the same loss, that which sorts first is taken, in any row order."""
    functional = first(toy)
    rows, timings = [], {}
    for place, cell in enumerate(cells(functional)):
        timed_in, timings[timed_in] = timed(functional, cell, {(64, 8): 50.0, (128, 8): 50.0})
        rows.append(winner(spec(functional, 64 << place % 2, 8), cell, median=50.0))
    for order in (rows, rows[::-1]):
        got = plan_of(order, dict(reversed(timings.items())))
        assert {cell.spec.config for cell in got.values()} == {"BLOCK_M=128 num_warps=8"}


def test_borrowed_cells_merge_as_their_source(toy: KernelDescription) -> None:
    """Borrowed cells take the images that their lender's timings allow, and stay borrowed, without a time."""
    winners, timings = database(toy)
    lender = first(toy)
    # The second is 25 % off in the first bin and best in the others.
    near, far = "BLOCK_M=64 num_warps=8", "BLOCK_M=128 num_warps=8"
    for bin, config in (("rows=64 waves=1", near), ("rows=512 waves=1", far)):
        borrower = list(toy.functionals("sm_90"))[1]
        cell, source = cells(borrower)[0], f"ADDRESSING=general {bin}"
        (other,) = (row for row in winners if (row.arch, row.functional, row.bin) == ("sm_90", str(lender), bin))
        borrowed = lent(winner(spec(borrower, 32), cell, source=source, median=0.0), other)
        rows = [row for row in winners if (row.functional, row.bin) != (str(borrower), cell)]
        (table,) = plan([PORTABLE], usual("sm_90"), "default", [*rows, borrowed], timings).tables
        got = table.functionals[1].cells[0]
        assert got.spec.config == config
        assert (got.provenance, got.median_us, got.source) == ("borrowed", 0.0, source)


def test_only_what_is_known_to_fit_takes_a_borrowed_place(toy: KernelDescription) -> None:
    """An image that its lender's timings allow, but that spills here, or that nobody has compiled, serves no cell."""
    winners, timings = database(toy)
    borrower = list(toy.functionals("sm_90"))[1]
    own, near = spec(borrower, 32), spec(borrower, 64, 8)
    rows = [row for row in winners if row.arch == "sm_90" and row.functional != str(borrower)]
    for cell in cells(borrower):
        rows.append(lent(winner(own, cell, median=0.0), rows[0]))
    for known, expected in (({near.name: 0}, 64), ({near.name: 8}, 32), ({}, 32), (None, 64)):
        spills = None if known is None else {own.name: 0, **known}
        (table,) = plan([PORTABLE], usual("sm_90"), "default", rows, timings, spills).tables
        assert {dict(cell.spec.tunables)["BLOCK_M"] for cell in table.functionals[1].cells} == {expected}


def test_stale_measurements_are_borrowed(toy: KernelDescription) -> None:
    """A winner measured with an image of an older kernel source is not `measured` any more: it names the old image."""
    rows, timings = near_and_far(toy)
    old = "scale_rows_sm_90_00000000000000ff"
    rows[1] = replace(rows[1], image=old)
    cell = list(plan_of(rows, timings).values())[1]
    assert (cell.provenance, cell.source) == ("borrowed", f"{old}: the kernel's source has changed since")
    assert cell.spec.config == "BLOCK_M=128 num_warps=8"


def test_stale_timings_justify_no_merge(toy: KernelDescription) -> None:
    """A timing of an older kernel source does not stand beside an up-to-date winner, though it is within 1 %."""
    rows, timings = near_and_far(toy)
    for times in timings.values():
        times["BLOCK_M=64 num_warps=8"] = Timing("scale_rows_sm_90_00000000000000ff", 100.1)
    got = [cell.spec.config for cell in plan_of(rows, timings).values()]
    assert got == ["BLOCK_M=64 num_warps=8"] + ["BLOCK_M=128 num_warps=8"] * 3


def test_another_binary_is_not_measured(toy: KernelDescription) -> None:
    """Cells of an image that ships as another binary than was measured say so; all others, and the images, stay."""
    rows, timings = near_and_far(toy)
    for functional in list(KERNEL.functionals("sm_90"))[1:]:
        rows += [winner(spec(functional, 64), cell, "imported", source="a list") for cell in cells(functional)]
    made = plan([PORTABLE], usual("sm_90"), "full", rows, timings)
    other = spec(first(toy), 128, 8).name
    told = without_measured(made, {other})
    for before, after in zip(made.tables[0].functionals, told.tables[0].functionals, strict=True):
        for one, cell in zip(before.cells, after.cells, strict=True):
            if one.image == other:
                assert (one.provenance, cell.provenance) == ("measured", "borrowed")
                assert cell.source == "another binary of this image was measured"
                one = replace(one, provenance="borrowed", source=cell.source)
            assert cell == one
    assert told.tables[0].images == made.tables[0].images
    assert without_measured(made, set()) is made


def test_every_gap_is_in_one_message(toy: KernelDescription) -> None:
    """All gaps and all unusable winners are in one error, each with kernel, arch, functional and bin."""
    winners, timings = database(toy)
    kept = [row for row in winners if row.arch == "sm_90"]
    kept[-4] = replace(kept[-4], config="BLOCK_Z=1 num_warps=4")
    with pytest.raises(PlanError) as caught:
        plan([PORTABLE], usual("sm_90", "gfx942"), "default", kept[1:], timings)
    lines = str(caught.value).splitlines()
    assert "expected ['BLOCK_M', 'UNROLL'], got []" in lines[0]
    assert "rows=64 waves=1" in lines[0]
    assert "scale_rows gfx942 F0 (T=bf16 BLOCK_DMODEL=32 ADDRESSING=general): no winner in any bin" in lines
    assert "scale_rows sm_90 F0 (T=bf16 BLOCK_DMODEL=32 ADDRESSING=general): no winner for rows=64 waves=1" in lines


def test_commands_for_attention() -> None:
    """What is missing of attention is listed as tune.py commands that name it, on gfx942 with --predict."""
    with pytest.raises(PlanError) as caught:
        plan([ATTN_FWD], usual("sm_90", "gfx942"), "small", [], {})
    commands = [line.strip() for line in str(caught.value).splitlines() if line.startswith("  ")]
    start = "python3 tune/tune.py --family flash --arch {} --kernel attn_fwd "
    assert commands == [
        start.format("gfx942") + "--predict --level 0 4 5 --dtype bf16 --head-dim 64 --addressing general offset32",
        start.format("sm_90") + "--level 0 4 5 --dtype bf16 --head-dim 64 --addressing general descriptor",
    ]
    kernel = ATTN_FWD_KERNEL
    functionals = covered(kernel, "sm_90", "small")
    rows = [
        Winner(
            "sm_90",
            f.arch_spec.product,
            kernel.name,
            str(f),
            cell,
            "gone",
            "BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=2",
            "predicted",
        )
        for f in functionals
        for cell in cells(f)
        if not (f["CAUSAL"] and f["ADDRESSING"] == "general" and "q=64 " in cell and "k=64 " in cell)
    ]
    with pytest.raises(PlanError) as caught:
        plan([ATTN_FWD], usual("sm_90"), "small", rows, {})
    assert str(caught.value).splitlines() == [
        "attn_fwd sm_90 F39 (T=bf16 BLOCK_DMODEL=64 CAUSAL=True ADDRESSING=general):"
        " no winner for max_seqlen_q=64 max_seqlen_k=64 waves=1, nor for 1 other bins",
        "to fill what is missing, run:",
        "  python3 tune/tune.py --family flash --arch sm_90 --kernel attn_fwd --level 0 --dtype bf16 --head-dim 64"
        " --causal --addressing general --seqlen-q 64 --seqlen-k 64 --waves 1 8",
    ]


def test_commands_for_a_family_outside(toy: KernelDescription) -> None:
    """They name its folder; a choice that is a truth value is named where only one of the two is missing."""
    winners = [row for row in database(toy)[0] if row.arch == "sm_90"]
    for rows, options in (
        ([], "--dtype bf16 --width 32 64 --addressing general descriptor"),
        ([row for row in winners if "HAS_BIAS" in row.functional], "--no-bias --addressing general descriptor"),
        ([row for row in winners if "HAS_BIAS" not in row.functional], "--bias --addressing general descriptor"),
    ):
        with pytest.raises(PlanError) as caught:
            plan([PORTABLE], usual("sm_90"), "default", rows, {})
        command = str(caught.value).splitlines()[-1]
        assert command.startswith(
            f"  python3 tune/tune.py --family {FOLDER} --arch sm_90 --kernel scale_rows --dtype bf16"
        )
        assert command.endswith(options)


def test_coverages(toy: KernelDescription) -> None:
    """none plans empty tables, small pins what it says, default and full take all; another word is an error."""
    tables = plan([PORTABLE], usual("sm_90", "gfx942"), "none", [], {}).tables
    assert tables == (TablePlan(toy, "gfx942", ()), TablePlan(toy, "sm_90", ()))
    assert [f["BLOCK_DMODEL"] for f in covered(toy, "sm_90", "small")] == [64] * 4
    assert covered(toy, "sm_90", "default") == covered(toy, "sm_90", "full") == list(toy.functionals("sm_90"))
    with pytest.raises(ValueError, match="unknown coverage 'big': choose from none, small, default, full"):
        covered(toy, "sm_90", "big")


def test_reading_the_database(toy: KernelDescription, tmp_path: Path) -> None:
    """From the file come the winners and, by cell, the last ok median of each config with the image that was timed."""
    path = tmp_path / "tuning.sqlite3"
    functional = first(toy)
    cell, image = cells(functional)[0], spec(functional, 64, 8)
    own = winner(image, cell, median=7.0, runners_up=(("BLOCK_M=32 num_warps=4", 8.0),))
    rows = [replace(own, product="d")]
    with TuningDatabase(path) as opened:
        session = session_on(opened)
        problem = opened.evidence.problem_id("sm_90", toy.name, str(functional), cell, {"rows": 64})
        for phase, median in (("sweep", 7.5), ("race", 7.0)):
            known = opened.evidence.image_id(image.name, image.config)
            opened.evidence.record(Measurement(problem, known, session, phase, "ok", median, [median]))
        slow = spec(functional, 128, 8)
        opened.evidence.record(
            Measurement(problem, opened.evidence.image_id(slow.name, slow.config), session, "sweep", "crashed")
        )
        opened.put_winners(rows)
    with TuningDatabase(path, readonly=True) as opened:
        products = products_in([opened], ["gfx942", "sm_90"])
        winners, timings, *_ = read(opened, [toy], products)
    assert products == {"gfx942": usual("gfx942")["gfx942"], "sm_90": [Product("d", "sm_90", 132)]}
    assert [row for row in winners if row.provenance == "measured"] == rows
    others = {row.bin for row in winners if row.functional == str(functional)} - {cell}
    assert others == set(cells(functional)[1:])
    (measured,) = timings[key(functional, cell, "d")].values()
    assert list(timings) == [key(functional, cell, "d")]
    assert (measured.image, measured.median_us, len(measured.measured)) == (image.name, 7.0, len("2026-11-21"))


def test_generator_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing database, or one that does not fill the coverage, ends the program with 1, a message, and no file."""
    path = tmp_path / "tuning.sqlite3"
    arguments = ["--database", str(path), "--arch", "sm_90", "--coverage", "small", "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    assert f"error: {path}: there is no such file" in capsys.readouterr().err
    TuningDatabase(path).close()
    assert main(arguments) == 1
    start = "  python3 tune/tune.py --family flash --arch sm_90 --kernel attn_bwd_dq --level 0 4 5 --dtype bf16"
    assert start in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
