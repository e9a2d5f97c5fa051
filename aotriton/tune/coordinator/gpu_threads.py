"""Jobs for the GPUs of this machine: a thread for each GPU takes one after the other. At the first Ctrl-C none is begun
any more.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TypeVar

from aotriton.rules.database import TuningDatabase
from aotriton.tune.coordinator.interrupt import Interrupt
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.workers.gpu_process import GpuProcess

FAILURES = 3  # in a row, after which a GPU has no further job

Job = TypeVar("Job")


def work_through(
    jobs: Iterable[Job],
    workers: Sequence[GpuProcess],
    path: Path,
    deadline: float,
    progress: Progress,
    work: Callable[[TuningDatabase, GpuProcess, Job], Iterator[bool]],
) -> None:
    """Has all jobs done, none of them begun after ``deadline`` on time.monotonic's clock.

    ``work`` does a job in steps, and yields for each whether it succeeded. Each thread has the database at ``path``
    open for it.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    given = waiting, path, deadline, progress, work
    threads = [threading.Thread(target=_work, args=(worker, *given), daemon=True) for worker in workers]
    with Interrupt(lambda: _drain(waiting)):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _drain(waiting: queue.SimpleQueue[Job]) -> None:
    with suppress(queue.Empty):
        while True:
            waiting.get_nowait()


def _work(
    worker: GpuProcess,
    waiting: queue.SimpleQueue[Job],
    path: Path,
    deadline: float,
    progress: Progress,
    work: Callable[[TuningDatabase, GpuProcess, Job], Iterator[bool]],
) -> None:
    failures = 0
    with TuningDatabase(path) as database, suppress(queue.Empty):
        while monotonic() < deadline:
            for succeeded in work(database, worker, waiting.get_nowait()):
                failures = 0 if succeeded else failures + 1
                if failures == FAILURES:
                    progress.note(f"GPU {worker.gpu} stops after {FAILURES} failures in a row")
                    return
