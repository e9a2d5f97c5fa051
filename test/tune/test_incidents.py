"""Incidents of a tuning session on a stand-in GPU: in the end the same rows and winners as without them."""

from __future__ import annotations

import errno
import inspect
import multiprocessing.context
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from standin_compiler import KILLED, FullDiskCompiler, KilledCompiler
from test_session import CONFIG, LAUNCHER, children, orders, own_store, run, small, wait_for_end

from aotriton.codegen import compile_pool
from aotriton.codegen.compile import CompileFailure
from aotriton.rules.borrow import siblings
from aotriton.rules.database import Outcome, TuningDatabase, TuningDatabaseError, Winner
from aotriton.tune.cli import run as running
from aotriton.tune.cli.main import main
from aotriton.tune.measure.requests import Device
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.winners.campaign import campaigns, decidable
from aotriton.tune.workers import cores
from aotriton.tune.workers.gpu_process import GpuProcess
from aotriton.tune.workers.recompile import is_incident

__all__ = ["orders", "own_store"]
ROOT = Path(__file__).resolve().parents[2]
SEQLENS = (512, 2048)


def known(tmp_path: Path) -> tuple[list[Outcome], list[Winner]]:
    with TuningDatabase(tmp_path / "tuning.sqlite3") as database:  # to write: a kill leaves a journal
        return database.evidence.outcomes(), database.winners()


def verdicts(outcomes: Iterable[Outcome]) -> Counter[tuple[str, ...]]:
    return Counter((o.functional, o.bin, o.image, o.phase, o.status) for o in outcomes)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Counter[tuple[str, ...]], list[Winner]]:
    """The verdicts and winners of a run that nothing happens to."""
    place = tmp_path_factory.mktemp("undisturbed")
    outcomes = run(place, small(SEQLENS))
    return verdicts(outcomes), known(place)[1]


def same(tmp_path: Path, undisturbed: tuple[Counter[tuple[str, ...]], list[Winner]]) -> None:
    outcomes, winners = known(tmp_path)
    assert verdicts(outcomes) == undisturbed[0]
    assert winners == undisturbed[1]


@pytest.mark.parametrize("after", [0, 2, 13, 20])
def test_a_gpu_that_is_lost_decides_nothing(
    tmp_path: Path,
    orders: dict[str, object],
    undisturbed: tuple[Counter[tuple[str, ...]], list[Winner]],
    after: int,
) -> None:
    """The run ends with an error; what was measured stays, nothing is blamed, no unfinished problem has a winner. With
    another GPU the same command comes to what an undisturbed run does.
    """
    orders.update(counters=str(tmp_path), lost=[after, 10**9])
    with pytest.raises(TuningError, match=r"GPU 0 is lost: .*(illegal memory access|not answer)"):
        run(tmp_path, small(SEQLENS))
    outcomes, winners = known(tmp_path)
    assert {outcome.status for outcome in outcomes} <= {"ok", "pruned"}
    candidates = sum(status == "ok" and phase == "sweep" for *_, phase, status in undisturbed[0]) // len(SEQLENS)
    swept = sum(o.status == "ok" and o.phase == "sweep" for o in outcomes)
    assert swept == after if after < candidates else candidates <= swept < 2 * candidates
    finished = {bin for bin, count in Counter(o.bin for o in outcomes if o.phase == "race").items() if count}
    assert {w.bin for w in winners if w.provenance == "measured"} == finished
    orders.update(lost=[0, 0])
    run(tmp_path, small(SEQLENS))
    same(tmp_path, undisturbed)


@pytest.mark.parametrize(("after", "lasts"), [(0, 1), (2, 3), (20, 2)])
def test_a_gpu_that_comes_back_is_waited_for(
    tmp_path: Path,
    orders: dict[str, object],
    undisturbed: tuple[Counter[tuple[str, ...]], list[Winner]],
    after: int,
    lasts: int,
) -> None:
    """What failed meanwhile is tried again, and nothing tells this run from another."""
    orders.update(counters=str(tmp_path), lost=[after, lasts])
    run(tmp_path, small(SEQLENS), pauses=(0, 0, 0, 0))
    same(tmp_path, undisturbed)


def test_another_gpu_takes_over(
    tmp_path: Path, orders: dict[str, object], undisturbed: tuple[Counter[tuple[str, ...]], list[Winner]]
) -> None:
    """One of two is lost in the middle of a problem; the other one finishes all of them, which is no error."""
    orders.update(counters=str(tmp_path), lost=[3, 10**9], lost_gpu="0", slow=0.01)
    run(tmp_path, small(SEQLENS), gpus=2)
    same(tmp_path, undisturbed)


def test_what_crashes_twice_is_to_blame(tmp_path: Path, orders: dict[str, object]) -> None:
    """A candidate that crashes twice, while others run on a fresh worker each time, is to blame, and tried no more."""
    bad = CONFIG.format(2)
    orders.update(crash=[bad])
    outcomes = run(tmp_path, small())
    assert [o.status for o in outcomes if o.config == bad] == ["crashed"]
    tried = [line.split(" ", 2)[2] for line in (tmp_path / "log").read_text().splitlines()]
    assert tried.count(bad) == 2


@pytest.mark.parametrize("order", ["no_binding", "dies_at_start"])
def test_a_worker_that_does_not_start_is_an_error(tmp_path: Path, orders: dict[str, object], order: str) -> None:
    """It says what happened, and no row is written."""
    orders.update(**{order: True})
    with pytest.raises(TuningError, match=r"GPU 0 did not come up.*(the binding is missing|exited with status 3)"):
        run(tmp_path, small())
    assert known(tmp_path) == ([], [])


def test_a_worker_that_cannot_be_started_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is left to the machine: an error at once, where tune() used to wait for ever."""

    def full(self: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", full)
    with pytest.raises(TuningError, match=r"cannot be started: .*temporarily unavailable"):
        run(tmp_path, small())


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says when the compiler is killed."""

    def told(times: int, what: str = "num_warps=8") -> None:
        monkeypatch.setattr(KilledCompiler, "times", times)
        monkeypatch.setattr(KilledCompiler, "what", what)
        monkeypatch.setattr(KilledCompiler, "killed", Counter[str]())

    return told


def test_a_killed_compiler_is_tried_again(
    tmp_path: Path,
    orders: dict[str, object],
    undisturbed: tuple[Counter[tuple[str, ...]], list[Winner]],
    killed: Callable[..., None],
) -> None:
    """Alone, with the machine to itself; what compiles then is measured."""
    killed(1)
    run(tmp_path, small(SEQLENS), compiler="KilledCompiler")
    same(tmp_path, undisturbed)


def test_a_compiler_that_is_always_killed_is_a_verdict(
    tmp_path: Path, orders: dict[str, object], killed: Callable[..., None]
) -> None:
    """Where another image compiles afterwards. Where none does, the machine is to blame, and nothing is recorded."""
    killed(9)
    outcomes = run(tmp_path, small(), compiler="KilledCompiler")
    assert {o.status for o in outcomes if "num_warps=8" in o.config} == {"compile_failed"}
    assert {o.status for o in outcomes if "num_warps=8" not in o.config} == {"ok", "pruned"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    killed(99, "")
    with pytest.raises(TuningError, match=r"nothing compiles here now.*SIGKILL"):
        run(elsewhere, small(), compiler="KilledCompiler")
    assert known(elsewhere) == ([], [])


def test_the_compilers_messages_are_known() -> None:
    """What the pool says of a compiler that was killed or hung is an incident; what a compiler says is none."""
    source = inspect.getsource(compile_pool)
    for text in ("the compiler process {how}", "not compiled within {time_limit:g} s"):
        assert text in source
    for text in (KILLED, "not compiled within 600 s", "OSError: [Errno 28] No space left on device"):
        assert is_incident(CompileFailure("x", text))
    assert not is_incident(CompileFailure("x", "CompilationError: at 3:4: the compiler process of tiles"))


def test_a_full_disk_is_named(
    tmp_path: Path,
    orders: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: tuple[Counter[tuple[str, ...]], list[Winner]],
) -> None:
    """Of the database, and of the image store; with room again the same command goes on."""

    monkeypatch.setattr(FullDiskCompiler, "left", 20)
    with pytest.raises(TuningError, match=f"{tmp_path / 'store'}: No space left on device"):
        run(tmp_path, small(SEQLENS), compiler="FullDiskCompiler")
    opening = TuningDatabase._attach

    def small_disk(self: TuningDatabase, unpacked: Path) -> None:
        opening(self, unpacked)
        self._file.execute(f"PRAGMA evidence.max_page_count = {pages}")

    with TuningDatabase(tmp_path / "tuning.sqlite3") as database:
        pages = int(str(database._file.value("PRAGMA evidence.page_count"))) + 1
    with monkeypatch.context() as patched:
        patched.setattr(TuningDatabase, "_attach", small_disk)
        with pytest.raises(TuningDatabaseError, match=f"{tmp_path / 'tuning.sqlite3'}: database or disk is full"):
            run(tmp_path, small(SEQLENS))
    assert {outcome.status for outcome in known(tmp_path)[0]} <= {"ok", "pruned"}
    run(tmp_path, small(SEQLENS))
    same(tmp_path, undisturbed)


def killed_run(tmp_path: Path, after: int, late: float, **plan: object) -> bool:
    """Runs in a child process and kills it ``late`` seconds after so many trials; False where it came to its end
    before. No child of it may outlive it.
    """
    log = tmp_path / "log"
    lines = log.read_text().count("\n") if log.exists() else 0
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'test')!r}, {str(Path(__file__).parent)!r}]\n"
        "from pathlib import Path; from test_session import run, small\n"
        f"run(Path({str(tmp_path)!r}), small({SEQLENS}), **{plan})"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    while log.read_text().count("\n") < lines + after if log.exists() else lines + after:
        if parent.poll() is not None:
            return False
        time.sleep(0.003)
    time.sleep(late)
    started = children(parent.pid)
    parent.send_signal(signal.SIGKILL)
    killed = parent.wait() == -signal.SIGKILL
    wait_for_end(started)
    return killed


def test_a_killed_search_leaves_no_process(tmp_path: Path, orders: dict[str, object]) -> None:
    """Neither a GPU's nor a strategy's."""
    orders.update(slow=0.1)
    assert killed_run(tmp_path, 3, 0.0, strategy="transfer", budget=24)


def test_killed_at_twenty_points(
    tmp_path: Path, orders: dict[str, object], undisturbed: tuple[Counter[tuple[str, ...]], list[Winner]]
) -> None:
    """kill -9, ten times in a first run and ten times in a run of ``again``: each goes on where it was, and in the end
    each has measured each candidate once; winners stand as in an undisturbed run, also while ``again`` is under way.
    """
    orders.update(slow=0.03)
    rng = random.Random(20)
    kills = sum(killed_run(tmp_path, rng.randrange(3), rng.uniform(0, 0.03), again=False) for _ in range(10))
    run(tmp_path, small(SEQLENS))
    same(tmp_path, undisturbed)
    before = known(tmp_path)[0]
    for _ in range(10):
        kills += killed_run(tmp_path, rng.randrange(3), rng.uniform(0, 0.03), again=True)
        assert known(tmp_path)[1] == undisturbed[1]
    assert kills == 20
    run(tmp_path, small(SEQLENS), again=True)
    outcomes, winners = known(tmp_path)
    assert outcomes[: len(before)] == before
    assert verdicts(outcomes[len(before) :]) == undisturbed[0]
    assert winners == undisturbed[1]
    with TuningDatabase(tmp_path / "tuning.sqlite3") as database:
        assert len(set(campaigns(database).values())) == 1
    run(tmp_path, small(SEQLENS), again=True)
    with TuningDatabase(tmp_path / "tuning.sqlite3") as database:
        assert len(set(campaigns(database).values())) == 2
    assert verdicts(known(tmp_path)[0][len(outcomes) :]) == undisturbed[0]


def test_an_unfinished_campaign_does_not_count(tmp_path: Path, orders: dict[str, object]) -> None:
    """Its rows decide nothing until the last candidate has one; nor do a few rows of a plain run, where no winner of
    today's images stands.
    """
    outcomes = run(tmp_path, small())
    functionals = siblings(small()[0].functional)
    anew = [replace(o, id=o.id + 1000, session=2, median_us=o.median_us and o.median_us / 2) for o in outcomes]
    swept = [o for o in anew if o.phase == "sweep"]
    winners = known(tmp_path)[1]
    for cut in (anew[:1], swept[:-1], swept):
        assert decidable(functionals, outcomes + cut, winners, {2: "again"}) == (outcomes, set())
    assert decidable(functionals, outcomes + anew, winners, {2: "again"}) == (outcomes + anew, set())
    assert decidable(functionals, outcomes[:-1], [], {}) == ([], set())
    (standing,) = [w for w in winners if w.provenance == "measured"]
    held = {(standing.functional, standing.bin)}
    assert decidable(functionals, outcomes[:-1], winners, {}) == (outcomes[:-1], held)


def test_a_campaign_with_a_new_candidate_in_its_race_is_finished(tmp_path: Path, orders: dict[str, object]) -> None:
    """Four race; where one of them was not known before, the fifth, which was, need not."""
    first = [o for o in run(tmp_path, small()) if o.phase == "sweep"]
    assert len(first) > 4
    again = [replace(o, id=o.id + 1000, session=2, status="ok", median_us=10 + i / 100) for i, o in enumerate(first)]
    again += [replace(o, id=o.id + 1000, phase="race") for o in again[:4]]
    rows = first[1:] + again
    assert decidable(siblings(small()[0].functional), rows, [], {2: "again"}) == (rows, set())


class Bound:
    """A launcher that says where its process may run."""

    def device(self) -> Device:
        return Device("sm_90", ",".join(map(str, os.sched_getaffinity(0))), "none", "none", 132)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has to do everything")
def test_compilers_leave_the_core_that_launches() -> None:
    """The child has one core for itself; a thread that leaves it keeps the others. As many GPUs as cores share all."""
    every = os.sched_getaffinity(0)
    (core,) = cores.launch_cores(["0"])
    worker = GpuProcess("test_incidents:Bound", "0", core=core)
    try:
        assert worker.device().name == str(core)
    finally:
        worker.close()
    seen: list[set[int]] = []

    def leave() -> None:
        cores.leave({core})
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert seen == [every - {core}]
    assert os.sched_getaffinity(0) == every
    assert cores.launch_cores([*map(str, range(len(every)))]) == [None] * len(every)


def test_the_program_ends_with_status_1(
    tmp_path: Path, orders: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU that dies after two candidates: the message, and no measured winner."""
    orders.update(counters=str(tmp_path), lost=[2, 10**9])
    monkeypatch.setattr(running, "COMPILER", "standin_compiler:StandinCompiler")
    monkeypatch.setattr(running, "PAUSES", (0, 0))
    database = ("--database", str(tmp_path / "tuning.sqlite3"), "--launcher", LAUNCHER)
    cell = ("--seqlen-q", "512", "--waves", "8")
    what = ("--kernel", "attn_fwd", "--level", "0", "--head-dim", "64", "--no-causal", *cell)
    assert main([*database, *what, "--again"]) == 1
    assert "tune: GPU 0 is lost" in capsys.readouterr().err
    outcomes, winners = known(tmp_path)
    assert sum(outcome.status == "ok" for outcome in outcomes) == 2
    assert winners == []
