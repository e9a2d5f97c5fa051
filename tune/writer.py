"""Writes rows in a thread of its own: whoever measures goes on while the disk has the last rows."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aotriton.rules.database import Measurement, TuningDatabase

Image = tuple[str, str, dict[str, object]]  # name, config, facts


class Writer:
    """Appends measurements to a database, in order, those that wait in one transaction."""

    def __init__(self, path: Path) -> None:
        self._waiting: queue.SimpleQueue[Sequence[tuple[Image, Measurement]] | threading.Event | None]
        self._waiting = queue.SimpleQueue()
        self._path = path
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, rows: Sequence[tuple[Image, Measurement]]) -> None:
        """Rows that belong together: all of them are written or none. What failed before is raised here."""
        self._raise()
        if rows:
            self._waiting.put(rows)

    def drain(self) -> None:
        """Returns when all that was put is on disk."""
        done = threading.Event()
        self._waiting.put(done)
        done.wait()
        self._raise()

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _raise(self) -> None:
        if self._error:
            raise self._error

    def _run(self) -> None:
        waiting: list[threading.Event] = []
        try:
            with TuningDatabase(self._path) as database:
                numbers: dict[str, int] = {}
                while True:
                    taken = [self._waiting.get()]
                    while not self._waiting.empty():
                        taken.append(self._waiting.get())
                    waiting = [one for one in taken if isinstance(one, threading.Event)]
                    rows = [row for one in taken if one and not isinstance(one, threading.Event) for row in one]
                    self._write(database, rows, numbers)
                    for event in waiting:
                        event.set()
                    if None in taken:
                        return
        except BaseException as error:
            self._error = error
            for event in waiting:
                event.set()
            while (one := self._waiting.get()) is not None:  # nobody is to wait for what is never written
                if isinstance(one, threading.Event):
                    one.set()

    @staticmethod
    def _write(database: TuningDatabase, rows: Sequence[tuple[Image, Measurement]], numbers: dict[str, int]) -> None:
        for (name, config, facts), _ in rows:
            if name not in numbers:
                numbers[name] = database.image_id(name, config, **facts)  # type: ignore[arg-type]
        if rows:
            database.record(*(replace(row, image=numbers[image[0]]) for image, row in rows))
