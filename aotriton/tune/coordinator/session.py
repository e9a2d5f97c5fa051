"""A run of the tuner: from problems to what is left to do of them, after what was measured before."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from aotriton.codegen.compile import ImageStore, cpu_count
from aotriton.rules.database import Outcome, TuningDatabase
from aotriton.rules.image import TRITON_VERSION, ImageSpec
from aotriton.rules.judge import of_today
from aotriton.tune.coordinator.cluster import Cluster
from aotriton.tune.coordinator.engine import Engine
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.search_history import config_of, search_space, values_of
from aotriton.tune.coordinator.state import Search, Waiting
from aotriton.tune.measure.requests import Device
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.problems import Problem
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.search.handle import StrategyHandle, StrategyProcesses
from aotriton.tune.search.simplified_search import SimplifiedSearch
from aotriton.tune.search.space import SearchSpace, Trial
from aotriton.tune.search.strategies import strategy
from aotriton.tune.winners import campaign
from aotriton.tune.winners.campaign import finished
from aotriton.tune.winners.decide import race_is_due
from aotriton.tune.winners.siblings import decide_siblings

MOST_PROCESSES = 4  # processes for strategies; each is at work a tenth of the time that a GPU is
EXHAUSTIVE, FINALISTS = "exhaustive", "finalists"


@dataclass(frozen=True)
class Task:
    """A problem that still has something to measure, and its candidates by image name."""

    problem: Problem
    specs: dict[str, ImageSpec]


@dataclass(frozen=True)
class Plan:
    """How to tune, on GPUs of one ``device``. No problem is begun after ``deadline``, on time.monotonic's clock. At
    ``end``, or when the run's workers have cost ``dollars``, searches end, too; ``price`` is what a GPU costs an hour.

    ``strategy`` is one of ``tune/search/strategies.py``, with at most ``budget`` trials for a problem; all but the
    exhaustive one choose from the rich space. ``only`` has the images to choose from by problem, where they were chosen
    before.
    ``campaign`` is the name of the run of ``again`` that this one is or continues.
    """

    database: Path
    store: ImageStore
    device: Device
    again: bool = False
    deadline: float = float("inf")
    end: float = float("inf")
    dollars: float = float("inf")
    price: float = 0.0
    options: str = ""
    strategy: str = EXHAUSTIVE
    seed: int = 0
    budget: int | None = None
    only: Mapping[Problem, Sequence[ImageSpec]] = field(default_factory=dict)
    campaign: str | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def product(self) -> str:
        return self.device.name


def strategy_processes(strategy: str) -> StrategyProcesses:
    """Processes for the run's strategies, which start at once; none for a strategy that does not learn."""
    learns = strategy not in (EXHAUSTIVE, FINALISTS)
    return StrategyProcesses(max(1, min(MOST_PROCESSES, cpu_count() // 4)) if learns else 0)


def tune(
    plan: Plan,
    problems: Sequence[Problem],
    cluster: Cluster,
    progress: Progress,
    processes: StrategyProcesses | None = None,
) -> int:
    """Tunes the problems, all of one arch, in order, until all are done or the deadline comes. Returns how many are
    left. ``processes``: those that were started before.

    TuningError where problems are left that no GPU could finish. KeyboardInterrupt passes through, after the jobs in
    flight were recorded.
    """
    with TuningDatabase(plan.database) as database:
        plan, tasks = _begin(plan, problems, database)
        progress.begin(len(problems), len(problems) - len(tasks))
        _tell_known(plan, problems, tasks, database, progress)
        engine = Engine(
            database, cluster, plan.store, progress, plan.product, plan.device.driver, plan.deadline, plan.end,
            plan.dollars, plan.price,
            begin_session=lambda device: _begin_session(plan, database, device),
            reusable=lambda outcomes: _reusable(plan, database, outcomes),
            checksums=database.evidence.checksums(),
            began=plan.began,
        )  # fmt: skip
        processes = processes or strategy_processes(plan.strategy)
        try:
            if tasks:
                engine.run(_searches(plan, tasks, database, processes))
        finally:
            processes.close()
            progress.end()
            if tasks:
                progress.note(engine.usage.summary())
            progress.tell("ended", trials=engine.usage.trials, dollars=round(engine.usage.dollars, 4))
            for functional in engine.decided:
                decide_siblings(database, functional, plan.product)
        left = _unfinished(plan, tasks, database)
    if engine.unfinished:
        raise TuningError(f"{len(engine.unfinished)} problems could not be finished: {engine.unfinished[0]}: see above")
    return len(left)


def _tell_known(
    plan: Plan, problems: Sequence[Problem], tasks: Sequence[Task], database: TuningDatabase, progress: Progress
) -> None:
    """Tells of the winners of problems that were decided before."""
    left = {task.problem for task in tasks}
    for arch, kernel in {(one.functional.arch, one.kernel.name) for one in problems}:
        winners = {(one.functional, one.bin): one for one in database.winners(arch, kernel, plan.product)}
        for problem in problems:
            winner = winners.get((str(problem.functional), problem.bin))
            if winner and problem.kernel.name == kernel and problem not in left:
                progress.tell("decided", problem=str(problem), config=winner.config, median_us=winner.median_us)


def _searches(
    plan: Plan, tasks: Sequence[Task], database: TuningDatabase, processes: StrategyProcesses
) -> list[Waiting]:
    def begin(task: Task) -> Search:
        problem = task.problem
        functional = problem.functional
        row = database.evidence.problem_id(
            functional.arch, problem.kernel.name, str(functional), problem.bin, problem.sizes
        )
        outcomes = _reusable(plan, database, database.evidence.outcomes(problem=row, product=plan.product))
        known = {one.image: one for one in outcomes if one.phase == "sweep" and one.image in task.specs}
        if plan.strategy in (EXHAUSTIVE, FINALISTS):
            space = SearchSpace(tuple(map(config_of, task.specs.values())), values_of(task.specs.values()))
            every, ends = strategy(EXHAUSTIVE, space), plan.strategy == FINALISTS
            return Search(problem, row, StrategyHandle(every), known, task.specs, records_end=ends)
        space = search_space(problem, list(task.specs.values()), database, plan.product)
        trials = [
            Trial(config_of(task.specs[name]), one.status, one.median_us if one.status == "ok" else None)
            for name, one in known.items()
        ]
        handle = processes.add(SimplifiedSearch, space, plan.strategy, plan.seed, plan.budget, trials)
        return Search(problem, row, handle, known, task.specs, records_end=True, ends_early=True)

    return [Waiting(task.specs.keys(), partial(begin, task)) for task in tasks]


def _begin_session(plan: Plan, database: TuningDatabase, device: Device) -> int:
    options = f"{plan.options} again={plan.campaign}".strip() if plan.campaign else plan.options
    return begin_session(database, device, options, plan.strategy, None if plan.strategy == EXHAUSTIVE else plan.seed)


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
    tasks = []
    for problem in problems:
        candidates = plan.only.get(problem) or space(problem, rich=plan.strategy != EXHAUSTIVE).candidates
        tasks.append(Task(problem, {spec.name: spec for spec in candidates}))
    return _unfinished(plan, tasks, database)


def _unfinished(plan: Plan, tasks: Sequence[Task], database: TuningDatabase) -> list[Task]:
    known: dict[tuple[str, str, str], list[Outcome]] = {}
    ended: set[tuple[str, ...]] = set()
    marks = campaign.campaigns(database)
    for arch, kernel in {(task.problem.functional.arch, task.problem.kernel.name) for task in tasks}:
        for outcome in _reusable(plan, database, database.evidence.outcomes(arch, kernel, product=plan.product)):
            known.setdefault((outcome.kernel, outcome.functional, outcome.bin), []).append(outcome)
        ended |= {
            (one.kernel, one.functional, one.bin, one.shape)
            for one in of_today(database.evidence.searched(arch, kernel, plan.product))
            if one.strategy == plan.strategy and plan.campaign in (None, marks.get(one.session))
        }
    left = []
    for task in tasks:
        problem, specs = task.problem, task.specs
        key = problem.kernel.name, str(problem.functional), problem.bin
        outcomes = [o for o in known.get(key, ()) if o.shape == problem.shape_text]
        if plan.strategy == EXHAUSTIVE:
            done = finished(specs, outcomes)
        else:
            mine = [one for one in outcomes if one.image in specs]  # none where the source has changed since
            done = (*key, problem.shape_text) in ended and bool(mine) and not race_is_due(mine)
        if specs and not done:
            left.append(task)
    return left


def _reusable(plan: Plan, database: TuningDatabase, outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes that need no measuring again: those of today's judge, in a campaign its own."""
    outcomes = of_today(outcomes)
    if plan.campaign is None:
        return outcomes
    own = campaign.campaigns(database)
    return [outcome for outcome in outcomes if own.get(outcome.session) == plan.campaign]


def begin_session(
    database: TuningDatabase, device: Device, options: str, strategy: str = "exhaustive", seed: int | None = None
) -> int:
    """The id of a new session on this GPU."""
    return database.evidence.begin_session(
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
