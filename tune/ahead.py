"""Compiles on CPU cores what the GPUs measure next: from tasks in order to tasks whose images are all there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore
from aotriton.rules.image import ImageSpec
from aotriton.tune.problems import Problem

LOOKAHEAD = 16  # problems compiled but not measured yet; beyond it the compilers wait, so that a cut run wastes little

Compile = Callable[
    [Iterable[ImageSpec], ImageStore, int | None], Iterator[tuple[ImageSpec, CompiledImage | CompileFailure]]
]


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
    """Hands out each task once, to any number of threads, as its images become ready."""

    def __init__(self, tasks: Sequence[Task], store: ImageStore, jobs: int | None, compile_images: Compile) -> None:
        self._waiting = list(tasks)
        self._changed = threading.Condition()
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(store, jobs, compile_images), name="compile-ahead")
        self._thread.start()

    def take(self, deadline: float) -> Task | None:
        """The first task that is ready, when there is one; None when all were taken, ``stop`` was called, or the
        ``deadline``, on time.monotonic's clock, has passed.
        """
        with self._changed:
            while True:
                if self._error:
                    raise RuntimeError(f"compiling ahead failed: {self._error}") from self._error
                left = deadline - time.monotonic()
                if self._stopped or not self._waiting or left <= 0:
                    return None
                for task in self._waiting:
                    if task.ready:
                        self._waiting.remove(task)
                        self._changed.notify_all()
                        return task
                self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def stop(self) -> None:
        """Ends the compilers, at the latest when one of the images under way is done."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self, store: ImageStore, jobs: int | None, compile_images: Compile) -> None:
        users: dict[str, list[Task]] = {}
        specs: dict[str, ImageSpec] = {}
        for task in self._waiting:
            specs.update(task.specs)
            for name in task.specs:
                users.setdefault(name, []).append(task)
        try:
            results = compile_images(specs.values(), store, jobs)
            for spec, result in results:
                with self._changed:
                    for task in users[spec.name]:
                        task.compiled[spec.name] = result
                    self._changed.notify_all()
                    # Not pulling makes the compilers wait. With nothing ready the GPUs would wait for us: never then.
                    self._changed.wait_for(lambda: self._stopped or sum(t.ready for t in self._waiting) < LOOKAHEAD)
                    if self._stopped:
                        break
            close = getattr(results, "close", None)
            if close:
                close()  # ends the compile workers
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
