"""Shows a tuning run: one line that rewrites itself on a terminal, a line for each problem elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from shutil import get_terminal_size

from aotriton.tune.problems import Problem


class Progress:
    """Thread-safe; writes to stderr, so that stdout stays for results. ``quiet`` shows notes only."""

    def __init__(self, deadline: float = float("inf")) -> None:
        self._lock = threading.Lock()
        self._terminal = sys.stderr.isatty()
        self._deadline = deadline
        self._total = self._skipped = self._done = 0
        self._started = time.monotonic()
        self._now: dict[int, tuple[str, int, int]] = {}  # by thread: the problem, its candidates, those begun

    def begin(self, total: int, skipped: int) -> None:
        self._total, self._skipped, self._started = total, skipped, time.monotonic()
        self.note(f"{total} problems, {skipped} of them measured before")

    def problem(self, problem: Problem, candidates: int) -> None:
        self._now[threading.get_ident()] = str(problem), candidates, 0

    def candidate(self, config: str, best_us: float | None) -> None:
        title, candidates, begun = self._now.get(threading.get_ident(), ("", 0, 0))
        self._now[threading.get_ident()] = title, candidates, min(begun + 1, candidates)
        if self._terminal:
            best = f"best {best_us:.1f} us, " if best_us else ""
            self._show(f"{self._counts()} {title} [{begun + 1}/{candidates}] {best}trying {config}")

    def solved(self, problem: Problem, config: str | None, median_us: float) -> None:
        with self._lock:
            self._done += 1
        result = f"{config}, {median_us:.1f} us" if config else "no candidate was right"
        self.note(f"{self._counts()} {problem}: {result}")

    def note(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            clear = "\r\033[K" if self._terminal else ""
            print(f"{clear}{text}", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal:
            self._show("")

    def _show(self, text: str) -> None:
        with self._lock:
            print(f"\r\033[K{text[: get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)

    def _counts(self) -> str:
        elapsed = time.monotonic() - self._started
        left = self._total - self._skipped - self._done
        seconds = min(elapsed / self._done * left if self._done else 0.0, self._deadline - time.monotonic())
        minutes, rest = divmod(max(0, round(seconds)), 60)
        eta = f", {minutes}:{rest:02d} left" if self._done else ""
        return f"[{self._skipped + self._done}/{self._total}{eta}]"
