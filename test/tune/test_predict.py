"""The static model of gfx942: what it prefers, and the winners and cost models that it writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotriton.codegen.store import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.arch import GFX942
from aotriton.rules.binning import bin_text
from aotriton.rules.database import TuningDatabase
from aotriton.rules.database.rows import Model, Sample
from aotriton.rules.expression import Environment
from aotriton.rules.family import family
from aotriton.rules.family import kernel as kernel_named
from aotriton.rules.flash.backward import OPERATOR as BACKWARD
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.flash.forward import OPERATOR as FORWARD
from aotriton.rules.image import ImageSpec, config_values
from aotriton.rules.kernel import Functional, KernelDescription, Value
from aotriton.rules.work import TERMS, WORTH_SHIPPING, terms
from aotriton.tune.costmodel import predict as module
from aotriton.tune.costmodel.fit import fit_apart
from aotriton.tune.costmodel.least_squares import FEWEST
from aotriton.tune.costmodel.predict import WORTH_HAVING, decide, models, predict, refit
from aotriton.tune.costmodel.timings import Apart
from aotriton.tune.costmodel.worth import with_savings
from aotriton.tune.flash.estimate import (
    PRIOR,
    PUBLISHED_THROUGHPUT,
    call_time,
    estimate,
    is_short,
    level,
    rank,
    source,
)
from aotriton.tune.problem.candidates import configs
from aotriton.tune.problem.compiler_facts import Compile, untimed_winner
from aotriton.tune.problem.compute_unit import Candidate, resident_programs
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import scalars_of
from aotriton.tune.problem.tuning_error import TuningError

KERNELS = family("flash").kernels


def functional(kernel: str = "attn_fwd", head_dim: int = 128, **choices: str | bool) -> Functional:
    description = kernel_named(kernel)
    values: dict[str, Any] = {"LEVEL": 0, "T": "bf16", "BLOCK_DMODEL": head_dim, "CAUSAL": False}
    values |= {"ADDRESSING": "offset32"} | choices
    own = {choice.name: values[choice.name] for choice in description.choices if choice.name in values}
    return description.functional("gfx942", **own)


def candidate(registers: int, shared: int = 16384, **config: int) -> Candidate:
    known = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1, "waves_per_eu": 1}
    return Candidate(known | config, registers, shared)


def long_cells(one: Functional) -> list[tuple[int, ...]]:
    return [cell for cell in one.kernel.cells() if not is_short(one, cell)]


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "programs"),
    [
        (128, 0, 4, 4),  # 4 waves a SIMD
        (129, 0, 4, 3),  # 136 after rounding up
        (40, 0, 4, 8),  # never more than 8 waves
        (512, 0, 4, 1),
        (128, 0, 8, 2),
        (64, 16384, 4, 4),  # local memory holds 4
        (64, 65536, 4, 1),
        (512, 0, 8, 1),  # 8 waves of which 4 run at a time still make one program
    ],
)
def test_residency_is_what_the_hardware_allows(registers: int, shared: int, warps: int, programs: int) -> None:
    """Registers in steps of 8, 8 waves a SIMD and 64 KiB of local memory each bound the resident programs."""
    assert resident_programs(candidate(registers, shared, num_warps=warps), GFX942) == programs


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(16, 500), st.integers(0, 12), st.sampled_from(list(ATTN_FWD.cells())))
def test_more_registers_are_never_faster(registers: int, more: int, cell: tuple[int, ...]) -> None:
    """Of two images that differ in registers only, the model never finds the larger one faster."""
    one = functional()
    fewer, larger = candidate(registers), candidate(registers + more)
    assert estimate(one, cell, fewer) <= estimate(one, cell, larger)


def test_published_tile_wins_a_close_call() -> None:
    """On long sequences of aligned tensors a published tile wins although the model finds it somewhat slower."""
    tall, flat = candidate(362, 32768, BLOCK_M=128, BLOCK_N=64), candidate(215, 16384, BLOCK_M=64, BLOCK_N=64)
    one = functional()
    cell = long_cells(one)[-1]
    assert 1.0 < estimate(one, cell, tall) / estimate(one, cell, flat) < 1 / PRIOR
    assert rank(one, long_cells(one), [flat, tall])[0] is tall
    general = functional(ADDRESSING="general")
    assert rank(general, long_cells(general), [flat, tall])[0] is flat


def test_short_sequences_get_small_tiles() -> None:
    """Where the sequence fits in a tile of 64 rows, one of 128 does work that is thrown away."""
    one = functional(head_dim=64)
    short = [cell for cell in one.kernel.cells() if is_short(one, cell)]
    tall, flat = candidate(240, 16384, BLOCK_M=128, BLOCK_N=64), candidate(168, 8192, BLOCK_M=64, BLOCK_N=64)
    assert rank(one, short, [tall, flat])[0] is flat


def sizes(length: int, *, batch: int = 16, heads: int = 16, group: int = 1) -> dict[str, int]:
    of_heads = {"heads_q": heads, "heads_k": heads // group}
    return {"batch": batch, **of_heads, "seqlen_q": length, "seqlen_k": length, "head_dim": 128}


def test_forward_times_are_at_the_published_level() -> None:
    """What the model says of the published tile is off the published throughput by less than a quarter from 1k to 16k,
    and by nothing in geometric mean.
    """
    one, tall = functional(CAUSAL=True), candidate(344, 32768, BLOCK_M=128, BLOCK_N=64)
    ratios = []
    for length, published in PUBLISHED_THROUGHPUT.items():
        flops = 4 * 16 * 16 * length**2 * 128 / 2
        ratios.append(flops / call_time(one, sizes(length), tall) / 1e6 / published)
    assert all(3 / 4 < ratio < 5 / 4 for ratio in ratios)
    assert prod(ratios) == pytest.approx(1)
    assert level(kernel_named("attn_bwd_dq")) == level(kernel_named("attn_bwd_dk_dv")) == 1


def test_a_source_says_what_was_published() -> None:
    """Tiles were published for aligned tensors and some head dims, throughput for the forward pass only."""
    compiled, tiles, scaled = (
        "static model of the compiled image", " and published tiles", ", scaled to published MI300X throughput"
    )  # fmt: skip
    assert source(functional()) == f"{compiled}{tiles}{scaled}"
    assert source(functional(ADDRESSING="general")) == f"{compiled}{scaled}"
    assert source(functional("attn_bwd_dq")) == f"{compiled}{tiles}"
    assert source(functional("attn_bwd_dk_dv", 256)) == compiled


@pytest.mark.parametrize("kernel", ["attn_fwd", "attn_bwd_dk_dv", "attn_bwd_dq"])
@pytest.mark.parametrize("causal", [False, True])
@settings(deadline=None)
@given(st.integers(16, 4096), st.integers(1, 500), st.integers(1, 40), st.sampled_from([60, 150, 340]))
def test_a_longer_call_never_takes_less(
    kernel: str, causal: bool, length: int, more: int, batch: int, registers: int
) -> None:
    """Neither longer sequences nor more of them are faster, however many programs a compute unit holds."""
    one, image = functional(kernel, CAUSAL=causal), candidate(registers)
    shorter = call_time(one, sizes(length, batch=batch), image)
    assert shorter <= call_time(one, sizes(length + more, batch=batch), image) * 1.0001
    assert shorter <= call_time(one, sizes(length, batch=batch + 1), image) * 1.0001


def test_a_round_that_is_begun_counts() -> None:
    """One program more than the GPU's compute units hold takes another round; the bin of the call is the same."""
    one, image = functional(), candidate(340, BLOCK_M=128)  # one program at a time

    def time(programs: int) -> float:
        return call_time(one, sizes(128, batch=1, heads=programs), image)

    assert time(304) == time(1)
    assert time(305) == time(608) == pytest.approx(2 * time(304))


def test_a_tile_of_keys_is_walked_for_every_query_head() -> None:
    """dk and dv of four times as many query heads take four times the passes."""
    one, image = functional("attn_bwd_dk_dv"), candidate(340)
    alone, shared = (call_time(one, sizes(8192, batch=4, heads=2 * group, group=group), image) for group in (1, 4))
    assert shared / alone == pytest.approx(4, rel=0.02)


def test_matrix_products_end_in_a_round_that_is_not_full() -> None:
    """Two resident programs share a compute unit: a third one is alone, and takes less than two more would."""
    one = kernel_named("gemm").functional("gfx942", T="bf16", TRANS_A=False, TRANS_B=True, ADDRESSING="offset32")
    image = candidate(250, 16384, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32)
    call_time = tuning("gemm").call_time
    times = [call_time(one, {"batch": tiles * 304, "m": 128, "n": 128, "k": 4096}, image) for tiles in (1, 2, 3, 4)]
    assert times[0] < times[1] < times[2] < times[3]
    assert times[2] == pytest.approx(times[1] + times[0], rel=0.05)


def test_models_follow_from_times_that_are_known_image_by_image() -> None:
    """Times that are sums of the terms give their coefficients back; an image of too few times has no model."""
    one = functional()
    first, second = (spec for spec in configs(one)[:2])
    facts = {spec.name: (spec.config, 200, 16384) for spec in (first, second)}
    wanted = [3.0 if term == "one" else 0.5 if term.startswith("steps of all programs") else 0.0 for term in TERMS]
    wanted[-4:] = [0.0] * 4
    calls = []
    for number in range(FEWEST):
        shape = sizes(100 + 97 * number, batch=1 + number % 7)
        environment = Environment(shape, scalars_of(one, shape), dict(first.tunables), multiprocessors=304)
        assert ATTN_FWD.work
        known = terms(ATTN_FWD.work, environment, 2)
        times = {first.name: sum(a * b for a, b in zip(wanted, known, strict=True))}
        calls.append(Apart(one, shape, {"portable": (times | ({second.name: 1.0} if number else {}),)}))
    (model,) = with_savings([fit_apart(FORWARD, "gfx942", "GPU", calls, facts, 304)], FORWARD, "gfx942")
    assert (model.image, model.samples, model.product, model.saves) == (first.name, FEWEST, "GPU", 1.0)
    assert model.error < 1e-3
    assert [round(one, 2) for one in model.coefficients[:8]] == wanted[:8]


def found_for(
    kernel: str = "attn_fwd", plain: bool = False
) -> dict[tuple[str, str], list[tuple[ImageSpec, Candidate]]]:
    """All candidates, by kernel and functional; of calls without features alone, if ``plain``."""
    return {
        (kernel, str(one)): [(spec, Candidate.of(spec, metadata(spec))) for spec in configs(one)]
        for one in kernel_named(kernel).functionals("gfx942")
        if not plain or one == one.plain
    }


def test_every_functional_that_is_measured_for_itself_has_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both addressings, and no other's; what is modelled is worth having, near the static model, and says whence."""
    monkeypatch.setattr(module, "SHAPES", 60)  # enough, and sooner
    made = models(FORWARD, "gfx942", found_for())
    own = [one for one in ATTN_FWD.functionals("gfx942") if one.measured == one]
    assert {model.functional for model in made} == {str(one) for one in own}
    assert {one.addressing for one in own} == {"general", "offset32"}
    assert {model.product for model in made} == {"AMD Instinct MI300X"}
    assert all(model.saves >= WORTH_HAVING >= WORTH_SHIPPING for model in made)
    # Tiles of fp32 are small: what a program costs beside its steps is not in the model.
    assert all(model.error < (0.2 if "T=fp32" in model.functional else 0.1) for model in made)
    assert all(model.samples == module.SHAPES for model in made)
    assert {model.source for model in made} == {source(one) for one in own}


def test_a_slim_kernel_has_models_of_the_calls_that_it_serves() -> None:
    """Those that fit in its columns, of those that are drawn; there it computes a quarter less than the padded one."""
    found = found_for(plain=True) | found_for("attn_fwd_slim")
    every = models(FORWARD, "gfx942", found, least=WORTH_SHIPPING)  # whether they pay is a matter of registers
    made = [one for one in every if "slim" in one.kernel]
    slim = kernel_named("attn_fwd_slim")
    assert {one.functional for one in made} == {str(one) for one in slim.functionals("gfx942") if one.measured == one}
    assert all(FEWEST <= one.samples < module.SHAPES for one in made)
    image, shape = candidate(300, BLOCK_N=64), sizes(8192) | {"head_dim": 96}
    padded, own = (call_time(functional(*which), shape, image) for which in (("attn_fwd", 128), ("attn_fwd_slim", 96)))
    assert own / padded == pytest.approx(0.8, abs=0.06)  # exponentials are the same


def test_a_kernel_that_is_not_timed_has_no_part_in_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other kernel of the backward's first backend has models, as if the gradient of sinks had no kernel."""
    monkeypatch.setattr(module, "SHAPES", 60)
    first = BACKWARD.backends[0]
    assert "attn_bwd_dsinks" in {kernel.name for kernel in first.kernels}
    timed = {kernel.name for kernel in first.timed_kernels}
    found = {key: fitting for kernel in timed for key, fitting in found_for(kernel, plain=True).items()}
    made = models(BACKWARD, "gfx942", found)
    assert {one.kernel for one in made} == timed == {"attn_bwd_preprocess", "attn_bwd_dk_dv", "attn_bwd_dq"}


@pytest.mark.parametrize("kernel", [kernel.name for kernel in KERNELS if kernel.timed and "gfx942" in kernel.archs])
def test_every_cell_gets_a_winner_that_says_predicted(kernel: str) -> None:
    """decide covers each cell once, with at most two images, no measured time, and names the model."""
    one = functional(kernel, 96 if kernel.endswith("_slim") else 128)
    found = [(spec, Candidate.of(spec, metadata(spec))) for spec in configs(one)]
    winners = decide(one, found)
    assert sorted(w.bin for w in winners) == sorted(bin_text(one.kernel.tuning_keys, c) for c in one.kernel.cells())
    assert {(w.provenance, w.median_us, w.runners_up) for w in winners} == {("predicted", 0.0, ())}
    assert len({w.image for w in winners}) <= 2
    assert {w.source for w in winners} == {"static model"}


def test_what_is_ruled_out_wins_nowhere() -> None:
    """A config that a restriction rules out in all cells of a group does not win them, unless there is no other."""
    one = kernel_named("gemm").functional("gfx942", T="bf16", TRANS_A=False, TRANS_B=True, ADDRESSING="general")
    found = [(spec, Candidate.of(spec, metadata(spec))) for spec in configs(one)]
    steps = {config_values(winner.config)["BLOCK_K"] for winner in decide(one, found)}
    assert steps == {32}  # "BLOCK_K is 32 for general addressing"
    long = [pair for pair in found if dict(pair[0].tunables)["BLOCK_K"] == 64]
    assert {config_values(winner.config)["BLOCK_K"] for winner in decide(one, long)} == {64}


def metadata(spec: ImageSpec) -> dict[str, Any]:
    rows = dict(spec.tunables).get("BLOCK_M", 1)
    return {"registers": 100 + rows, "shared": 128 * rows, "spills": 0, "stack": 0, "sha256": "0" * 64}


def compiler(refused: frozenset[int] = frozenset(), spilling: frozenset[int] = frozenset()) -> Compile:
    """A stand-in for compile_images, which answers in reverse: of these BLOCK_M, some do not compile, some spill."""

    def compile_images(
        specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None
    ) -> Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]:
        for spec in reversed(list(specs)):
            rows = dict(spec.tunables).get("BLOCK_M", 1)
            if rows in refused:
                yield spec, CompileFailure(spec.name, "no registers left")
            else:
                facts = metadata(spec) | {"spills": int(rows in spilling)}
                yield spec, CompiledImage(spec.name, facts, store.path / spec.name)

    return compile_images


@pytest.mark.parametrize("unfit", ["refused", "spilling"])
def test_winners_reach_the_database(unfit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """predict writes what it returns, for the kernels asked for only and the arch's usual product, and picks no image
    that failed or spills.
    """
    monkeypatch.setattr(module, "compile_images", compiler(**{unfit: frozenset({64})}))
    wanted = [functional("attn_fwd"), functional("attn_fwd", CAUSAL=True), functional("attn_bwd_dq")]
    with TuningDatabase(tmp_path / "db.sqlite3") as database:
        returned = predict(database, [ATTN_FWD], wanted, ImageStore(tmp_path / "store"), 1)
        assert database.winners() == sorted(returned, key=lambda w: (w.arch, w.kernel, w.functional, w.bin))
    assert {(w.kernel, w.product) for w in returned} == {("attn_fwd", "AMD Instinct MI300X")}
    assert len(returned) == 2 * len(list(ATTN_FWD.cells()))
    assert {config_values(w.config)["BLOCK_M"] for w in returned} == {32, 128}


def test_cells_go_to_images_that_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With models, a cell's winner is among the images that are worth shipping, still predicted, of other types too;
    and the database knows their configs.
    """
    monkeypatch.setattr(module, "compile_images", compiler())
    monkeypatch.setattr(module, "SHAPES", 60)
    with TuningDatabase(tmp_path / "db.sqlite3") as database:
        every = list(ATTN_FWD.functionals("gfx942"))
        winners = predict(database, [ATTN_FWD], every, ImageStore(tmp_path / "store"), 1, [FORWARD])
        made, facts = database.models("gfx942"), database.evidence.facts()
    ships = {(model.functional, facts[model.image][0]) for model in made}
    of = {str(one): one for one in every}
    assert {one.provenance for one in winners} == {"predicted"}
    assert len(winners) == len(every) * len(list(ATTN_FWD.cells()))
    for one in winners:
        config = ImageSpec.parse(of[one.functional], one.config).config
        assert (str(of[one.functional].measured), config) in ships


def test_what_is_left_out_of_a_run_keeps_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A functional that is not asked for keeps its models as they are, beside those of a backend that is."""
    monkeypatch.setattr(module, "compile_images", compiler())
    monkeypatch.setattr(module, "SHAPES", 120)
    split = kernel_named("attn_fwd_split"), kernel_named("attn_fwd_combine")
    with TuningDatabase(tmp_path / "db.sqlite3") as database:
        store = ImageStore(tmp_path / "store")

        def kept() -> set[Model]:
            return set(database.models())

        def asked(*kernels: KernelDescription, **choices: Value) -> None:
            wanted: dict[str, Value] = {"LEVEL": 0, "T": "bf16", "BLOCK_DMODEL": 64, **choices}
            every = [one for kernel in kernels for one in kernel.functionals("gfx942")]
            like = [one for one in every if all(one.get(name, value) == value for name, value in wanted.items())]
            predict(database, kernels, like, store, 1, [FORWARD])

        asked(*split)
        assert kept() == set(), "no functional's first backend has images"
        asked(ATTN_FWD, CAUSAL=True)
        few = kept()
        asked(ATTN_FWD, CAUSAL=False)
        portable = kept()
        assert {one.kernel for one in portable} == {"attn_fwd"}
        assert portable > few > set()
        winners = database.winners("gfx942", "attn_fwd")
        asked(*split)
        assert kept() > portable
        assert {one.kernel for one in kept() - portable} == {one.name for one in split}
        of: dict[str, set[str]] = {}
        for row in database.winners("gfx942", "attn_fwd_split"):
            of.setdefault(row.functional, set()).add(row.config)
        plain = {one for one in of if "KEYS" not in one}
        levels = ("", *(f" KEYS={one}" for one in ("pages", "fp8e4b8", "pages_fp8e4b8")))
        assert of == {f"{one}{level}": of[one] for one in plain for level in levels}, "other levels borrow"
        assert database.winners("gfx942", "attn_fwd") == winners


def test_models_are_fitted_anew_for_other_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models whose coefficients no longer fit the terms get those that ``predict`` would give them, of the same images,
    without another candidate being compiled. Where one would be lost, nothing is written.
    """
    compiled: list[str] = []

    def counted(specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None) -> Iterator[Any]:
        for spec, image in compiler()(specs, store, jobs):
            compiled.append(spec.name)
            yield spec, image

    monkeypatch.setattr(module, "compile_images", counted)
    monkeypatch.setattr(module, "SHAPES", 60)
    wanted = [functional("attn_fwd", head_dim=64), functional("attn_fwd", head_dim=64, CAUSAL=True)]
    with TuningDatabase(tmp_path / "db.sqlite3") as database:
        store = ImageStore(tmp_path / "store")
        predict(database, [ATTN_FWD], wanted, store, 1, [FORWARD])
        made = database.models("gfx942")
        of = "gfx942", made[0].product, "attn_fwd"
        database.put_models([replace(one, coefficients=(1.0,) * len(TERMS), error=0.5) for one in made], of)
        compiled.clear()
        assert refit(database, [FORWARD, BACKWARD], "gfx942", store, 1) == {"attn_fwd": len(made)}
        again = {(one.functional, one.image): one for one in database.models("gfx942")}
        assert sorted(compiled) == sorted(one.image for one in made)
        for one in made:
            own = again[one.functional, one.image]
            assert (own.saves, own.source) == (one.saves, one.source)
            assert own.error < 0.05
        monkeypatch.setattr(module, "compile_images", compiler(refused=frozenset({32, 64, 128})))
        with pytest.raises(TuningError, match=r"attn_fwd_gfx942_\w+ would have no model"):
            refit(database, [FORWARD], "gfx942", store, 1)
        assert {(one.functional, one.image): one for one in database.models("gfx942")} == again


def test_models_of_timings_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a static model says is not written over what was fitted to timings."""
    monkeypatch.setattr(module, "compile_images", compiler())
    with TuningDatabase(tmp_path / "db.sqlite3") as database:
        every = list(ATTN_FWD.functionals("gfx942"))
        timed = [Sample("AMD Instinct MI300X", "attn_fwd", str(every[0]), {}, 1)]
        monkeypatch.setattr(database.evidence, "samples", lambda arch, operator: timed)
        predict(database, [ATTN_FWD], every, ImageStore(tmp_path / "store"), 1, [FORWARD])
        assert database.models() == []


def test_nothing_to_choose_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A functional without a candidate that fits is an error that names it; so is an arch without a model."""
    monkeypatch.setattr(module, "compile_images", compiler(frozenset({16, 32, 64, 128})))
    with TuningDatabase(tmp_path / "db.sqlite3") as database:
        store = ImageStore(tmp_path / "store")
        with pytest.raises(TuningError, match=r"attn_fwd T=bf16 BLOCK_DMODEL=128 .* gfx942: no candidate"):
            predict(database, KERNELS, [functional()], store)
        gemm = kernel_named("gemm")
        with pytest.raises(TuningError, match="the static model describes gfx942, not sm_90"):
            predict(database, [gemm], gemm.functionals("sm_90"), store)
        assert database.winners() == []


def test_tiles_choose_where_the_static_model_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On sm_90 all cells go to the image that keeps most rows and fits, without a model; what has a measured sibling is
    left to borrow.
    """
    monkeypatch.setattr(module, "compile_images", compiler(spilling=frozenset({64})))
    wide, other, narrow = (
        ATTN_FWD.functional("sm_90", LEVEL=4, T="bf16", BLOCK_DMODEL=width, CAUSAL=False, ADDRESSING=addressing)
        for width, addressing in ((512, "descriptor"), (64, "descriptor"), (64, "general"))
    )
    (cell, *_), spec = ATTN_FWD.cells(), configs(other)[0]
    measured = replace(untimed_winner(spec, cell, "predicted", ""), provenance="measured", source="", median_us=1.0,
                       low_us=1.0, high_us=1.0, shape="{}", measured="2026-11-27")  # fmt: skip
    with TuningDatabase(tmp_path / "db.sqlite3") as database:
        database.put_winners([measured])
        made = predict(database, [ATTN_FWD], [wide, narrow], ImageStore(tmp_path / "store"), 1, [FORWARD])
        facts = database.evidence.facts()
        assert database.models() == []
    assert {one.functional for one in made} == {str(wide)}
    assert len(made) == ATTN_FWD.cell_count
    assert {(config_values(one.config)["BLOCK_M"], one.source) for one in made} == {(32, module.SOURCE_OF_TILES)}
    assert {one.image for one in made} <= facts.keys()
