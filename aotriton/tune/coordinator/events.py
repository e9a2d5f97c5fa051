"""The events of a cluster: workers that join or leave, and jobs that end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aotriton.tune.workers.jobs import Facts


@dataclass(frozen=True)
class WorkerJoined:
    """A worker that fits: one that measures, or one that compiles ``slots`` images at a time. ``price``: what it says
    that it costs, in dollars an hour.
    """

    address: str
    facts: Facts
    slots: int
    price: float | None = None


@dataclass(frozen=True)
class WorkerLeft:
    """A worker that is gone; its jobs end without a reply."""

    address: str


@dataclass(frozen=True)
class JobEnded:
    """A job that has ended. ``error`` is None, or says why there is no reply: how far the job came is unknown then."""

    key: str
    reply: Any = None
    error: str | None = None


Event = WorkerJoined | WorkerLeft | JobEnded
