"""Tuning on a cluster of processes: workers that die or come late, a scheduler that restarts, kernels that only the
client has, and runs that share workers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import autotuned
import pytest
from distributed import Client
from test_incidents import SEQLENS, known, undisturbed, verdicts
from test_session import LAUNCHER, own_store, small

import aotriton
from aotriton.codegen.compile import ImageStore
from aotriton.rules.database import TuningDatabase, Winner
from aotriton.tune.autotune.tuned import DATABASE, Tuned
from aotriton.tune.coordinator import cluster
from aotriton.tune.coordinator.cluster import Cluster, new_setting
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.session import Plan, tune
from aotriton.tune.measure.clock import FEWEST
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.jobs import store_token

__all__ = ["own_store", "undisturbed"]
ROOT = Path(__file__).resolve().parents[2]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Machines:
    """Processes of a cluster on this machine; each worker has an image store of its own."""

    def __init__(self, folder: Path, orders: dict[str, object], scheme: str = "tcp") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.log = folder, folder / "log"
        self.address = f"{scheme}://127.0.0.1:{self.port}"
        path = os.pathsep.join([str(ROOT), str(ROOT / "test")])
        self._environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        self._environment["AOTRITON_STANDIN"] = json.dumps({"log": str(self.log), **orders})
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, store: str = "none", **environment: str) -> subprocess.Popen[bytes]:
        given = {**self._environment, "AOTRITON_IMAGE_STORE": str(self.folder / store), **environment}
        with (self.folder / "said").open("ab") as said:
            process = subprocess.Popen([sys.executable, *command], env=given, stdout=said, stderr=said, cwd=ROOT)
        self._running.append(process)
        return process

    def scheduler(self) -> subprocess.Popen[bytes]:
        """It has nothing of this project."""
        listen = ("--host", "127.0.0.1", "--port", str(self.port))
        return self.start("-P", "-m", "distributed.cli.dask_scheduler", *listen, "--no-dashboard", PYTHONPATH="")

    def worker(self, gpu: str, jobs: int = 0, **environment: str) -> subprocess.Popen[bytes]:
        own = ("--gpus", gpu, "--jobs", str(jobs))
        return self.start("tune/serve.py", self.address, *own, store=f"store-{gpu}", **environment)

    def machine(self, name: str, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        """A machine that serves, with a checkout of its own."""
        return self.from_checkout(name, "serve.py", self.address, *options, **environment)

    def from_checkout(self, name: str, program: str, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        """A program of tune/, with a checkout, a cache and a store at paths of its own."""
        place = self.folder / name
        for source in ("rules", "tune", "codegen", "tritonsrc"):
            left_out = shutil.ignore_patterns("__pycache__", "*.sqlite3", "*.evidence")
            shutil.copytree(ROOT / "aotriton" / source, place / "aotriton" / source, ignore=left_out)
        shutil.copy(ROOT / "aotriton" / "__init__.py", place / "aotriton")
        shutil.copy(ROOT / "test" / "standin_launcher.py", place)
        own = {"PYTHONPATH": str(place), "XDG_CACHE_HOME": str(place / "cache")}
        path = str(place / "aotriton" / "tune" / program)
        return self.start(path, *options, store=f"store-{name}", **own, **environment)

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    def tried(self) -> int:
        return self.log.read_text().count("\n") if self.log.exists() else 0

    def wait_until_tried(self, count: int) -> None:
        wait_until(lambda: self.tried() >= count)

    def tune(
        self,
        database: str = "tuning",
        said: list[str] | None = None,
        product: str | None = None,
        planned: Mapping[str, Any] = MappingProxyType({}),
        seqlens: tuple[int, ...] = SEQLENS,
        **more: Any,
    ) -> list[BaseException]:
        """The client: it has neither GPU nor compiler, and a store of its own; what it failed with."""
        store, progress, failed = ImageStore(), Progress(), list[BaseException]()
        if said is not None:
            progress.note = said.append  # type: ignore[assignment,method-assign] # instead of printing
        setting = new_setting(LAUNCHER, "standin_compiler:StandinCompiler", store_token(store), (0.0, 0.0))
        lent = Cluster(setting, progress.note, self.address, **more)
        try:
            plan = Plan(self.folder / f"{database}.sqlite3", store, lent.first_gpu(product), **planned)
            tune(plan, small(seqlens), lent, progress)
        except BaseException as error:
            failed.append(error)
        finally:
            lent.close()
        return failed

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path, {"slow": 0.08})
    try:
        yield made
    finally:
        made.end()


def test_workers_and_the_scheduler_come_and_go(
    machines: Machines, tmp_path: Path, undisturbed: tuple[Counter[tuple[str, ...]], list[Winner]]
) -> None:
    """Two workers, one of which is killed; one that comes late; the scheduler killed and started again. In the end
    there are the rows and winners of an undisturbed run: nothing is lost and nothing is there twice.
    """
    scheduler = machines.scheduler()
    machines.worker("0", jobs=2)
    killed = machines.worker("1")
    failed: list[BaseException] = []
    client = threading.Thread(target=lambda: failed.extend(machines.tune()))
    client.start()
    machines.wait_until_tried(4)
    killed.send_signal(signal.SIGKILL)
    machines.worker("2")
    machines.wait_until_tried(10)
    scheduler.send_signal(signal.SIGKILL)
    scheduler.wait()
    machines.scheduler()
    client.join(120)
    assert not client.is_alive(), machines.said[-3000:]
    assert not failed
    outcomes, winners = known(tmp_path)
    assert verdicts(outcomes) == undisturbed[0]
    assert [(w.bin, w.image, w.median_us) for w in winners] == [(w.bin, w.image, w.median_us) for w in undisturbed[1]]
    assert "went away, waiting for it" in machines.said


def test_images_travel_once(machines: Machines, tmp_path: Path) -> None:
    """The compilers' images come to the client, and go to the GPU's machine, which has none of its own; each image is
    there under its checksum.
    """
    machines.scheduler()
    machines.worker("0")
    machines.start("tune/serve.py", machines.address, "--gpus", "--jobs", "2", store="compilers")
    assert machines.tune() == []
    outcomes, _ = known(tmp_path)
    measured = {one.image for one in outcomes if one.status == "ok"}
    assert measured
    for place in ("store-0", "store", "compilers"):
        store = ImageStore(tmp_path / place)
        assert all(store.get(name) for name in measured), place


def test_no_scheduler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the address."""
    monkeypatch.setattr(cluster, "CONNECT", 2.0)
    setting = new_setting(LAUNCHER, "standin_compiler:StandinCompiler", "token")
    with pytest.raises(TuningError, match=r"no scheduler at tcp://127\.0\.0\.1:9"):
        Cluster(setting, print, "tcp://127.0.0.1:9")


def test_waiting_for_a_gpu_is_said(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, with the scheduler's address; the run goes on when a worker with a GPU comes."""
    monkeypatch.setattr(cluster, "PATIENCE", 0.0)
    machines.scheduler()
    setting = new_setting(LAUNCHER, "standin_compiler:StandinCompiler", "token")

    def note(text: str) -> None:
        said.append(text)
        machines.worker("0")

    said: list[str] = []
    waiting = Cluster(setting, note, machines.address)
    try:
        assert waiting.first_gpu().arch == "sm_90"
    finally:
        waiting.close()
    assert said == [f"no GPU at {machines.address} yet: waiting for a worker that has one"]


@pytest.fixture
def left(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, list[str]]]:
    """A cluster whose scheduler was killed, and what it has said."""
    scheduler = machines.scheduler()
    Client(machines.address, timeout=60, set_as_default=False).close()  # it is up
    monkeypatch.setattr(cluster, "CONNECT", 2.0)
    said: list[str] = []
    lent = Cluster(new_setting(LAUNCHER, "standin_compiler:StandinCompiler", "token"), said.append, machines.address)
    try:
        scheduler.kill()
        scheduler.wait()
        yield lent, said
    finally:
        lent.close()


def test_a_scheduler_is_found_that_is_back_late(machines: Machines, left: tuple[Cluster, list[str]]) -> None:
    """After Dask's client has given up."""
    lent, said = left
    late = threading.Timer(5.0, machines.scheduler)
    late.start()
    machines.worker("0")
    assert lent.first_gpu().arch == "sm_90"
    late.join()
    about = [one for one in said if one.startswith("the scheduler")]
    assert about == [f"the scheduler at {machines.address} {what}" for what in ("went away: waiting for it", "is back")]


def test_a_scheduler_that_stays_away_is_an_error(
    machines: Machines, left: tuple[Cluster, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the address and for how long; a cluster without a scheduler can be closed."""
    monkeypatch.setattr(cluster, "RECONNECT", 3.0)
    with pytest.raises(TuningError, match=f"no scheduler at {machines.address} for 3 s"):
        left[0].first_gpu()


def scaled(machines: Machines, folder: Path, *sizes: int) -> Tuned:
    """A user's kernel, for machines that do not have it. It is not tuned yet."""
    found: Tuned = aotriton.autotune(
        inputs={"x": "fp32[n]", "count": "n", "shift": 0.5, "steps": 1},
        results={"out": "fp32[n]"},
        sizes={"n": sizes},
        reference=autotuned.of_scaled,
        grid="cdiv(n, BLOCK)",
        space={"BLOCK": (64,), "num_warps": (1, 4)},
        folder=folder,
        options=("--launcher", LAUNCHER, "--scheduler", machines.address),
    )(autotuned.scaled)
    return found


def test_an_own_kernel_is_tuned_by_machines_that_do_not_have_it(machines: Machines, tmp_path: Path) -> None:
    """Its files travel to two machines with checkouts and caches of their own, under a digest: once its description has
    changed, the same workers have the new one. A client with another checkout tunes it by its folder, which it has
    elsewhere. The scheduler has nothing of this project.
    """
    machines.scheduler()
    machines.machine("north", "--gpus", "0", "--jobs", "0")
    machines.machine("south", "--gpus", "1", "--jobs", "2")
    folder = tmp_path / "mine" / "scaled_here"
    assert scaled(machines, folder, 4096).tune().best(n=4096).config == {"BLOCK": 64, "num_warps": 1}
    assert scaled(machines, folder, 4096, 8192).tune().best(n=8192).config == {"BLOCK": 64, "num_warps": 1}
    elsewhere = shutil.copytree(folder, tmp_path / "theirs" / "scaled_here")
    for found in elsewhere.rglob(f"{Path(DATABASE).stem}.*"):
        shutil.rmtree(found) if found.is_dir() else found.unlink()
    cluster = ("--launcher", LAUNCHER, "--scheduler", machines.address)
    client = machines.from_checkout("west", "tune.py", "--family", str(elsewhere), *cluster)
    assert client.wait(60) == 0, machines.said[-3000:]
    decided = [winners(one / DATABASE) for one in (folder, elsewhere)]
    assert len(decided[0]) == 2
    assert decided[0] == decided[1]
    for name in ("north", "south"):
        digests = [path.parent for path in (tmp_path / name).rglob("scaled_here") if path.is_dir()]
        assert len(digests) == 2
        assert {path.parent for path in digests} == {tmp_path / name / "cache" / "aotriton" / "families"}
    assert "ModuleNotFoundError" not in machines.said


def winners(path: Path) -> list[tuple[str, str]]:
    """Bins and configs."""
    with TuningDatabase(path, readonly=True) as database:
        return [(one.bin, one.config) for one in database.winners()]


def test_two_tunings_of_one_kernel_at_once_are_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """On the same workers: one measures, the other waits and reads. One that was killed, on a GPU of its own, holds
    nothing up.
    """
    machines, said = Machines(tmp_path, {"slow": 0.5}), ""
    folder = tmp_path / "shared" / "scaled_once"
    scaled(machines, folder, 4096, 8192).write()
    clients = [threading.Thread(target=scaled(machines, folder, 4096, 8192).tune) for _ in range(2)]
    try:
        machines.scheduler()
        machines.worker("0", jobs=2)
        own = ("--family", str(folder), "--launcher", LAUNCHER, "--jobs", "1")
        killed = machines.start("-m", "aotriton.tune.tune", *own)
        machines.wait_until_tried(1)
        clients[0].start()
        while "another run tunes scaled into" not in said and clients[0].is_alive():
            said += capfd.readouterr().err
            time.sleep(0.02)
        assert "another run tunes scaled into" in said
        assert killed.poll() is None
        killed.kill()
        killed.wait()
        clients[1].start()
        for client in clients:
            client.join(60)
        assert not any(client.is_alive() for client in clients)
    finally:
        machines.end()
    with TuningDatabase(folder / DATABASE, readonly=True) as database:
        swept = Counter((row.image, row.bin) for row in database.evidence.outcomes() if row.phase == "sweep")
    assert len(swept) == 2 * 2
    assert set(swept.values()) == {1}
    assert not list((folder / "rules").glob(".*.lock"))


def finished(tmp_path: Path, database: str, undisturbed: Any) -> None:
    """The database has what an undisturbed run makes."""
    with TuningDatabase(tmp_path / f"{database}.sqlite3", readonly=True) as file:
        assert verdicts(file.evidence.outcomes()) == undisturbed[0]


def test_a_gpu_that_two_programs_lend_is_used_once(tmp_path: Path, undisturbed: Any) -> None:
    """The second one waits, and goes on when the first one is killed."""
    machines = Machines(tmp_path, {"slow": 0.1, "uuid": "the same"})
    said: list[str] = []
    failed: list[BaseException] = []
    client = threading.Thread(target=lambda: failed.extend(machines.tune(said=said)))
    try:
        machines.scheduler()
        machines.worker("0")
        machines.worker("0")
        wait_until(lambda: machines.said.count("gpu-0 serves") == 2)
        client.start()
        machines.start("tune/serve.py", machines.address, "--gpus", "--jobs", "2", store="compilers")
        machines.wait_until_tried(2)
        (told,) = [line for line in said if "offers the GPU that" in line]
        first = told.partition("offers the GPU that ")[2].split()[0]
        with Client(machines.address, timeout=60, set_as_default=False) as asking:
            os.kill(asking.run(os.getpid, workers=[first])[first], signal.SIGKILL)
        client.join(60)
    finally:
        machines.end()
    assert failed == []
    assert f"{first} is gone" in said
    finished(tmp_path, "tuning", undisturbed)


def test_two_clients_on_the_same_workers(machines: Machines, tmp_path: Path, undisturbed: Any) -> None:
    """Each has the rows of an undisturbed run; the one whose turn it is not says that it waits."""
    machines.scheduler()
    machines.worker("0", jobs=2)
    failed: list[BaseException] = []
    said: list[str] = []
    other = threading.Thread(target=lambda: failed.extend(machines.tune("one", said)))
    other.start()
    failed += machines.tune("two", said)
    other.join(60)
    assert failed == []
    assert any("is another run's now: waiting for it" in line for line in said)
    for name in ("one", "two"):
        finished(tmp_path, name, undisturbed)


def test_runs_follow_each_other_on_the_same_workers(machines: Machines, tmp_path: Path, undisturbed: Any) -> None:
    """A search, a run that measures all again, and one into another database: each has the rows of a run by itself. The
    worker that was killed before the last one is back before Dask has forgotten it.
    """
    machines.scheduler()
    worker = machines.worker("0", jobs=2)
    assert machines.tune(planned={"strategy": "random", "budget": 6}) == []
    searched = len(known(tmp_path)[0])
    assert machines.tune(planned={"again": True}) == []
    assert verdicts(known(tmp_path)[0][searched:]) == undisturbed[0]
    worker.kill()
    machines.worker("0", jobs=2)
    assert machines.tune("another") == []
    finished(tmp_path, "another", undisturbed)


def test_a_run_is_judged_by_its_own_trials(machines: Machines, tmp_path: Path) -> None:
    """A search finds configs that are far faster than all that runs without one have. These, on the same problem and
    the same worker, end nonetheless, and give no candidate up early for a time that is not theirs.
    """
    machines.scheduler()
    machines.worker("0", jobs=2)
    one_problem = (512,)
    assert machines.tune(planned={"strategy": "transfer", "budget": 24}, seqlens=one_problem) == []
    best = min(one.median_us for one in known(tmp_path)[0] if one.median_us)
    assert machines.tune(planned={"again": True}, seqlens=one_problem) == []
    assert machines.tune("another", seqlens=one_problem) == []
    with TuningDatabase(tmp_path / "another.sqlite3") as database:
        swept = [one for one in database.evidence.outcomes() if one.phase == "sweep" and one.status == "ok"]
        samples = [len(database.evidence.samples_of(one.id)) for one in swept]
    assert best < 0.5 * min(one.median_us for one in swept if one.median_us)
    assert min(samples) > FEWEST


def test_a_silent_worker_loses_its_jobs(machines: Machines, tmp_path: Path, undisturbed: Any) -> None:
    """Those of its compilers, too, which no job names."""
    machines.scheduler()
    silent = machines.worker("0", jobs=2)
    said: list[str] = []
    failed: list[BaseException] = []
    client = threading.Thread(target=lambda: failed.extend(machines.tune(said=said, silence=2.0)))
    client.start()
    machines.wait_until_tried(2)
    silent.send_signal(signal.SIGSTOP)
    machines.worker("1", jobs=2)
    client.join(60)
    assert failed == []
    assert sum(line.endswith("others get its jobs") for line in said) == 2  # its GPU's and its compilers'
    finished(tmp_path, "tuning", undisturbed)


def test_a_product_is_asked_for(tmp_path: Path) -> None:
    """Where there are two, a run must say which one; it waits for the one that it has asked for."""
    machines = Machines(tmp_path, {"other": {"0": {"product": "NVIDIA H100"}, "1": {"product": "NVIDIA H200"}}})
    setting, said = new_setting(LAUNCHER, "standin_compiler:StandinCompiler", "token"), list[str]()
    try:
        machines.scheduler()
        machines.worker("0")
        with closing(Cluster(setting, said.append, machines.address)) as lent:
            assert lent.first_gpu().name == "NVIDIA H100"
        late = threading.Timer(1.0, machines.worker, "1")
        late.start()
        with closing(Cluster(setting, said.append, machines.address)) as lent:
            assert lent.first_gpu("h200").name == "NVIDIA H200"
        two = "of 2 products: --product NVIDIA H100 or NVIDIA H200"
        with closing(Cluster(setting, said.append, machines.address)) as lent, pytest.raises(TuningError, match=two):
            lent.first_gpu()
    finally:
        machines.end()
