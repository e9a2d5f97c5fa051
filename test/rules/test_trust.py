"""Whose rows decide: one's own and those of whom one trusts; a session can be retracted, and stays in the evidence."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from test_merge import CELL, medians, tuned

from aotriton.rules.database import Measurement, Model, TuningDatabase, TuningDatabaseError, archive, local


def uuids(path: Path) -> list[str]:
    with TuningDatabase(path, readonly=True) as database:
        return [one.uuid for one in database.evidence.sessions()]


def standings(path: Path) -> list[str]:
    with TuningDatabase(path, readonly=True) as database:
        return [one.standing for one in database.evidence.sessions()]


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return tuned(tmp_path / "one.sqlite3", "2026-05-02T00:00:00", {"a": 10.0, "b": 12.0})


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Somebody else's, later and with faster times, a winner and a model."""
    path = tuned(tmp_path / "two.sqlite3", "2026-05-03T00:00:00", {"b": 1.0, "c": 0.5})
    with TuningDatabase(path) as database:
        model = ("scale_rows", "T=bf16", "c", "whole", 2, (0.1, 0.0), 0.01, 150, 0.5)
        database.put_models([Model("sm_90", "GPU", "scale", *model)], ("sm_90", "GPU", "scale"))
    return path


def test_rows_of_unknown_origin_decide_nothing(one: Path, two: Path, tmp_path: Path) -> None:
    """They are kept, also in a checkout of the archive; neither winners nor models, facts of images or certificates
    come of them, nor do they go on to others.
    """
    with TuningDatabase(one) as database:
        assert database.merge(two) == 2
        assert database.merge(two) == 0
    copied = tmp_path / "clone" / "one.sqlite3"
    shutil.copytree(archive.folder_of(one), archive.folder_of(copied), ignore=lambda *_: [local.NAME])
    shutil.copy(one, copied)
    for path in (one, copied):
        assert standings(path) == ["own", "unknown"]
        with TuningDatabase(path, readonly=True) as database:
            assert medians(database) == {"a": 10.0, "b": 12.0}
            assert {one.image: one.median_us for one in database.evidence.outcomes(unknown=True)} == {
                "b": 1.0,
                "c": 0.5,
            }
            assert [winner.image for winner in database.winners()] == ["a"]
            assert database.models() == []
            assert set(database.evidence.checksums()) == {"a", "b"}
            assert set(database.certificates()) == {"a", "b"}
            (tables,) = database.exchange.flat_rows("measurement")
            assert len(list(tables[1])) == 2


def test_what_an_unknown_file_says_of_an_image_binds_nobody(two: Path, tmp_path: Path) -> None:
    """Neither its checksum nor its config: a run here compiles it, and says what it is."""
    with TuningDatabase(tmp_path / "new.sqlite3") as database:
        database.merge(two)
        database.evidence.image_id("c", "ROWS=7", "f" * 64, 32, 0, 0)
        assert database.evidence.facts()["c"][0] == "ROWS=7"


def test_an_unknown_file_adds_nothing_to_a_session_that_is_known(one: Path, tmp_path: Path) -> None:
    """A copy of one's database that somebody has changed: its rows of the same session are left out."""
    theirs = tmp_path / "theirs.sqlite3"
    shutil.copy(one, theirs)
    shutil.copytree(archive.folder_of(one), archive.folder_of(theirs))
    with TuningDatabase(theirs) as database:
        problem = database.evidence.problem_id(*CELL, {"rows": 64})
        image = database.evidence.image_id("forged", "ROWS=9", "e" * 64)
        database.evidence.record(Measurement(problem, image, 1, "sweep", "ok", 0.001, (0.001,)))
    with TuningDatabase(one) as database:
        assert database.merge(theirs) == 0
        assert medians(database) == {"a": 10.0, "b": 12.0}


def test_what_was_unknown_counts_once_it_comes_from_somebody_trusted(one: Path, two: Path) -> None:
    """With the rows that are trusted, whatever the others said."""
    with TuningDatabase(one) as database:
        database.merge(two)
        assert database.merge(two, signer="alice") == 2
        assert medians(database) == {"c": 0.5, "a": 10.0, "b": 12.0}
        assert {one.operator for one in database.models()} == {"scale"}
    assert sorted(standings(one)) == ["own", "signed: by alice", "unknown"]


@pytest.mark.parametrize("begun", ["2026-05-01T00:00:00", "2026-05-03T00:00:00"])
def test_ones_own_rows_count_before_signed_ones_and_these_before_unknown_ones(tmp_path: Path, begun: str) -> None:
    """Of the same image and problem, whichever session began first: a time, and whether the image is right."""
    own = tuned(tmp_path / "own.sqlite3", "2026-05-02T00:00:00", {"a": 10.0, "b": 12.0})
    theirs = tuned(tmp_path / "theirs.sqlite3", begun, {"a": 1.0, "c": 0.5, "d": 9.0})
    wrong = tuned(tmp_path / "wrong.sqlite3", begun, {"a": 3.0, "b": 4.0, "c": 5.0, "d": 6.0})
    for path, image in ((theirs, "b"), (own, "d")):
        with TuningDatabase(path) as database:
            problem, (session,) = database.evidence.problem_id(*CELL, {"rows": 64}), [1]
            number = database.evidence.image_id(image, f"ROWS={ord(image)}", ("aa" + image).zfill(64))
            bad = Measurement(problem, number, session, "sweep", "wrong", None, (), 0.3, 0.2, detail="off by 0.3")
            database.evidence.record(bad)
    with TuningDatabase(own) as database:
        database.merge(wrong)
        database.merge(theirs, signer="alice")
        assert medians(database) == {"a": 10.0, "b": 12.0, "c": 0.5}
    with TuningDatabase(tmp_path / "new.sqlite3") as database:
        database.merge(wrong)
        database.merge(theirs, signer="alice")
        assert medians(database) == {"a": 1.0, "c": 0.5, "d": 9.0}


def test_the_options_of_sessions_are_in_the_order_of_outcomes(one: Path, two: Path) -> None:
    """By which campaigns are found: a signed session is before one's own, though it began later."""
    with TuningDatabase(two) as database:
        database._file.execute("UPDATE evidence.session SET options = 'again=theirs'")
    with TuningDatabase(one) as database:
        database.merge(two, signer="alice")
        options = database.evidence.session_options()
        assert options == ["again=theirs", ""]
        said = {(outcome.image, options[outcome.session - 1]) for outcome in database.evidence.outcomes()}
    assert said == {("a", ""), ("b", ""), ("b", "again=theirs"), ("c", "again=theirs")}


def test_a_measured_winner_needs_a_measurement(one: Path, two: Path) -> None:
    """Also in a file that is trusted."""
    with sqlite3.connect(two) as connection:
        connection.execute("UPDATE winner_row SET median_us = 0.001")
    with TuningDatabase(one) as database:
        with pytest.raises(
            TuningDatabaseError, match=r"two\.sqlite3: table winner, row sm_90 GPU .*: measured with 0.001"
        ):
            database.merge(two, own=True)
        assert medians(database) == {"a": 10.0, "b": 12.0}


def test_a_retracted_session_decides_nothing_and_is_kept(one: Path, two: Path, tmp_path: Path) -> None:
    """Here, in a checkout of the archive, and after it was merged once more; its name may be shortened."""
    (session,) = uuids(two)
    with TuningDatabase(one) as database:
        database.merge(two, own=True)
        assert database.session(session[:8]).uuid == session
        database.retract(database.session(session), "the GPU was not alone")
    copied = tmp_path / "clone" / "one.sqlite3"
    shutil.copytree(archive.folder_of(one), archive.folder_of(copied), ignore=lambda *_: [local.NAME])
    shutil.copy(one, copied)
    for path in (one, copied):
        with TuningDatabase(path) as database:
            assert database.merge(two, own=True) == 0
            assert medians(database) == {"a": 10.0, "b": 12.0}
            assert database.medians("sm_90", "scale_rows", "GPU")[0].image == "a"
            assert set(database.certificates()) == {"a", "b"}
            assert database.measured() == 4
        assert standings(path) == ["own", "retracted: the GPU was not alone"]


def test_a_session_that_is_retracted_must_be_one(one: Path) -> None:
    with TuningDatabase(one) as database:
        for name in ("", "nobody's"):
            with pytest.raises(
                TuningDatabaseError, match=rf"0 sessions have a uuid that begins with .*{uuids(one)[0]}"
            ):
                database.session(name)


@pytest.mark.parametrize("signer", ["alice", ""])
def test_a_retraction_travels_and_concerns_no_session_of_ones_own(one: Path, two: Path, signer: str) -> None:
    """Who is trusted takes back what they gave; only what is one's own file takes back one's own."""
    with TuningDatabase(two) as database:
        database.merge(one, own=True)
    with TuningDatabase(one) as database:
        database.merge(two, own=not signer, signer=signer)
    with TuningDatabase(two) as database:
        for session in uuids(two):
            database.retract(database.session(session), "wrong")
    with TuningDatabase(one) as database:
        database.merge(two, own=not signer, signer=signer)
        found = [session.standing for session in database.evidence.sessions()]
    assert found == (["own", "retracted: wrong"] if signer else ["retracted: wrong"] * 2)
