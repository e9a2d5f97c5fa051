"""PyTorch's own tests of SDPA and of varlen_attn, run with this library in the place of torch's kernels.

    PYTHONPATH=$PWD:build/default/python python test/gpu/pytorch_suite.py FOLDER --count 1000 --seed 7 --baseline
    PYTHONPATH=$PWD:build/default/python python test/gpu/pytorch_suite.py FOLDER -k varlen

FOLDER holds test_transformers.py and test_varlen_attention.py of the installed release of torch: it is the folder test/
of PyTorch's repository, or a copy of these files. They need pytest, expecttest, numpy and setuptools.

Of each test it is known what became of it, and how many of its calls ran here, or went on to torch's own kernel and
why. Failures that are none of this library's are told apart: those of tests that expect that torch's kernel refuses the
call, or warns of it, which is served here; those of tests that ask torch which weights its kernel dropped; and with
--baseline those that are there without this library, too. The exit code is 1 if there are others.

Tests run in a process of their own. One that ends it, by a segmentation fault for instance, has failed, and a new
process goes on with the rest.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

import pytest

FILES = ("test_transformers.py", "test_varlen_attention.py")
# Rootdir, configuration and conftest.py of the folders around FOLDER are of other tests.
OPTIONS = (
    "-q", "--tb=short", "--no-header", "--no-summary", "--noconftest", "-p", "no:cacheprovider", "-c", os.devnull,
)  # fmt: skip
# What assertRaises and assertWarns say; torch's assertNotEqual says it of an AssertionError, which is no refusal.
NOT_REFUSED = re.compile(r"AssertionError: (?!AssertionError)\w+ not (raised|triggered)")
WITH_DROPOUT = re.compile(r"dropout_p_(?!0_0_)")

# Why a test may fail whose calls ran here.
SERVED = "served where torch's kernel refuses or warns"
DROPPED = "compared with the weights that torch's kernel drops"
ENDED = "the process ended in it"
WITH, WITHOUT = "with", "without"  # this library

HERE = "here"
Calls = Counter[tuple[str, str]]  # "forward" or "backward", and HERE or why the call went on to torch's kernel
Stats = dict[str, dict[str, Any]]  # what aotriton.torch.stats() returns


def calls_of(found: Stats) -> Calls:
    flat: Calls = Counter()
    for way in ("forward", "backward"):
        flat[way, HERE] += found[way]["aotriton"]
        for why, count in found[way]["torch"].items():
            flat[way, why] += count
    return flat


class Door(Protocol):
    """What lets torch's calls into a library, and counts them."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def stats(self) -> Stats: ...


class Backend:
    """This library's, as docs/pytorch.md has it: one call for SDPA, jagged tensors and varlen_attn."""

    def open(self) -> None:
        from torch.nn.attention import activate_flash_attention_impl

        import aotriton.torch  # noqa: F401 (registers the backend)

        activate_flash_attention_impl("aotriton")

    def close(self) -> None:
        from torch.nn.attention import restore_flash_attention_impl

        restore_flash_attention_impl()

    def stats(self) -> Stats:
        import aotriton.torch

        return aotriton.torch.stats()


@dataclass
class Outcome:
    """``result``: passed, failed or skipped; ``why``: the last line of the error, or the reason to skip; ``excuse``:
    SERVED or DROPPED, if calls of a test that failed ran here.
    """

    result: str
    why: str = ""
    excuse: str = ""
    calls: Calls = field(default_factory=Counter)

    @property
    def here(self) -> int:
        return sum(count for (_, where), count in self.calls.items() if where == HERE)

    @property
    def passed_on(self) -> int:
        return self.calls.total() - self.here


def outcome(report: Any) -> Outcome:
    """What pytest's report of a test says."""
    if report.skipped:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return Outcome("skipped", text.removeprefix("Skipped: "))
    if report.passed:
        return Outcome("passed")
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else report.longreprtext
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return Outcome("failed", lines[-1] if lines else "no message", SERVED if NOT_REFUSED.match(message) else "")


def asks_what_torch_dropped(item: Any) -> bool:
    """Torch's memory-efficient kernel draws with numbers that its tests get from this function."""
    if not WITH_DROPOUT.search(item.name):
        return False
    return "_fill_mem_eff_dropout_mask_" in inspect.getsource(inspect.unwrap(item.function))


def function_of(item: Any) -> str:
    """The function that a test is one of the parameters of, and its class."""
    return f"{item.path.name}::{item.cls.__name__}::{inspect.unwrap(item.function).__code__.co_name}"


def draw(functions: dict[str, str], count: int, seed: int) -> list[str]:
    """``count`` of the tests, by chance, of all functions in turn, so that a function with few of them has them all.
    ``functions``: of each test, which one it is of.
    """
    chance = random.Random(seed)
    groups: dict[str, list[str]] = {}
    for name in sorted(functions):
        groups.setdefault(functions[name], []).append(name)
    for group in groups.values():
        chance.shuffle(group)
    return [name for turn in zip_longest(*groups.values()) for name in turn if name is not None][:count]


class Journal:
    """A file that says which tests began, with the library or without it, and what became of them. Without a path it
    is none.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def add(self, way: str, name: str, found: Outcome | None = None) -> None:
        """The test begins, or ends with what was ``found``."""
        if self.path:
            calls = [[*key, count] for key, count in found.calls.items()] if found else []
            said = [found.result, found.why, found.excuse, calls] if found else None
            with self.path.open("a") as file:
                file.write(json.dumps([way, name, said]) + "\n")

    def outcomes(self, way: str) -> dict[str, Outcome]:
        """Of the tests that began so far; one that did not end has failed."""
        found: dict[str, Outcome] = {}
        for line in self.path.read_text().splitlines() if self.path else ():
            of, name, said = json.loads(line)
            if of == way and said:
                result, why, excuse, calls = said
                counted: Calls = Counter({(one, where): count for one, where, count in calls})
                found[name] = Outcome(result, why, excuse, counted)
            elif of == way:
                found[name] = Outcome("failed", ENDED)
        return found


class Watch:
    """pytest's plugin: runs what ``choose`` takes of a device's tests, in its order, without those that the journal
    knows, and keeps what became of each. ``way``: with the library or without it.
    """

    def __init__(
        self, choose: Callable[[dict[str, str]], list[str]], door: Door, device: str, seconds: float, journal: Journal,
        way: str,
    ) -> None:  # fmt: skip
        self.choose, self.door, self.device, self.journal, self.way = choose, door, device, journal, way
        self.ends = time.monotonic() + seconds
        self.outcomes: dict[str, Outcome] = journal.outcomes(way)
        self.chosen: list[str] = []
        self.broken: list[str] = []  # files that cannot be imported

    @pytest.hookimpl(trylast=True)  # after -k
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        own = {item.nodeid: item for item in items if item.cls and item.cls.__name__.endswith(self.device.upper())}
        self.chosen = self.choose({name: function_of(item) for name, item in own.items()})
        taken = [name for name in self.chosen if name not in self.outcomes]
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in set(taken)])
        items[:] = [own[name] for name in taken]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        before = calls_of(self.door.stats())
        self.journal.add(self.way, item.nodeid)
        result = yield
        became = self.outcomes[item.nodeid]
        became.calls = calls_of(self.door.stats()) - before
        if became.result == "failed" and asks_what_torch_dropped(item):
            became.excuse = became.excuse or DROPPED
        self.journal.add(self.way, item.nodeid, became)
        if time.monotonic() > self.ends:
            item.session.shouldstop = "no time is left"
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.passed and report.when != "call":
            return
        known = self.outcomes.get(report.nodeid)
        if known is None or (report.failed and known.result != "failed"):
            self.outcomes[report.nodeid] = outcome(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken.append(report.longreprtext)


@dataclass
class Report:
    """What became of each test, with the library and, of those that were run again, without it."""

    outcomes: dict[str, Outcome]
    not_run: int = 0
    without: dict[str, Outcome] = field(default_factory=dict)

    def _fails_without(self, name: str) -> bool:
        return name in self.without and self.without[name].result == "failed"

    @property
    def fail_anyway(self) -> list[str]:
        return [name for name, one in self.outcomes.items() if one.result == "failed" and self._fails_without(name)]

    def excused(self, excuse: str) -> list[str]:
        return [
            name for name, one in self.outcomes.items()
            if one.result == "failed" and not self._fails_without(name) and one.excuse == excuse and one.here
        ]  # fmt: skip

    @property
    def failed(self) -> list[str]:
        known = {*self.fail_anyway, *self.excused(SERVED), *self.excused(DROPPED)}
        return [name for name, one in self.outcomes.items() if one.result == "failed" and name not in known]

    @property
    def repaired(self) -> list[str]:
        return [name for name, one in self.outcomes.items() if one.result == "passed" and self._fails_without(name)]

    def _rows(self) -> list[str]:
        rows = [f"  {'':10}{'tests':>8}{'ran here':>10}{'passed on':>11}{'neither':>9}"]
        for result in ("passed", "failed", "skipped"):
            some = [one for one in self.outcomes.values() if one.result == result]
            here, passed_on = sum(one.here > 0 for one in some), sum(one.passed_on > 0 for one in some)
            neither = sum(not one.calls.total() for one in some)
            rows.append(f"  {result:10}{len(some):8}{here:10}{passed_on:11}{neither:9}")
        return rows

    def __str__(self) -> str:
        calls: Calls = sum((one.calls for one in self.outcomes.values()), Counter())
        passed_on = Counter({f"{way}: {why}": count for (way, why), count in calls.items() if why != HERE})
        skipped = Counter(one.why for one in self.outcomes.values() if one.result == "skipped")
        lines = ["tests, and in how many of them calls ran here, passed on to torch's kernel, or did neither:"]
        lines += self._rows()
        lines += [f"calls that ran here: {calls['forward', HERE]} forward, {calls['backward', HERE]} backward"]
        for title, counts in (("calls that were passed on:", passed_on), ("tests that were skipped:", skipped)):
            lines += [title, *(f"  {count:8}  {why}" for why, count in counts.most_common())] if counts else []
        for title, names, outcomes in (
            *((excuse, self.excused(excuse), self.outcomes) for excuse in (SERVED, DROPPED)),
            ("fail without this library, too", self.fail_anyway, self.outcomes),
            ("fail only without this library", self.repaired, self.without),
            ("failed", self.failed, self.outcomes),
        ):
            if names or title == "failed":
                lines += [f"{title}: {len(names)}", *(f"  {name}: {outcomes[name].why}" for name in names)]
        if self.without:
            lines.append(f"run again without this library: {len(self.without)}")
        if self.not_run:
            lines.append(f"not run, for lack of time: {self.not_run}")
        return "\n".join(lines)


def run(
    folder: Path,
    count: int | None = None,
    seed: int = 0,
    expression: str = "",
    baseline: str = "",
    seconds: float = float("inf"),
    door: Door | None = None,
    device: str = "cuda",
    journal: Path | None = None,
) -> Report:
    """Runs the tests of ``folder`` with the door open; then, as ``baseline`` says, those that "failed" or "all" with
    the door closed. ``count``: so many, drawn by chance; ``seconds``: of each run, after which no test begins. Those
    that the ``journal`` knows are not run again.
    """
    os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"  # or an error's last line is how to repeat it
    library = Backend() if door is None else door

    def watched(choose: Callable[[dict[str, str]], list[str]], way: str) -> Watch:
        watch = Watch(choose, library, device, seconds, Journal(journal), way)
        where = folder.resolve()
        some = ["-k", expression] if expression else []
        files = [str(where / name) for name in FILES if (where / name).exists()]
        if not files:
            raise SystemExit(f"{folder} has neither of {', '.join(FILES)}")
        code = pytest.main([*OPTIONS, f"--rootdir={where}", *some, *files], plugins=[watch])
        if watch.broken or code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
            raise SystemExit("\n".join([*watch.broken, "the tests could not be run"]))
        return watch

    def drawn(functions: dict[str, str]) -> list[str]:
        return list(functions) if count is None else draw(functions, count, seed)

    library.open()
    try:
        watch = watched(drawn, WITH)
    finally:
        library.close()
    report = Report(watch.outcomes, len(watch.chosen) - len(watch.outcomes))
    again = {name for name, one in watch.outcomes.items() if baseline == "all" or one.result == "failed"}
    if baseline and again:
        report.without = watched(lambda functions: [name for name in watch.chosen if name in again], WITHOUT).outcomes
    return report


def in_processes(arguments: Sequence[str]) -> int:
    """Runs this program with a journal until no signal ends it. Returns its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        journal.touch()
        while True:
            known = journal.stat().st_size
            code = subprocess.run([sys.executable, __file__, *arguments, "--journal", journal]).returncode
            if code >= 0 or journal.stat().st_size == known:  # a process that began no test ends in the same way again
                return abs(code)


def main() -> int:
    parser = argparse.ArgumentParser(description="PyTorch's own tests of attention, with this library.")
    parser.add_argument("folder", type=Path, help=f"where {' and '.join(FILES)} of the installed release are")
    parser.add_argument("--count", type=int, help="run so many, of every test function alike (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn (%(default)s)")
    parser.add_argument("-k", dest="expression", default="", help="only those that pytest's -k takes")
    parser.add_argument(
        "--baseline", nargs="?", const="failed", default="", choices=["failed", "all"],
        help="then run those that failed, or all, without this library",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no test of a run after so long")
    parser.add_argument("--journal", type=Path, help="what became of tests in a process before; for this program")
    options = parser.parse_args()
    if not options.journal:
        return in_processes(sys.argv[1:])
    begun = time.perf_counter()
    report = run(**vars(options))
    print(report)
    print(f"{time.perf_counter() - begun:.0f} s")
    if not report.outcomes:
        print("no test was run")
    return 1 if report.failed or not report.outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
