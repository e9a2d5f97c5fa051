"""The GPUs of a run, without any: who may join, which jobs a GPU leaves undone, and which images are sent to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_next_job import NAMES, SPECS, request, search

from aotriton.tune.coordinator.events import WorkerJoined
from aotriton.tune.coordinator.gpus import Gpus
from aotriton.tune.coordinator.next_job import AHEAD
from aotriton.tune.coordinator.state import Gpu
from aotriton.tune.coordinator.usage import Usage
from aotriton.tune.measure.requests import Device, Request
from aotriton.tune.workers.jobs import Facts, MeasureJob


class Cluster:
    """Keeps the jobs that it is to send."""

    setting = SimpleNamespace(store="here")

    def __init__(self) -> None:
        self.jobs: dict[str, MeasureJob] = {}
        self.forgotten: list[str] = []

    def submit(self, run: object, job: MeasureJob, needs: str, address: str) -> str:
        key = f"{address} {len(self.jobs)}"
        self.jobs[key] = job
        return key

    def forget(self, key: str) -> None:
        self.forgotten.append(key)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def gpus(cluster: Cluster) -> Gpus:
    made: Any = cluster
    progress: Any = SimpleNamespace(note=lambda text: None)
    return Gpus(made, progress, Usage(0.0), "product", "1")


def joined(gpus: Gpus, product: str = "product", store: str = "here", error: str | None = None) -> list[Gpu]:
    """The GPUs after a worker has joined."""
    device = None if error else Device("arch", product, "1", "", 1)
    gpus.join(WorkerJoined(f"worker {len(gpus)}", Facts("", "", store, device, error=error), 0))
    return list(gpus)


def stored(folder: Path, name: str) -> Request:
    """A request whose image has its name as content."""
    (folder / name).write_text(name)
    made = request(SPECS[name])
    return Request(made.name, made.kernel, made.config, folder / name, {}, made.tunables)


def test_only_gpus_of_the_plan_join(gpus: Gpus) -> None:
    """Another product, or a worker whose GPU fails, is left out, and the reason is kept."""
    assert len(joined(gpus)) == 1
    assert len(joined(gpus, product="other")) == 1
    assert len(joined(gpus, error="no binding")) == 1
    assert "it is other with driver 1, the plan is for product" in gpus.lost[0]
    assert gpus.lost[1] == "no binding"


def test_a_gpu_that_leaves_gives_its_jobs_back(gpus: Gpus, cluster: Cluster) -> None:
    """Its jobs are returned and forgotten, late replies to them are dropped, and it has made no tensors any more."""
    (one,) = joined(gpus)
    work = search(ready=0)
    one.turn_to(work)
    gpus.tensors["a"] = {one.address}
    for name in NAMES[:2]:
        gpus.send(one, work, (request(SPECS[name]),), ())
    keys = list(cluster.jobs)
    assert gpus.ended(keys[0]) == (one, work, cluster.jobs[keys[0]])
    assert gpus.stop(one, "it is sick") == [(work, cluster.jobs[keys[1]])]
    assert gpus.lost == ["it is sick"]
    assert cluster.forgotten == [keys[1]]
    assert gpus.ended(keys[1]) is None
    assert not work.gpus
    assert gpus.tensors == {"a": set()}
    assert gpus.stop(one, "again") == []


def test_a_gpu_has_room_for_a_few_jobs(gpus: Gpus) -> None:
    """AHEAD jobs, and no more until one has ended."""
    (one,) = joined(gpus)
    work = search(ready=0)
    for _ in range(AHEAD):
        assert gpus.with_room == [one]
        gpus.send(one, work, (request(SPECS[NAMES[0]]),), ())
    assert gpus.with_room == []
    assert gpus.working


def test_images_are_sent_once_where_the_store_is_another(gpus: Gpus, cluster: Cluster, tmp_path: Path) -> None:
    """A worker that shares the coordinator's store is sent none; another one each image with its first job."""
    here, elsewhere = joined(gpus)[0], joined(gpus, store="elsewhere")[1]
    work = search(ready=0)
    for one in (here, elsewhere, elsewhere):
        gpus.send(one, work, (stored(tmp_path, NAMES[0]),), ())
    gpus.send(elsewhere, work, (stored(tmp_path, NAMES[1]),), ())
    first, second = ({name: name.encode()} for name in NAMES[:2])
    assert [job.images for job in cluster.jobs.values()] == [{}, first, {}, second]
