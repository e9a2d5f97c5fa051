"""Whose fault a failure is, by what has run on the GPU: rows are what a writer is given, a GPU is none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_next_job import NAMES, SPECS, gpu, search

from aotriton.codegen.compile import CompiledImage
from aotriton.rules.database import Outcome
from aotriton.tune.coordinator.incidents import CANARIES, HOPELESS_AFTER, Incidents
from aotriton.tune.coordinator.rows import DETAIL, Rows, shortened
from aotriton.tune.coordinator.state import Search
from aotriton.tune.coordinator.usage import Usage
from aotriton.tune.coordinator.writer import Row
from aotriton.tune.workers.jobs import Failed

CRASHED = Failed("crashed", "it died")


class Written:
    """A writer that keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def put(self, rows: list[Row]) -> None:
        self.rows += rows

    @property
    def images(self) -> list[str]:
        return [image[0] for image, _ in self.rows]


class Images(dict[str, CompiledImage]):
    """All images, compiled."""

    def __init__(self) -> None:
        super().__init__({name: CompiledImage(name, {"sha256": ""}, Path()) for name in SPECS})

    stored = dict.get


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def recorded() -> list[Outcome]:
    return []


@pytest.fixture
def incidents(written: Written, recorded: list[Outcome]) -> Incidents:
    images: Any = Images()
    progress: Any = SimpleNamespace(note=lambda text: None)
    writer: Any = written
    rows = Rows(writer, images, Usage(0.0), progress, lambda device: 1)
    return Incidents(images, rows, progress, lambda search: recorded)


def test_a_failure_is_a_row_where_something_ran(incidents: Incidents, written: Written) -> None:
    """On a GPU that has run a candidate a crash is the candidate's fault."""
    one = search(ready=0)
    proven = gpu(one)
    proven.ran = True
    assert incidents.blame(proven, one, NAMES[0], "sweep", CRASHED) is None
    ((_, row),) = written.rows
    assert (row.status, row.phase, row.detail, row.median_us) == ("crashed", "sweep", "it died", None)


def test_verdicts_wait_until_something_has_run(incidents: Incidents, written: Written) -> None:
    """On a GPU on which nothing has run they are withheld; they are rows once a candidate runs."""
    one = search(ready=0)
    fresh = gpu(one)
    for name in NAMES[:2]:
        assert incidents.blame(fresh, one, name, "sweep", CRASHED) is None
    incidents.release(fresh)
    assert not written.rows
    fresh.ran = True
    incidents.release(fresh)
    incidents.release(fresh)
    assert written.images == NAMES[:2]


def test_a_gpu_on_which_nothing_runs_is_at_fault(incidents: Incidents, written: Written) -> None:
    """After HOPELESS_AFTER failures without a single run the GPU is to blame, and no candidate has a row."""
    one = search(ready=0)
    sick = gpu(one)
    faults = [incidents.blame(sick, one, name, "sweep", CRASHED) for name in NAMES[:HOPELESS_AFTER]]
    assert faults[:-1] == [None] * (HOPELESS_AFTER - 1)
    assert faults[-1]
    assert "the fault is not in them" in faults[-1]
    assert not written.rows


def test_canaries_are_the_last_right_candidates(incidents: Incidents, recorded: list[Outcome]) -> None:
    """Those that are recorded of the problem, then those of this run, the last ones first; a problem that has none is
    proven with another one's.
    """
    recorded += [_outcome(name, status) for name, status in zip(NAMES, ("ok", "crashed", "ok"), strict=False)]
    one = search(ready=0)
    assert _names(incidents, one) == [NAMES[2], NAMES[0]]
    for name in NAMES[3:5]:
        incidents.add_canary(one, name)
    assert _names(incidents, one) == [NAMES[4], NAMES[3], NAMES[2]][:CANARIES]
    recorded.clear()
    assert _names(incidents, search(ready=0)) == _names(incidents, one)


def _names(incidents: Incidents, search: Search) -> list[str]:
    return [canary.request.name for canary in incidents.canaries(search)]


def _outcome(image: str, status: str) -> Outcome:
    outcome: Any = SimpleNamespace(image=image, status=status)
    made: Outcome = outcome
    return made


def test_a_message_is_shortened_in_its_middle() -> None:
    """A row keeps beginning and end of a long message, and all of a short one."""
    assert shortened("x" * DETAIL) == "x" * DETAIL
    assert shortened("a" * DETAIL + "z" * DETAIL) == "a" * (DETAIL // 2) + " ... " + "z" * (DETAIL // 2)
