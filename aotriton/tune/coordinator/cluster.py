"""The Dask workers of a run: jobs out, replies in, while workers join, leave and are lost."""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, cpu_count, named_request
from aotriton.rules.image import TRITON_VERSION, ImageSpec
from aotriton.tune.coordinator.events import Event, JobEnded, WorkerJoined, WorkerLeft
from aotriton.tune.coordinator.local_cluster import local_cluster
from aotriton.tune.coordinator.replies import Replies
from aotriton.tune.measure.requests import Device
from aotriton.tune.problem.product import is_called
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers import station
from aotriton.tune.workers.canary import PAUSES
from aotriton.tune.workers.families import FamilyFiles
from aotriton.tune.workers.gpu_process import CANDIDATE_LIMIT
from aotriton.tune.workers.jobs import (
    CPU,
    GPU,
    PRICE,
    WANTED,
    CompileJob,
    Facts,
    Greeting,
    Setting,
    code_digest,
    received,
)
from aotriton.tune.workers.key import KeyFault, check, security

if TYPE_CHECKING:
    from distributed import Client, Future, SpecCluster

LATER = 1 << 40  # more than a run has jobs
LOOK = 0.5  # seconds between two looks at who is there
SOON = 0.05  # the same while a run waits for its first GPU, in its first seconds
SILENCE = 60.0  # seconds without a sign of life, after which a worker is gone
MOST_WANTED = 1024  # GPUs
STOP = 5.0  # seconds that workers have to hear that the run ends
SETTLE = 5.0  # seconds after the first GPU that would do, in which others may say what they are
PATIENCE = 10.0  # seconds without a GPU, before that is said
CONNECT = 20.0  # seconds that Dask's client looks for a scheduler
RECONNECT = 600.0  # seconds that a scheduler may be away


class Cluster:
    """A scheduler with its workers, for one run. All but ``wake`` must be called from one thread.

    ``address`` is the scheduler's; without one, a cluster is made in this process: a worker for each of ``gpus``, and
    one that compiles ``jobs`` images at a time (default: one a core). Workers are sent the files of ``families``. One
    that nobody has heard of for ``silence`` seconds is gone, and its jobs are others'. TuningError where there is no
    such scheduler, KeyFault where it has another key.
    """

    def __init__(
        self,
        setting: Setting,
        note: Callable[[str], None],
        address: str | None = None,
        gpus: Sequence[str] = (),
        jobs: int | None = None,
        families: Sequence[FamilyFiles] = (),
        silence: float = SILENCE,
    ) -> None:
        self.setting, self.address = setting, address
        self._greeting, self._silence = Greeting(setting, tuple(families)), silence
        self._note = note
        self._events: queue.SimpleQueue[JobEnded | None] = queue.SimpleQueue()
        self._in_flight: dict[str, tuple[Future, str | None]] = {}  # by key: and the worker that it is bound to
        self._known: dict[str, Mapping[str, float]] = {}  # what workers have, by address, those that do not fit too
        self._asked: dict[str, str] = {}  # the address by the key of what asks for its facts
        self._wanted: list[Future] = []
        self._look_at = 0.0
        self._heard: dict[str, tuple[object, float]] = {}  # by address: its last heartbeat, and how many seconds ago
        self._listened = time.monotonic()  # when we looked at heartbeats last
        self._submitted = 0
        self._kept: list[Event] = []
        self._gpus = len(gpus)
        self._local: SpecCluster | None = None
        if address is None:
            self._local = local_cluster(gpus, jobs or cpu_count())
        self._client = self._connect()
        self._replies = Replies(self._client, self._replied)

    def first_gpu(self, product: str | None = None) -> Device:
        """The facts of a GPU that joins: of the product that ``product`` is a part of the name of, or of the only one.

        TuningError where GPUs of several products would do, or where no GPU of this process does.
        """
        events: list[Event] = []
        self.want(1)
        fit_since, patient_until = float("inf"), time.monotonic() + PATIENCE
        while True:
            if time.monotonic() < patient_until:
                self._look_at = min(self._look_at, time.monotonic() + SOON)
            events += self.events(LOOK)
            self._kept = []
            facts = _present(events)
            names = sorted({one.device.name for one in facts if one.device})
            fit = [name for name in names if product is None or is_called(name, product)]
            if product in fit:
                fit = [product]
            now = time.monotonic()
            if fit:
                fit_since = min(fit_since, now)
                if not self._asked or now >= fit_since + SETTLE:  # who answers first decides nothing
                    if len(fit) > 1:
                        raise TuningError(f"there are GPUs of {len(fit)} products: --product {' or '.join(fit)}?")
                    self._kept = events
                    return next(one.device for one in facts if one.device and one.device.name == fit[0])
            others = f"; there are: {', '.join(names)}" if names else ""
            if self._local is not None and sum(bool(one.gpu) for one in facts) == self._gpus and not fit:
                failed = [one.error for one in facts if one.error]
                raise TuningError(failed[-1] if failed else f"no GPU here is called {product}{others}")
            if self.address and now >= patient_until and not fit:
                what = f"GPU called {product}" if product else "GPU"
                self._note(f"no {what} at {self.address} yet: waiting for a worker that has one{others}")
                patient_until = float("inf")

    def want(self, gpus: int) -> None:
        """Tells who rents machines that this run has a use for so many GPUs: as many tasks wait at the scheduler for
        what no worker has. They are gone with this process.
        """
        if self._local is not None or self._client.status != "running":
            return
        while len(self._wanted) > gpus:
            self._wanted.pop().cancel()
        while len(self._wanted) < min(gpus, MOST_WANTED):
            key = f"gpu-wanted-{uuid4().hex}"
            waiting = self._client.submit(pickle.loads, pickle.dumps(None), key=key, resources={WANTED: 1}, pure=False)
            self._wanted.append(waiting)

    def submit(
        self, run: Callable[[Any], Any], job: object, needs: str, address: str | None = None, later: bool = False
    ) -> str:
        """Has a worker run the job: the one at ``address``, or any that has what it ``needs``. ``later``: when there is
        nothing else to do. Returns the job's key.
        """
        key = f"{run.__name__}-{uuid4().hex}"
        where = {"workers": [address], "allow_other_workers": False} if address else {}
        self._submitted += 1  # a worker does first what was submitted first, which Dask does not promise by itself
        future = self._client.submit(
            pickle.loads,
            station.packed(run, job),
            key=key,
            resources={needs: 1},
            pure=False,
            priority=-self._submitted - LATER * later,
            **where,
        )
        self._in_flight[key] = future, address
        self._replies.expect(future)
        return key

    def events(self, wait: float) -> list[Event]:
        """The events since the last call; waits up to ``wait`` seconds where there is none."""
        if self._client.status != "running":
            return self._reconnected()
        found, self._kept = self._kept, []
        if time.monotonic() >= self._look_at:
            found += self._look()
            self._look_at = time.monotonic() + LOOK
        until = min(wait, max(self._look_at - time.monotonic(), 0.0)) if not found else 0.0
        ended: list[JobEnded | None] = []
        try:
            ended.append(self._events.get(timeout=until) if until else self._events.get_nowait())
            while True:
                ended.append(self._events.get_nowait())
        except queue.Empty:
            pass
        return found + [event for one in ended if one for event in self._ended(one)]

    def wake(self) -> None:
        """Makes ``events`` return; may be called from any thread."""
        self._events.put(None)

    def compile_images(
        self, specs: Iterable[ImageSpec], store: ImageStore, jobs: int | None = None
    ) -> Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]:
        """As ``codegen.compile.compile_images``, on the workers; what they make is put into the store.

        Only when no other job is in flight. TuningError where no worker can compile.
        """
        waiting: dict[str, ImageSpec] = {}
        for spec in specs:
            if stored := store.get(spec.name):
                yield spec, stored
            else:
                job = CompileJob(self.setting, named_request(spec))
                waiting[self.submit(station.compile_image, job, CPU)] = spec
        while waiting:
            for event in self.events(LOOK):
                if isinstance(event, JobEnded) and (made := waiting.pop(event.key, None)):
                    if event.reply is None or event.reply.error:
                        raise TuningError(f"compiling failed: {event.error or event.reply.error}")
                    yield made, received(event.reply, made.name, store)

    def forget(self, key: str) -> None:
        """Drops a job whose reply is not needed any more."""
        if found := self._in_flight.pop(key, None):
            found[0].cancel()

    def leave_out(self, address: str) -> None:
        """Sends this worker no further job."""
        with suppress(OSError):  # the next events() finds the scheduler gone, and its workers with it
            self._client.retire_workers([address], close_workers=self._local is not None)

    def stop(self) -> None:
        """Has the workers end their jobs of this run, at the next candidate."""
        if self._client.status == "running":
            stopping = threading.Thread(target=self._stop, daemon=True)
            stopping.start()
            stopping.join(STOP)  # a silent worker does not answer

    def close(self) -> None:
        for future, _ in self._in_flight.values():
            if self._client.status == "running":
                future.cancel()
        self._in_flight.clear()
        self._replies.close()
        if self._local is None:
            with suppress(Exception):  # of a client that looks for its scheduler: whatever that ends with
                self._client.close(timeout=CONNECT)
            return
        workers = list(self._local.workers.values())
        for worker in workers:
            station.close(worker)
        self._client.close()
        self._local.close()

    def _stop(self) -> None:
        with suppress(Exception):  # of a scheduler that goes away meanwhile: whatever that ends with
            self._client.run(station.stop, self.setting.run, wait=True, on_error="ignore")

    @property
    def dashboard(self) -> str | None:
        """The address of Dask's dashboard."""
        link: str | None = self._client.dashboard_link
        return link if link and self._local is None else None

    def _connect(self) -> Client:
        from distributed import Client

        secured = security(self.address or "")
        if self.address:
            check(self.address, secured)
        try:
            return Client(self._local or self.address, timeout=CONNECT, set_as_default=False, security=secured)
        except (OSError, TimeoutError) as error:
            raise TuningError(f"no scheduler at {self.address}: {error}") from error

    def _replied(self, key: str, reply: Any, error: str | None) -> None:
        self._events.put(JobEnded(key, reply, error))

    def _look(self) -> list[Event]:
        """Greets new workers; the events of those that are gone."""
        try:
            self._drop_silent()
            workers: Collection[str] = self._client.nthreads()
            if new := [address for address in workers if address not in self._known]:
                # Not scheduler_info(): its result is the client's, who may overwrite it with one without workers.
                workers_by_address = self._workers()
        except OSError:
            return []  # the next events() finds the client reconnecting
        for address in new:
            if address in workers_by_address:
                resources = workers_by_address[address].get("resources", {})
                needs = GPU if resources.get(GPU) else CPU if resources.get(CPU) else None
                self._known[address] = resources
                if needs:
                    self._asked[self.submit(station.facts, self._greeting, needs, address)] = address
        return [event for address in list(self._known) if address not in workers for event in self._gone(address)]

    def _workers(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.sync(self._client.scheduler.identity, n_workers=-1)["workers"]
        return found

    def _drop_silent(self) -> None:
        """Has the scheduler forget the workers that do not send heartbeats, so that others get their jobs."""
        now, pause = time.monotonic(), self._silence / 4
        if self._local is not None or now < self._listened + pause:
            return
        passed = min(now - self._listened, 2 * pause)  # not while this process was suspended, or the scheduler
        self._listened = now
        before, self._heard = self._heard, {}
        for address, about in self._workers().items():
            last, silent = before.get(address, (None, 0.0))
            silent = silent + passed if last == about["last_seen"] else 0.0
            self._heard[address] = about["last_seen"], silent
            if silent >= self._silence:
                self._note(f"{address} has been silent for {silent:.0f} s: others get its jobs")
                forget, reason = self._client.scheduler.unregister, f"silent-{uuid4().hex}"
                self._client.sync(forget, address=address, stimulus_id=reason, expected=True)

    def _gone(self, address: str) -> list[Event]:
        del self._known[address]
        found: list[Event] = [WorkerLeft(address)]
        for key, (future, bound) in list(self._in_flight.items()):
            if bound == address:
                future.cancel()
                del self._in_flight[key]
                found += [JobEnded(key, error="its worker is gone")] if key not in self._asked else []
        return found

    def _ended(self, event: JobEnded) -> list[Event]:
        if event.key not in self._in_flight:
            return []  # it was given up: late news
        del self._in_flight[event.key]
        if (address := self._asked.pop(event.key, None)) is None:
            return [event]
        if event.error:
            self._note(f"{address} does not say what it is: {event.error}")
            return [WorkerJoined(address, Facts("", "", "", gpu="?", error=event.error), 0)]
        return self._greeted(address, event.reply)

    def _greeted(self, address: str, facts: Facts) -> list[Event]:
        unfit = None
        if facts.code != code_digest():
            unfit = "its code is not the coordinator's"
        elif facts.triton != TRITON_VERSION and facts.device is None and not facts.error:
            unfit = f"its Triton is {facts.triton}, measurements are tied to {TRITON_VERSION}"
        if unfit:
            self._note(f"{address} is left out: {unfit}")
            return []
        has = self._known.get(address, {})
        return [WorkerJoined(address, facts, int(has.get(CPU, 0)), has.get(PRICE))]

    def _reconnected(self) -> list[Event]:
        """Gives up all jobs in flight, and waits until the scheduler is back."""
        lost: list[Event] = [JobEnded(key, error="the scheduler went away") for key in self._in_flight]
        lost = [event for event in lost if isinstance(event, JobEnded) and event.key not in self._asked]
        lost += [WorkerLeft(address) for address in self._known]
        self._in_flight.clear()
        self._asked.clear()
        self._known.clear()
        self._wanted.clear()
        if self._local is not None:
            raise TuningError("the scheduler of this process has stopped")
        self._note(f"the scheduler at {self.address} went away: waiting for it")
        self._replies.close()
        gone = time.monotonic()
        while self._client.status != "running":
            away = time.monotonic() - gone
            if away > RECONNECT:
                raise TuningError(f"no scheduler at {self.address} for {RECONNECT:.0f} s")
            # Until it gives up, Dask's client looks by itself; to close it meanwhile has either side fail.
            if self._client.status == "closed" or away > 2 * CONNECT:
                try:
                    self._client = self._connect()
                except KeyFault:
                    raise
                except TuningError:
                    pass  # it is not there yet
            time.sleep(0.05)
        self._replies = Replies(self._client, self._replied)
        self._note(f"the scheduler at {self.address} is back")
        return lost


def _present(events: Iterable[Event]) -> list[Facts]:
    """The facts of the workers that have joined and not left."""
    found: dict[str, Facts] = {}
    for one in events:
        if isinstance(one, WorkerJoined):
            found[one.address] = one.facts
        elif isinstance(one, WorkerLeft):
            found.pop(one.address, None)
    return list(found.values())


def new_setting(
    launcher: str,
    compiler: str,
    store: str,
    pauses: Sequence[float] = PAUSES,
    families: tuple[str, ...] = (),
    candidate_limit: float = CANDIDATE_LIMIT,
) -> Setting:
    """The setting of a new run."""
    return Setting(uuid4().hex, launcher, compiler, store, tuple(pauses), families, candidate_limit)
