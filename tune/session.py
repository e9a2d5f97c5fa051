"""From problems to rows: compile, prune, measure, check, record, race and decide, on any number of GPUs at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, compile_images
from aotriton.rules.database import Measurement, Outcome, TuningDatabase, Winner
from aotriton.rules.image import TRITON_VERSION, ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune import measure
from aotriton.tune.ahead import Compile, CompileAhead, Task
from aotriton.tune.decide import decide, race_is_due, siblings, winner_of
from aotriton.tune.problems import Problem
from aotriton.tune.progress import Progress
from aotriton.tune.space import space
from aotriton.tune.worker import Device, GpuWorker, Request, TimedOut, WorkerError

HOPELESS_AFTER = (
    12  # candidates in a row that crashed or hung, with none before that ran: it is not the candidates' fault
)
DETAIL = 300  # characters of a message that a row keeps


class TuningError(Exception):
    """Tuning cannot go on; the message says why. What was measured until then is recorded."""


@dataclass
class Plan:
    """How to tune. After ``deadline``, on time.monotonic's clock, no further problem is begun."""

    database: Path
    store: ImageStore
    launcher: str
    jobs: int | None = None
    again: bool = False
    deadline: float = float("inf")
    options: str = ""
    compile_images: Compile = field(default=compile_images)


def tune(plan: Plan, problems: Sequence[Problem], workers: Sequence[GpuWorker], progress: Progress) -> None:
    """Tunes the problems, all of one arch, in order, each on one of the workers; returns at the deadline or when done.

    TuningError where every worker has failed. KeyboardInterrupt passes through, after the candidates under way were
    recorded.
    """
    with TuningDatabase(plan.database) as database:
        tasks = _tasks(plan, problems, database)
    progress.begin(len(problems), len(problems) - len(tasks))
    ahead = CompileAhead(tasks, plan.store, plan.jobs, plan.compile_images)
    stop = threading.Event()
    arch = problems[0].functional.arch
    threads = [_GpuThread(plan, arch, worker, ahead, stop, progress) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            # Not thread.join: before Python 3.13 a Ctrl-C in it marks a thread that still runs as ended.
            while not thread.ended.wait(0.1):
                pass
    finally:
        stop.set()
        ahead.stop()  # take() gives None from now on
        for thread in threads:
            thread.join()
        progress.end()
    errors = [thread.error for thread in threads if thread.error]
    if errors and len(errors) == len(threads):
        raise errors[0]


def _tasks(plan: Plan, problems: Sequence[Problem], database: TuningDatabase) -> list[Task]:
    """The problems that still have something to measure, with all their candidates."""
    known: dict[tuple[str, str, str], list[Outcome]] = {}
    for kernel in {(problem.functional.arch, problem.kernel.name) for problem in problems}:
        for outcome in database.outcomes(*kernel):
            known.setdefault((outcome.kernel, outcome.functional, outcome.bin), []).append(outcome)
    tasks = []
    for problem in problems:
        specs = {spec.name: spec for spec in space(problem).candidates}
        place = problem.kernel.name, str(problem.functional), problem.bin
        outcomes = [o for o in known.get(place, ()) if o.shape == problem.shape_text and o.image in specs]
        if plan.again or not {o.image for o in outcomes}.issuperset(specs) or race_is_due(outcomes):
            tasks.append(Task(problem, specs))
    return tasks


def prune(specs: dict[str, ImageSpec], compiled: dict[str, CompiledImage | CompileFailure]) -> dict[str, str]:
    """{image name: why it is not worth a GPU's time}, from what the compiler said of each."""
    pruned: dict[str, str] = {}
    for name, image in compiled.items():
        if isinstance(image, CompileFailure):
            continue
        limit = specs[name].functional.target.shared_limit
        if image.metadata["shared"] > limit:
            pruned[name] = f"shared memory: {image.metadata['shared']} bytes, the limit is {limit}"
        elif image.spills:
            pruned[name] = f"spills: {image.metadata['spills']}, stack: {image.metadata['stack']} bytes"
    return pruned


def decide_siblings(database: TuningDatabase, functional: Functional) -> list[Winner]:
    """Writes and returns the winners that follow from all that was measured of the functional and its siblings."""
    group = siblings(functional)
    texts = {str(one) for one in group}
    outcomes = [o for o in database.outcomes(functional.arch, functional.kernel.name) if o.functional in texts]
    winners = decide(group, outcomes, {name for name, spills in database.spills().items() if spills})
    database.put_winners(winners)
    return winners


class _GpuThread(threading.Thread):
    """Takes tasks until there are none, or it is time to stop, and has its worker measure them."""

    def __init__(
        self,
        plan: Plan,
        arch: str,
        worker: GpuWorker,
        ahead: CompileAhead,
        stop: threading.Event,
        progress: Progress,
    ) -> None:
        super().__init__(name=f"gpu-{worker.gpu}")
        self.error: Exception | None = None
        self.ended = threading.Event()
        self._plan, self._arch, self._worker, self._ahead = plan, arch, worker, ahead
        self._stop_event, self._progress = stop, progress
        self._last_best: dict[str, str] = {}  # functional: config that won its last bin
        self._touched: dict[str, Functional] = {}  # one of each group that borrows from each other
        self._ran, self._failed_in_a_row = False, 0

    def run(self) -> None:
        try:
            with TuningDatabase(self._plan.database) as self._database:
                device = self._worker.device()
                if device.arch != self._arch:
                    raise TuningError(f"it is {device.arch}, the problems are for {self._arch}")
                self._session = 0
                try:
                    while task := self._ahead.take(self._plan.deadline):
                        self._session = self._session or self._begin(device)  # a run with nothing to do leaves no trace
                        self._solve(task)
                finally:
                    for functional in self._touched.values():
                        decide_siblings(self._database, functional)
        except Exception as error:
            self.error = error
            self._progress.note(f"GPU {self._worker.gpu} stops: {error}")
        finally:
            self._worker.close()
            self.ended.set()

    def _begin(self, device: Device) -> int:
        return self._database.begin_session(
            device=device.name,
            driver=device.driver,
            triton=TRITON_VERSION,
            torch=device.torch,
            arch=device.arch,
            multiprocessors=device.multiprocessors,
            options=self._plan.options,
        )

    def _solve(self, task: Task) -> None:
        """One problem from its compiled candidates to its winner."""
        problem, database = task.problem, self._database
        functional = problem.functional
        self._row = database.problem_id(
            functional.arch, problem.kernel.name, str(functional), problem.bin, problem.sizes
        )
        done = {o.image for o in self._outcomes(task) if not self._plan.again or o.session == self._session}
        pruned = prune(task.specs, task.compiled)
        waiting: list[Request] = []
        for name in task.specs:
            image = task.compiled[name]
            if name in done:
                continue
            if isinstance(image, CompileFailure):
                self._record(task, name, "compile_failed", detail=image.message)
            elif name in pruned:
                self._record(task, name, "pruned", detail=pruned[name])
            else:
                waiting.append(_request(task.specs[name], image))
        self._progress.problem(problem, len(waiting))
        try:
            self._worker.prepare(problem)
        except WorkerError as error:
            self._progress.note(f"{problem}: its tensors could not be made: {error}")
            self._count(ran=False)
            return
        self._sweep(task, waiting)
        if not self._stop_event.is_set():
            self._race(task)
        self._touched.setdefault(f"{problem.kernel.name} {siblings(functional)[0]}", functional)
        winner = winner_of(functional, self._outcomes(task))
        if not winner:
            self._progress.solved(problem, None, 0.0)
            return
        database.put_winners([winner])
        config = " ".join(f"{name}={value}" for name, value in {**winner.psels, **winner.copts}.items())
        self._last_best[str(functional)] = config
        self._progress.solved(problem, config, winner.median_us)

    def _sweep(self, task: Task, waiting: Sequence[Request]) -> None:
        # The winner of the bin before goes first: the better the best so far, the sooner the others are given up.
        likely = self._last_best.get(str(task.problem.functional))
        best_us: float | None = None
        for request in sorted(waiting, key=lambda r: r.config != likely):
            if self._stop_event.is_set():
                return
            self._progress.candidate(request.config, best_us)
            try:
                result = self._worker.sweep(request, best_us)
            except WorkerError as error:
                status = "timed_out" if isinstance(error, TimedOut) else "crashed"
                self._record(task, request.name, status, detail=str(error))
                self._progress.note(f"{task.problem}: {request.config}: {status}: {error}")
                self._count(ran=False)
                continue
            self._count(ran=True)
            check = result.check
            self._record(
                task, request.name, result.status, "sweep", result.samples, check.error, check.tolerance, check.wrong
            )
            if result.status == "ok":
                median = measure.median(result.samples)
                best_us = min(best_us or median, median)

    def _race(self, task: Task) -> None:
        """Times the leaders side by side; one that fails now is out, and the others start again."""
        names = race_is_due([o for o in self._outcomes(task) if o.image in task.specs])
        requests = {}
        for name in names:
            image = task.compiled[name]
            if isinstance(image, CompiledImage):
                requests[name] = _request(task.specs[name], image)
        while len(requests) > 1:
            running = ""

            def once(name: str) -> float:
                nonlocal running
                running = name
                return self._worker.time(requests[name], 1)[0]

            try:
                self._progress.candidate(f"race of {len(requests)}", None)
                samples = measure.race(once, list(requests))
            except WorkerError as error:
                status = "timed_out" if isinstance(error, TimedOut) else "crashed"
                self._record(task, running, status, "race", detail=str(error))
                del requests[running]
                continue
            # One transaction: a race that was cut off would say nothing.
            self._database.record(
                *(
                    Measurement(
                        self._row, self._image(task, name), self._session, "race", "ok", measure.median(taken), taken
                    )
                    for name, taken in samples.items()
                )
            )
            return

    def _outcomes(self, task: Task) -> list[Outcome]:
        return self._database.outcomes(problem=self._row)

    def _image(self, task: Task, name: str) -> int:
        image = task.compiled[name]
        facts = {} if isinstance(image, CompileFailure) else image.metadata
        wanted = ("sha256", "registers", "spills", "shared")
        return self._database.image_id(name, task.specs[name].config, **{key: facts.get(key) for key in wanted})

    def _record(
        self,
        task: Task,
        name: str,
        status: str,
        phase: str = "sweep",
        samples: Sequence[float] = (),
        error: float | None = None,
        tolerance: float | None = None,
        detail: str | None = None,
    ) -> None:
        median = measure.median(samples) if samples else None
        detail = detail and (
            detail if len(detail) <= DETAIL else f"{detail[: DETAIL // 2]} ... {detail[-DETAIL // 2 :]}"
        )
        self._database.record(
            Measurement(
                self._row,
                self._image(task, name),
                self._session,
                phase,
                status,
                median,
                samples,
                error,
                tolerance,
                detail,
            )
        )

    def _count(self, ran: bool) -> None:
        self._ran = self._ran or ran
        self._failed_in_a_row = 0 if ran else self._failed_in_a_row + 1
        if not self._ran and self._failed_in_a_row >= HOPELESS_AFTER:
            raise TuningError(f"the first {HOPELESS_AFTER} candidates all failed, so the fault is not in them")


def _request(spec: ImageSpec, image: CompiledImage) -> Request:
    return Request(image.name, spec.functional.kernel.name, spec.config, image.path, image.metadata, dict(spec.psels))
