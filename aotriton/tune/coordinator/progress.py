"""Shows a tuning run: a line that rewrites itself on a terminal, a line for each problem elsewhere; and its events, for
programs.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from aotriton.tune.problem.problems import Problem

if TYPE_CHECKING:
    from rich.live import Live

AGAIN = 0.2  # seconds until the line is written anew


class Progress:
    """Writes to stderr, so that stdout stays for results; to ``events`` what happens, each as a line of JSON."""

    def __init__(self, deadline: float = float("inf"), events: IO[str] | None = None) -> None:
        self._deadline, self._events = deadline, events
        self._created = time.monotonic()
        self._total = self._skipped = self._done = 0
        self._started = self._shown = time.monotonic()
        self._now = ""
        self._live = _live()

    def begin(self, total: int, skipped: int) -> None:
        self._total, self._skipped, self._started = total, skipped, time.monotonic()
        self.note(f"{total} problems, {skipped} of them measured before")

    def tell(self, event: str, **about: object) -> None:
        """Writes an event, with the seconds since the run began."""
        if self._events:
            seconds = round(time.monotonic() - self._created, 3)
            try:
                print(json.dumps({"event": event, "seconds": seconds, **about}), file=self._events, flush=True)
            except OSError:
                self._events = None  # nobody reads them any more: the run goes on

    def problem(self, problem: Problem) -> None:
        self._now = str(problem)

    @property
    def due(self) -> bool:
        """Whether it is time to rewrite the line."""
        return self._live is not None and time.monotonic() - self._shown > AGAIN

    def show(self, trials: int, gpus: int, busy: float | None, best: str) -> None:
        """Rewrites the line: trials so far, GPUs, the share of their time in which they measured, the best of the
        problem.
        """
        if self._live:
            self._shown = time.monotonic()
            share = f", {busy:.0%} busy" if busy is not None else ""
            about = f"{self._counts()} {trials} trials, {gpus} GPUs{share}  {self._now}"
            self._live.update(f"{about}  best {best}" if best else about, refresh=True)

    def solved(self, problem: Problem, config: str | None, median_us: float) -> None:
        self._done += 1
        result = f"{config}, {median_us:.1f} us" if config else "no candidate was right"
        self._say(f"{self._counts()} {problem}: {result}")
        self.tell("decided", problem=str(problem), config=config, median_us=median_us if config else None)

    def note(self, text: str) -> None:
        """Writes a line that stays."""
        self._say(text)
        self.tell("note", text=text)

    def _say(self, text: str) -> None:
        if self._live:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._live:
            self._live.stop()

    def _counts(self) -> str:
        elapsed = time.monotonic() - self._started
        left = self._total - self._skipped - self._done
        seconds = min(elapsed / self._done * left if self._done else 0.0, self._deadline - time.monotonic())
        minutes, rest = divmod(max(0, round(seconds)), 60)
        eta = f", {minutes}:{rest:02d} left" if self._done else ""
        return f"[{self._skipped + self._done}/{self._total}{eta}]"


def _live() -> Live | None:
    """A line that rewrites itself; None where stderr is not a terminal, or rich is not installed."""
    if sys.stderr.isatty():
        with suppress(ImportError):
            from rich.console import Console
            from rich.live import Live

            live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            live.start()
            return live
    return None
