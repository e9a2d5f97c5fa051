"""The tuning service on a node with GPUs: a client without a GPU tunes matrix products through a Dask scheduler.

1. From nothing, no image, no row, no process: one product of 4096 x 4096 x 4096, fp16, with at most 64 trials. Then the
   winner and cuBLAS's best algorithm are timed side by side.
2. Sixteen products, with workers that are up: on all GPUs without an image, then with the images of that run, on one
   GPU and on all of them; each time with an empty database.

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
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

LAYERS = ("--family", "gemm", "--dtype", "fp16", "--no-trans-a", "--trans-b", "--addressing", "descriptor")
ONE = (*LAYERS, "--kernel", "gemm_hopper", "--m", "4096", "--columns", "4096", "--k", "4096")
SIXTEEN = (*LAYERS, "--kernel", "gemm_hopper", "--m", "1024", "2048", "4096", "8192", "--columns", "4096", "8192")
SIXTEEN = (*SIXTEEN, "--k", "4096", "8192")
TRIALS = 64
ROUNDS = 60


class Node:
    """Scheduler and workers as processes, with an image store of their own."""

    def __init__(self, folder: Path, gpus: Sequence[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder, self.address = folder, f"tcp://127.0.0.1:{port}"
        folder.mkdir(parents=True, exist_ok=True)
        command = ("-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        self._running = [self._start(*command), self._start("tune/serve.py", self.address, "--gpus", *gpus)]

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "AOTRITON_IMAGE_STORE": str(self.folder / "worker-store")}
        with (self.folder / "node.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *command], env=environment, cwd=ROOT, stdout=log, stderr=log)

    def tune(self, what: Sequence[str], name: str) -> tuple[float, str]:
        """Seconds from the client's start to its end, and what it said. It sees no GPU, and has its own image store."""
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "AOTRITON_IMAGE_STORE": str(self.folder / "store")}
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "tune/tune.py", *what, "--scheduler", self.address, "--budget", str(TRIALS), "--database",
             str(self.folder / f"{name}.sqlite3")],
            env=environment, cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
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
        return sum(one.phase == "sweep" for one in database.outcomes())


def against_cublas(folder: Path, name: str) -> dict[str, Any]:
    """The winner and cuBLAS's best on the same tensors, in turns."""
    from attention import race
    from cublas import CublasLt

    from aotriton.codegen.compile import ImageStore
    from aotriton.rules.database import TuningDatabase
    from aotriton.rules.family import kernel
    from aotriton.rules.image import ImageSpec
    from aotriton.rules.kernel import parse_functional
    from aotriton.tune.compiled import launch_request
    from aotriton.tune.launcher import GpuLauncher
    from aotriton.tune.problems import Problem

    with TuningDatabase(folder / f"{name}.sqlite3", readonly=True) as database:
        (winner,) = database.winners()
        checksums = database.checksums()
    functional = parse_functional(kernel(winner.kernel), winner.arch, winner.functional)
    cell = tuple(int(part.split("=")[1]) for part in winner.bin.split())
    problem = Problem(functional, cell, tuple(json.loads(winner.shape).items()))
    spec = ImageSpec.of(functional, winner.psels, winner.copts)
    image = ImageStore(folder / "store").get(winner.image, checksums[winner.image])
    assert image
    launcher = GpuLauncher()
    launcher.prepare(problem)
    opened = launcher.open(launch_request(spec, image))
    check = launcher.check(opened)
    if check.wrong:
        sys.exit(f"{spec.config}: {check.wrong}")
    tensors = launcher._data.tensors
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


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="write the result here")
    made.add_argument("--skip-sixteen", action="store_true", help="the first part only")
    options = made.parse_args()
    from attention import machine

    from aotriton.tune.launcher import visible_gpus

    gpus = visible_gpus()
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        node = Node(Path(scratch) / "cold", gpus[:1])
        tuned, said = node.tune(ONE, "one")
        cold = {"seconds": round(time.monotonic() - began, 1), "client_seconds": round(tuned, 1)}
        cold |= {"trials": trials(node.folder, "one"), "busy": busy(said)}
        node.close()
        cold |= against_cublas(node.folder, "one")
        print(json.dumps(cold, indent=1), flush=True)
        many: dict[str, Any] = {}
        for name, count in [] if options.skip_sixteen else [("cold", len(gpus)), ("one", 1), ("all", len(gpus))]:
            node = Node(Path(scratch) / "many", gpus[:count])
            node.tune((*LAYERS, "--kernel", "gemm", "--m", "16", "--columns", "1024", "--k", "1024"), f"warm-{name}")
            seconds, said = node.tune(SIXTEEN, name)
            many[name] = {"gpus": count, "seconds": round(seconds, 1), "trials": trials(node.folder, name)}
            many[name] |= {"busy": busy(said)}
            node.close()
            print(json.dumps({name: many[name]}), flush=True)
    if many:
        many["ratio"] = round(many["all"]["seconds"] / many["one"]["seconds"], 3)
        print(f"{len(gpus)} GPUs take {many['ratio']:.2f} of the time of one")
    if options.json:
        about = {"machine": machine(), "gpus": len(gpus), "cores": len(os.sched_getaffinity(0))}
        about["date"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        options.json.write_text(json.dumps({**about, "cold": cold, "sixteen": many}, indent=1) + "\n")
    return 0


def busy(said: str) -> str | None:
    """What the run says of how busy its GPUs were."""
    found = re.search(r"GPUs measured (.*)", said)
    return found[1] if found else None


if __name__ == "__main__":
    sys.exit(main())
