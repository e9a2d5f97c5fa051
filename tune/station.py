"""What a Dask worker does: from a job to a reply, on the GPU or the compilers that are its own.

A worker with the resource GPU measures, one with CPU compiles. Both find what they need on their own machine: the
coordinator sends a description by its name, a shape and, once, an image's bytes.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, spec_of
from aotriton.codegen.store import write_atomically
from aotriton.rules import family
from aotriton.rules.image import TRITON_VERSION, ImageSpec
from aotriton.tune.cores import launch_cores, leave
from aotriton.tune.decide import leaders
from aotriton.tune.incident import Attempts, Canary, Stopped, TuningError
from aotriton.tune.problems import Problem
from aotriton.tune.recompile import is_incident, recompile
from aotriton.tune.worker import Device, GpuWorker, Race, Request, Result, TimedOut, WorkerError

Made = TypeVar("Made")

GPU, CPU = "GPU", "CPU"  # Dask's names for what a worker has
NAMED = re.compile(r"\bgpu-(\w[\w-]*)$")  # the GPU in a worker's name, where one machine's share an environment


class Compiler(Protocol):
    """What compiles: ``codegen.compile.WarmCompiler``, or a stand-in."""

    def compile(
        self, spec: ImageSpec, store: ImageStore, checksum: str | None = None
    ) -> CompiledImage | CompileFailure: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Setting:
    """What is the same in all jobs of a run. ``launcher`` and ``compiler`` are ``module:Class``; ``store`` is the
    token of the coordinator's image store, ``families`` are folders outside of the tree that workers have, too.
    """

    run: str
    launcher: str
    compiler: str
    store: str
    pauses: tuple[float, ...]
    families: tuple[str, ...]
    candidate_limit: float


@dataclass(frozen=True)
class Facts:
    """What tells a worker from others. ``store`` is the token of its image store, ``code`` a digest of our sources."""

    triton: str
    code: str
    store: str
    device: Device | None = None
    gpu: str = ""
    error: str | None = None


@dataclass(frozen=True)
class CompileJob:
    """An image to be made: ``request`` is ``request_of(spec)``; ``checksum`` the one that was measured before."""

    setting: Setting
    request: Mapping[str, Any]
    checksum: str | None = None


@dataclass(frozen=True)
class Compiled:
    """``metadata``, or what the compiler said; the ``binary`` where the coordinator has another store. ``error``: the
    fault of the machine itself, the worker at the address ``station``.
    """

    metadata: Mapping[str, Any] | None = None
    message: str = ""
    binary: bytes | None = None
    error: str | None = None
    seconds: float = 0.0
    station: str = ""


@dataclass(frozen=True)
class MeasureJob:
    """Candidates of one problem: swept one after the other, or raced. ``finish``: they are the last ones, so that those
    which lead of all that were swept here are raced at once. ``images`` are those, by name, that the worker has not.
    """

    setting: Setting
    problem: Problem
    requests: tuple[Request, ...]
    race: bool = False
    finish: bool = False
    best_us: float | None = None
    canaries: tuple[Canary, ...] = ()
    images: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """A verdict: ``crashed`` or ``timed_out``, and what was seen."""

    status: str
    detail: str


@dataclass
class Measured:
    """What became of the candidates by image name; of a race those that fail alone, and the race where none does.
    ``apart``: they race alone, but not together.

    ``missing`` images were not there, ``unprepared`` says why the problem's tensors could not be made; ``error`` is the
    machine's own fault. ``seconds`` the GPU had, ``preparing`` of them before the first candidate.
    """

    results: dict[str, Result | Failed] = field(default_factory=dict)
    race: Race | None = None
    apart: bool = False
    missing: tuple[str, ...] = ()
    unprepared: str | None = None
    error: str | None = None
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    preparing: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether it tells nothing, as of a job of a run that has ended."""
        return not (self.results or self.race or self.apart or self.missing or self.unprepared or self.error)


class GpuStation:
    """One GPU, through a child process that may die."""

    def __init__(self, gpu: str, core: int | None = None) -> None:
        self.gpu, self.core = gpu, core
        self.store = ImageStore()
        self._stop = threading.Event()
        self._busy = threading.Lock()
        self._worker: GpuWorker | None = None
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
        """Ends the child, and with it what is under way."""
        self._stop.set()
        if self._worker and not self._busy.acquire(timeout=1.0):
            self._worker.kill()
            self._busy.acquire(timeout=60.0)
        if self._worker:
            self._worker.close()

    def stop(self, run: str) -> None:
        """Ends what is under way for that run, at the next candidate."""
        if self._setting and self._setting.run == run:
            self._stop.set()

    def _begin(self, setting: Setting) -> GpuWorker:
        if self._worker is None or self._setting is None or self._setting.launcher != setting.launcher:
            if self._worker:
                self._worker.close()
            self._worker = GpuWorker(setting.launcher, self.gpu, setting.candidate_limit, self.core)
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
        worker: GpuWorker,
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
        """Those of the problem's candidates that are to be raced; none where one leads clearly."""
        found = {name: (middle, request.config) for name, (middle, request) in self._seen.items()}
        return [self._seen[name][1] for name in leaders(found)]

    def _race(self, worker: GpuWorker, requests: Sequence[Request], tried: Callable[..., Any], made: Measured) -> None:
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
        """The requests with the paths of this machine; none where an image is not here."""
        put_images(self.store, job.images, [*job.requests, *(one.request for one in job.canaries)])
        made.missing = tuple(one.name for one in job.requests if not self._has(one))
        return [] if made.missing else [self._local(one) for one in job.requests]

    def _has(self, request: Request) -> bool:
        return self.store.get(request.name, request.metadata["sha256"]) is not None

    def _local(self, request: Request) -> Request:
        found = self.store.get(request.name, request.metadata["sha256"])
        return replace(request, path=found.path) if found else request


class CompileStation:
    """The compilers of one machine; each job takes one of them, a killed one's image the machine for itself."""

    def __init__(self) -> None:
        self.store = ImageStore()
        self._idle: list[Compiler] = []
        self._changed = threading.Condition()
        self._busy = 0
        self._known_good: ImageSpec | None = None

    def facts(self, setting: Setting) -> Facts:
        import importlib.metadata

        try:
            triton = importlib.metadata.version("triton")
        except importlib.metadata.PackageNotFoundError:
            triton = "missing"
        return Facts(triton, code_digest(), store_token(self.store))

    def compile(self, job: CompileJob) -> Compiled:
        began = time.monotonic()
        try:
            spec = spec_of(job.request)
            if job.request["name"] != spec.name:
                return Compiled(error="its kernels are not the coordinator's")
            result = self._compile(job, spec)
        except (OSError, TuningError) as error:
            return Compiled(error=self._told(error))
        seconds = time.monotonic() - began
        if isinstance(result, CompileFailure):
            return Compiled(message=result.message, seconds=seconds)
        same = job.setting.store == store_token(self.store)
        return Compiled(result.metadata, binary=None if same else result.binary, seconds=seconds)

    def close(self) -> None:
        with self._changed:
            for one in self._idle:
                one.close()
            self._idle.clear()

    def _compile(self, job: CompileJob, spec: ImageSpec) -> CompiledImage | CompileFailure:
        with self._shared():
            compiler = self._take(job.setting.compiler)
            try:
                result = compiler.compile(spec, self.store, job.checksum)
                if not is_incident(result):
                    if isinstance(result, CompiledImage):
                        self._known_good = spec
                    return result
            finally:
                self._idle.append(compiler)
        with self._alone():
            compiler = self._take(job.setting.compiler)
            try:
                return recompile(spec, self._known_good, self.store, compiler.compile)
            finally:
                self._idle.append(compiler)

    def _take(self, path: str) -> Compiler:
        with self._changed:
            if self._idle:
                return self._idle.pop()
        module, _, name = path.partition(":")
        leave(reserved_cores())
        made: Compiler = getattr(importlib.import_module(module), name)()
        return made

    @contextmanager
    def _shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._busy >= 0)
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._busy == 0)
            self._busy = -1
        try:
            yield
        finally:
            with self._changed:
                self._busy = 0
                self._changed.notify_all()

    def _told(self, error: BaseException) -> str:
        """The error; of a full disk also where, which a failed write does not say."""
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{error.filename or self.store.path}: {error.strerror}"
        return str(error)


_stations: weakref.WeakKeyDictionary[Any, GpuStation | CompileStation] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def _station() -> GpuStation | CompileStation:
    """The one of the Dask worker that this is run by."""
    from distributed import get_worker

    worker = get_worker()
    with _making:
        if worker not in _stations:
            measures = worker.state.total_resources.get(GPU)
            _stations[worker] = GpuStation(*_gpu_of(str(worker.name))) if measures else CompileStation()
        return _stations[worker]


def seat(worker: Any, station: GpuStation | CompileStation) -> None:
    """Gives a Dask worker of this process its station: a simulated machine's is not made by itself."""
    _stations[worker] = station


def _gpu_of(name: str) -> tuple[str, int | None]:
    """The GPU of the worker called ``name``, and the core that launches on it."""
    named = NAMED.search(name)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES") or "0"
    gpu = named[1] if named else visible.split(",")[0].strip()
    return gpu, launch_cores([gpu])[0]


def reserved_cores() -> set[int | None]:
    """The cores of this machine that launch, which compilers leave alone."""
    from aotriton.tune.launcher import visible_gpus

    own = {station.core for station in list(_stations.values()) if isinstance(station, GpuStation)}
    gpus = visible_gpus()
    return own | set(launch_cores(gpus) if gpus else ())


# What Dask runs. By name: what travels is the job alone.


def facts(setting: Setting) -> Facts:
    for folder in setting.families:
        family.add(folder)  # before a problem of theirs arrives
    return _station().facts(setting)


def compile_image(job: CompileJob) -> Compiled:
    from distributed import get_worker

    station = _station()
    assert isinstance(station, CompileStation)
    return replace(station.compile(job), station=get_worker().address)


def measure(job: MeasureJob) -> Measured:
    station = _station()
    assert isinstance(station, GpuStation)
    return station.measure(job)


def stop(run: str, dask_worker: Any = None) -> None:
    """Ends what this worker does for the run; Dask calls it beside the worker's tasks."""
    station = _stations.get(dask_worker)
    if isinstance(station, GpuStation):
        station.stop(run)


def close(worker: Any) -> None:
    """Ends the processes of a Dask worker of this process."""
    if station := _stations.pop(worker, None):
        station.close()


def received(
    reply: Compiled, name: str, store: ImageStore, checksum: str | None = None
) -> CompiledImage | CompileFailure:
    """What a compile job made, in the coordinator's store."""
    if reply.metadata is None:
        return CompileFailure(name, reply.message)
    if reply.binary is None:
        return CompiledImage(name, dict(reply.metadata), store.path / str(reply.metadata["file"]))
    own = {key: value for key, value in reply.metadata.items() if key not in ("name", "file", "sha256")}
    return store.put(name, str(reply.metadata["file"]).rpartition(".")[2], reply.binary, own, checksum)


def put_images(store: ImageStore, images: Mapping[str, bytes], requests: Sequence[Request]) -> None:
    """Stores what was sent of the requests' images, by name, and is what it should be."""
    for request in requests:
        metadata = dict(request.metadata)
        binary = images.get(request.name)
        if binary is not None and hashlib.sha256(binary).hexdigest() == metadata["sha256"]:
            suffix = Path(metadata.pop("file")).suffix.removeprefix(".")
            for name in ("name", "sha256"):
                metadata.pop(name)
            store.put(request.name, suffix, binary, metadata, request.metadata["sha256"])


def store_token(store: ImageStore) -> str:
    """A text that is the same where the folder is the same, also on another machine that mounts it."""
    path = store.path / ".token"
    if not path.exists():
        write_atomically(path, uuid4().hex.encode())
    return path.read_text()


@cache
def code_digest() -> str:
    """Of our own sources: workers with others would measure something else."""
    digest = hashlib.sha256()
    for package in ("rules", "tune", "codegen"):
        folder = Path(__file__).absolute().parent.parent / package
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _failed(error: WorkerError) -> Failed:
    return Failed("timed_out" if isinstance(error, TimedOut) else "crashed", str(error))
