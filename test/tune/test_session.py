"""The tuning session on a stand-in GPU: crashes, hangs, lies and kills become rows; nothing is lost or repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from standin_launcher import time_of

from aotriton.codegen.compile import CompiledImage, ImageStore
from aotriton.rules.database import Outcome, TuningDatabase
from aotriton.rules.flash.forward import ATTN_FWD, ATTN_FWD_HOPPER
from aotriton.tune.coordinator.cluster import Cluster, new_setting
from aotriton.tune.coordinator.next_job import AHEAD
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.session import Plan, tune
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.compiler_facts import unfit
from aotriton.tune.problem.problems import Problem, Wish, problems
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.jobs import store_token

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = "standin_launcher:StandinLauncher"
CONFIG = "BLOCK_M=64 BLOCK_N=32 num_warps=4 num_stages={}"

HOPPER = Wish({"BLOCK_DMODEL": (128,), "CAUSAL": (False,)}, {"max_seqlen_q": (512,), "waves": (8,)})


def small(seqlens: tuple[int, ...] = (512,)) -> list[Problem]:
    """Forward, head dim 64, one addressing, one mask: 27 candidates a problem."""
    choices: dict[str, Any] = {"LEVEL": (0,), "BLOCK_DMODEL": (64,), "CAUSAL": (False,), "ADDRESSING": ("descriptor",)}
    return problems([ATTN_FWD], "sm_90", 132, Wish(choices, {"max_seqlen_q": seqlens, "waves": (8,)}))


def run(
    tmp_path: Path,
    found: list[Problem],
    gpus: int = 1,
    limit: float = 20.0,
    compiler: str = "StandinCompiler",
    pauses: tuple[float, ...] = (0, 0),
    seconds: float | None = None,
    product: str | None = None,
    **plan: Any,
) -> list[Outcome]:
    """Tunes and returns every outcome; ``seconds`` is the time budget once a GPU is there."""
    path = tmp_path / "tuning.sqlite3"
    os.environ["AOTRITON_IMAGE_STORE"] = str(tmp_path / "store")
    store, progress = ImageStore(), Progress()
    setting = new_setting(
        LAUNCHER, f"standin_compiler:{compiler}", store_token(store), pauses=pauses, candidate_limit=limit
    )
    cluster = Cluster(setting, progress.note, gpus=[str(gpu) for gpu in range(gpus)], jobs=1)
    try:
        device = cluster.first_gpu(product)
        if seconds is not None:
            plan["deadline"] = time.monotonic() + seconds
        tune(Plan(path, store, device, **plan), found, cluster, progress)
    finally:
        cluster.close()
        with TuningDatabase(path) as database:
            outcomes = database.evidence.outcomes()
    return outcomes


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The store of a test; ``run`` names it in the environment, as workers look for it there."""
    monkeypatch.setenv("AOTRITON_IMAGE_STORE", str(tmp_path / "store"))


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, object]:
    """What the stand-in is told; it is read when a child starts."""
    given: dict[str, object] = {"log": str(tmp_path / "log")}

    class Orders(dict[str, object]):
        def update(self, **more: object) -> None:  # type: ignore[override] # by names alone
            given.update(more)
            monkeypatch.setenv("AOTRITON_STANDIN", json.dumps(given))

    found = Orders()
    found.update()
    return found


def swept(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.config: outcome.status for outcome in outcomes if outcome.phase == "sweep"}


def test_a_problem_is_pruned_swept_raced_and_decided(tmp_path: Path, orders: dict[str, object]) -> None:
    """Every candidate has one sweep row, close leaders a race row, and the best of them is the measured winner."""
    outcomes = run(tmp_path, small())
    rows = Counter(outcome.image for outcome in outcomes if outcome.phase == "sweep")
    assert set(rows.values()) == {1}
    assert set(rows) == {spec.name for spec in space(small()[0]).candidates}
    for config, status in swept(outcomes).items():
        assert (status == "pruned") == ("BLOCK_N=128" in config or "num_stages=4" in config), config
    raced = [outcome for outcome in outcomes if outcome.phase == "race"]
    assert 2 <= len(raced) <= 4
    assert {outcome.status for outcome in raced} == {"ok"}
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        (winner,) = [w for w in database.winners() if w.provenance == "measured"]
    best = min((outcome for outcome in outcomes if outcome.status == "ok"), key=lambda o: time_of(o.config))
    assert winner.image == best.image
    assert winner.median_us == pytest.approx(time_of(best.config), rel=1e-4)


def test_crashes_hangs_lies_and_errors_become_rows(tmp_path: Path, orders: dict[str, object]) -> None:
    """Each misbehaving candidate gets its own status, and all others are measured as if nothing had happened."""
    good = "BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages={}"
    wide = "BLOCK_M=128 BLOCK_N=32 num_warps=4 num_stages={}"
    orders.update(
        **{
            "crash": [CONFIG.format(2)],
            "hang": [CONFIG.format(3)],
            "lie": [good.format(2)],
            "corrupt": [good.format(3)],
        },
        **{"raise": [wide.format(2)], "sticky": [wide.format(3)]},
    )
    outcomes = run(tmp_path, small(), limit=1.5)
    bad = {
        CONFIG.format(2): "crashed",
        CONFIG.format(3): "timed_out",
        good.format(2): "wrong",
        good.format(3): "wrong",
        wide.format(2): "crashed",
        wide.format(3): "crashed",
    }
    found = swept(outcomes)
    assert {config: found[config] for config in bad} == bad
    others = {status for config, status in found.items() if config not in bad}
    assert others == {"ok", "pruned"}
    assert Counter(o.image for o in outcomes if o.phase == "sweep").most_common(1)[0][1] == 1
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        details = dict(
            database._file.execute(
                "SELECT i.config, m.detail FROM measurement m JOIN evidence.image i ON i.id = m.image"
            )
        )
    assert "SIGABRT" in details[CONFIG.format(2)]
    assert "1.5 s" in details[CONFIG.format(3)]
    assert "off by 0.2" in details[good.format(2)]
    assert "wrote over its inputs" in details[good.format(3)]
    assert "not_supported" in details[wide.format(2)]
    assert "illegal memory access" in details[wide.format(3)]


def test_a_leader_that_fails_in_the_race_is_out(tmp_path: Path, orders: dict[str, object]) -> None:
    """Its race row says so, the others race on, it does not win, and a second run has nothing left to do."""
    leader = min((s.config for s in space(small()[0]).candidates if "N=128" not in s.config), key=time_of)
    orders.update(flaky=[leader])
    outcomes = run(tmp_path, small())
    races = {outcome.config: outcome.status for outcome in outcomes if outcome.phase == "race"}
    assert races[leader] == "crashed"
    assert Counter(races.values())["ok"] >= 2
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        (winner,) = [w for w in database.winners() if w.provenance == "measured"]
        assert winner.image not in {outcome.image for outcome in outcomes if outcome.status == "crashed"}
    assert run(tmp_path, small()) == outcomes


def test_failed_compilations_become_rows(tmp_path: Path, orders: dict[str, object]) -> None:
    """The compiler's message is kept, but not all of it, and the other candidates are measured."""
    found = swept(run(tmp_path, small(), compiler="BrokenCompiler"))
    assert {status for config, status in found.items() if "num_warps=8" in config} == {"compile_failed"}
    assert "ok" in found.values()
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        (detail,) = database._file.execute("SELECT detail FROM measurement WHERE status = 'compile_failed'").fetchone()
    assert len(detail) < 320
    assert detail.startswith("error:")
    assert detail.endswith("at the end")


def test_a_second_run_measures_only_what_is_new(tmp_path: Path, orders: dict[str, object]) -> None:
    """What the database holds is not measured again; ``again`` measures all of it anew, once."""
    first = run(tmp_path, small())
    assert run(tmp_path, small()) == first
    more = run(tmp_path, small((512, 2048)))
    assert more[: len(first)] == first
    assert {outcome.bin for outcome in more[len(first) :]} == {"max_seqlen_q=2048 max_seqlen_k=2048 waves=8"}
    anew = run(tmp_path, small(), again=True)[len(more) :]
    assert Counter((o.image, o.phase, o.status) for o in anew) == Counter((o.image, o.phase, o.status) for o in first)


def test_what_the_gpu_was_is_recorded(tmp_path: Path, orders: dict[str, object]) -> None:
    """Product, uuid, memory and power limit with the session; clock and temperature with all that was timed. The winner
    tells the interval of its median, the shape and the day.
    """
    orders.update(uuid="GPU")
    outcomes = run(tmp_path, small())
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        session = (
            "SELECT product, d.uuid, memory, power_limit, strategy, seed"
            " FROM evidence.session JOIN device d ON d.id = device"
        )
        assert database._file.execute(session).fetchall() == [("stand-in", "GPU-0", 1 << 30, 700, "exhaustive", None)]
        conditions = "SELECT DISTINCT status, sm_clock, temperature FROM measurement ORDER BY status"
        assert database._file.execute(conditions).fetchall() == [("ok", 1980, 41), ("pruned", None, None)]
        (winner,) = database.winners()
    assert winner.low_us == winner.median_us == winner.high_us
    assert (winner.product, winner.shape) == ("stand-in", small()[0].shape_text)
    assert outcomes[0].started.startswith(winner.measured)


def test_what_is_measured_beside_another_process_decides_nothing(
    tmp_path: Path, orders: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told once, and recorded. The winner that there was stays; the next run measures again what is missing."""
    first = run(tmp_path, small())
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        before = database.winners()
    capsys.readouterr()
    orders.update(others=["7 (train)"])
    with pytest.raises(TuningError, match="could not be finished"):
        run(tmp_path, small(), again=True)
    told = capsys.readouterr().err
    assert told.count("another process is on GPU 0: 7 (train)") == 1
    assert f"{small()[0]}: not decided: another process was on the GPU" in told
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        assert database.winners() == before
        assert [one for one in database.evidence.outcomes() if one.status == "ok"] == [
            one for one in first if one.status == "ok"
        ]
        found = database._file.execute("SELECT detail, count(*) FROM measurement WHERE status = 'ok' GROUP BY detail")
        recorded = dict(found.fetchall())
    assert set(recorded) == {None, "beside 7 (train)"}
    orders.update(others=[])
    anew = run(tmp_path, small(), again=True)
    assert sum(one.status == "ok" for one in anew) == 2 * sum(one.status == "ok" for one in first)


def test_what_is_measured_beside_a_process_that_may_compute_counts(
    tmp_path: Path, orders: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told once, and recorded."""
    orders.update(silent=["7 (train)"])
    counted = [one for one in run(tmp_path, small()) if one.status == "ok"]
    assert capsys.readouterr().err.count("another process is on GPU 0: 7 (train)") == 1
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        assert len(database.winners()) == 1
        found = database._file.execute("SELECT detail, count(*) FROM measurement WHERE status = 'ok' GROUP BY detail")
        assert found.fetchall() == [("perhaps beside 7 (train)", len(counted))]


def test_a_search_beside_another_process_has_not_ended(tmp_path: Path, orders: dict[str, object]) -> None:
    orders.update(others=["7 (train)"])
    with pytest.raises(TuningError, match="could not be finished"):
        run(tmp_path, small(), strategy="random", budget=6)
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        assert database.winners() == []
        assert database.evidence.searched("sm_90", "attn_fwd", "stand-in") == []
    orders.update(others=[])
    assert any(one.status == "ok" for one in run(tmp_path, small(), strategy="random", budget=6))


def test_another_product_measures_for_itself(tmp_path: Path, orders: dict[str, object]) -> None:
    """What one product measured makes nothing needless on another, and each has its own winner."""
    first = run(tmp_path, small())
    orders.update(product="other")
    both = run(tmp_path, small())
    assert both[: len(first)] == first
    new = both[len(first) :]
    assert {o.product for o in new} == {"other"}
    assert Counter((o.image, o.phase, o.status) for o in new) == Counter((o.image, o.phase, o.status) for o in first)
    assert run(tmp_path, small()) == both
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        assert [winner.product for winner in database.winners()] == ["other", "stand-in"]


@pytest.mark.parametrize("fact", ["product", "driver"])
def test_gpus_of_two_kinds_are_not_mixed(
    tmp_path: Path, orders: dict[str, object], capsys: pytest.CaptureFixture[str], fact: str
) -> None:
    """The product that was asked for measures, and of its drivers the one that comes first; others are named and left
    out. Nobody chooses between two products without being asked to.
    """
    orders.update(other={"1": {fact: "odd"}}, slow=0.01)
    if fact == "product":
        with pytest.raises(TuningError, match="there are GPUs of 2 products: --product odd or stand-in"):
            run(tmp_path, small(), gpus=2)
        with pytest.raises(TuningError, match="no GPU here is called h200; there are: odd, stand-in"):
            run(tmp_path, small(), gpus=2, product="h200")
    run(tmp_path, small((64, 512, 2048, 8192)), gpus=2, product="Stand-In" if fact == "product" else None)
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        used = database._file.execute("SELECT DISTINCT product, driver FROM device").fetchall()
    assert len(used) == 1
    assert used[0][0] == "stand-in"
    told = capsys.readouterr().err
    assert "is left out: it is " in told
    assert "odd" in told


def test_two_gpus_share_the_problems(tmp_path: Path, orders: dict[str, object]) -> None:
    """Both work, each candidate is measured once, and each GPU has its own sessions: a race has one that is not older
    than the sweeps, wherever those were.
    """
    orders.update(slow=0.02)
    outcomes = run(tmp_path, small((64, 512, 2048, 8192)), gpus=2)
    assert set(Counter((o.image, o.bin, o.phase) for o in outcomes).values()) == {1}
    assert len({outcome.bin for outcome in outcomes}) == 4
    assert {outcome.session for outcome in outcomes if outcome.phase == "sweep"} >= {1, 2}


def test_a_gpu_that_still_starts_is_not_waited_for(tmp_path: Path, orders: dict[str, object]) -> None:
    """One measures all; the other one comes up meanwhile and is ended with the run, wherever it is then."""
    for late in (0.5, 1.0, 60.0):
        (tmp_path / str(late)).mkdir()
        orders.update(late={"1": late})
        outcomes = run(tmp_path / str(late), small(), gpus=2)
        assert {o.image for o in outcomes if o.phase == "sweep"} == {spec.name for spec in space(small()[0]).candidates}


def test_a_deadline_ends_between_problems(tmp_path: Path, orders: dict[str, object]) -> None:
    """After the time budget no problem is begun; each one that was begun has its winner."""
    orders.update(slow=0.1)
    outcomes = run(tmp_path, small((64, 512, 2048, 8192)), seconds=2)
    measured = {outcome.bin for outcome in outcomes}
    assert 1 <= len(measured) < 4
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        assert {w.bin for w in database.winners() if w.provenance == "measured"} == measured


def test_a_gpu_that_cannot_run_anything_stops_the_session(tmp_path: Path, orders: dict[str, object]) -> None:
    """Twelve failures and no success are not the candidates' fault: the rest is not marked as crashed."""
    configs = [spec.config for spec in space(small()[0]).candidates]
    orders.update(**{"raise": configs})
    with pytest.raises(TuningError, match="all failed"):
        run(tmp_path, small((512, 2048)))
    orders.update(no_binding=True)
    with pytest.raises(Exception, match="the binding is missing"):
        run(tmp_path, small((8192,)))


def test_kill_and_restart_loses_and_repeats_nothing(tmp_path: Path, orders: dict[str, object]) -> None:
    """kill -9 of the tuner, twice: its child ends too; the last run completes every candidate, each with one row, and
    has launched none again but what was under way.
    """
    orders.update(slow=0.3)  # so that much is left when the second kill comes, however slow the machine is
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'test')!r}, {str(Path(__file__).parent)!r}]\n"
        "from pathlib import Path; from test_session import run, small\n"
        f"run(Path({str(tmp_path)!r}), small((512, 2048)))"
    )
    path = tmp_path / "tuning.sqlite3"
    seen: list[Outcome] = []
    for _ in range(2):
        parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
        while True:
            assert parent.poll() is None
            time.sleep(0.02)
            if path.exists() and path.stat().st_size:
                with TuningDatabase(path) as database:
                    before = database.evidence.outcomes()
                if sum(o.status == "ok" for o in before) >= sum(o.status == "ok" for o in seen) + 3:
                    break
        started = children(parent.pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert started
        wait_for_end(started)
        seen = before
    orders.update(slow=0)
    last = run(tmp_path, small((512, 2048)))
    assert last[: len(seen)] == seen
    assert set(Counter((o.bin, o.image) for o in last if o.phase == "sweep").values()) == {1}
    assert {(o.bin, o.image) for o in last} == {
        (p.bin, s.name) for p in small((512, 2048)) for s in space(p).candidates
    }
    names = Counter(line.split()[1] for line in (tmp_path / "log").read_text().splitlines())
    raced = {o.image for o in last if o.phase == "race"}
    # Opened twice beyond its bins and races only where a kill came before the row was on the disk.
    repeated = sum(names[name] - len({o.bin for o in last if o.image == name}) for name in names if name not in raced)
    assert repeated <= 2 * AHEAD


def test_ctrl_c_stops_cleanly(tmp_path: Path, orders: dict[str, object]) -> None:
    """The candidate under way is recorded, the children end, and KeyboardInterrupt arrives."""
    orders.update(slow=0.1)
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'test')!r}, {str(Path(__file__).parent)!r}]\n"
        "from pathlib import Path; from test_session import run, small\n"
        f"try: run(Path({str(tmp_path)!r}), small((512, 2048)))\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, start_new_session=True)
    log = tmp_path / "log"
    while not log.exists() or log.read_text().count("\n") < 2:
        assert parent.poll() is None
        time.sleep(0.02)
    started = children(parent.pid)
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to the whole group
    assert parent.wait(20) == 130
    wait_for_end(started)
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        ok = [outcome for outcome in database.evidence.outcomes() if outcome.status == "ok"]
        assert len(ok) == log.read_text().count("\n")


@pytest.mark.parametrize(("fact", "value"), [("spills", 1), ("stack", 4), ("shared", 1 << 20)])
def test_what_spills_or_does_not_fit_is_never_measured(fact: str, value: int) -> None:
    """One spilled register or byte rules an image out, even where nothing else is left; so does shared memory."""
    spec = space(small()[0]).candidates[0]
    facts = {"spills": 0, "stack": 0, "shared": 1024}
    assert unfit(spec, CompiledImage(spec.name, facts, Path("none"))) is None
    why = unfit(spec, CompiledImage(spec.name, facts | {fact: value}, Path("none")))
    assert why
    assert str(value) in why


def test_the_hopper_forward_is_tuned_like_any_kernel(tmp_path: Path, orders: dict[str, object]) -> None:
    """Its candidates become rows and its bin a measured winner; what is borrowed is nowhere stored."""
    found = problems([ATTN_FWD_HOPPER], "sm_90", 132, HOPPER)
    outcomes = run(tmp_path, found)
    assert set(swept(outcomes)) == {spec.config for spec in space(found[0]).candidates}
    with TuningDatabase(tmp_path / "tuning.sqlite3", readonly=True) as database:
        winners = database.winners("sm_90", "attn_fwd_hopper")
    assert [(w.provenance, w.functional, w.bin) for w in winners] == [
        ("measured", str(found[0].functional), found[0].bin)
    ]


def children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def wait_for_end(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline, "a child outlived the tuner"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
