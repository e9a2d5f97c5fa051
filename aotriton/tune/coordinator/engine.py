"""The coordinator's event loop: problems become rows and winners, through jobs for workers that compile or measure.

It alone asks strategies and writes the database. The jobs of a worker that was lost are done again by another one; a
reply that comes twice is dropped. The parts of the loop: ``searches.py``, ``measuring.py`` (with ``next_job.py``),
``incidents.py``, ``deciding.py``; their state is in ``state.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from aotriton.codegen.compile import ImageStore
from aotriton.rules.database import Outcome, TuningDatabase
from aotriton.rules.kernel import Functional
from aotriton.tune.coordinator.cluster import Cluster
from aotriton.tune.coordinator.deciding import Deciding
from aotriton.tune.coordinator.events import Event, JobEnded, WorkerJoined, WorkerLeft
from aotriton.tune.coordinator.gpus import Gpus
from aotriton.tune.coordinator.images import Images
from aotriton.tune.coordinator.incidents import Incidents
from aotriton.tune.coordinator.interrupt import Interrupt
from aotriton.tune.coordinator.measuring import Measuring
from aotriton.tune.coordinator.next_job import why_idle
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.rows import Rows
from aotriton.tune.coordinator.searches import Searches
from aotriton.tune.coordinator.state import Gpu, Search, Waiting
from aotriton.tune.coordinator.usage import Usage, Why
from aotriton.tune.coordinator.writer import Writer
from aotriton.tune.measure.requests import Device
from aotriton.tune.problem.problems import Problem
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.jobs import Measured, MeasureJob

MOST_FAILURES = 3  # jobs in a row without a reply: the worker can not do them
WAIT = 0.5  # seconds, for what there is no event of
LAST_REPLIES = 5.0  # seconds that the end of a run waits for jobs in flight


@dataclass
class Engine:
    """A run on GPUs of one product and driver.

    After ``deadline`` no problem is begun. At ``end``, or when its workers have cost ``dollars``, searches end, too;
    ``price`` is a GPU's an hour. ``reusable`` chooses the outcomes that need no measuring again. ``checksums`` are
    those of the images that were measured before.
    """

    database: TuningDatabase
    cluster: Cluster
    store: ImageStore
    progress: Progress
    product: str
    driver: str
    deadline: float
    end: float
    dollars: float
    price: float
    begin_session: Callable[[Device], int]
    reusable: Callable[[list[Outcome]], list[Outcome]]
    checksums: Mapping[str, str]
    began: float  # on time.monotonic's clock, as deadline is

    def __post_init__(self) -> None:
        self.usage = Usage(self.began, self.price)
        self._writer = Writer(self.database.path, self.cluster.wake)
        self._images = Images(self.cluster, self.store, self.checksums, self.progress)
        self._gpus = Gpus(self.cluster, self.progress, self.usage, self.product, self.driver)
        self._searches = Searches(self._images, self.progress, self.cluster.wake)
        self._rows = Rows(self._writer, self._images, self.usage, self.progress, self.begin_session)
        self._incidents = Incidents(self._images, self._rows, self.progress, self._outcomes)
        self._deciding = Deciding(
            self.database, self._writer, self._searches, self._images, self._gpus, self._rows, self._incidents,
            self.progress, self._outcomes, self.reusable,
        )  # fmt: skip
        self._measuring = Measuring(
            self._searches, self._gpus, self._rows, self._incidents, self._deciding.last_winners
        )

    @property
    def decided(self) -> Iterable[Functional]:
        """One functional of each group that borrows from each other and had a problem decided."""
        return self._deciding.decided.values()

    @property
    def unfinished(self) -> Sequence[Problem]:
        """The problems that could not be finished."""
        return self._searches.unfinished

    def run(self, waiting: Iterable[Waiting]) -> None:
        """Returns when all problems are done, or when time is up and those that were begun are done. TuningError where
        neither is possible.
        """
        self._searches.waiting = list(waiting)
        with Interrupt(self.cluster.wake) as interrupt:
            try:
                while self._advance() or self._images.borrowed:
                    for event in self.cluster.events(WAIT):
                        self._handle(event)
                    interrupt.check()
            finally:
                self._finish()

    def _advance(self) -> bool:
        """Gives work to strategies, compilers and GPUs; False where there is none left."""
        self._writer.check()
        now = time.monotonic()
        spent = now >= self.end or self.usage.dollars >= self.dollars
        if spent or now >= self.deadline:
            self._searches.cut_short()
        if spent:
            self._searches.end_early()
        self._searches.ask()
        for search in self._searches.open:
            if search.idle:
                self._deciding.conclude(search)
        self._measuring.assign()
        self.cluster.want(len(self._searches.waiting) + len(self._searches.open))
        if not self._searches.waiting and not self._searches.open:
            for gpu in self._gpus:
                self.usage.waits(gpu.address, None if gpu.in_flight else Why.END)
            return False
        why = why_idle(self._searches.open, bool(self._searches.waiting))
        for gpu in self._gpus:
            self.usage.waits(gpu.address, Why.RUNS if gpu.taken_until else None if gpu.in_flight else why)
        if self._gpus.lost and not self._gpus and self.cluster.address is None:
            raise TuningError(self._gpus.lost[-1])
        if self.progress.due:
            self.progress.show(self.usage.trials, len(self._gpus), self.usage.busy(), self._searches.best_now)
        return True

    def _handle(self, event: Event) -> None:
        if isinstance(event, WorkerJoined):
            if event.slots and not event.facts.device:
                self._images.compilers[event.address] = event.slots
                self.usage.rented(event.address, event.price or 0.0)
                self.progress.tell("joined", worker=event.address, compilers=event.slots)
            else:
                self._gpus.join(event)
                if event.address in self._gpus and event.facts.device:
                    self.progress.tell("joined", worker=event.address, gpu=event.facts.device.name)
        elif isinstance(event, WorkerLeft):
            if event.address in self._gpus or event.address in self._images.compilers:
                self.progress.note(f"{event.address} is gone")
                self.progress.tell("left", worker=event.address)
            if self._images.compilers.pop(event.address, None):
                self.usage.left(event.address)
            self._take_back(self._gpus.leave(event.address))
        elif self._images.has(event.key):
            self._searches.compiled(event)
        elif job := self._gpus.ended(event.key):
            self._measured(*job, event)

    def _measured(self, gpu: Gpu, search: Search, job: MeasureJob, event: JobEnded) -> None:
        """Takes the reply to a job for a GPU."""
        search.finishing = search.finishing and not job.finish
        reply: Measured | None = event.reply
        if reply is None or reply.empty:
            why = event.error or "its worker did nothing"
            self.progress.note(f"{search.problem}: measured again: {why}")
            self._take_back([(search, job)])
            gpu.failures += 1
            if gpu.failures == MOST_FAILURES:
                self._take_back(self._gpus.stop(gpu, why))
            return
        gpu.failures = 0
        if reply.taken:
            self._gpus.taken(gpu)
            self._take_back([(search, job)])
            return
        gpu.taken_until = 0.0
        for note in reply.notes:
            self.progress.note(note)
        self.usage.measured(gpu.address, reply.seconds, reply.preparing)
        gpu.has -= set(reply.missing)
        deciding, measuring = self._deciding, self._measuring
        fault = deciding.raced(gpu, search, reply) if job.race else measuring.swept(gpu, search, job, reply)
        if reply.unprepared:
            self.progress.note(f"{search.problem}: its tensors could not be made: {reply.unprepared}")
            self._searches.close(search, unfinished=True)
        if fault := fault or reply.error:
            self._take_back(self._gpus.stop(gpu, fault))

    def _take_back(self, jobs: Iterable[tuple[Search, MeasureJob]]) -> None:
        for search, job in jobs:
            self._measuring.take_back(search, job)

    def _finish(self) -> None:
        """Records the jobs in flight whose replies come soon, and leaves nothing behind."""
        self.usage.end()
        self.cluster.want(0)
        self.cluster.stop()
        until = time.monotonic() + LAST_REPLIES
        while self._gpus.working and time.monotonic() < until:
            for event in self.cluster.events(0.1):
                if isinstance(event, JobEnded) and not self._images.has(event.key):
                    self._handle(event)
        self._images.close()
        self._writer.close()

    def _outcomes(self, search: Search) -> list[Outcome]:
        return self.database.evidence.outcomes(problem=search.row, product=self.product)
