"""Results that documents quote: which one is the newest, of what state it is, and links to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import stored

FOLDER = Path(__file__).resolve().parent.parent / "results"


class Results:
    """The results of a folder, "<gpu>-<figure>.json", read when they are asked for.

    ``older(name, record)`` says whether a result is of an older state than the tree.
    """

    def __init__(self, folder: Path, older: Callable[[str, Mapping[str, Any]], bool]) -> None:
        self._folder, self._older = folder, older

    def __call__(self, name: str) -> dict[str, Any]:
        record: dict[str, Any] = stored.load(self._folder / f"{name}.json")
        return record

    def ranked(self, figure: str) -> list[str]:
        """The names of a figure's results, of all GPUs, the newest first: what is of this tree's state is newer than
        what is not, and then dates count.
        """
        names = (path.name.partition(".")[0] for path in self._folder.glob(f"*-{figure}.json*"))
        mine = [name for name in names if name.partition("-")[2] == figure]
        return sorted(mine, key=lambda name: (not self.is_older(name), date(self(name)), name), reverse=True)

    def newest(self, figure: str) -> str:
        return self.ranked(figure)[0]

    def has(self, figure: str) -> bool:
        return bool(self.ranked(figure))

    def is_older(self, name: str) -> bool:
        return self._older(name, self(name))

    def of(self, name: str) -> str:
        """Which commit and state a result is of, and whether it is an older one."""
        state = self(name)["state"]
        told = [f"{kind} {state[kind]}" for kind in ("images", "runtime", "declarations") if kind in state]
        older = "**of an older state**, " if self.is_older(name) else ""
        return f"{older}{', '.join(['commit ' + state['commit'], *told])}"

    def about(self, name: str) -> str:
        """The GPU and the day of a result, and what it is of."""
        record = self(name)
        return f"{record.get('machine', record)['gpu']}, {day(record)}, {self.of(name)}"


def date(record: Mapping[str, Any]) -> str:
    """Empty of a result that has none, as it follows from the database."""
    return str(record.get("machine", record).get("date", ""))


def day(record: Mapping[str, Any]) -> str:
    return date(record)[:10]


def gpu_of(name: str) -> str:
    return name.partition("-")[0].upper()


def link(name: str) -> str:
    """A link to a result, from a page of docs/."""
    return f"[result](../bench/results/{stored.place(FOLDER / f'{name}.json').name})"


def listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
