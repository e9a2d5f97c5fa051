"""Random shapes: timings of whole launch sequences, of the candidates that did best in their cells, on all GPUs.

What is timed is what a call costs: all launches of a backend, the backends of an operator side by side. The cost models
are fitted to it (``fit.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from aotriton.codegen.compile import CompiledImage, ImageStore
from aotriton.rules.database import TuningDatabase
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.rules.operators import Operator
from aotriton.tune.coordinator.gpu_threads import work_through
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.session import begin_session
from aotriton.tune.costmodel.shortlist import Found, sampled, sequences, shortlist
from aotriton.tune.measure.requests import Device, Draw, LaunchSequence, launch_request
from aotriton.tune.problem.compiler_facts import Compile
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Shape
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.gpu_process import GpuProcess, WorkerError

CHUNK = 10  # shapes of a functional in a row: its images stay loaded

Chunk = list[tuple[Operator, Draw]]


@dataclass(frozen=True)
class Sampling:
    """What to time: ``count`` shapes of each functional, drawn with ``seed``; of the images only these ``images``, by
    name, and of the backends only these, where they are given. No chunk is begun after ``deadline``.
    """

    database: Path
    store: ImageStore
    compile_images: Compile
    jobs: int | None
    count: int
    seed: int
    deadline: float = float("inf")
    options: str = ""
    images: Collection[str] | None = None
    backends: Collection[str] = ()


def sample(
    plan: Sampling,
    operators: Sequence[Operator],
    device: Device,
    workers: Sequence[GpuProcess],
    progress: Progress,
    wished: Collection[str] = (),
) -> int:
    """Times shapes on all workers, and returns how many. TuningError where nothing is measured that could be timed.

    At the first Ctrl-C each worker ends its chunk.
    """
    done: list[int] = []
    told: set[str] = set()  # processes

    def work(database: TuningDatabase, worker: GpuProcess, chunk: Chunk) -> Iterator[bool]:
        for operator, draw in chunk:
            try:
                taken = worker.sequences(draw)
            except WorkerError as error:
                # What fails here was right before: it may be the shape's fault, and is not a verdict.
                progress.note(f"{operator.name} {draw.functional} {dict(draw.shape)}: not timed: {error}")
                yield False
                continue
            if taken.conditions.others:
                who = ", ".join(taken.conditions.others)
                progress.note(f"{draw.functional} {dict(draw.shape)}: left out: another process is on the GPU: {who}")
                yield False
                continue
            if taken.conditions.silent and not told:
                told.update(taken.conditions.silent)
                progress.note(f"another process is on the GPU, and may compute: {', '.join(taken.conditions.silent)}")
            database.evidence.add_sample(
                session, operator.name, str(draw.functional), dict(draw.shape), taken.timings,
                taken.conditions.sm_clock, taken.conditions.temperature,
            )  # fmt: skip
            done.append(1)
            yield True
        progress.note(f"{len(done)} shapes timed: {chunk[0][0].name} {chunk[0][1].functional}")

    with TuningDatabase(plan.database) as database:  # open to the end, so that it packs no session without samples
        tasks = _tasks(plan, operators, device, database, wished)
        progress.note(f"{sum(map(len, tasks))} shapes to be timed")
        if tasks:
            session = begin_session(database, device, plan.options, "random", plan.seed)
            work_through(tasks, workers, plan.database, plan.deadline, progress, work)
    return len(done)


def _tasks(
    plan: Sampling,
    operators: Sequence[Operator],
    device: Device,
    database: TuningDatabase,
    wished: Collection[str],
) -> list[Chunk]:
    """Chunks of draws, of all functionals in turns, so that a run that is cut short has some of each."""
    to_time: list[tuple[Operator, Functional, dict[Shape, list[Found]]]] = []
    known: dict[tuple[str, str, str], set[tuple[str, ...]]] = {}  # images of sequences that were timed on a shape
    for operator in operators:
        for one in database.evidence.samples(device.arch, operator.name):
            if one.product == device.name:
                of_shape = known.setdefault((operator.name, one.functional, _text(one.shape)), set())
                of_shape.update(timing.images for timing in one.timings)
    timed = {image for of_shape in known.values() for of_sequence in of_shape for image in of_sequence}
    for operator in operators:
        by_kernel = {kernel.name: database.evidence.outcomes(device.arch, kernel.name) for kernel in operator.kernels}
        saves = {one.image: one.saves for one in database.models(device.arch) if one.product == device.name}
        unfit = {name for name, spills in database.evidence.spills().items() if spills}
        for functional in sampled(operator, device.arch, wished):
            lists: dict[tuple[str, str], list[ImageSpec]] = {}
            found: dict[Shape, list[Found]] = {}
            for shape in _shapes(functional, plan.seed, plan.count):
                for kernel in operator.kernels:
                    own = kernel.like(functional, dict(shape))
                    if own and (kernel.name, str(own)) not in lists:
                        listed = shortlist(own, by_kernel[kernel.name], saves, timed)
                        lists[kernel.name, str(own)] = [
                            one for one in listed if _times(plan, one) and one.name not in unfit
                        ]
                to_choose = sequences(operator, functional, dict(shape), lists, device.multiprocessors)
                found[shape] = [one for one in to_choose if not plan.backends or one[0] in plan.backends]
            if any(found.values()):
                to_time.append((operator, functional, found))
    if not to_time:
        raise TuningError("no candidate is measured yet that could be timed on random shapes: tune first")
    every = (one for _, _, found in to_time for to_choose in found.values() for one in to_choose)
    specs = {spec.name: spec for _, images in every for spec in images}
    images = {spec.name: image for spec, image in plan.compile_images(specs.values(), plan.store, plan.jobs)}
    chunks: list[tuple[int, Chunk]] = []
    for operator, functional, found in to_time:
        # A backend may be left out on a shape, but never the first; none where other levels than the lead's are needed,
        # or where the first has no image that is worth timing. An image that was timed on no shape at all is not left
        # out, either: its source may have changed since the shapes were timed.
        lead = functional.kernel is operator.lead
        always = plan.backends or {one.name for one in (operator.backends[:1] if lead else operator.backends)}
        draws = []
        for shape, to_choose in found.items():
            usable = tuple(_sequences(to_choose, images))
            backend_of = {tuple(request.name for request in one.requests): one.backend for one in usable}
            needed = {one for one, by in backend_of.items() if by in always or not timed.issuperset(one)}
            if not (needed or {*backend_of}) <= known.get((operator.name, str(functional), _text(dict(shape))), set()):
                draws.append((operator, Draw(functional, shape, usable)))
        chunks += [(begin, draws[begin : begin + CHUNK]) for begin in range(0, len(draws), CHUNK)]
    return [draws for _, draws in sorted(chunks, key=lambda chunk: chunk[0])]


def _times(plan: Sampling, spec: ImageSpec) -> bool:
    return plan.images is None or spec.name in plan.images


def _text(shape: Mapping[str, object]) -> str:
    return str(sorted(shape.items()))


def _shapes(functional: Functional, seed: int, count: int) -> Iterator[Shape]:
    random = Random(f"{seed} {functional.kernel.name} {functional}")
    own = tuning(functional.kernel.family)
    yield from dict.fromkeys(own.draw(functional, random) for _ in range(count))


def _sequences(found: Iterable[Found], images: Mapping[str, object]) -> Iterator[LaunchSequence]:
    for backend, specs in found:
        compiled = [(spec, images[spec.name]) for spec in specs]
        requests = [launch_request(spec, image) for spec, image in compiled if isinstance(image, CompiledImage)]
        if len(requests) == len(specs):
            yield LaunchSequence(backend, tuple(requests))
