"""Images that ship without a certificate, checked on all GPUs: each on a problem of its own functional, and not timed.

A build has images of functionals that are not measured themselves: of the other types, for instance, which are as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from aotriton.codegen.compile import CompiledImage, ImageStore
from aotriton.codegen.shipped_images import shipped_images
from aotriton.rules.database import Decisions, Measurement, TuningDatabase, TuningDatabaseError
from aotriton.rules.image import ImageSpec
from aotriton.rules.judge import judge_of
from aotriton.rules.operators import Operator
from aotriton.tune.coordinator.gpu_threads import work_through
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.rows import shortened
from aotriton.tune.coordinator.session import begin_session
from aotriton.tune.measure.requests import Device, Request, launch_request
from aotriton.tune.problem.candidates import ruled_out
from aotriton.tune.problem.compiler_facts import FACTS, Compile
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Problem, Wish, problems_of
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.gpu_process import GpuProcess, WorkerError

Job = tuple[Problem, list[tuple[ImageSpec, Request]]]


@dataclass(frozen=True)
class Certified:
    """What became of the images, by name: those that are right; what is wrong with others; why one was not checked; and
    those that the tuner has no problem for.
    """

    right: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    without_problem: list[ImageSpec] = field(default_factory=list)


def shipped(database: Decisions, operators: Sequence[Operator], arch: str) -> list[ImageSpec]:
    """The images of a build in default coverage, for all products of the arch. TuningError where it has gaps."""
    try:
        return shipped_images(database, operators, arch)
    except ValueError as error:
        raise TuningError(f"what ships is not known before all is measured that a build needs: {error}") from None


def problem_of(spec: ImageSpec, multiprocessors: int) -> Problem | None:
    """A problem of middle size of the image's functional, of those that no restriction rules the image out in, if there
    is one; None where the tuner has no problem.

    In a small one a loop would have one step only, and a large one takes the reference long.
    """
    functional = spec.functional
    kernel = functional.kernel
    if not kernel.timed and kernel.name not in getattr(tuning(kernel.family), "untimed", ()):
        return None
    choices = zip(kernel.choices, functional.values, strict=True)
    wish = Wish({choice.name: (value,) for choice, value in choices})
    found = sorted(problems_of(functional, multiprocessors, wish), key=lambda one: (prod(one.sizes.values()), one.cell))
    found = [one for one in found if not ruled_out(spec, one.keys)] or found
    return found[len(found) // 2] if found else None


def certify(
    path: Path,
    specs: Iterable[ImageSpec],
    compiler: Compile,
    store: ImageStore,
    jobs: int | None,
    device: Device,
    workers: Sequence[GpuProcess],
    progress: Progress,
    options: str = "",
    deadline: float = float("inf"),
) -> Certified:
    """Checks these images on all workers and records the results in a session. No problem is begun after ``deadline``;
    at the first Ctrl-C each worker ends its problem.
    """
    done = Certified()
    by_problem: dict[Problem, list[ImageSpec]] = {}
    for spec in specs:
        if problem := problem_of(spec, device.multiprocessors):
            by_problem.setdefault(problem, []).append(spec)
        else:
            done.without_problem.append(spec)
    found = _jobs(by_problem, compiler, store, jobs, done)
    if not found:
        return done
    progress.note(f"{len(found)} problems to check images on")

    def work(database: TuningDatabase, worker: GpuProcess, job: Job) -> Iterator[bool]:
        problem, requests = job
        worker.turn_to(problem.named)
        for spec, request in requests:
            try:
                _check(database, session, worker, problem, spec, request, done)
                yield True
            except (WorkerError, TuningDatabaseError) as error:
                # The machine may be to blame, or its compiler made another binary: it is no verdict.
                done.unchecked[spec.name] = str(error)
                progress.note(f"{problem}: {spec.name} was not checked: {error}")
                yield False
        progress.note(f"{len(done.right)} images are right: {problem}")

    with TuningDatabase(path) as database:  # open to the end, so that it packs no session without checks
        session = begin_session(database, device, options, "shipped")
        work_through(found, workers, path, deadline, progress, work)
    checked = {*done.right, *done.wrong, *done.unchecked}
    for spec in (one for of_problem in by_problem.values() for one in of_problem if one.name not in checked):
        done.unchecked[spec.name] = "the run ended before"
    return done


def _jobs(
    by_problem: Mapping[Problem, Sequence[ImageSpec]],
    compiler: Compile,
    store: ImageStore,
    jobs: int | None,
    done: Certified,
) -> list[Job]:
    """The images by their problems, those that share data together."""
    every = {spec.name: spec for of_problem in by_problem.values() for spec in of_problem}
    images = {spec.name: image for spec, image in compiler(every.values(), store, jobs)}
    made: list[Job] = []
    for problem, specs in by_problem.items():
        requests = []
        for spec in specs:
            image = images[spec.name]
            if isinstance(image, CompiledImage):
                requests.append((spec, launch_request(spec, image)))
            else:
                done.unchecked[spec.name] = f"it does not compile: {shortened(image.message)}"
        if requests:
            made.append((problem, requests))
    return sorted(made, key=lambda job: str(tuning(job[0].kernel.family).data_key(job[0])))


def _check(
    database: TuningDatabase,
    session: int,
    worker: GpuProcess,
    problem: Problem,
    spec: ImageSpec,
    request: Request,
    done: Certified,
) -> None:
    """Checks an image and records the result."""
    result = worker.check(request)
    check, functional, evidence = result.check, problem.functional, database.evidence
    facts = {fact: request.metadata.get(fact) for fact in FACTS}
    evidence.record(
        Measurement(
            evidence.problem_id(functional.arch, problem.kernel.name, str(functional), problem.bin, problem.sizes),
            evidence.image_id(spec.name, spec.config, **facts),
            session,
            "sweep",
            result.status,
            error=check.error,
            tolerance=check.tolerance,
            detail=check.wrong and shortened(check.wrong),
            judge=judge_of(problem.kernel),
            checks=result.checks,
        )
    )
    if check.wrong:
        done.wrong[spec.name] = check.wrong
    else:
        done.right.append(spec.name)
