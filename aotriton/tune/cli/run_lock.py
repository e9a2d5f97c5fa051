"""One run at a time for a kernel and a database: a second one waits, and then finds what the first one measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aotriton.tune.workers.lock import Lock

LOOK = 0.2  # seconds between two looks


@contextmanager
def alone(database: Path, kernels: Iterable[str], note: Callable[[str], None]) -> Iterator[None]:
    """Keeps other runs of these kernels off the database. ``note`` is told when this one has to wait."""
    with ExitStack() as held:
        for kernel in sorted(kernels):  # in one order: two runs never wait for each other
            lock = Lock(database.with_name(f".{database.name}.{kernel}.lock"))
            wait_for(lock, f"another run tunes {kernel} into {database}", note)
            held.callback(lock.release)
        yield


def wait_for(lock: Lock, why: str, note: Callable[[str], None]) -> None:
    """Takes the lock, however long another process has it."""
    if not lock.take():
        note(f"{why}: waiting for it")
        while not lock.take():
            time.sleep(LOOK)
