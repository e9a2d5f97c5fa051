"""Cost models of levels that the lead lacks, on a stand-in GPU: what is timed, fitted, compiled and shipped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from standin_compiler import standin_images
from test_fit import GPU, PRODUCT, Machine, star
from test_launch_sequences import TORCH
from test_session import LAUNCHER

from aotriton.codegen.compile import ImageStore
from aotriton.codegen.costs import Models
from aotriton.rules.binning import bin_text
from aotriton.rules.database import Measurement, Model, TuningDatabase
from aotriton.rules.database.rows import Sample
from aotriton.rules.flash.forward import OPERATOR as ATTN_FWD
from aotriton.rules.flash.split import ATTN_FWD_COMBINE, ATTN_FWD_DECODE, ATTN_FWD_SPLIT, DECODE, SPLIT, Keys
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune.cli.models import _asked
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.sample import Sampling, sample
from aotriton.tune.costmodel.fit import fit
from aotriton.tune.costmodel.shipped import compile_shipped, fit_models
from aotriton.tune.costmodel.shortlist import sequences
from aotriton.tune.costmodel.worth import with_savings
from aotriton.tune.measure.launch_sequences import Sequences
from aotriton.tune.measure.requests import Draw, LaunchSequence
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Wish, shape_of
from aotriton.tune.workers.gpu_process import GpuProcess

CHOICES: dict[str, Any] = {"BLOCK_DMODEL": 64, "CAUSAL": False, "ADDRESSING": "descriptor"}
NARROW = ATTN_FWD_DECODE.functional("sm_90", T="bf16", KEYS=Keys.fp8e4nv, **CHOICES)
CONFIGS = {
    ATTN_FWD_DECODE: [f"BLOCK_M=16 BLOCK_N={n} EARLY=1 num_warps=4 num_stages=2" for n in (128, 256)],
    ATTN_FWD_SPLIT: [f"BLOCK_M={m} BLOCK_N=64 EARLY=1 num_warps=4 num_stages=2" for m in (32, 64)],
    ATTN_FWD_COMBINE: [f"AT_ONCE={n} EARLY=1 num_warps=4 num_stages=1" for n in (8, 16)],
}


def image(functional: Functional, config: str) -> ImageSpec:
    return ImageSpec.parse(functional, config)


def images() -> dict[tuple[str, str], list[ImageSpec]]:
    """By kernel and functional of NARROW's calls."""
    own = {kernel: kernel.like(NARROW) for kernel in CONFIGS}
    return {(k.name, str(f)): [image(f, one) for one in CONFIGS[k]] for k, f in own.items() if f}


def test_calls_of_a_level_have_the_backends_that_serve_it() -> None:
    """Either of those that split keys, whichever has the rows, with one image of the last kernel, which has no levels;
    not the portable one.
    """
    lists = images()
    lists["attn_fwd", ""] = []
    for seqlen_q, backend in ((1, "decode"), (100, "split")):
        shape = {"batch": 2, "heads_q": 8, "heads_k": 4, "seqlen_q": seqlen_q, "seqlen_k": 4096, "head_dim": 64}
        found = sequences(ATTN_FWD, NARROW, shape, lists, GPU)
        assert [name for name, _ in found] == [backend] * 2
        assert all(specs[0].functional.level == Keys.fp8e4nv for _, specs in found)
        assert len({specs[1] for _, specs in found}) == 1


def test_one_split_is_timed_where_nothing_else_serves_the_call() -> None:
    """A workspace without elements is none for a call of the lead's, and one of a level's."""
    shape = shape_of(batch=128, heads_q=32, heads_k=8, seqlen_q=1, seqlen_k=1024, head_dim=64)
    request: Any = SimpleNamespace(tunables={})
    sequence: Any = LaunchSequence("decode", (request, request))
    nothing: Any = None
    lead = ATTN_FWD.lead.functional("sm_90", T="bf16", **CHOICES)
    scalars = {"level": 0, "lo": 0, "hi": 0, "features": 0, "longest_q": 1, "longest_k": 1024, "packed_sequences": 1}
    for functional, there in ((lead, False), (NARROW, True)):
        made = Sequences(TORCH, None, nothing, GPU)._workspace(
            DECODE, Draw(functional, shape, (sequence,)), scalars, sequence
        )
        assert (made is not None) == there
        assert not made or [prod(one.sizes) for one in made.values()] == [0, 0]


@pytest.mark.parametrize(
    ("wished", "levels"),
    [
        ((), {"attn_fwd", "attn_fwd_decode"}),
        ((Keys.rows,), {"attn_fwd"}),
        ((Keys.fp8e4nv, Keys.pages_fp8e4nv), {"attn_fwd_decode"}),
    ],
    ids=str,
)
def test_a_wish_for_a_level_leaves_out_others(wished: tuple[Keys, ...], levels: set[str]) -> None:
    """Those of the lead are of rows of 16 bits."""
    found = list(_asked(ATTN_FWD, "sm_90", Wish({"KEYS": wished})))
    assert {one.kernel.name for one in found} == levels
    assert not wished or {one.level for one in found if one.kernel is ATTN_FWD_DECODE} <= {*wished}


def test_models_of_a_level_leave_others_as_they_are() -> None:
    """With samples of a level, all models that there were are the same, and its own are added. Kernels of both levels
    may save something else: of images that are as good, one stays.
    """
    rows = Machine(ATTN_FWD, ATTN_FWD.lead.functional("sm_90", T="bf16", **CHOICES))
    narrow = Machine(ATTN_FWD, NARROW)
    old = rows.samples(star(rows, DECODE, 2), 60)
    new = [*narrow.samples(star(narrow, DECODE, 2), 60), *narrow.samples(star(narrow, SPLIT, 2), 60, seed=1)]

    def fitted(samples: Sequence[Sample], facts: Mapping[str, tuple[str, int, int]]) -> list[Model]:
        made = with_savings(fit(ATTN_FWD, "sm_90", samples, facts, GPU), ATTN_FWD, "sm_90")
        return [replace(one, saves=0.0) for one in made]

    before, after = fitted(old, rows.facts()), fitted([*new, *old], rows.facts() | narrow.facts())
    assert before
    assert [one for one in after if one in before] == before
    added = [one for one in after if one not in before]
    assert {one.kernel for one in added} == {"attn_fwd_decode", "attn_fwd_split"}
    assert {one.functional for one in added} == {str(NARROW)}


def test_a_level_is_timed_fitted_and_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call on the backend that serves it; its models replace the plain ones for its types, of which the images
    are compiled; a second run times nothing again.
    """
    path, store = tmp_path / "tuning.sqlite3", ImageStore(tmp_path / "store")
    with TuningDatabase(path) as database:
        session = database.evidence.begin_session(
            device=PRODUCT, driver="none", triton="0", torch="0", arch="sm_90", multiprocessors=GPU, options=""
        )
        for kernel, configs in CONFIGS.items():
            functional = kernel.like(NARROW)
            assert functional
            bin = bin_text(kernel.tuning_keys, next(kernel.cells()))
            problem = database.evidence.problem_id("sm_90", kernel.name, str(functional), bin, {"batch": 1})
            for config in configs:
                name = image(functional, config).name
                timed = database.evidence.image_id(name, config, "0" * 64, 128, 0, 1024)
                database.evidence.record(Measurement(problem, timed, session, "sweep", "ok", 10.0, [10.0]))
    monkeypatch.setenv("AOTRITON_STANDIN", json.dumps({}))
    worker = GpuProcess(LAUNCHER, "0", 20.0)
    try:
        given = Sampling(path, store, standin_images, None, 120, 0)
        asked = given, [ATTN_FWD], worker.device(), [worker], Progress(), {str(NARROW)}
        assert [sample(*asked), sample(*asked)] == [120, 0]
    finally:
        worker.close()
    with TuningDatabase(path) as database:
        samples = database.evidence.samples("sm_90", "attn_fwd")
        drawn = list(dict.fromkeys(_draws(120)))
        assert [one.functional for one in samples] == [str(NARROW)] * len(drawn)
        for one in samples:
            rows = int(str(one.shape["seqlen_q"])) * int(str(one.shape["heads_q"])) // int(str(one.shape["heads_k"]))
            backends = ["decode"] * (rows <= 64) + ["split"] * (rows > 16)
            assert sorted(timing.backend for timing in one.timings) == sorted(2 * backends)
        fit_models(database, [ATTN_FWD], "sm_90")
        compile_shipped(database, [ATTN_FWD], "sm_90", standin_images, store, None)
        found, facts = database.models("sm_90"), database.evidence.facts()
    models = Models(found, {name: config for name, (config, _, _) in facts.items()})
    for dtype in ("bf16", "fp16"):
        for kernel in (ATTN_FWD_DECODE, ATTN_FWD_SPLIT):
            own = kernel.functional("sm_90", T=dtype, KEYS=Keys.fp8e4nv, **CHOICES)
            shipped = models.shipped(own)
            assert models.are_of_level(own)
            assert shipped
            assert {one.config for one in shipped} <= {image(own, config).config for config in CONFIGS[kernel]}
            assert {one.name for one in shipped} <= set(facts)


def _draws(count: int) -> list[Any]:
    random = Random(f"0 {NARROW.kernel.name} {NARROW}")
    return [tuning("flash").draw(NARROW, random) for _ in range(count)]
