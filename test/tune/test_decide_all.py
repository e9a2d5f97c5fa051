"""Deciding whole functionals: what is borrowed is compiled, and what spills then is chosen anew."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from toy_database import session_on

from aotriton.codegen.store import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.binning import bin_text
from aotriton.rules.borrow import filled
from aotriton.rules.database import Measurement, TuningDatabase
from aotriton.rules.flash.forward import ATTN_FWD as KERNEL
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.problems import Problem
from aotriton.tune.winners import decide_all as module
from aotriton.tune.winners.decide_all import decide_all

FAST, SLOW = ({"BLOCK_M": m, "BLOCK_N": 64, "BF16_PRODUCTS": 0} for m in (128, 64))
COMPILE_OPTIONS = {"num_warps": 4, "num_stages": 2}
CELL = (512, 512, 8)
SHAPE = {"batch": 1, "heads": 16, "seqlen_q": 512, "seqlen_k": 512, "head_dim": 64}
LEVELS = 0, 4, 5


def functional(T: str = "bf16", addressing: str = "descriptor", level: int = 0) -> Functional:
    return KERNEL.functional("sm_90", LEVEL=level, T=T, BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING=addressing)


# Those that borrow from the one that is measured.
OTHERS = [functional(T, addressing, level) for T in ("bf16", "fp16") for addressing in ("descriptor", "general")
          for level in LEVELS][1:]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageStore:
    """An empty store, and a compiler whose images all fit."""
    monkeypatch.setattr(module, "compile_images", Compiler())
    return ImageStore(tmp_path / "store")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[TuningDatabase]:
    """Two images of bf16 measured in one bin, and no other that fits."""
    with TuningDatabase(tmp_path / "tuning.sqlite3") as opened:
        session = session_on(opened, "d")
        text = bin_text(KERNEL.tuning_keys, CELL)
        problem = opened.evidence.problem_id("sm_90", KERNEL.name, str(functional()), text, SHAPE)
        for tunables, median in ((FAST, 10.0), (SLOW, 20.0)):
            spec = ImageSpec.of(functional(), tunables, COMPILE_OPTIONS)
            image = opened.evidence.image_id(spec.name, spec.config, f"sha of {spec.name}", 128, 0, 1024)
            opened.evidence.record(Measurement(problem, image, session, "sweep", "ok", median, [median]))
        for spec in space(Problem(functional(), CELL, ())).candidates:  # all others: the cell is finished
            if dict(spec.tunables) not in (FAST, SLOW) or dict(spec.compile_options) != COMPILE_OPTIONS:
                image = opened.evidence.image_id(spec.name, spec.config)
                opened.evidence.record(Measurement(problem, image, session, "sweep", "pruned"))
        yield opened


class Compiler:
    """A stand-in that tells what it was asked for."""

    def __init__(self, spilling: Iterable[str] = (), failing: Iterable[str] = ()) -> None:
        self.spilling, self.failing, self.asked = set(spilling), set(failing), list[str]()

    def __call__(
        self, specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None
    ) -> Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]:
        for spec in specs:
            self.asked.append(spec.name)
            if spec.name in self.failing:
                yield spec, CompileFailure(spec.name, "no registers left")
            else:
                spills = 8 if spec.name in self.spilling else 0
                facts = {"sha256": f"sha of {spec.name}", "registers": 128, "spills": spills, "shared": 1024}
                yield spec, CompiledImage(spec.name, facts | {"stack": 0}, store.path / spec.name)


def images(database: TuningDatabase, of: Functional, product: str = "d") -> set[str]:
    """What serves the functional on the product."""
    unfit = {name for name, spills in database.evidence.spills().items() if spills}
    found = filled(KERNEL, "sm_90", product, database.winners(), database.products(), unfit)
    return {winner.image for winner in found if winner.functional == str(of)}


def test_each_borrowed_image_is_compiled_once(
    database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image for each functional that borrows, whatever the number of its bins; a second run compiles nothing."""
    compiler = Compiler()
    monkeypatch.setattr(module, "compile_images", compiler)
    store = ImageStore(tmp_path / "store")
    assert decide_all(database, [functional(), functional("fp16")], store, 1) == len(OTHERS) == 11
    assert sorted(compiler.asked) == sorted(ImageSpec.of(one, FAST, COMPILE_OPTIONS).name for one in OTHERS)
    assert decide_all(database, [functional()], store, 1) == 0
    assert {winner.provenance for winner in database.winners()} == {"measured"}


def test_what_spills_is_chosen_anew(database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next best of the lender's takes its place, and is compiled too; the others keep theirs."""
    other = functional("fp16")
    fast, slow = (ImageSpec.of(other, tunables, COMPILE_OPTIONS).name for tunables in (FAST, SLOW))
    compiler = Compiler(spilling=[fast])
    monkeypatch.setattr(module, "compile_images", compiler)
    # Its own next one, and those of what has the same config at the other levels, since nobody knew better.
    anew = [ImageSpec.of(functional("fp16", level=level), SLOW, COMPILE_OPTIONS).name for level in LEVELS]
    assert decide_all(database, [other], ImageStore(tmp_path / "store"), 1) == len(OTHERS) + len(anew)
    assert sorted(compiler.asked) == sorted([*(ImageSpec.of(one, FAST, COMPILE_OPTIONS).name for one in OTHERS), *anew])
    assert images(database, other) == {slow}
    assert images(database, functional()) == {ImageSpec.of(functional(), FAST, COMPILE_OPTIONS).name}
    assert database.evidence.spills()[fast] == 8


def test_a_winner_of_another_time_is_forgotten(database: TuningDatabase, store: ImageStore) -> None:
    """Its kernel has no such parameter any more; what was measured stays, and other bins keep their winners."""
    decide_all(database, [functional()], store, 1)
    (winner,) = database.winners()
    other = bin_text(KERNEL.tuning_keys, (64, 64, 1))
    database.put_winners([replace(winner, bin=other, image="gone", config="BLOCK_M=64 BLOCK_N=64 OUT_IN_Q=1")])
    before = database.evidence.outcomes()
    decide_all(database, [functional()], store, 1)
    assert database.winners() == [winner]
    assert database.evidence.outcomes() == before


def test_a_winner_of_an_older_source_yields_to_another_products_of_today(
    database: TuningDatabase, store: ImageStore
) -> None:
    """Only where there is one: in the other bin nobody has measured today's source, and the winner stays."""
    decide_all(database, [functional()], store, 1)
    (winner,) = database.winners()
    session = session_on(database, "e")
    older, bins = "attn_fwd_sm_90_0123456789abcdef", [winner.bin, bin_text(KERNEL.tuning_keys, (64, 64, 1))]
    config = ImageSpec.of(functional(), SLOW, COMPILE_OPTIONS).config
    image = database.evidence.image_id(older, config, "sha", 128, 0, 1024)
    for bin in bins:
        problem = database.evidence.problem_id("sm_90", KERNEL.name, str(functional()), bin, SHAPE)
        database.evidence.record(Measurement(problem, image, session, "sweep", "ok", 10.0, [10.0]))
    database.put_winners(replace(winner, product="e", image=older, config=config, bin=bin) for bin in bins)
    decide_all(database, [functional()], store, 1)
    assert {(one.product, one.bin): one.image for one in database.winners()} == {
        ("d", bins[0]): winner.image,
        ("e", bins[1]): older,
    }


def test_a_winner_of_an_older_source_falls_where_the_kernel_refuses_its_shape_now(
    database: TuningDatabase, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be measured again. One of today's source stays, and one that guards allow."""
    decide_all(database, [functional()], store, 1)
    (winner,) = database.winners()
    session = session_on(database, "d")
    older, config = "attn_fwd_sm_90_0123456789abcdef", ImageSpec.of(functional(), SLOW, COMPILE_OPTIONS).config
    image = database.evidence.image_id(older, config, "sha", 128, 0, 1024)
    stale = []
    for batch, cell in ((2, (64, 64, 1)), (3, (64, 64, 8))):
        bin, shape = bin_text(KERNEL.tuning_keys, cell), {"batch": batch}
        problem = database.evidence.problem_id("sm_90", KERNEL.name, str(functional()), bin, shape)
        database.evidence.record(Measurement(problem, image, session, "sweep", "ok", 10.0, [10.0]))
        stale.append(replace(winner, image=older, config=config, bin=bin, shape=json.dumps(shape)))
    database.put_winners(stale)
    monkeypatch.setattr(module, "is_measurable", lambda one, shape, multiprocessors: shape["batch"] == 3)
    decide_all(database, [functional()], store, 1)
    assert {(one.bin, one.image) for one in database.winners()} == {
        (winner.bin, winner.image),
        (stale[1].bin, older),
    }


def test_what_does_not_compile_is_tried_once(
    database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left to the build to report, and nothing is known of it afterwards."""
    fast = ImageSpec.of(functional("fp16"), FAST, COMPILE_OPTIONS).name
    compiler = Compiler(failing=[fast])
    monkeypatch.setattr(module, "compile_images", compiler)
    assert decide_all(database, [functional()], ImageStore(tmp_path / "store"), 1) == len(OTHERS) - 1
    assert compiler.asked.count(fast) == 1
    assert images(database, functional("fp16")) == {fast}
    assert fast not in database.evidence.spills()


def test_every_product_is_decided(database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each decides by its own timings alone, whatever the other one says; what either borrows is compiled."""
    session = session_on(database, "e")
    for outcome in database.evidence.outcomes(product="d"):
        problem = database.evidence.problem_id("sm_90", KERNEL.name, outcome.functional, outcome.bin, SHAPE)
        median = outcome.median_us and 30.0 - outcome.median_us  # 10 and 20 the other way round
        samples = [median] if median else []
        row = (problem, database.evidence.image_id(outcome.image, outcome.config), session, "sweep", outcome.status)
        database.evidence.record(Measurement(*row, median, samples))
    compiler = Compiler()
    monkeypatch.setattr(module, "compile_images", compiler)
    assert decide_all(database, [functional()], ImageStore(tmp_path / "store"), 1) == 2 * len(OTHERS)
    for product, tunables in (("d", FAST), ("e", SLOW)):
        for one in (functional(), functional("fp16"), functional(addressing="general")):
            assert images(database, one, product) == {ImageSpec.of(one, tunables, COMPILE_OPTIONS).name}
