"""The coordinator: from problems to rows and winners, by jobs for workers that compile and workers that measure.

It alone asks strategies and writes the database. What a worker took with it when it was lost is done again; what comes
twice is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass
from statistics import median
from typing import Any

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.borrow import siblings
from aotriton.rules.database import Measurement, Outcome, TuningDatabase
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune.coordinator.cluster import Cluster, Event, JobEnded, WorkerJoined, WorkerLeft
from aotriton.tune.coordinator.images import Images, Made
from aotriton.tune.coordinator.interrupt import Interrupt
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.state import Gpu, Search, Waiting
from aotriton.tune.coordinator.usage import Usage, Why
from aotriton.tune.coordinator.writer import Image, Writer
from aotriton.tune.measure.requests import UNTOLD, Conditions, Device, Race, Request, Result, launch_request
from aotriton.tune.problem.compiled import FACTS, unfit
from aotriton.tune.problem.error import TuningError
from aotriton.tune.problem.problems import Problem
from aotriton.tune.search.handle import Step
from aotriton.tune.search.space import Trial
from aotriton.tune.winners.decide import decide, race_is_due
from aotriton.tune.workers import station
from aotriton.tune.workers.incident import Canary
from aotriton.tune.workers.jobs import GPU, Failed, Measured, MeasureJob

AHEAD = 4  # jobs that a GPU has: one is under way while the others wait, for as long as the coordinator is busy
JOBS_A_SECOND = 200.0  # that a scheduler is asked for, at most; Dask's needs under 1 ms for each
LOOKAHEAD = 16  # problems compiled but not begun; beyond it the compilers wait, so that a cut run wastes little
HOPELESS_AFTER = 12  # failures of a GPU on which nothing ran before: it is not the candidates' fault
CANARIES = 3  # known good candidates that a GPU is proven with, in turns: one may have its own faults
MOST_FAILURES = 3  # jobs in a row without a reply: the worker can not do them
DETAIL = 300  # characters of a message that a row keeps
WAIT = 0.5  # seconds, for what there is no event of


@dataclass
class Engine:
    """A run on GPUs of one product and driver."""

    database: TuningDatabase
    cluster: Cluster
    store: ImageStore
    progress: Progress
    product: str
    driver: str
    deadline: float
    gpu_seconds: float
    begin_session: Callable[[Device], int]
    counting: Callable[[list[Outcome]], list[Outcome]]  # those that make further measuring needless
    checksums: dict[str, str]
    began: float  # on time.monotonic's clock

    def __post_init__(self) -> None:
        self._gpus: dict[str, Gpu] = {}
        self._jobs: dict[str, Gpu] = {}  # by key: who measures
        self._waiting: list[Waiting] = []
        self._open: dict[Search, None] = {}  # in their order
        self._images = Images(self.cluster, self.store, self.checksums, self.progress)
        self._writer = Writer(self.database.path, self.cluster.wake)
        self._canaries: list[Canary] = []
        self._tensors: dict[object, set[str]] = {}  # by what tells a problem's tensors from others: GPUs that made them
        self._last_best: dict[str, str] = {}  # functional: the config that won its last bin
        self._trial_s = 0.05
        self._lost: list[str] = []
        self.usage = Usage(self.began)
        self.touched: dict[str, Functional] = {}  # one of each group that borrows from each other
        self.unfinished: list[Problem] = []

    def run(self, waiting: Iterable[Waiting]) -> None:
        """Until all is done, or the time is over and what was begun is done. TuningError where it cannot."""
        self._waiting = list(waiting)
        with Interrupt(self.cluster.wake) as interrupt:
            try:
                while self._advance():
                    self._handle(self.cluster.events(WAIT))
                    interrupt.check()
            finally:
                self._settle()

    def _advance(self) -> bool:
        """Gives everybody work; False where there is none any more."""
        self._writer.check()
        if time.monotonic() >= self.deadline or self.usage.gpu_seconds >= self.gpu_seconds:
            self._waiting.clear()
            for search in [one for one in self._open if not one.begun]:
                self._close(search)
        self._ask()
        for search in list(self._open):
            if search.whole:
                self._conclude(search)
        self._assign()
        if not self._waiting and not self._open:
            return False
        why = self._missing()
        for gpu in self._gpus.values():
            self.usage.waits(gpu.address, None if gpu.flying else why)
        if self._lost and not self._gpus and self.cluster.address is None:
            raise TuningError(self._lost[-1])
        if self.progress.due:
            self.progress.show(self.usage.trials, len(self._gpus), self.usage.busy(), self._best_now())
        return True

    # Asking and compiling.

    def _ask(self) -> None:
        for search in list(self._open):
            self._ask_one(search)
        for _ in range(LOOKAHEAD):
            if not self._waiting or self._images.wanted >= self._images.room or self._ahead() >= LOOKAHEAD:
                return
            self._begin(self._waiting[0])
        self.cluster.wake()  # the rest after what has happened meanwhile: GPUs are not to wait for many problems

    def _begin(self, waiting: Waiting) -> None:
        self._waiting.remove(waiting)
        search = waiting.begin()
        self._open[search] = None
        self._ask_one(search)

    def _ahead(self) -> int:
        return sum(not one.begun and not one.compiling for one in self._open)

    def _ask_one(self, search: Search) -> None:
        """Has compiled what the strategy asks for: enough that neither compilers nor GPUs wait for it."""
        while not search.through:
            if search.thinking is None:
                room = max(self._images.room, 8) - len(search.compiling) - len(search.ready) - len(search.measuring)
                if room <= 0 or (search.vain and not search.told):
                    return
                told, search.told = search.told, []
                search.thinking = search.handle.step(told, room)
                search.thinking.add_done_callback(lambda _: self.cluster.wake())
            if not search.thinking.done():
                return
            step, search.thinking = _thought(search.thinking), None
            search.through, search.vain = step.finished, not step.asked
            if step.winner and step.winner != search.winner:
                self._compile_borrowed(search.spec(step.winner))
            search.winner = step.winner
            for config in step.asked:
                spec = search.spec(config)
                search.specs[spec.name] = spec
                if known := search.known.get(spec.name):
                    self._tell(search, spec.name, known.status, known.median_us)
                else:
                    self._want(search, spec)
            for config in step.likely:
                self._images.want_perhaps(search.spec(config))

    def _want(self, search: Search, spec: ImageSpec) -> None:
        if image := self._images.want(search, spec):
            self._made(search, spec.name, image)

    def _compiled(self, event: JobEnded) -> None:
        if ended := self._images.ended(event):
            name, image, users = ended
            for search in users:
                self._made(search, name, image)

    def _made(self, search: Search, name: str, image: Made) -> None:
        if name in search.known:  # measured before, and now to be raced
            if isinstance(image, CompileFailure):
                self.progress.note(f"{search.problem}: {name} does not compile any more: {image.message}")
                search.unfinished = True
                self._close(search)
        elif isinstance(image, CompileFailure):
            self._judged(search, name, "compile_failed", image.message)
        elif why := unfit(search.specs[name], image):
            self._judged(search, name, "pruned", why)
        else:
            search.ready[name] = launch_request(search.specs[name], image)

    def _judged(self, search: Search, name: str, status: str, why: str) -> None:
        """By the compiler alone: a row once there is a session, that of the GPU that the problem goes to."""
        search.verdicts.append((name, status, why))
        self._tell(search, name, status, None)

    def _tell(self, search: Search, name: str, status: str, median_us: float | None) -> None:
        search.trials += 1
        image = self._images.get(name)
        facts = dict(image.metadata) if isinstance(image, CompiledImage) else {}
        numbers = {key: float(facts[key]) for key in ("registers", "shared", "spills") if facts.get(key) is not None}
        spec = search.specs[name]
        search.told.append(Trial(spec.psels + spec.copts, status, median_us, numbers))
        if status == "ok" and median_us and (search.best is None or median_us < search.best[0]):
            search.best = median_us, search.specs[name].config

    # Measuring.

    def _assign(self) -> None:
        ready = [one for one in self._open if one.ready]
        compiled = (one for one in list(self._waiting) if one.images <= self._images.names)
        for gpu in [one for one in self._gpus.values() if len(one.flying) < AHEAD]:
            while len(gpu.flying) < AHEAD and (search := self._next(gpu, ready)):
                self._measure(gpu, search)
                if not search.ready:
                    ready.remove(search)
            if not gpu.flying and (waiting := next(compiled, None)):  # out of order, rather than not at all
                self._begin(waiting)
                ready = [one for one in self._open if one.ready]
                if search := self._next(gpu, ready):
                    self._measure(gpu, search)

    def _missing(self) -> Why:
        """What a GPU waits for that has no job now."""
        if any(one.compiling for one in self._open):
            return Why.IMAGES
        if any(one.thinking for one in self._open):
            return Why.STRATEGIES
        if self._waiting:
            return Why.BEGIN
        return Why.GPUS if any(one.measuring and not one.through for one in self._open) else Why.END

    def _next(self, gpu: Gpu, ready: Sequence[Search]) -> Search | None:
        """The problem that this GPU is to go on with, of those that are ``ready``: its own, the next that is compiled,
        or one of another GPU.
        """
        if gpu.search in self._open and gpu.search.ready:
            return gpu.search
        if gpu.flying and gpu.search in self._open and gpu.search.through and not gpu.search.concluding:
            return None  # its race is due when the GPU is through with what it has
        free = [one for one in ready if one.gpus <= {gpu.address}]
        whole = [one for one in free if not one.compiling]
        for searches in (whole, free if not gpu.flying else []):
            if searches:
                return min(searches, key=lambda one: self._strange(gpu, one))
        shared = [one for one in ready if len(one.ready) > AHEAD * self._batch()]
        if gpu.flying or not shared:
            return None
        return max(shared, key=lambda one: len(one.ready))

    def _strange(self, gpu: Gpu, search: Search) -> int:
        """0: the GPU made the problem's tensors, which kernels of one shape share; 1: nobody did; 2: others did."""
        made = self._tensors.get(search.data)
        return 1 if not made else 0 if gpu.address in made else 2

    def _batch(self) -> int:
        """Candidates in a job: so many that all GPUs together end JOBS_A_SECOND."""
        return max(1, round(len(self._gpus) / self._trial_s / JOBS_A_SECOND))

    def _measure(self, gpu: Gpu, search: Search) -> None:
        search.visits += gpu.search is not search
        gpu.turn(search)
        self._tensors.setdefault(search.data, set()).add(gpu.address)
        self._take(gpu, search)
        likely = self._last_best.get(str(search.problem.functional))
        names = sorted(search.ready, key=lambda name: search.ready[name].config != likely)[: self._batch()]
        requests = tuple(search.ready.pop(name) for name in names)
        search.measuring.update(names)
        own = sum(len(job.requests) for one, job in gpu.flying.values() if one is search)
        elsewhere = search.known or search.visits > 1 or len(search.measuring) > own + len(names)
        search.concluding = search.through and not (search.ready or search.compiling or elsewhere)
        self._send(gpu, search, requests, finish=search.concluding)

    def _take(self, gpu: Gpu, search: Search) -> None:
        """The problem is this GPU's: what the compilers said of it goes into its session."""
        if not gpu.session:
            gpu.session = self.begin_session(gpu.device)  # a run with nothing to do leaves no trace
        if not search.begun:
            search.begun = True
            search.canaries = self._known_good(search)
            self.progress.problem(search.problem)
        for name, status, why in search.verdicts:
            self._record(gpu.session, search, name, status, detail=why)
        search.verdicts.clear()

    def _send(
        self, gpu: Gpu, search: Search, requests: tuple[Request, ...], race: bool = False, finish: bool = False
    ) -> None:
        canaries = tuple(search.canaries or self._canaries)[:CANARIES]
        sent: dict[str, bytes] = {}
        if gpu.facts.store != self.cluster.setting.store:
            for request in (*requests, *(one.request for one in canaries)):
                if request.name not in gpu.has:
                    sent[request.name] = request.path.read_bytes()
            gpu.has.update(sent)
        best = search.best[0] if search.best else None
        job = MeasureJob(self.cluster.setting, search.problem, requests, race, finish, best, canaries, sent)
        key = self.cluster.submit(station.measure, job, GPU, gpu.address)
        gpu.flying[key] = search, job
        self._jobs[key] = gpu

    def _known_good(self, search: Search) -> list[Canary]:
        """Candidates of the problem that are right by what is recorded, the last one first."""
        good = [o.image for o in reversed(self._outcomes(search)) if o.status == "ok" and o.image in search.specs]
        found = []
        for name in list(dict.fromkeys(good))[:CANARIES]:
            image = self._images.stored(name)
            if isinstance(image, CompiledImage):
                found.append(Canary(search.problem, launch_request(search.specs[name], image)))
        return found

    def _measured(self, gpu: Gpu, event: JobEnded) -> None:
        search, job = gpu.flying.pop(event.key)
        search.concluding = search.concluding and not job.finish
        made: Measured = event.reply
        if made is None or made.empty:
            why = event.error or "its worker did nothing"
            self.progress.note(f"{search.problem}: measured again: {why}")
            self._again(search, job, ())
            gpu.failures += 1
            if gpu.failures == MOST_FAILURES:
                self._lose(gpu, why)
            return
        gpu.failures = 0
        for note in made.notes:
            self.progress.note(note)
        self.usage.measured(gpu.address, made.seconds, made.preparing)
        gpu.has -= set(made.missing)
        if job.race:
            search.racing = False
            self._raced(gpu, search, job, made)
        else:
            self._swept(gpu, search, made)
            self._again(search, job, made.results)
        if made.unprepared:
            self.progress.note(f"{search.problem}: its tensors could not be made: {made.unprepared}")
            search.unfinished = True
            self._close(search)
        if made.error:
            self._lose(gpu, made.error)

    def _swept(self, gpu: Gpu, search: Search, made: Measured) -> None:
        ok = sum(isinstance(result, Result) for result in made.results.values())
        if ok:
            each = (made.seconds - made.preparing) / len(made.results)
            self._trial_s += 0.1 * (each - self._trial_s)
        for name, result in made.results.items():
            search.sessions.add(gpu.session)
            if isinstance(result, Failed):
                self._blame(gpu, search, name, "sweep", result)
                self._tell(search, name, result.status, None)
                continue
            gpu.ran = True
            check, samples = result.check, result.samples
            middle = median(samples) if samples else None
            self._record(
                gpu.session, search, name, result.status, "sweep", samples, check.error, check.tolerance, check.wrong,
                result.conditions,
            )  # fmt: skip
            if result.status == "ok":
                image = self._images[name]
                assert isinstance(image, CompiledImage)
                canary = Canary(search.problem, launch_request(search.specs[name], image))
                search.canaries = [canary, *search.canaries][:CANARIES]
                self._canaries = search.canaries
            self._tell(search, name, result.status, middle)
        if made.race:
            self._record_race(gpu, search, made.race)
        if gpu.ran:
            self._put(gpu.withheld)
            gpu.withheld = []

    def _again(self, search: Search, job: MeasureJob, done: Iterable[str]) -> None:
        """What the job did not come to is to be measured still."""
        if job.race:
            search.racing = False
            return
        known = set(done)
        for request in job.requests:
            search.measuring.discard(request.name)
            if request.name not in known and search in self._open:
                search.ready[request.name] = request

    def _blame(self, gpu: Gpu, search: Search, name: str, phase: str, failed: Failed) -> None:
        """A verdict, which waits until something has run: nothing else tells the candidate's fault from all others."""
        self.progress.note(f"{search.problem}: {search.specs[name].config}: {failed.status}: {failed.detail}")
        verdict = self._measurement(gpu.session, search, name, failed.status, phase, detail=failed.detail)
        if gpu.ran or search.canaries or self._canaries:
            self._put([verdict])
            return
        gpu.withheld.append(verdict)
        if len(gpu.withheld) >= HOPELESS_AFTER:
            many = f"the first {HOPELESS_AFTER} candidates all failed, so the fault is not in them"
            self._lose(gpu, many)

    def _lose(self, gpu: Gpu, why: str) -> None:
        if gpu.address in self._gpus:
            self.progress.note(f"GPU {gpu.facts.gpu} stops: {why}")
            self._lost.append(why)
            self._gone(gpu.address)

    def _gone(self, address: str) -> None:
        self._images.compilers.pop(address, None)
        if gpu := self._gpus.pop(address, None):
            self.usage.left(address)
            gpu.turn(None)
            for having in self._tensors.values():
                having.discard(address)
            for key, (search, job) in gpu.flying.items():
                del self._jobs[key]
                self.cluster.forget(key)
                self._again(search, job, ())

    # Racing and deciding.

    def _conclude(self, search: Search) -> None:
        """Once nothing is under way, and the strategy has nothing to ask: the race, then the winner."""
        if search.verdicts:
            if not self._gpus:
                return
            self._take(next(iter(self._gpus.values())), search)  # not one of its candidates is worth a GPU's time
        if search.written is None:
            search.written = self._writer.change()
        if not search.written.is_set():
            return
        search.written = None
        outcomes = [one for one in self.counting(self._outcomes(search)) if one.image in search.specs]
        if not (names := race_is_due(outcomes)):
            self._decided(search)
            return
        images = {name: self._images.stored(name) for name in names}
        gone = [name for name, image in images.items() if image is None]  # of another time, or of another machine
        for name in gone:
            self._want(search, search.specs[name])
        if not gone:
            found = [image for image in images.values() if isinstance(image, CompiledImage)]
            self._race(search, tuple(launch_request(search.specs[image.name], image) for image in found))

    def _race(self, search: Search, requests: tuple[Request, ...]) -> None:
        """The leaders side by side, on a GPU that is free for it; in a session that is not older than their sweeps."""
        free = [gpu for gpu in self._gpus.values() if len(gpu.flying) < AHEAD]
        if not free:
            return
        gpu = min(free, key=lambda gpu: (gpu.search is not search, -gpu.session, len(gpu.flying)))
        gpu.turn(search)
        if gpu.session in search.raced or gpu.session < max(search.sessions, default=0):
            gpu.session = self.begin_session(gpu.device)
        self._take(gpu, search)
        search.racing = True
        self._send(gpu, search, requests, race=True)

    def _raced(self, gpu: Gpu, search: Search, job: MeasureJob, made: Measured) -> None:
        if made.race:
            gpu.ran = True
            self._record_race(gpu, search, made.race)
        for name, result in made.results.items():
            assert isinstance(result, Failed)
            self._blame(gpu, search, name, "race", result)
        if made.apart:
            search.unfinished = True
            self._close(search)

    def _record_race(self, gpu: Gpu, search: Search, race: Race) -> None:
        """In one transaction: a race that was cut off would say nothing."""
        about = race.conditions
        search.raced.add(gpu.session)
        self._put(
            [
                self._measurement(gpu.session, search, name, "ok", "race", taken, conditions=about)
                for name, taken in race.samples.items()
            ]
        )

    def _decided(self, search: Search) -> None:
        problem, functional = search.problem, search.problem.functional
        self.touched.setdefault(f"{problem.kernel.name} {siblings(functional)[0]}", functional)
        before = {
            (one.functional, one.bin): one.image
            for one in self.database.winners(functional.arch, problem.kernel.name, self.product)
            if one.provenance == "measured"
        }
        if search.winner:
            before.setdefault((str(functional), problem.bin), search.spec(search.winner).name)
        if search.records_end and self._gpus:
            gpu = next(iter(self._gpus.values()))
            self._take(gpu, search)
            row, session, tried = search.row, gpu.session, search.trials
            self._writer.change(lambda database: database.end_search(row, session, tried))
        winners = decide([functional], self._outcomes(search), self.database.samples_of, before)
        self._close(search)
        if not winners:
            self.progress.solved(problem, None, 0.0)
            return
        self._writer.change(lambda database: database.put_winners(winners))
        (winner,) = winners
        self._compile_borrowed(ImageSpec.of(functional, winner.psels, winner.copts))
        config = " ".join(f"{name}={value}" for name, value in {**winner.psels, **winner.copts}.items())
        self._last_best[str(functional)] = config
        self.progress.solved(problem, config, winner.median_us)

    def _compile_borrowed(self, winner: ImageSpec) -> None:
        """What siblings borrow is to be known to fit: it is compiled while GPUs measure, and there when it is asked."""
        for other in siblings(winner.functional):
            self._images.want_later(ImageSpec.of(other, dict(winner.psels), dict(winner.copts)))

    def _close(self, search: Search) -> None:
        if search in self._open:
            del self._open[search]
        if search.unfinished:
            self.unfinished.append(search.problem)
        self._images.leave(search)
        search.ready.clear()

    # Events, rows and numbers.

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, WorkerJoined):
                self._arrived(event)
            elif isinstance(event, WorkerLeft):
                if event.address in self._gpus or event.address in self._images.compilers:
                    self.progress.note(f"{event.address} is gone")
                self._gone(event.address)
            elif self._images.has(event.key):
                self._compiled(event)
            elif gpu := self._jobs.pop(event.key, None):
                self._measured(gpu, event)

    def _arrived(self, event: WorkerJoined) -> None:
        device = event.facts.device
        if event.slots and not device:
            self._images.compilers[event.address] = event.slots
            return
        if not device:
            self._lost.append(event.facts.error or "it does not say what it is")
            self.progress.note(f"GPU {event.facts.gpu} stops: {self._lost[-1]}")
        elif (device.name, device.driver) != (self.product, self.driver):
            about = (
                f"it is {device.name} with driver {device.driver}, the plan is for {self.product} with {self.driver}"
            )
            self._lost.append(f"{about}: tune on it alone (--gpus)")
            self.progress.note(f"{event.address} is left out: {self._lost[-1]}")
        else:
            self._gpus[event.address] = Gpu(event.address, event.facts)
            self.usage.came(event.address)

    def _settle(self) -> None:
        """Records what is under way still, if it comes soon; leaves nothing behind."""
        self.usage.end()
        self.cluster.stop()
        until = time.monotonic() + 5
        while any(gpu.flying for gpu in self._gpus.values()) and time.monotonic() < until:
            for event in self.cluster.events(0.1):
                if isinstance(event, JobEnded) and not self._images.has(event.key):
                    self._handle([event])
        self._images.close()
        self._writer.close()

    def _outcomes(self, search: Search) -> list[Outcome]:
        return self.database.outcomes(problem=search.row, product=self.product)

    def _best_now(self) -> str:
        best = [one.best for one in self._open if one.begun and one.best]
        return f"{best[-1][0]:.1f} us {best[-1][1]}" if best else ""

    def _put(self, rows: Sequence[tuple[Image, Measurement]]) -> None:
        self._writer.put(rows)
        self.usage.trials += len(rows)

    def _image(self, search: Search, name: str) -> Image:
        image = self._images[name]
        facts = {} if isinstance(image, CompileFailure) else image.metadata
        return name, search.specs[name].config, {key: facts.get(key) for key in FACTS}

    def _measurement(
        self,
        session: int,
        search: Search,
        name: str,
        status: str,
        phase: str = "sweep",
        samples: Sequence[float] = (),
        error: float | None = None,
        tolerance: float | None = None,
        detail: str | None = None,
        conditions: Conditions = UNTOLD,
    ) -> tuple[Image, Measurement]:
        middle = median(samples) if samples else None
        detail = detail and (
            detail if len(detail) <= DETAIL else f"{detail[: DETAIL // 2]} ... {detail[-DETAIL // 2 :]}"
        )
        return self._image(search, name), Measurement(
            search.row, 0, session, phase, status, middle, samples, error, tolerance, detail,
            conditions.sm_clock, conditions.temperature,
        )  # fmt: skip

    def _record(self, *about: Any, **more: Any) -> None:
        self._put([self._measurement(*about, **more)])


def _thought(future: Future[Step]) -> Step:
    try:
        return future.result()
    except BrokenExecutor as error:
        raise TuningError(f"the process of a strategy ended: {error}") from error
