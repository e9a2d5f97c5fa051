"""Models judged by cells: what the choice loses where images were measured one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_retract import CELLS, FUNCTIONAL, SPECS, begin

from aotriton.rules.binning import bin_text
from aotriton.rules.database import Measurement, Model, TuningDatabase
from aotriton.rules.flash.forward import ATTN_FWD as KERNEL
from aotriton.rules.flash.forward import OPERATOR
from aotriton.rules.work import FORM, TERMS, WORTH_SHIPPING
from aotriton.tune.costmodel.judged import JudgedCell, judged_cells

SHAPE = {"batch": 4, "heads": 16, "seqlen_q": 512, "seqlen_k": 512, "head_dim": 64}
BIN = bin_text(KERNEL.tuning_keys, CELLS[0])
MEDIANS = 10.0, 12.0, 15.0  # of the first images


@pytest.fixture
def database(tmp_path: Path) -> Iterator[TuningDatabase]:
    """One cell, measured on the product "d"."""
    with TuningDatabase(tmp_path / "tuning.sqlite3") as opened:
        session = begin(opened)
        problem = opened.evidence.problem_id("sm_90", KERNEL.name, str(FUNCTIONAL), BIN, SHAPE)
        for spec, median in zip(SPECS, MEDIANS, strict=False):
            image = opened.evidence.image_id(spec.name, spec.config, f"{median:064.0f}", 128, 0, 1024)
            opened.evidence.record(Measurement(problem, image, session, "sweep", "ok", median, [median], 0.1, 0.2))
        yield opened


def put(database: TuningDatabase, *predicted: float, saves: float = 2 * WORTH_SHIPPING, product: str = "d") -> None:
    """Models of the first images, which predict these times for every call."""
    models = []
    for spec, time in zip(SPECS, predicted, strict=False):
        coefficients = (time, *[0.0] * (len(TERMS) - 1))
        of_image = KERNEL.name, str(FUNCTIONAL), spec.name, FORM, 1, coefficients, 0.01, 100, saves
        models.append(Model("sm_90", product, "attn_fwd", *of_image))
    database.put_models(models, ("sm_90", product, "attn_fwd"))


def judged(database: TuningDatabase) -> list[JudgedCell]:
    return judged_cells(database, OPERATOR, "sm_90", "d", 132, database.models("sm_90"))


@pytest.mark.parametrize(
    ("predicted", "chosen"), [((9.0, 11.0, 14.0), 10.0), ((11.0, 9.0, 14.0), 12.0), ((20.0, 20.0, 1.0), 15.0)]
)
def test_a_cell_tells_what_the_predicted_image_takes(
    database: TuningDatabase, predicted: tuple[float, ...], chosen: float
) -> None:
    put(database, *predicted)
    (cell,) = judged(database)
    assert (cell.kernel, cell.functional, cell.bin) == (KERNEL.name, str(FUNCTIONAL), BIN)
    assert (cell.best, cell.chosen) == (10.0, chosen)
    assert cell.regret == pytest.approx(chosen / 10 - 1)


def test_the_best_is_one_that_a_model_knows(database: TuningDatabase) -> None:
    """Of images without a model a build has none that is chosen by predicted time."""
    put(database, 11.0, 9.0)
    (cell,) = judged(database)
    assert (cell.best, cell.chosen) == (10.0, 12.0)


def test_an_image_that_ships_no_more_may_be_the_best(database: TuningDatabase) -> None:
    """What is lost without it is seen, also where one image is left; it is never chosen."""
    put(database, 9.0, 11.0, 14.0)
    before = database.models("sm_90")
    (_, second, third) = sorted(before, key=lambda one: one.coefficients)
    for left, chosen in (([second, third], 12.0), ([third], 15.0)):
        (cell,) = judged_cells(database, OPERATOR, "sm_90", "d", 132, left, before)
        assert (cell.best, cell.chosen) == (10.0, chosen)
    assert judged_cells(database, OPERATOR, "sm_90", "d", 132, [], before) == []


def test_there_is_no_choice_to_judge(database: TuningDatabase) -> None:
    """Where one image ships, where none is worth shipping, and where the models are another product's."""
    put(database, 11.0)
    assert judged(database) == []
    put(database, 11.0, 9.0, saves=WORTH_SHIPPING / 2)
    assert judged(database) == []
    put(database, product="d")
    put(database, 11.0, 9.0, product="e")
    assert judged(database) == []
