"""Sweeps: ready candidates go to GPUs as jobs, their results become rows and trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from aotriton.tune.coordinator.gpus import Gpus
from aotriton.tune.coordinator.incidents import Incidents
from aotriton.tune.coordinator.next_job import AHEAD, batch_of, batch_size, is_last_job, next_search
from aotriton.tune.coordinator.rows import Rows
from aotriton.tune.coordinator.searches import Searches
from aotriton.tune.coordinator.state import Gpu, Search
from aotriton.tune.measure.requests import Result
from aotriton.tune.workers.jobs import Failed, Measured, MeasureJob

TRIAL_SECONDS = 0.05  # what a candidate takes, before any was measured
SMOOTHING = 0.1  # the weight of the last job in what a candidate takes


class Measuring:
    """``likely_winners``: by functional the config that won the last of its bins, which is measured first."""

    def __init__(
        self, searches: Searches, gpus: Gpus, rows: Rows, incidents: Incidents, likely_winners: Mapping[str, str]
    ) -> None:
        self._searches, self._gpus, self._rows, self._incidents = searches, gpus, rows, incidents
        self._likely_winners = likely_winners
        self._trial_seconds = TRIAL_SECONDS

    def assign(self) -> None:
        """Gives jobs to all GPUs that have room for more."""
        ready, compiled = self._searches.ready, self._searches.compiled_ahead()
        for gpu in self._gpus.with_room:
            while len(gpu.in_flight) < AHEAD and (search := self._next(gpu, ready)):
                self._send(gpu, search)
                if not search.ready:
                    ready.remove(search)
            if not gpu.in_flight and (waiting := next(compiled, None)):  # out of order, rather than not at all
                self._searches.begin(waiting)
                ready = self._searches.ready
                if search := self._next(gpu, ready):
                    self._send(gpu, search)
            if not gpu.in_flight and (awaited := self._without_tensors):
                self._prepare(gpu, awaited)

    def swept(self, gpu: Gpu, search: Search, job: MeasureJob, reply: Measured) -> str | None:
        """Takes the reply to a job. Returns why the GPU is at fault, where it is."""
        fault = None
        if any(isinstance(result, Result) for result in reply.results.values()):
            each = (reply.seconds - reply.preparing) / len(reply.results)
            self._trial_seconds += SMOOTHING * (each - self._trial_seconds)
        for name, result in reply.results.items():
            search.sweep_sessions.add(gpu.session)
            if isinstance(result, Failed):
                fault = self._incidents.blame(gpu, search, name, "sweep", result) or fault
                self._searches.add_trial(search, name, result.status, None, result.detail)
                continue
            gpu.ran = True
            self._rows.sweep(gpu, search, name, result)
            if result.status == "ok":
                self._incidents.add_canary(search, name)
            middle = median(result.samples) if result.samples else None
            self._searches.add_trial(search, name, result.status, middle, result.check.wrong or "")
        if reply.race:
            self._rows.race(gpu, search, reply.race)
        self._incidents.release(gpu)
        self.take_back(search, job, reply.results)
        return fault

    def take_back(self, search: Search, job: MeasureJob, measured: Iterable[str] = ()) -> None:
        """Makes ready again what a job that has ended has not measured. A race is begun anew as a whole."""
        if job.race:
            search.racing = False
            return
        known = set(measured)
        for request in job.requests:
            search.measuring.discard(request.name)
            if request.name not in known and not search.closed:
                search.ready[request.name] = request

    @property
    def _batch(self) -> int:
        return batch_size(len(self._gpus), self._trial_seconds)

    @property
    def _without_tensors(self) -> Search | None:
        """An open problem whose tensors no GPU has made, nor has candidates for one."""
        return next(
            (one for one in self._searches.open if not (one.ready or self._gpus.tensors.get(one.tensors))), None
        )

    def _prepare(self, gpu: Gpu, search: Search) -> None:
        """Has the GPU make the problem's tensors while its first images are compiled."""
        self._gpus.tensors[search.tensors] = {gpu.address}
        self._gpus.send(gpu, search, (), ())

    def _next(self, gpu: Gpu, ready: list[Search]) -> Search | None:
        return next_search(gpu, ready, self._gpus.tensors, self._batch)

    def _send(self, gpu: Gpu, search: Search) -> None:
        search.visits += gpu.search is not search
        gpu.turn_to(search)
        self._gpus.tensors.setdefault(search.tensors, set()).add(gpu.address)
        self._rows.begin(gpu, search)
        names = batch_of(search, self._likely_winners.get(str(search.problem.functional)), self._batch)
        search.finishing = is_last_job(gpu, search, len(names))
        requests = tuple(search.ready.pop(name) for name in names)
        search.measuring.update(names)
        self._gpus.send(gpu, search, requests, self._incidents.canaries(search), finish=search.finishing)
