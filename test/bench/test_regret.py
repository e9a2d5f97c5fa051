"""The benchmark of the choice: what it compares. No GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from aotriton.rules.family import operator
from aotriton.rules.kernel import Functional
from aotriton.tune.measure.requests import Draw

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import regret  # the benchmarks are no package

CHOICES: dict[str, Any] = {"T": "bf16", "BLOCK_DMODEL": 128, "CAUSAL": False, "ADDRESSING": "descriptor"}


def test_what_refuses_a_call_is_left_out_and_named() -> None:
    """A backend whose guards refuse a shape cannot be timed on it: it is no candidate there, and the result says so."""
    attn_bwd = operator("attn_bwd")
    functional = attn_bwd.lead.functional("sm_90", **CHOICES)
    short = {"batch": 2, "heads_q": 16, "heads_k": 16, "seqlen_q": 100, "seqlen_k": 100, "head_dim": 128}
    found, refusing = regret.serving(attn_bwd, functional, short, 132)
    assert refusing == []
    assert "hopper_heads" in {one.name for one in found}
    found, refusing = regret.serving(attn_bwd, functional, short | {"seqlen_q": 8192, "seqlen_k": 8192}, 132)
    assert refusing == ["hopper_heads"]
    assert "hopper_heads" not in {one.name for one in found}
    cell = {
        "operator": "attn_bwd", "dtype": "bf16", "causal": False, "sizes": short, "best_us": 10.0, "best": "portable",
        "chosen_us": 11.0, "chosen": "portable", "cells_us": 12.0, "predicted_us": 10.5, "refusing": refusing,
    }  # fmt: skip
    assert "hopper_heads refuses 1 of the shapes by its guards." in regret.summary([cell])


def test_backends_of_other_levels_are_no_candidates() -> None:
    """The backend of queries of 8 bits has images, and none of them serves a call of bf16."""
    attn_fwd = operator("attn_fwd")
    functional = attn_fwd.lead.functional("sm_90", **CHOICES)
    sizes = {"batch": 2, "heads_q": 16, "heads_k": 16, "seqlen_q": 4096, "seqlen_k": 4096, "head_dim": 128}
    found, refusing = regret.serving(attn_fwd, functional, sizes, 132)
    assert {"portable", "hopper"} <= {one.name for one in found}
    assert not {"hopper_fp8", "hopper_features"} & {*refusing, *(one.name for one in found)}


class OneOfEach:
    """A build with two images of each functional."""

    def of(self, functional: Functional) -> list[str]:
        return [f"{functional.kernel.name} a", f"{functional.kernel.name} b"]

    def request(self, functional: Functional, name: str) -> str:
        assert name.split()[0] == functional.kernel.name
        return name


class Recording:
    """In the place of what times launch sequences."""

    def __init__(self) -> None:
        self.launched: dict[str, list[tuple[str, ...]]] = {}

    def time(self, draw: Draw) -> list[Any]:
        for one in draw.sequences:
            self.launched.setdefault(one.backend, []).append(one.requests)  # type: ignore[arg-type] # they are names
        return []


@pytest.mark.parametrize("name", ["attn_fwd", "attn_bwd"])
def test_each_sequence_has_an_image_of_each_kernel_that_is_timed(name: str) -> None:
    """Of 40 random calls, every sequence that is compared can be launched: it has one image of each timed kernel of its
    backend, in order. Backends of which nothing is timed are no candidates.
    """
    asked, recording, shipped = operator(name), Recording(), OneOfEach()
    judge = regret.Judge(name, "sm_90", "NVIDIA H100 80GB HBM3", 132, shipped, recording)  # type: ignore[arg-type]
    for problem in regret.problems(name, 40, 7):
        functional, sizes = judge._functional(problem), problem["sizes"]
        found, _ = regret.serving(asked, functional, sizes, 132)
        judge._time(functional, sizes, list(regret.star(found, functional, sizes, shipped)))  # type: ignore[arg-type]
    timed = {one.name: [kernel.name for kernel in one.timed_kernels] for one in asked.backends}
    assert "portable" in recording.launched
    for backend, sequences in recording.launched.items():
        assert timed[backend]
        assert {tuple(image.split()[0] for image in images) for images in sequences} == {tuple(timed[backend])}


def test_a_kernel_that_a_call_does_not_launch_has_an_image_all_the_same() -> None:
    """A choice of keys in one part has nothing to combine; what is timed beside others has both kernels."""
    shipped = OneOfEach()
    judge = regret.Judge("attn_fwd", "sm_90", "NVIDIA H100 80GB HBM3", 132, shipped, Recording())  # type: ignore[arg-type]
    functional = operator("attn_fwd").lead.functional("sm_90", **CHOICES)
    sizes = {"batch": 1, "heads_q": 40, "heads_k": 5, "seqlen_q": 102, "seqlen_k": 102, "head_dim": 128}
    split, combine = (
        {"backend": "split", "kernel": f"attn_fwd_{one}", "image": f"{one} b"} for one in ("split", "combine")
    )
    assert judge._sequence(functional, sizes, [split]) == ("split", ("split b", "attn_fwd_combine a"))
    assert judge._sequence(functional, sizes, [split, combine]) == ("split", ("split b", "combine b"))
