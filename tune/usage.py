"""How well a run uses its GPUs: which of their time they measured, and how long it had them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Usage:
    """Seconds on time.monotonic's clock; ``began`` is the run's beginning."""

    began: float
    trials: int = 0
    ended: float = 0.0
    _busy: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # by GPU: begin and end of each job
    _since: dict[str, float] = field(default_factory=dict)  # by GPU that the run has
    _before: float = 0.0  # how long it had those that are gone

    def came(self, gpu: str) -> None:
        """A GPU is the run's: from its beginning on, where nothing was measured before it came."""
        self._since[gpu] = time.monotonic() if self.trials else self.began
        self._busy.setdefault(gpu, [])

    def left(self, gpu: str) -> None:
        self._before += time.monotonic() - self._since.pop(gpu)

    def measured(self, gpu: str, seconds: float) -> None:
        """It was busy for so long until now."""
        now = time.monotonic()
        self._busy[gpu].append((now - seconds, now))

    @property
    def gpu_seconds(self) -> float:
        """How long the run has had GPUs, all of them together."""
        now = time.monotonic()
        return self._before + sum(now - since for since in self._since.values())

    def busy(self, after: float = 10.0) -> float | None:
        """The share of their time, after the first seconds of the run, in which the GPUs measured; None before."""
        begin, end = self.began + after, self.ended or time.monotonic()
        if end <= begin or not self._busy:
            return None
        spent = sum(max(0.0, till - max(since, begin)) for jobs in self._busy.values() for since, till in jobs)
        return spent / ((end - begin) * len(self._busy))

    def told(self) -> str:
        """How many trials there were, and how well the GPUs were used."""
        seconds, gpus = (self.ended or time.monotonic()) - self.began, max(len(self._busy), 1)
        busy, every = self.busy(), self.busy(0.0)
        share = f"{busy:.0%} of the time after the first 10 s" if busy is not None else f"{every or 0:.0%} of the time"
        hourly = 3600 * self.trials / (seconds * gpus)
        return f"{self.trials} trials in {seconds:.1f} s, {hourly:.0f} for a GPU and hour: {gpus} GPUs measured {share}"
