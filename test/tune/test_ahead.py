"""Compiling ahead: images that a search is likely to ask for."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import landscape
from test_session import small

from aotriton.codegen.compile import ImageStore
from aotriton.tune.coordinator.images import Images
from aotriton.tune.problem.candidates import space
from aotriton.tune.search.simplified_search import SimplifiedSearch
from aotriton.tune.search.space import SearchSpace, Trial

PARAMETERS = {**landscape.PARAMETERS, "BLOCK_K": (32, 64), "num_stages": (2, 3, 4)}


def test_a_search_tells_what_it_is_likely_to_ask() -> None:
    """New configs of the space. Of what searches ask after their start two fifths were among them before, at the
    least: rounding, which is not the same in all versions of Python, decides between configs that are as good.
    """
    foreseen = after = 0
    for seed in range(4):
        sizes = landscape.problem(random.Random(seed))
        times = {config: landscape.time_us(config, sizes, "toy") for config in landscape.configs(PARAMETERS)}
        search = SimplifiedSearch(
            SearchSpace(tuple(times), PARAMETERS, landscape.DEFAULTS, sizes), "transfer", seed, 64
        )
        told: set[Any] = set()
        asked: list[Any] = []
        while not search.finished:
            batch = search.ask(4)
            after += len(batch) if told else 0
            foreseen += sum(config in told for config in batch)
            asked += batch
            likely = search.likely
            assert set(likely) <= set(times)
            assert not set(likely) & set(asked)
            told |= set(likely)
            search.tell([Trial(config, "ok" if times[config] else "pruned", times[config]) for config in batch])
    assert after > 64
    assert foreseen >= 0.4 * after


class Silent:
    """A cluster that counts what it is to compile: at once, or later."""

    setting = None

    def __init__(self) -> None:
        self.jobs: list[tuple[str, bool]] = []

    def submit(self, run: Any, job: Any, needs: str, address: str | None = None, later: bool = False) -> str:
        self.jobs.append((job.request["name"], later))
        return str(len(self.jobs))


def test_what_may_be_wanted_takes_half_of_the_compilers(tmp_path: Path) -> None:
    """No more, and none beyond what is wanted; what is compiled so is not compiled again when it is wanted, but what
    waits for compilers that have nothing else to do is.
    """
    cluster: Any = Silent()
    writer: Any = SimpleNamespace()
    images = Images(cluster, ImageStore(tmp_path), {}, writer)
    images.compilers["a"] = 6
    specs = space(small()[0]).candidates
    for spec in specs[:5]:
        images.want_perhaps(spec)
    assert cluster.jobs == [(spec.name, False) for spec in specs[:3]]
    search: Any = SimpleNamespace(compiling=set())
    assert images.want(search, specs[0]) is None
    assert len(cluster.jobs) == 3
    images.want_later(specs[6])
    images.want(search, specs[6])
    images.want(search, specs[6])
    assert cluster.jobs[3:] == [(specs[6].name, True), (specs[6].name, False)]
