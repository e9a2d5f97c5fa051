"""Searches through the tuner, on a stand-in GPU: strategies, budgets, and finalists that another machine races."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_session import LAUNCHER, orders, own_store, run, small

from aotriton.codegen.compile import ImageStore
from aotriton.rules.database import TuningDatabase
from aotriton.tune.cli import run as running
from aotriton.tune.cli.budget import Budget, budget
from aotriton.tune.cli.main import main
from aotriton.tune.coordinator.search_history import ELSEWHERE, search_space
from aotriton.tune.dataset.finalists import LIST, read_finalists
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.tuning_error import TuningError

__all__ = ["orders", "own_store"]


def winners(tmp_path: Path) -> dict[str, str]:
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        return {one.bin: one.image for one in database.winners()}


@pytest.mark.parametrize("name", ["random", "pattern", "lfbo", "transfer"])
def test_a_strategy_chooses_what_is_tried(tmp_path: Path, orders: dict[str, object], name: str) -> None:
    """It has its budget and no more, of the rich space; its end is a row; the best of what it tried wins; and the same
    command finds nothing left to do.
    """
    outcomes = run(tmp_path, small(), strategy=name, budget=24)
    swept = [one for one in outcomes if one.phase == "sweep"]
    rich = {spec.name for spec in space(small()[0], rich=True).candidates}
    assert len({one.image for one in swept}) == len(swept) <= 24
    assert {one.image for one in swept} < rich
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        (end,) = database.evidence.searched("sm_90", "attn_fwd", "stand-in")
        (session,) = database.evidence.sessions()
        (winner,) = database.winners()
    assert (end.strategy, session.strategy, end.trials) == (name, name, len(swept))
    best = min(one.median_us or 0 for one in swept if one.status == "ok")
    assert winner.median_us <= 1.005 * best
    assert run(tmp_path, small(), strategy=name, budget=24) == outcomes


def test_a_search_is_not_an_enumeration(tmp_path: Path, orders: dict[str, object]) -> None:
    """What a search found stands until all is measured; then the enumeration decides among all of it."""
    first = run(tmp_path, small(), strategy="random", budget=8)
    before = winners(tmp_path)
    every = run(tmp_path, small())
    assert {spec.name for spec in space(small()[0]).candidates} <= {one.image for one in every}
    assert every[: len(first)] == first
    assert winners(tmp_path).keys() == before.keys()


def test_what_was_measured_elsewhere_is_known(tmp_path: Path, orders: dict[str, object]) -> None:
    """The history of a problem is the kernel's other problems with all their configs, and not itself; for another
    product it is in it, but further away, and models are told so.
    """
    run(tmp_path, small((512, 2048)))
    problem = small((512,))[0]
    with TuningDatabase(tmp_path / "tuning.sqlite3") as database:
        found = search_space(problem, space(problem).candidates, database, "stand-in")
        other = search_space(problem, space(problem).candidates, database, "another")
    same, further = other.history
    assert ELSEWHERE not in found.features
    assert [past.features[ELSEWHERE] for past in other.history] == [8.0, 8.0]
    assert other.features == {**found.features, ELSEWHERE: 1.0}
    assert (same.features["max_seqlen_q"], further.features["max_seqlen_q"]) == (512, 2048)
    assert same.medians.keys() <= other.known
    (past,) = found.history
    assert past.features["max_seqlen_q"] == 2048
    assert found.features["max_seqlen_q"] == 512
    ok = [spec for spec in space(problem).candidates if "BLOCK_N=128" not in spec.config]
    assert {config for config in past.medians} == {
        spec.tunables + spec.compile_options for spec in ok if "num_stages=4" not in spec.config
    }
    assert len(past.failed) == len(found.configs) - len(past.medians)


WHAT = ["--kernel", "attn_fwd", "--head-dim", "64", "--level", "0", "--no-causal", "--seqlen-q", "512", "--waves", "8"]
WHAT += ["--addressing", "descriptor", "--launcher", LAUNCHER]


@pytest.fixture
def here(tmp_path: Path, orders: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database where one problem is measured; its three best are in a file beside it. The store is another one now,
    and empty, as on another machine.
    """
    monkeypatch.setattr(running, "COMPILER", "standin_compiler:StandinCompiler")
    monkeypatch.setattr(running, "PAUSES", (0, 0))
    path = tmp_path / "here.sqlite3"
    assert main([*WHAT, "--database", str(path), "--top", "3"]) == 0
    monkeypatch.setenv("AOTRITON_IMAGE_STORE", str(tmp_path / "elsewhere"))
    return path


@pytest.mark.parametrize("own", [True, False])
def test_finalists_are_raced_elsewhere(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """``--top`` writes the best with their images; another machine measures those alone, and decides. It needs no
    compiler if the file is one's own; else it compiles the images itself.
    """
    if own:
        monkeypatch.setattr(running, "COMPILER", "no_such_module:Compiler")
    written, there = here.with_suffix(".finalists.zip"), tmp_path / "there.sqlite3"
    whose = ["--own"] if own else []
    assert main(["--database", str(there), "--finalists", str(written), "--launcher", LAUNCHER, *whose]) == 0
    with TuningDatabase(here, readonly=True) as first, TuningDatabase(there, readonly=True) as second:
        best = sorted(
            (o.median_us or 0.0, o.image) for o in first.evidence.outcomes() if o.status == "ok" and o.phase == "sweep"
        )
        assert {o.image for o in second.evidence.outcomes()} <= {image for _, image in best}
        assert len({o.image for o in second.evidence.outcomes()}) == 3
        assert [w.image for w in second.winners()] == [w.image for w in first.winners()]


def changed(path: Path, to: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """A file of finalists with other contents."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(to, "w") as made:
        for name in source.namelist():
            made.writestr(name, change(name, source.read(name)))
    return to


def test_an_image_of_finalists_is_what_its_file_says_or_nothing_is_stored(here: Path, tmp_path: Path) -> None:
    """A file from nobody one knows puts nothing into the store, whatever its images are."""
    written, store = here.with_suffix(".finalists.zip"), ImageStore()
    others = changed(written, tmp_path / "other.zip", lambda name, given: given if "json" in name else b"other bytes")
    with pytest.raises(TuningError, match=r"other\.zip: no finalists: .*: the file has another binary than it says"):
        read_finalists(others, store)
    assert list(read_finalists(others, None).values()) == list(read_finalists(written, None).values())
    assert not [one for one in store.path.iterdir() if one.name != ".lock"]
    ((_, specs),) = read_finalists(written, store).items()
    assert {spec.name for spec in specs} == {spec.name for spec in specs if store.get(spec.name)}


@pytest.mark.parametrize("change", [("512", "-512"), ("512", '"a"'), ('"cell": [', '"cell": [7, ')])
def test_finalists_of_no_problem_are_refused(here: Path, tmp_path: Path, change: tuple[str, str]) -> None:
    def lie(name: str, given: bytes) -> bytes:
        text = given.decode("latin-1")
        place = max(text.rfind('"shape"'), 0) if change[0] == "512" else 0
        return (text[:place] + text[place:].replace(*change)).encode("latin-1") if name == LIST else given

    with pytest.raises(TuningError, match=r"other\.zip: no finalists: "):
        read_finalists(changed(here.with_suffix(".finalists.zip"), tmp_path / "other.zip", lie), None)


def test_what_somebody_unknown_measured_decides_once_it_is_confirmed(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Merging decides nothing; ``--confirm`` measures their four best here, and decides by what it measured."""
    there = tmp_path / "there.sqlite3"
    database = ["--database", str(there)]
    assert main([*database, "--merge", str(here)]) == 0
    assert "Nobody you know vouches for them" in capsys.readouterr().out
    with TuningDatabase(there, readonly=True) as second:
        assert second.winners() == []
    assert main([*database, *WHAT, "--confirm"]) == 0
    with TuningDatabase(here, readonly=True) as first, TuningDatabase(there, readonly=True) as second:
        assert len({one.image for one in second.evidence.outcomes()}) == 4
        assert [w.image for w in second.winners()] == [w.image for w in first.winners()]
        assert {one.standing for one in second.evidence.sessions()} == {"own", "unknown"}
    assert main([*database, *WHAT, "--confirm"]) == 2
    assert "no rows of unknown origin are left to confirm" in capsys.readouterr().err


def test_a_file_that_has_no_finalists_is_refused(tmp_path: Path) -> None:
    """It is named, whatever it is; so is one of other kernels' images."""
    path = tmp_path / "some.zip"
    path.write_bytes(b"PK no zip")
    with pytest.raises(TuningError, match=r"some\.zip: no finalists"):
        read_finalists(path, None)
    problem = small()[0]
    listed = {
        "kernel": "attn_fwd", "arch": "sm_90", "functional": str(problem.functional), "cell": problem.cell,
        "shape": problem.sizes,
        "candidates": [{"image": "other", "config": space(problem).candidates[0].config, "median_us": 1.0}],
    }  # fmt: skip
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(LIST, json.dumps([listed]))
    with pytest.raises(TuningError, match="another image here, of another source"):
        read_finalists(path, None)


def test_budgets_are_trials_seconds_or_dollars() -> None:
    """A dollar buys GPU hours by their price; what is none of these is refused."""
    assert budget("64", None) == Budget(trials=64)
    assert budget("60s", None) == Budget(seconds=60.0)
    assert budget("0.80usd", 4.0) == Budget(dollars=0.8)
    for text in ("0", "-3", "64x", "1.5", "", "0usd"):
        with pytest.raises(ValueError, match="--budget"):
            budget(text, 1.0)
    with pytest.raises(ValueError, match="needs --price"):
        budget("1usd", None)


def test_a_search_ends_when_its_budget_is_spent(tmp_path: Path, orders: dict[str, object]) -> None:
    """Within its problem, which is decided by what is measured, and ended: the same command does nothing more. An
    enumeration with as little goes on.
    """
    orders.update(slow=0.4)
    costly: Any = {"dollars": 6.0, "price": 3600.0}  # six seconds
    found = run(tmp_path, small(), strategy="random", **costly)
    tried = {one.image for one in found}
    assert 0 < len(tried) < len(space(small()[0]).candidates)
    (won,) = winners(tmp_path).values()
    assert won in tried
    assert run(tmp_path, small(), strategy="random") == found
    orders.update(slow=0)
    every = run(tmp_path, small(), **costly)
    assert {one.image for one in every} >= {spec.name for spec in space(small()[0]).candidates}


def test_a_search_ends_when_its_seconds_are_over(tmp_path: Path, orders: dict[str, object]) -> None:
    """Also where it has hardly begun: something is right first."""
    orders.update(slow=0.2)
    found = run(tmp_path, small(), strategy="random", end=time.monotonic() + 8.0)
    assert len(found) < len(space(small()[0], rich=True).candidates)
    assert len(winners(tmp_path)) == 1


def test_no_problem_is_begun_when_the_gpus_have_cost_enough(tmp_path: Path, orders: dict[str, object]) -> None:
    """A run without a GPU second left measures nothing, and the same command with more of them goes on."""
    assert run(tmp_path, small(), strategy="random", budget=8, dollars=1e-9, price=4.0) == []
    run(tmp_path, small(), strategy="random", budget=8, dollars=1e6, price=4.0)
    assert len(winners(tmp_path)) == 1
