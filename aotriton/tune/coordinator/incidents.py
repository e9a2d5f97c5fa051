"""Whose fault a failure is: the candidate's, which is a row, or the GPU's.

A station blames a candidate only after another one ran (``workers/canary.py``). On a GPU on which nothing has run
yet, no candidate is known to be good: verdicts are withheld until one is, and too many of them are the GPU's own fault.
"""

from __future__ import annotations

from collections.abc import Callable

from aotriton.codegen.compile import CompiledImage
from aotriton.rules.database import Outcome
from aotriton.tune.coordinator.images import Images
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.rows import Rows
from aotriton.tune.coordinator.state import Gpu, Search
from aotriton.tune.measure.requests import launch_request
from aotriton.tune.workers.canary import Canary
from aotriton.tune.workers.jobs import Failed

CANARIES = 3  # known good candidates that a GPU is proven with, in turns: one may have its own faults
HOPELESS_AFTER = 12  # failures of a GPU on which nothing ran before: it is not the candidates' fault


class Incidents:
    """``outcomes`` gives what is recorded of a problem."""

    def __init__(
        self, images: Images, rows: Rows, progress: Progress, outcomes: Callable[[Search], list[Outcome]]
    ) -> None:
        self._images, self._rows, self._progress, self._outcomes = images, rows, progress, outcomes
        self._canaries: list[Canary] = []  # of the problem on which a candidate was right last

    def canaries(self, search: Search) -> tuple[Canary, ...]:
        """Known good candidates for a job of the problem: its own, or else another problem's."""
        if search.canaries is None:
            search.canaries = self._recorded(search)
        return tuple(search.canaries or self._canaries)[:CANARIES]

    def release(self, gpu: Gpu) -> None:
        """Records the verdicts that were withheld, if a candidate has run on the GPU since."""
        if gpu.ran:
            self._rows.put(gpu.withheld)
            gpu.withheld = []

    def add_canary(self, search: Search, name: str) -> None:
        """Makes a candidate, whose results are right, a canary of the jobs to come."""
        image = self._images[name]
        assert isinstance(image, CompiledImage)
        canary = Canary(search.problem.named, launch_request(search.specs[name], image))
        search.canaries = [canary, *(search.canaries or ())][:CANARIES]
        self._canaries = search.canaries

    def blame(self, gpu: Gpu, search: Search, name: str, phase: str, failed: Failed) -> str | None:
        """Records a candidate that crashed or timed out. Returns why the GPU is at fault instead, where it is."""
        self._progress.note(f"{search.problem}: {search.specs[name].config}: {failed.status}: {failed.detail}")
        verdict = self._rows.failure(gpu, search, name, phase, failed)
        if gpu.ran or search.canaries or self._canaries:
            self._rows.put([verdict])
            return None
        gpu.withheld.append(verdict)
        if len(gpu.withheld) < HOPELESS_AFTER:
            return None
        return f"the first {HOPELESS_AFTER} candidates all failed, so the fault is not in them"

    def _recorded(self, search: Search) -> list[Canary]:
        """Canaries by what was recorded before this run, the last one first."""
        good = [o.image for o in reversed(self._outcomes(search)) if o.status == "ok" and o.image in search.specs]
        found = []
        for name in list(dict.fromkeys(good))[:CANARIES]:
            image = self._images.stored(name)
            if isinstance(image, CompiledImage):
                found.append(Canary(search.problem.named, launch_request(search.specs[name], image)))
        return found
