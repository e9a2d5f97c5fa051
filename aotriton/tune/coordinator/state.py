"""What the coordinator knows of a run: each problem that is under way, and each GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from concurrent.futures import Future
from dataclasses import dataclass, field

from aotriton.rules.database import Measurement, Outcome
from aotriton.rules.image import ImageSpec
from aotriton.tune.coordinator.writer import Image
from aotriton.tune.measure.requests import Device, Request
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Problem
from aotriton.tune.search.handle import Step, StrategyHandle
from aotriton.tune.search.space import Config, Trial
from aotriton.tune.workers.incident import Canary
from aotriton.tune.workers.jobs import Facts, MeasureJob


@dataclass(frozen=True, eq=False)
class Waiting:
    """A problem that is not begun: the images that it may need, and what begins it."""

    images: Set[str]
    begin: Callable[[], Search]


@dataclass(eq=False)
class Search:
    """One problem under way: what its strategy has asked for, and how far each of that is."""

    problem: Problem
    row: int
    handle: StrategyHandle
    known: dict[str, Outcome]  # by image, of before: what needs no measuring
    candidates: Mapping[str, ImageSpec]
    records_end: bool = False  # whether the end of the search is a row of its own
    specs: dict[str, ImageSpec] = field(default_factory=dict)  # of what was asked for, or known before
    compiling: set[str] = field(default_factory=set)
    verdicts: list[tuple[str, str, str]] = field(default_factory=list)  # what the compilers said, until there is a GPU
    ready: dict[str, Request] = field(default_factory=dict)
    measuring: set[str] = field(default_factory=set)
    racing: bool = False
    begun: bool = False
    told: list[Trial] = field(default_factory=list)  # what the strategy is to be told
    thinking: Future[Step] | None = None
    vain: bool = False  # the strategy has nothing to ask before it is told more
    through: bool = False  # it has nothing to ask any more
    winner: Config | None = None  # what it would rather have than one as fast
    concluding: bool = False  # the last candidates are measured, and raced with the leaders there
    trials: int = 0
    best: tuple[float, str] | None = None
    canaries: list[Canary] = field(default_factory=list)
    sessions: set[int] = field(default_factory=set)  # of the sweeps
    written: threading.Event | None = None  # set when all of it is, and it can be decided
    raced: set[int] = field(default_factory=set)  # the sessions that have a race of it
    gpus: set[str] = field(default_factory=set)  # those that it is the problem of
    visits: int = 0  # how often a GPU turned to it
    unfinished: bool = False

    def __post_init__(self) -> None:
        self._by_config = {spec.psels + spec.copts: spec for spec in self.candidates.values()}
        self.specs = {name: self.candidates[name] for name in self.known}
        family = self.problem.kernel.family
        self.data = family, tuning(family).data_key(self.problem)  # equal for problems that share tensors

    def spec(self, config: Config) -> ImageSpec:
        return self._by_config[config]

    @property
    def whole(self) -> bool:
        """Whether nothing of it is under way, and it is known what comes next."""
        pending = self.thinking is not None or (self.told and not self.through)
        return not (self.compiling or self.ready or self.measuring or self.racing or pending)


@dataclass(eq=False)
class Gpu:
    """A worker that measures, as the coordinator sees it."""

    address: str
    facts: Facts
    session: int = 0
    search: Search | None = None
    flying: dict[str, tuple[Search, MeasureJob]] = field(default_factory=dict)
    has: set[str] = field(default_factory=set)  # the images that it was sent
    ran: bool = False
    failures: int = 0
    withheld: list[tuple[Image, Measurement]] = field(default_factory=list)

    def turn(self, search: Search | None) -> None:
        """Goes on with this problem."""
        if self.search:
            self.search.gpus.discard(self.address)
        if search:
            search.gpus.add(self.address)
        self.search = search

    @property
    def device(self) -> Device:
        assert self.facts.device
        return self.facts.device
