"""Which images are worth shipping: how much longer calls would take without each of them, by predicted times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

Image = tuple[str, str]  # a kernel's functional with its name before it, and the image's name
# By backend: for each of its kernels, the times of its images over the calls. A backend serves calls with all of them.
Predicted = Mapping[str, Sequence[Mapping[Image, "np.ndarray"]]]

CERTAIN = 1.0  # what an image saves without which a backend that must be there cannot run at all
UNSERVED = 1e9  # how much longer a call takes that nothing serves


def savings(predicted: Predicted, first: str) -> dict[Image, float]:
    """What each image saves: how much longer, relatively, the calls take in the mean once it is removed.

    Images are removed one after the other, always the one that is missed least, until ``first``, the backend that
    serves every call, has one left for each of its kernels. This greedy choice is as good as any that is known for the
    facilities of a location problem (A. Kuehn, M. Hamburger, 1963, "drop"). An array has infinity where an image cannot
    serve the call; an image without which a call is no longer served is CERTAIN, and is removed last.
    """
    import numpy as np

    left = {image for kernels in predicted.values() for images in kernels for image in images}
    found: dict[Image, float] = {}

    fastest = np.min([_time(kernels, left, None) for kernels in predicted.values()], axis=0)
    possible = np.isfinite(fastest)
    if not possible.any():
        return {}

    def mean(without: Image | None = None) -> float:
        best = np.min([_time(kernels, left, without) for kernels in predicted.values()], axis=0)[possible]
        ratio = np.full(len(best), UNSERVED)
        np.divide(best, fastest[possible], out=ratio, where=np.isfinite(best))
        return float(np.mean(ratio))

    needed = predicted[first]
    while True:
        before = mean()
        losses = {
            image: mean(image) - before
            for image in sorted(left)
            if all(set(images) & left != {image} for images in needed)
        }
        if not losses:
            return {**found, **{image: CERTAIN for image in left}}
        gone = min(losses, key=lambda image: (losses[image], image))
        left.discard(gone)
        unserved = losses[gone] > UNSERVED / 2 / len(fastest)
        found[gone] = CERTAIN if unserved else max(losses[gone], 0.0)
        # The other images of a backend that cannot run any more go with it, and are worth as much.
        running = [kernels for kernels in predicted.values() if all(set(images) & left for images in kernels)]
        useful = {image for kernels in running for images in kernels for image in images}
        found |= {image: found[gone] for image in left - useful}
        left &= useful


def _time(kernels: Sequence[Mapping[Image, np.ndarray]], left: set[Image], without: Image | None) -> np.ndarray:
    """The least time of a backend with the images that are left; infinite where a kernel has none."""
    import numpy as np

    total = 0.0
    for images in kernels:
        rows = [times for image, times in images.items() if image in left and image != without]
        if not rows:
            return np.full(len(next(iter(images.values()))), np.inf)
        total = total + np.min(rows, axis=0)
    return np.asarray(total)
