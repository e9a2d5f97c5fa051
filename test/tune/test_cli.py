"""tune_flash.py as its user meets it: what it lists, what it refuses, and one whole run with a stand-in GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aotriton.rules.borrow import filled
from aotriton.rules.database import TuningDatabase
from aotriton.rules.flash.backward import ATTN_BWD_PREPROCESS
from aotriton.tune import tune_flash
from aotriton.tune.cli import invocation
from aotriton.tune.measure.launcher import visible_gpus

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--kernel=attn_bwd_preprocess", "--head-dim=32", "--addressing=descriptor", "--seqlen-q=64"]  # 4 images


def tune(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program, database = ROOT / "tune" / "tune_flash.py", tmp_path / "tuning.sqlite3"
    command = [sys.executable, str(program), "--database", str(database), *arguments]
    environment = {"AOTRITON_IMAGE_STORE": str(tmp_path / "store"), "PYTHONPATH": str(ROOT / "test")} | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | environment)


def test_dry_run_lists_problems_and_counts_candidates(tmp_path: Path) -> None:
    """One line a problem, then the skipped configs by reason and the totals; nothing is written."""
    done = tune(tmp_path, "--dry-run", "--arch", "sm_90", "--kernel", "attn_fwd", "--head-dim", "64", "128", "--causal")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    listed = [line for line in lines if line.startswith("attn_fwd")]
    counted = sum(int(line.rpartition(" candidates")[0].rpartition(" ")[2]) for line in listed)
    assert re.fullmatch(rf"{len(listed)} problems, {counted} candidates, \d+ images, \d+ skipped", lines[-1])
    assert all("CAUSAL=True" in line and "T=bf16" in line for line in listed)
    assert any(line.startswith("skipped") for line in lines)
    assert not list(tmp_path.iterdir())


def test_levels_have_names(tmp_path: Path) -> None:
    """An option takes the names of a choice's values, as functionals spell them."""
    given = "--kernel", "attn_fwd_decode", "--head-dim", "64", "--keys", "pages_fp8e4nv"
    done = tune(tmp_path, "--dry-run", "--arch", "sm_90", *given)
    assert done.returncode == 0, done.stderr
    listed = [line for line in done.stdout.splitlines() if line.startswith("attn_fwd_decode")]
    assert listed
    assert all("KEYS=pages_fp8e4nv" in line for line in listed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head-dim", "48"], "--head-dim: invalid choice: 48"),
        (["--seqlen-q", "100"], "--seqlen-q: invalid choice: 100"),
        (["--keys", "fp8"], "--keys: invalid choice: 'fp8'"),
        (
            ["--arch", "gfx942", "--addressing", "descriptor", "--kernel", "attn_fwd", "--dry-run"],
            "leave no problem on gfx942",
        ),
        (
            ["--causal", "--seqlen-q", "64", "--seqlen-k", "512", "--kernel", "attn_fwd", "--dry-run"],
            "leave no problem",
        ),
        (["--batch", "1", "--heads", "1", "--waves", "8", "--kernel", "attn_fwd", "--dry-run"], "must reach the bins"),
        (["--family", "none", "--dry-run"], "none: no family, it has no rules/__init__.py"),
        (["--heads", "0", "--dry-run"], "--heads must be positive"),
        (["--dry-run", "--predict"], "not allowed with"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    """Status 2, the option and what it may be; nothing is written."""
    done = tune(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(bool(visible_gpus()), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_at_once(tmp_path: Path) -> None:
    """Status 2, and what can be done without one; no database is made."""
    done = tune(tmp_path)
    assert done.returncode == 2
    assert "no GPU" in done.stderr
    assert "--compile-only" in done.stderr
    assert not (tmp_path / "tuning.sqlite3").exists()


def test_another_triton_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Images of another compiler are never measured: the row would lie."""
    monkeypatch.setattr(invocation, "TRITON_VERSION", "1.2.3")
    assert tune_flash.main(["--compile-only"]) == 2
    assert "1.2.3" in capsys.readouterr().err


def test_compile_only_fills_the_store_and_a_run_uses_it(tmp_path: Path) -> None:
    """The images compiled without a GPU are those that a run then measures, and it compiles no other but what it has
    borrowed; a second run finds all done.
    """
    done = tune(tmp_path, "--compile-only", "--arch", "sm_90", *TINY)
    assert done.returncode == 0, done.stderr
    assert "4 images in" in done.stdout
    stored = {path.stem for path in (tmp_path / "store").glob("*.cubin")}
    assert len(stored) == 4
    standin = ("--launcher", "standin_launcher:StandinLauncher")
    done = tune(tmp_path, *TINY, *standin)
    assert done.returncode == 0, done.stderr
    assert "1 x stand-in (sm_90, 132 multiprocessors)" in done.stderr
    assert "[1/1" in done.stderr
    measured, found, following = done.stdout.splitlines()
    assert measured == "measured: 1 problems, 4 candidates: 4 ok"
    assert found == "winners: 1 for the first time, 0 changed, 1 in all"
    assert following.startswith("next: ")
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        outcomes, winners = database.evidence.outcomes(), database.winners()
        filled_in = filled(ATTN_BWD_PREPROCESS, "sm_90", "stand-in", winners, database.products())
        (options,) = database._file.execute("SELECT options FROM evidence.session").fetchone()
    assert {o.image for o in outcomes} == stored
    assert {o.status for o in outcomes} == {"ok"}
    assert [w.provenance for w in winners] == ["measured"]
    assert len(filled_in) == 4 * 4
    assert "seqlen_q=[64]" in options
    assert str(tmp_path) not in options
    assert {path.stem for path in (tmp_path / "store").glob("*.cubin")} == stored | {one.image for one in filled_in}
    again = tune(tmp_path, *TINY, *standin)
    assert again.returncode == 0
    assert "1 problems, 1 of them measured before" in again.stderr
    assert again.stdout.startswith("measured: nothing")
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        assert database.evidence.outcomes() == outcomes
    other = tune(tmp_path, *TINY, *standin, "--arch", "gfx942")
    assert other.returncode == 2
    assert "the GPU is sm_90" in other.stderr


def test_winners_are_decided_anew_without_a_gpu(tmp_path: Path) -> None:
    """From what is measured: a winner that turned out to spill makes way for the next, and what borrowed it follows."""
    done = tune(tmp_path, *TINY, "--launcher", "standin_launcher:StandinLauncher")
    assert done.returncode == 0, done.stderr
    with TuningDatabase(tmp_path / "tuning.sqlite3") as database:
        before = database.winners()
        (spilling,) = {winner.image for winner in before if winner.provenance == "measured"}
        with database._file.transaction():
            database._file.execute("UPDATE evidence.image SET spills = 8 WHERE name = ?", [spilling])
    done = tune(tmp_path, "--decide", "--arch", "sm_90", *TINY)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(before)} winners stand, 3 images that were not known were compiled\n"
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        after = database.winners()
        measured = {outcome.image for outcome in database.evidence.outcomes() if outcome.status == "ok"}
    assert [(w.functional, w.bin, w.provenance) for w in after] == [(w.functional, w.bin, w.provenance) for w in before]
    assert {w.image for w in after if w.provenance == "measured"} <= measured
    assert not {w.image for w in after} & {w.image for w in before}


def test_a_damaged_database_stops_it_before_anything_starts(tmp_path: Path) -> None:
    """Status 1 and the file's name; the file is left alone."""
    path = tmp_path / "tuning.sqlite3"
    path.write_text("no database" * 1000)
    done = tune(tmp_path, *TINY, "--launcher", "standin_launcher:StandinLauncher")
    assert done.returncode == 1
    assert str(path) in done.stderr
    assert "damaged" in done.stderr
    assert path.read_text() == "no database" * 1000


def test_a_missing_binding_is_explained(tmp_path: Path) -> None:
    """The child's import error reaches the user, and no candidate is blamed for it."""
    orders = '{"no_binding": true}'
    done = tune(tmp_path, *TINY, "--launcher", "standin_launcher:StandinLauncher", AOTRITON_STANDIN=orders)
    assert done.returncode == 1
    assert "the binding is missing" in done.stderr
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        assert database.evidence.outcomes() == []


def test_an_installed_tuner_keeps_its_database_in_the_users_data_folder(tmp_path: Path) -> None:
    """Neither among the installed modules nor beside the caller; what only reads makes none; a folder that cannot be
    made is named.
    """
    site, caller, data = (tmp_path / name for name in ("site", "caller", "data"))
    shutil.copytree(
        ROOT / "aotriton", site / "aotriton", ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3*", "*.evidence")
    )
    caller.mkdir()
    installed = sorted(site.rglob("*"))

    def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "XDG_DATA_HOME": str(home)}
        environment = os.environ | variables | {"AOTRITON_IMAGE_STORE": str(tmp_path / "store")}
        command = [sys.executable, "-m", "aotriton.tune.tune", "--family", "gemm", "--arch", "sm_90", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=caller, env=environment)

    assert run(data, "--dry-run").returncode == 0
    missing = run(data, "--report", "page.html")
    assert (missing.returncode, data.exists()) == (1, False)
    assert str(data / "aotriton" / "tuning_database.sqlite3") in missing.stderr
    assert run(data, "--fit").returncode == 0
    made = {path.name for path in data.rglob("*") if path.is_file()}
    assert made == {"tuning_database.sqlite3", "evidence.sqlite3", ".gitignore"}
    assert sorted(site.rglob("*")) == installed
    assert not list(caller.iterdir())
    file = tmp_path / "file"
    file.touch()
    refused = run(file, "--fit")
    assert refused.returncode == 1
    assert f"{file}/aotriton cannot be made: Not a directory" in refused.stderr
