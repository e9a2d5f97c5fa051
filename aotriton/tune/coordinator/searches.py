"""The problems that are begun: their strategies are asked for configs, and what they ask for is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future

from aotriton.codegen.compile import CompiledImage, CompileFailure
from aotriton.rules.borrow import siblings
from aotriton.rules.image import ImageSpec
from aotriton.tune.coordinator.events import JobEnded
from aotriton.tune.coordinator.images import Images, Made
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.state import Search, Waiting
from aotriton.tune.measure.requests import launch_request
from aotriton.tune.problem.compiler_facts import unfit
from aotriton.tune.problem.problems import Problem
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.search.handle import Step
from aotriton.tune.search.space import Trial

LOOKAHEAD = 16  # problems compiled but not begun; beyond it the compilers wait, so that a cut run wastes little
LEAST_ROOM = 8  # candidates of a problem that are asked for ahead, however few compilers there are


class Searches:
    """The open problems, in their order, and those that wait. ``wake`` has the event loop look again."""

    def __init__(self, images: Images, progress: Progress, wake: Callable[[], None]) -> None:
        self.waiting: list[Waiting] = []
        self.unfinished: list[Problem] = []  # problems that no GPU could finish
        self._open: dict[Search, None] = {}
        self._images, self._progress, self._wake = images, progress, wake

    @property
    def open(self) -> list[Search]:
        return list(self._open)

    @property
    def ready(self) -> list[Search]:
        """The open problems that have candidates to be measured."""
        return [search for search in self._open if search.ready]

    @property
    def best_now(self) -> str:
        """Time and config of the problem that was begun last."""
        best = [search.best for search in self._open if search.begun and search.best]
        return f"{best[-1][0]:.1f} us {best[-1][1]}" if best else ""

    def ask(self) -> None:
        """Asks all strategies that can be asked, and begins problems until the compilers have enough to do."""
        for search in self.open:
            self._ask(search)
        for _ in range(LOOKAHEAD):
            ahead = sum(not search.begun and not search.compiling for search in self._open)
            if not self.waiting or self._images.awaited >= self._images.room or ahead >= LOOKAHEAD:
                return
            self.begin(self.waiting[0])
        self._wake()  # the rest after what has happened meanwhile: GPUs are not to wait for many problems

    def begin(self, waiting: Waiting) -> None:
        self.waiting.remove(waiting)
        search = waiting.begin()
        self._open[search] = None
        self._ask(search)

    def compiled_ahead(self) -> Iterator[Waiting]:
        """The waiting problems whose images are all compiled."""
        return (waiting for waiting in list(self.waiting) if waiting.images <= self._images.names)

    def cut_short(self) -> None:
        """Begins no further problem, and closes those that no GPU has begun."""
        self.waiting.clear()
        for search in self.open:
            if not search.begun:
                self.close(search)

    def end_early(self) -> None:
        """Ends searches as if their strategies had asked for all, where anything is right by now."""
        for search in self.open:
            if search.ends_early and search.best and not search.exhausted:
                search.exhausted, search.step = True, None
                self._images.leave(search)
                search.ready.clear()

    def close(self, search: Search, unfinished: bool = False) -> None:
        """Ends the work on the problem; ``unfinished``: it could not be finished."""
        search.closed = True
        self._open.pop(search, None)
        if unfinished:
            self.unfinished.append(search.problem)
        self._images.leave(search)
        search.ready.clear()

    def compile(self, search: Search, spec: ImageSpec) -> None:
        """Has an image of the problem compiled, if there is none."""
        if image := self._images.want(search, spec):
            self._made(search, spec.name, image)

    def compile_borrowed(self, search: Search, winner: ImageSpec) -> None:
        """Has compiled what siblings borrow, while GPUs measure: whether it fits must be known at the end."""
        others = siblings(winner.functional)
        specs = [ImageSpec.of(one, dict(winner.tunables), dict(winner.compile_options)) for one in others]
        before, search.borrowed = search.borrowed, frozenset(spec.name for spec in specs)
        self._images.drop_later(before - search.borrowed)
        for spec in specs:
            self._images.want_later(spec)

    def compiled(self, event: JobEnded) -> None:
        """Takes the reply to a compile job."""
        if ended := self._images.ended(event):
            name, image, users = ended
            for search in users:
                self._made(search, name, image)

    def add_trial(self, search: Search, name: str, status: str, median_us: float | None, why: str = "") -> None:
        """Keeps what became of a candidate, for the strategy to see; ``why`` it cannot be used."""
        search.trials += 1
        image = self._images.get(name)
        facts = dict(image.metadata) if isinstance(image, CompiledImage) else {}
        numbers = {key: float(facts[key]) for key in ("registers", "shared", "spills") if facts.get(key) is not None}
        spec = search.specs[name]
        search.new_trials.append(Trial(spec.tunables + spec.compile_options, status, median_us, numbers))
        if status == "ok" and median_us and (search.best is None or median_us < search.best[0]):
            search.best = median_us, spec.config
            self._progress.tell(
                "best", problem=str(search.problem), config=spec.config, median_us=median_us, trials=search.trials
            )
        if why:
            self._progress.tell("failed", problem=str(search.problem), config=spec.config, status=status, why=why)

    def _ask(self, search: Search) -> None:
        """Asks the strategy for enough configs that neither compilers nor GPUs wait for it."""
        while not search.exhausted:
            if search.step is None:
                unmeasured = len(search.compiling) + len(search.ready) + len(search.measuring)
                room = max(self._images.room, LEAST_ROOM) - unmeasured
                if room <= 0 or (search.needs_trials and not search.new_trials):
                    return
                trials, search.new_trials = search.new_trials, []
                search.step = search.handle.step(trials, room)
                search.step.add_done_callback(lambda _: self._wake())
            if not search.step.done():
                return
            step, search.step = _result(search.step), None
            self._take(search, step)

    def _take(self, search: Search, step: Step) -> None:
        search.exhausted, search.needs_trials = step.finished, not step.asked
        if step.winner and step.winner != search.winner:
            self.compile_borrowed(search, search.spec(step.winner))
        search.winner = step.winner
        for config in step.asked:
            spec = search.spec(config)
            search.specs[spec.name] = spec
            if known := search.known.get(spec.name):
                self.add_trial(search, spec.name, known.status, known.median_us)
            else:
                self.compile(search, spec)
        for config in step.likely:
            self._images.want_perhaps(search.spec(config))
        if step.likely and search.best:  # at the end it must be known whether what siblings borrow fits
            for other in siblings(search.problem.functional):
                self._images.want_perhaps(ImageSpec.parse(other, search.best[1]))

    def _made(self, search: Search, name: str, image: Made) -> None:
        if name in search.known:  # measured before, and now to be raced
            if isinstance(image, CompileFailure):
                self._progress.note(f"{search.problem}: {name} does not compile any more: {image.message}")
                self.close(search, unfinished=True)
        elif isinstance(image, CompileFailure):
            self._decided_by_compiler(search, name, "compile_failed", image.message)
        elif why := unfit(search.specs[name], image):
            self._decided_by_compiler(search, name, "pruned", why)
        else:
            search.ready[name] = launch_request(search.specs[name], image)

    def _decided_by_compiler(self, search: Search, name: str, status: str, why: str) -> None:
        """It becomes a row when there is a session, that of the GPU that the problem goes to."""
        search.verdicts.append((name, status, why))
        self.add_trial(search, name, status, None, why)


def _result(future: Future[Step]) -> Step:
    try:
        return future.result()
    except BrokenExecutor as error:
        raise TuningError(f"the process of a strategy ended: {error}") from error
