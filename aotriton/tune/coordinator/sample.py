"""Random shapes: from the candidates that did best in their cells to timings of whole launch sequences, on all GPUs.

What is timed is what a call costs: all launches of a backend, the backends of an operator side by side. The cost models
are fitted on it (``fit.py``).
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from aotriton.codegen.compile import CompiledImage, ImageStore
from aotriton.rules.database import TuningDatabase
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.rules.operators import Operator, kernels_of
from aotriton.rules.rows import Outcome, latest_medians
from aotriton.rules.work import WORTH_SHIPPING
from aotriton.tune.coordinator.interrupt import Interrupt
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.session import begin_session
from aotriton.tune.costmodel.fit import fit
from aotriton.tune.measure.sequences import Draw, LaunchSequence
from aotriton.tune.problem.compiled import FACTS, launch_request
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Shape, is_served
from aotriton.tune.winners.decide import spec_of
from aotriton.tune.workers.gpu_worker import Device, GpuWorker, WorkerError
from aotriton.tune.workers.incident import TuningError
from aotriton.tune.workers.recompile import Compile

WITHIN = 1.02  # of a cell's best: candidates that may be the best ones of shapes nearby
WORTH_TIMING = 1e-4  # saved by an image: a tenth of what it takes to ship
MOST_IMAGES = 12  # of a kernel in a functional
CHUNK = 10  # shapes of a functional in a row: its images stay loaded
FAILURES = 3  # in a row, after which a GPU is not asked again


@dataclass(frozen=True)
class Sampling:
    """What to time: ``count`` shapes of each functional, drawn with ``seed``. No chunk is begun after ``deadline``."""

    database: Path
    store: ImageStore
    compile_images: Compile
    jobs: int | None
    count: int
    seed: int
    deadline: float = float("inf")
    options: str = ""


def shortlist(functional: Functional, outcomes: Iterable[Outcome], saves: Mapping[str, float]) -> list[ImageSpec]:
    """The images that are within WITHIN of the best one in most cells of the functional; each product counts alike.

    ``outcomes`` are of its kernel. Every cell's own best comes before those that are merely near it somewhere. Where
    images are known to save something on random shapes, ``saves`` has how much: what saves nothing is left out, and of
    what was never timed there only cells' own best are added.
    """
    best, near = Counter[str](), Counter[str]()
    mine = [one for one in outcomes if one.functional == str(functional)]
    for product in sorted({one.product for one in mine}):
        for medians in latest_medians(one for one in mine if one.product == product).values():
            current = [one for one in medians if (spec := spec_of(functional, one.config)) and spec.name == one.image]
            if not current:
                continue
            best[current[0].config] += 1
            least = current[0].median_us or 0.0
            near.update(one.config for one in current if (one.median_us or 0.0) <= WITHIN * least)
    order = sorted(near, key=lambda config: (not best[config], -best[config], -near[config], config))
    specs = [ImageSpec.parse(functional, config) for config in order]
    if any(spec.name in saves for spec in specs):
        known = [spec for spec in specs if saves.get(spec.name, 0.0) >= WORTH_TIMING]
        new = [spec for spec in specs if spec.name not in saves and best[spec.config]]
        specs = sorted(known, key=lambda spec: -saves[spec.name]) + new
    return specs[:MOST_IMAGES]


Found = tuple[str, tuple[ImageSpec, ...]]  # a backend with an image for each of its kernels


def sequences(
    operator: Operator,
    functional: Functional,
    sizes: Mapping[str, int],
    lists: Mapping[tuple[str, str], Sequence[ImageSpec]],
    multiprocessors: int,
) -> list[Found]:
    """Backends with images for a call of the lead's functional, so that each image of ``lists`` that serves it is in
    one at least: where kernels follow each other, one of them varies while the others have their first. A backend with
    a kernel that has none, or refuses the call, is left out.
    """
    found = []
    for backend in operator.backends:
        own = [kernel.like(functional, sizes) for kernel in backend.kernels]
        candidates = [lists.get((one.kernel.name, str(one)), ()) if one else () for one in own]
        if not all(candidates) or not all(is_served(one, sizes, multiprocessors) for one in own if one):
            continue
        first = tuple(specs[0] for specs in candidates)
        found.append((backend.name, first))
        for place, specs in enumerate(candidates):
            found += [(backend.name, (*first[:place], spec, *first[place + 1 :])) for spec in specs[1:]]
    return found


def sampled(operator: Operator, arch: str, wished: Collection[str] = ()) -> list[Functional]:
    """The functionals of the lead that are timed: those that are measured at all, as tensors usually lie."""
    lead = operator.lead
    return [
        one
        for one in lead.functionals(arch)
        if (not wished or str(one) in wished) and one.addressing != "general"
        and all(choice.measured_as in (None, value) for choice, value in zip(lead.choices, one.values, strict=True))
    ]  # fmt: skip


def sample(
    plan: Sampling,
    operators: Sequence[Operator],
    device: Device,
    workers: Sequence[GpuWorker],
    progress: Progress,
    wished: Collection[str] = (),
) -> int:
    """Times shapes on all workers; returns how many. TuningError where nothing is measured that could be timed.

    At the first Ctrl-C each worker ends its chunk.
    """
    with TuningDatabase(plan.database) as database:
        tasks = _tasks(plan, operators, device, database, wished)
        session = begin_session(database, device, plan.options, "random", plan.seed) if tasks else 0
    waiting: queue.SimpleQueue[list[tuple[Operator, Draw]]] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    done: list[int] = []
    threads = [
        threading.Thread(target=_work, args=(plan, session, worker, waiting, progress, done), daemon=True)
        for worker in workers
    ]
    progress.note(f"{sum(map(len, tasks))} shapes to be timed")
    with Interrupt(lambda: _drain(waiting)):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return len(done)


def _drain(waiting: queue.SimpleQueue[Any]) -> None:
    with suppress(queue.Empty):
        while True:
            waiting.get_nowait()


def _tasks(
    plan: Sampling,
    operators: Sequence[Operator],
    device: Device,
    database: TuningDatabase,
    wished: Collection[str],
) -> list[list[tuple[Operator, Draw]]]:
    """Chunks of draws, of all functionals in turns, so that a run that is cut short has some of each."""
    wanted: list[tuple[Operator, Functional, dict[Shape, list[Found]]]] = []
    for operator in operators:
        by_kernel = {kernel.name: database.outcomes(device.arch, kernel.name) for kernel in operator.kernels}
        saves = {one.image: one.saves for one in database.models(device.arch) if one.product == device.name}
        unfit = {name for name, spills in database.spills().items() if spills}
        for functional in sampled(operator, device.arch, wished):
            lists: dict[tuple[str, str], list[ImageSpec]] = {}
            found: dict[Shape, list[Found]] = {}
            for shape in _shapes(functional, plan.seed, plan.count):
                for kernel in operator.kernels:
                    own = kernel.like(functional, dict(shape))
                    if own and (kernel.name, str(own)) not in lists:
                        listed = [one for one in shortlist(own, by_kernel[kernel.name], saves) if one.name not in unfit]
                        lists[kernel.name, str(own)] = listed
                found[shape] = sequences(operator, functional, dict(shape), lists, device.multiprocessors)
            if any(found.values()):
                wanted.append((operator, functional, found))
    if not wanted:
        raise TuningError("no candidate is measured yet that could be timed on random shapes: tune first")
    every = (one for _, _, found in wanted for of_shape in found.values() for one in of_shape)
    specs = {spec.name: spec for _, images in every for spec in images}
    images = {spec.name: image for spec, image in plan.compile_images(specs.values(), plan.store, plan.jobs)}
    known: dict[tuple[str, str, str], set[tuple[str, ...]]] = {}
    for operator in operators:
        for one in database.samples(device.arch, operator.name):
            if one.product == device.name:
                timed = known.setdefault((operator.name, one.functional, _text(one.shape)), set())
                timed.update(timing.images for timing in one.timings)
    chunks: list[tuple[int, list[tuple[Operator, Draw]]]] = []
    for operator, functional, found in wanted:
        # A backend may be left out on a shape, but never the first.
        first = operator.backends[0].name
        draws = []
        for shape, of_shape in found.items():
            usable = tuple(_sequences(of_shape, images))
            needed = {tuple(request.name for request in one.requests) for one in usable if one.backend == first}
            if not needed <= known.get((operator.name, str(functional), _text(dict(shape))), set()):
                draws.append((operator, Draw(functional, shape, usable)))
        chunks += [(begin, draws[begin : begin + CHUNK]) for begin in range(0, len(draws), CHUNK)]
    return [draws for _, draws in sorted(chunks, key=lambda chunk: chunk[0])]


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


def _work(
    plan: Sampling,
    session: int,
    worker: GpuWorker,
    waiting: queue.SimpleQueue[list[tuple[Operator, Draw]]],
    progress: Progress,
    done: list[int],
) -> None:
    failures = 0
    with TuningDatabase(plan.database) as database:
        while failures < FAILURES and monotonic() < plan.deadline:
            try:
                chunk = waiting.get_nowait()
            except queue.Empty:
                break
            for operator, draw in chunk:
                what = f"{operator.name} {draw.functional} {dict(draw.shape)}"
                try:
                    taken = worker.sequences(draw)
                except WorkerError as error:
                    # What fails here was right before: it may be the shape's fault, and is not a verdict.
                    progress.note(f"{what}: not timed: {error}")
                    failures += 1
                    if failures == FAILURES:
                        progress.note(f"GPU {worker.gpu} stops after {FAILURES} failures in a row")
                        break
                    continue
                failures = 0
                database.add_sample(
                    session, operator.name, str(draw.functional), dict(draw.shape), taken.timings,
                    taken.conditions.sm_clock, taken.conditions.temperature,
                )  # fmt: skip
                done.append(1)
            progress.note(f"{len(done)} shapes timed: {chunk[0][0].name} {chunk[0][1].functional}")


def compile_shipped(
    database: TuningDatabase,
    operators: Sequence[Operator],
    arch: str,
    compile_images: Compile,
    store: ImageStore,
    jobs: int | None,
) -> tuple[int, set[str]]:
    """Compiles what ships by its model. In functionals that are not measured themselves it may spill, or be serialised:
    the database is told of those that are not serialised, and what it does not know does not ship.

    Returns how many images were new to it, and the measured ones that cannot ship, since they or what the database
    knows beside them is serialised: nobody had looked. One that does not compile is left to the build to report.
    """
    configs = {name: config for name, (config, _, _) in database.facts().items()}
    worth: dict[tuple[str, str], list[str]] = {}
    for model in database.models(arch):
        if model.saves >= WORTH_SHIPPING and model.image in configs:
            worth.setdefault((model.kernel, model.functional), []).append(configs[model.image])
    specs = {}
    for kernel in kernels_of(operators):
        for functional in kernel.functionals(arch):
            for config in worth.get((kernel.name, str(functional.measured)), ()):
                if spec := spec_of(functional, config):
                    specs[spec.name] = spec
    new, refused = 0, set[str]()
    for spec, image in compile_images(specs.values(), store, jobs):
        if not isinstance(image, CompiledImage):
            continue
        if image.serialised and spec.name in configs:
            refused.add(ImageSpec.parse(spec.functional.measured, spec.config).name)
        elif not image.serialised and spec.name not in configs:
            database.image_id(spec.name, spec.config, **{fact: image.metadata[fact] for fact in FACTS})
            new += 1
    return new, refused


def fit_models(
    database: TuningDatabase, operators: Sequence[Operator], arch: str, unfit: Collection[str] = ()
) -> dict[tuple[str, str], float]:
    """Fits and stores the models of every product, without those of images that are ``unfit`` to ship; the median error
    by (operator, product).
    """
    facts = {name: fact for name, fact in database.facts().items() if name not in unfit}
    found = {}
    for operator in operators:
        samples = database.samples(arch, operator.name)
        for product in database.products(arch):
            own = [one for one in samples if one.product == product.name]
            if models := fit(operator, arch, own, facts, product.multiprocessors):
                database.put_models(models, (arch, product.name, operator.name))
                errors = sorted(model.error for model in models)
                found[operator.name, product.name] = errors[len(errors) // 2]
    return found
