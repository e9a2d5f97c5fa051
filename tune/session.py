"""From problems to rows: compile, prune, measure, check, record, race and decide, on any number of GPUs at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, compile_images
from aotriton.rules.borrow import siblings
from aotriton.rules.database import Measurement, Outcome, TuningDatabase, Winner
from aotriton.rules.image import TRITON_VERSION, ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.tune import campaign, measure
from aotriton.tune.ahead import CompileAhead, Task
from aotriton.tune.campaign import finished
from aotriton.tune.decide import Place, decide, race_is_due
from aotriton.tune.incident import PAUSES, Attempts, Canary, Stopped, TuningError
from aotriton.tune.problems import Problem
from aotriton.tune.progress import Progress
from aotriton.tune.recompile import Compile
from aotriton.tune.space import space
from aotriton.tune.worker import UNTOLD, Conditions, Device, GpuWorker, Request, TimedOut, WorkerError

HOPELESS_AFTER = (
    12  # candidates in a row that crashed or hung, with none before that ran: it is not the candidates' fault
)
DETAIL = 300  # characters of a message that a row keeps
Made = TypeVar("Made")

CANARIES = 3  # known good candidates that a worker is proven with, in turns: one may have its own faults


@dataclass
class Plan:
    """How to tune. After ``deadline``, on time.monotonic's clock, no further problem is begun.

    ``product`` is the GPUs', ``campaign`` the name of the run of ``again`` that this one is or goes on with.
    """

    database: Path
    store: ImageStore
    launcher: str
    product: str
    jobs: int | None = None
    again: bool = False
    deadline: float = float("inf")
    options: str = ""
    compile_images: Compile = field(default=compile_images)
    pauses: Sequence[float] = PAUSES
    campaign: str | None = None


def tune(plan: Plan, problems: Sequence[Problem], workers: Sequence[GpuWorker], progress: Progress) -> int:
    """Tunes the problems, all of one arch, in order, each on one of the workers; returns at the deadline or when done,
    and says how many problems are left.

    TuningError where problems are left that no worker could finish. KeyboardInterrupt passes through, after the
    candidates under way were recorded.
    """
    with TuningDatabase(plan.database) as database:
        plan, tasks = _begin(plan, problems, database)
    progress.begin(len(problems), len(problems) - len(tasks))
    ahead = CompileAhead(tasks, plan.store, plan.jobs, plan.compile_images, {worker.core for worker in workers})
    stop = threading.Event()
    arch = problems[0].functional.arch
    threads = [_GpuThread(plan, arch, worker, ahead, stop, progress) for worker in workers]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        for thread in threads:
            # Not thread.join: before Python 3.13 a Ctrl-C in it marks a thread that still runs as ended.
            while not thread.ended.wait(0.1):
                pass
    finally:
        stop.set()
        ahead.stop()  # take() gives None from now on
        for thread in started:
            thread.join()
        progress.end()
    with TuningDatabase(plan.database) as database:
        left = _tasks(plan, [task.problem for task in tasks], database)
    errors = [thread.error for thread in threads if thread.error]
    if left and errors:
        raise errors[0]
    unfinished = [task.problem for task in left if any(task.problem in thread.unfinished for thread in threads)]
    if unfinished:
        raise TuningError(f"{len(unfinished)} problems could not be finished: {unfinished[0]}: see above")
    return len(left)


def _begin(plan: Plan, problems: Sequence[Problem], database: TuningDatabase) -> tuple[Plan, list[Task]]:
    """The plan with its campaign, and what is left to measure."""
    if plan.again:
        digest = campaign.digest_of(plan.product, problems)
        if name := campaign.latest_campaign(database, digest):
            going_on = replace(plan, campaign=name)
            if tasks := _tasks(going_on, problems, database):
                return going_on, tasks
        plan = replace(plan, campaign=campaign.new_campaign(digest))
    return plan, _tasks(plan, problems, database)


def _tasks(plan: Plan, problems: Sequence[Problem], database: TuningDatabase) -> list[Task]:
    """The problems that still have something to measure, with all their candidates."""
    known: dict[tuple[str, str, str], list[Outcome]] = {}
    for kernel in {(problem.functional.arch, problem.kernel.name) for problem in problems}:
        for outcome in _counting(plan, database, database.outcomes(*kernel, product=plan.product)):
            known.setdefault((outcome.kernel, outcome.functional, outcome.bin), []).append(outcome)
    tasks = []
    for problem in problems:
        specs = {spec.name: spec for spec in space(problem).candidates}
        place = problem.kernel.name, str(problem.functional), problem.bin
        if not finished(specs, [o for o in known.get(place, ()) if o.shape == problem.shape_text]):
            tasks.append(Task(problem, specs))
    return tasks


def _counting(plan: Plan, database: TuningDatabase, outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes that make further measuring needless: of a campaign, its own."""
    if plan.campaign is None:
        return outcomes
    own = campaign.campaigns(database)
    return [outcome for outcome in outcomes if own.get(outcome.session) == plan.campaign]


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


def decide_siblings(database: TuningDatabase, functional: Functional, product: str) -> list[Winner]:
    """Writes and returns the winners of the functional and its siblings by what was measured on the product."""
    group = siblings(functional)
    texts = {str(one) for one in group}
    outcomes = database.outcomes(functional.arch, functional.kernel.name, product=product)
    before = database.winners(functional.arch, functional.kernel.name, product)
    outcomes, held = campaign.decidable(
        group, [one for one in outcomes if one.functional in texts], before, campaign.campaigns(database)
    )
    winners = decide(group, outcomes, database.samples_of, standing(before), held)
    database.put_winners(winners)
    return winners


def standing(winners: Sequence[Winner]) -> dict[Place, str]:
    """The images that were measured to be the best, by their places."""
    return {(one.functional, one.bin): one.image for one in winners if one.provenance == "measured"}


def begin_session(
    database: TuningDatabase, device: Device, options: str, strategy: str = "exhaustive", seed: int | None = None
) -> int:
    """Id of a new session on this GPU."""
    return database.begin_session(
        device=device.name,
        driver=device.driver,
        triton=TRITON_VERSION,
        torch=device.torch,
        arch=device.arch,
        multiprocessors=device.multiprocessors,
        options=options,
        uuid=device.uuid,
        memory=device.memory,
        power_limit=device.power_limit,
        strategy=strategy,
        seed=seed,
    )


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
        self.unfinished: list[Problem] = []
        self.ended = threading.Event()
        self._plan, self._arch, self._worker, self._ahead = plan, arch, worker, ahead
        self._stop_event, self._progress = stop, progress
        self._attempts = Attempts(worker, plan.pauses, stop, progress.note)
        self._last_best: dict[str, str] = {}  # functional: config that won its last bin
        self._touched: dict[str, Functional] = {}  # one of each group that borrows from each other
        self._canaries: list[Canary] = []  # of this problem, or of the last one that had any
        self._ran, self._withheld = False, list[Measurement]()

    def run(self) -> None:
        try:
            with TuningDatabase(self._plan.database) as self._database:
                self._tune()
        except Stopped:
            pass
        except Exception as error:
            self.error = error
            self._progress.note(f"GPU {self._worker.gpu} stops: {error}")
        finally:
            try:
                self._worker.close()
            finally:
                self.ended.set()  # whatever happened: tune() waits for it

    def _tune(self) -> None:
        device = self._attempts.of(self._worker.device, "its facts")
        if isinstance(device, WorkerError):
            raise device
        if device.arch != self._arch:
            raise TuningError(f"it is {device.arch}, the problems are for {self._arch}")
        if device.name != self._plan.product:
            raise TuningError(f"it is {device.name}, the plan is for {self._plan.product}: tune on it alone (--gpus)")
        self._session = 0
        try:
            while task := self._ahead.take(self._plan.deadline):
                try:
                    self._session = self._session or self._begin(device)  # a run with nothing to do leaves no trace
                    if not self._solve(task):
                        self.unfinished.append(task.problem)
                except BaseException:
                    self._ahead.give_back(task)
                    raise
                self._ahead.done()
        finally:
            for functional in self._touched.values():
                decide_siblings(self._database, functional, self._plan.product)

    def _begin(self, device: Device) -> int:
        name = self._plan.campaign
        options = f"{self._plan.options} again={name}".strip() if name else self._plan.options
        return begin_session(self._database, device, options)

    def _solve(self, task: Task) -> bool:
        """One problem from its compiled candidates to its winner; False where it could not be finished."""
        problem, database = task.problem, self._database
        functional = problem.functional
        self._row = database.problem_id(
            functional.arch, problem.kernel.name, str(functional), problem.bin, problem.sizes
        )
        waiting = self._waiting(task)
        self._progress.problem(problem, len(waiting))
        self._canaries = self._known_good(task) or self._canaries
        failed = self._attempts.of(lambda: self._worker.prepare(problem), "its tensors", problem, self._canaries)
        if failed:
            self._progress.note(f"{problem}: its tensors could not be made: {failed}")
            return False
        self._sweep(task, waiting)
        self._race(task)
        if not finished(task.specs, self._counting()):
            return self._stop_event.is_set()
        self._touched.setdefault(f"{problem.kernel.name} {siblings(functional)[0]}", functional)
        before = standing(database.winners(functional.arch, problem.kernel.name, self._plan.product))
        winners = decide([functional], self._outcomes(), database.samples_of, before)
        if not winners:
            self._progress.solved(problem, None, 0.0)
            return True
        database.put_winners(winners)
        (winner,) = winners
        config = " ".join(f"{name}={value}" for name, value in {**winner.psels, **winner.copts}.items())
        self._last_best[str(functional)] = config
        self._progress.solved(problem, config, winner.median_us)
        return True

    def _waiting(self, task: Task) -> list[Request]:
        """The candidates that a GPU has to see; what the compiler says of the others is recorded."""
        done = {outcome.image for outcome in self._counting()}
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
                waiting.append(launch_request(task.specs[name], image))
        return waiting

    def _known_good(self, task: Task) -> list[Canary]:
        """Candidates of the task that are right by what is recorded, the last one first."""
        good = [o.image for o in reversed(self._outcomes()) if o.status == "ok" and o.image in task.specs]
        images = [(name, task.compiled[name]) for name in dict.fromkeys(good)]
        return [
            Canary(task.problem, launch_request(task.specs[name], image))
            for name, image in images[:CANARIES]
            if isinstance(image, CompiledImage)
        ]

    def _sweep(self, task: Task, waiting: Sequence[Request]) -> None:
        # The winner of the bin before goes first: the better the best so far, the sooner the others are given up.
        likely = self._last_best.get(str(task.problem.functional))
        best_us: float | None = None
        for request in sorted(waiting, key=lambda r: r.config != likely):
            if self._stop_event.is_set():
                return
            self._progress.candidate(request.config, best_us)
            result = self._try(task, request, lambda r=request, b=best_us: self._worker.sweep(r, b))  # type: ignore[misc]
            if isinstance(result, WorkerError):
                self._blame(task, request.name, "sweep", result)
                continue
            about = result.status, "sweep", result.samples, result.check.error, result.check.tolerance
            self._record(task, request.name, *about, result.check.wrong, result.conditions)
            self._ran = True
            self._database.record(*self._withheld)
            self._withheld.clear()
            if result.status == "ok":
                mine = [one for one in self._canaries if one.problem == task.problem]
                self._canaries = [Canary(task.problem, request), *mine][:CANARIES]
                median = measure.median(result.samples)
                best_us = min(best_us or median, median)

    def _race(self, task: Task) -> None:
        """Times the leaders side by side; one that fails now is out, and the others start again."""
        while not self._stop_event.is_set() and {o.image for o in self._counting()}.issuperset(task.specs):
            names = race_is_due([o for o in self._counting() if o.image in task.specs])
            images = {name: task.compiled[name] for name in names}
            requests = [launch_request(task.specs[n], i) for n, i in images.items() if isinstance(i, CompiledImage)]
            if len(requests) < 2:
                return
            self._progress.candidate(f"race of {len(requests)}", None)
            race = self._try(task, None, lambda r=requests: self._worker.race(r))  # type: ignore[misc]
            if isinstance(race, WorkerError):
                if not self._find_guilty(task, requests):
                    self._progress.note(f"{task.problem}: the leaders race alone, but not together: {race}")
                    return
                continue
            # One transaction: a race that was cut off would say nothing.
            self._database.record(
                *(
                    self._measurement(task, name, "ok", "race", taken, conditions=race.conditions)
                    for name, taken in race.samples.items()
                )
            )
            return

    def _find_guilty(self, task: Task, requests: Sequence[Request]) -> bool:
        """Has each run alone, and records who fails."""
        found = False
        for request in requests:
            alone = self._try(task, request, lambda r=request: self._worker.race([r]))  # type: ignore[misc]
            if isinstance(alone, WorkerError):
                self._blame(task, request.name, "race", alone)
                found = True
        return found

    def _try(self, task: Task, request: Request | None, call: Callable[[], Made]) -> Made | WorkerError:
        """A request about ``request``, or several; no candidate speaks for itself."""
        what = f"{task.problem}: {request.config if request else 'race'}"
        canaries = [one for one in self._canaries if not request or one.request.name != request.name]
        return self._attempts.of(call, what, task.problem, canaries)

    def _blame(self, task: Task, name: str, phase: str, error: WorkerError) -> None:
        """A verdict, which waits until something has run: nothing else tells the candidate's fault from all others."""
        status = "timed_out" if isinstance(error, TimedOut) else "crashed"
        self._progress.note(f"{task.problem}: {task.specs[name].config}: {status}: {error}")
        verdict = self._measurement(task, name, status, phase, detail=str(error))
        if self._ran or self._canaries:
            self._database.record(verdict)
            return
        self._withheld.append(verdict)
        if len(self._withheld) >= HOPELESS_AFTER:
            raise TuningError(f"the first {HOPELESS_AFTER} candidates all failed, so the fault is not in them")

    def _outcomes(self) -> list[Outcome]:
        return self._database.outcomes(problem=self._row, product=self._plan.product)

    def _counting(self) -> list[Outcome]:
        return _counting(self._plan, self._database, self._outcomes())

    def _image(self, task: Task, name: str) -> int:
        image = task.compiled[name]
        facts = {} if isinstance(image, CompileFailure) else image.metadata
        wanted = ("sha256", "registers", "spills", "shared")
        return self._database.image_id(name, task.specs[name].config, **{key: facts.get(key) for key in wanted})

    def _measurement(
        self,
        task: Task,
        name: str,
        status: str,
        phase: str = "sweep",
        samples: Sequence[float] = (),
        error: float | None = None,
        tolerance: float | None = None,
        detail: str | None = None,
        conditions: Conditions = UNTOLD,
    ) -> Measurement:
        median = measure.median(samples) if samples else None
        detail = detail and (
            detail if len(detail) <= DETAIL else f"{detail[: DETAIL // 2]} ... {detail[-DETAIL // 2 :]}"
        )
        return Measurement(
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
            conditions.sm_clock,
            conditions.temperature,
        )

    def _record(self, *about: Any, **more: Any) -> None:
        self._database.record(self._measurement(*about, **more))


def launch_request(spec: ImageSpec, image: CompiledImage) -> Request:
    return Request(image.name, spec.functional.kernel.name, spec.config, image.path, image.metadata, dict(spec.psels))
