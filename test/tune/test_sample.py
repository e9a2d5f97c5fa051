"""Random shapes on a stand-in GPU: what is timed, in which sequences, and how a run goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from standin_compiler import standin_images
from standin_launcher import time_of_call
from test_session import LAUNCHER
from test_tune import TUNING, WIDE, Project
from toy.rules import OPERATOR
from toy_database import spec

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.binning import bin_text
from aotriton.rules.database import Decisions, Measurement, Outcome, TuningDatabase
from aotriton.rules.database.rows import Sample
from aotriton.rules.flash.backward import OPERATOR as ATTN_BWD
from aotriton.rules.flash.features import GENERAL
from aotriton.rules.flash.forward import ATTN_FWD as KERNEL
from aotriton.rules.flash.forward import OPERATOR as ATTN_FWD
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.work import WORTH_SHIPPING
from aotriton.tune.cli.main import main
from aotriton.tune.cli.models import fit_and_compile
from aotriton.tune.coordinator.gpu_threads import FAILURES
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.sample import CHUNK, Sampling, sample
from aotriton.tune.costmodel.least_squares import FEWEST
from aotriton.tune.costmodel.shipped import compile_shipped, fit_models
from aotriton.tune.costmodel.shortlist import MOST_TIMED, WITHIN, WORTH_TIMING, sampled, sequences, shortlist
from aotriton.tune.measure.requests import Request
from aotriton.tune.problem.candidates import configs as configs_of
from aotriton.tune.problem.compiler_facts import Compile
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import scalars_of
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.gpu_process import GpuProcess

FUNCTIONAL = KERNEL.functional("sm_90", T="bf16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="descriptor")
SHAPE = {"batch": 1, "heads": 16, "seqlen_q": 64, "seqlen_k": 64, "head_dim": 64}  # that is measured
CONFIGS = tuple(f"BLOCK_M={rows} BLOCK_N=64 num_warps=4 num_stages=2" for rows in (64, 128, 32))


def image(config: str, functional: Functional = FUNCTIONAL) -> ImageSpec:
    return ImageSpec.parse(functional, config)


def outcomes(
    medians: Iterable[dict[str, float]], product: str = "stand-in", functional: Functional = FUNCTIONAL
) -> list[Outcome]:
    """What each config took, cell by cell."""
    found: list[Outcome] = []
    for cell, of_cell in zip(functional.kernel.cells(), medians, strict=False):
        bin = bin_text(functional.kernel.tuning_keys, cell)
        for config, median in of_cell.items():
            name = image(config, functional).name
            found.append(
                Outcome(
                    len(found) + 1, functional.arch, product, functional.kernel.name, str(functional), bin, "{}", name,
                    config, 1, "sweep", "ok", median,
                )
            )  # fmt: skip
    return found


def configs(found: Iterable[ImageSpec]) -> list[str]:
    return [one.config for one in found]


def test_the_best_of_cells_are_listed_before_those_that_are_near() -> None:
    """Of most cells first; then what is within WITHIN of a cell's best, and nothing beyond."""
    one, two, three = CONFIGS
    far = "BLOCK_M=64 BLOCK_N=32 num_warps=4 num_stages=2"
    cells = [
        {one: 10, two: 10.1, three: 10.1},
        {two: 10, three: 10.1, far: 10 * WITHIN + 0.01},
        {two: 10, three: 10 * WITHIN},
    ]
    assert configs(shortlist(FUNCTIONAL, outcomes(cells), {}, set())) == [two, one, three]
    assert shortlist(FUNCTIONAL, [], {}, set()) == []


def test_products_count_alike_and_apart() -> None:
    """A cell's best is that of a product: times of two are not compared."""
    one, two, _ = CONFIGS
    found = outcomes([{one: 10, two: 20}]) + outcomes([{one: 2, two: 1}, {two: 1}], "another")
    assert configs(shortlist(FUNCTIONAL, found, {}, set())) == [two, one]


def test_only_images_of_today_and_of_the_functional_are_listed() -> None:
    """Not what was timed of another source, with a config that is gone, or in another functional."""
    one, two, three = CONFIGS
    other = KERNEL.functional("sm_90", T="bf16", BLOCK_DMODEL=64, CAUSAL=True, ADDRESSING="descriptor")
    old, gone, kept = outcomes([{one: 1, two: 2, three: 3}])
    found = [replace(old, image="attn_fwd_sm_90_old"), replace(gone, config="BLOCK_Q=1"), kept]
    assert configs(shortlist(FUNCTIONAL, found + outcomes([{two: 1}], functional=other), {}, set())) == [three]


def test_what_saves_nothing_is_left_out() -> None:
    """Where it is known of some, those that save enough are listed, those first that save most; else all are."""
    one, two, three = CONFIGS
    found = outcomes([{one: 10, two: 10, three: 10}])
    saves = {image(one).name: WORTH_TIMING, image(two).name: 0.5, image(three).name: 0.9 * WORTH_TIMING}
    assert configs(shortlist(FUNCTIONAL, found, saves, saves)) == [two, one]
    assert len(shortlist(FUNCTIONAL, found, {"another_image": 0.5}, set())) == 3


def test_the_best_of_a_cell_is_listed_though_it_saves_nothing() -> None:
    """Unless nothing of its functional saves anything."""
    one, two, three = CONFIGS
    found = outcomes([{one: 10, two: 11}, {two: 9, three: 9.1}])
    saves = {image(one).name: 0.5, image(two).name: 0.0, image(three).name: 0.0}
    assert configs(shortlist(FUNCTIONAL, found, saves, saves)) == [one, two]
    assert shortlist(FUNCTIONAL, found, dict.fromkeys(saves, 0.0), saves) == []


def test_what_is_new_is_listed_beside_what_is_known() -> None:
    """What no model knows and won a cell since, after the others; then what is near it and was never timed on random
    shapes. But where nothing of the functional saves anything, what is merely near is not timed.
    """
    one, two, three = CONFIGS
    found = outcomes([{one: 10, two: 11}, {two: 9, three: 9.1}])
    saves = {image(one).name: 0.5}
    assert configs(shortlist(FUNCTIONAL, found, saves, [image(one).name])) == [one, two, three]
    assert configs(shortlist(FUNCTIONAL, found, saves, [image(config).name for config in CONFIGS])) == [one, two]
    assert configs(shortlist(FUNCTIONAL, found, {image(one).name: 0.0}, [image(one).name])) == [two]


def test_no_more_than_so_many_are_listed() -> None:
    """MOST_TIMED of a kernel in a functional."""
    many = [
        f"BLOCK_M={m} BLOCK_N={n} num_warps={w} num_stages=2"
        for m in (32, 64, 128)
        for n in (32, 64, 128)
        for w in (4, 8)
    ]
    assert len(many) > MOST_TIMED
    assert configs(shortlist(FUNCTIONAL, outcomes([dict.fromkeys(many, 10.0)]), {}, set())) == sorted(many)[:MOST_TIMED]


def test_sequences_are_a_star(toy: KernelDescription) -> None:
    """Each image is in one at least; one kernel varies while the others have their first; none is there twice."""
    served = toy.functional("sm_90", T="bf16", BLOCK_DMODEL=32, ADDRESSING="descriptor")
    lists = {}
    for kernel, count in zip(OPERATOR.kernels, (3, 2, 2, 3), strict=True):
        own = kernel.like(served)
        assert own
        tunables, compile_options = (
            kernel.tunable_values("cuda"),
            {name: values[0] for name, values in kernel.compile_option_values("cuda").items()},
        )
        every = [{name: values[n % len(values)] for name, values in tunables.items()} for n in range(count)]
        lists[kernel.name, str(own)] = list(dict.fromkeys(ImageSpec.of(own, one, compile_options) for one in every))
    found = sequences(OPERATOR, served, {"width": 32}, lists, 132)
    assert len(found) == len(set(found))
    for backend in OPERATOR.backends:
        candidates = [lists[kernel.name, str(kernel.like(served))] for kernel in backend.kernels]
        star = [images for name, images in found if name == backend.name]
        assert star[0] == tuple(specs[0] for specs in candidates)
        assert len(star) == 1 + sum(len(specs) - 1 for specs in candidates)
        assert {one for images in star for one in images} == {one for specs in candidates for one in specs}
        assert all(sum(a != b for a, b in zip(images, star[0], strict=True)) == 1 for images in star[1:])


def test_a_backend_without_candidates_has_no_sequence(toy: KernelDescription) -> None:
    """One of its kernels has none, or does not serve the functional."""
    served = toy.functional("sm_90", T="bf16", BLOCK_DMODEL=64, ADDRESSING="descriptor")
    lists = {("scale_rows", str(served)): [spec(served, 64)], ("scale_rows_weigh", "T=bf16 BLOCK_DMODEL=64"): []}
    assert sequences(OPERATOR, served, {"width": 64}, lists, 132) == [("portable", (spec(served, 64),))]
    assert sequences(OPERATOR, served, {"width": 64}, {}, 132) == []


def test_what_is_timed_is_what_is_measured() -> None:
    """Functionals of the lead in the type that stands for others and as tensors usually lie, or the wished of them."""
    found = sampled(ATTN_BWD, "sm_90")
    assert {one.kernel for one in found} == {ATTN_BWD.lead}
    assert {(one["T"], one.addressing) for one in found} == {("bf16", "descriptor")}
    assert {(one["BLOCK_DMODEL"], one["CAUSAL"]) for one in found} == {
        *((d, c) for d in (32, 64, 128, 256) for c in (False, True)),
        (512, False),  # all calls this wide have bands
    }
    assert sampled(ATTN_BWD, "sm_90", [str(found[3])]) == [found[3]]
    assert {one.addressing for one in sampled(ATTN_BWD, "gfx942")} == {"offset32"}


def test_many_calls_are_of_one_wave() -> None:
    """As a batch of 1 with few heads is, also of long sequences, where the longest program counts and no round does."""
    lead = ATTN_BWD.lead.functional("sm_90", T="bf16", BLOCK_DMODEL=128, CAUSAL=True, ADDRESSING="descriptor")
    random = Random(0)
    drawn = [dict(tuning("flash").draw(lead, random)) for _ in range(400)]
    long = [one for one in drawn if one["seqlen_q"] >= 2048]
    alone = [one for one in long if one["batch"] * one["heads_q"] * one["seqlen_q"] <= 16384]
    assert len(long) / 3 < len(alone) < len(long)


def test_half_of_the_calls_with_a_band_have_a_window() -> None:
    """Of keys before the row's own, which is as far from the last key as the row is from the last row."""
    lead = ATTN_FWD.lead.functional(
        "sm_90", LEVEL=GENERAL, T="bf16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="descriptor"
    )
    random = Random(0)
    drawn = [dict(tuning("flash").draw(lead, random)) for _ in range(400)]
    windowed = [one for one in drawn if "window" in one]
    wide = [one for one in drawn if one["seqlen_q"] <= one["seqlen_k"]]
    assert all(one in wide for one in windowed)
    assert 0.4 < len(windowed) / len(wide) < 0.6
    for one in drawn:
        asked = scalars_of(lead, one)
        assert asked["hi"] == max(one["seqlen_k"] - one["seqlen_q"], 0)
        assert asked["lo"] == (asked["hi"] - one["window"] if "window" in one else -one["seqlen_q"])
        assert not {*one} - {"window"} - {name for operand in ATTN_FWD.operands for name in operand.dims}
    plain = ATTN_FWD.lead.functional("sm_90", T="bf16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="descriptor")
    assert not any("window" in dict(tuning("flash").draw(plain, random)) for _ in range(100))


@dataclass
class Bench:
    """A database where some images of one functional are measured, and a stand-in GPU that is told what to do."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    compiled: Compile = standin_images

    @property
    def database(self) -> Path:
        return self.folder / "tuning.sqlite3"

    @property
    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def measure(self, *found: str, spills: int = 0, functional: Functional = FUNCTIONAL) -> None:
        kernel = functional.kernel
        cell = next(kernel.cells())
        with TuningDatabase(self.database) as database:
            session = database.evidence.begin_session(
                device="stand-in", driver="none", triton="0", torch="0", arch="sm_90", multiprocessors=132, options=""
            )
            problem = database.evidence.problem_id(
                "sm_90", kernel.name, str(functional), bin_text(kernel.tuning_keys, cell), SHAPE
            )
            for config in found:
                one = database.evidence.image_id(image(config, functional).name, config, "0" * 64, 128, spills, 1024)
                database.evidence.record(Measurement(problem, one, session, "sweep", "ok", 10.0, [10.0]))

    def sample(self, count: int, seed: int = 0, gpus: int = 1, **more: Any) -> int:
        orders = {"log": str(self.folder / "log"), **more.pop("orders", {})}
        self.monkeypatch.setenv("AOTRITON_STANDIN", json.dumps(orders))
        workers = [GpuProcess(LAUNCHER, str(gpu), 20.0) for gpu in range(gpus)]
        try:
            given = Sampling(
                self.database,
                ImageStore(self.folder / "store"),
                self.compiled,
                None,
                count,
                seed,
                **more,
            )
            return sample(given, [ATTN_FWD], workers[0].device(), workers, Progress())
        finally:
            for worker in workers:
                worker.close()

    @property
    def samples(self) -> list[Sample]:
        with TuningDatabase(self.database, readonly=True) as database:
            return database.evidence.samples("sm_90", "attn_fwd")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def shapes(found: Iterable[Sample]) -> list[dict[str, object]]:
    return [one.shape for one in found]


def test_shapes_are_timed_and_recorded(bench: Bench) -> None:
    """On each, every image that is near the best of a cell: what the launcher says, of the operator, functional,
    product and shape that were drawn, in one session that tells its seed.
    """
    bench.measure(*CONFIGS)
    assert bench.sample(13, seed=5, options="some") == 13
    assert len(bench.samples) == 13
    for one in bench.samples:
        assert (one.product, one.operator, one.functional) == ("stand-in", "attn_fwd", str(FUNCTIONAL))
        assert {timing.images for timing in one.timings} == {(image(config).name,) for config in CONFIGS}
        sizes = {name: int(str(size)) for name, size in one.shape.items()}
        assert set(sizes) == {"batch", "heads_q", "heads_k", "seqlen_q", "seqlen_k", "head_dim"}
        for timing in one.timings:
            (config,) = [config for config in CONFIGS if image(config).name == timing.images[0]]

            asked = Request(timing.images[0], "attn_fwd", config, Path("none"), {}, {})
            assert timing.median_us == pytest.approx(time_of_call([asked], sizes), rel=1e-4)
    with TuningDatabase(bench.database, readonly=True) as database:
        rows = database._file.execute(
            "SELECT strategy, seed, options FROM evidence.session WHERE strategy <> 'exhaustive'"
        )
        assert rows.fetchall() == [("random", 5, "some")]
        assert {tuple(row) for row in database._file.execute("SELECT sm_clock, temperature FROM sample")} == {
            (1980, 41)
        }


def test_ctrl_c_ends_it_after_the_shapes_that_were_begun(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one empties the queue: each GPU ends its chunk, and what is timed stays."""
    bench.measure(*CONFIGS[:1])

    def note(self: Progress, text: str) -> None:
        if "shapes timed" in text:
            monkeypatch.undo()
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Progress, "note", note)
    timed = bench.sample(40 * CHUNK)
    assert CHUNK <= timed <= 40 * CHUNK / 2
    assert len(bench.samples) == timed


def test_draws_follow_from_the_seed(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed draws the same shapes elsewhere, more of them begin with those; another seed draws others."""
    other = Bench(tmp_path / "other", monkeypatch)
    other.folder.mkdir()
    for one in (bench, other):
        one.measure(*CONFIGS[:1])
    bench.sample(6)
    other.sample(9)
    first = shapes(bench.samples)
    assert shapes(other.samples)[:6] == first
    other.sample(6, seed=1)
    assert not [shape for shape in shapes(other.samples)[9:] if shape in first]


def test_a_run_times_only_what_is_new(bench: Bench) -> None:
    """Again nothing; of more shapes those beyond; all of them where there is an image that they were not timed with."""
    bench.measure(*CONFIGS[:2])
    assert bench.sample(5) == 5
    assert bench.sample(5) == 0
    assert bench.sample(8) == 3
    assert len({str(shape) for shape in shapes(bench.samples)}) == 8
    bench.measure(CONFIGS[2])
    assert bench.sample(8) == 8
    assert [len(one.timings) for one in bench.samples] == [2] * 8 + [3] * 8
    assert bench.sample(8) == 0


def hopper_image() -> tuple[Functional, str]:
    """A functional and a config of the forward's second backend, for the calls of FUNCTIONAL."""
    kernel = next(kernel for kernel in ATTN_FWD.kernels if kernel.name == "attn_fwd_hopper")
    own = kernel.functional("sm_90", **FUNCTIONAL.as_dict())
    may_win = (one for one in configs_of(own) if not own.wins_nowhere(dict(one.tunables + one.compile_options)))
    return own, next(may_win).config


def test_a_new_image_of_any_backend_is_timed_on_shapes_that_were_timed_without_it(bench: Bench) -> None:
    own, config = hopper_image()
    bench.measure(*CONFIGS[:2])
    assert bench.sample(5) == 5
    bench.measure(config, functional=own)
    assert bench.sample(5) == 5
    backends = [{timing.backend for timing in one.timings} for one in bench.samples]
    assert backends == [{"portable"}] * 5 + [{"portable", "hopper"}] * 5
    assert bench.sample(5) == 0


def test_shapes_are_timed_though_the_first_backend_saves_nothing(bench: Bench) -> None:
    """Its images are not listed then; the others' say whether a shape is new."""
    own, config = hopper_image()
    bench.measure(*CONFIGS[:2])
    bench.measure(config, functional=own)
    bench.sample(FEWEST)
    with TuningDatabase(bench.database) as database:
        fit_models(database, [ATTN_FWD], "sm_90")
        models = database.models("sm_90")
        useless = [replace(one, saves=0.0) if one.kernel == "attn_fwd" else one for one in models]
        assert {one.kernel for one in useless} == {"attn_fwd", "attn_fwd_hopper"}
        database.put_models(useless, ("sm_90", "stand-in", "attn_fwd"))
    before = len(bench.samples)
    assert bench.sample(3, seed=1) == 3
    backends = {timing.backend for one in bench.samples[before:] for timing in one.timings}
    assert backends == {"hopper"}
    assert bench.sample(3, seed=1) == 0


def test_only_the_images_that_are_asked_for_are_timed(bench: Bench) -> None:
    """As those of a build; what else did well in cells is left out."""
    bench.measure(*CONFIGS)
    asked = {image(config).name for config in CONFIGS[:2]}
    assert bench.sample(3, images=asked) == 3
    assert {name for one in bench.samples for timing in one.timings for name in timing.images} == asked


def test_only_the_backends_that_are_asked_for_are_timed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """A backend that another one is compared with on the same shapes cannot be timed alone."""
    bench.measure(*CONFIGS[:1])
    with pytest.raises(TuningError, match="no candidate is measured yet"):
        bench.sample(3, backends=("hopper_planned",))
    assert bench.sample(3, backends=("portable",)) == 3
    with pytest.raises(SystemExit):
        main(["sample", "3", "--backend", "portable", "--database", str(bench.database)])
    said = capsys.readouterr().err
    assert "--backend portable: only backends that serve shapes of their own are timed without the others" in said
    assert "hopper_planned" in said


@pytest.mark.parametrize("command", [["sample", "3"], ["fit", "--arch", "sm_90"]])
def test_what_fits_models_is_asked_for_before_anything_is_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """A run of minutes on a GPU that ends in a missing package is lost time."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert main([*command, "--database", str(bench.database)]) == 2
    assert "scipy is missing, which fits cost models" in capsys.readouterr().err


def test_a_shape_that_is_drawn_again_is_timed_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family may have few shapes."""
    bench.measure(*CONFIGS[:1])
    draw = tuning("flash").draw

    def few(functional: Functional, random: Random) -> object:
        return draw(functional, Random(random.randrange(3)))

    monkeypatch.setattr(type(tuning("flash")), "draw", lambda self, functional, random: few(functional, random))
    assert bench.sample(30) == 3
    assert bench.sample(30) == 0


def test_a_failing_shape_is_told_and_skipped(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """What runs into an error is named with it and has no row, all others have; the next run tries it again."""
    bench.measure(*CONFIGS[:1])
    every = shapes_of(8)
    batches = [shape["batch"] for shape in every]
    shape = next(one for one in every if batches.count(one["batch"]) == 1)
    assert bench.sample(8, orders={"refuse": [shape["batch"]]}) == 7
    told = capsys.readouterr().err
    assert f"attn_fwd {FUNCTIONAL} {shape}: not timed: RuntimeError: an illegal memory access" in told
    assert shapes(bench.samples) == [one for one in every if one != shape]
    assert bench.sample(8) == 1
    assert shapes(bench.samples)[-1] == shape


def test_what_is_timed_beside_another_process_is_left_out(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told, and the next run times it."""
    bench.measure(*CONFIGS[:1])
    assert bench.sample(2, orders={"others": ["7 (train)"]}) == 0
    assert "left out: another process is on the GPU: 7 (train)" in capsys.readouterr().err
    assert bench.samples == []
    assert bench.sample(2) == 2


def test_what_is_timed_beside_a_process_that_may_compute_counts(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told once."""
    bench.measure(*CONFIGS[:1])
    assert bench.sample(2, orders={"silent": ["7 (train)"]}) == 2
    assert capsys.readouterr().err.count("another process is on the GPU, and may compute: 7 (train)") == 1


def shapes_of(count: int) -> list[dict[str, int]]:
    """Those of seed 0."""
    random = Random(f"0 {KERNEL.name} {FUNCTIONAL}")
    return [dict(tuning("flash").draw(FUNCTIONAL, random)) for _ in range(count)]


def test_failures_in_a_row_stop_a_gpu(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """FAILURES of them; one that succeeds between begins the count anew."""
    bench.measure(*CONFIGS[:1])
    every = [shape["batch"] for shape in shapes_of(30)]
    assert bench.sample(30, orders={"refuse": every}) == 0
    assert len(bench.log) == FAILURES
    assert capsys.readouterr().err.count(f"GPU 0 stops after {FAILURES} failures in a row") == 1
    (bench.folder / "log").unlink()
    in_a_row = {batch for place, batch in enumerate(every) if every[place : place + FAILURES] == [batch] * FAILURES}
    often = max(set(every) - in_a_row, key=every.count)
    assert every.count(often) >= FAILURES
    assert bench.sample(30, orders={"refuse": [often]}) == 30 - every.count(often)
    assert len(bench.log) == 30
    assert "stops" not in capsys.readouterr().err


def test_a_gpu_that_stops_leaves_the_rest_to_others(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The other one times what is left; only the shapes under way are lost to this run."""
    bench.measure(*CONFIGS[:1])
    timed = bench.sample(40, gpus=2, orders={"lost_gpu": "1"})
    failed = [line for line in bench.log if line.startswith("1 ")]
    assert len(failed) <= FAILURES
    assert 40 - 10 <= timed < 40 or not failed
    assert bench.sample(40) == 40 - timed


def test_no_chunk_is_begun_after_the_deadline(bench: Bench) -> None:
    """What is left is for the next run."""
    bench.measure(*CONFIGS[:1])
    assert bench.sample(5, deadline=0.0) == 0
    assert bench.log == []


def test_images_that_spill_or_do_not_compile_are_not_timed(bench: Bench) -> None:
    """The others are."""

    def compile_some(
        specs: Iterable[ImageSpec], *more: object
    ) -> Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]:
        for one in specs:
            made = CompiledImage(one.name, {"spills": 0}, Path("none"))
            yield one, CompileFailure(one.name, "error") if one.config == CONFIGS[0] else made

    bench.measure(*CONFIGS[:2])
    bench.measure(CONFIGS[2], spills=16)
    bench.compiled = compile_some
    assert bench.sample(3) == 3
    assert {timing.images for one in bench.samples for timing in one.timings} == {(image(CONFIGS[1]).name,)}


def test_nothing_to_time_is_an_error(bench: Bench) -> None:
    """That says what to do first; no session is begun."""
    with pytest.raises(TuningError, match=r"no candidate is measured yet .* tune first"):
        bench.sample(3)
    with TuningDatabase(bench.database, readonly=True) as database:
        assert database.evidence.session_options() == []


def test_models_of_each_product_are_fitted_from_its_own_samples(bench: Bench) -> None:
    """And replace those that there were; the median error of an operator is told by product."""
    bench.measure(*CONFIGS)
    bench.sample(40)
    with TuningDatabase(bench.database) as database:
        assert fit_models(database, [ATTN_FWD], "sm_90").keys() == {("attn_fwd", "stand-in")}
        models = database.models("sm_90")
        assert {model.image for model in models} == {image(config).name for config in CONFIGS}
        assert {model.samples for model in models} == {40}
        fit_models(database, [ATTN_FWD], "sm_90")
        assert database.models("sm_90") == models


def test_a_kernel_that_loses_its_models_is_named(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """A fit without any image of today's source leaves it none."""

    def compiled(specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None, checksums: object) -> object:
        return standin_images(specs, store, jobs)

    bench.monkeypatch.setattr("aotriton.tune.cli.models.compile_images", compiled)
    bench.monkeypatch.setenv("AOTRITON_IMAGE_STORE", str(bench.folder / "store"))
    bench.measure(*CONFIGS)
    bench.sample(40)
    with TuningDatabase(bench.database) as database:
        fit_models(database, [ATTN_FWD], "sm_90")
        other = next(model for model in database.models("sm_90"))
        gone = replace(other, kernel="attn_fwd_split", image="attn_fwd_split_sm_90_0123456789abcdef")
        database.put_models([*database.models("sm_90"), gone], ("sm_90", other.product, "attn_fwd"))
        fit_and_compile(database, [ATTN_FWD], "sm_90", None)
    said = capsys.readouterr().out
    assert "attn_fwd_split on stand-in has no models any more" in said
    assert "--carry --arch sm_90 --kernel attn_fwd_split" in said
    assert "attn_fwd on stand-in has no models" not in said


def test_what_is_serialised_does_not_ship(bench: Bench) -> None:
    """Of another type it stays unknown to the database; measured before that was looked at, it is told of, and without
    it the models are those of the others.
    """
    other = ATTN_FWD.lead.functional("sm_90", **{**FUNCTIONAL.as_dict(), "T": "fp16"})
    bench.measure(*CONFIGS)
    bench.sample(40)

    def compiled(
        specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None
    ) -> Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]:
        for one, made in standin_images(specs, store, jobs):
            assert isinstance(made, CompiledImage)
            made.metadata["serialised"] = ["C7512"] if one.name in found else []
            yield one, made

    with TuningDatabase(bench.database) as database:
        fit_models(database, [ATTN_FWD], "sm_90")
        found = {model.image for model in database.models("sm_90") if model.saves == 1.0}
        (measured,) = found
        config = database.evidence.facts()[measured][0]
        twin = image(config, other).name
        given = [ATTN_FWD], "sm_90", compiled, ImageStore(bench.folder / "store"), None
        found.add(twin)
        _, refused = compile_shipped(database, *given)
        assert (refused, twin in database.evidence.facts()) == ({measured}, False)
        found.remove(twin)
        assert compile_shipped(database, *given) == (1, {measured})
        assert twin in database.evidence.facts()
        found = {twin}  # it was compiled before that was looked at, too
        assert compile_shipped(database, *given) == (0, {measured})
        fit_models(database, [ATTN_FWD], "sm_90", refused)
        assert {model.image for model in database.models("sm_90")} == {image(one).name for one in CONFIGS} - {measured}


def test_a_fit_notes_the_images_of_other_types_that_ship(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build reads decisions alone: what the fit compiled is there when it ends, and needs no decision after it."""
    other = ATTN_FWD.lead.functional("sm_90", **{**FUNCTIONAL.as_dict(), "T": "fp16"})

    def compiled(specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None, checksums: object) -> object:
        return standin_images(specs, store, jobs)

    monkeypatch.setattr("aotriton.tune.cli.models.compile_images", compiled)
    monkeypatch.setenv("AOTRITON_IMAGE_STORE", str(bench.folder / "store"))
    bench.measure(*CONFIGS)
    bench.sample(40)
    with TuningDatabase(bench.database) as database:
        database.conclude()
        fit_and_compile(database, [ATTN_FWD], "sm_90", None)
    with Decisions(bench.database) as decisions:
        shipping = {model.image for model in decisions.models("sm_90") if model.saves >= WORTH_SHIPPING}
        twins = {image(config, other).name for config in CONFIGS if image(config).name in shipping}
        assert twins
        assert twins <= set(decisions.spills())


DRAWING = TUNING.replace(
    "    def groups(",
    """    def draw(self, functional, random):
        sizes = [random.randrange(1, most) for most in (65, 9, 4097, 300)]
        return shape_of(**dict(zip(("batch", "heads", "rows", "taps"), sizes)), width=functional["BLOCK_DMODEL"])

    def groups(""",
)


def test_from_measurements_to_tables_that_predict(tmp_path: Path, toy: KernelDescription) -> None:
    """tune.py measures, times random shapes and fits models, which --fit finds again; the generator makes of them
    tables where predicted times choose. The times are the stand-in's, which the models predict.
    """
    project = Project(tmp_path)
    (project.family / "tune" / "__init__.py").write_text(DRAWING)
    done = project.tune(*WIDE)
    assert done.returncode == 0, done.stderr
    done = project.tune("--sample", "60", "--seed", "3", "--no-fit", *WIDE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("120 shapes were timed\nnext: ")  # with a bias and without
    with TuningDatabase(project.database, readonly=True) as database:
        assert not database.models("sm_90")
    done = project.tune("--fit", "--arch", "sm_90")
    assert done.returncode == 0, done.stderr
    assert "scale on stand-in: predicted times are off by 0." in done.stdout
    with TuningDatabase(project.database, readonly=True) as database:
        models, samples = database.models("sm_90"), database.evidence.samples("sm_90", "scale")
        strategies = database._file.execute("SELECT strategy, seed FROM evidence.session ORDER BY id").fetchall()
    assert strategies == [("exhaustive", None), ("random", 3)]
    assert len(samples) == 120
    assert {timing.backend for one in samples for timing in one.timings} == {"portable", "split"}
    assert {model.kernel for model in models} == {"scale_rows", "scale_rows_weigh", "scale_rows_apply"}
    assert max(model.error for model in models) < 0.05

    done = project.tune("--fit", "--arch", "sm_90")
    assert done.returncode == 0, done.stderr
    assert "0 images that ship for other types or layouts were compiled" in done.stdout
    with TuningDatabase(project.database, readonly=True) as database:
        assert database.models("sm_90") == models
    done = project.tune("--sample", "60", "--seed", "3", *WIDE)
    assert done.stdout.startswith("0 shapes were timed\n"), done.stderr

    done = project.generate("--alone", "--coverage", "small")
    assert done.returncode == 0, done.stderr
    text = (project.out / "scale_rows.sm_90.lut.cc").read_text()
    assert "constexpr Cost costs_0[]" in text
    worth = {model.image for model in models if model.saves >= 5e-4 and model.kernel == "scale_rows"}
    assert worth
    for name in worth:
        assert f"extern Image {name};" in text


def test_a_kernel_that_is_not_timed_is_in_no_sequence() -> None:
    """Its backend is timed without it: the sequences have images of the others, in their order."""
    first = ATTN_BWD.backends[0]
    lead = ATTN_BWD.lead.functional("sm_90", T="bf16", BLOCK_DMODEL=64, CAUSAL=True, ADDRESSING="descriptor")
    sizes = {"batch": 2, "heads_q": 16, "heads_k": 16, "seqlen_q": 400, "seqlen_k": 400, "head_dim": 64}
    lists = {}
    for kernel in first.timed_kernels:
        own = kernel.like(lead, sizes)
        assert own
        tunables, compile_options = (
            {n: v[0] for n, v in of.items()}
            for of in (kernel.tunable_values("cuda"), kernel.compile_option_values("cuda"))
        )
        lists[kernel.name, str(own)] = [ImageSpec.of(own, tunables, compile_options)]
    assert len(first.timed_kernels) == len(first.kernels) - 1
    ((backend, images),) = sequences(ATTN_BWD, lead, sizes, lists, 132)
    assert backend == first.name
    assert [one.functional.kernel for one in images] == list(first.timed_kernels)


def test_a_backend_that_refuses_a_call_has_no_sequence() -> None:
    """Whole heads are timed where they are short, and where they are few."""
    (heads,) = (backend for backend in ATTN_BWD.backends if backend.name == "hopper_heads")
    lead = ATTN_BWD.lead.functional("sm_90", T="bf16", BLOCK_DMODEL=64, CAUSAL=True, ADDRESSING="descriptor")
    sizes = {"batch": 32, "heads_q": 16, "heads_k": 16, "seqlen_q": 400, "seqlen_k": 400, "head_dim": 64}
    lists = {}
    for kernel in heads.kernels:
        own = kernel.like(lead, sizes)
        assert own
        tunables = {name: values[-1] for name, values in kernel.tunable_values("cuda").items()}
        compile_options = {name: values[0] for name, values in kernel.compile_option_values("cuda").items()}
        lists[kernel.name, str(own)] = [ImageSpec.of(own, tunables, compile_options)]

    def timed(**other: int) -> list[str]:
        return [backend for backend, _ in sequences(ATTN_BWD, lead, sizes | other, lists, 132)]

    assert timed() == ["hopper_heads"]
    assert timed(seqlen_q=3000, seqlen_k=3000) == []
    assert timed(seqlen_q=3000, seqlen_k=3000, batch=1, heads_q=4, heads_k=4) == ["hopper_heads"]


def timed_backends(level: int) -> set[str]:
    """The backends of attention's forward that are timed on a call of a level, if each kernel has an image for it."""
    choices: dict[str, Any] = {"T": "bf16", "BLOCK_DMODEL": 128, "CAUSAL": False, "ADDRESSING": "descriptor"}
    lead = ATTN_FWD.lead.functional("sm_90", **choices, LEVEL=level)
    sizes = {"batch": 2, "heads_q": 16, "heads_k": 16, "seqlen_q": 400, "seqlen_k": 400, "head_dim": 128}
    lists = {}
    for kernel in (one for backend in ATTN_FWD.backends for one in backend.timed_kernels):
        if own := kernel.like(lead, sizes):
            tunables = {name: values[0] for name, values in kernel.tunable_values("cuda").items()}
            compile_options = {name: values[0] for name, values in kernel.compile_option_values("cuda").items()}
            lists[kernel.name, str(own)] = [ImageSpec.of(own, tunables, compile_options)]
    assert "attn_fwd_hopper_fp8" in {name for name, _ in lists}
    return {backend for backend, _ in sequences(ATTN_FWD, lead, sizes, lists, 132)}


def test_calls_are_timed_on_no_backend_of_other_levels() -> None:
    """Kernels of tensors of 8 bits have images for each functional of the lead, but not for its calls. What splits keys
    has one level for calls of several, and refuses those with bias, ALiBi or dropout.
    """
    plain, general, full = (timed_backends(level) for level in (0, 4, 5))
    assert {"portable", "hopper", "split", "hopper_planned"} <= plain
    assert {"portable", "hopper_features", "split", "hopper_planned"} <= general
    assert full == {"portable", "hopper_features"}
    assert "hopper_fp8" not in plain | general
