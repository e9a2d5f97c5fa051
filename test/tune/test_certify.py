"""Images that ship without having been measured are checked, and what was found is their certificate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from standin_compiler import BrokenCompiler, StandinCompiler
from test_session import LAUNCHER
from test_tune import WIDE, Project, project

from aotriton.codegen.compile import ImageStore, named_request
from aotriton.rules.database import Certificate, TuningDatabase
from aotriton.rules.family import family
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.flash.invariant import INVARIANT
from aotriton.rules.flash.planned import ATTN_FWD_HOPPER_PLANNED
from aotriton.rules.flash.split import ATTN_FWD_DECODE, Keys
from aotriton.rules.gemm.operator import GEMM_HOPPER_SPLIT
from aotriton.rules.image import ImageSpec
from aotriton.tune.coordinator.certify import Certified, certify, problem_of
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.flash.tuning import FlashTuning
from aotriton.tune.problem.candidates import configs, ruled_out
from aotriton.tune.problem.problems import Wish, problems_of
from aotriton.tune.workers.gpu_process import GpuProcess

__all__ = ["project"]

FUNCTIONAL = ATTN_FWD.functional("sm_90", T="fp16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="descriptor")
RIGHT, OTHER = (f"BLOCK_M={rows} BLOCK_N=64 num_warps=4 num_stages=2" for rows in (64, 128))
WIDE_IMAGE = "BLOCK_M=128 BLOCK_N=64 num_warps=8 num_stages=2"


def image(config: str) -> ImageSpec:
    return ImageSpec.parse(FUNCTIONAL, config)


def checked(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *configs: str,
    compiler: type[StandinCompiler] = StandinCompiler,
    **orders: object,
) -> Certified:
    monkeypatch.setenv("AOTRITON_STANDIN", json.dumps(orders))
    worker = GpuProcess(LAUNCHER, "0", 5.0)
    try:
        return certify(
            folder / "tuning.sqlite3", map(image, configs),
            lambda specs, store, jobs: ((one, compiler().compile(named_request(one), store)) for one in specs),
            ImageStore(folder / "store"), None, worker.device(), [worker], Progress(), "some",
        )  # fmt: skip
    finally:
        worker.close()


def certificates(folder: Path) -> dict[str, list[Certificate]]:
    with TuningDatabase(folder / "tuning.sqlite3", readonly=True) as database:
        return database.certificates()


def test_what_is_right_has_a_certificate_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest of the errors of all launches; no outcome that a winner could follow from, and none that keeps a run
    from measuring the image. The binary that was checked is the one that a build has to make.
    """
    done = checked(tmp_path, monkeypatch, RIGHT, OTHER)
    names = [image(config).name for config in (RIGHT, OTHER)]
    assert sorted(done.right) == sorted(names)
    found = certificates(tmp_path)
    assert sorted(found) == sorted(names)
    (certificate,) = found[names[0]]
    assert (certificate.product, certificate.problems, certificate.checks) == ("stand-in", 1, 22)
    assert (certificate.error, certificate.allowed) == (0.002, 0.004)
    with TuningDatabase(tmp_path / "tuning.sqlite3") as database:
        assert database.evidence.outcomes() == []
        assert database.evidence.failures("attn_fwd", "") == []
        assert database.checksums().keys() == database.evidence.checksums().keys() == set(names)
        (session,) = database.evidence.sessions()
    assert (session.strategy, session.options) == ("shipped", "some")


@pytest.mark.parametrize("fault", ["lie", "lie_further", "unsteady", "corrupt"])
def test_what_is_wrong_is_told_and_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    orders: dict[str, Any] = {fault: [OTHER]}
    done = checked(tmp_path, monkeypatch, RIGHT, OTHER, **orders)
    assert done.right == [image(RIGHT).name]
    assert done.wrong.keys() == {image(OTHER).name}
    assert certificates(tmp_path).keys() == {image(RIGHT).name}
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        assert [one.status for one in database.evidence.outcomes()] == ["wrong"]


def test_what_crashes_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be to blame; the other images of the problem are checked."""
    done = checked(tmp_path, monkeypatch, OTHER, RIGHT, crash=[OTHER])
    assert done.right == [image(RIGHT).name]
    assert "was killed by SIGABRT" in done.unchecked[image(OTHER).name]
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        assert database.evidence.outcomes() == []


def test_an_image_that_does_not_compile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = checked(tmp_path, monkeypatch, RIGHT, WIDE_IMAGE, compiler=BrokenCompiler)
    assert done.right == [image(RIGHT).name]
    assert done.unchecked[image(WIDE_IMAGE).name].startswith("it does not compile: error: xxx")


def test_an_image_is_checked_on_a_problem_of_its_own_functional() -> None:
    """Also of types and of keys in pages, which a run measures only if it is asked to."""
    problem = problem_of(image(RIGHT), 132)
    assert problem is not None
    assert problem.functional == FUNCTIONAL
    assert problem.sizes["seqlen_k"] > 64, "a loop would have one step"
    pages = ATTN_FWD_DECODE.functional(
        "sm_90", T="fp16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="descriptor", KEYS=Keys.pages
    )
    assert problem_of(configs(pages)[0], 132) is not None
    planned = next(one for one in ATTN_FWD_HOPPER_PLANNED.functionals("sm_90") if one["KEYS"] == Keys.pages)
    assert problem_of(configs(planned)[0], 132) is not None


def test_an_image_is_checked_where_no_restriction_rules_it_out() -> None:
    """A kernel that splits tiles is not checked where it would split none."""
    functional = next(one for one in GEMM_HOPPER_SPLIT.functionals("sm_90") if one["T"] == "fp16")
    for spec in configs(functional)[::40]:
        problem = problem_of(spec, 132)
        assert problem is not None
        allowed = [one for one in problems_of(functional, 132, Wish()) if not ruled_out(spec, one.keys)]
        assert problem in allowed or not allowed


def test_images_that_are_not_timed_have_a_problem_where_the_family_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has one, in a cell of its kernel; where a family names no such kernels, none has."""
    for kernel in (one for one in family("flash").kernels if not one.timed):
        for functional in kernel.functionals("sm_90"):
            problem = problem_of(ImageSpec(functional, (), ()), 132)
            assert problem is not None
            assert problem.cell in kernel.cells()
            assert problem.named.problem == problem, "a worker is sent its name"
    monkeypatch.delattr(FlashTuning, "untimed")
    assert problem_of(ImageSpec(next(INVARIANT.kernels[0].functionals("sm_90")), (), ()), 132) is None


def test_the_command_checks_what_ships_and_was_not_measured(project: Project) -> None:
    """Before all is measured it names what is missing. Then it checks what is borrowed; a second time there is nothing
    to check, and --again checks all. What is wrong is named, with status 1.
    """
    done = project.tune("--certify")
    assert done.returncode == 1
    assert "what ships is not known before all is measured that a build needs" in done.stderr
    assert project.tune("--addressing", "descriptor").returncode == 0
    done = project.tune("--certify")
    assert done.returncode == 0, done.stderr + done.stdout
    ships, asked = map(int, re.findall(r"(\d+) images ship; (\d+) of them", done.stdout)[0])
    assert 0 < asked < ships
    assert f"{asked} images are right" in done.stdout
    assert f"{ships} images ship; 0 of them are to be checked" in project.tune("--certify").stdout
    done = project.tune(
        "--certify", "--again", *WIDE, lie=["BLOCK_M=64 num_warps=4", "BLOCK_M=64 UNROLL=2 num_warps=4"]
    )
    assert done.returncode == 1
    assert re.search(r"^scale_rows\w* is wrong: out is off by 0.2, allowed 0.004$", done.stdout, re.MULTILINE)
