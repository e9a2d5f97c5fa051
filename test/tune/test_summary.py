"""What a run says at its end: of its own sessions, of winners, of failures, and what to do next."""

from __future__ import annotations

from pathlib import Path

from aotriton.rules.database import Measurement, TuningDatabase, Winner
from aotriton.tune.dataset.summary import MOST_FAILURES, Before, summary

PRODUCT = "GPU"


def measure(database: TuningDatabase, statuses: dict[str, str], product: str = PRODUCT) -> None:
    """A session with a candidate of each status on one problem."""
    session = database.evidence.begin_session(
        device=product, driver="1", triton="3", torch="2", arch="sm_90", multiprocessors=1, options=""
    )
    problem = database.evidence.problem_id("sm_90", "scale_rows", "T=bf16", "rows=64", {"rows": 64})
    for name, status in statuses.items():
        image = database.evidence.image_id(f"image_{name}", f"ROWS={name}")
        time = 1.0 if status == "ok" else None
        database.evidence.record(Measurement(problem, image, session, "sweep", status, time, [1.0] if time else []))


def win(database: TuningDatabase, bin: str, image: str, product: str = PRODUCT) -> None:
    database.put_winners([Winner("sm_90", product, "scale_rows", "T=bf16", bin, image, "ROWS=1", "measured", "", 1.0)])


def test_a_run_tells_of_its_own_sessions_and_product(tmp_path: Path) -> None:
    """Not of what was there before, nor of another GPU; of winners, which are new and which are others."""
    with TuningDatabase(tmp_path / "a.sqlite3") as database:
        measure(database, {"old": "wrong"})
        for bin in ("rows=64", "rows=512"):
            win(database, bin, "old")
        before = Before.of(database, "sm_90", PRODUCT)
        measure(database, {"a": "ok", "b": "ok", "c": "pruned"})
        measure(database, {"d": "wrong"}, "another GPU")
        for bin in ("rows=512", "rows=2048"):
            win(database, bin, "a")
        win(database, "rows=4096", "a", "another GPU")
        assert summary(database, before, 0, "build it") == [
            "measured: 1 problems, 3 candidates: 2 ok, 1 pruned",
            "winners: 1 for the first time, 1 changed, 3 in all",
            "next: build it",
        ]


def test_failures_are_named_and_what_is_left_too(tmp_path: Path) -> None:
    """The first ones with status, cell and config, then their number; a run that was cut off says how to go on."""
    with TuningDatabase(tmp_path / "a.sqlite3") as database:
        before = Before.of(database, "sm_90", PRODUCT)
        measure(database, {str(n): "wrong" for n in range(MOST_FAILURES + 2)} | {"x": "ok", "y": "pruned"})
        lines = summary(database, before, 3, "")
        assert "wrong: scale_rows T=bf16 rows=64: ROWS=0" in lines
        assert len([line for line in lines if line.startswith("wrong: ")]) == MOST_FAILURES
        assert lines[-2].startswith("and 2 more that failed")
        assert lines[-1] == "left: 3 problems; the same command goes on with them"
        assert summary(database, before, None, "")[-1] == "left: some problems; the same command goes on with them"


def test_a_run_that_found_all_done_says_so(tmp_path: Path) -> None:
    with TuningDatabase(tmp_path / "a.sqlite3") as database:
        measure(database, {"a": "ok"})
        before = Before.of(database, "sm_90", PRODUCT)
        assert summary(database, before, 0, "build it") == [
            "measured: nothing, all of it is in the database",
            "winners: 0 for the first time, 0 changed, 0 in all",
            "next: build it",
        ]
