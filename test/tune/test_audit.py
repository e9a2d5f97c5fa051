"""The audit of a database's decisions: each kind of finding, and that ``--decide`` mends what needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_retract import CELLS, FUNCTIONAL, SPECS, begin, measure

from aotriton.codegen.store import CompiledImage, ImageStore
from aotriton.rules.database import Measurement, Model, TuningDatabase, Winner
from aotriton.rules.image import ImageSpec
from aotriton.tune.cli.main import main
from aotriton.tune.winners import decide_all as module
from aotriton.tune.winners.audit import audit
from aotriton.tune.winners.decide_all import decide_all
from aotriton.tune.winners.siblings import decide_siblings


@pytest.fixture
def database(tmp_path: Path) -> Iterator[TuningDatabase]:
    """One measured cell, as it should be."""
    with TuningDatabase(tmp_path / "tuning.sqlite3") as opened:
        measure(opened, begin(opened), CELLS[0], SPECS[0].name)
        yield opened


def kinds(database: TuningDatabase) -> list[str]:
    database.conclude()
    return [one.kind for one in audit(database)]


def compiler(
    specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None
) -> Iterator[tuple[ImageSpec, CompiledImage]]:
    for spec in specs:
        facts = {"sha256": "c" * 64, "registers": 32, "spills": 0, "stack": 0, "shared": 0}
        yield spec, CompiledImage(spec.name, facts, store.path)


def mended(database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is left after the winners were decided."""
    monkeypatch.setattr(module, "filled", lambda *_: [])  # nothing that borrows is compiled
    decide_all(database, [FUNCTIONAL], ImageStore(tmp_path / "store"), 1, compiler)
    return kinds(database)


def test_nothing_is_wrong_with_what_was_just_decided(database: TuningDatabase) -> None:
    assert kinds(database) == []


@pytest.mark.parametrize(
    ("changes", "kind", "left"),
    [
        ({"median_us": 0.001}, "unmeasured", []),
        ({"measured": "2020-01-01"}, "unmeasured", []),
        ({"image": "attn_fwd_sm_90_0123456789abcdef"}, "unmeasured", []),
        ({"image": SPECS[1].name, "config": SPECS[1].config, "median_us": 30.0}, "undecided", []),
        ({"bin": "max_seqlen_q=7"}, "unknown", []),
        ({"kernel": "attn_gone"}, "unknown", ["unknown"]),
        ({"config": "BLOCK_M=7 BLOCK_GONE=3", "image": "attn_fwd_sm_90_0123456789abcdef"}, "unknown", []),
        ({"image": "attn_fwd_sm_90_0123456789abcdef", "provenance": "predicted", "product": "e"}, "older", []),
    ],
)
def test_what_is_wrong_with_a_winner_is_said_and_mended(
    database: TuningDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    kind: str,
    left: list[str],
) -> None:
    (winner,) = database.winners()
    changed: Winner = replace(winner, **changes)  # type: ignore[arg-type] # names are of fields
    if "product" not in changes:
        database.forget_winners([winner])
    database.put_winners([changed])
    assert kinds(database) == [kind]
    assert mended(database, tmp_path, monkeypatch) == left


def test_a_winner_of_an_older_source_is_stale_until_it_is_measured(database: TuningDatabase) -> None:
    """With its measurement, but under the name of an image that is made no more."""
    database.rename_images({SPECS[0].name: "attn_fwd_sm_90_0123456789abcdef"})
    assert kinds(database) == ["stale"]


def test_a_later_timing_of_a_winner_counts(
    database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (winner,) = database.winners()
    measure(database, begin(database), CELLS[0], SPECS[0].name, 11.0)
    database.put_winners([winner])
    assert kinds(database) == ["outdated"]
    assert mended(database, tmp_path, monkeypatch) == []
    assert [one.median_us for one in database.winners()] == [11.0]


@pytest.mark.parametrize(("sm_clock", "found"), [(None, ["contradicted"]), (1980, [])])
def test_a_race_that_contradicts_the_winners_sweep_is_named(
    tmp_path: Path, sm_clock: int | None, found: list[str]
) -> None:
    """Where it does not count; else it decides."""
    with TuningDatabase(tmp_path / "other.sqlite3") as database:
        session = begin(database)
        measure(database, session, CELLS[0], SPECS[0].name)
        for place, us in enumerate((20.0, 21.0)):
            spec = SPECS[place]
            row = database.evidence.image_id(spec.name, spec.config)
            bin = database.winners()[0].bin
            problem = database.evidence.problem_id("sm_90", "attn_fwd", str(FUNCTIONAL), bin, {"batch": 1})
            database.evidence.record(Measurement(problem, row, session, "race", "ok", us, [us], sm_clock=sm_clock))
        decide_siblings(database, FUNCTIONAL, "d")
        assert [one.median_us for one in database.winners()] == [20.0 if sm_clock else 10.0]
        assert kinds(database) == found
        assert all("20.0 us" in one.why for one in audit(database))


def test_an_image_of_which_nothing_is_known_is_compiled(
    database: TuningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (winner,) = database.winners()
    other = ImageSpec.of(FUNCTIONAL, {**dict(SPECS[0].tunables), "BLOCK_M": 16}, dict(SPECS[0].compile_options))
    database.put_winners(
        [replace(winner, product="e", provenance="predicted", image=other.name, config=other.config, median_us=0.0)]
    )
    assert kinds(database) == ["unlisted"]
    assert mended(database, tmp_path, monkeypatch) == []


def test_a_model_of_another_source_is_named(database: TuningDatabase) -> None:
    model = Model("sm_90", "d", "attn_fwd", "attn_fwd", str(FUNCTIONAL), "gone", "whole", 2, (0.1,), 0.01, 150, 0.5)
    database.put_models([model], ("sm_90", "d", "attn_fwd"))
    assert kinds(database) == ["model"]


def test_the_command_names_each_winner_and_fails(database: TuningDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    (winner,) = database.winners()
    database.conclude()
    assert main(["--database", str(database.path), "--audit"]) == 0
    assert "0 of 1 winners and models are not as they should be" in capsys.readouterr().out
    database.put_winners([replace(winner, median_us=0.001)])
    database.conclude()
    assert main(["--database", str(database.path), "--audit"]) == 1
    said = capsys.readouterr().out
    assert f"unmeasured: d attn_fwd {FUNCTIONAL} {winner.bin} {winner.image}: 0.001 us" in said
    assert "1 unmeasured: it is called measured, and no measurement that counts says so" in said
