"""The tuning service on a node with GPUs: a client without a GPU tunes through a Dask scheduler, by TLS with a new key.

1. From nothing, no image, no row, no process, and again with workers that wait for a client: one product of
   4096 x 4096 x 4096, fp16, with at most 64 trials. Then the winner and cuBLAS's best algorithm are timed side by side.
   And, again from nothing, a user's kernel: the softmax of examples/autotune, copied to a folder outside of the
   checkout, where ``aotriton.service`` tunes it; then it and torch's are timed side by side.
2. Sixteen products, with workers that are up and an empty database: on all GPUs without an image, on one GPU and on
   all of them with the images of that run, and on one GPU without an image. Beside the seconds: what the GPUs' time
   went to.
3. Every problem of attention's default coverage with one of its head dims, from nothing, without a scheduler: on one
   GPU and on all of them, with as many compilers for each.

After `cmake --workflow --preset tune`: ``PYTHONPATH=.:build/tune/python python3 bench/service.py --json FILE``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

if TYPE_CHECKING:
    from aotriton.rules.image import ImageSpec
    from aotriton.tune.problem.accuracy import Check
    from aotriton.tune.problem.problems import Problem

LAYERS = ("--family", "gemm", "--dtype", "fp16", "--no-trans-a", "--trans-b", "--addressing", "descriptor")
ONE = (*LAYERS, "--kernel", "gemm_hopper", "--m", "4096", "--columns", "4096", "--k", "4096")
SIXTEEN: tuple[str, ...] = (*LAYERS, "--kernel", "gemm_hopper", "--m", "1024", "2048", "4096", "8192")
SIXTEEN = (*SIXTEEN, "--columns", "4096", "8192", "--k", "4096", "8192")
COVERAGE = ("--head-dim", "128")
TRIALS = 64
COMPILERS = 60  # of a simulated node
ROUNDS = 60
SETTLING = 10.0  # seconds
PARTS = ("cold", "sixteen", "coverage")


class Node:
    """Scheduler and workers as processes, with an image store of their own."""

    def __init__(self, folder: Path, gpus: Sequence[str], slower: float | None = None) -> None:
        """``slower``: all of it is simulated, and takes so many times as long as was recorded."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder, self.address = folder, f"tls://127.0.0.1:{port}"
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["AOTRITON_TUNING_KEY"] = str(folder / "key.pem")
        if not (folder / "key.pem").exists():
            subprocess.run([sys.executable, "tune/schedule.py", "--new-key"], cwd=ROOT, check=True)
        self._began = time.monotonic()
        serve = ["tune/serve.py", self.address, "--gpus", *gpus]
        if slower:
            about = [self.address, 0, len(gpus), COMPILERS // len(gpus), slower]
            serve = ["bench/scale.py", "--serve", json.dumps(about)]
        self._running = [self._start("tune/schedule.py", self.address), self._start(*serve)]

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "AOTRITON_IMAGE_STORE": str(self.folder / "worker-store")}
        with (self.folder / "node.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *command], env=environment, cwd=ROOT, stdout=log, stderr=log)

    @property
    def seconds(self) -> float:
        """Since its processes were started."""
        return round(time.monotonic() - self._began, 1)

    def tune(self, what: Sequence[str], name: str) -> tuple[float, str]:
        """Seconds from the client's start to its end, and what it said."""
        options = ("--scheduler", self.address, "--budget", str(TRIALS))
        return self.client("tune/tune.py", *what, *options, "--database", str(self.folder / f"{name}.sqlite3"))

    def client(self, *command: str, cwd: Path = ROOT, **environment: str) -> tuple[float, str]:
        """As ``tune``, of a program that tunes. It sees no GPU, and has its own image store."""
        own = {"CUDA_VISIBLE_DEVICES": "", "AOTRITON_IMAGE_STORE": str(self.folder / "store"), **environment}
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, *command], env={**os.environ, **own}, cwd=cwd, capture_output=True, text=True
        )
        seconds = time.monotonic() - began
        if done.returncode:
            sys.exit(f"{done.stderr[-3000:]}\n{(self.folder / 'node.log').read_text()[-3000:]}")
        print(done.stderr[-1500:], done.stdout, file=sys.stderr)
        return seconds, done.stderr + done.stdout

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def trials(folder: Path, name: str) -> int:
    """Configs that were asked for, whatever became of them."""
    from aotriton.rules.database import TuningDatabase

    with TuningDatabase(folder / f"{name}.sqlite3", readonly=True) as database:
        return sum(one.phase == "sweep" for one in database.evidence.outcomes())


def winners(path: Path, store: Path) -> Iterator[tuple[Problem, ImageSpec, dict[str, Any], Any, Check]]:
    """Of each winner in the database at ``path``, with its image from the ``store``: problem, config, inputs, what
    is to be launched, and the check of its results, which are right.
    """
    from aotriton.codegen.compile import ImageStore
    from aotriton.rules.database import TuningDatabase
    from aotriton.rules.family import kernel
    from aotriton.rules.image import ImageSpec
    from aotriton.rules.kernel import parse_functional
    from aotriton.tune.measure.launcher import GpuLauncher
    from aotriton.tune.measure.requests import launch_request
    from aotriton.tune.problem.problems import Problem

    with TuningDatabase(path, readonly=True) as database:
        found, checksums = database.winners(), database.checksums()
    for winner in found:
        functional = parse_functional(kernel(winner.kernel), winner.arch, winner.functional)
        cell = tuple(int(part.split("=")[1]) for part in winner.bin.split())
        problem = Problem(functional, cell, tuple(json.loads(winner.shape).items()))
        spec = ImageSpec.parse(functional, winner.config)
        image = ImageStore(store).get(winner.image, checksums[winner.image])
        assert image
        launcher = GpuLauncher()
        launcher.prepare(problem)
        opened = launcher.open(launch_request(spec, image))
        check = launcher.check(opened)
        if check.wrong:
            sys.exit(f"{spec.config}: {check.wrong}")
        yield problem, spec, launcher._data.tensors, opened, check


def against_cublas(folder: Path, name: str) -> dict[str, Any]:
    """The winner and cuBLAS's best on the same tensors, in turns."""
    from attention import race
    from cublas import CublasLt

    ((problem, spec, tensors, opened, check),) = winners(folder / f"{name}.sqlite3", folder / "store")
    result = next(iter(opened.results.values())).tensor
    peer = CublasLt()
    algorithms = {f"cuBLAS {one.rank}": one for one in peer.algorithms(tensors["a"], tensors["b"], result)}
    screened = race(algorithms, 8)
    finalists = sorted(algorithms, key=lambda who: statistics.median(screened[who]))[:3]
    samples = race({"ours": opened.launch, **{who: algorithms[who] for who in finalists}}, ROUNDS)
    medians = {who: statistics.median(taken) for who, taken in samples.items()}
    best = min(finalists, key=lambda who: medians[who])
    sizes = problem.sizes
    flops = 2.0 * sizes["batch"] * sizes["m"] * sizes["n"] * sizes["k"]
    return {
        "config": spec.config,
        "microseconds": {"ours": round(medians["ours"], 2), "cuBLAS": round(medians[best], 2)},
        "tflops": {"ours": round(flops / medians["ours"] / 1e6, 1), "cuBLAS": round(flops / medians[best] / 1e6, 1)},
        "ratio": round(medians[best] / medians["ours"], 4),
        "cuBLAS": f"{best} of {len(algorithms)}, version {peer.version}",
        "error": check.error,
    }


def cold(folder: Path, gpus: Sequence[str], slower: float | None) -> dict[str, Any]:
    node = Node(folder, gpus[:1], slower)
    tuned, said = node.tune(ONE, "one")
    used = usage(said)
    found = {"seconds": node.seconds, "client_seconds": round(tuned, 1), "trials": trials(node.folder, "one")}
    found |= {"around": round(tuned - used["seconds"], 1), "busy": used["busy"], "spent": used["spent"]}
    node.close()
    if slower:
        return found
    found |= {"workers_up": workers_up(folder, gpus)} | against_cublas(node.folder, "one")
    return found | {"own_kernel": own_kernel(folder, gpus)}


def workers_up(folder: Path, gpus: Sequence[str]) -> dict[str, Any]:
    """The same from a cluster that waits for a client: no image, no row, no measuring process."""
    node = Node(folder / "up", gpus[:1])
    while (node.folder / "node.log").read_text().count(" serves ") < 2:
        time.sleep(0.1)
    time.sleep(SETTLING)
    tuned, said = node.tune(ONE, "one")
    node.close()
    used = usage(said)
    return {"client_seconds": round(tuned, 1), "trials": trials(node.folder, "one"), "spent": used["spent"]}


def own_kernel(folder: Path, gpus: Sequence[str]) -> dict[str, Any]:
    """A copy of an example elsewhere, with the machines of a cluster in the place of this one."""
    node = Node(folder / "own", gpus[:1])
    text = (ROOT / "examples" / "autotune" / "softmax.py").read_text()
    here, there = "@aotriton.autotune(", f'@aotriton.service("{node.address}").autotune('
    assert here in text
    place = folder / "elsewhere"
    place.mkdir()
    (place / "softmax.py").write_text(text.replace(here, there))
    cache, path = str(folder / "own" / "cache"), os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    tuned, said = node.client("softmax.py", cwd=place, XDG_CACHE_HOME=cache, PYTHONPATH=path)
    used = usage(said)
    found = {"seconds": node.seconds, "client_seconds": round(tuned, 1), "rows": used["rows"]}
    found |= {"around": round(tuned - used["seconds"], 1), "spent": used["spent"]}
    node.close()
    os.environ["XDG_CACHE_HOME"] = cache  # where its family is
    sys.path.insert(0, str(place))
    return found | {"sizes": against_torch(node.folder / "store")}


def against_torch(store: Path) -> list[dict[str, Any]]:
    """The tuned softmax and torch's on the same tensors, in turns, at each of its sizes."""
    from importlib import import_module

    import torch
    from attention import race

    from aotriton.rules.family import add

    folder, sizes = import_module("softmax").softmax.folder, []
    add(folder)
    for problem, spec, tensors, opened, check in winners(folder / "rules" / "tuning_database.sqlite3", store):
        x, other = tensors["x"], torch.empty_like(tensors["x"])
        calls = {"ours": opened.launch, "torch": partial(torch.softmax, x, -1, out=other)}
        medians = {who: statistics.median(taken) for who, taken in race(calls, ROUNDS).items()}
        sizes.append(
            {**problem.sizes, "config": spec.config}
            | {"microseconds": {who: round(one, 2) for who, one in medians.items()}}
            | {"ratio": round(medians["torch"] / medians["ours"], 3), "error": check.error}
        )
    return sizes


def sixteen(folder: Path, gpus: Sequence[str], slower: float | None) -> dict[str, Any]:
    """``ratio``: seconds on all GPUs over those on one, images at hand; ``spent``: shares of the GPUs' time in a run;
    ``around``: seconds of the client before and after it.
    """
    found: dict[str, Any] = {}
    runs = (("cold", len(gpus), folder), ("one", 1, folder), ("all", len(gpus), folder), ("cold_one", 1, folder / "1"))
    for name, count, own in runs:
        node = Node(own, gpus[:count], slower)
        node.tune((*LAYERS, "--kernel", "gemm", "--m", "16", "--columns", "1024", "--k", "1024"), f"warm-{name}")
        seconds, said = node.tune(SIXTEEN, name)
        node.close()
        used = usage(said)
        found[name] = {"gpus": count, "seconds": round(seconds, 1), "trials": trials(own, name)}
        found[name] |= {"busy": used["busy"], "around": round(seconds - used["seconds"], 1), "spent": used["spent"]}
        print(name, found[name], file=sys.stderr, flush=True)
    return found | {"ratio": round(found["all"]["seconds"] / found["one"]["seconds"], 3)}


def coverage(folder: Path, gpus: Sequence[str], slower: float | None) -> dict[str, Any]:
    """``ratio``: rows for a GPU and hour, on all of them over on one, of the same problems."""
    if slower:
        sys.exit("nobody recorded the problems of attention's coverage: --parts cold sixteen are simulated")
    compilers = len(os.sched_getaffinity(0)) // len(gpus) - 1  # a GPU's; the one that is left launches on it
    found: dict[str, Any] = {}
    for name, count in ("all", len(gpus)), ("one", 1):
        of_run = folder / name
        of_run.mkdir(parents=True)
        done = subprocess.run(
            [sys.executable, "tune/tune_flash.py", *COVERAGE, "--gpus", *gpus[:count], "--jobs", str(count * compilers),
             "--database", str(of_run / "tuning.sqlite3")],
            env={**os.environ, "AOTRITON_IMAGE_STORE": str(of_run / "store")}, cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            sys.exit(done.stderr[-3000:])
        found[name] = {"gpus": count, "compilers": count * compilers, **usage(done.stderr)}
    hourly = {name: one["rows_for_a_gpu_and_hour"] for name, one in found.items()}
    return found | {"ratio": round(hourly["all"] / hourly["one"], 3)}


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="write the result here; parts that are not run keep what it has")
    made.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    made.add_argument("--gpus", type=int, metavar="COUNT", help="how many are used (default: all)")
    made.add_argument(
        "--simulated", type=float, metavar="TIMES",
        help="GPUs and compilers sleep, so many times as long as recorded: the more, the less this host matters",
    )  # fmt: skip
    options = made.parse_args()
    from aotriton.tune.measure.launcher import visible_gpus

    gpus = [*map(str, range(options.gpus or 1))] if options.simulated else visible_gpus()[: options.gpus]
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, part in zip(PARTS, (cold, sixteen, coverage), strict=True):
            if name in options.parts:
                about: dict[str, object] = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
                kept[name] = about | part(Path(scratch) / name, gpus, options.simulated)
                print(json.dumps({name: kept[name]}, indent=1), flush=True)
    if options.json:
        from attention import machine
        from scale import machine as host

        about = {
            "machine": host() if options.simulated else machine(),
            "gpus": len(gpus),
            "cores": len(os.sched_getaffinity(0)),
        }
        options.json.write_text(json.dumps({**kept, **about}, indent=1) + "\n")
    return 0


def usage(said: str) -> dict[str, Any]:
    """What the run says of its trials, and of how busy its GPUs were."""
    found = re.search(r"(\d+) trials in ([\d.]+) s, (\d+) for a GPU and hour: \d+ GPUs measured (.*)", said)
    if not found:
        sys.exit(f"the run does not tell of its GPUs:\n{said[-3000:]}")
    rows, seconds, hourly, busy = found.groups()
    told = {"rows": int(rows), "seconds": float(seconds), "rows_for_a_gpu_and_hour": int(hourly), "busy": busy}
    _, _, spent = said.partition("all of their time: ")
    parts = re.findall(r"([\d.]+)% ([A-Za-z ]+)", spent.partition("\n")[0])
    return {**told, "spent": {what: round(float(part) / 100, 3) for part, what in parts}}


if __name__ == "__main__":
    sys.exit(main())
