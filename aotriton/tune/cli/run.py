"""A tuning run: problems measured on GPUs, here or on a cluster, and what came of it as lines for a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import IO

from aotriton.codegen.compile import ImageStore
from aotriton.rules.arch import arch_spec
from aotriton.rules.commands import in_source_tree, tuner
from aotriton.rules.database import TuningDatabase
from aotriton.rules.image import ImageSpec
from aotriton.tune.cli.budget import Budget, budget
from aotriton.tune.cli.gpus import gpus_of
from aotriton.tune.cli.invocation import CannotBegin, Invocation, make_folder, require_triton
from aotriton.tune.cli.origin import origin
from aotriton.tune.cli.run_lock import alone
from aotriton.tune.coordinator.cluster import Cluster, new_setting
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.session import EXHAUSTIVE, FINALISTS, Plan, strategy_processes, tune
from aotriton.tune.dataset.finalists import read_finalists, unconfirmed, write_finalists
from aotriton.tune.dataset.summary import Before, summary
from aotriton.tune.measure.requests import Device
from aotriton.tune.problem.problems import Problem
from aotriton.tune.search.handle import StrategyProcesses
from aotriton.tune.search.strategies import BUDGETS, DEFAULT
from aotriton.tune.winners.decide_all import decide_all
from aotriton.tune.workers.canary import PAUSES
from aotriton.tune.workers.families import FamilyFiles
from aotriton.tune.workers.jobs import store_token

COMPILER = "aotriton.codegen.compile:WarmCompiler"


def run(call: Invocation) -> int:
    options = call.options
    limit = _budget(call)
    make_folder(options.database)
    if not options.scheduler:
        require_triton()  # else it is the workers' matter
    gpus = [] if options.scheduler else gpus_of(call)
    TuningDatabase(options.database).close()  # a database that cannot be used ends the run before workers start
    store = ImageStore()
    with _events(call) as events:
        progress = Progress(call.began + (options.time_budget or float("inf")), events)
        with alone(options.database, [one.name for one in call.kernels], progress.note):
            return _run(call, limit, gpus, progress, store)


def _run(call: Invocation, limit: Budget, gpus: Sequence[str], progress: Progress, store: ImageStore) -> int:
    options = call.options
    own = [] if call.family.in_tree else [call.family.folder]
    carried = [FamilyFiles.read(folder) for folder in own] if options.scheduler else []
    families = [one.place for one in carried] or list(map(str, own))
    setting = new_setting(options.launcher, COMPILER, store_token(store), PAUSES, tuple(families))
    # The processes of strategies start while the cluster does.
    with (
        closing(strategy_processes(_strategy(call))) as processes,
        closing(
            Cluster(setting, progress.note, options.scheduler, gpus, options.jobs, carried, options.silence)
        ) as cluster,
    ):
        if cluster.dashboard:
            progress.note(f"Dask shows its work at {cluster.dashboard}")
        device = cluster.first_gpu(options.product)
        _check_arch(options.arch, device)
        many = f"{len(gpus)} x " if gpus else ""
        progress.note(f"{many}{device.name} ({device.arch}, {device.multiprocessors} multiprocessors)")
        only = _chosen(call, store, device)
        problems = list(only) or call.problems(device.arch, device.multiprocessors)
        plan = Plan(
            options.database, store, device, options.again, call.began + (options.time_budget or float("inf")),
            call.began + (limit.seconds or float("inf")), limit.dollars or float("inf"), options.price or 0.0,
            call.spelled, _strategy(call), options.seed, limit.trials, only, began=call.began,
        )  # fmt: skip
        _tune(call, plan, problems, cluster, progress, processes)
    return 0


def _tune(
    call: Invocation,
    plan: Plan,
    problems: Sequence[Problem],
    cluster: Cluster,
    progress: Progress,
    processes: StrategyProcesses,
) -> None:
    """Tunes, and prints what came of it, also where the run was cut off."""
    options, product = call.options, plan.product
    with TuningDatabase(options.database) as database:
        before = Before.of(database, plan.device.arch, product)
    left = None
    try:
        left = tune(plan, problems, cluster, progress, processes)
    finally:
        with TuningDatabase(options.database) as database:
            if left is not None and not plan.only:
                functionals = [one.functional for one in problems]
                decide_all(database, functionals, plan.store, options.jobs, cluster.compile_images)
            print("\n".join(summary(database, before, left, _following(call))))
            if options.top:
                path = options.database.with_suffix(".finalists.zip")
                count = write_finalists(path, database, problems, product, plan.store, options.top)
                print(f"finalists: {count} with their images in {path}; --finalists races them on another machine")


def _chosen(call: Invocation, store: ImageStore, device: Device) -> Mapping[Problem, Sequence[ImageSpec]]:
    """The candidates that others chose: of a file of finalists, or those that the best of unknown origin are."""
    if call.options.finalists:
        with origin(call, call.options.finalists) as of:
            return read_finalists(of.path, store if of.trusted else None)
    if call.options.confirm:
        with TuningDatabase(call.options.database) as database:
            found = unconfirmed(database, call.kernels, device.arch, device.name)
        if not found:
            raise CannotBegin(f"no rows of unknown origin are left to confirm of these kernels on {device.name}")
        return found
    return {}


@contextmanager
def _events(call: Invocation) -> Iterator[IO[str] | None]:
    """Where the run's events go, if anywhere."""
    if not call.options.events:
        yield None
        return
    try:
        file = call.options.events.open("a")
    except OSError as error:
        call.parser.error(f"--events {call.options.events}: {error.strerror}")
    with file:
        yield file


def _strategy(call: Invocation) -> str:
    """The name of the strategy: exhaustive, unless the options ask for a search or name finalists."""
    options = call.options
    if options.finalists or options.confirm:
        return FINALISTS
    return str(options.strategy or (DEFAULT if options.budget or options.effort else EXHAUSTIVE))


def _budget(call: Invocation) -> Budget:
    """The budget of the options, else that of the effort; exits with an error where it is not valid."""
    options = call.options
    if not options.budget:
        return Budget(trials=BUDGETS[options.effort or "full"].get(_strategy(call)))
    try:
        return budget(options.budget, options.price)
    except ValueError as error:
        call.parser.error(str(error))


def _check_arch(arch: str | None, device: Device) -> None:
    """CannotBegin where the options ask for another arch than the GPU's."""
    if arch and arch != device.arch:
        elsewhere = "--compile-only or --predict" if arch_spec(arch).vendor == "hip" else "--compile-only"
        raise CannotBegin(f"--arch {arch}, but the GPU is {device.arch}: here {elsewhere} works for {arch}")


def _following(call: Invocation) -> str:
    """What to do once all cells are measured."""
    if any(kernel.work is not None for kernel in call.kernels):
        return f"{tuner()} --family {call.family.place} --sample 150 times random shapes, by which a build chooses"
    return "build the library: cmake --workflow --preset default" if in_source_tree() else "the next build has it"
