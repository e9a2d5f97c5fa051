"""How far does one coordinator reach? Tunes recorded problems on a Dask cluster of simulated machines.

``python bench/scale.py --json OUT [--machines 10 100 1000]`` needs distributed, numpy and scikit-learn, and
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stored
from recording import Config, Recording, load

from aotriton.codegen.compile import ImageStore
from aotriton.rules.database import TuningDatabase
from aotriton.rules.family import kernel as description
from aotriton.rules.image import TRITON_VERSION, ImageSpec
from aotriton.rules.kernel import parse_functional
from aotriton.tune.coordinator.cluster import Cluster, new_setting
from aotriton.tune.coordinator.progress import Progress
from aotriton.tune.coordinator.session import EXHAUSTIVE, Plan, tune
from aotriton.tune.measure.requests import Device, Race, Request, Result
from aotriton.tune.problem.accuracy import Check
from aotriton.tune.problem.problems import NamedProblem, Problem
from aotriton.tune.search.strategies import DEFAULT
from aotriton.tune.winners.decide_all import is_valid
from aotriton.tune.workers import station
from aotriton.tune.workers.compile_station import CompileStation
from aotriton.tune.workers.gpu_station import GpuStation
from aotriton.tune.workers.jobs import CPU, GPU, Compiled, CompileJob, Facts, Setting, code_digest, store_token
from aotriton.tune.workers.key import security

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE / "recordings"
MATMUL = "gemm-4096x4096x4096"
RFC = {"configs": 757, "seconds": 70.6, "machines": 10, "dollars": 0.80}
RATE = RFC["dollars"] / (RFC["machines"] * RFC["seconds"])  # dollars for a machine and second, as the RFC paid
SLOTS = 16  # images that a machine compiles at a time: an H200 node has so many cores a GPU
IMAGE = 32 << 10  # bytes
SAMPLES = 16  # timings of a candidate
PREPARE_S = 0.05  # for a problem's tensors, the first time that a GPU has it
TOGETHER = 250  # machines that one process simulates, at most
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
        return [ImageSpec.parse(self.problem.functional, text(config)) for config in self.recording.configs]

    @cached_property
    def places(self) -> dict[str, int]:
        return {spec.name: place for place, spec in enumerate(self.specs)}

    def copies(self, count: int) -> list[Problem]:
        """The problem, and others that differ from it in nothing but the size of their batch."""
        shape = dict(self.recording.shape)
        more = [tuple({**shape, "batch": shape["batch"] + step}.items()) for step in range(count)]
        return [replace(self.problem, shape=one) for one in more]


def text(config: Config) -> str:
    return " ".join(f"{name}={value}" for name, value in config)


class Recordings:
    """Recordings as machines look into them: by problem and by image. Without those of a kernel whose choices have
    changed since, which can only be searched.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        every = [Recorded(one) for one in load(RECORDINGS) if not names or one.name in names]
        self.all = [one for one in every if is_valid(one.problem.functional, text(one.recording.configs[0]))]
        self._by_problem = {
            (one.recording.kernel, one.recording.functional, one.recording.bin): one for one in self.all
        }
        self.by_image = {name: (one, place) for one in reversed(self.all) for name, place in one.places.items()}

    def of(self, problem: Problem) -> Recorded:
        """The problem's own; of one that nobody recorded, one of its functional's with the most configs."""
        kernel, functional = problem.kernel.name, str(problem.functional)
        if found := self._by_problem.get((kernel, functional, problem.bin)):
            return found
        like = [one for key, one in self._by_problem.items() if key[:2] == (kernel, functional)]
        most = max(len(one.recording.configs) for one in like)
        whole = [one for one in like if len(one.recording.configs) == most]
        return whole[crc32(str(problem).encode()) % len(whole)]


class SimulatedGpu:
    """In the place of a ``GpuProcess``: sleeps, and says what was recorded."""

    def __init__(self, recordings: Recordings, number: int, slower: float = 1.0) -> None:
        self._recordings, self._number, self._slower = recordings, number, slower
        self._prepared: set[NamedProblem] = set()

    def device(self) -> Device:
        one = self._recordings.all[0].recording
        return Device(one.arch, one.product, one.driver, one.torch, 132, f"simulated-{self._number}")

    def prepare(self, problem: NamedProblem) -> None:
        if problem not in self._prepared:
            time.sleep(self._slower * PREPARE_S)
        self._prepared.add(problem)
        self._recorded = self._recordings.of(problem.problem)

    def sweep(self, request: Request, best: float | None) -> Result:
        return Result("ok", [self._taken(request)] * SAMPLES, Check(0.001, 0.004))

    def race(self, requests: Sequence[Request]) -> Race:
        return Race({request.name: [self._taken(request)] * SAMPLES for request in requests})

    def _taken(self, request: Request) -> float:
        """Microseconds."""
        one, place = self._recorded.recording, self._recorded.places[request.name]
        time.sleep(self._slower * one.measure_s[0][place])
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
        return Facts(TRITON_VERSION, code_digest(), "of its own", self._simulated.device(), "0")

    def _process(self, setting: Setting) -> Any:
        return self._simulated

    def _locks(self) -> bool:
        return True

    def _localised(self, job: Any, made: Any) -> list[Request]:
        return list(job.requests)

    def _has(self, request: Request) -> bool:
        return True

    def _local(self, request: Request) -> Request:
        return request


class SimulatedCompileStation(CompileStation):
    """Compilers that sleep."""

    def __init__(self, recordings: Recordings, slower: float = 1.0) -> None:
        super().__init__(set)
        self._recordings, self._slower = recordings, slower

    def facts(self, setting: Setting) -> Facts:
        return Facts(TRITON_VERSION, code_digest(), "of its own")

    def compile(self, job: CompileJob) -> Compiled:
        name = job.request["name"]
        if name not in self._recordings.by_image:
            return Compiled(message="nobody recorded it")  # a borrowed image, which nobody waits for
        recorded, place = self._recordings.by_image[name]
        one = recorded.recording
        time.sleep(self._slower * one.compile_s[place])
        if one.statuses[place] == "compile_failed":
            return Compiled(message="failed", seconds=one.compile_s[place])
        facts = one.facts[place]
        pruned = one.statuses[place] == "pruned"
        metadata = {**facts, "spills": int(pruned), "stack": 0, "file": f"{name}.cubin", "name": name, "sha256": ""}
        binary = random.Random(name).randbytes(IMAGE)
        return Compiled(metadata, binary=binary, seconds=one.compile_s[place])


async def serve(address: str, first: int, last: int, slots: int, slower: float = 1.0) -> None:
    """Runs the Dask workers of machines ``first`` to ``last`` (exclusive) until the scheduler ends; whatever they do
    takes ``slower`` times as long as recorded.
    """
    from distributed import Worker

    recordings, workers, secured = Recordings(), [], security(address)
    for number in range(first, last):
        for resource, count in ((GPU, 1), (CPU, slots)):
            options: dict[str, Any] = {"memory_limit": 0, "dashboard": False, "dashboard_address": ":0"}
            options |= {"security": secured} if secured else {}
            name = f"machine-{number}-{resource}"
            worker = await Worker(address, nthreads=count, name=name, resources={resource: count}, **options)
            gpu = SimulatedGpuStation(SimulatedGpu(recordings, number, slower))
            station.seat(worker, gpu if resource == GPU else SimulatedCompileStation(recordings, slower))
            workers.append(worker)
    await asyncio.gather(*(worker.finished() for worker in workers))


class Processes:
    """A scheduler, and what simulates ``machines``, each with so many compile ``slots``."""

    def __init__(self, folder: Path, machines: int, slots: int) -> None:
        self.machines, self.slots = machines, slots
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
            "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "10s",
            "OMP_NUM_THREADS": "1",
        }
        dask = ("-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        self.scheduler = self._start(*dask)
        bounds = [*range(0, machines, TOGETHER), machines]
        self._others = [
            self._start(str(HERE / "scale.py"), "--serve", json.dumps([self.address, first, last, slots]))
            for first, last in pairwise(bounds)
        ]

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, *command], env=self._environment, stdout=self._said, stderr=self._said)

    def wait(self) -> None:
        from distributed import Client

        until = time.monotonic() + 600
        with Client(self.address, set_as_default=False, timeout=60) as client:
            while len(client.scheduler_info(n_workers=-1)["workers"]) < 2 * self.machines:
                if any(one.poll() is not None for one in self._others) or time.monotonic() > until:
                    raise RuntimeError(f"the simulated machines do not start: {self._said.name} says why")
                time.sleep(0.1)

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

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def show(self, trials: int, gpus: int, busy: float | None, best: str) -> None:
        self.seen.append((trials, time.monotonic(), self._processes.cpu()))
        self._next = time.monotonic() + 0.2

    def solved(self, problem: Problem, config: str | None, median_us: float) -> None: ...


@contextmanager
def simulated(folder: Path, machines: int, slots: int = SLOTS) -> Iterator[Processes]:
    """A scheduler with its machines, once all of them are there."""
    processes = Processes(folder, machines, slots)
    try:
        processes.wait()
        yield processes
    finally:
        processes.end()


class Counted(Cluster):
    """Counts jobs by what they run."""

    def __init__(self, *arguments: Any) -> None:
        self.jobs = Counter[str]()
        super().__init__(*arguments)

    def submit(
        self, run: Callable[[Any], Any], job: object, needs: str, address: str | None = None, later: bool = False
    ) -> str:
        self.jobs[run.__name__] += 1
        return super().submit(run, job, needs, address, later)


def tuned(
    folder: Path, only: dict[Problem, list[ImageSpec]], processes: Processes, strategy: str = EXHAUSTIVE
) -> dict[str, Any]:
    """What a run of the tuner took; its database is ``tuning.sqlite3`` in the folder."""
    recordings, machines = Recordings(), processes.machines
    store, progress = ImageStore(folder / "store"), Watch(processes)
    began, before = time.monotonic(), processes.cpu()
    setting = new_setting("simulated", "simulated", store_token(store), (0.0,))
    cluster = Counted(setting, progress.note, processes.address)
    try:
        budget = None if strategy == EXHAUSTIVE else BUDGET
        plan = Plan(
            folder / "tuning.sqlite3", store, cluster.first_gpu(), strategy=strategy, budget=budget, only=only
        )  # fmt: skip
        left = tune(plan, [*only], cluster, progress)
        seconds, spent = time.monotonic() - began, processes.cpu()
    finally:
        cluster.close()
    if left:
        raise RuntimeError(f"{left} problems are left")
    with TuningDatabase(folder / "tuning.sqlite3", readonly=True) as database:
        outcomes = database.evidence.outcomes()
        winners = [one for one in database.winners() if one.provenance == "measured"]
    of_place = {(problem.kernel.name, str(problem.functional), problem.bin): recordings.of(problem) for problem in only}
    measured = 0.0
    for one in outcomes:
        if one.status == "ok":
            recorded = of_place[one.kernel, one.functional, one.bin]
            measured += recorded.recording.measure_s[0][recorded.places[one.image]]
    trials = sum(one.phase == "sweep" for one in outcomes)
    return {
        "machines": machines,
        "slots": processes.slots,
        "strategy": strategy,
        "problems": len(only),
        "trials": trials,
        "jobs": dict(cluster.jobs),
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
    names = ("coordinator", "scheduler", "simulation")
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

    def run(what: str, only: dict[Problem, list[ImageSpec]], strategy: str = EXHAUSTIVE) -> None:
        with tempfile.TemporaryDirectory() as own:
            runs.append({"what": what, **tuned(Path(own), only, processes, strategy)})
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        if options.json:  # after each, for the next one may be too much
            options.json.write_text(json.dumps(result, indent=1) + "\n")

    runs: list[dict[str, Any]] = []
    result = {"machine": machine(), "rfc": RFC, "dollars_an_hour": round(3600 * RATE, 2), "runs": runs}
    with tempfile.TemporaryDirectory() as folder:
        with simulated(Path(folder), int(RFC["machines"]), slots=1) as processes:
            run("matmul, 757 configs", matmul(int(RFC["configs"])))
        for machines in options.machines:
            with simulated(Path(folder), machines) as processes:
                run("matmul, 757 configs", matmul(int(RFC["configs"])))
                run("matmul, searched", matmul(sys.maxsize), DEFAULT)
                run("many problems", many(options.problems, options.configs))
    return result


def machine() -> dict[str, Any]:
    cpus = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
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
        "| what | machines | compilers | problems | trials | jobs | s | $ | trials/s | coordinator ms | scheduler ms |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in result["runs"]:
        rate = run["steady"] or run
        cpu, compilers, jobs = rate["cpu_ms_per_trial"], run["machines"] * run["slots"], sum(run["jobs"].values())
        lines.append(
            f"| {run['what']} | {run['machines']} | {compilers} | {run['problems']} | {run['trials']} | {jobs}"
            f" | {run['seconds']:.1f} | {run['dollars']:.2f} | {rate['trials_per_second']:.0f}"
            f" | {cpu['coordinator']:.2f} | {cpu['scheduler']:.2f} |"
        )
    return "\n".join(lines)


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="OUT", help="where the result is written")
    made.add_argument("--machines", type=int, nargs="+", default=[10, 100, 1000], help="default: 10 100 1000")
    made.add_argument("--problems", type=int, default=500, help="where there are many (default: 500)")
    made.add_argument("--configs", type=int, default=32, help="of each of these (default: 32)")
    made.add_argument("--table", type=Path, metavar="JSON", help="print this result")
    made.add_argument("--serve", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.serve:
        asyncio.run(serve(*json.loads(options.serve)))
    elif options.table:
        print(table(stored.load(options.table)))
    else:
        print(table(measured(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
