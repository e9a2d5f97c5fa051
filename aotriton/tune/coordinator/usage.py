"""How well a run uses its GPUs: how long it had them, when they measured, and what they waited for otherwise."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum

EARLY = 10.0  # seconds of a run that begins: the share of the time after them is a number of its own


class Why(Enum):
    """What a GPU without a job waits for."""

    START = "the start"
    IMAGES = "images"
    STRATEGIES = "strategies"
    GPUS = "other GPUs"  # all that is left to measure is in flight there
    BEGIN = "problems to begin"
    RUNS = "other runs"
    END = "the end"  # no problem is left for it


@dataclass
class Usage:
    """Seconds on time.monotonic's clock; ``began`` is the run's beginning, ``price`` what a GPU costs an hour that does
    not say so itself, in dollars.
    """

    began: float
    price: float = 0.0
    trials: int = 0
    ended: float = 0.0
    _busy: dict[str, tuple[float, float]] = field(default_factory=dict)  # by GPU: in all, and when EARLY was over
    _idle: dict[str, tuple[float, Why]] = field(default_factory=dict)  # by GPU without a job: since when, and why
    _waited: dict[Why, float] = field(default_factory=dict)
    _preparing: float = 0.0  # of the time that GPUs were busy, what went into tensors
    _rented: dict[str, tuple[float, float]] = field(default_factory=dict)  # since when, and dollars an hour
    _paid: float = 0.0  # for those that are gone

    def came(self, gpu: str, price: float | None = None) -> None:
        """Adds a GPU: from the run's beginning on, where nothing was measured before it came."""
        self.rented(gpu, self.price if price is None else price)
        self._idle[gpu] = self._rented[gpu][0], Why.START
        self._busy.setdefault(gpu, (0.0, 0.0))

    def rented(self, worker: str, price: float) -> None:
        """Adds what a worker costs, whether it has anything to do or not."""
        self._rented[worker] = time.monotonic() if self.trials else self.began, price

    def left(self, worker: str) -> None:
        """Drops a GPU, or another worker that was rented."""
        self.waits(worker, None)
        since, price = self._rented.pop(worker, (0.0, 0.0))
        self._paid += (time.monotonic() - since) * price / 3600

    def waits(self, gpu: str, why: Why | None) -> None:
        """Notes why the GPU has no job; None: it has one."""
        now, (since, before) = time.monotonic(), self._idle.get(gpu, (0.0, None))
        if why is before:
            return
        if before:
            self._waited[before] = self._waited.get(before, 0.0) + now - since
            del self._idle[gpu]
        if why:
            self._idle[gpu] = now, why

    def measured(self, gpu: str, seconds: float, preparing: float) -> None:
        """Notes that the GPU was busy for ``seconds`` until now, ``preparing`` of them with a problem's tensors."""
        self._preparing += preparing
        spent, late = self._busy[gpu]
        after = time.monotonic() - (self.began + EARLY)
        self._busy[gpu] = spent + seconds, late + min(seconds, max(0.0, after))

    def end(self) -> None:
        self.ended = time.monotonic()
        for gpu in list(self._idle):
            self.waits(gpu, None)

    @property
    def dollars(self) -> float:
        """What the run's workers have cost: each from when it joined, until it left or the run ended."""
        now = self.ended or time.monotonic()
        return self._paid + sum((now - since) * price for since, price in self._rented.values()) / 3600

    def busy(self, late: bool = True) -> float | None:
        """The share of their time in which the GPUs measured; ``late``: without the first seconds, None before."""
        begin, end = self.began + EARLY * late, self.ended or time.monotonic()
        if end <= begin or not self._busy:
            return None
        return sum(spent[late] for spent in self._busy.values()) / ((end - begin) * len(self._busy))

    def summary(self) -> str:
        """How many trials there were, how much of their time the GPUs measured, and what the rest of it went to."""
        seconds, gpus = (self.ended or time.monotonic()) - self.began, max(len(self._busy), 1)
        busy, every = self.busy(), self.busy(late=False) or 0.0
        share = f"{busy:.0%} of the time after the first 10 s" if busy is not None else f"{every:.0%} of the time"
        hourly = 3600 * self.trials / (seconds * gpus)
        waited = {why.value: self._waited.get(why, 0.0) / (seconds * gpus) for why in Why}
        waited["jobs under way"] = max(0.0, 1 - every - sum(waited.values()))
        cost = f", {self.dollars:.2f} dollars" if self.dollars else ""
        told = f"{self.trials} trials in {seconds:.1f} s, {hourly:.0f} for a GPU and hour"
        spent = ", ".join(f"{part:.1%} {what}" for what, part in waited.items() if part >= 0.0005)
        made = self._preparing / (seconds * gpus)
        return (
            f"{told}: {gpus} GPUs measured {share}{cost}\n"
            f"all of their time: {every - made:.1%} measuring, {made:.1%} making tensors; waiting for:"
            f" {spent or 'nothing'}"
        )
