"""The state of a run, as the coordinator sees it: each problem that is begun, and each GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from concurrent.futures import Future
from dataclasses import dataclass, field

from aotriton.rules.database import Outcome
from aotriton.rules.image import ImageSpec
from aotriton.tune.coordinator.writer import Row
from aotriton.tune.measure.requests import Device, Request
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Problem
from aotriton.tune.search.handle import Step, StrategyHandle
from aotriton.tune.search.space import Config, Trial
from aotriton.tune.workers.canary import Canary
from aotriton.tune.workers.jobs import Facts, MeasureJob


@dataclass(frozen=True, eq=False)
class Waiting:
    """A problem that is not begun: the images that it may need, and the function that begins it."""

    images: Set[str]
    begin: Callable[[], Search]


@dataclass(eq=False)
class Search:
    """One problem that is begun. Images go by their names from ``compiling`` to ``ready`` to ``measuring``."""

    problem: Problem
    row: int
    handle: StrategyHandle
    known: dict[str, Outcome]  # by image: what was measured before the run, and is not measured again
    candidates: Mapping[str, ImageSpec]
    records_end: bool = False  # whether the end of the search is a row of its own
    ends_early: bool = False  # whether what was measured decides once the budget of the run is spent

    # The strategy.
    step: Future[Step] | None = None  # the step that it computes now
    new_trials: list[Trial] = field(default_factory=list)  # what it has not seen yet
    needs_trials: bool = False  # it asks for nothing before it sees more trials
    exhausted: bool = False  # it asks for nothing any more
    winner: Config | None = None  # the config that it prefers to others that are as fast
    borrowed: frozenset[str] = frozenset()  # the images of the winner's siblings

    # The candidates that it asked for.
    specs: dict[str, ImageSpec] = field(default_factory=dict)  # with those of ``known``
    compiling: set[str] = field(default_factory=set)
    verdicts: list[tuple[str, str, str]] = field(default_factory=list)  # image, status, why: by the compiler alone
    ready: dict[str, Request] = field(default_factory=dict)
    measuring: set[str] = field(default_factory=set)
    trials: int = 0
    best: tuple[float, str] | None = None  # median in µs, config
    canaries: list[Canary] | None = None  # the last that were right first; None: not looked up yet

    # Its GPUs.
    begun: bool = False  # a GPU has had it
    gpus: set[str] = field(default_factory=set)  # the addresses of those that work on it
    visits: int = 0  # how often a GPU turned to it
    sweep_sessions: set[int] = field(default_factory=set)

    # Its end.
    finishing: bool = False  # its last candidates are measured, and raced with the leaders by the same job
    racing: bool = False
    race_sessions: set[int] = field(default_factory=set)
    written: threading.Event | None = None  # set when all of its rows are on disk, so that it can be decided
    closed: bool = False
    disturbed: bool = False  # something was measured beside another process

    def __post_init__(self) -> None:
        self._by_config = {spec.tunables + spec.compile_options: spec for spec in self.candidates.values()}
        self.specs = {name: self.candidates[name] for name in self.known}
        family = self.problem.kernel.family
        self.tensors = family, tuning(family).data_key(self.problem)  # equal for problems that share tensors

    def spec(self, config: Config) -> ImageSpec:
        return self._by_config[config]

    @property
    def idle(self) -> bool:
        """Whether no worker has a part of it, and its strategy has seen all trials."""
        pending = self.step is not None or (self.new_trials and not self.exhausted)
        return not (self.compiling or self.ready or self.measuring or self.racing or pending)


@dataclass(eq=False)
class Gpu:
    """A worker that measures."""

    address: str
    facts: Facts
    session: int = 0  # 0: none is begun
    search: Search | None = None  # the problem that it works on
    in_flight: dict[str, tuple[Search, MeasureJob]] = field(default_factory=dict)  # by key
    has: set[str] = field(default_factory=set)  # the images that it was sent
    ran: bool = False  # whether any candidate has run on it
    taken_until: float = 0.0  # another run has it: when it is asked again, on time.monotonic's clock; else 0
    failures: int = 0  # jobs in a row without a reply
    withheld: list[Row] = field(default_factory=list)  # verdicts of a GPU on which nothing has run

    def turn_to(self, search: Search | None) -> None:
        """Makes this the problem that the GPU works on."""
        if self.search:
            self.search.gpus.discard(self.address)
        if search:
            search.gpus.add(self.address)
        self.search = search

    @property
    def device(self) -> Device:
        assert self.facts.device
        return self.facts.device
