"""A session taken back, and data handed from one to another, as commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_session import own_store
from test_signature import allow, new_key

from aotriton.rules.binning import bin_text
from aotriton.rules.database import Measurement, Model, SequenceTiming, TuningDatabase
from aotriton.rules.flash.forward import ATTN_FWD as KERNEL
from aotriton.tune.cli.main import main
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.problems import Problem
from aotriton.tune.winners import decide_all
from aotriton.tune.winners.siblings import decide_siblings

__all__ = ["own_store"]

FUNCTIONAL = KERNEL.functional("sm_90", LEVEL=0, T="bf16", BLOCK_DMODEL=64, CAUSAL=False, ADDRESSING="descriptor")
CELLS = (512, 512, 8), (2048, 2048, 8)
SPECS = space(Problem(FUNCTIONAL, CELLS[0], ())).candidates


def begin(database: TuningDatabase) -> int:
    return database.evidence.begin_session(
        device="d", driver="1", triton="0", torch="0", arch="sm_90", options="", multiprocessors=132
    )


def measure(database: TuningDatabase, session: int, cell: tuple[int, ...], best: str, us: float = 10.0) -> None:
    """A whole cell, where one image is the fastest."""
    bin = bin_text(KERNEL.tuning_keys, cell)
    problem = database.evidence.problem_id("sm_90", KERNEL.name, str(FUNCTIONAL), bin, {"batch": 1})
    for place, spec in enumerate(space(Problem(FUNCTIONAL, cell, ())).candidates):
        image = database.evidence.image_id(
            spec.name, spec.config, spec.name.encode().hex().zfill(64)[-64:], 128, 0, 1024
        )
        median = us if spec.name == best else us * (2 + place)
        database.evidence.record(Measurement(problem, image, session, "sweep", "ok", median, [median], 0.1, 0.2))
    decide_siblings(database, FUNCTIONAL, "d")


def winners(path: Path) -> dict[str, tuple[str, float]]:
    with TuningDatabase(path, readonly=True) as database:
        return {one.bin.split()[0]: (one.image, one.median_us) for one in database.winners()}


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is borrowed compiles, so that no test waits for it."""
    monkeypatch.setattr(decide_all, "compile_images", lambda *_, **__: iter(()))
    monkeypatch.setattr(decide_all, "filled", lambda *_: [])


def test_a_retracted_session_is_decided_without(
    tmp_path: Path, no_compiler: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cell of which an earlier session tells goes back to it, the cell of which no other one does has no winner,
    and an operator that nothing else was timed of has no models.
    """
    path, (old, new) = tmp_path / "one.sqlite3", (SPECS[0].name, SPECS[1].name)
    with TuningDatabase(path) as database:
        measure(database, begin(database), CELLS[0], old)
        number = begin(database)
        measure(database, number, CELLS[0], new, 1.0)
        measure(database, number, CELLS[1], new, 3.0)
        bad = database.evidence.sessions()[-1].uuid
        shape = {"batch": 1, "head_dim": 64}
        database.evidence.add_sample(
            number, "attn_fwd", str(FUNCTIONAL), shape, [SequenceTiming("portable", (new,), 1.0, 0.0, 9)]
        )
        model = ("attn_fwd", str(FUNCTIONAL), new, "whole", 2, (0.1, 0.0), 0.01, 150, 0.5)
        database.put_models([Model("sm_90", "d", "attn_fwd", *model)], ("sm_90", "d", "attn_fwd"))
    assert winners(path)["max_seqlen_q=512"] == (new, 1.0)
    assert len(winners(path)) == 2
    assert main(["--database", str(path), "--retract", bad[:13], "--why", "not alone"]) == 0
    assert f"session {bad} of" in capsys.readouterr().out
    assert winners(path) == {"max_seqlen_q=512": (old, 10.0)}
    with TuningDatabase(path, readonly=True) as database:
        assert [one.standing for one in database.evidence.sessions()] == ["own", "retracted: not alone"]
        assert database.models() == []
        assert {one.median_us for one in database.medians("sm_90", KERNEL.name, "d") if one.image == new} != {1.0}
    assert main(["--database", str(path), "--retract", "nobody"]) == 1
    assert f"{bad} of" in capsys.readouterr().err


def test_a_session_of_a_family_that_is_not_here_is_not_retracted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its winners could not be decided anew."""
    path = tmp_path / "one.sqlite3"
    with TuningDatabase(path) as database:
        session = begin(database)
        problem = database.evidence.problem_id("sm_90", "another", "T=bf16", "rows=64", {"rows": 64})
        image = database.evidence.image_id("one", "ROWS=1", "a" * 64)
        database.evidence.record(Measurement(problem, image, session, "sweep", "ok", 1.0, [1.0], 0.1, 0.2))
        (found,) = database.evidence.sessions()
    assert main(["--database", str(path), "--retract", found.uuid]) == 2
    assert "the session measured another, of another family: name it by --family FOLDER" in capsys.readouterr().err
    with TuningDatabase(path, readonly=True) as database:
        assert [one.standing for one in database.evidence.sessions()] == ["own"]


@pytest.mark.parametrize("how", ["merge", "import"])
def test_what_somebody_named_has_signed_decides(
    tmp_path: Path, no_compiler: None, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """A database or tables; the same without the name of the key does not, and changed it is refused."""
    one, two = tmp_path / "one.sqlite3", tmp_path / "two.sqlite3"
    with TuningDatabase(one) as database:
        measure(database, begin(database), CELLS[0], SPECS[0].name)
    key = new_key(tmp_path, "alice")
    given = one if how == "merge" else tmp_path / "tables"
    if how == "merge":
        assert main(["--database", str(one), "--sign-database", str(key)]) == 0
    else:
        assert main(["--database", str(one), "--export", str(given), "--sign", str(key)]) == 0
    take = ["--database", str(two), f"--{how}", str(given)]
    assert main(take) == 0
    assert "decide nothing" in capsys.readouterr().out
    assert winners(two) == {}
    signers = ["--signers", str(allow(tmp_path, alice=key))]
    assert main([*take, *signers]) == 0
    assert "is signed by alice" in capsys.readouterr().out
    assert winners(two) == winners(one) != {}
    three = ["--database", str(tmp_path / "three.sqlite3"), f"--{how}", str(given)]
    other = ["--signers", str(allow(tmp_path, bob=new_key(tmp_path, "bob")))]
    assert main([*three, *other]) == 1
    assert "is not signed by anybody in" in capsys.readouterr().err
    Path(f"{given}.signed.sig").unlink()
    assert main([*three, *signers]) == 1
    assert "what was signed cannot be read" in capsys.readouterr().err
