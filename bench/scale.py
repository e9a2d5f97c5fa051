"""How far does one coordinator reach? Tunes recorded problems on a Dask cluster of simulated machines.

``python bench/scale.py --json OUT [--machines 10 100 1000] [--speed X]`` needs distributed, numpy and scikit-learn, and
no GPU. ``--table`` prints the result.

Coordinator, scheduler, connections, messages and rows are real; the scheduler is a process of its own. A machine has
a Dask worker that measures, and one that compiles SLOTS images at a time: both sleep for as long as the recording says
that it took, and answer with what it found. Images of IMAGE bytes travel, as no machine shares the coordinator's store.
Machines are there and warm when the clock starts; it ends when the winners are written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path[0:1] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from recording import Recording, load

from aotriton.codegen.compile import ImageStore
from aotriton.rules.database import TuningDatabase
from aotriton.rules.family import kernel as description
from aotriton.rules.image import TRITON_VERSION, ImageSpec
from aotriton.rules.kernel import parse_functional
from aotriton.tune import station
from aotriton.tune.check import Check
from aotriton.tune.cluster import Cluster, new_setting
from aotriton.tune.problems import Problem
from aotriton.tune.progress import Progress
from aotriton.tune.search import DEFAULT
from aotriton.tune.session import EXHAUSTIVE, Plan, tune
from aotriton.tune.station import CPU, GPU, Compiled, CompileJob, CompileStation, Facts, GpuStation, Setting
from aotriton.tune.worker import Device, Race, Request, Result

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE / "recordings"
MATMUL = "gemm-4096x4096x4096"
RFC = {"configs": 757, "seconds": 70.6, "machines": 10, "dollars": 0.80}
RATE = RFC["dollars"] / (RFC["machines"] * RFC["seconds"])  # dollars for a machine and second, as the RFC paid
SLOTS = 16  # images that a machine compiles at a time: an H200 node has so many cores a GPU
IMAGE = 32 << 10  # bytes
SAMPLES = 16  # timings of a candidate
PROCESSES = 4  # that hold the simulated machines
BUDGET = 64  # trials of the default strategy


@dataclass(frozen=True)
class Recorded:
    """A recording, with the problem and the images that it is of."""

    recording: Recording

    @cached_property
    def problem(self) -> Problem:
        one = self.recording
        functional = parse_functional(description(one.kernel), one.arch, one.functional)
        cell = tuple(int(part.partition("=")[2]) for part in one.bin.split())
        return Problem(functional, cell, tuple(one.shape.items()))

    @cached_property
    def specs(self) -> list[ImageSpec]:
        """In the order of the configs."""
        psels = {one.name for one in self.problem.kernel.psels}
        return [
            ImageSpec.of(
                self.problem.functional,
                {name: value for name, value in config if name in psels},
                {name: value for name, value in config if name not in psels},
            )
            for config in self.recording.configs
        ]

    @cached_property
    def places(self) -> dict[str, int]:
        return {spec.name: place for place, spec in enumerate(self.specs)}

    def copies(self, count: int) -> list[Problem]:
        """The problem, and others that differ from it in nothing but the size of their batch."""
        shape = dict(self.recording.shape)
        more = [tuple({**shape, "batch": shape["batch"] + step}.items()) for step in range(count)]
        return [replace(self.problem, shape=one) for one in more]


class Recordings:
    """Recordings as machines look into them: by problem and by image."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.all = [Recorded(one) for one in load(RECORDINGS) if not names or one.name in names]
        self._by_problem = {
            (one.recording.kernel, one.recording.functional, one.recording.bin): one for one in self.all
        }
        self.by_image = {name: (one, place) for one in reversed(self.all) for name, place in one.places.items()}

    def of(self, problem: Problem) -> Recorded:
        return self._by_problem[problem.kernel.name, str(problem.functional), problem.bin]


class SimulatedGpu:
    """In the place of a ``GpuWorker``: sleeps, and says what was recorded."""

    def __init__(self, recordings: Recordings, speed: float, number: int) -> None:
        self._recordings, self._speed, self._number = recordings, speed, number

    def device(self) -> Device:
        one = self._recordings.all[0].recording
        return Device(one.arch, one.product, one.driver, one.torch, 132, f"simulated-{self._number}")

    def prepare(self, problem: Problem) -> None:
        self._recorded = self._recordings.of(problem)

    def sweep(self, request: Request, best: float | None) -> Result:
        return Result("ok", [self._taken(request)] * SAMPLES, Check(0.001, 0.004))

    def race(self, requests: Sequence[Request]) -> Race:
        return Race({request.name: [self._taken(request)] * SAMPLES for request in requests})

    def _taken(self, request: Request) -> float:
        """Microseconds."""
        one, place = self._recorded.recording, self._recorded.places[request.name]
        time.sleep(one.measure_s[0][place] / self._speed)
        found = one.passes[0][place]
        assert found is not None
        return found

    def close(self) -> None: ...

    def kill(self) -> None: ...


class SimulatedGpuStation(GpuStation):
    """What a GPU's station does, but for processes and files."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__("0")
        self._simulated = gpu

    def facts(self, setting: Setting) -> Facts:
        return Facts(TRITON_VERSION, station.code_digest(), "of its own", self._simulated.device(), "0")

    def _begin(self, setting: Setting) -> Any:
        self._setting = setting
        return self._simulated

    def _localised(self, job: Any, made: Any) -> list[Request]:
        return list(job.requests)

    def _has(self, request: Request) -> bool:
        return True

    def _local(self, request: Request) -> Request:
        return request


class SimulatedCompileStation(CompileStation):
    """Compilers that sleep."""

    def __init__(self, recordings: Recordings, speed: float) -> None:
        super().__init__()
        self._recordings, self._speed = recordings, speed

    def facts(self, setting: Setting) -> Facts:
        return Facts(TRITON_VERSION, station.code_digest(), "of its own")

    def compile(self, job: CompileJob) -> Compiled:
        name = job.request["name"]
        if name not in self._recordings.by_image:
            return Compiled(message="nobody recorded it")  # a borrowed image, which nobody waits for
        recorded, place = self._recordings.by_image[name]
        one = recorded.recording
        time.sleep(one.compile_s[place] / self._speed)
        if one.statuses[place] == "compile_failed":
            return Compiled(message="failed", seconds=one.compile_s[place])
        facts = one.facts[place]
        pruned = one.statuses[place] == "pruned"
        metadata = {**facts, "spills": int(pruned), "stack": 0, "file": f"{name}.cubin", "name": name, "sha256": ""}
        binary = random.Random(name).randbytes(IMAGE)
        return Compiled(metadata, binary=binary, seconds=one.compile_s[place])


@dataclass(frozen=True)
class Part:
    """What one process simulates: machines ``first`` to ``last`` (exclusive), each with so many compile ``slots``."""

    address: str
    names: tuple[str, ...]
    first: int
    last: int
    slots: int
    speed: float


async def serve(part: Part) -> None:
    """Runs the Dask workers of the part until the scheduler ends."""
    from distributed import Worker

    recordings = Recordings(part.names)
    workers = []
    for number in range(part.first, part.last):
        for resource, count in ((GPU, 1), (CPU, part.slots)):
            options: dict[str, Any] = {"memory_limit": 0, "dashboard": False, "dashboard_address": ":0"}
            name = f"machine-{number}-{resource}"
            worker = await Worker(part.address, nthreads=count, name=name, resources={resource: count}, **options)
            one = SimulatedGpuStation(SimulatedGpu(recordings, part.speed, number))
            station.seat(worker, one if resource == GPU else SimulatedCompileStation(recordings, part.speed))
            workers.append(worker)
    await asyncio.gather(*(worker.finished() for worker in workers))


class Processes:
    """A scheduler, and what simulates the machines."""

    def __init__(self, folder: Path, names: Sequence[str], machines: int, slots: int, speed: float) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        port = self.address.rpartition(":")[2]
        self._said = (folder / "said").open("ab")
        self._environment = os.environ | {
            "PYTHONPATH": str(HERE.parent),
            "AOTRITON_IMAGE_STORE": str(folder / "machines"),
            "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
            "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "60s",
            "OMP_NUM_THREADS": "1",
        }
        dask = ("-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        self.scheduler = self._start(*dask)
        bounds = [round(step * machines / PROCESSES) for step in range(PROCESSES + 1)]
        self._others = [
            self._start(str(HERE / "scale.py"), "--serve", json.dumps([self.address, [*names], first, last, slots, speed]))
            for first, last in zip(bounds, bounds[1:], strict=False)
            if last > first
        ]
        self._workers = 2 * machines

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *command], env=self._environment, stdout=self._said, stderr=self._said
        )

    def wait(self) -> None:
        from distributed import Client

        with Client(self.address, set_as_default=False, timeout=60) as client:
            client.wait_for_workers(self._workers, timeout=300)

    def cpu(self) -> tuple[float, float, float]:
        """Seconds of processor time so far: of this process, of the scheduler, and of what simulates machines."""
        others = sum(cpu_seconds(one.pid) for one in self._others)
        return time.process_time(), cpu_seconds(self.scheduler.pid), others

    def end(self) -> None:
        for process in (*self._others, self.scheduler):
            process.kill()
            process.wait()
        self._said.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch(Progress):
    """Notes now and then how many trials there are, and the processor time that they took."""

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self._processes, self._next = processes, 0.0
        self.seen: list[tuple[int, float, tuple[float, float, float]]] = []

    def show(self, trials: int, gpus: int, busy: float | None, best: str) -> None:
        if time.monotonic() >= self._next:
            self.seen.append((trials, time.monotonic(), self._processes.cpu()))
            self._next = time.monotonic() + 0.2

    def solved(self, problem: Problem, config: str | None, median_us: float) -> None: ...


@contextmanager
def simulated(
    folder: Path, names: Sequence[str], machines: int, slots: int = SLOTS, speed: float = 1.0
) -> Iterator[Processes]:
    """A scheduler with its machines."""
    processes = Processes(folder, names, machines, slots, speed)
    try:
        processes.wait()
        yield processes
    finally:
        processes.end()


def tuned(
    folder: Path,
    only: dict[Problem, list[ImageSpec]],
    machines: int,
    slots: int = SLOTS,
    speed: float = 1.0,
    strategy: str = EXHAUSTIVE,
    seed: int = 0,
) -> dict[str, Any]:
    """What a run of the tuner took; its database is ``tuning.sqlite3`` in the folder."""
    recordings = Recordings()
    names = sorted({recordings.of(problem).recording.name for problem in only})
    store = ImageStore(folder / "store")
    with simulated(folder, names, machines, slots, speed) as processes:
        progress = Watch(processes)
        began, before = time.monotonic(), processes.cpu()
        setting = new_setting("simulated", "simulated", station.store_token(store), (0.0,))
        cluster = Cluster(setting, progress.note, processes.address)
        try:
            budget = None if strategy == EXHAUSTIVE else BUDGET
            plan = Plan(
                folder / "tuning.sqlite3", store, cluster.first_gpu(), strategy=strategy, seed=seed, budget=budget,
                only=only,
            )  # fmt: skip
            left = tune(plan, [*only], cluster, progress)
            seconds, spent = time.monotonic() - began, processes.cpu()
        finally:
            cluster.close()
    if left:
        raise RuntimeError(f"{left} problems are left")
    with TuningDatabase(folder / "tuning.sqlite3", readonly=True) as database:
        outcomes = database.outcomes()
        winners = [one for one in database.winners() if one.provenance == "measured"]
    of_place = {(problem.kernel.name, str(problem.functional), problem.bin): recordings.of(problem) for problem in only}
    measured = 0.0
    for one in outcomes:
        if one.status == "ok":
            recorded = of_place[one.kernel, one.functional, one.bin]
            measured += recorded.recording.measure_s[0][recorded.places[one.image]] / speed
    trials = sum(one.phase == "sweep" for one in outcomes)
    return {
        "machines": machines,
        "slots": slots,
        "speed": speed,
        "strategy": strategy,
        "problems": len(only),
        "trials": trials,
        "seconds": round(seconds, 2),
        "dollars": round(seconds * machines * RATE, 4),
        "trials_per_second": round(trials / seconds, 1),
        "busy": round(measured / (machines * seconds), 4),
        "best_us": min(winner.median_us for winner in winners),
        "cpu_ms_per_trial": milliseconds(trials, before, spent),
        "steady": steady(progress.seen),
    }


def milliseconds(trials: int, before: Sequence[float], after: Sequence[float]) -> dict[str, float]:
    """Of processor time for a trial."""
    names = ("coordinator", "scheduler", "machines")
    return {name: round(1e3 * (b - a) / trials, 3) for name, a, b in zip(names, before, after, strict=True)}


def steady(seen: Sequence[tuple[int, float, tuple[float, float, float]]]) -> dict[str, Any] | None:
    """The same of the middle half of the trials; None of a run that was over too soon."""
    last = seen[-1][0]
    middle = [one for one in seen if last / 4 <= one[0] <= 3 * last / 4]
    if len(middle) < 2 or middle[-1][0] == middle[0][0]:
        return None
    (begin, since, before), (end, until, after) = middle[0], middle[-1]
    rate = round((end - begin) / (until - since), 1)
    return {"trials_per_second": rate, "cpu_ms_per_trial": milliseconds(end - begin, before, after)}


def matmul(configs: int) -> dict[Problem, list[ImageSpec]]:
    """The RFC's problem, with so many of its configs."""
    (recorded,) = Recordings([MATMUL]).all
    specs = recorded.specs if configs >= len(recorded.specs) else random.Random(0).sample(recorded.specs, configs)
    return {recorded.problem: specs}


def many(problems: int, configs: int) -> dict[Problem, list[ImageSpec]]:
    """Problems in turns of all recordings, which share images as the shapes of a functional do."""
    every = Recordings().all
    found = {}
    for recorded in every:
        specs = random.Random(0).sample(recorded.specs, min(configs, len(recorded.specs)))
        found.update({one: specs for one in recorded.copies(-(-problems // len(every)))})
    return dict(random.Random(0).sample([*found.items()], problems))


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The result."""

    def run(what: str, *arguments: Any, **more: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            found = {"what": what, **tuned(Path(folder), *arguments, **more)}
        print(json.dumps(found), file=sys.stderr, flush=True)
        return found

    one, all_of_it = matmul(int(RFC["configs"])), matmul(sys.maxsize)
    runs = []
    for machines in options.machines:
        runs.append(run("every config", one, machines, slots=1))
        runs.append(run("every config", one, machines))
        runs.append(run("searched", all_of_it, machines, strategy=DEFAULT))
        runs.append(run("many problems", many(options.each * machines, options.configs), machines, speed=options.speed))
    return {"machine": machine(), "rfc": RFC, "dollars_an_hour": round(3600 * RATE, 2), "runs": runs}


def machine() -> dict[str, Any]:
    cpus = {line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").open() if line.startswith("model name")}
    return {
        "cpu": ", ".join(sorted(cpus)) or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "distributed": version("distributed"),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def table(result: dict[str, Any]) -> str:
    """Markdown, a run a line."""
    lines = [
        "| what | machines | compilers | problems | trials | s | $ | trials/s | GPUs measure | coordinator ms/trial | scheduler ms/trial |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in result["runs"]:
        rate = run["steady"] or run
        cpu = rate["cpu_ms_per_trial"]
        lines.append(
            f"| {run['what']} | {run['machines']} | {run['machines'] * run['slots']} | {run['problems']}"
            f" | {run['trials']} | {run['seconds']:.1f} | {run['dollars']:.2f} | {rate['trials_per_second']:.0f}"
            f" | {run['busy']:.0%} | {cpu['coordinator']:.2f} | {cpu['scheduler']:.2f} |"
        )
    return "\n".join(lines)


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="OUT", help="where the result is written")
    made.add_argument("--machines", type=int, nargs="+", default=[10, 100, 1000], help="default: 10 100 1000")
    made.add_argument("--each", type=int, default=4, help="problems a machine, where there are many (default: 4)")
    made.add_argument("--configs", type=int, default=64, help="of each of these at most (default: 64)")
    made.add_argument("--speed", type=float, default=1.0, help="what their sleeping is divided by (default: 1)")
    made.add_argument("--table", type=Path, metavar="JSON", help="print this result")
    made.add_argument("--serve", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.serve:
        address, names, *numbers = json.loads(options.serve)
        asyncio.run(serve(Part(address, tuple(names), *numbers)))
    elif options.table:
        print(table(json.loads(options.table.read_text())))
    else:
        result = measured(options)
        print(table(result))
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
