"""What a GPU does next is a function of the open problems: no cluster, no database and no GPU is needed to ask it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from test_session import small

from aotriton.rules.image import ImageSpec
from aotriton.tune.coordinator.next_job import (
    AHEAD,
    JOBS_A_SECOND,
    batch_of,
    batch_size,
    is_last_job,
    next_search,
    why_idle,
)
from aotriton.tune.coordinator.state import Gpu, Search
from aotriton.tune.coordinator.usage import Why
from aotriton.tune.measure.requests import Request
from aotriton.tune.problem.candidates import space
from aotriton.tune.workers.jobs import Facts

PROBLEM = small()[0]
SPECS = {spec.name: spec for spec in space(PROBLEM).candidates}
NAMES = list(SPECS)


def request(spec: ImageSpec) -> Request:
    return Request(spec.name, PROBLEM.kernel.name, spec.config, Path(), {}, dict(spec.tunables))


def search(tensors: object = "a", ready: int = 1, **state: Any) -> Search:
    """An open problem with these tensors and so many ready candidates."""
    handle: Any = None  # the strategy is not asked here
    made = Search(PROBLEM, 1, handle, {}, SPECS)
    made.tensors = tensors  # type: ignore[assignment] # a stand-in
    made.specs.update(SPECS)
    made.ready = {name: request(SPECS[name]) for name in NAMES[:ready]}
    for name, value in state.items():
        setattr(made, name, value)
    return made


def gpu(own: Search | None = None, jobs: Iterable[tuple[Search, int]] = (), address: str = "gpu") -> Gpu:
    """A GPU that works on ``own``, with jobs of so many candidates of problems."""
    made = Gpu(address, Facts("", "", ""))
    made.turn_to(own)
    for number, (of, count) in enumerate(jobs):
        job: Any = type("Job", (), {"requests": (None,) * count})
        made.in_flight[str(number)] = of, job
    return made


def test_a_gpu_goes_on_with_its_own_problem() -> None:
    """Whatever else is ready, as long as its own problem has candidates and is open."""
    own, other = search(), search()
    assert next_search(gpu(own), [other, own], {}, 1) is own
    own.closed = True
    assert next_search(gpu(own), [other], {}, 1) is other


def test_a_gpu_goes_on_where_its_tensors_are() -> None:
    """Of compiled problems those whose tensors the GPU made come first, then those whose tensors no GPU has, then those
    of other GPUs; what is still being compiled comes last.
    """
    searches = [search(1), search(2), search(3), search(1), search(4, compiling={"image"})]
    tensors: dict[object, set[str]] = {1: {"other"}, 3: {"gpu", "other"}}
    order: list[tuple[object, bool]] = []
    while searches:
        found = next_search(gpu(), searches, tensors, 1)
        assert found
        order.append((found.tensors, bool(found.compiling)))
        searches.remove(found)
    assert order == [(3, False), (2, False), (1, False), (1, False), (4, True)]


def test_a_gpu_with_a_job_waits_for_its_race() -> None:
    """When its problem's strategy is exhausted, it takes no other candidates until its jobs have ended: then its race
    is due. If the last job holds the race already, it goes on.
    """
    own, other = search(ready=0, exhausted=True), search()
    busy = gpu(own, [(own, 3)])
    assert next_search(busy, [other], {}, 1) is None
    own.finishing = True
    assert next_search(busy, [other], {}, 1) is other


def test_a_gpu_with_a_job_begins_nothing_that_is_half_compiled() -> None:
    """A problem that is still being compiled goes to a GPU that would have nothing to do otherwise."""
    half, own = search(compiling={"image"}), search(ready=0)
    assert next_search(gpu(own, [(own, 1)]), [half], {}, 1) is None
    assert next_search(gpu(own), [half], {}, 1) is half


def test_a_gpu_without_a_job_helps_another() -> None:
    """It takes a part of the problem of which most is ready, if that is more than the other GPU's next jobs. A GPU that
    has a job takes none.
    """
    little, much, most = search(ready=2 * AHEAD), search(ready=2 * AHEAD + 1), search(ready=2 * AHEAD + 2)
    for number, one in enumerate((little, much, most)):
        gpu(one, address=f"other {number}")
    own = search(ready=0)
    assert next_search(gpu(own), [little, most, much], {}, 2) is most
    assert next_search(gpu(own), [little], {}, 2) is None
    assert next_search(gpu(own, [(own, 1)]), [most], {}, 2) is None


def test_jobs_are_as_large_as_the_scheduler_needs() -> None:
    """One candidate where few GPUs end few jobs; otherwise so many that the scheduler has JOBS_A_SECOND."""
    assert batch_size(1, 0.05) == 1
    assert batch_size(0, 0.05) == 1
    assert 400 / 0.05 / batch_size(400, 0.05) == pytest.approx(JOBS_A_SECOND)


def test_the_likely_winner_is_measured_first() -> None:
    """The config that won elsewhere leads its batch, the others keep their order."""
    one = search(ready=4)
    assert batch_of(one, SPECS[NAMES[2]].config, 3) == [NAMES[2], NAMES[0], NAMES[1]]
    assert batch_of(one, None, 2) == NAMES[:2]


def test_a_job_races_where_it_measures_the_last_candidates() -> None:
    """Only if the strategy is exhausted, nothing is compiled or left over, and the GPU measured all of the problem."""
    one = search(ready=2, exhausted=True, visits=1, measuring=set(NAMES[2:4]))
    mine = gpu(one, [(one, 2)])
    assert is_last_job(mine, one, 2)
    assert not is_last_job(mine, one, 1)
    assert not is_last_job(gpu(one, [(one, 1)]), one, 2)  # another GPU has a candidate
    for state in ({"exhausted": False}, {"compiling": {"image"}}, {"visits": 2}, {"known": {NAMES[5]: None}}):
        other = search(**{"ready": 2, "exhausted": True, "visits": 1, **state})  # type: ignore[arg-type] # names are of fields
        assert not is_last_job(gpu(other), other, 2), state


def test_why_a_gpu_has_no_job() -> None:
    """Images first, then strategies, problems to begin, other GPUs, and the end."""
    compiling, asking = search(compiling={"image"}), search(step=object())
    measuring, ending = search(measuring={"image"}), search(measuring={"image"}, exhausted=True)
    assert why_idle([asking, compiling], True) is Why.IMAGES
    assert why_idle([measuring, asking], True) is Why.STRATEGIES
    assert why_idle([measuring], True) is Why.BEGIN
    assert why_idle([ending, measuring], False) is Why.GPUS
    assert why_idle([ending], False) is Why.END
    assert why_idle([], False) is Why.END
