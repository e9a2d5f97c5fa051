"""Tuning on a cluster of processes: workers that die or come late, and a scheduler that restarts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client
from test_incidents import SEQLENS, known, undisturbed, verdicts
from test_session import LAUNCHER, own_store, small

from aotriton.codegen.compile import ImageStore
from aotriton.rules.database import Winner
from aotriton.tune.coordinator import cluster
from aotriton.tune.coordinator.cluster import Cluster, new_setting
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.session import Plan, tune
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.jobs import store_token

__all__ = ["own_store", "undisturbed"]
ROOT = Path(__file__).resolve().parents[2]


class Machines:
    """Processes of a cluster on this machine; each worker has an image store of its own."""

    def __init__(self, folder: Path, orders: dict[str, object]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.log = folder, folder / "log"
        self.address = f"tcp://127.0.0.1:{self.port}"
        path = os.pathsep.join([str(ROOT), str(ROOT / "test")])
        self._environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        self._environment["AOTRITON_STANDIN"] = json.dumps({"log": str(self.log), **orders})
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, store: str = "none") -> subprocess.Popen[bytes]:
        environment = {**self._environment, "AOTRITON_IMAGE_STORE": str(self.folder / store)}
        with (self.folder / "said").open("ab") as said:
            process = subprocess.Popen([sys.executable, *command], env=environment, stdout=said, stderr=said, cwd=ROOT)
        self._running.append(process)
        return process

    def scheduler(self) -> subprocess.Popen[bytes]:
        return self.start(
            "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard"
        )

    def worker(self, gpu: str, jobs: int = 0) -> subprocess.Popen[bytes]:
        own = ("--gpus", gpu, "--jobs", str(jobs))
        return self.start("tune/serve.py", self.address, *own, store=f"store-{gpu}")

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    def tried(self) -> int:
        return self.log.read_text().count("\n") if self.log.exists() else 0

    def wait_until_tried(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while self.tried() < count:
            assert time.monotonic() < deadline, self.said[-3000:]
            time.sleep(0.02)

    def tune(self) -> list[BaseException]:
        """The client: it has neither GPU nor compiler, and a store of its own; what it failed with."""
        store, progress, failed = ImageStore(), Progress(), list[BaseException]()
        setting = new_setting(LAUNCHER, "standin_compiler:StandinCompiler", store_token(store), (0.0, 0.0))
        lent = Cluster(setting, progress.note, self.address)
        try:
            plan = Plan(self.folder / "tuning.sqlite3", store, lent.first_gpu())
            tune(plan, small(SEQLENS), lent, progress)
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


def test_no_scheduler_is_an_error(tmp_path: Path) -> None:
    """It names the address."""
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
