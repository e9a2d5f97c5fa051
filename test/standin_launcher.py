"""A launcher without a GPU: times follow from the candidate's config, and chosen candidates misbehave.

The child processes read what to do from AOTRITON_STANDIN, a json object: "crash", "hang", "raise", "sticky" (the
context is lost), "lie", "lie_further" (on the second input), "lie_ragged" (at sizes that are no multiples of a tile,
where the family has such), "unsteady" (its bits change), "corrupt" (the inputs) and
"flaky" (crashes in the race) list configs; "log" is a file that
gets a line for each candidate opened, "slow" the seconds that each takes, "late" those that GPUs take to start;
"no_binding" and "dies_at_start" fail at the start. "lost" is [after how many requests the GPU is lost, for how many
more], counted in the folder "counters"; "lost_gpu" names it where there are two. "product" is what the GPU calls
itself, "other" has product and driver of single ones, "uuid" is what uuids begin with. "refuse" lists batches of
shapes on which no launch sequence runs; "lost_gpu" alone has one GPU refuse all of them. "others" are processes of
others that compute on the GPU, "silent" those that may; "clocks" has by config the SM clock after each of its rounds,
and 1980 MHz follow.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aotriton.rules.database.rows import SequenceTiming
from aotriton.tune.measure.requests import Conditions, Device, Draw, Request, Timed
from aotriton.tune.problem.accuracy import Check
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Problem, at


def time_of(config: str) -> float:
    """Microseconds that the stand-in says a config takes: the bigger the tile the better, and one tie at the top."""
    values = {name: int(value) for name, value in (part.split("=") for part in config.split())}
    tile = values.get("BLOCK_M", 64 * values.get("CONSUMERS", 1)) * values.get("BLOCK_N", 1) * values.get("WIDTH", 1)
    stages = values.get("num_stages", values.get("STAGES", 0))
    return round(1e6 / tile * (1 + 0.01 * stages) + 0.1 * values.get("num_warps", 0), 3)


def time_of_call(requests: Sequence[Request], shape: Mapping[str, int]) -> float:
    """Microseconds that the stand-in says the launches of a call take: so many each, and more for each tile of rows."""
    rows, heads = (shape.get(name) or shape[other] for name, other in (("rows", "seqlen_q"), ("heads", "heads_q")))
    total = 0.0
    for request in requests:
        values = {name: int(value) for name, value in (part.split("=") for part in request.config.split())}
        tile = values.get("BLOCK_M")
        total += 2 + values["num_warps"] / 4
        total += shape["batch"] * heads * -(-rows // tile) * (8 + tile) / 1e5 if tile else 0
    return total


class StandinLauncher:
    def __init__(self) -> None:
        self._orders = json.loads(os.environ.get("AOTRITON_STANDIN", "{}"))
        if self._orders.get("no_binding"):
            raise RuntimeError("the binding is missing")
        time.sleep(self._orders.get("late", {}).get(os.environ["CUDA_VISIBLE_DEVICES"], 0))
        if self._orders.get("dies_at_start"):
            os._exit(3)
        self._gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        self._intact, self._healthy = True, True
        self._clocks: list[int] = []  # after the next rounds
        self._checked: set[str] = set()  # what is timed without was checked earlier: it races

    def _told(self, order: str, config: str) -> bool:
        return config in self._orders.get(order, ())

    def device(self) -> Device:
        own = {"product": "stand-in", "driver": "none"} | self._orders.get("other", {}).get(self._gpu, {})
        product = self._orders.get("product", own["product"])
        uuid = f"{self._orders.get('uuid', os.getppid())}-{self._gpu}"  # not that of another test, which may run now
        return Device("sm_90", product, own["driver"], "none", 132, uuid, 1 << 30, 700)

    def conditions(self, since: float) -> Conditions:
        others, silent = (tuple(self._orders.get(name, ())) for name in ("others", "silent"))
        return Conditions(1980, 41, others=others, silent=silent)

    def sm_clock(self) -> int:
        return int(self._clocks.pop(0)) if self._clocks else 1980

    def prepare(self, problem: Problem) -> None:
        self._intact = True
        own: Any = tuning(problem.kernel.family)
        self._ragged = own.ragged(problem) if hasattr(own, "ragged") else {}

    def open(self, request: Request) -> Request:
        if log := self._orders.get("log"):
            with Path(log).open("a") as file:  # one write, so that lines of two children do not mix
                file.write(f"{os.environ['CUDA_VISIBLE_DEVICES']} {request.name} {request.config}\n")
        time.sleep(self._orders.get("slow", 0))
        if self._lost():
            self._healthy = False
            raise RuntimeError("an illegal memory access was encountered")
        self._clocks = list(self._orders.get("clocks", {}).get(request.config, ()))
        if self._told("raise", request.config):
            raise RuntimeError("not_supported: too much shared memory")
        return request

    def check(self, opened: Request) -> Check:
        self._checked.add(opened.name)
        if self._told("crash", opened.config):
            os.abort()
        if self._told("hang", opened.config):
            time.sleep(3600)
        if self._told("sticky", opened.config):
            self._healthy = False
        if not self._healthy:
            raise RuntimeError("an illegal memory access was encountered")
        if self._told("corrupt", opened.config):
            self._intact = False
        if self._told("lie", opened.config):
            return Check(0.2, 0.004, "out is off by 0.2, allowed 0.004")
        return (
            Check(0.001, 0.004) if self._intact or self._told("corrupt", opened.config) else Check(1.0, 0.004, "inputs")
        )

    def check_further(self, opened: Request) -> tuple[Check, int]:
        if self._told("unsteady", opened.config):
            return Check(None, None, "out has other bits after launch 7 on the same inputs"), 21
        if self._told("lie_further", opened.config):
            return Check(0.3, 0.004, "on other numbers: out is off by 0.3, allowed 0.004"), 21
        if self._ragged and self._told("lie_ragged", opened.config):
            return Check(0.3, 0.004, f"{at(self._ragged)}: out is off by 0.3, allowed 0.004"), 21
        return Check(0.002, 0.004), 21

    def intact(self) -> bool:
        return self._intact

    def round(self, opened: Sequence[Request]) -> list[float | None]:
        if any(one.name not in self._checked and self._told("flaky", one.config) for one in opened):
            os.abort()
        return [time_of(one.config) for one in opened]

    def sequences(self, draw: Draw) -> Timed:
        shape = dict(draw.shape)
        if log := self._orders.get("log"):
            with Path(log).open("a") as file:
                file.write(f"{os.environ['CUDA_VISIBLE_DEVICES']} {draw.functional} {draw.shape}\n")
        lost = "lost" not in self._orders and self._orders.get("lost_gpu") == os.environ["CUDA_VISIBLE_DEVICES"]
        if lost or shape["batch"] in self._orders.get("refuse", ()):
            raise RuntimeError("an illegal memory access was encountered")
        found = []
        for one in draw.sequences:
            images = tuple(request.name for request in one.requests)
            found.append(SequenceTiming(one.backend, images, time_of_call(one.requests, shape), 0.01, 5))
        return Timed(found, self.conditions(0.0))

    def close(self, opened: Any) -> None:
        self._checked.discard(opened.name)

    def healthy(self) -> bool:
        return self._healthy and not self._lost()

    def _count(self, what: str) -> int:
        """How often that has happened, in all children together."""
        if not (folder := self._orders.get("counters")):
            return 0
        path = Path(folder) / f"{what}.{os.environ['CUDA_VISIBLE_DEVICES']}"
        with path.open("a") as file:
            file.write(".")
        return path.stat().st_size

    def _lost(self) -> bool:
        """Whether the GPU is off the bus: for good, or for so many requests."""
        after, lasts = self._orders.get("lost", (None, 0))
        if self._orders.get("lost_gpu", os.environ["CUDA_VISIBLE_DEVICES"]) != os.environ["CUDA_VISIBLE_DEVICES"]:
            return False
        return after is not None and after < self._count("request") <= after + lasts
