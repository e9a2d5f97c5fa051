"""Timings as observations: which images a launch sequence is made of, and the terms of each for a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aotriton.rules.database.rows import Sample
from aotriton.rules.expression import Environment
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.rules.operators import Backend, Operator
from aotriton.rules.work import terms
from aotriton.tune.problem.compute_unit import Candidate, resident_programs
from aotriton.tune.problem.family import tuning, types_at_level
from aotriton.tune.problem.problems import scalars_of

Facts = tuple[str, int, int]  # of an image: config, registers, bytes of shared memory
ImageKey = tuple[str, str]  # of an image: its kernel's functional and its name


def occupancy(spec: ImageSpec, registers: int, shared: int) -> int:
    """Programs of the image that fit on one multiprocessor; 1 for a persistent kernel, which has as many as it needs.
    ``shared`` is in bytes.
    """
    arch = spec.functional.arch_spec
    if spec.functional.kernel.gluon:
        return 1
    limits = arch.multiprocessor
    if limits is None:
        return resident_programs(Candidate(dict(spec.tunables + spec.compile_options), registers, shared), arch)
    warps = dict(spec.compile_options)["num_warps"]
    held = -(-max(registers, 1) // limits.register_granule) * limits.register_granule * arch.warp_size * warps
    by_shared = limits.shared // (shared + limits.system_shared)
    return max(1, min(limits.registers // held, by_shared, limits.warps // warps, limits.programs))


@dataclass
class Observation:
    """A timing of a launch sequence, or of one image, in microseconds."""

    parts: tuple[tuple[ImageKey, int], ...]  # each image of the sequence, and the row of its terms
    time: float


class Timings:
    """Timings of functionals whose sequences share kernels, on a product that has ``multiprocessors``."""

    def __init__(self, multiprocessors: int) -> None:
        self.multiprocessors = multiprocessors
        self.rows: dict[ImageKey, list[tuple[float, ...]]] = {}
        self.seen: dict[tuple[ImageKey, str], int] = {}
        self.observations: list[Observation] = []
        self.specs: dict[ImageKey, tuple[ImageSpec, int]] = {}
        self.calls: dict[str, list[str]] = {}  # by the lead's functional: the keys of its calls
        self.environments: dict[str, Environment] = {}  # by call
        self.served: dict[str, dict[str, list[set[ImageKey]]]] = {}  # and by backend: the images of each kernel
        self.sessions: dict[tuple[str, str], dict[int, set[ImageKey]]] = {}  # by kernel and functional, what each timed

    def add_call(self, functional: Functional, sizes: Mapping[str, int]) -> str:
        """Adds a call of the lead's functional, and returns its key."""
        scalars, types = scalars_of(functional, sizes), types_at_level(functional)
        call = f"{scalars}{sorted(sizes.items())}{types}"
        self.calls.setdefault(str(functional), []).append(call)
        self.environments[call] = Environment(sizes, scalars, multiprocessors=self.multiprocessors, other_dtypes=types)
        return call

    def add_image(self, spec: ImageSpec, facts: Facts) -> ImageKey:
        key = str(spec.functional), spec.name
        if key not in self.specs:
            self.specs[key] = spec, occupancy(spec, *facts[1:])
        return key

    def row(self, key: ImageKey, call: str) -> int:
        """The number of the row with the image's terms for the call; it is computed where there is none."""
        if (key, call) not in self.seen:
            spec, fitting = self.specs[key]
            work = spec.functional.kernel.work
            assert work, f"{spec.functional.kernel.name} does not say what it computes"
            environment = replace(self.environments[call], tunables=dict(spec.tunables))
            rows = self.rows.setdefault(key, [])
            self.seen[key, call] = len(rows)
            rows.append(terms(work, environment, fitting))
        return self.seen[key, call]

    def left_out(self) -> set[ImageKey]:
        """The images that restrictions rule out in all cells by now, and those that no session timed since one that
        timed several others of their functional: it was told to leave them out, or they were not worth timing any more.
        What they would take on its calls is a guess, and the best of many guesses is one that is wrong.
        """
        found = {
            key
            for key, (spec, _) in self.specs.items()
            if spec.functional.wins_nowhere(dict(spec.tunables + spec.compile_options))
        }
        for sessions in self.sessions.values():
            last = max((number for number, images in sessions.items() if len(images) > 1), default=0)
            since = (images for number, images in sessions.items() if number >= last)
            found |= set().union(*sessions.values()) - set().union(*since)
        return found

    def served_by(self, functional: str, backend: Backend) -> list[set[ImageKey]]:
        """The images of each of the backend's kernels that describe their work, in sets that callers add to."""
        kernels = [kernel for kernel in backend.timed_kernels if kernel.work is not None]
        return self.served.setdefault(functional, {}).setdefault(backend.name, [set() for _ in kernels])


@dataclass(frozen=True)
class Apart:
    """A call of the lead's functional, and the microseconds that each image takes there by itself: by backend, for each
    of its kernels by image name.
    """

    functional: Functional
    shape: Mapping[str, int]
    times: Mapping[str, tuple[Mapping[str, float], ...]]


def add_sample(
    timings: Timings,
    operator: Operator,
    backends: Mapping[str, Backend],
    arch: str,
    sample: Sample,
    facts: Mapping[str, Facts],
) -> None:
    """Adds the timings of one shape; those of another kernel source are left out."""
    functional, sizes = operator.sampled_functional(arch, sample.functional), _sizes(operator, sample)
    call = timings.add_call(functional, sizes)
    for timing in sample.timings:
        backend = backends.get(timing.backend)
        if backend is None or len(timing.images) != len(backend.timed_kernels):
            continue  # the source has changed since
        parts = []
        for kernel, image in zip(backend.timed_kernels, timing.images, strict=True):
            own = kernel.like(functional, sizes)
            spec = _spec(own, facts.get(image))
            if spec is None or spec.name != image:
                break
            if kernel.work is None:
                continue
            key = timings.add_image(spec, facts[image])
            parts.append((key, timings.row(key, call)))
        else:
            if not parts:
                continue  # its kernels do not describe their work
            timings.observations.append(Observation(tuple(parts), timing.median_us))
            for images, (key, _) in zip(timings.served_by(sample.functional, backend), parts, strict=True):
                images.add(key)
                of = timings.specs[key][0].functional.kernel.name, key[0]
                timings.sessions.setdefault(of, {}).setdefault(sample.session, set()).add(key)


def add_apart(timings: Timings, backends: Mapping[str, Backend], call: Apart, facts: Mapping[str, Facts]) -> None:
    """Adds the times of single images; those of another kernel source are left out."""
    of_call = timings.add_call(call.functional, call.shape)
    for name, of_backend in call.times.items():
        served = timings.served_by(str(call.functional), backends[name])
        for kernel, times, images in zip(backends[name].timed_kernels, of_backend, served, strict=True):
            own = kernel.like(call.functional, call.shape)
            for image, time in times.items():
                spec = _spec(own, facts.get(image))
                if spec is None or spec.name != image:
                    continue
                key = timings.add_image(spec, facts[image])
                images.add(key)
                if time:  # else the call leaves the kernel nothing to do, and no program is launched
                    timings.observations.append(Observation(((key, timings.row(key, of_call)),), time))


def _sizes(operator: Operator, sample: Sample) -> dict[str, int]:
    """Those of the call: a shape leaves out what follows from others."""
    drawn = {name: int(str(value)) for name, value in sample.shape.items()}
    return dict(getattr(tuning(operator.family), "sizes", dict)(drawn))


def _spec(functional: Functional | None, facts: Facts | None) -> ImageSpec | None:
    if functional is None or facts is None:
        return None
    try:
        return ImageSpec.parse(functional, facts[0])
    except ValueError:
        return None
