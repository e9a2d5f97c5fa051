"""The images of a run: each is compiled once, whichever problems need it."""

from __future__ import annotations

from collections.abc import Mapping, Set

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, named_request
from aotriton.rules.image import ImageSpec
from aotriton.tune.coordinator.cluster import Cluster
from aotriton.tune.coordinator.events import JobEnded
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.state import Search
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.workers import station
from aotriton.tune.workers.jobs import CPU, Compiled, CompileJob, received

AHEAD = 2  # images that a compiler has: one is being made, one waits
KILLED = 3  # machines that are lost with an image's compiler, before it is to blame

Made = CompiledImage | CompileFailure


class Images:
    def __init__(self, cluster: Cluster, store: ImageStore, checksums: Mapping[str, str], progress: Progress) -> None:
        """``checksums`` are those of the images that were measured before."""
        self._cluster, self._store, self._checksums, self._progress = cluster, store, checksums, progress
        self._made: dict[str, Made] = {}
        self._users: dict[str, list[Search]] = {}  # by image that is compiled now: who waits for it
        self._jobs: dict[str, tuple[str, int]] = {}  # image and how often it was tried, by the job's key
        self._later: set[str] = set()  # images whose job waits until there is nothing else to do
        self.compilers: dict[str, int] = {}  # by address: how many images at a time

    def __getitem__(self, name: str) -> Made:
        """The image of this name, or its failure, which was made before."""
        return self._made[name]

    def get(self, name: str) -> Made | None:
        return self._made.get(name)

    @property
    def names(self) -> Set[str]:
        return self._made.keys()

    @property
    def room(self) -> int:
        """How many images keep all compilers at work."""
        return AHEAD * sum(self.compilers.values())

    @property
    def awaited(self) -> int:
        """How many images are being compiled that a problem waits for."""
        return sum(bool(self._users.get(name)) for name, _ in self._jobs.values())

    def stored(self, name: str) -> Made | None:
        """The image that was measured, or any where none was; None where it must be compiled."""
        if name not in self._made and (found := self._store.get(name, self._checksums.get(name))):
            self._made[name] = found
        return self._made.get(name)

    def want(self, search: Search, spec: ImageSpec) -> Made | None:
        """The image, if it is there. Otherwise it is compiled for the search, and ``ended`` returns it."""
        name = spec.name
        if name not in self._users:
            if image := self.stored(name):
                return image
            self._users[name] = []
            self._compile(spec, 1)
        elif name in self._later:
            self._later.discard(name)
            self._compile(spec, 1)
        search.compiling.add(name)
        self._users[name].append(search)
        return None

    def want_later(self, spec: ImageSpec) -> None:
        """Has the image compiled when there is nothing else to do."""
        if spec.name not in self._users and not self.stored(spec.name):
            self._users[spec.name] = []
            self._later.add(spec.name)
            self._compile(spec, 1, later=True)

    def want_perhaps(self, spec: ImageSpec) -> None:
        """Has the image compiled if less than half of the compilers are busy: the other half is kept for what is asked
        for.
        """
        free = len(self._jobs) - len(self._later) < sum(self.compilers.values()) // 2
        if free and spec.name not in self._users and not self.stored(spec.name):
            self._users[spec.name] = []
            self._compile(spec, 1)

    @property
    def borrowed(self) -> bool:
        """Whether images are under way that winners' siblings borrow: who decides needs them."""
        return bool(self._later)

    def drop_later(self, names: Set[str]) -> None:
        """Drops the jobs of images that were to be compiled later, and are not to be any more."""
        for key, (name, _) in list(self._jobs.items()):
            if name in names and name in self._later:
                self._cluster.forget(key)
                self._later.discard(name)
                del self._jobs[key], self._users[name]

    def leave(self, search: Search) -> None:
        """Ends the search's waiting for images."""
        for name in search.compiling:
            self._users[name].remove(search)
        search.compiling.clear()

    def has(self, key: str) -> bool:
        """Whether the key is that of a compile job."""
        return key in self._jobs

    def ended(self, event: JobEnded) -> tuple[str, Made, list[Search]] | None:
        """The image that a job made, and the searches that wait for it; None where there is no image or no search."""
        name, tried = self._jobs.pop(event.key)
        self._later.discard(name)
        if name not in self._users:
            return None  # it was compiled twice
        users = self._users[name]
        spec = users[0].specs[name] if users else None
        reply: Compiled | None = event.reply
        if not users and (reply is None or reply.error):
            del self._users[name]
            return None
        if reply is None or reply.error:
            why = event.error or (reply.error if reply else "")
            if reply is not None and len(self.compilers) <= 1:
                raise TuningError(f"compiling ahead failed: {why}")
            self._progress.note(f"{name} is to be compiled again: {why}")
            if reply is not None and reply.station in self.compilers:
                self._cluster.leave_out(reply.station)
                del self.compilers[reply.station]
            if spec and tried < KILLED:
                self._compile(spec, tried + 1)
                return None
            image: Made = CompileFailure(name, f"{tried} machines were lost with it: {why}")
        else:
            image = received(reply, name, self._store, self._checksums.get(name))
        self._made[name] = image
        for search in self._users[name]:
            search.compiling.discard(name)
        return name, image, self._users.pop(name)

    def close(self) -> None:
        """Drops the jobs in flight."""
        for key in self._jobs:
            self._cluster.forget(key)

    def _compile(self, spec: ImageSpec, tried: int, later: bool = False) -> None:
        checksum = self._checksums.get(spec.name)
        job = CompileJob(self._cluster.setting, named_request(spec), checksum)
        self._jobs[self._cluster.submit(station.compile_image, job, CPU, later=later)] = spec.name, tried
