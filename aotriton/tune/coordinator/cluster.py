"""The Dask workers of a run: jobs out, replies in, while workers join, leave and are lost."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, cpu_count, request_of
from aotriton.rules.image import TRITON_VERSION, ImageSpec
from aotriton.tune.coordinator.events import Event, JobEnded, WorkerJoined, WorkerLeft
from aotriton.tune.coordinator.local_cluster import local_cluster
from aotriton.tune.coordinator.replies import Replies
from aotriton.tune.measure.requests import Device
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers import station
from aotriton.tune.workers.gpu_process import CANDIDATE_LIMIT
from aotriton.tune.workers.incident import PAUSES
from aotriton.tune.workers.jobs import CPU, GPU, CompileJob, Facts, Setting, code_digest, received

if TYPE_CHECKING:
    from distributed import Client, Future, SpecCluster

LATER = 1 << 40  # more than a run has jobs
LOOK = 0.5  # seconds between two looks at who is there
PATIENCE = 10.0  # seconds without a GPU, before that is said
CONNECT = 20.0  # seconds that Dask's client looks for a scheduler
RECONNECT = 600.0  # seconds that a scheduler may be away


class Cluster:
    """A scheduler with its workers, for one run. All but ``wake`` must be called from one thread.

    ``address`` is the scheduler's; without one, a cluster is made in this process: a worker for each of ``gpus``, and
    one that compiles ``jobs`` images at a time (default: one a core). TuningError where there is no such scheduler.
    """

    def __init__(
        self,
        setting: Setting,
        note: Callable[[str], None],
        address: str | None = None,
        gpus: Sequence[str] = (),
        jobs: int | None = None,
    ) -> None:
        self.setting, self.address = setting, address
        self._note = note
        self._events: queue.SimpleQueue[JobEnded | None] = queue.SimpleQueue()
        self._in_flight: dict[str, tuple[Future, str | None]] = {}  # by key: and the worker that it is bound to
        self._known: dict[str, int] = {}  # the slots of the workers by address, those that do not fit too
        self._asked: dict[str, str] = {}  # the address by the key of what asks for its facts
        self._look_at = 0.0
        self._submitted = 0
        self._kept: list[Event] = []
        self._gpus = len(gpus)
        self._local: SpecCluster | None = None
        if address is None:
            self._local = local_cluster(gpus, jobs or cpu_count())
        self._client = self._connect()
        self._replies = Replies(self._client, self._replied)

    def first_gpu(self) -> Device:
        """The facts of the first GPU that joins; TuningError where those of this process cannot be used."""
        seen: list[Event] = []
        patient_until = time.monotonic() + PATIENCE
        while True:
            seen += self.events(LOOK)
            if self.address and time.monotonic() >= patient_until:
                self._note(f"no GPU at {self.address} yet: waiting for a worker that has one")
                patient_until = float("inf")
            facts = [one.facts for one in seen if isinstance(one, WorkerJoined)]
            self._kept = []
            for one in facts:
                if one.device:
                    self._kept = seen
                    return one.device
            failed = [one.error for one in facts if one.error]
            if self._local is not None and len(failed) == self._gpus:
                raise TuningError(str(failed[-1]))

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
            run, job, key=key, resources={needs: 1}, pure=False, priority=-self._submitted - LATER * later, **where
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
                job = CompileJob(self.setting, {"name": spec.name, **request_of(spec)})
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
        with suppress(OSError):
            if self._client.status == "running":
                self._client.run(station.stop, self.setting.run, wait=True, on_error="ignore")

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

    @property
    def dashboard(self) -> str | None:
        """The address of Dask's dashboard."""
        link: str | None = self._client.dashboard_link
        return link if link and self._local is None else None

    def _connect(self) -> Client:
        from distributed import Client

        try:
            return Client(self._local or self.address, timeout=CONNECT, set_as_default=False)
        except (OSError, TimeoutError) as error:
            raise TuningError(f"no scheduler at {self.address}: {error}") from error

    def _replied(self, key: str, reply: Any, error: str | None) -> None:
        self._events.put(JobEnded(key, reply, error))

    def _look(self) -> list[Event]:
        """Greets new workers; the events of those that are gone."""
        try:
            workers: Collection[str] = self._client.nthreads()
            if new := [address for address in workers if address not in self._known]:
                # Not scheduler_info(): its result is the client's, who may overwrite it with one without workers.
                workers_by_address = self._client.sync(self._client.scheduler.identity, n_workers=-1)["workers"]
        except OSError:
            return []  # the next events() finds the client reconnecting
        for address in new:
            if address in workers_by_address:
                resources = workers_by_address[address].get("resources", {})
                needs = GPU if resources.get(GPU) else CPU if resources.get(CPU) else None
                self._known[address] = int(resources.get(CPU, 0))
                if needs:
                    self._asked[self.submit(station.facts, self.setting, needs, address)] = address
        return [event for address in list(self._known) if address not in workers for event in self._gone(address)]

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
            return [WorkerJoined(address, Facts("", "", "", error=event.error), 0)]
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
        return [WorkerJoined(address, facts, self._known.get(address, 0))]

    def _reconnected(self) -> list[Event]:
        """Gives up all jobs in flight, and waits until the scheduler is back."""
        lost: list[Event] = [JobEnded(key, error="the scheduler went away") for key in self._in_flight]
        lost = [event for event in lost if isinstance(event, JobEnded) and event.key not in self._asked]
        lost += [WorkerLeft(address) for address in self._known]
        self._in_flight.clear()
        self._asked.clear()
        self._known.clear()
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
                with suppress(TuningError):
                    self._client = self._connect()
            time.sleep(0.05)
        self._replies = Replies(self._client, self._replied)
        self._note(f"the scheduler at {self.address} is back")
        return lost


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
