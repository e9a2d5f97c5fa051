"""Compiles on CPU cores what the GPUs measure next: from tasks in order to tasks whose images are all there."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.image import ImageSpec
from aotriton.tune.cores import leave
from aotriton.tune.incident import TuningError
from aotriton.tune.problems import Problem
from aotriton.tune.recompile import Compile, is_incident, recompile

LOOKAHEAD = 16  # problems compiled but not measured yet; beyond it the compilers wait, so that a cut run wastes little


@dataclass
class Task:
    """A problem and its candidates by image name, with what the compiler made of each so far."""

    problem: Problem
    specs: dict[str, ImageSpec]
    compiled: dict[str, CompiledImage | CompileFailure] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return len(self.compiled) == len(self.specs)


class CompileAhead:
    """Hands out each task once, to any number of threads, as its images become ready. The compilers leave ``cores``."""

    def __init__(
        self,
        tasks: Sequence[Task],
        store: ImageStore,
        jobs: int | None,
        compile_images: Compile,
        cores: Collection[int | None] = (),
    ) -> None:
        self._waiting = list(tasks)
        self._under_way = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._error: BaseException | None = None
        self._store, self._jobs, self._compile, self._cores = store, jobs, compile_images, cores
        self._users: dict[str, list[Task]] = {}
        for task in tasks:
            for name in task.specs:
                self._users.setdefault(name, []).append(task)
        self._thread = threading.Thread(target=self._run, name="compile-ahead")
        self._thread.start()

    def take(self, deadline: float) -> Task | None:
        """The first task that is ready, when there is one; None when all are done, ``stop`` was called, or the
        ``deadline``, on time.monotonic's clock, has passed. Whoever takes one says ``done`` or gives it back.
        """
        with self._changed:
            while True:
                if self._error:
                    raise TuningError(f"compiling ahead failed: {self._told(self._error)}") from self._error
                left = deadline - time.monotonic()
                if self._stopped or left <= 0 or not (self._waiting or self._under_way):
                    return None
                for task in self._waiting:
                    if task.ready:
                        self._waiting.remove(task)
                        self._under_way += 1
                        self._changed.notify_all()
                        return task
                self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def done(self) -> None:
        """A task that was taken will not come back."""
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def give_back(self, task: Task) -> None:
        """Another thread is to take it."""
        with self._changed:
            self._waiting.insert(0, task)
            self._under_way -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the compilers, at the latest when one of the images under way is done."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            leave(self._cores)
            self._compile_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _compile_all(self) -> None:
        specs = {name: spec for task in self._waiting for name, spec in task.specs.items()}
        known_good: ImageSpec | None = None
        suspects: list[ImageSpec] = []
        results = self._compile(specs.values(), self._store, self._jobs)
        try:
            for spec, result in results:
                if is_incident(result):
                    suspects.append(spec)  # alone at the end, when there is more memory
                    continue
                known_good = spec if isinstance(result, CompiledImage) else known_good
                if not self._deliver(spec, result):
                    return
        finally:
            close = getattr(results, "close", None)
            if close:
                close()  # ends the compile workers
        for spec in suspects:
            if not self._deliver(spec, recompile(spec, known_good, self._store, self._compile)):
                return

    def _deliver(self, spec: ImageSpec, result: CompiledImage | CompileFailure) -> bool:
        """Gives the result to its tasks; False where it is time to stop."""
        with self._changed:
            for task in self._users[spec.name]:
                task.compiled[spec.name] = result
            self._changed.notify_all()
            # Not pulling makes the compilers wait. With nothing ready the GPUs would wait for us: never then.
            self._changed.wait_for(lambda: self._stopped or sum(t.ready for t in self._waiting) < LOOKAHEAD)
            return not self._stopped

    def _told(self, error: BaseException) -> str:
        """The error; of a full disk also where, which a failed write does not say."""
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{error.filename or self._store.path}: {error.strerror}"
        return str(error)
