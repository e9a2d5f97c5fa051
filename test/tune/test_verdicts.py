"""Verdicts expire with what they were judged by, and the value of a constant is a part of what an image is."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import autotuned
import pytest
import standin_launcher
from test_autotune import ROW_SUM, doubled, scaled, spec_of, tuned_in
from test_decide import CELL, FAST, PLACE, SLOW, Log, functional
from test_session import orders, own_store, run, small, swept

from aotriton.codegen.store import CompiledImage
from aotriton.rules import family, judge
from aotriton.rules.database import Outcome, TuningDatabase, counting
from aotriton.rules.database.rows import ImageCheck, certificates
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.image import source_digest
from aotriton.rules.judge import judge_of, of_today
from aotriton.tune.autotune import tuned as program
from aotriton.tune.autotune.source import slice_of
from aotriton.tune.autotune.tuned import Tuned
from aotriton.tune.autotune.tuning import DrawnTuning
from aotriton.tune.coordinator import rows as coordinator_rows
from aotriton.tune.measure.requests import Request
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Wish, problems
from aotriton.tune.winners.campaign import decidable
from aotriton.tune.workers.gpu_process import _Child

__all__ = ["orders", "own_store"]

CONFIGS = [f"CHUNK={chunk} num_warps={warps}" for chunk in (64, 256) for warps in (2, 4)]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder, a GPU and families of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(family.VARIABLE, "")
    monkeypatch.setattr(program, "product_here", lambda: "stand-in")


@pytest.fixture
def judged_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Called, it makes another judge of each kernel, by another tolerance."""

    def change(margin: float) -> None:
        monkeypatch.setattr(judge, "_tolerances", lambda: {"MARGIN": margin})
        judge._judge_of.cache_clear()

    yield change
    judge._judge_of.cache_clear()


def lying(monkeypatch: pytest.MonkeyPatch, *configs: str) -> None:
    monkeypatch.setenv("AOTRITON_STANDIN", json.dumps({"lie": configs}))


def test_a_corrected_reference_judges_anew(own: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was right by the first one. By the other one all is measured again, and one config wins."""
    lying(monkeypatch, *CONFIGS)
    with pytest.raises(RuntimeError, match="no config won at n=1024: 4 wrong"):
        doubled().tune()
    lying(monkeypatch, CONFIGS[0])
    one = doubled(reference=autotuned.of_doubled_rightly).tune()
    assert tuned_in(one) == {"wrong": 5, "ok": 3}


def winners(tmp_path: Path) -> list[str]:
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        return [one.config for one in database.winners() if one.provenance == "measured"]


def test_a_winner_falls_with_its_judge(
    tmp_path: Path, orders: Any, judged_by: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a bad judge accepted is measured again, and does not stay; a judge that comes back finds its verdicts."""
    before = run(tmp_path, small())
    assert len(winners(tmp_path)) == 1
    judged_by(1.0)
    orders.update(lie=[one.config for one in before])
    after = run(tmp_path, small())[len(before) :]
    assert Counter(one.status for one in after) == Counter(
        one.status.replace("ok", "wrong") for one in before if one.phase == "sweep"
    )
    assert winners(tmp_path) == []
    monkeypatch.undo()
    monkeypatch.setenv("AOTRITON_STANDIN", json.dumps({"lie": ["nothing is measured"]}))
    judge._judge_of.cache_clear()
    assert len(run(tmp_path, small())) == len(before) + len(after)


def test_what_was_measured_before_there_were_judges_counts_in_the_tree(
    tmp_path: Path, orders: Any, judged_by: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is measured again, whatever the judge; a kernel from elsewhere is judged anew."""
    monkeypatch.setattr(coordinator_rows, "judge_of", lambda kernel: None)
    before = run(tmp_path, small())
    assert {one.judge for one in before} == {""}
    judged_by(1.0)
    assert run(tmp_path, small()) == before


def test_what_may_win_is_checked_further(tmp_path: Path, orders: Any) -> None:
    """The candidates that lead or race are; one that lies on the second input only, one whose bits change, and one that
    lies at sizes that are no multiples of a tile, are wrong and do not win. Each row says how many launches were
    checked, and so do certificates.
    """
    fit = [one.config for one in space(small()[0]).candidates if not re.search("num_stages=4|BLOCK_N=128", one.config)]
    best, second, third, fourth, *_ = sorted(fit, key=standin_launcher.time_of)
    orders.update(lie_further=[best], unsteady=[second], lie_ragged=[third])
    outcomes = run(tmp_path, small(), limit=60.0)
    statuses = swept(outcomes)
    assert [statuses[one] for one in (best, second, third, fourth)] == ["wrong", "wrong", "wrong", "ok"]
    assert winners(tmp_path) == [fourth]
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        said = {config: text for *_, config, text in database.evidence.failures("attn_fwd", judge_of(ATTN_FWD))}
        checks = dict(
            database._file.execute(
                "SELECT config, checks FROM evidence.measurement JOIN evidence.image ON image.id = image"
                " WHERE phase = 'sweep'"
            )
        )
        (winner,) = database.winners()
        (certificate,) = database.certificates()[winner.image]
    assert said[best] == "wrong: on other numbers: out is off by 0.3, allowed 0.004"
    assert said[second] == "wrong: out has other bits after launch 7 on the same inputs"
    assert said[third].startswith("wrong: at batch=1 heads=3 seqlen_q=")
    assert [checks[one] for one in (best, second, third, fourth)] == [22, 22, 22, 22]
    assert (certificate.problems, certificate.checks, certificate.error) == (1, 22, 0.002)


def test_what_can_not_win_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that is more than 5 % slower than the best is neither checked further nor found to lie there."""
    config = "BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=2"
    monkeypatch.setenv("AOTRITON_STANDIN", json.dumps({"lie_further": [config]}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    child, request = _Child(standin_launcher.StandinLauncher()), Request("an image", "attn_fwd", config, Path(), {}, {})
    child.prepare(small()[0].named)
    time = standin_launcher.time_of(config)
    for best, told in ((None, ("wrong", 22)), (time / 1.04, ("wrong", 22)), (time / 1.06, ("ok", 1))):
        result = child.sweep(request, best)
        assert (result.status, result.checks) == told


def test_smaller_sizes_are_of_the_same_cell(own: None, tmp_path: Path) -> None:
    """By 1, or by 16 if guards want multiples; not what is compiled in, nor what would be of another cell."""
    for name, changes, expected in (
        ("any", {"sizes": {"n": (1000, 4096)}}, {1000: 999, 4096: 4095}),
        ("multiples", {"sizes": {"n": (16, 32, 4096)}}, {16: 16, 32: 32, 4096: 4080}),
        ("dense", {"sizes": {"n": (999, 1000)}}, {999: 998, 1000: 1000}),
        ("rows", ROW_SUM, {64: 48}),
    ):
        one = scaled(folder=tmp_path / f"smaller_{name}", **changes)
        one.write()
        (kernel,) = family.add(one.folder).kernels
        own_tuning = tuning(kernel.family)
        assert isinstance(own_tuning, DrawnTuning)
        size = "rows" if name == "rows" else "n"
        found = {p.sizes[size]: own_tuning.smaller(p) for p in problems([kernel], "sm_90", 132, Wish())}
        assert {value: sizes[size] for value, sizes in found.items()} == expected
        assert all(sizes.get("columns", 128) in (32, 128) for sizes in found.values())
        os.environ[family.VARIABLE] = ""  # the next family has a kernel of the same name


def test_a_search_that_ended_by_another_judge_has_not_ended(
    tmp_path: Path, orders: Any, judged_by: Callable[[float], None]
) -> None:
    """Its strategy begins anew, and all that it asks for is measured again."""
    first = run(tmp_path, small(), strategy="random", budget=6)
    judged_by(1.0)
    second = run(tmp_path, small(), strategy="random", budget=6)
    assert swept(second[len(first) :]) == swept(first)
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        ends = database.evidence.searched("sm_90", "attn_fwd", "stand-in")
    assert len({one.judge for one in ends}) == 2
    assert [one.judge for one in of_today(ends)] == [judge_of(ATTN_FWD)]


def outcome(kernel: str = "attn_fwd", judge: str = "", shape: str = "{}", status: str = "ok") -> Outcome:
    return Outcome(
        0, "sm_90", "GPU", kernel, "T=bf16", "b", shape, "image", "c", 1, "sweep", status, 1.0, "2026-05-01", judge
    )


def test_which_verdicts_count(own: None, tmp_path: Path) -> None:
    """Today's; unnamed ones of the tree; all on kernels that are not known. Of a problem that today's judge has not
    seen, all do.
    """
    one = doubled(folder=tmp_path / "counted")
    one.write()
    family.add(one.folder)
    here, elsewhere = judge_of(ATTN_FWD), one._judge
    found = [outcome(judge=text) for text in ("", here, "of old")]
    assert of_today(found) == found[:2]
    found = [outcome("doubled", text) for text in ("", elsewhere, "of old")]
    assert of_today(found) == found[1:2]
    found = [outcome("unknown", text) for text in ("", "of old")]
    assert of_today(found) == found
    mixed = [outcome("doubled", "of old", "1"), outcome("doubled", "of old", "2"), outcome("doubled", elsewhere, "2")]
    assert counting(mixed) == [mixed[0], mixed[2]]


def test_certificates_are_of_todays_judge() -> None:
    """Neither what an old one accepted nor what it refused counts."""
    now = judge_of(ATTN_FWD)

    def check(image: str, judge: str, status: str) -> ImageCheck:
        return ImageCheck(image, "GPU", "attn_fwd", judge, 1, 22, "2026-05-01", status, 0.1, 0.2)

    checks = [check("a", "of old", "wrong"), check("a", now, "ok"), check("b", "of old", "ok"), check("c", "", "ok")]
    assert {image: own[0].checks for image, own in certificates(checks).items()} == {"a": 22, "c": 22}


def test_a_place_that_is_judged_in_part_keeps_its_winner() -> None:
    """Until the winner itself is judged; then it is decided among what is known."""
    log = Log()
    old = log.add(functional(), CELL, SLOW, 10.0)
    log.add(functional(), CELL, FAST, 1.0, session=2)
    log.outcomes[1] = replace(log.outcomes[1], judge=judge_of(ATTN_FWD))
    log.outcomes[0] = replace(log.outcomes[0], judge="of old")
    (stands,) = log.decide(standing={PLACE: old})
    stands = replace(stands, image=old)
    assert decidable([functional()], counting(log.outcomes), [stands], {}) == ([], set())
    again = [*log.outcomes, replace(log.outcomes[0], id=2, judge=judge_of(ATTN_FWD))]
    assert decidable([functional()], counting(again), [stands], {}) == (again[1:], {PLACE})


def other_reference(x: Any, shift: float = 0.0) -> Any:
    return x + 2 * x + shift


def prepared(x: Any) -> dict[str, Any]:
    return {"x": x}


@pytest.mark.parametrize(
    "changes",
    [
        {"reference": other_reference},
        {"tolerance": 1e-3},
        {"prepare": prepared},
        {"grid": "cdiv(n, BLOCK) + 1"},
        {"inputs": {"x": "fp32[n]", "count": "n", "shift": 0.25, "steps": 1}},
        {"inputs": {"x": "fp32[n]", "count": "n - 1", "shift": 0.5, "steps": 1}},
    ],
    ids=["reference", "tolerance", "prepare", "grid", "scalar", "number"],
)
def test_what_a_judge_is_made_of(own: None, changes: dict[str, Any]) -> None:
    assert scaled(**changes)._judge != scaled()._judge


def test_what_a_judge_is_not_made_of(own: None, tmp_path: Path) -> None:
    """The name and the place of a family, the configs to try, and the sizes, which problems have themselves."""
    one = scaled(folder=tmp_path / "judged_once")
    for other in (
        scaled(folder=tmp_path / "elsewhere"),
        scaled(space={"BLOCK": (64,), "num_warps": (1, 2)}),
        scaled(sizes={"n": (1000, 4096, 9000)}),
    ):
        assert other._judge == one._judge
    scaled(folder=tmp_path / "judged_once", prepare=prepared).write()
    one.write()
    kernel = next(one for one in family.add(one.folder).kernels)
    assert judge_of(kernel) == one._judge, "what the tuner records is not what its user asks for"


CONSTANTS = """
import os
import triton
import triton.language as tl
import math

LITERAL = tl.constexpr(2)
TABLE = [1, 2]
GIVEN = tl.constexpr(int(os.environ["GIVEN"]))
LOWEST = tl.constexpr(float("-inf"))
A, B = 1, int(os.environ["GIVEN"])
if os.environ["GIVEN"] == "3":
    CHOSEN: tl.constexpr = 1.5
else:
    CHOSEN: tl.constexpr = 2.5
ANNOTATED: tl.constexpr = int(os.environ["GIVEN"]) + 1
DTYPE = tl.float16 if B == 3 else tl.bfloat16


@triton.jit
def kernel(x, out, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    value = tl.load(x + place) * GIVEN
    tl.store(out + place, value)


def uses():
    return LITERAL, TABLE, GIVEN, LOWEST, A, B, CHOSEN, ANNOTATED, DTYPE


def scaled_by(x):
    return x * B
"""


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> Any:
    """A module with constants, some of which follow from the environment."""
    monkeypatch.setenv("GIVEN", given)
    path = tmp_path / "constants.py"
    path.write_text(CONSTANTS)
    spec = importlib.util.spec_from_file_location("constants", path)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_constants_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their values, but where the text says them; they are the same in a process with another environment."""
    made = module(tmp_path, monkeypatch, "3")
    text = slice_of(made.uses)
    for line in (
        "LITERAL = tl.constexpr(2)",
        "TABLE = [1, 2]",
        "GIVEN = tl.constexpr(3)",
        'LOWEST = tl.constexpr(float("-inf"))',
        "A = 1\nB = 3",
        "CHOSEN = 1.5",
        "ANNOTATED: tl.constexpr = 4",
        "DTYPE = tl.float16 if B == 3 else tl.bfloat16\n'DTYPE is triton.language.float16'",
    ):
        assert line in text
    assert "os" not in text.replace("constants", "").replace("aotriton", "").replace("constexpr", "").split()
    monkeypatch.setenv("GIVEN", "4")
    again: dict[str, Any] = {}
    exec(text, again)
    assert repr(again["uses"]()) == repr(made.uses())
    assert slice_of(module(tmp_path, monkeypatch, "4").uses) != text


def test_computed_constants_of_a_family_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a module that the kernel's imports from its package; a module of literals is not even imported."""
    folder = tmp_path / "computing"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "shared.py").write_text("import os\nFACTOR = int(os.environ['GIVEN'])\n")
    (folder / "kernel.py").write_text("from computing.shared import FACTOR\nOTHER = 3\n")
    (folder / "plain.py").write_text("OTHER = -3\nLOWEST: constexpr = constexpr(2.5)\nraise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)

    def digest(given: str, name: str) -> str:
        monkeypatch.setenv("GIVEN", given)
        for module in [one for one in sys.modules if one.partition(".")[0] == "computing"]:
            del sys.modules[module]
        source_digest.cache_clear()
        return source_digest("computing", f"computing.{name}")

    assert digest("3", "kernel") == digest("3", "kernel") != digest("5", "kernel")
    assert digest("3", "plain") == digest("5", "plain")


def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> tuple[Tuned, Any]:
    made = module(tmp_path, monkeypatch, given)
    inputs, results = {"x": "fp32[n]"}, {"out": "fp32[n]"}
    one = scaled(
        kernel=made.kernel, inputs=inputs, results=results, sizes={"n": 64}, reference=made.scaled_by, grid=1,
        space={"BLOCK": (64,), "num_warps": (1,)}, folder=tmp_path / f"given_{given}",
    )  # fmt: skip
    return one, spec_of(one)


def test_the_value_of_a_constant_is_a_part_of_an_image_and_of_a_judge(
    own: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another value in the environment makes an image of another name, not the one that is in the store."""
    from test_autotune import compiled

    one, first = image(tmp_path, monkeypatch, "3")
    three = compiled(first, tmp_path)
    other, second = image(tmp_path, monkeypatch, "5")
    five = compiled(second, tmp_path)
    assert isinstance(three, CompiledImage)
    assert isinstance(five, CompiledImage)
    assert first.name != second.name
    assert three.metadata["sha256"] != five.metadata["sha256"]
    assert one._judge != other._judge
