"""The GPUs of a run: who joins and leaves, and the jobs that they have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from aotriton.tune.coordinator.cluster import Cluster
from aotriton.tune.coordinator.events import WorkerJoined
from aotriton.tune.coordinator.next_job import AHEAD
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.state import Gpu, Search
from aotriton.tune.coordinator.usage import Usage
from aotriton.tune.measure.requests import Request
from aotriton.tune.workers import station
from aotriton.tune.workers.canary import Canary
from aotriton.tune.workers.jobs import GPU, MeasureJob

PAUSE = 1.0  # seconds after which a GPU is asked again that another run has


@dataclass
class Gpus:
    """GPUs of one product and driver; others are left out."""

    cluster: Cluster
    progress: Progress
    usage: Usage
    product: str
    driver: str
    tensors: dict[object, set[str]] = field(default_factory=dict)  # by problems' tensors: the GPUs that made them
    twins: dict[str, WorkerJoined] = field(default_factory=dict)  # by address: workers of a GPU that another one offers
    lost: list[str] = field(default_factory=list)  # why GPUs are not used, the last reason last
    _gpus: dict[str, Gpu] = field(default_factory=dict)  # by address
    _jobs: dict[str, Gpu] = field(default_factory=dict)  # by key: the GPU that has the job

    def __iter__(self) -> Iterator[Gpu]:
        return iter(list(self._gpus.values()))

    def __len__(self) -> int:
        return len(self._gpus)

    def __contains__(self, address: str) -> bool:
        return address in self._gpus

    @property
    def with_room(self) -> list[Gpu]:
        """Those that may have a further job."""
        now = time.monotonic()
        return [gpu for gpu in self if len(gpu.in_flight) < AHEAD and gpu.taken_until <= now]

    @property
    def working(self) -> bool:
        """Whether any has a job."""
        return any(gpu.in_flight for gpu in self)

    def join(self, event: WorkerJoined) -> None:
        """Takes a worker that measures, if it is one of these GPUs."""
        device = event.facts.device
        if not device:
            self.lost.append(event.facts.error or "it does not say what it is")
            self.progress.note(f"GPU {event.facts.gpu} stops: {self.lost[-1]}")
        elif (device.name, device.driver) != (self.product, self.driver):
            about = (
                f"it is {device.name} with driver {device.driver}, the plan is for {self.product} with {self.driver}"
            )
            self.lost.append(f"{about}: tune on it alone (--product, --gpus)")
            self.progress.note(f"{event.address} is left out: {self.lost[-1]}")
        elif first := next((gpu for gpu in self if device.uuid and gpu.device.uuid == device.uuid), None):
            self.twins[event.address] = event
            self.progress.note(
                f"{event.address} offers the GPU that {first.address} offers: it waits until that one leaves"
            )
        else:
            self._gpus[event.address] = Gpu(event.address, event.facts)
            self.usage.came(event.address, event.price)

    def leave(self, address: str) -> list[tuple[Search, MeasureJob]]:
        """Drops the GPU at this address, if there is one, for another worker that offers it. Returns the jobs that it
        leaves undone.
        """
        self.twins.pop(address, None)
        uuid = self._gpus[address].device.uuid if address in self else None
        undone = self._drop(address)
        for twin in list(self.twins.values()):
            if uuid and twin.facts.device and twin.facts.device.uuid == uuid:
                self.join(self.twins.pop(twin.address))
        return undone

    def _drop(self, address: str) -> list[tuple[Search, MeasureJob]]:
        if not (gpu := self._gpus.pop(address, None)):
            return []
        self.usage.left(address)
        gpu.turn_to(None)
        for makers in self.tensors.values():
            makers.discard(address)
        for key in gpu.in_flight:
            del self._jobs[key]
            self.cluster.forget(key)
        return list(gpu.in_flight.values())

    def stop(self, gpu: Gpu, why: str) -> list[tuple[Search, MeasureJob]]:
        """Drops a GPU that is at fault. Returns the jobs that it leaves undone."""
        if gpu.address not in self:
            return []
        self.progress.note(f"GPU {gpu.facts.gpu} stops: {why}")
        self.lost.append(why)
        return self._drop(gpu.address)

    def taken(self, gpu: Gpu) -> None:
        """Has a GPU that another run has wait."""
        if not gpu.taken_until:
            self.progress.note(f"GPU {gpu.facts.gpu} of {gpu.address} is another run's now: waiting for it")
        gpu.taken_until = time.monotonic() + PAUSE

    def send(
        self,
        gpu: Gpu,
        search: Search,
        requests: tuple[Request, ...],
        canaries: tuple[Canary, ...],
        race: bool = False,
        finish: bool = False,
    ) -> None:
        """Sends the GPU a job, with the images that it does not have."""
        sent: dict[str, bytes] = {}
        if gpu.facts.store != self.cluster.setting.store:
            for request in (*requests, *(canary.request for canary in canaries)):
                if request.name not in gpu.has:
                    sent[request.name] = request.path.read_bytes()
            gpu.has.update(sent)
        best = search.best[0] if search.best else None
        job = MeasureJob(self.cluster.setting, search.problem.named, requests, race, finish, best, canaries, sent)
        key = self.cluster.submit(station.measure, job, GPU, gpu.address)
        gpu.in_flight[key] = search, job
        self._jobs[key] = gpu

    def ended(self, key: str) -> tuple[Gpu, Search, MeasureJob] | None:
        """The job of this key, whose reply is there; None where the GPU has left."""
        if gpu := self._jobs.pop(key, None):
            return gpu, *gpu.in_flight.pop(key)
        return None
