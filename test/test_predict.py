"""The static model of gfx942: what it prefers, and the winners that it writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotriton.codegen.store import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.binning import bin_text
from aotriton.rules.database import TuningDatabase
from aotriton.rules.family import family
from aotriton.rules.family import kernel as kernel_named
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune import predict as module
from aotriton.tune.compute_unit import Candidate, resident_programs
from aotriton.tune.flash.estimate import PRIOR, estimate, is_short, rank
from aotriton.tune.predict import decide, predict
from aotriton.tune.session import TuningError
from aotriton.tune.space import configs

KERNELS = family("flash").kernels

LIMIT = 64 * 1024


def functional(kernel: str = "attn_fwd", head_dim: int = 128, **choices: str | bool) -> Functional:
    description = kernel_named(kernel)
    values = {"T": "bf16", "BLOCK_DMODEL": head_dim, "CAUSAL": False, "ADDRESSING": "offset32"} | choices
    return description.functional("gfx942", **{choice.name: values[choice.name] for choice in description.choices})


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
    assert resident_programs(candidate(registers, shared, num_warps=warps), LIMIT) == programs


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


@pytest.mark.parametrize("kernel", [kernel.name for kernel in KERNELS if "gfx942" in kernel.archs])
def test_every_cell_gets_a_winner_that_says_predicted(kernel: str) -> None:
    """decide covers each cell once, with at most two images, no measured time, and names the model."""
    one = functional(kernel)
    found = [(spec, Candidate.of(spec, metadata(spec))) for spec in configs(one)]
    winners = decide(one, found)
    assert sorted(w.bin for w in winners) == sorted(bin_text(one.kernel.tuning_keys, c) for c in one.kernel.cells())
    assert {(w.provenance, w.median_us, w.runners_up) for w in winners} == {("predicted", 0.0, ())}
    assert len({w.image for w in winners}) <= 2
    assert {w.source for w in winners} == {"static model of tune/predict.py"}


def test_what_is_ruled_out_wins_nowhere() -> None:
    """A config that a restriction rules out in all cells of a group does not win them, unless there is no other."""
    one = kernel_named("gemm").functional("gfx942", T="bf16", TRANS_A=False, TRANS_B=True, ADDRESSING="general")
    found = [(spec, Candidate.of(spec, metadata(spec))) for spec in configs(one)]
    steps = {winner.psels["BLOCK_K"] for winner in decide(one, found)}
    assert steps == {32}  # "BLOCK_K is 32 for general addressing"
    long = [pair for pair in found if dict(pair[0].psels)["BLOCK_K"] == 64]
    assert {winner.psels["BLOCK_K"] for winner in decide(one, long)} == {64}


def metadata(spec: ImageSpec) -> dict[str, int]:
    rows = dict(spec.psels)["BLOCK_M"]
    return {"registers": 100 + rows, "shared": 128 * rows, "spills": 0, "stack": 0}


def compiler(refused: frozenset[int] = frozenset(), spilling: frozenset[int] = frozenset()):  # type: ignore[no-untyped-def]
    """A stand-in for compile_images, which answers in reverse: of these BLOCK_M, some do not compile, some spill."""

    def compile_images(
        specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None
    ) -> Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]:
        for spec in reversed(list(specs)):
            rows = dict(spec.psels)["BLOCK_M"]
            if rows in refused:
                yield spec, CompileFailure(spec.name, "no registers left")
            else:
                facts = metadata(spec) | {"spills": int(rows in spilling)}
                yield spec, CompiledImage(spec.name, facts, store.path / spec.name)

    return compile_images


@pytest.mark.parametrize("unfit", ["refused", "spilling"])
def test_winners_reach_the_database(unfit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """predict writes what it returns, for the kernels asked for only, and picks no image that failed or spills."""
    monkeypatch.setattr(module, "compile_images", compiler(**{unfit: frozenset({64})}))
    wanted = [functional("attn_fwd"), functional("attn_fwd", CAUSAL=True), functional("attn_bwd_dq")]
    with TuningDatabase(tmp_path / "db.sqlite3") as database:
        returned = predict(database, [ATTN_FWD], wanted, ImageStore(tmp_path / "store"), 1)
        assert database.winners() == sorted(returned, key=lambda w: (w.arch, w.kernel, w.functional, w.bin))
    assert {w.kernel for w in returned} == {"attn_fwd"}
    assert len(returned) == 2 * len(list(ATTN_FWD.cells()))
    assert {w.psels["BLOCK_M"] for w in returned} == {128}


def test_nothing_to_choose_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A functional without a candidate that fits is an error that names it; so is an arch without a model."""
    monkeypatch.setattr(module, "compile_images", compiler(frozenset({16, 32, 64, 128})))
    with TuningDatabase(tmp_path / "db.sqlite3") as database:
        store = ImageStore(tmp_path / "store")
        with pytest.raises(TuningError, match=r"attn_fwd T=bf16 BLOCK_DMODEL=128 .* gfx942: no candidate"):
            predict(database, KERNELS, [functional()], store)
        with pytest.raises(TuningError, match="the static model describes gfx942, not sm_90"):
            predict(database, KERNELS, ATTN_FWD.functionals("sm_90"), store)
        assert database.winners() == []
