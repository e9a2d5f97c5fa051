"""The end of a problem: once all candidates are measured, the fastest race, and the winner is decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aotriton.codegen.compile import CompiledImage
from aotriton.rules.borrow import siblings
from aotriton.rules.database import Outcome, TuningDatabase
from aotriton.rules.image import ImageSpec
from aotriton.rules.judge import judge_of
from aotriton.rules.kernel import Functional
from aotriton.tune.coordinator.gpus import Gpus
from aotriton.tune.coordinator.images import Images
from aotriton.tune.coordinator.incidents import Incidents
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.rows import Rows
from aotriton.tune.coordinator.searches import Searches
from aotriton.tune.coordinator.state import Gpu, Search
from aotriton.tune.coordinator.writer import Writer
from aotriton.tune.measure.requests import Request, launch_request
from aotriton.tune.winners.decide import decide, race_is_due
from aotriton.tune.workers.jobs import Failed, Measured


@dataclass
class Deciding:
    """``outcomes`` gives what is recorded of a problem; ``reusable``, which of these need no measuring again."""

    database: TuningDatabase
    writer: Writer
    searches: Searches
    images: Images
    gpus: Gpus
    rows: Rows
    incidents: Incidents
    progress: Progress
    outcomes: Callable[[Search], list[Outcome]]
    reusable: Callable[[list[Outcome]], list[Outcome]]
    decided: dict[str, Functional] = field(default_factory=dict)  # one of each group that borrows from each other
    last_winners: dict[str, str] = field(default_factory=dict)  # by functional: the config that won its last bin

    def conclude(self, search: Search) -> None:
        """Goes on with an idle problem: its rows are written, then it races, then its winner is decided.

        Returns at once where one of these takes time, to be called again.
        """
        if search.verdicts:
            if not (gpu := next(iter(self.gpus), None)):
                return
            self.rows.begin(gpu, search)  # not one of its candidates is worth a GPU's time
        if search.written is None:
            search.written = self.writer.change()
        if not search.written.is_set():
            return
        search.written = None
        if search.disturbed:
            self.progress.note(f"{search.problem}: not decided: another process was on the GPU")
            self.searches.close(search, unfinished=True)
            return
        outcomes = [one for one in self.reusable(self.outcomes(search)) if one.image in search.specs]
        if not (names := race_is_due(outcomes)):
            self._decide(search)
            return
        images = {name: self.images.stored(name) for name in names}
        missing = [name for name, image in images.items() if image is None]  # measured long ago, or elsewhere
        for name in missing:
            self.searches.compile(search, search.specs[name])
        if not missing:
            found = [image for image in images.values() if isinstance(image, CompiledImage)]
            self._race(search, tuple(launch_request(search.specs[image.name], image) for image in found))

    def raced(self, gpu: Gpu, search: Search, reply: Measured) -> str | None:
        """Takes the reply to a race. Returns why the GPU is at fault, where it is."""
        fault = None
        search.racing = False
        if reply.race:
            gpu.ran = True
            self.rows.race(gpu, search, reply.race)
        for name, result in reply.results.items():
            assert isinstance(result, Failed)
            fault = self.incidents.blame(gpu, search, name, "race", result) or fault
        if reply.apart:
            self.searches.close(search, unfinished=True)
        return fault

    def _race(self, search: Search, requests: tuple[Request, ...]) -> None:
        """Sends the leaders to a GPU that has room. The session must not be older than their sweeps, nor have a race of
        the problem.
        """
        if not (free := self.gpus.with_room):
            return
        gpu = min(free, key=lambda gpu: (gpu.search is not search, -gpu.session, len(gpu.in_flight)))
        gpu.turn_to(search)
        if gpu.session in search.race_sessions or gpu.session < max(search.sweep_sessions, default=0):
            self.rows.new_session(gpu)
        self.rows.begin(gpu, search)
        search.racing = True
        self.gpus.send(gpu, search, requests, self.incidents.canaries(search), race=True)

    def _decide(self, search: Search) -> None:
        problem, functional = search.problem, search.problem.functional
        self.decided.setdefault(f"{problem.kernel.name} {siblings(functional)[0]}", functional)
        standing = [
            one
            for one in self.database.winners(functional.arch, problem.kernel.name, self.gpus.product)
            if one.provenance == "measured"
        ]
        before = {(one.functional, one.bin): one.image for one in standing}
        if search.winner:
            before.setdefault((str(functional), problem.bin), search.spec(search.winner).name)
        if search.records_end and (gpu := next(iter(self.gpus), None)):
            row, session, tried = search.row, self.rows.begin(gpu, search), search.trials
            judge = judge_of(problem.kernel)
            self.writer.change(lambda database: database.evidence.end_search(row, session, tried, judge))
        winners = decide([functional], self.outcomes(search), self.database.evidence.samples_of, before)
        self.searches.close(search)
        if not winners:
            place = str(functional), problem.bin, problem.shape_text
            fallen = [one for one in standing if (one.functional, one.bin, one.shape) == place]
            self.writer.change(lambda database: database.forget_winners(fallen))
            self.progress.solved(problem, None, 0.0)
            return
        self.writer.change(lambda database: database.put_winners(winners))
        (winner,) = winners
        self.searches.compile_borrowed(search, ImageSpec.parse(functional, winner.config))
        self.last_winners[str(functional)] = winner.config
        self.progress.solved(problem, winner.config, winner.median_us)
