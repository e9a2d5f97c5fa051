"""Which images are worth shipping: how much longer calls would take without each of them, by predicted times."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite
from typing import NamedTuple

Image = tuple[str, str]  # a kernel, or its functional with its name before it, and the image's name
# Of a call: for each backend that serves it, for each of its kernels, the times of the images that may run it.
Ways = Sequence[Sequence[Mapping[Image, float]]]
Backends = Sequence[Sequence[Collection[Image]]]  # of each backend, for each of its kernels, its images
CERTAIN = 1.0  # what an image saves without which a backend that must be there cannot run at all
UNSERVED = 1e9  # how much longer a call takes that nothing serves


class Removal(NamedTuple):
    """An image that goes, others that nothing runs any more without it, and how much longer, relatively, the calls of a
    group take in the mean, of the group where that is most; at least UNSERVED over the number of its calls if a call is
    no longer served.
    """

    image: Image
    others: frozenset[Image]
    loss: float


def savings(
    groups: Sequence[Sequence[Ways]], backends: Backends, needed: Iterable[Collection[Image]]
) -> dict[Image, float]:
    """What each image saves: how much longer, relatively, the calls of a group take in the mean once it is removed, of
    the group where that is most.

    Images are removed as by ``removals``. An image without which a call is no longer served is CERTAIN, and is removed
    last. Empty if nothing serves any call.
    """
    served = [[ways for ways in group if isfinite(_best(ways))] for group in groups]
    most = max(map(len, served), default=0)
    if not most:
        return {}
    found: dict[Image, float] = {}
    for gone, others, loss in removals([group for group in served if group], backends, needed):
        saves = CERTAIN if loss > UNSERVED / 2 / most else loss
        found |= dict.fromkeys((gone, *others), saves)
    every = {image for kernels in backends for images in kernels for image in images}
    return {**found, **dict.fromkeys(every - found.keys(), CERTAIN)}


def removals(
    groups: Sequence[Sequence[Ways]], backends: Backends, needed: Iterable[Collection[Image]]
) -> Iterator[Removal]:
    """Removes images one after the other, always the one that is missed least, until each set of ``needed`` has one.

    This greedy choice is as good as any that is known for the facilities of a location problem (A. Kuehn,
    M. Hamburger, 1963, "drop"). Each call must be served, and takes one time as long as with all images at first. The
    groups are those of calls that count alike, as of a product.
    """
    left = {image for kernels in backends for images in kernels for image in images}
    keep = [set(images) for images in needed]
    states = [[_Call(ways) for ways in group] for group in groups]
    concerned: dict[Image, set[tuple[int, int]]] = {}  # the places of calls: of the group, and in it
    for number, group in enumerate(states):
        for place, state in enumerate(group):
            for image in state.images:
                concerned.setdefault(image, set()).add((number, place))
    means = [_mean(group) for group in states]
    while True:
        losses = dict.fromkeys(left, 0.0)
        for of_group in means:
            for image, loss in of_group.items():
                losses[image] = max(losses[image], loss)
        for images in keep:
            if len(remaining := images & left) == 1:
                losses.pop(next(iter(remaining)), None)
        if not losses:
            return
        gone = min(losses, key=lambda image: (losses[image], image))
        left.discard(gone)
        # The other images of a backend that cannot run any more go with it.
        running = [kernels for kernels in backends if all(not left.isdisjoint(images) for images in kernels)]
        useful = {image for kernels in running for images in kernels for image in images}
        others = frozenset(left - useful)
        left -= others
        dropped = {gone, *others}
        changed = set().union(*(concerned.get(image, ()) for image in dropped))
        for number, place in changed:
            states[number][place].drop(dropped)
        for number in {number for number, _ in changed}:
            means[number] = _mean(states[number])
        yield Removal(gone, others, losses[gone])


class _Call:
    """A call with the images that are left. ``losses``: how much longer it takes without each image that it runs on,
    as a part of the time that it takes with all images.
    """

    def __init__(self, ways: Ways) -> None:
        self._ways = [[sorted((time, image) for image, time in images.items()) for images in kernels]
                      for kernels in ways]  # fmt: skip
        self.images = {image for kernels in ways for images in kernels for image in images}
        self._fastest = _best(ways)
        self.losses = self._losses()

    def drop(self, dropped: Collection[Image]) -> None:
        self._ways = [[[one for one in images if one[1] not in dropped] for images in kernels]
                      for kernels in self._ways]  # fmt: skip
        self.losses = self._losses()

    def _losses(self) -> dict[Image, float]:
        times = [sum(images[0][0] if images else inf for images in kernels) for kernels in self._ways]
        now = min(times)
        if now == inf:
            return {}
        best = self._ways[times.index(now)]
        return {
            image: self._ratio(min(self._without(image, *pair) for pair in zip(self._ways, times, strict=True)))
            - now / self._fastest
            for image in {images[0][1] for images in best}
        }

    def _ratio(self, time: float) -> float:
        return time / self._fastest if time < inf else UNSERVED

    @staticmethod
    def _without(image: Image, kernels: Sequence[Sequence[tuple[float, Image]]], time: float) -> float:
        """The backend's time without the image; ``time`` with it."""
        if all(not images or images[0][1] != image for images in kernels):
            return time
        return sum(next((one[0] for one in images if one[1] != image), inf) for images in kernels)


def _mean(group: Sequence[_Call]) -> dict[Image, float]:
    """What the calls of a group lose in the mean without each image that one of them runs on."""
    sums: dict[Image, float] = {}
    for one in group:
        for image, loss in one.losses.items():
            sums[image] = sums.get(image, 0.0) + loss
    return {image: loss / len(group) for image, loss in sums.items()}


def _best(ways: Ways) -> float:
    """The least time of a backend; infinite where a kernel has no image."""
    return min((sum(min(images.values(), default=inf) for images in kernels) for kernels in ways), default=inf)
