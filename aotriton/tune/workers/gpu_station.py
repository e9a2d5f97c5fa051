"""The station of a worker that measures: from a job to the results of its GPU's child process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, TypeVar

from aotriton.codegen.compile import ImageStore
from aotriton.rules.image import TRITON_VERSION
from aotriton.tune.measure.requests import Device, Request
from aotriton.tune.problem.problems import Problem
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.winners.decide import leaders
from aotriton.tune.workers.gpu_process import GpuProcess, TimedOut, WorkerError
from aotriton.tune.workers.incident import Attempts, Canary, Stopped
from aotriton.tune.workers.jobs import (
    Facts,
    Failed,
    Measured,
    MeasureJob,
    Setting,
    code_digest,
    put_images,
    store_token,
)

Made = TypeVar("Made")


class GpuStation:
    """One GPU, through a child process that may die."""

    def __init__(self, gpu: str, core: int | None = None) -> None:
        self.gpu, self.core = gpu, core
        self.store = ImageStore()
        self._stop = threading.Event()
        self._busy = threading.Lock()
        self._worker: GpuProcess | None = None
        self._setting: Setting | None = None
        self._problem: Problem | None = None
        self._best: float | None = None
        self._seen: dict[str, tuple[float, Request]] = {}  # the problem's right candidates, with their medians

    def facts(self, setting: Setting) -> Facts:
        worker = self._begin(setting)
        attempts = Attempts(worker, setting.pauses, self._stop, lambda note: None)
        device: Device | WorkerError
        try:
            with self._busy:
                device = attempts.of(worker.device, "its facts")
        except TuningError as error:
            device = WorkerError(str(error))
        except Stopped:
            device = WorkerError("the run has ended")
        about = TRITON_VERSION, code_digest(), store_token(self.store)
        if isinstance(device, WorkerError):
            return Facts(*about, gpu=self.gpu, error=str(device))
        return Facts(*about, device, self.gpu)

    def measure(self, job: MeasureJob) -> Measured:
        began = time.monotonic()
        made = Measured()
        try:
            with self._busy:
                self._measure(job, made)
        except TuningError as error:
            made.error = str(error)
        except Stopped:
            pass
        made.seconds = time.monotonic() - began
        return made

    def close(self) -> None:
        """Ends the child, and its job with it."""
        self._stop.set()
        if self._worker and not self._busy.acquire(timeout=1.0):
            self._worker.kill()
            self._busy.acquire(timeout=60.0)
        if self._worker:
            self._worker.close()

    def stop(self, run: str) -> None:
        """Ends the run's job, at the next candidate."""
        if self._setting and self._setting.run == run:
            self._stop.set()

    def _begin(self, setting: Setting) -> GpuProcess:
        known = self._setting
        # Its child has imported the families of its run, and another run's may have other references.
        other = known is None or known.launcher != setting.launcher or (known.run != setting.run and setting.families)
        if self._worker is None or other:
            if self._worker:
                self._worker.close()
            self._worker = GpuProcess(setting.launcher, self.gpu, setting.candidate_limit, self.core)
            self._problem = None
        if self._setting is None or self._setting.run != setting.run:
            self._stop = threading.Event()
        self._setting = setting
        return self._worker

    def _measure(self, job: MeasureJob, made: Measured) -> None:
        worker = self._begin(job.setting)
        if not (requests := self._localised(job, made)):
            return
        canaries = [Canary(one.problem, self._local(one.request)) for one in job.canaries if self._has(one.request)]
        attempts = Attempts(worker, job.setting.pauses, self._stop, made.notes.append)
        if job.problem != self._problem:
            began = time.monotonic()
            self._problem, self._best, self._seen = None, None, {}
            failed = attempts.of(lambda: worker.prepare(job.problem), "its tensors", job.problem, canaries)
            made.preparing = time.monotonic() - began
            if failed:
                made.unprepared = str(failed)
                return
            self._problem = job.problem
        known = [one for one in (job.best_us, self._best) if one is not None]
        self._best = min(known, default=None)

        def tried(call: Callable[[], Made], name: str, what: str) -> Made | WorkerError:
            others = [one for one in canaries if one.request.name != name]  # no candidate speaks for itself
            return attempts.of(call, f"{job.problem}: {what}", job.problem, others)

        if job.race:
            self._race(worker, requests, tried, made)
        else:
            self._sweep(worker, requests, tried, made, job.problem, canaries)
            if job.finish and not self._stop.is_set() and (leading := self._leaders()):
                alone = Measured()  # if they do not race together, the coordinator asks who is to blame
                self._race(worker, leading, tried, alone)
                made.race = alone.race

    def _sweep(
        self,
        worker: GpuProcess,
        requests: Sequence[Request],
        tried: Callable[..., Any],
        made: Measured,
        problem: Problem,
        canaries: list[Canary],
    ) -> None:
        for request in requests:
            if self._stop.is_set():
                return
            result = tried(lambda r=request: worker.sweep(r, self._best), request.name, request.config)
            if isinstance(result, WorkerError):
                made.results[request.name] = _failed(result)
                continue
            made.results[request.name] = result
            if result.status == "ok":
                canaries.insert(0, Canary(problem, request))
                middle = median(result.samples)
                self._seen[request.name] = middle, request
                self._best = min(self._best or middle, middle)

    def _leaders(self) -> list[Request]:
        """The problem's candidates that must race; none where one leads clearly."""
        found = {name: (middle, request.config) for name, (middle, request) in self._seen.items()}
        return [self._seen[name][1] for name in leaders(found)]

    def _race(self, worker: GpuProcess, requests: Sequence[Request], tried: Callable[..., Any], made: Measured) -> None:
        race = tried(lambda: worker.race(requests), "", "race")
        if not isinstance(race, WorkerError):
            made.race = race
            return
        for request in requests:  # each alone, to see who fails
            alone = tried(lambda r=request: worker.race([r]), request.name, request.config)
            if isinstance(alone, WorkerError):
                made.results[request.name] = _failed(alone)
        if not made.results:
            made.apart = True
            made.notes.append(f"{self._problem}: the leaders race alone, but not together: {race}")

    def _localised(self, job: MeasureJob, made: Measured) -> list[Request]:
        """The requests with the paths of this machine; none where an image is missing."""
        put_images(self.store, job.images, [*job.requests, *(one.request for one in job.canaries)])
        made.missing = tuple(one.name for one in job.requests if not self._has(one))
        return [] if made.missing else [self._local(one) for one in job.requests]

    def _has(self, request: Request) -> bool:
        return self.store.get(request.name, request.metadata["sha256"]) is not None

    def _local(self, request: Request) -> Request:
        found = self.store.get(request.name, request.metadata["sha256"])
        return replace(request, path=found.path) if found else request


def _failed(error: WorkerError) -> Failed:
    return Failed("timed_out" if isinstance(error, TimedOut) else "crashed", str(error))
