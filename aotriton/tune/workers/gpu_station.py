"""The station of a worker that measures: from a job to the results of its GPU's child process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeVar

from aotriton.codegen.compile import ImageStore
from aotriton.rules.image import TRITON_VERSION
from aotriton.tune.measure.requests import Conditions, Device, Request
from aotriton.tune.problem.problems import NamedProblem
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.winners.decide import Swept, leaders
from aotriton.tune.workers.canary import Attempts, Canary, Stopped
from aotriton.tune.workers.families import known_folders
from aotriton.tune.workers.gpu_process import GpuProcess, Spare, TimedOut, WorkerError
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
from aotriton.tune.workers.lock import Lock, gpu_lock

Made = TypeVar("Made")

RUNS = 8  # runs that are remembered, of those whose end nobody has told
IDLE = 60.0  # seconds without a job, after which a run's GPU is another's to take


@dataclass
class _Run:
    """What a station knows of one run: of its problem the best time in µs, and the right candidates with their sweeps.
    ``told``: what it has said of the GPU.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    problem: NamedProblem | None = None
    best: float | None = None
    seen: dict[str, tuple[Swept, Request]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def turn_to(self, problem: NamedProblem) -> None:
        if problem != self.problem:
            self.problem, self.best, self.seen = problem, None, {}


class GpuStation:
    """One GPU, through a child process that may die. One run has it at a time, from its first job until it ends, or has
    no job for IDLE seconds; the jobs of others come back as ``taken``.
    """

    def __init__(self, gpu: str, core: int | None = None, ahead: bool = False) -> None:
        """``ahead``: the first child is started now, and has torch when a run comes. The calling thread must live as
        long as the station.
        """
        self.gpu, self.core = gpu, core
        self._spare = Spare() if ahead else None
        self.store = ImageStore()
        self._runs: dict[str, _Run] = {}  # the last one last
        self._busy = threading.Lock()
        self._device: tuple[str, Device] | None = None  # by a launcher
        self._setting: Setting | None = None  # of the run that has the GPU
        self._worker: GpuProcess | None = None  # of that run
        self._prepared: NamedProblem | None = None  # the problem whose tensors the child has
        self._lock: Lock | None = None
        self._used = 0.0  # when the last job ended, on time.monotonic's clock
        self._timer: threading.Timer | None = None

    def facts(self, setting: Setting) -> Facts:
        about = TRITON_VERSION, code_digest(), store_token(self.store)
        device: Device | WorkerError
        with self._busy:
            try:
                device = self._facts(setting)
            except TuningError as error:
                device = WorkerError(str(error))
            except Stopped:
                device = WorkerError("the run has ended")
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
        for run in list(self._runs.values()):
            run.stop.set()
        if not self._busy.acquire(timeout=1.0):
            if worker := self._worker:
                worker.kill()
            if not self._busy.acquire(timeout=60.0):
                return
        self._leave()
        if self._spare:
            self._spare.close()
        self._busy.release()

    def stop(self, run: str) -> None:
        """Ends the run's job, at the next candidate, and gives the GPU to others. Returns at once."""
        self._run(run).stop.set()
        threading.Thread(target=self._leave_if_ended, args=(run,), daemon=True).start()

    def _run(self, name: str) -> _Run:
        found = self._runs.setdefault(name, _Run())
        for old in list(self._runs)[:-RUNS]:
            if old not in (name, self._setting and self._setting.run):
                self._runs.pop(old, None)
        return found

    def _facts(self, setting: Setting) -> Device | WorkerError:
        if not self._begins(setting):
            if self._device and self._device[0] == setting.launcher:
                return self._device[1]
            return WorkerError("another run has it, which has another launcher")
        worker, device = self._process(setting), None
        try:
            # Who starts a run wants to know soon that a GPU cannot be used: it is waited for only once it has worked.
            attempts = Attempts(worker, setting.pauses[:2], self._run(setting.run).stop, lambda note: None)
            device = attempts.of(worker.device, "its facts")
        finally:
            if isinstance(device, Device):
                self._device = setting.launcher, device
                self._rest()
            else:
                self._leave()
        return device

    def _begins(self, setting: Setting) -> bool:
        """Whether the run has this station; takes it where no other run has measured just now."""
        if self._setting and self._setting.run != setting.run:
            ended = self._run(self._setting.run).stop.is_set()
            if self._lock and not ended and time.monotonic() - self._used < IDLE:
                return False
            self._leave()
        self._setting = setting
        return True

    def _process(self, setting: Setting) -> GpuProcess:
        """The child of the run that has the GPU."""
        if self._worker is None:
            families = known_folders(setting.families)
            spare, self._spare = self._spare, None
            limit = setting.candidate_limit
            self._worker = GpuProcess(setting.launcher, self.gpu, limit, self.core, families, spare)
        return self._worker

    def _locks(self) -> bool:
        """Whether the GPU is locked for the run: no other process times on it then."""
        if self._lock is None:
            uuid = self._device[1].uuid if self._device else None
            lock = gpu_lock(uuid or self.gpu)
            self._lock = lock if lock.take() else None
        return self._lock is not None

    def _rest(self) -> None:
        """Notes the end of a job. Without another one the child ends after a while, and whoever waits has the GPU."""
        self._used = time.monotonic()
        if self._timer is None:
            self._time(IDLE)

    def _time(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._leave_if_idle)
        self._timer.daemon = True
        self._timer.start()

    def _leave_if_idle(self) -> None:
        with self._busy:
            self._timer = None
            left = self._used + IDLE - time.monotonic()
            if self._setting and left <= 0:
                self._leave()
            elif self._setting:
                self._time(left)

    def _leave_if_ended(self, run: str) -> None:
        with self._busy:
            if self._setting and self._setting.run == run:
                self._leave()

    def _leave(self) -> None:
        """Ends the child, and lets others have the GPU."""
        if self._worker:
            self._worker.close()
        if self._lock:
            self._lock.release()
        self._worker = self._prepared = self._setting = self._lock = None

    def _measure(self, job: MeasureJob, made: Measured) -> None:
        requests = self._localised(job, made)
        if made.missing:
            return
        run = self._run(job.setting.run)
        if run.stop.is_set():
            return
        if not self._begins(job.setting):
            made.taken = True
            return
        if not self._locks():
            made.taken = True
            self._leave()
            return
        try:
            self._try(job, run, requests, made)
        finally:
            self._rest()

    def _try(self, job: MeasureJob, run: _Run, requests: Sequence[Request], made: Measured) -> None:
        worker = self._process(job.setting)
        canaries = [Canary(one.problem, self._local(one.request)) for one in job.canaries if self._has(one.request)]
        attempts = Attempts(worker, job.setting.pauses, run.stop, made.notes.append)
        run.turn_to(job.problem)
        if job.problem != self._prepared:
            began = time.monotonic()
            self._prepared = None
            failed = attempts.of(lambda: worker.prepare(job.problem), "its tensors", job.problem, canaries)
            made.preparing = time.monotonic() - began
            if failed:
                made.unprepared = str(failed)
                return
            self._prepared = job.problem
        made.prepared = not requests
        known = [one for one in (job.best_us, run.best) if one is not None]
        run.best = min(known, default=None)

        def tried(call: Callable[[], Made], name: str, what: str) -> Made | WorkerError:
            others = [one for one in canaries if one.request.name != name]  # no candidate speaks for itself
            return attempts.of(call, f"{job.problem}: {what}", job.problem, others)

        if job.race:
            self._race(worker, requests, tried, made, run)
        else:
            self._sweep(worker, requests, tried, made, run, canaries)
            if job.finish and not run.stop.is_set() and (leading := self._leaders(run)):
                alone = Measured()  # if they do not race together, the coordinator asks who is to blame
                self._race(worker, leading, tried, alone, run)
                made.race = alone.race
                made.notes += alone.notes

    def _sweep(
        self,
        worker: GpuProcess,
        requests: Sequence[Request],
        tried: Callable[..., Any],
        made: Measured,
        run: _Run,
        canaries: list[Canary],
    ) -> None:
        assert run.problem is not None
        for request in requests:
            if run.stop.is_set():
                return
            result = tried(lambda r=request: worker.sweep(r, run.best), request.name, request.config)
            if isinstance(result, WorkerError):
                made.results[request.name] = _failed(result)
                continue
            made.results[request.name] = result
            self._tell(run, made, request.config, result.conditions)
            if result.status == "ok":
                canaries.insert(0, Canary(run.problem, request))
                middle = median(result.samples)
                run.seen[request.name] = Swept(middle, request.config, result.conditions.sm_clock), request
                run.best = min(run.best or middle, middle)

    def _leaders(self, run: _Run) -> list[Request]:
        """The problem's candidates that must race; none where one leads clearly."""
        found = {name: swept for name, (swept, _) in run.seen.items()}
        return [run.seen[name][1] for name in leaders(found)]

    def _tell(self, run: _Run, made: Measured, what: str, conditions: Conditions) -> None:
        """Notes, once, that somebody else is on the GPU, and of each problem that its rounds ran at several clocks."""
        decides_nothing = "what is measured beside it decides nothing, and is measured again by the next run"
        counts = "whether it computes is not known: what is measured beside it counts"
        for who, then in ((conditions.others, decides_nothing), (conditions.silent, counts)):
            if who and then not in run.told:
                run.told.add(then)
                made.notes.append(f"another process is on GPU {self.gpu}: {', '.join(who)}: {then}")
        if conditions.remark and str(run.problem) not in run.told:
            run.told.add(str(run.problem))
            made.notes.append(f"{run.problem}: {what}: {conditions.remark}")

    def _race(
        self,
        worker: GpuProcess,
        requests: Sequence[Request],
        tried: Callable[..., Any],
        made: Measured,
        run: _Run,
    ) -> None:
        race = tried(lambda: worker.race(requests), "", "race")
        if not isinstance(race, WorkerError):
            made.race = race
            self._tell(run, made, "race", race.conditions)
            return
        for request in requests:  # each alone, to see who fails
            alone = tried(lambda r=request: worker.race([r]), request.name, request.config)
            if isinstance(alone, WorkerError):
                made.results[request.name] = _failed(alone)
        if not made.results:
            made.apart = True
            made.notes.append(f"{run.problem}: the leaders race alone, but not together: {race}")

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
