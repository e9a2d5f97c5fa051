"""A cluster with a key, and tuning on it from Python: who has no key stays out, events come while it works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import autotuned
import pytest
from test_cluster import ROOT, Machines, wait_until
from test_session import LAUNCHER

import aotriton
from aotriton.tune.autotune.service import Service
from aotriton.tune.coordinator.cluster import Cluster, new_setting
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers import key
from aotriton.tune.workers.elastic import as_wanted

SCHEDULE = "tune/schedule.py"


def said_by(*command: str, **environment: str) -> tuple[int, str]:
    """The exit status of a program of ours, and what it said."""
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two keys, each as the command makes it at its usual place."""
    found = {}
    for name in ("ours", "other"):
        settings = tmp_path_factory.mktemp(name)
        found[name] = settings / "aotriton" / "tuning-key.pem"
        status, said = said_by(SCHEDULE, "--new-key", XDG_CONFIG_HOME=str(settings), **{key.VARIABLE: ""})
        assert (status, said.startswith(f"made {found[name]}: ")) == (0, True), said
    return found


@pytest.fixture
def machines(tmp_path: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    """A cluster of tls://, whose processes, and this one, have a key."""
    monkeypatch.setenv(key.VARIABLE, str(keys["ours"]))
    made = Machines(tmp_path, {"slow": 0.02, "lie": ["ROWS=1 num_warps=8"]}, "tls")
    made.start(SCHEDULE, made.address)
    wait_until(lambda: "the scheduler listens at" in made.said)
    try:
        yield made
    finally:
        made.end()


def scaled_on(service: Service, folder: Path, **more: Any) -> Any:
    """A user's kernel at two sizes, tuned on the machines."""
    return service.autotune(
        autotuned.scaled,
        {"x": "fp32[n]", "count": "n", "shift": 0.5, "steps": 1},
        autotuned.of_scaled,
        {"BLOCK": (64,), "num_warps": (1, 4)},
        results={"out": "fp32[n]"},
        sizes={"n": (4096, 8192)},
        grid="cdiv(n, BLOCK)",
        folder=folder,
        options=("--launcher", LAUNCHER),
        **more,
    )


def test_an_own_kernel_is_tuned_by_machines_with_the_key(machines: Machines, tmp_path: Path) -> None:
    """By two machines with checkouts, caches and copies of the key of their own. The events say who works, what is best
    so far and what was decided; the machines are paid for.
    """
    copied = shutil.copy(os.environ[key.VARIABLE], tmp_path / "copy.pem")
    machines.machine("north", "--gpus", "0", "--jobs", "0")
    machines.machine("south", "--gpus", "--jobs", "2", "--price", "3600", **{key.VARIABLE: str(copied)})
    service = aotriton.service(machines.address, product="stand", price=7200)
    events: list[Mapping[str, Any]] = []
    tuned = scaled_on(service, tmp_path / "mine" / "scaled_there", on_event=events.append)
    assert tuned.best(n=4096).config == {"BLOCK": 64, "num_warps": 1}
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        by_kind.setdefault(event["event"], []).append(event)
    assert [one["gpu"] for one in by_kind["joined"] if "gpu" in one] == ["stand-in"]
    assert [one["compilers"] for one in by_kind["joined"] if "compilers" in one] == [2]
    assert all(one["worker"].startswith("tls://") for one in by_kind["joined"])
    decided = {one["problem"]: one for one in by_kind["decided"]}
    assert sorted(one["median_us"] for one in decided.values()) == sorted(
        tuned.best(n=n).median_us for n in (4096, 8192)
    )
    for problem, one in decided.items():
        curve = [best["median_us"] for best in by_kind["best"] if best["problem"] == problem]
        assert curve == sorted(curve, reverse=True)
        assert curve[-1] == pytest.approx(one["median_us"], abs=0.2)
    seconds = [one["seconds"] for one in events]
    assert seconds == sorted(seconds)
    (ended,) = by_kind["ended"]
    assert ended["trials"] >= 4
    assert ended["dollars"] == pytest.approx(3 * ended["seconds"], rel=0.5)  # two for the GPU, one for compilers


def test_events_come_while_it_works_and_an_error_ends_it(machines: Machines, tmp_path: Path) -> None:
    """What a listener raises stops the run, and is raised; the next call goes on with what was measured."""
    machines.worker("0", jobs=2)
    service = aotriton.service(machines.address)
    folder = tmp_path / "mine" / "scaled_twice"
    measured: list[int] = []

    def listen(event: Mapping[str, Any]) -> None:
        if event["event"] == "best":
            measured.append(machines.tried())
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        scaled_on(service, folder, on_event=listen)
    before = machines.tried()
    assert scaled_on(service, folder).best(n=8192).config == {"BLOCK": 64, "num_warps": 1}
    assert measured[0] <= before < machines.tried()


def test_a_family_is_tuned_there_and_failures_are_told(machines: Machines, tmp_path: Path) -> None:
    """Options of tune.py are keywords; what was decided is returned, also where nothing is left to do. A candidate that
    gives wrong results is an event that says why.
    """
    machines.worker("0", jobs=2)
    own = ROOT / "examples" / "rms_norm"
    service, events = aotriton.service(machines.address, price=1.0), list[Mapping[str, Any]]()
    wanted = {"on_event": events.append, "options": ["--launcher", LAUNCHER, "--database", str(tmp_path / "t.sqlite3")]}
    found = service.tune(own, width=(4096, 8192), rows=256, addressing="general", **wanted)
    assert len(found) == 2
    failed = {(one["status"], one["config"], one["why"]) for one in events if one["event"] == "failed"}
    assert ("wrong", "ROWS=1 num_warps=8", "out is off by 0.2, allowed 0.004") in failed
    assert all(one["median_us"] > 0 for one in found.values())
    assert [one for one in events if one["event"] == "best"]
    again = service.tune(own, width=(4096, 8192), rows=256, addressing="general", **wanted)
    assert {name: one["config"] for name, one in again.items()} == {name: one["config"] for name, one in found.items()}
    with pytest.raises(RuntimeError, match="ended with status 2"):
        service.tune(own, dtype="fp99", **wanted)


def test_who_has_another_key_or_none_is_told_at_once(
    machines: Machines, keys: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a worker's side and on the client's: the error names the file and what to do. The scheduler names who came."""
    plain = machines.address.replace("tls://", "tcp://")
    (tmp_path / "broken.pem").write_text("no key")
    cases = {
        (machines.address, str(keys["other"])): f"the key {keys['other']} is not that of {machines.address}",
        (
            machines.address,
            str(tmp_path / "none.pem"),
        ): f"{tmp_path / 'none.pem'} is not there: copy it from a machine of the cluster",
        (machines.address, str(tmp_path / "broken.pem")): f"{tmp_path / 'broken.pem'} is no key of a cluster",
        (plain, str(keys["ours"])): f"its address is {machines.address}",
        ("tls://nowhere", str(keys["ours"])): "tls://nowhere is no address of a scheduler, as tls://host:8786 is",
    }
    monkeypatch.setattr(key, "PATIENCE", 0.5)
    setting = new_setting(LAUNCHER, "standin_compiler:StandinCompiler", "token")
    for (address, file), expected in cases.items():
        monkeypatch.setenv(key.VARIABLE, file)
        began = time.monotonic()
        status, said = said_by("tune/serve.py", address, "--gpus", "--jobs", "1")
        assert (status, expected in said) == (2, True), said
        assert time.monotonic() - began < 20
        with pytest.raises(TuningError) as failed:
            Cluster(setting, print, address)
        assert expected in str(failed.value)
    assert "TLS handshake failed with remote" in machines.said


def test_a_scheduler_without_a_key_is_told_from_one_with(
    tmp_path: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """tls:// of a scheduler that has no key is an error with the address that is meant."""
    monkeypatch.setenv(key.VARIABLE, str(keys["ours"]))
    plain = Machines(tmp_path, {})
    try:
        plain.start(SCHEDULE, plain.address)
        wait_until(lambda: "the scheduler listens at" in plain.said)
        with pytest.raises(TuningError, match=f"has no key: its address is {plain.address}"):
            Cluster(
                new_setting(LAUNCHER, "standin_compiler:StandinCompiler", "token"), print,
                plain.address.replace("tcp://", "tls://"),
            )  # fmt: skip
        assert "no key: who reaches it can run any code on its workers" in plain.said
    finally:
        plain.end()


def test_a_worker_waits_for_its_scheduler_but_not_with_another_key(
    tmp_path: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is started first joins later; once the scheduler has another key, it ends."""
    monkeypatch.setenv(key.VARIABLE, str(keys["ours"]))
    machines = Machines(tmp_path, {}, "tls")
    try:
        worker = machines.start("tune/serve.py", machines.address, "--gpus", "--jobs", "1")
        time.sleep(2.0)
        first = machines.start(SCHEDULE, machines.address)
        wait_until(lambda: f"compile serves {machines.address}" in machines.said)
        first.kill()
        first.wait()
        machines.start(SCHEDULE, machines.address, **{key.VARIABLE: str(keys["other"])})
        assert worker.wait(60) == 2
        assert f"the key {keys['ours']} is not that of" in machines.said
    finally:
        machines.end()


class Rented:
    """A cluster of Dask's that rents nodes: each is two processes, a worker that measures and one that compiles."""

    def __init__(self, machines: Machines) -> None:
        from distributed import Scheduler, SpecCluster
        from distributed.deploy.spec import ProcessInterface

        rented = self.rented = list[str]()
        self.secured = key.security(machines.address)
        file = os.environ[key.VARIABLE]
        tls = ("--no-nanny", "--no-dashboard", "--tls-ca-file", file, "--tls-cert", file, "--tls-key", file)

        class Node(ProcessInterface):  # type: ignore[misc] # of Dask, which has no types where mypy runs
            def __init__(self, scheduler: str, name: str) -> None:
                super().__init__(scheduler=scheduler, name=name)
                self.own = name

            async def start(self) -> None:
                rented.append(self.own)
                own = ("--name", self.own, "--nthreads", "2", "--resources", "CPU=2", *tls)
                compiles = ("-m", "distributed.cli.dask_worker", machines.address, *own)
                self.processes = [machines.worker(str(len(rented))), machines.start(*compiles, store=self.own)]
                await super().start()

            async def close(self) -> None:
                for process in self.processes:
                    process.kill()
                await super().close()

        class Nodes(SpecCluster):  # type: ignore[misc]
            def _new_worker_name(self, worker_number: int) -> str:
                return f"node-{worker_number}"

        listen = {"host": "127.0.0.1", "port": machines.port, "protocol": "tls://", "security": self.secured}
        self.cluster = Nodes(
            scheduler={"cls": Scheduler, "options": {**listen, "dashboard_address": "127.0.0.1:0"}},
            worker={"cls": Node, "options": {}}, security=self.secured, asynchronous=False,
        )  # fmt: skip


def test_machines_come_when_they_are_wanted_and_go(
    tmp_path: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None before there is a run, one while it does not say what it tunes, then as many as it has problems, up to the
    most; none in the end.
    """
    monkeypatch.setenv(key.VARIABLE, str(keys["ours"]))
    machines = Machines(tmp_path, {"slow": 0.05}, "tls")
    rented = Rented(machines)
    try:
        cluster = rented.cluster
        cluster.adapt(Adaptive=as_wanted(1), minimum=0, maximum=2, interval="200ms", wait_count=2)
        time.sleep(1.0)
        assert rented.rented == []
        assert machines.tune() == []
        assert sorted(rented.rented) == ["node-0", "node-1"]
        wait_until(lambda: not cluster.plan and not cluster.workers)
        assert len(cluster.scheduler.unrunnable) == 0
    finally:
        rented.cluster.close()
        machines.end()


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://0.0.0.0:8786", "8786", "http://127.0.0.1:1"])
def test_a_scheduler_for_others_needs_a_key(address: str) -> None:
    """Unless somebody says that the network may be trusted."""
    status, said = said_by(SCHEDULE, address)
    assert status == 2
    assert "--trusted-network" in said if address.endswith("0.0.0.0:8786") else "an address is tls://HOST:PORT" in said


def test_a_trusted_network_is_asked_for(tmp_path: Path) -> None:
    """Then a scheduler listens without a key for all."""
    machines = Machines(tmp_path, {})
    try:
        machines.start(SCHEDULE, f"tcp://0.0.0.0:{machines.port}", "--trusted-network")
        wait_until(lambda: "the scheduler listens at" in machines.said)
        Cluster(new_setting(LAUNCHER, "standin_compiler:StandinCompiler", "token"), print, machines.address).close()
    finally:
        machines.end()


def test_a_key_is_not_overwritten_and_no_scheduler_starts_without(keys: dict[str, Path], tmp_path: Path) -> None:
    """Nor may others read it."""
    before = keys["ours"].read_bytes()
    assert keys["ours"].stat().st_mode & 0o077 == 0
    status, said = said_by(SCHEDULE, "--new-key", **{key.VARIABLE: str(keys["ours"])})
    assert (status, "is there already" in said, keys["ours"].read_bytes()) == (2, True, before)
    status, said = said_by(SCHEDULE, **{key.VARIABLE: str(tmp_path / "none.pem")})
    assert (status, str(tmp_path / "none.pem") in said, "--new-key" in said) == (2, True, True)
    status, said = said_by(SCHEDULE, "--new-key", **{key.VARIABLE: str(tmp_path / "new.pem"), "PATH": str(tmp_path)})
    assert (status, "openssl is missing" in said) == (2, True)


def test_a_scheduler_of_dask_alone_takes_the_key(tmp_path: Path, keys: dict[str, Path], monkeypatch: Any) -> None:
    """It has nothing of this project."""
    monkeypatch.setenv(key.VARIABLE, str(keys["ours"]))
    machines = Machines(tmp_path, {}, "tls")
    file, listen = str(keys["ours"]), ("--host", "127.0.0.1", "--port", str(machines.port), "--protocol", "tls")
    own = ("-P", "-m", "distributed.cli.dask_scheduler", *listen, "--tls-ca-file", file, "--tls-cert", file)
    setting = new_setting(LAUNCHER, "standin_compiler:StandinCompiler", "token")
    joined: list[bool] = []

    def join() -> None:
        lent = Cluster(setting, print, machines.address)
        joined.append(lent.first_gpu().arch == "sm_90")
        lent.close()

    try:
        machines.start(*own, "--no-dashboard", PYTHONPATH="")
        machines.worker("0")
        wait_until(lambda: "gpu-0 serves" in machines.said)
        client = threading.Thread(target=join)
        client.start()
        client.join(60)
        assert joined == [True]
    finally:
        machines.end()
