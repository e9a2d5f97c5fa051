"""Cost models: random shapes timed on this machine's GPUs, models fitted to timings, or to a static model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean

from aotriton.codegen.compile import ImageStore, compile_images
from aotriton.rules.arch import ARCHS, STATIC
from aotriton.rules.commands import tuner
from aotriton.rules.database import Model, TuningDatabase
from aotriton.rules.kernel import Functional
from aotriton.rules.operators import Operator
from aotriton.tune.cli.gpus import gpu_processes
from aotriton.tune.cli.invocation import Invocation, make_folder, require_scipy, require_triton
from aotriton.tune.coordinator.certify import shipped
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.sample import Sampling, sample
from aotriton.tune.costmodel.judged import JudgedCell, judged_cells
from aotriton.tune.costmodel.shipped import compile_shipped, fit_models
from aotriton.tune.problem.problems import Wish


def sample_shapes(call: Invocation) -> int:
    options = call.options
    make_folder(options.database)
    require_triton()
    if not options.no_fit:
        require_scipy()
    own_shapes = {one.name for operator in call.operators for one in operator.backends if one.own_shapes}
    if others := sorted(set(options.backend or ()) - own_shapes):
        call.parser.error(
            f"--backend {others[0]}: only backends that serve shapes of their own are timed without the others:"
            f" {', '.join(sorted(own_shapes)) or 'none here'}"
        )
    with TuningDatabase(options.database) as database:  # one that cannot be used ends the command before workers start
        checksums = database.evidence.checksums()  # all timings of an image are of one binary
    deadline = call.began + (options.time_budget or float("inf"))
    progress = Progress(deadline)
    with gpu_processes(call, progress) as (device, workers):
        asked = {str(one) for operator in call.operators for one in _asked(operator, device.arch, call.wish)}
        images = None
        if options.shipped:
            with TuningDatabase(options.database, readonly=True) as database:
                images = {one.name for one in shipped(database, call.family.operators, device.arch)}
        sampling = Sampling(
            options.database, ImageStore(), partial(compile_images, checksums=checksums), options.jobs,
            options.sample, options.seed, deadline, call.spelled, images, options.backend or (),
        )  # fmt: skip
        timed = sample(sampling, call.operators, device, workers, progress, asked)
    print(f"{timed} shapes were timed")
    if options.no_fit:
        print(f"next: {tuner()} --family {call.family.place} --arch {device.arch} --fit fits models, and needs no GPU")
        return 0
    with TuningDatabase(options.database) as database:
        fit_and_compile(database, call.family.operators, device.arch, options.jobs)
    return 0


def _asked(operator: Operator, arch: str, wish: Wish) -> Iterator[Functional]:
    """The functionals of the leads that were asked for: of a choice of levels that one lacks it has the default."""
    for lead in operator.leads:
        others = {one.level_choice for one in operator.leads} - {lead.level_choice}
        defaults = {choice.name: choice.default for one in operator.leads for choice in one.choices}
        if all(defaults[name] in wish.choices[name] for name in others if wish.choices.get(name)):
            own = (one for one in lead.functionals(arch) if lead is operator.lead or one.level)
            yield from (one for one in own if wish.has(one))


def fit(call: Invocation) -> int:
    from aotriton.tune.costmodel.predict import refit

    make_folder(call.options.database)
    require_triton()
    require_scipy()
    arch = call.arch_without_gpu(ARCHS[0].arch)
    with TuningDatabase(call.options.database) as database:
        fit_and_compile(database, call.family.operators, arch, call.options.jobs)
        if arch in STATIC:
            for name, count in refit(database, call.family.operators, arch, ImageStore(), call.options.jobs).items():
                print(f"{name}: {count} models fitted to the static model")
    return 0


def predict_all(call: Invocation) -> int:
    from aotriton.tune.costmodel.predict import predict

    make_folder(call.options.database)
    require_triton()
    require_scipy()
    arch = call.arch_without_gpu(STATIC[0])
    with TuningDatabase(call.options.database) as database:
        operators, store = call.family.operators, ImageStore()
        predict(database, call.kernels, call.functionals(arch), store, call.options.jobs, operators)
        if arch in STATIC:  # of others no models were made
            compiler = partial(compile_images, checksums=database.evidence.checksums())
            compile_shipped(database, operators, arch, compiler, store, call.options.jobs)
    return 0


def fit_and_compile(database: TuningDatabase, operators: Sequence[Operator], arch: str, jobs: int | None) -> None:
    """Fits the models of these operators anew, compiles what ships by them, and tells how well they predict, and how
    well they choose beside the models before.
    """
    before = database.models(arch)
    compiler = partial(compile_images, checksums=database.evidence.checksums())
    modelled = _modelled(database, arch)
    compiled, unfit, refused = 0, set[str](), {""}
    while refused:
        errors = fit_models(database, operators, arch, unfit)
        new, refused = compile_shipped(database, operators, arch, compiler, ImageStore(), jobs)
        compiled += new
        unfit |= refused
    fitted = database.models(arch)
    now = _judged(database, operators, arch, fitted, before)
    had_before = _judged(database, operators, arch, before, fitted)
    for (operator, product), error in errors.items():
        print(f"{operator} on {product}: predicted times are off by {error:.1%} (median)")
        if cells := now[operator, product]:
            worst = max(cells, key=lambda cell: cell.regret)
            had = f" ({_regret(earlier):.1%} before)" if (earlier := had_before[operator, product]) else ""
            print(
                f"  their choice takes {_regret(cells):.1%}{had} longer than the best image in {len(cells)} measured"
                f" cells, at worst {worst.regret:.1%}: {worst}"
            )
    print(f"{compiled} images that ship for other types or layouts were compiled")
    for name in sorted(unfit):
        print(f"{name} has no model: its products wait for each other, so it cannot ship")
    for product, kernel in sorted(modelled - _modelled(database, arch)):
        print(
            f"{kernel} on {product} has no models any more: no image that was timed is of today's source;"
            f" --carry --arch {arch} --kernel {kernel}, then --fit, brings back those that kept their bits"
        )


def _judged(
    database: TuningDatabase,
    operators: Sequence[Operator],
    arch: str,
    models: Sequence[Model],
    others: Sequence[Model],
) -> dict[tuple[str, str], list[JudgedCell]]:
    """The cells that these models choose in, beside images that ship by others, by operator and product."""
    return {
        (operator.name, one.name): judged_cells(database, operator, arch, one.name, one.multiprocessors, models, others)
        for operator in operators
        for one in database.products(arch)
    }


def _regret(cells: Sequence[JudgedCell]) -> float:
    return fmean(cell.regret for cell in cells)


def _modelled(database: TuningDatabase, arch: str) -> set[tuple[str, str]]:
    """The products and kernels that have models."""
    return {(one.product, one.kernel) for one in database.models(arch)}
