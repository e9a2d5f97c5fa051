"""Verdicts and incidents: a failure is the candidate's fault only if a fresh worker runs a known good candidate after
it.

A lost GPU, a worker that does not start and a hang of the machine are incidents: they are waited for, and the request
is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aotriton.tune.measure.requests import Request
from aotriton.tune.problem.problems import NamedProblem
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers.gpu_process import GpuProcess, Unstartable, WorkerError

PAUSES = (0.0, 5.0, 30.0, 120.0)  # seconds before each try to get a worker that is right
EVIDENCE = 2  # failures, a healthy worker after each, that make a verdict
TRIES = 5

Made = TypeVar("Made")


class Stopped(Exception):
    """The run ends while an incident is waited for."""


@dataclass(frozen=True)
class Canary:
    """A candidate that was right and fast on its problem: a healthy worker runs it again."""

    problem: NamedProblem
    request: Request


@dataclass(frozen=True)
class Attempts:
    """Requests to one worker, tried until there is a result or a verdict. ``stop`` ends the waiting."""

    worker: GpuProcess
    pauses: Sequence[float]
    stop: threading.Event
    note: Callable[[str], None]

    def of(
        self, call: Callable[[], Made], what: str, problem: NamedProblem | None = None, canaries: Sequence[Canary] = ()
    ) -> Made | WorkerError:
        """The result of ``call``, or the error that is its own fault; ``problem`` is the one that it is about.

        TuningError where no worker is healthy any more, Stopped where the run ends meanwhile.
        """
        evidence = 0
        for _ in range(TRIES):
            try:
                return call()
            except WorkerError as error:
                self.note(f"{what}: {error}; trying again on a fresh worker")
                last = error
            healthy = self._prove(what, last, canaries)
            if problem:
                self.worker.turn_to(problem)
            evidence += healthy and not isinstance(last, Unstartable)
            if evidence == EVIDENCE:
                return last
        raise TuningError(f"GPU {self.worker.gpu} comes and goes: {what} was tried {TRIES} times, at last: {last}")

    def _prove(self, what: str, error: WorkerError, canaries: Sequence[Canary]) -> bool:
        """Waits for a fresh worker that runs a canary. Returns whether the first one did, so that ``error`` is not the
        worker's fault.
        """
        for tried, pause in enumerate(self.pauses):
            if self.stop.wait(pause):
                raise Stopped
            try:
                self.worker.close()
                self._run(canaries[tried % len(canaries)] if canaries else None)
                return tried == 0
            except WorkerError as sick:
                last = sick
                self.note(f"GPU {self.worker.gpu} is not healthy: {sick}")
        now = "what ran before does not run on it now" if canaries else "a fresh worker is not healthy"
        raise TuningError(f"GPU {self.worker.gpu} is lost: {what}: {error}; and {now}: {last}")

    def _run(self, canary: Canary | None) -> None:
        if canary is None:
            self.worker.healthy()
            return
        self.worker.prepare(canary.problem)
        result = self.worker.sweep(canary.request, None)
        if result.status != "ok":
            raise WorkerError(f"{canary.request.config}, which was right, is {result.status}: {result.check.wrong}")
