"""Tunes the attention kernels: from options to measurements and winners in the tuning database.

Run it as ``python tune/tune_flash.py``, or as ``aotriton-tune-flash`` where the package is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse
import importlib.metadata
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from aotriton.codegen.compile import CompileFailure, ImageStore, compile_images
from aotriton.rules import flash
from aotriton.rules.binning import MAX_SEQLEN_K, MAX_SEQLEN_Q, WAVES
from aotriton.rules.database import TuningDatabase, TuningDatabaseError
from aotriton.rules.image import TRITON_VERSION
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.target import TARGETS, target
from aotriton.tune.decide import siblings
from aotriton.tune.launcher import visible_gpus
from aotriton.tune.problems import Problem, Wish, problems
from aotriton.tune.progress import Progress
from aotriton.tune.session import Plan, TuningError, decide_family, tune
from aotriton.tune.space import space
from aotriton.tune.worker import GpuWorker, WorkerError

ROOT = Path(__file__).resolve().parent.parent
IN_TREE = (ROOT / "CMakeLists.txt").exists()
DATABASE = ROOT / "rules" / "tuning_database.sqlite3" if IN_TREE else Path("tuning_database.sqlite3")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="tune_flash.py", description="Tunes the attention kernels on this machine's GPUs."
    )
    made.add_argument("--database", type=Path, default=DATABASE, help="the tuning database (default: %(default)s)")
    made.add_argument("--again", action="store_true", help="measure anew what the database holds already")
    made.add_argument("--time-budget", type=float, metavar="SECONDS", help="begin no further problem after this time")
    made.add_argument("--jobs", type=int, help="compiler processes (default: one a core)")
    made.add_argument("--gpus", nargs="+", metavar="GPU", help="indices of the GPUs to use (default: all visible)")
    made.add_argument(
        "--launcher",
        default="aotriton.tune.launcher:GpuLauncher",
        metavar="MODULE:CLASS",
        help="what launches candidates in the child processes; tests put a stand-in or a faulty one here",
    )

    what = made.add_argument_group("what to tune", "each takes several values, and leaves all others out")
    what.add_argument("--arch", choices=[row.arch for row in TARGETS], help="default: the GPU's")
    _several(what, "--kernel", [kernel.name for kernel in flash.KERNELS])
    _several(what, "--dtype", flash.T.values, "bf16, from which fp16 borrows")
    _several(what, "--head-dim", flash.HEAD_DIM.values, kind=int)
    what.add_argument("--causal", action=argparse.BooleanOptionalAction, help="default: both")
    _several(what, "--addressing", flash.ACCESS.values, "the arch's fast one, and general in one bin")
    _several(
        what, "--seqlen-q", MAX_SEQLEN_Q.representatives, "the bins with seqlen_q == seqlen_k, and a few more", int
    )
    _several(what, "--seqlen-k", MAX_SEQLEN_K.representatives, "as --seqlen-q", int)
    _several(what, "--waves", WAVES.representatives, "all", int)
    what.add_argument(
        "--batch", type=int, help="batch of the shape that is measured (default: what fills the bin's waves)"
    )
    what.add_argument("--heads", type=int, help="heads of the shape that is measured (default: likewise)")

    mode = made.add_argument_group("instead of tuning").add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="list the problems and count the candidates; needs no GPU")
    mode.add_argument("--compile-only", action="store_true", help="fill the image store; needs no GPU")
    mode.add_argument("--decide", action="store_true", help="choose winners anew from what is measured; needs no GPU")
    mode.add_argument("--predict", action="store_true", help="choose winners by the static model; needs no GPU")
    return made


def _several(
    group: argparse._ArgumentGroup, name: str, choices: Sequence[object], default: str = "all", kind: type = str
) -> None:
    group.add_argument(
        name,
        nargs="+",
        action="extend",
        type=kind,
        choices=choices,
        metavar=name.removeprefix("--").upper(),
        help=f"{', '.join(map(str, choices))} (default: {default})",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit status: 2 where it cannot begin, 1 where it cannot go on, 130 after Ctrl-C."""
    started = time.monotonic()
    made = parser()
    options = made.parse_args(arguments)
    for name in ("time_budget", "jobs", "batch", "heads"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            made.error(f"--{name.replace('_', '-')} must be positive, not {value}")
    try:
        if options.dry_run:
            return _dry_run(options)
        if options.decide:
            return _decide(options)
        if not _triton_fits():
            return 2
        if options.compile_only:
            return _compile_only(options)
        if options.predict:
            return _predict(options)
        return _tune(options, started)
    except (TuningDatabaseError, TuningError, WorkerError) as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("stopped; the same command goes on from here", 130)


def _kernels(options: argparse.Namespace) -> list[KernelDescription]:
    return [kernel for kernel in flash.KERNELS if not options.kernel or kernel.name in options.kernel]


def _wish(options: argparse.Namespace) -> Wish:
    return Wish(
        choices={
            "T": options.dtype or (),
            "BLOCK_DMODEL": options.head_dim or (),
            "CAUSAL": () if options.causal is None else (options.causal,),
            "ADDRESSING": options.addressing or (),
        },
        bins={
            "max_seqlen_q": options.seqlen_q or (),
            "max_seqlen_k": options.seqlen_k or (),
            "waves": options.waves or (),
        },
        batch=options.batch,
        heads=options.heads,
    )


def _problems(options: argparse.Namespace, arch: str, multiprocessors: int) -> list[Problem]:
    found = problems(_kernels(options), arch, multiprocessors, _wish(options))
    if not found:
        parser().error(
            f"these options leave no problem on {arch}: causal needs equal seqlens, an addressing must be the arch's"
            f" own ({', '.join(target(arch).addressing)}), and --batch and --heads must reach the bin's waves"
        )
    return found


def _arch_without_gpu(options: argparse.Namespace, default: str) -> str:
    if not options.arch:
        print(f"no --arch given: taking {default}", file=sys.stderr)
    return options.arch or default


def _dry_run(options: argparse.Namespace) -> int:
    arch = _arch_without_gpu(options, TARGETS[0].arch)
    candidates, skipped, images = 0, Counter[str](), set[str]()
    found = _problems(options, arch, target(arch).multiprocessors)
    for problem in found:
        one, shape = space(problem), problem.shape
        print(f"{problem}: batch {shape.batch}, heads {shape.heads}, {len(one.candidates)} candidates")
        candidates += len(one.candidates)
        images |= {spec.name for spec in one.candidates}
        skipped.update(reason for _, reason in one.skipped)
    for reason, count in skipped.most_common():
        print(f"skipped {count}: {reason}")
    print(f"{len(found)} problems, {candidates} candidates, {len(images)} images, {skipped.total()} skipped")
    return 0


def _compile_only(options: argparse.Namespace) -> int:
    arch = _arch_without_gpu(options, TARGETS[0].arch)
    found = _problems(options, arch, target(arch).multiprocessors)
    specs = {spec.name: spec for problem in found for spec in space(problem).candidates}
    store, failures, done = ImageStore(), [], 0
    for done, (spec, result) in enumerate(compile_images(specs.values(), store, options.jobs), 1):
        if isinstance(result, CompileFailure):
            failures.append(f"{spec.functional.kernel.name} {spec.functional} {spec.config}: {result.message}")
        if sys.stderr.isatty() or done * 20 // len(specs) > (done - 1) * 20 // len(specs):
            print(f"images {done}/{len(specs)}", end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    for failure in failures:
        print(f"did not compile: {failure}", file=sys.stderr)
    print(f"{done - len(failures)} images in {store.path}, {len(failures)} candidates did not compile")
    return 1 if len(failures) == len(specs) else 0


def _functionals(options: argparse.Namespace, arch: str) -> list[Functional]:
    wish = _wish(options)
    return [
        functional
        for kernel in _kernels(options)
        for functional in kernel.functionals(arch)
        if all(functional.get(name, values[0]) in values for name, values in wish.choices.items() if values)
    ]


def _decide(options: argparse.Namespace) -> int:
    arch = _arch_without_gpu(options, TARGETS[0].arch)
    families = {f"{one.kernel.name} {siblings(one)[0]}": one for one in _functionals(options, arch)}
    with TuningDatabase(options.database) as database:
        winners = [winner for functional in families.values() for winner in decide_family(database, functional)]
    print(f"{len(winners)} winners decided")
    return 0


def _predict(options: argparse.Namespace) -> int:
    from aotriton.tune.predict import predict

    arch = _arch_without_gpu(options, TARGETS[-1].arch)
    with TuningDatabase(options.database) as database:
        predict(database, _kernels(options), _functionals(options, arch), ImageStore(), options.jobs)
    return 0


def _tune(options: argparse.Namespace, started: float) -> int:
    gpus = options.gpus or (visible_gpus() if options.launcher == parser().get_default("launcher") else ["0"])
    if not gpus:
        return _fail("no GPU here. --dry-run lists the problems, --compile-only fills the image store", 2)
    # Before anything is started: the database's faults are told at once.
    with TuningDatabase(options.database) as database:
        checksums = database.checksums()  # all timings of an image are of one binary
    deadline = started + (options.time_budget or float("inf"))
    progress = Progress(deadline)
    workers = [GpuWorker(options.launcher, gpu) for gpu in gpus]
    try:
        device = workers[0].device()
        if options.arch and options.arch != device.arch:
            return _fail(
                f"--arch {options.arch}, but the GPU is {device.arch}; other archs: --compile-only, --predict", 2
            )
        progress.note(f"{len(gpus)} x {device.name} ({device.arch}, {device.multiprocessors} multiprocessors)")
        plan = Plan(
            database=options.database,
            compile_images=partial(compile_images, checksums=checksums),
            store=ImageStore(),
            launcher=options.launcher,
            jobs=options.jobs,
            again=options.again,
            deadline=deadline,
            options=_spelled(options),
        )
        tune(plan, _problems(options, device.arch, device.multiprocessors), workers, progress)
    finally:
        for worker in workers:
            worker.close()
    return 0


def _spelled(options: argparse.Namespace) -> str:
    """The options that are not the default, without this machine's paths."""
    made = parser()
    given = {
        name: value for name, value in vars(options).items() if value != made.get_default(name) and name != "database"
    }
    return " ".join(f"{name}={value}" for name, value in given.items())


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
    print(f"tune_flash.py: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
