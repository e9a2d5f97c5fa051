"""Cost models: from timings of launch sequences on random shapes to the coefficients of each image's predicted time.

A sequence takes what its kernels take together, each of them a sum of terms (``rules/work.py``). So the images of all
sequences that share kernels are fitted together, one after the other against what the others leave, until that settles:
the problem is convex, and no bound is of two blocks (P. Tseng, "Convergence of a Block Coordinate Descent Method",
2001). Errors are relative, coefficients not negative: no image is predicted to be faster than nothing, wherever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from aotriton.rules.expression import Environment
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription, parse_functional
from aotriton.rules.operators import Backend, Operator
from aotriton.rules.rows import Model, Sample
from aotriton.rules.work import FORM, TERMS, terms
from aotriton.tune.costmodel.savings import savings
from aotriton.tune.problem.compute_unit import Candidate, resident_programs
from aotriton.tune.problem.problems import is_served, scalars_of

if TYPE_CHECKING:
    import numpy as np

SWEEPS, REWEIGHTS = 160, 4  # through the images of a group, at most, and of each fit
SETTLED = 1e-4  # the most that a sweep changes any predicted time, relatively, when another one is not worth it
LEAST_ERROR = 0.01  # below which an error weighs no more: the clock's own
FEWEST = 2 * len(TERMS)  # timings of an image without which it has no model

Facts = tuple[str, int, int]  # of an image: config, registers, bytes of shared memory
Place = tuple[str, str]  # of an image: its kernel's functional and its name


def occupancy(spec: ImageSpec, registers: int, shared: int) -> int:
    """Programs of the image that fit on one multiprocessor; 1 of a persistent kernel, which has as many as it wants.
    ``shared`` in bytes.
    """
    arch = spec.functional.arch_spec
    if spec.functional.kernel.gluon:
        return 1
    limits = arch.multiprocessor
    if limits is None:
        return resident_programs(Candidate(dict(spec.psels + spec.copts), registers, shared), arch)
    warps = dict(spec.copts)["num_warps"]
    held = -(-max(registers, 1) // limits.register_granule) * limits.register_granule * arch.warp_size * warps
    by_shared = limits.shared // (shared + limits.system_shared)
    return max(1, min(limits.registers // held, by_shared, limits.warps // warps, limits.programs))


@dataclass
class _Observation:
    parts: tuple[tuple[Place, int], ...]  # each image of the sequence, and the row of its terms
    time: float


class _Group:
    """Timings of functionals whose sequences share kernels, on a product of so many multiprocessors."""

    def __init__(self, multiprocessors: int) -> None:
        self.multiprocessors = multiprocessors
        self.rows: dict[Place, list[tuple[float, ...]]] = {}
        self.seen: dict[tuple[Place, str], int] = {}
        self.observations: list[_Observation] = []
        self.specs: dict[Place, tuple[ImageSpec, int]] = {}
        self.calls: dict[str, list[str]] = {}  # by the lead's functional: what tells its calls apart
        self.environments: dict[str, tuple[Mapping[str, int], Mapping[str, int]]] = {}  # sizes and scalars, by call
        self.served: dict[str, dict[str, list[set[Place]]]] = {}  # and by backend: the images of each kernel

    def add_call(self, functional: str, sizes: Mapping[str, int], scalars: Mapping[str, int]) -> str:
        """A call of the lead's functional; what tells it apart."""
        call = f"{scalars}{sorted(sizes.items())}"
        self.calls.setdefault(functional, []).append(call)
        self.environments[call] = sizes, scalars
        return call

    def add_image(self, spec: ImageSpec, facts: Facts) -> Place:
        place = str(spec.functional), spec.name
        if place not in self.specs:
            self.specs[place] = spec, occupancy(spec, *facts[1:])
        return place

    def row(self, place: Place, call: str) -> int:
        """The number of the image's terms for the call, among its rows; made where it is not there."""
        if (place, call) not in self.seen:
            spec, fitting = self.specs[place]
            work = spec.functional.kernel.work
            assert work, f"{spec.functional.kernel.name} does not say what it computes"
            environment = Environment(*self.environments[call], dict(spec.psels), multiprocessors=self.multiprocessors)
            rows = self.rows.setdefault(place, [])
            self.seen[place, call] = len(rows)
            rows.append(terms(work, environment, fitting))
        return self.seen[place, call]


@dataclass(frozen=True)
class Apart:
    """A call of the lead's functional, and what each image takes there by itself, in microseconds: by backend, for each
    of its kernels by image name.
    """

    functional: Functional
    shape: Mapping[str, int]
    times: Mapping[str, tuple[Mapping[str, float], ...]]


def fit(operator: Operator, arch: str, samples: Iterable[Sample], facts: Mapping[str, Facts], multiprocessors: int,
        ) -> list[Model]:  # fmt: skip
    """Models of the images that were timed on one product; those of another kernel source are left out.

    An image needs FEWEST timings, in sequences of images that have as many. ``facts`` by image name.
    """
    samples = list(samples)
    if not samples:
        return []
    group, product = _Group(multiprocessors), samples[0].product
    backends = {backend.name: backend for backend in operator.backends}
    for sample in samples:
        if sample.product != product:
            raise ValueError(f"timings of {product} and of {sample.product} do not compare")
        _take(group, operator.lead, backends, arch, sample, facts)
    return _fitted(group, operator, arch, product)


def fit_apart(operator: Operator, arch: str, product: str, calls: Iterable[Apart], facts: Mapping[str, Facts],
              multiprocessors: int) -> list[Model]:  # fmt: skip
    """As ``fit``, from times of images that are known one by one, not as parts of a sequence; of backends whose kernels
    all describe their work.
    """
    group = _Group(multiprocessors)
    backends = {backend.name: backend for backend in operator.backends}
    for one in calls:
        call = group.add_call(str(one.functional), one.shape, scalars_of(one.functional, one.shape))
        for name, of_backend in one.times.items():
            served = _served(group, str(one.functional), backends[name])
            for kernel, times, images in zip(backends[name].kernels, of_backend, served, strict=True):
                own = kernel.like(one.functional, one.shape)
                for image, time in times.items():
                    spec = _spec(own, facts.get(image))
                    if spec is None or spec.name != image:
                        continue
                    place = group.add_image(spec, facts[image])
                    group.observations.append(_Observation(((place, group.row(place, call)),), time))
                    images.add(place)
    return _fitted(group, operator, arch, product)


def _fitted(group: _Group, operator: Operator, arch: str, product: str) -> list[Model]:
    found = []
    for component in _components(group):
        found += _models(component, group, operator, arch, product)
    worth = _worth(group, operator, arch, found)
    found = [replace(one, saves=worth.get((one.functional, one.image), 0.0)) for one in found]
    return sorted(found, key=lambda model: (model.kernel, model.functional, model.image))


def _serving(kernel: KernelDescription, lead: Functional, sizes: Mapping[str, int], group: _Group) -> str:
    """The kernel's functional for a call of the lead's; nothing where it refuses the call."""
    own = kernel.like(lead, sizes)
    return str(own) if own and is_served(own, sizes, group.multiprocessors) else ""


def _worth(group: _Group, operator: Operator, arch: str, models: Sequence[Model]) -> dict[Place, float]:
    """What each image saves, in the functional of the lead where that is most.

    It counts on all calls that its kernel serves, be it timed there or another one: images come and go, and calls that
    only others were timed on do not make one worth less.
    """
    import numpy as np

    coefficients = {(model.functional, model.image): np.array(model.coefficients) for model in models}
    timed = {call for _, call in group.seen}
    worth: dict[Place, float] = {}
    for functional, served in group.served.items():
        calls = [call for call in group.calls[functional] if call in timed]
        lead = parse_functional(operator.lead, arch, functional)
        images = {place for kernels in served.values() for of_kernel in kernels for place in of_kernel}
        kernels = {kernel.name: kernel for kernel in (group.specs[place][0].functional.kernel for place in images)}
        sizes = [group.environments[call][0] for call in calls]
        own = {name: [_serving(kernel, lead, one, group) for one in sizes] for name, kernel in kernels.items()}

        def times(place: Place, calls: Sequence[str] = calls, own: Mapping[str, Sequence[str]] = own) -> np.ndarray:
            found = np.full(len(calls), np.inf)
            for i, (call, name) in enumerate(
                zip(calls, own[group.specs[place][0].functional.kernel.name], strict=True)
            ):
                if name == place[0]:
                    row = group.row(place, call)
                    found[i] = np.dot(group.rows[place][row], coefficients[place])
            return found

        predicted = {
            name: [{place: times(place) for place in sorted(images) if place in coefficients} for images in kernels]
            for name, kernels in served.items()
        }
        complete = {name: kernels for name, kernels in predicted.items() if all(kernels)}
        first = operator.backends[0].name
        if first in complete:
            for place, value in savings(complete, first).items():
                worth[place] = max(worth.get(place, 0.0), value)
    return worth


def _take(group: _Group, lead: KernelDescription, backends: Mapping[str, Backend], arch: str, sample: Sample,
          facts: Mapping[str, Facts]) -> None:  # fmt: skip
    functional, sizes = parse_functional(lead, arch, sample.functional), _sizes(sample)
    call = group.add_call(sample.functional, sizes, scalars_of(functional, sizes))
    for timing in sample.timings:
        backend = backends.get(timing.backend)
        if backend is None or len(timing.images) != len(backend.kernels):
            continue  # of another time
        parts = []
        for kernel, image in zip(backend.kernels, timing.images, strict=True):
            own = kernel.like(functional, sizes)
            spec = _spec(own, facts.get(image))
            if spec is None or spec.name != image:
                break
            if kernel.work is None:
                continue
            place = group.add_image(spec, facts[image])
            parts.append((place, group.row(place, call)))
        else:
            if not parts:
                continue  # nobody says what its kernels compute
            group.observations.append(_Observation(tuple(parts), timing.median_us))
            for images, (place, _) in zip(_served(group, sample.functional, backend), parts, strict=True):
                images.add(place)


def _served(group: _Group, functional: str, backend: Backend) -> list[set[Place]]:
    """The images of each of the backend's kernels, to be added to."""
    kernels = [kernel for kernel in backend.kernels if kernel.work is not None]
    return group.served.setdefault(functional, {}).setdefault(backend.name, [set() for _ in kernels])


def _sizes(sample: Sample) -> dict[str, int]:
    return {name: int(str(value)) for name, value in sample.shape.items()}


def _spec(functional: Functional | None, facts: Facts | None) -> ImageSpec | None:
    if functional is None or facts is None:
        return None
    try:
        return ImageSpec.parse(functional, facts[0])
    except ValueError:
        return None


def _components(group: _Group) -> list[list[_Observation]]:
    """The observations, those together that share an image, directly or through others."""
    parent: dict[Place, Place] = {place: place for place in group.specs}

    def root(place: Place) -> Place:
        while parent[place] != place:
            place = parent[place]
        return place

    for one in group.observations:
        for place, _ in one.parts[1:]:
            parent[root(place)] = root(one.parts[0][0])
    found: dict[Place, list[_Observation]] = {}
    for one in group.observations:
        found.setdefault(root(one.parts[0][0]), []).append(one)
    return list(found.values())


def _uses(observations: Sequence[_Observation]) -> dict[Place, tuple[list[int], list[int]]]:
    """By image: the numbers of the observations that it is part of, and the rows of its terms there."""
    uses: dict[Place, tuple[list[int], list[int]]] = {}
    for number, one in enumerate(observations):
        for place, row in one.parts:
            mine, rows = uses.setdefault(place, ([], []))
            mine.append(number)
            rows.append(row)
    return uses


def _models(
    observations: Sequence[_Observation], group: _Group, operator: Operator, arch: str, product: str
) -> list[Model]:
    import numpy as np

    uses = _uses(observations)
    while any(len(mine) < FEWEST for mine, _ in uses.values()):
        # What takes a part that nobody knows tells nothing of the others.
        few = {place for place, (mine, _) in uses.items() if len(mine) < FEWEST}
        observations = [one for one in observations if not few & {place for place, _ in one.parts}]
        uses = _uses(observations)
    if not observations:
        return []
    time = np.array([one.time for one in observations])
    places = sorted(uses)
    blocks = [(np.array(uses[p][0]), np.array(group.rows[p])[uses[p][1]]) for p in places]
    count = np.array([len(one.parts) for one in observations])
    # Each kernel begins with an equal share, as if the others had left it.
    parts = np.zeros((len(places), len(observations)))
    for i, (mine, _) in enumerate(blocks):
        parts[i, mine] = time[mine] / count[mine]
    total, weight = parts.sum(0), np.ones(len(observations))
    coefficients: list[Any] = [None] * len(places)
    for _ in range(SWEEPS if max(count) > 1 else 1):
        before = total.copy()
        for i, (mine, rows) in enumerate(blocks):
            left = time[mine] - (total[mine] - parts[i, mine])
            coefficients[i] = _block(rows, left, time[mine], weight[mine])
            new = rows @ coefficients[i]
            total[mine] += new - parts[i, mine]
            parts[i, mine] = new
        weight = np.maximum(np.abs(total / time - 1), LEAST_ERROR) ** -0.25
        if np.max(np.abs(total - before) / time) < SETTLED:
            break
    error = np.abs(total / time - 1)
    models = []
    for place, (mine, _), values in zip(places, blocks, coefficients, strict=True):
        spec, fitting = group.specs[place]
        models.append(
            Model(
                arch=arch,
                product=product,
                operator=operator.name,
                kernel=spec.functional.kernel.name,
                functional=place[0],
                image=place[1],
                form=FORM,
                occupancy=fitting,
                coefficients=tuple(float(f"{value:.6g}") for value in values),
                error=float(f"{median(error[mine]):.4g}"),
                samples=len(mine),
            )
        )
    return models


def _block(rows: np.ndarray, left: np.ndarray, time: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Coefficients that are not negative, of least squares of errors relative to ``time``; outliers count less."""
    import numpy as np
    from scipy.optimize import nnls

    own = weight
    for _ in range(REWEIGHTS):
        found, _ = nnls(rows * (own / time)[:, None], left * own / time, maxiter=50 * rows.shape[1])
        own = weight * np.maximum(np.abs((rows @ found - left) / time), LEAST_ERROR) ** -0.25
    return found
