"""Writes rows in a thread of its own, so that measuring does not wait for the disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aotriton.rules.database import Measurement, TuningDatabase

Image = tuple[str, str, dict[str, object]]  # name, config, facts
Row = tuple[Image, Measurement]  # the image's id is found when it is written


@dataclass(frozen=True)
class _Change:
    """Another change of the database, and the event that is set when it and all that was put before is written."""

    make: Callable[[TuningDatabase], object]
    done: threading.Event


class Writer:
    """Writes to a database in the order of the calls, rows that wait in one transaction.

    ``wake`` is called, in the thread, whenever something was written. An error is raised by the next call.
    """

    def __init__(self, path: Path, wake: Callable[[], None]) -> None:
        self._waiting: queue.SimpleQueue[Sequence[Row] | _Change | None] = queue.SimpleQueue()
        self._path, self._wake = path, wake
        self._numbers: dict[str, int] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, rows: Sequence[Row]) -> None:
        """Has rows written that belong together: all of them or none."""
        self.check()
        if rows:
            self._waiting.put(rows)

    def change(self, make: Callable[[TuningDatabase], object] = lambda database: None) -> threading.Event:
        """Has a change made. Returns an event that is set when it, and all that was put before, is on disk."""
        self.check()
        change = _Change(make, threading.Event())
        self._waiting.put(change)
        return change.done

    def close(self) -> None:
        """Returns when all is written."""
        self._waiting.put(None)
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raises the error of the thread, if there is one."""
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            with TuningDatabase(self._path) as database:
                while self._write(database, self._taken()):
                    self._wake()
        except BaseException as error:
            self._error = error
            self._wake()

    def _taken(self) -> list[Sequence[Row] | _Change | None]:
        """All that waits, once there is something."""
        taken = [self._waiting.get()]
        while not self._waiting.empty():
            taken.append(self._waiting.get())
        return taken

    def _write(self, database: TuningDatabase, taken: list[Sequence[Row] | _Change | None]) -> bool:
        """Writes what was taken; False where that was the end."""
        rows: list[Row] = []
        for one in taken:
            if one is None or isinstance(one, _Change):
                self._record(database, rows)
                rows = []
                if one is None:
                    return False
                one.make(database)
                one.done.set()
            else:
                rows += one
        self._record(database, rows)
        return True

    def _record(self, database: TuningDatabase, rows: Sequence[Row]) -> None:
        for (name, config, facts), _ in rows:
            if name not in self._numbers:
                self._numbers[name] = database.evidence.image_id(name, config, **facts)  # type: ignore[arg-type] # the store checks
        if rows:
            database.evidence.record(*(replace(row, image=self._numbers[image[0]]) for image, row in rows))
