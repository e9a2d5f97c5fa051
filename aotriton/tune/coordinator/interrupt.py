"""Ctrl-C, handled only where nothing is lost by it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupt:
    """Within it the first Ctrl-C is kept until ``check``; the second one is Python's own, at once.

    ``wake`` is called when the first one comes. Only the main thread receives signals: in another one nothing changes.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._came = False

    def check(self) -> None:
        """Raises the KeyboardInterrupt that was kept."""
        if self._came:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._come)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _come(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._wake()
