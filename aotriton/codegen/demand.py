"""The build for a file of models: what its calls reach of default coverage and need, within a budget of bytes."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from aotriton.codegen.backends import CellKey
from aotriton.codegen.call_times import CallTimes, Times
from aotriton.codegen.costs import Models
from aotriton.codegen.pack import LEVEL
from aotriton.codegen.plan import Plan, Timing, plan
from aotriton.codegen.reach import Placed, place
from aotriton.codegen.store import ImageStore
from aotriton.model_coverage import ModelsFile
from aotriton.rules.database import Product, Winner
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.rules.operators import Operator
from aotriton.rules.savings import UNSERVED, Image, Removal, removals, savings
from aotriton.rules.work import WORTH_SHIPPING

TYPICAL = 12_300  # bytes of an image, where none is compiled: the mean of default coverage, with zlib


@dataclass(frozen=True)
class Decided:
    """The plan of a build for models, and lines about it."""

    plan: Plan
    report: str


@dataclass(frozen=True)
class Served:
    """A call on a product, with the times of the images that may run it."""

    placed: Placed
    times: Times


def decide(
    operators: Sequence[Operator],
    products: Mapping[str, Sequence[Product]],
    file: ModelsFile,
    winners: Sequence[Winner],
    timings: Mapping[CellKey, Mapping[str, Timing]],
    spills: Mapping[str, int] | None,
    models: Models,
    size_of: Callable[[str], int | None],
) -> Decided:
    """The build that serves the calls of ``file`` on the ``products`` of each arch.

    Functionals are those that the calls reach. Images are those of default coverage without which calls of a functional
    take WORTH_SHIPPING longer in the mean; if they do not fit into the budget, the ones that all calls miss least are
    dropped. ``size_of`` is the size of an image in the archive, None where it is not known.

    ValueError if the fewest images that serve every call exceed the budget, or if nothing serves any call; PlanError as
    for ``plan``.
    """
    by_name = {operator.name: operator for operator in operators}
    placed = [
        place(by_name[call.call.operator], call, product)
        for call in file.calls
        if call.call.operator in by_name
        for of_arch in products.values()
        for product in of_arch
    ]
    reached = [functional for one in placed for kernels in one.backends.values() for functional in kernels]
    whole = plan(operators, products, "default", winners, timings, spills, models, dict.fromkeys(reached, ()))
    known = CallTimes(whole, products, winners, timings, models)
    served = [Served(one, times) for one in placed if (times := known.of(one))]
    there = {id(one.placed) for one in served}
    unserved = [one for one in placed if id(one) not in there]
    if not served:
        reasons = dict.fromkeys(map(_reason, unserved))
        raise ValueError(f"{file.path}: nothing serves any call of its models: {'; '.join(reasons)}")
    sizes = _Sizes(known.specs, size_of)
    kept = _within(file, _worth(served), served, sizes)
    selected: dict[Functional, list[ImageSpec]] = {}
    for image, spec in known.specs.items():
        if image in kept:
            selected.setdefault(spec.functional, []).append(spec)
    made = plan(operators, products, "default", winners, timings, spills, models, selected)
    lines = [*_summary(file, served, known, kept, sizes), *_refusals(unserved)]
    return Decided(made, "".join(f"{line}\n" for line in lines))


def _bundles(ways: Iterable[Times]) -> dict[int, list[set[Image]]]:
    """The images of each kernel of each backend that any of the calls may run on."""
    found: dict[int, list[set[Image]]] = {}
    for one in ways:
        for number, kernels in one.items():
            own = found.setdefault(number, [set() for _ in kernels])
            for images, times in zip(own, kernels, strict=True):
                images.update(times)
    return found


def _groups(served: Iterable[Served]) -> Iterator[list[Times]]:
    """The calls of each functional of an operator on each product."""
    groups: dict[tuple[str, str, Functional], list[Times]] = {}
    for one in served:
        groups.setdefault((one.placed.operator.name, one.placed.product.name, one.placed.lead), []).append(one.times)
    yield from groups.values()


def _worth(served: Iterable[Served]) -> set[Image]:
    """The images that save WORTH_SHIPPING of the time of the calls of any functional on any product."""
    groups = list(_groups(served))
    bundles = [_bundles(group) for group in groups]
    saves = savings(
        [[list(one.values()) for one in group] for group in groups],
        [kernels for of_group in bundles for kernels in of_group.values()],
        [images for of_group in bundles for images in _needed(of_group)],
    )
    return {image for image, value in saves.items() if value >= WORTH_SHIPPING}


def _needed(bundles: Mapping[int, list[set[Image]]]) -> list[set[Image]]:
    """The images of which one must stay for each kernel: those of the first backend."""
    return bundles[min(bundles)]


def _within(file: ModelsFile, worth: set[Image], served: Iterable[Served], sizes: _Sizes) -> set[Image]:
    """The images that are left once they fit into the budget; ValueError if not even the last ones do."""
    budget, kept = file.budget, set(worth)
    if budget is None or sizes.total(kept) <= budget:
        return kept
    cut = [Served(one.placed, _cut(one.times, worth)) for one in served]
    bundles = [_bundles(group) for group in _groups(cut)]
    backends = [kernels for of_group in bundles for kernels in of_group.values()]
    needed = [images for of_group in bundles for images in _needed(of_group)]
    for gone in removals([[list(one.times.values()) for one in cut]], backends, needed):
        if _unserved(gone, len(cut)):
            break
        kept -= {gone.image, *gone.others}
        if sizes.total(kept) <= budget:
            return kept
    about = "about " if sizes.estimated(kept) else ""
    raise ValueError(
        f"{file.path}: megabytes is {budget / 1e6:g}, and the fewest images that serve all of its calls, {len(kept)},"
        f" take {about}{sizes.total(kept) / 1e6:.3f} MB: raise megabytes, or ask for fewer models, dtypes or archs"
    )


def _unserved(gone: Removal, calls: int) -> bool:
    return gone.loss > UNSERVED / 2 / calls


def _cut(ways: Times, kept: set[Image]) -> dict[int, list[dict[Image, float]]]:
    """The ways with these images alone, without backends that a kernel has none of."""
    cut = {
        number: [{image: time for image, time in images.items() if image in kept} for images in kernels]
        for number, kernels in ways.items()
    }
    return {number: kernels for number, kernels in cut.items() if all(kernels)}


class _Sizes:
    """The bytes of images in the archive: as compiled, else as the compiled ones of its kernel and arch are in the
    mean, or of any kernel.
    """

    def __init__(self, specs: Mapping[Image, ImageSpec], size_of: Callable[[str], int | None]) -> None:
        known = {image: size for image in specs if (size := size_of(image[1])) is not None}
        groups: dict[tuple[str, str], list[int]] = {}
        for image, size in known.items():
            groups.setdefault((image[0], specs[image].functional.arch), []).append(size)
        typical = round(mean(known.values())) if known else TYPICAL
        means = {group: round(mean(sizes)) for group, sizes in groups.items()}
        self._known = known
        self._sizes = {
            image: known.get(image, means.get((image[0], spec.functional.arch), typical))
            for image, spec in specs.items()
        }

    def total(self, images: Iterable[Image]) -> int:
        return sum(self._sizes[image] for image in images)

    def estimated(self, images: Iterable[Image]) -> int:
        """How many of the images nobody has compiled yet."""
        return sum(image not in self._known for image in images)


def sizes_in(store: Path, checksums: Mapping[str, str], compress: bool) -> Callable[[str], int | None]:
    """What an image in the store takes in an archive; None of one that the store has not."""

    def size(name: str) -> int | None:
        found = ImageStore(store).get(name, checksums.get(name)) if store.is_dir() else None
        return len(zlib.compress(found.binary, LEVEL) if compress else found.binary) if found else None

    return size


def _summary(
    file: ModelsFile, served: Sequence[Served], known: CallTimes, kept: set[Image], sizes: _Sizes
) -> Iterator[str]:
    """What the build is, line by line."""
    functionals = {known.specs[image].functional for image in kept}
    limit = f" of at most {file.budget / 1e6:g} MB" if file.budget is not None else ""
    on = ", ".join(dict.fromkeys(one.placed.product.name for one in served))
    yield f"{file.path.name}: {_count(file.models, 'model')}, {_count(len(served), 'call')}, on {on}"
    size = f"{sizes.total(kept) / 1e6:.3f} MB{limit}"
    yield f"    {_count(len(kept), 'image')}, {size}, {_count(len(functionals), 'functional')}"
    if estimated := sizes.estimated(kept):
        yield f"    of {_count(estimated, 'image')} the size is an estimate, as nobody has compiled it"
    every = known.specs
    yield f"    default coverage: {_count(len(every), 'image')}, {sizes.total(every) / 1e6:.3f} MB, for these calls"
    if known.by_cell:
        yield f"    of {_count(known.by_cell, 'call')} no time is predicted: what was measured in cells counts instead"
    regrets = [_best(_cut(one.times, kept)) / _best(one.times) - 1 for one in served]
    worst = max(range(len(regrets)), key=regrets.__getitem__)
    most = 100 * regrets[worst]
    yield f"    regret against default coverage: {100 * mean(regrets):.2f} % in the mean, {most:.2f} % at most"
    if regrets[worst] > 0:
        yield f"        at most: {served[worst].placed.call} on {served[worst].placed.product.name}"


def _refusals(unserved: Iterable[Placed]) -> Iterator[str]:
    """What nothing serves, and why: a line for calls that differ in batch and context only."""
    counts = Counter((f"{one.call.model}: {one.call.call.step}, {one.call.dtype}", _reason(one)) for one in unserved)
    for (what, reason), count in counts.items():
        yield f"    not served: {what}, {_count(count, 'call')}: {reason}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _reason(one: Placed) -> str:
    return one.reason or f"default coverage has no image for it on {one.product.arch}"


def _best(times: Times) -> float:
    return min(sum(min(images.values()) for images in kernels) for kernels in times.values())
