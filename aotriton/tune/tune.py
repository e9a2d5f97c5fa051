"""Tunes the kernels of a family: from options to measurements and winners in the tuning database.

Run it as ``python tune/tune.py --family NAME``, or with the folder of a family that lives outside of this tree.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

    from aotriton.rules.programs import must_have

    must_have("tune", "sqlite_utils", "sqlite-utils")

import argparse
import importlib.metadata
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from aotriton.codegen.compile import CompileFailure, ImageStore, compile_images
from aotriton.codegen.store import data_folder
from aotriton.rules.arch import ARCHS, STATIC, arch_spec
from aotriton.rules.database import TuningDatabase, TuningDatabaseError
from aotriton.rules.family import IN_TREE as FAMILIES
from aotriton.rules.family import Family, add, families, family
from aotriton.rules.image import TRITON_VERSION
from aotriton.rules.kernel import Functional, KernelDescription, Value
from aotriton.rules.operators import Operator
from aotriton.rules.programs import in_source_tree, tuner
from aotriton.tune.cli.budget import Budget, budget
from aotriton.tune.coordinator.cluster import Cluster, new_setting
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.sample import Sampling, sample
from aotriton.tune.coordinator.session import EXHAUSTIVE, FINALISTS, Plan, minds_of, tune
from aotriton.tune.costmodel.shipped import compile_shipped, fit_models
from aotriton.tune.dataset.carry import carry
from aotriton.tune.dataset.finalists import read_finalists, write_finalists
from aotriton.tune.dataset.summary import Before, summary
from aotriton.tune.dataset.tables import export, take_in
from aotriton.tune.measure.launcher import visible_gpus
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.error import TuningError
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Problem, Wish, problems
from aotriton.tune.search import BUDGETS, DEFAULT, STRATEGIES
from aotriton.tune.winners.settle import settle
from aotriton.tune.workers.cores import launch_cores
from aotriton.tune.workers.gpu_worker import GpuWorker, WorkerError
from aotriton.tune.workers.incident import PAUSES
from aotriton.tune.workers.jobs import store_token

ROOT = Path(__file__).resolve().parents[2]
IN_TREE = (ROOT / "CMakeLists.txt").exists()
COMPILER = "aotriton.codegen.compile:WarmCompiler"
# An installed package is nobody's to write to, and the caller's folder has nothing to do with it.
DATABASE = (ROOT / "rules" if IN_TREE else data_folder()) / "tuning_database.sqlite3"


def parser(of: Family, prog: str = "tune.py") -> argparse.ArgumentParser:
    """The options that tune a family: each choice, tuning key and size of a shape has one."""
    made = argparse.ArgumentParser(prog=prog, description=f"Tunes the kernels of {of.name} on this machine's GPUs.")
    made.add_argument("--family", help=f"{', '.join(FAMILIES)}, or the folder of another family (default: {of.name})")
    database = DATABASE if of.in_tree else of.folder / "rules" / DATABASE.name
    made.add_argument("--database", type=Path, default=database, help="the tuning database (default: %(default)s)")
    made.add_argument("--again", action="store_true", help="measure anew; goes on where a killed one was")
    made.add_argument("--time-budget", type=float, metavar="SECONDS", help="begin no further problem after this time")
    made.add_argument("--jobs", type=int, help="compiler processes (default: one a core)")
    made.add_argument("--gpus", nargs="+", metavar="GPU", help="indices of the GPUs to use (default: all visible)")
    made.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of a Dask cluster that tunes, as tcp://host:8786 (default: this machine does)",
    )
    made.add_argument(
        "--launcher",
        default="aotriton.tune.measure.launcher:GpuLauncher",
        metavar="MODULE:CLASS",
        help="what launches candidates in the child processes; tests put a stand-in or a faulty one here",
    )

    made.add_argument(
        "--seed", type=int, default=0, help="of a strategy, or of --sample's shapes (default: %(default)s)"
    )
    how = made.add_argument_group("how to search", "without any of these, all that the descriptions list is measured")
    how.add_argument("--strategy", choices=[*STRATEGIES], help=f"default with one of the others: {DEFAULT}")
    how.add_argument("--effort", choices=[*BUDGETS], help="how many trials a strategy has (default: full)")
    how.add_argument("--budget", help="of trials a problem (64), seconds (60s) or dollars (0.80usd) of the run")
    how.add_argument("--price", type=float, metavar="USD", help="of a GPU an hour, for a budget in dollars")
    how.add_argument(
        "--top",
        type=int,
        metavar="COUNT",
        help="write so many of the best of each problem, with images, beside the database, as .finalists.zip",
    )
    how.add_argument("--finalists", type=Path, metavar="FILE", help="measure and race here what --top wrote elsewhere")
    made.add_argument(
        "--over-predicted", action="store_true", help="with --import: cells of predicted winners take what is imported"
    )
    made.add_argument(
        "--since", type=Path, metavar="DATABASE", help="an earlier state, which --report tells the changes from"
    )

    what = made.add_argument_group("what to tune", "each takes several values, and leaves all others out")
    what.add_argument("--arch", choices=[row.arch for row in ARCHS], help="default: the GPU's")
    _several(what, "kernel", [kernel.name for kernel in of.kernels], str)
    for name, (option, values) in _choices(of).items():
        if set(values) == {False, True}:
            what.add_argument(f"--{option}", dest=name, action=argparse.BooleanOptionalAction, help="default: both")
        else:
            default = "one that stands for the others" if name in _shared(of) else "all that are worth it"
            _several(what, option, values, type(values[0]), name, default)
    for name, (option, representatives) in _keys(of).items():
        _several(what, option, representatives, int, name, "the family's own selection")
    for size in tuning(of.name).shape_options:
        what.add_argument(f"--{size}", type=int, help="of the shape that is measured (default: what fills the bin)")

    mode = made.add_argument_group("instead of tuning").add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="list the problems and count the candidates; needs no GPU")
    mode.add_argument("--compile-only", action="store_true", help="fill the image store; needs no GPU")
    mode.add_argument("--decide", action="store_true", help="choose winners anew from what is measured; needs no GPU")
    mode.add_argument(
        "--merge", type=Path, metavar="FILE", help="take over what another database has, and decide; needs no GPU"
    )
    mode.add_argument(
        "--export",
        type=Path,
        metavar="PATH",
        help="write all tables into a folder, as Parquet, or one to a file of its name, measurement.csv; needs no GPU",
    )
    mode.add_argument(
        "--import",
        dest="take_in",
        type=Path,
        metavar="PATH",
        help="take over what --export wrote, or winners of a database that AOTriton publishes; needs no GPU",
    )
    mode.add_argument(
        "--sample",
        type=int,
        metavar="COUNT",
        help="time launch sequences on so many random shapes of each functional, and fit cost models",
    )
    mode.add_argument("--fit", action="store_true", help="fit cost models anew from what is timed; needs no GPU")
    mode.add_argument(
        "--carry",
        action="store_true",
        help="after a kernel's source has changed: what its images of unchanged bits took stands; needs no GPU",
    )
    mode.add_argument("--predict", action="store_true", help="winners and models by a static model; needs no GPU")
    mode.add_argument(
        "--report", type=Path, metavar="FILE", help="write what the database knows as one HTML page; needs no GPU"
    )
    return made


def _choices(of: Family) -> dict[str, tuple[str, list[Value]]]:
    """The option and the values of each choice of the family's kernels."""
    found: dict[str, tuple[str, list[Value]]] = {}
    for choice in (choice for kernel in of.kernels for choice in kernel.choices):
        _, values = found.setdefault(choice.name, (choice.option, []))
        values += [value for value in choice.values if value not in values]
    return found


def _shared(of: Family) -> set[str]:
    """The choices of which one value is measured."""
    return {choice.name for kernel in of.kernels for choice in kernel.choices if choice.measured_as is not None}


def _keys(of: Family) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The option and the representatives of each tuning key of the family's kernels."""
    return {key.name: (key.option, key.representatives) for kernel in of.kernels for key in kernel.tuning_keys}


def _several(
    group: argparse._ArgumentGroup,
    option: str,
    choices: Sequence[object],
    kind: type,
    name: str = "",
    default: str = "all",
) -> None:
    group.add_argument(
        f"--{option}",
        dest=name or option,
        nargs="+",
        action="extend",
        type=kind,
        choices=choices,
        metavar=option.upper(),
        help=f"{', '.join(map(str, choices))} (default: {default})",
    )


def family_of(arguments: Sequence[str], default: str) -> Family:
    """The family that ``--family`` names, in this tree or by its folder; ValueError where there is none."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--family", default=default)
    name = first.parse_known_args(arguments)[0].family
    return family(name) if name in FAMILIES else add(name)


def main(arguments: Sequence[str] | None = None, default: str = "flash", prog: str = "tune.py") -> int:
    """The program; returns its exit status: 2 where it cannot begin, 1 where it cannot finish, 130 after Ctrl-C."""
    started = time.monotonic()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        of = family_of(given, default)
        made = parser(of, prog)
    except (ValueError, argparse.ArgumentError) as error:  # of two choices with one option, for instance
        return _fail(str(error), 2)
    options = made.parse_args(given)
    for name in ("time_budget", "jobs", "sample", "top", "price", *tuning(of.name).shape_options):
        value = getattr(options, name)
        if value is not None and value <= 0:
            made.error(f"--{name.replace('_', '-')} must be positive, not {value}")
    if options.since and not options.report:
        made.error("--since is for --report")
    if options.scheduler and options.sample:
        made.error("--sample times on this machine's GPUs: run it there, without --scheduler")
    if options.budget:
        try:
            budget(options.budget, options.price)
        except ValueError as error:
            made.error(str(error))
    if options.over_predicted and not options.take_in:
        made.error("--over-predicted is for --import")
    run = Run(of, made, options)
    try:
        if options.report:
            return _report(run)
        if options.export:
            return _export(run)
        if options.dry_run:
            return _dry_run(run)
        _make_folder(options.database)
        if options.take_in and not _is_sqlite(options.take_in):
            return _import(run)
        if not options.scheduler and not _triton_fits():  # there it is the workers' matter
            return 2
        if options.decide:
            return _decide(run)
        if options.merge:
            return _merge(run)
        if options.take_in:
            return _import_published(run)
        if options.fit:
            return _fit(run)
        if options.carry:
            return _carry(run)
        if options.compile_only:
            return _compile_only(run)
        if options.predict:
            return _predict(run)
        return _tune(run, started)
    except (TuningDatabaseError, TuningError, WorkerError) as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("stopped; the same command goes on from here", 130)


@dataclass(frozen=True)
class Run:
    """One run of the program."""

    family: Family
    parser: argparse.ArgumentParser
    options: argparse.Namespace

    @property
    def kernels(self) -> list[KernelDescription]:
        return [one for one in self.family.kernels if not self.options.kernel or one.name in self.options.kernel]

    @property
    def operators(self) -> list[Operator]:
        """Those that have one of these kernels."""
        return [one for one in self.family.operators if any(kernel in self.kernels for kernel in one.kernels)]

    @property
    def wish(self) -> Wish:
        def asked(name: str) -> Sequence[Value]:
            value = getattr(self.options, name)
            return () if value is None else (value,) if isinstance(value, bool) else value

        return Wish(
            choices={name: asked(name) for name in _choices(self.family)},
            bins={name: asked(name) for name in _keys(self.family)},  # type: ignore[misc]
            sizes={
                name: value
                for name in tuning(self.family.name).shape_options
                if (value := getattr(self.options, name)) is not None
            },
        )

    @property
    def strategy(self) -> str:
        """How candidates are chosen: all of them, unless something is said of a search."""
        searched = self.options.budget or self.options.effort
        return str(self.options.strategy or (DEFAULT if searched else EXHAUSTIVE))

    def arch_without_gpu(self, default: str) -> str:
        if not self.options.arch:
            print(f"no --arch given: taking {default}", file=sys.stderr)
        return self.options.arch or default

    @property
    def spelled(self) -> str:
        """The options that are not the default, without this machine's paths; a campaign of --again has a name."""
        paths = ("database", "family", "again")
        given = {
            name: value
            for name, value in vars(self.options).items()
            if value != self.parser.get_default(name) and name not in paths
        }
        return " ".join([f"family={self.family.name}", *(f"{name}={value}" for name, value in given.items())])


def _make_folder(database: Path) -> None:
    """Of the default database, for the first who writes there; another folder is the caller's to make."""
    if database == DATABASE:
        try:
            database.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TuningDatabaseError(f"{database}: {database.parent} cannot be made: {error.strerror}") from error


def _problems(run: Run, arch: str, multiprocessors: int) -> list[Problem]:
    found = problems(run.kernels, arch, multiprocessors, run.wish)
    if not found:
        run.parser.error(
            f"these options leave no problem on {arch}: its addressings are {', '.join(arch_spec(arch).addressing)},"
            " and the sizes that are given must reach the bins that are asked for"
        )
    return found


def _dry_run(run: Run) -> int:
    arch = run.arch_without_gpu(ARCHS[0].arch)
    candidates, skipped, images = 0, Counter[str](), set[str]()
    found = _problems(run, arch, arch_spec(arch).multiprocessors)
    for problem in found:
        one = space(problem)
        sizes = ", ".join(f"{name} {size}" for name, size in problem.shape)
        print(f"{problem}: {sizes}; {len(one.candidates)} candidates")
        candidates += len(one.candidates)
        images |= {spec.name for spec in one.candidates}
        skipped.update(reason for _, reason in one.skipped)
    for reason, count in skipped.most_common():
        print(f"skipped {count}: {reason}")
    print(f"{len(found)} problems, {candidates} candidates, {len(images)} images, {skipped.total()} skipped")
    return 0


def _compile_only(run: Run) -> int:
    arch = run.arch_without_gpu(ARCHS[0].arch)
    found = _problems(run, arch, arch_spec(arch).multiprocessors)
    specs = {spec.name: spec for problem in found for spec in space(problem).candidates}
    store, failures, done = ImageStore(), [], 0
    for done, (spec, result) in enumerate(compile_images(specs.values(), store, run.options.jobs), 1):
        if isinstance(result, CompileFailure):
            failures.append(f"{spec.functional.kernel.name} {spec.functional} {spec.config}: {result.message}")
        if sys.stderr.isatty() or done * 20 // len(specs) > (done - 1) * 20 // len(specs):
            print(f"images {done}/{len(specs)}", end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    for failure in failures:
        print(f"did not compile: {failure}", file=sys.stderr)
    print(f"{done - len(failures)} images in {store.path}, {len(failures)} candidates did not compile")
    return 1 if len(failures) == len(specs) else 0


def _functionals(run: Run, arch: str) -> list[Functional]:
    return [one for kernel in run.kernels for one in kernel.functionals(arch) if run.wish.has(one)]


def _report(run: Run) -> int:
    """Of all families that share the database."""
    from aotriton.tune.dataset.report import report

    options = run.options
    sharing = [one for one in families() if one.in_tree] if run.family.in_tree else [run.family]
    operators = [operator for one in sharing for operator in one.operators]
    try:
        report(options.database, operators, options.report, options.since)
    except OSError as error:
        return _fail(f"{options.report}: {error.strerror or error}", 1)
    print(f"{options.report} is written: open it in a browser")
    return 0


def _export(run: Run) -> int:
    out = run.options.export
    try:
        written = export(run.options.database, out)
    except OSError as error:
        return _fail(f"{out}: {error.strerror or error}", 1)
    print(f"{out}: {', '.join(f'{rows} rows of {table}' for table, rows in written.items())}")
    return 0


def _import(run: Run) -> int:
    with TuningDatabase(run.options.database) as database:
        taken = take_in(run.options.take_in, database)
    print(f"{taken} timings were new; --decide chooses winners anew with them, --fit fits cost models anew")
    return 0


def _is_sqlite(path: Path) -> bool:
    return path.is_file() and path.open("rb").read(16) == b"SQLite format 3\0"


def _import_published(run: Run) -> int:
    """Of the functionals that were asked for, on all archs."""
    from aotriton.tune.dataset import published

    options = run.options
    archs = [options.arch] if options.arch else [row.arch for row in ARCHS]
    found = published.read(options.take_in, run.family, [one for arch in archs for one in _functionals(run, arch)])
    over = ("predicted",) if options.over_predicted else ()
    with TuningDatabase(options.database) as database:
        written = published.put(database, found, ImageStore(), options.jobs, over)
    for what, counts in (("rows", found.left), ("winners", found.dropped)):
        for reason, count in counts.most_common():
            print(f"left {count} {what}: {reason}")
    print(f"{found.rows} rows can be said in our words: {len(found.winners)} winners, of which {written} were written")
    return 0


def _decide(run: Run) -> int:
    arch = run.arch_without_gpu(ARCHS[0].arch)
    with TuningDatabase(run.options.database) as database:
        compiled = settle(database, _functionals(run, arch), ImageStore(), run.options.jobs)
        winners = sum(len(database.winners(arch, kernel.name)) for kernel in run.kernels)
    print(f"{winners} winners stand, {compiled} images of borrowed ones were compiled")
    return 0


def _merge(run: Run) -> int:
    """Whatever families the other database measured: all of them are decided anew."""
    with TuningDatabase(run.options.database) as database:
        taken = database.merge(run.options.merge)
        measured = {(outcome.arch, outcome.kernel) for outcome in database.outcomes()}
        known = [kernel for one in families() for kernel in one.kernels]
        of_both = [one for kernel in known for arch in kernel.archs if (arch, kernel.name) in measured
                   for one in kernel.functionals(arch)]  # fmt: skip
        compiled = settle(database, of_both, ImageStore(), run.options.jobs) if taken else 0
    print(f"{taken} timings were new, {compiled} images of borrowed winners were compiled; --fit fits cost models anew")
    return 0


def _fit(run: Run) -> int:
    arch = run.arch_without_gpu(ARCHS[0].arch)
    with TuningDatabase(run.options.database) as database:
        _fit_and_compile(run, database, arch)
    return 0


def _fit_and_compile(run: Run, database: TuningDatabase, arch: str) -> None:
    operators = run.family.operators
    compiler = partial(compile_images, checksums=database.checksums())
    compiled, unfit, refused = 0, set[str](), {""}
    while refused:
        errors = fit_models(database, operators, arch, unfit)
        new, refused = compile_shipped(database, operators, arch, compiler, ImageStore(), run.options.jobs)
        compiled += new
        unfit |= refused
    for (operator, product), error in errors.items():
        print(f"{operator} on {product}: predicted times are off by {error:.1%} (median)")
    print(f"{compiled} images that ship for other types or layouts were compiled")
    for name in sorted(unfit):
        print(f"{name} has no model: its products wait for each other, so it cannot ship")


def _carry(run: Run) -> int:
    arch = run.arch_without_gpu(ARCHS[0].arch)
    with TuningDatabase(run.options.database) as database:
        same, other = carry(database, run.family.operators, run.kernels, arch, ImageStore(), run.options.jobs)
    print(f"{same} images of a changed source have the same bits and keep their timings, {other} wait to be measured")
    return 0


def _predict(run: Run) -> int:
    from aotriton.tune.costmodel.predict import predict

    arch = run.arch_without_gpu(STATIC[0])
    with TuningDatabase(run.options.database) as database:
        operators, store = run.family.operators, ImageStore()
        predict(database, run.kernels, _functionals(run, arch), store, run.options.jobs, operators)
        compiler = partial(compile_images, checksums=database.checksums())
        compile_shipped(database, operators, arch, compiler, store, run.options.jobs)
    return 0


def _tune(run: Run, started: float) -> int:
    options = run.options
    gpus = [] if options.scheduler else options.gpus or _gpus_here(run)
    if not options.scheduler and not gpus:
        hip = bool(options.arch) and arch_spec(options.arch).vendor == "hip"
        model = f", --predict has a static model choose for {options.arch}" if hip else ""
        return _fail(f"no GPU here. --dry-run lists the problems, --compile-only fills the image store{model}", 2)
    # Before anything is started: the database's faults are told at once.
    with TuningDatabase(options.database) as database:
        checksums = database.checksums()  # all timings of an image are of one binary
    deadline = started + (options.time_budget or float("inf"))
    progress, store = Progress(deadline), ImageStore()
    if options.sample:
        return _sample(run, gpus, checksums, deadline, progress)
    setting = new_setting(
        options.launcher, COMPILER, store_token(store), PAUSES, () if run.family.in_tree else (run.family.place,)
    )
    # The processes of strategies start while the cluster does.
    with (
        closing(minds_of(FINALISTS if options.finalists else run.strategy)) as minds,
        closing(Cluster(setting, progress.note, options.scheduler, gpus, options.jobs)) as cluster,
    ):
        if cluster.dashboard:
            progress.note(f"Dask shows its work at {cluster.dashboard}")
        device = cluster.first_gpu()
        if options.arch and options.arch != device.arch:
            elsewhere = "--compile-only or --predict" if arch_spec(options.arch).vendor == "hip" else "--compile-only"
            return _fail(
                f"--arch {options.arch}, but the GPU is {device.arch}: here {elsewhere} works for {options.arch}", 2
            )
        many = f"{len(gpus)} x " if gpus else ""
        progress.note(f"{many}{device.name} ({device.arch}, {device.multiprocessors} multiprocessors)")
        only = read_finalists(options.finalists, store) if options.finalists else {}
        found = list(only) or _problems(run, device.arch, device.multiprocessors)
        chosen = FINALISTS if only else run.strategy
        limit = _budget(run, chosen)
        plan = Plan(
            options.database, store, device, options.again, min(deadline, started + (limit.seconds or float("inf"))),
            limit.gpu_seconds or float("inf"), run.spelled, chosen, options.seed, limit.trials, only, began=started,
        )  # fmt: skip
        with TuningDatabase(options.database) as database:
            before = Before.of(database, device.arch, device.name)
        left = None
        try:
            left = tune(plan, found, cluster, progress, minds)
        finally:
            with TuningDatabase(options.database) as database:
                if left is not None and not only:
                    settle(database, [one.functional for one in found], store, options.jobs, cluster.compile_images)
                print("\n".join(summary(database, before, left, _following(run))))
                if options.top:
                    path = options.database.with_suffix(".finalists.zip")
                    count = write_finalists(path, database, found, device.name, store, options.top)
                    print(f"finalists: {count} with their images in {path}; --finalists races them on another machine")
    return 0


def _budget(run: Run, chosen: str) -> Budget:
    """What is given, else the effort's."""
    options = run.options
    if options.budget:
        return budget(options.budget, options.price)
    return Budget(trials=BUDGETS[options.effort or "full"].get(chosen))


def _gpus_here(run: Run) -> list[str]:
    """Those of this machine; a stand-in for the launcher has one, whatever the machine has."""
    return visible_gpus() if run.options.launcher == run.parser.get_default("launcher") else ["0"]


def _sample(run: Run, gpus: Sequence[str], checksums: Mapping[str, str], deadline: float, progress: Progress) -> int:
    options = run.options
    cores = launch_cores(gpus)
    workers = [GpuWorker(options.launcher, gpu, core=core) for gpu, core in zip(gpus, cores, strict=True)]
    try:
        device = workers[0].device()
        leads = [one.lead for one in run.operators]
        asked = {str(one) for lead in leads for one in lead.functionals(device.arch) if run.wish.has(one)}
        sampling = Sampling(
            options.database, ImageStore(), partial(compile_images, checksums=checksums), options.jobs,
            options.sample, options.seed, deadline, run.spelled,
        )  # fmt: skip
        timed = sample(sampling, run.operators, device, workers, progress, asked)
        print(f"{timed} shapes were timed")
        with TuningDatabase(options.database) as database:
            _fit_and_compile(run, database, device.arch)
    finally:
        for worker in workers:
            worker.close()
    return 0


def _following(run: Run) -> str:
    """What to do once all cells are measured."""
    if any(kernel.work is not None for kernel in run.kernels):
        return f"{tuner()} --family {run.family.place} --sample 150 times random shapes, by which a build chooses"
    return "build the library: cmake --workflow --preset default" if in_source_tree() else "the next build has it"


def _triton_fits() -> bool:
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        version = "missing"
    if version == TRITON_VERSION:
        return True
    _fail(f"Triton is {version}; measurements are tied to {TRITON_VERSION}: pip install triton=={TRITON_VERSION}", 2)
    return False


def _fail(message: str, status: int) -> int:
    print(f"tune: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
