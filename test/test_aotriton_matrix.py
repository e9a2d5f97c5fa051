"""Claims about test/gpu/aotriton_matrix.py that need no GPU: what there is to draw, and that it finds what is wrong."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from gpu.aotriton_matrix import MATRICES, Case, Refused, Tensors, cases, run, textbook

FOLDER = Path(__file__).resolve().parent / "gpu"

FEW = 1 << 16  # scores


def test_the_list_needs_nothing_and_counts_the_matrices() -> None:
    """Python alone says how many cases there are: those of AOTriton's parametrisation, multiplied out."""
    command = [sys.executable, "-S", "-E", str(FOLDER / "aotriton_matrix.py"), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.strip().partition("  ") for line in done.stdout.splitlines()]
    counts = {name: int(count.replace(",", "")) for count, _, name in rows}
    assert counts["forward"] == 2 * 2 * 23 * 8 * 8 * 2 * 2 * 3 * 2 * 2
    assert counts["backward, regular"] == 24 * 11 * 11 * 2 * 2 * 3 * 2 * 2
    assert counts["backward, grouped"] == 2 * 24 * 3 * 4 * 2 * 2 * 3 * 2
    assert counts.pop("cases") == sum(counts.values()) == sum(map(len, MATRICES.values()))


def test_draws_are_the_seeds_and_reach_everything() -> None:
    """The same seed draws the same cases, of all matrices alike, and among them every value of every axis."""
    drawn = list(islice(cases(3), 11 * 400))
    assert drawn == list(islice(cases(3), 11 * 400)) != list(islice(cases(4), 11 * 400))
    assert set(Counter(name for name, _ in drawn).values()) == {400}
    for name, matrix in MATRICES.items():
        own = [case for drawn_name, case in drawn if drawn_name == name]
        for axis in ("heads", "dims", "scale", "causal", "flipped", "dropout", "bias", "dtype"):
            if len(getattr(matrix, axis)) < 30:
                assert {getattr(case, axis) for case in own} == set(getattr(matrix, axis)), (name, axis)


def test_names_of_scales_are_what_they_say() -> None:
    case = MATRICES["backward, regular"].draw(random.Random(0))
    scales: dict[float | str, float] = {"l1": 1 / case.dims[0], "l2": case.dims[0] ** -0.5}
    assert scales[case.scale] == case.sm_scale


def library(given: Tensors, case: Case, **changed: Any) -> Tensors:
    """A right one, of heads that are not grouped, in float32, rounded at the end; Refused as ours."""

    import torch

    if case.dtype == "float32" or case.dims[0] != case.dims[1]:
        raise Refused("not this one")
    group = case.heads[0] // case.heads[1]
    alike = {name: given[name].repeat_interleave(group, 1) for name in ("k", "v")}
    heads = torch.arange(case.batch * case.heads[0]).reshape(case.batch, -1)
    made = textbook(given | alike, replace(case, **changed), torch.float32, heads)
    for name in ("dk", "dv"):
        made[name] = made[name].unflatten(1, (-1, group)).sum(2)
    return {name: one.to(given["q"].dtype) for name, one in made.items()}


def test_a_right_library_passes_and_what_it_refuses_is_counted() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    report = run(60, 1, library, "cpu", FEW)
    assert not report.failed, report.failed
    assert report.served.total() == 60
    assert report.of_scale_zero > 0
    assert set(report.refused) == {"not this one"}
    assert report.drawn.total() == 60 + report.refused.total()
    assert "60 passed, 0 failed" in str(report)


def test_a_scale_of_zero_that_is_taken_for_another_one_is_found() -> None:
    """And nothing else fails: each of those cases, by its name."""
    pytest.importorskip("torch", reason="torch is not installed")

    def mistaken(given: Tensors, case: Case) -> Tensors:
        return library(given, case, scale="l2" if case.scale == 0 and case.seqlen_k > 8 else case.scale)

    report = run(60, 1, mistaken, "cpu", FEW)
    assert report.failed
    assert all("scale 0.0" in one for one in report.failed)


@pytest.mark.parametrize(("left_out", "word"), [({"dropout": 0.0}, "dropout"), ({"bias": False}, "bias")])
def test_a_library_without_dropout_or_bias_is_found(left_out: dict[str, Any], word: str) -> None:
    """Each case that has it fails, and no other one."""
    pytest.importorskip("torch", reason="torch is not installed")

    def without(given: Tensors, case: Case) -> Tensors:
        made = library(given, case, **left_out)
        return made if "dbias" in made or not case.bias else made | {"dbias": 0 * given["bias"]}

    report = run(60, 3, without, "cpu", FEW)
    assert len(report.failed) > 5
    assert all(word in one for one in report.failed), report.failed


@pytest.mark.parametrize("result", ["out", "dq", "dk", "dv", "dbias"])
def test_a_wrong_or_missing_number_is_found_in_each_result(result: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    for wrong in (100.0, float("nan")):

        def spoiled(given: Tensors, case: Case, wrong: float = wrong) -> Tensors:
            made = library(given, case)
            if result not in made:
                raise Refused("it has no such result")
            made[result] = made[result].contiguous()
            made[result].view(-1)[-1] += wrong * (1 + made[result].abs().amax())
            return made

        report = run(5, 2, spoiled, "cpu", FEW)
        assert len(report.failed) == 5
        assert all(f"{result} is" in one for one in report.failed), report.failed
