"""Records tuning problems for replays: compiles and times every config of their rich spaces, in two or three passes.

``python bench/record.py`` on a node with CUDA GPUs, torch, Triton and the binding on PYTHONPATH, and the repository,
too. ``--dry-run`` needs none of them. A problem is saved as soon as all of its passes are whole. ``--race`` adds a
third pass, C, of which a replay makes the race of a search's leaders: pass A chose them, and pass B judges what wins.

Each pass has a random order of its own. Where there are several GPUs, A and B have different ones, and C any. Every
ANCHOR_EVERY configs a pass times its anchor, a good config: what that takes longer than its median is drift, and
divided out of what is around it.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import tempfile
import threading
import time
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))

from recording import Recording, noise, save

from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, compile_images
from aotriton.rules.arch import arch_spec
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import kernel as description
from aotriton.rules.image import TRITON_VERSION, ImageSpec
from aotriton.rules.kernel import Value
from aotriton.tune.measure.launcher import visible_gpus
from aotriton.tune.measure.requests import Device, Request, Result, launch_request
from aotriton.tune.problem.candidates import space
from aotriton.tune.problem.compiler_facts import Compile, unfit
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Problem, shape_of
from aotriton.tune.workers.cores import launch_cores, leave
from aotriton.tune.workers.gpu_process import GpuProcess, TimedOut, Unstartable, WorkerError

ARCH = "sm_90"
PASSES = "ABC"  # what a search sees, what judges it, and where it is asked for, the race of its leaders
JUDGE = PASSES.index("B")
ANCHOR_EVERY = 20  # configs
SCOUTS = 12  # configs, of today's space where it has so many, of which the fastest is the anchor
TRIES = 2  # of a config that crashes or hangs, the second on a fresh worker
CANDIDATE_LIMIT = 10.0  # seconds
COMPILE_S = {False: 1.0, True: 2.0}  # of one image, by whether it is Gluon: for the estimate
MEASURE_S = 0.035  # of one config in one pass: for the estimate

FULL: dict[str, Value] = {"T": "bf16", "BLOCK_DMODEL": 128, "CAUSAL": False, "ADDRESSING": "descriptor"}
CAUSAL = FULL | {"CAUSAL": True}
LAYER: dict[str, Value] = {"T": "fp16", "TRANS_A": False, "TRANS_B": True, "ADDRESSING": "descriptor"}


NARROW = CAUSAL | {"BLOCK_DMODEL": 64}
WIDE = FULL | {"BLOCK_DMODEL": 256}
SMALL = FULL | {"BLOCK_DMODEL": 32}
OTHER_LAYER = LAYER | {"TRANS_B": False}


def attention(batch: int, seqlen_q: int, seqlen_k: int, head_dim: int = 128) -> dict[str, int]:
    return {"batch": batch, "heads": 16, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "head_dim": head_dim}


def product(m: int, n: int, k: int) -> dict[str, int]:
    return {"batch": 1, "m": m, "n": n, "k": k}


# In the order in which they are compiled: few images first, so that the GPUs begin soon; the longest in the middle.
PROBLEMS: dict[str, tuple[str, Mapping[str, Value], Mapping[str, int]]] = {
    "attn_bwd_dq-2048": ("attn_bwd_dq", FULL, attention(2, 2048, 2048)),
    "attn_bwd_dq-512": ("attn_bwd_dq", FULL, attention(16, 512, 512)),
    "attn_fwd-2048": ("attn_fwd", FULL, attention(4, 2048, 2048)),
    "attn_fwd-512": ("attn_fwd", FULL, attention(32, 512, 512)),
    "attn_fwd-64x8192": ("attn_fwd", FULL, attention(8, 64, 8192)),
    "attn_bwd_dk_dv-2048": ("attn_bwd_dk_dv", FULL, attention(2, 2048, 2048)),
    "attn_bwd_dk_dv-512": ("attn_bwd_dk_dv", FULL, attention(16, 512, 512)),
    "gemm-4096x4096x4096": ("gemm", LAYER, product(4096, 4096, 4096)),
    "gemm-1024x6144x4096": ("gemm", LAYER, product(1024, 6144, 4096)),
    "gemm-16x6144x4096": ("gemm", LAYER, product(16, 6144, 4096)),
    "attn_fwd_hopper-2048": ("attn_fwd_hopper", CAUSAL, attention(4, 2048, 2048)),
    "attn_fwd_hopper-8192": ("attn_fwd_hopper", CAUSAL, attention(1, 8192, 8192)),
    "gemm_hopper-4096x4096x4096": ("gemm_hopper", LAYER, product(4096, 4096, 4096)),
    "gemm_hopper-512x4096x14336": ("gemm_hopper", LAYER, product(512, 4096, 14336)),
    "gemm_hopper-16x6144x4096": ("gemm_hopper", LAYER, product(16, 6144, 4096)),
    "gemm_hopper_split-4096x4096x4096": ("gemm_hopper_split", LAYER, product(4096, 4096, 4096)),
    "gemm_hopper_split-64x4096x14336": ("gemm_hopper_split", LAYER, product(64, 4096, 14336)),
    # Recorded when the default strategy was finished, to judge it: other types, masks, layouts and sizes.
    "attn_bwd_dq-d64-1024": ("attn_bwd_dq", NARROW, attention(8, 1024, 1024, 64)),
    "attn_bwd_dk_dv-d64-4096": ("attn_bwd_dk_dv", NARROW, attention(2, 4096, 4096, 64)),
    "attn_fwd-d64-1024": ("attn_fwd", NARROW, attention(8, 1024, 1024, 64)),
    "attn_fwd_hopper-d64-4096": ("attn_fwd_hopper", NARROW, attention(4, 4096, 4096, 64)),
    "gemm-nn-2048x2048x8192": ("gemm", OTHER_LAYER, product(2048, 2048, 8192)),
    "gemm_hopper-nn-8192x1024x2048": ("gemm_hopper", OTHER_LAYER, product(8192, 1024, 2048)),
    "gemm_hopper-nn-128x8192x3072": ("gemm_hopper", OTHER_LAYER, product(128, 8192, 3072)),
    "gemm_hopper_split-nn-256x3072x12288": ("gemm_hopper_split", OTHER_LAYER, product(256, 3072, 12288)),
    # Recorded when the default strategy was finished a second time, to judge that one.
    "attn_bwd_dq-causal-4096": ("attn_bwd_dq", CAUSAL, attention(1, 4096, 4096)),
    "attn_bwd_dk_dv-causal-1024": ("attn_bwd_dk_dv", CAUSAL, attention(4, 1024, 1024)),
    "attn_fwd-d256-2048": ("attn_fwd", WIDE, attention(2, 2048, 2048, 256)),
    "attn_fwd_hopper-full-4096": ("attn_fwd_hopper", FULL, attention(2, 4096, 4096)),
    "gemm-8192x512x4096": ("gemm", LAYER, product(8192, 512, 4096)),
    "gemm_hopper-2048x8192x2048": ("gemm_hopper", LAYER, product(2048, 8192, 2048)),
    "gemm_hopper-nn-4096x4096x1024": ("gemm_hopper", OTHER_LAYER, product(4096, 4096, 1024)),
    "gemm_hopper_split-1024x2048x8192": ("gemm_hopper_split", LAYER, product(1024, 2048, 8192)),
    # And a third time.
    "attn_bwd_dq-d256-1024": ("attn_bwd_dq", WIDE, attention(2, 1024, 1024, 256)),
    "attn_bwd_dk_dv-d32-2048": ("attn_bwd_dk_dv", SMALL, attention(4, 2048, 2048, 32)),
    "attn_fwd-causal-4096": ("attn_fwd", CAUSAL, attention(2, 4096, 4096)),
    "attn_fwd_hopper-d256-2048": ("attn_fwd_hopper", WIDE, attention(2, 2048, 2048, 256)),
    "gemm-nn-512x8192x2048": ("gemm", OTHER_LAYER, product(512, 8192, 2048)),
    "gemm_hopper-8192x8192x1024": ("gemm_hopper", LAYER, product(8192, 8192, 1024)),
    "gemm_hopper-nn-1024x14336x4096": ("gemm_hopper", OTHER_LAYER, product(1024, 14336, 4096)),
    "gemm_hopper_split-128x4096x8192": ("gemm_hopper_split", LAYER, product(128, 4096, 8192)),
    # And a fourth time.
    "attn_bwd_dq-d32-4096": ("attn_bwd_dq", SMALL, attention(2, 4096, 4096, 32)),
    "attn_bwd_dk_dv-d256-1024": ("attn_bwd_dk_dv", WIDE, attention(2, 1024, 1024, 256)),
    "attn_fwd-d32-2048": ("attn_fwd", SMALL, attention(4, 2048, 2048, 32)),
    "attn_fwd_hopper-d64-full-2048": ("attn_fwd_hopper", FULL | {"BLOCK_DMODEL": 64}, attention(4, 2048, 2048, 64)),
    "gemm-nn-4096x1024x4096": ("gemm", OTHER_LAYER, product(4096, 1024, 4096)),
    "gemm_hopper-1024x1024x8192": ("gemm_hopper", LAYER, product(1024, 1024, 8192)),
    "gemm_hopper-nn-2048x4096x4096": ("gemm_hopper", OTHER_LAYER, product(2048, 4096, 4096)),
    "gemm_hopper_split-nn-64x8192x8192": ("gemm_hopper_split", OTHER_LAYER, product(64, 8192, 8192)),
}


@dataclass
class Task:
    """A problem to record: its configs, and what became of each image and of each pass so far."""

    name: str
    problem: Problem
    specs: Sequence[ImageSpec]
    images: dict[str, CompiledImage | CompileFailure] = field(default_factory=dict)
    passes: dict[int, Pass] = field(default_factory=dict)

    @property
    def compiled(self) -> bool:
        return len(self.images) == len(self.specs)


@dataclass(frozen=True)
class Outcome:
    """What one pass says of one config: ``us`` is its median, ``seconds`` what the GPU's process took."""

    status: str
    us: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Pass:
    device: Device
    outcomes: Mapping[str, Outcome]  # by image


class Failed(Exception):
    """A pass cannot go on; the message says why."""


class OutOfTime(Exception):
    """The run is being ended."""


def problem_of(kernel: str, choices: Mapping[str, Value], sizes: Mapping[str, int]) -> Problem:
    """The problem of a shape, in the bin that the shape falls in."""
    functional = description(kernel).functional(ARCH, **choices)
    quantities = keys_at(functional.kernel.name, sizes)
    keys = functional.kernel.tuning_keys
    cell = tuple(key.representatives[key.bin_of(quantities[key.name])] for key in keys)
    return Problem(functional, cell, shape_of(**sizes))


def keys_at(kernel: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The tuning keys of a kernel at a shape, not of its bin."""
    of = description(kernel)
    whole = tuning(of.family).sizes(sizes)
    environment = Environment(sizes=whole, multiprocessors=arch_spec(ARCH).multiprocessors)
    return {key.name: evaluate(key.quantity, environment) for key in of.tuning_keys}


def tasks(names: Sequence[str], most: int, seed: int) -> list[Task]:
    """What to record of each problem: its rich space, or ``most`` random configs of it."""
    made = []
    for name in names:
        problem = problem_of(*PROBLEMS[name])
        specs = space(problem, rich=True).candidates
        if len(specs) > most:
            drawn = random.Random(f"{seed} {name}").sample(range(len(specs)), most)
            specs = tuple(specs[place] for place in sorted(drawn))
        made.append(Task(name, problem, specs))
    return made


def instructions(cubin: bytes) -> int:
    """Instructions of a cubin, an ELF file: 16 bytes each in its .text sections, padding included."""
    table, size, count, names_at = struct.unpack_from("<Q10xHHH", cubin, 40)
    sections: list[tuple[int, ...]] = [struct.unpack_from("<IIQQQQ", cubin, table + size * i) for i in range(count)]
    names = sections[names_at][4]
    return sum(bytes_ for name, *_, bytes_ in sections if cubin[names + name :].startswith(b".text.")) // 16


def drift_at(place: int, anchors: Sequence[tuple[int, float]]) -> float:
    """How much slower than usual the GPU was at a place of the order: between anchors, which ascend, a straight line.

    Usual is the anchors' median.
    """
    usual = median(us for _, us in anchors)
    after = bisect(anchors, place, key=lambda anchor: anchor[0])
    if after in (0, len(anchors)):
        return anchors[min(after, len(anchors) - 1)][1] / usual
    (p, a), (q, b) = anchors[after - 1 : after + 1]
    return (a + (b - a) * (place - p) / (q - p)) / usual


class Recorder:
    """One run: compiles the tasks' images in order, and has the workers time each task so often once it is compiled."""

    def __init__(self, given: Sequence[Task], out: Path, seed: int, deadline: float, passes: str = PASSES[:2]) -> None:
        self.tasks, self.out, self.seed, self.deadline, self.passes = given, out, seed, deadline, passes
        self.saved: list[Path] = []
        self._left = [(task, number) for task in given for number in range(len(passes))]
        self._taken: dict[str, str] = {}  # the GPU that has pass A or B, by problem
        self._changed = threading.Condition()
        self._stopped = False
        self._product = ""
        self._began = time.monotonic()

    def run(self, workers: Sequence[GpuProcess], store: ImageStore, jobs: int | None, compiler: Compile) -> None:
        """Returns when all is done, or at the deadline."""
        several = len(workers) > 1
        threads = [threading.Thread(target=self._measure, args=(worker, several)) for worker in workers]
        compiling = threading.Thread(target=self._compile, args=(store, jobs, compiler, [w.core for w in workers]))
        started = [compiling, *threads]
        try:
            for thread in started:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.1)
        finally:
            self._stop()
            for thread in started:
                if thread.ident:
                    thread.join()
            for task in self.tasks:
                if len(task.passes) < len(self.passes):
                    missing = [name for number, name in enumerate(self.passes) if number not in task.passes]
                    self._note(f"{task.name}: dropped: pass {' and '.join(missing)} is not whole")

    def _note(self, message: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {message}", file=sys.stderr, flush=True)

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _ending(self) -> bool:
        return self._stopped or time.monotonic() >= self.deadline

    def _compile(self, store: ImageStore, jobs: int | None, compiler: Compile, cores: Sequence[int | None]) -> None:
        users: dict[str, list[Task]] = {}
        for task in self.tasks:
            for spec in task.specs:
                users.setdefault(spec.name, []).append(task)
        try:
            leave(cores)
            specs = {spec.name: spec for task in self.tasks for spec in task.specs}
            results = compiler(specs.values(), store, jobs)
            for spec, result in results:
                with self._changed:
                    for task in users[spec.name]:
                        task.images[spec.name] = result
                        if task.compiled:
                            self._note(f"{task.name}: {len(task.specs)} images are there")
                            self._changed.notify_all()
                if self._ending():
                    break
            if close := getattr(results, "close", None):
                close()  # ends the compiler's processes
        except Exception as error:
            self._note(f"compiling ends: {type(error).__name__}: {error}")
            self._stop()

    def _take(self, gpu: str, several: bool) -> tuple[Task, int] | None:
        """The next pass whose images are there and which this GPU may have; None where none is left."""
        with self._changed:
            while True:
                mine = [(t, n) for t, n in self._left if not several or n > JUDGE or self._taken.get(t.name) != gpu]
                if self._ending() or not mine:
                    return None
                for task, number in mine:
                    if task.compiled:
                        self._left.remove((task, number))
                        if number <= JUDGE:
                            self._taken[task.name] = gpu
                        return task, number
                self._changed.wait(0.5)  # the deadline may pass meanwhile, and another GPU end

    def _measure(self, worker: GpuProcess, several: bool) -> None:
        """A GPU's thread."""
        try:
            device = worker.device()
            with self._changed:
                self._product = self._product or device.name
            if (device.arch, device.name) != (ARCH, self._product):
                raise Failed(f"it is a {device.name} ({device.arch}), and not a {self._product} ({ARCH})")
            while turn := self._take(worker.gpu, several):
                try:
                    self._one_pass(worker, device, *turn)
                except (Failed, WorkerError) as error:
                    self._note(f"{turn[0].name} pass {PASSES[turn[1]]} ends: {error}")
                    worker.close()
                    worker.healthy()  # or this GPU is done
        except OutOfTime:
            pass
        except Exception as error:
            self._note(f"GPU {worker.gpu} stops: {type(error).__name__}: {error}")
        finally:
            worker.close()

    def _one_pass(self, worker: GpuProcess, device: Device, task: Task, number: int) -> None:
        began = time.monotonic()
        about = f"{task.name} pass {PASSES[number]} on GPU {worker.gpu}"
        self._note(f"{about} begins")
        taken = Pass(device, time_all(task, worker, f"{self.seed} {task.name} {number}", self._ending))
        timed = [(one.us, name) for name, one in taken.outcomes.items() if one.us is not None]
        best, image = min(timed)
        config = next(spec.config for spec in task.specs if spec.name == image)
        self._note(
            f"{about}: {len(timed)} of {len(task.specs)} timed in {time.monotonic() - began:.0f} s,"
            f" best {best:.1f} µs: {config}"
        )
        with self._changed:
            task.passes[number] = taken
            whole = len(task.passes) == len(self.passes)
        if whole:
            made = recording_of(task)
            self.saved.append(save(made, self.out))
            self._note(f"{task.name}: saved; passes A and B differ by {made.noise:.2%}")


def time_all(task: Task, worker: GpuProcess, seed: str, ending: Callable[[], bool]) -> dict[str, Outcome]:
    """One pass: every config of the task in random order, by image; drift is divided out.

    A config that crashes or hangs is to blame only if the anchor runs afterwards. Failed where it does not, or where
    nothing runs, OutOfTime where ``ending`` says so.
    """
    draw = random.Random(seed)
    outcomes, requests = static_outcomes(task)
    worker.prepare(task.problem.named)
    anchor, best = find_anchor(task, worker, requests, draw)
    order = draw.sample(sorted(requests), len(requests))
    anchors: list[tuple[int, float]] = []
    proven = False  # that the GPU is well since the last config that failed
    for place, name in enumerate([*order, None]):
        if ending():
            raise OutOfTime
        if place % ANCHOR_EVERY == 0 or not proven or name is None:
            us = attempt(worker, anchor, None).us
            if us is None:
                raise Failed(f"{anchor.config}, which ran before, does not run any more")
            anchors.append((place, us))
        if name is not None:
            outcomes[name] = one = attempt(worker, requests[name], best)
            best = min(best, one.us or best)
            proven = one.status in ("ok", "wrong")
    for place, name in enumerate(order):
        us = outcomes[name].us
        if us is not None:
            outcomes[name] = replace(outcomes[name], us=us / drift_at(place, anchors))
    return outcomes


def static_outcomes(task: Task) -> tuple[dict[str, Outcome], dict[str, Request]]:
    """What needs no GPU to be told, and the requests that are left, by image."""
    specs = {spec.name: spec for spec in task.specs}
    outcomes, requests = {}, {}
    for name, image in task.images.items():
        if isinstance(image, CompileFailure):
            outcomes[name] = Outcome("compile_failed")
        elif unfit(specs[name], image):
            outcomes[name] = Outcome("pruned")
        else:
            requests[name] = launch_request(specs[name], image)
    return outcomes, requests


def find_anchor(
    task: Task, worker: GpuProcess, requests: Mapping[str, Request], draw: random.Random
) -> tuple[Request, float]:
    """The fastest of SCOUTS configs, and its microseconds."""
    today = [spec.name for spec in space(task.problem).candidates if spec.name in requests]
    scouts = [*draw.sample(today, len(today)), *draw.sample(sorted(requests), len(requests))]
    found: list[tuple[float, str]] = []
    for name in scouts[:SCOUTS]:
        one = attempt(worker, requests[name], min(found)[0] if found else None)
        if one.us is not None:
            found.append((one.us, name))
    if not found:
        raise Failed(f"no config of {task.name} runs")
    best, name = min(found)
    return requests[name], best


def attempt(worker: GpuProcess, request: Request, best: float | None) -> Outcome:
    """The outcome of one config; a crash or a hang has to happen twice. Unstartable where the GPU is lost."""
    began = time.monotonic()
    for _ in range(TRIES):
        try:
            result: Result = worker.sweep(request, best)
            us = median(result.samples) if result.status == "ok" else None
            return Outcome(result.status, us, time.monotonic() - began)
        except Unstartable:
            raise
        except WorkerError as error:
            last = error
    return Outcome("timed_out" if isinstance(last, TimedOut) else "crashed", None, time.monotonic() - began)


def recording_of(task: Task) -> Recording:
    """All passes of a task, with what the compiler said."""
    problem, functional, vendor = task.problem, task.problem.functional, task.problem.functional.arch_spec.vendor
    names = [spec.name for spec in task.specs]
    images = [task.images[name] for name in names]
    taken = [[task.passes[number].outcomes[name] for name in names] for number in sorted(task.passes)]
    passes = [[one.us and rounded(one.us) for one in outcomes] for outcomes in taken]
    device = task.passes[0].device
    parameters = {
        **{one.name: (one.default or 0,) for one in problem.kernel.tunables},
        **problem.kernel.tunable_values(vendor, rich=True),
        **problem.kernel.compile_option_values(vendor, rich=True),
    }
    defaults = {one.name: one.default for one in (*problem.kernel.tunables, *problem.kernel.compile_options)}
    features = {**problem.sizes, **keys_at(problem.kernel.name, problem.sizes)}
    return Recording(
        name=task.name,
        kernel=problem.kernel.name,
        arch=functional.arch,
        functional=str(functional),
        bin=problem.bin,
        shape=problem.sizes,
        features={name: float(value) for name, value in features.items()},
        product=device.name,
        driver=device.driver,
        triton=TRITON_VERSION,
        torch=device.torch,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        parameters={name: list(values) for name, values in parameters.items()},
        defaults={name: value for name, value in defaults.items() if value is not None and name in parameters},
        configs=[spec.tunables + spec.compile_options for spec in task.specs],
        statuses=[next((one.status for one in each if one.status != "ok"), "ok") for each in zip(*taken, strict=True)],
        facts=[facts_of(image) for image in images],
        compile_s=[rounded(image.seconds) for image in images],
        measure_s=[[rounded(one.seconds) for one in outcomes] for outcomes in taken],
        passes=passes,
        noise=rounded(noise(passes)),
    )


def facts_of(image: CompiledImage | CompileFailure) -> dict[str, int]:
    if isinstance(image, CompileFailure):
        return {}
    told = {name: int(image.metadata[name]) for name in ("registers", "shared", "spills")}
    return told | {"instructions": instructions(image.binary)}


def rounded(number: float) -> float:
    return float(f"{number:.5g}")


def dry_run(given: Sequence[Task], jobs: int, gpus: int, passes: str) -> None:
    """Prints how many configs and images each problem has, and what they will take."""
    known: set[str] = set()
    total_configs, total_images, total_compile, total_measure = 0, 0, 0.0, 0.0
    print(f"{'problem':36}{'configs':>9}{'new images':>12}{'compile':>10}{'measure':>10}")
    for task in given:
        new = {spec.name for spec in task.specs} - known
        known |= new
        compile_s = len(new) * COMPILE_S[task.problem.kernel.gluon]
        measure_s = len(passes) * (len(task.specs) * (1 + 1 / ANCHOR_EVERY) + SCOUTS) * MEASURE_S
        print(f"{task.name:36}{len(task.specs):>9}{len(new):>12}{compile_s:>8.0f} s{measure_s:>8.0f} s")
        total_configs, total_images = total_configs + len(task.specs), total_images + len(new)
        total_compile, total_measure = total_compile + compile_s, total_measure + measure_s
    print(f"{'all':36}{total_configs:>9}{total_images:>12}{total_compile:>8.0f} s{total_measure:>8.0f} s")
    print(
        f"{jobs} compilers: {total_compile / jobs:.0f} s; {gpus} GPUs: {total_measure / gpus:.0f} s;"
        " they work side by side, but for the first problem's images"
    )


def main(arguments: Sequence[str] | None = None, compiler: Compile = compile_images) -> int:
    """The program; returns its exit status: 1 where a problem was dropped, 2 where it cannot begin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parent
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, metavar="NAME", default=list(PROBLEMS))
    parser.add_argument("--out", type=Path, default=here / "recordings", help="folder for the files")
    parser.add_argument("--gpus", nargs="+", metavar="GPU", help="indices of the GPUs to use (default: all visible)")
    parser.add_argument("--jobs", type=int, help="compiler processes (default: one a core)")
    parser.add_argument("--most", type=int, default=5000, help="configs of a problem (default: %(default)s)")
    parser.add_argument("--race", action="store_true", help="a third pass, for the race at the end of a search")
    parser.add_argument("--seed", type=int, default=0, help="of draws and orders (default: %(default)s)")
    parser.add_argument(
        "--time-budget",
        type=float,
        metavar="SECONDS",
        default=float("inf"),
        help="end after this time, whatever is under way; whole problems are saved by then",
    )
    parser.add_argument("--dry-run", action="store_true", help="count configs and estimate times; needs no GPU")
    parser.add_argument("--launcher", default="aotriton.tune.measure.launcher:GpuLauncher", metavar="MODULE:CLASS")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.time_budget
    given, passes = tasks(options.problems, options.most, options.seed), PASSES if options.race else PASSES[:2]
    if options.dry_run:
        dry_run(given, options.jobs or 60, len(options.gpus or range(4)), passes)
        return 0
    gpus = options.gpus or visible_gpus()
    if not gpus:
        print("error: there is no GPU", file=sys.stderr)
        return 2
    cores = launch_cores(gpus)
    workers = [GpuProcess(options.launcher, gpu, CANDIDATE_LIMIT, core) for gpu, core in zip(gpus, cores, strict=True)]
    recorder = Recorder(given, options.out, options.seed, deadline, passes)
    with tempfile.TemporaryDirectory(prefix="aotriton-record-") as store:  # a new one: compiling is to be timed
        recorder.run(workers, ImageStore(store), options.jobs, compiler)
    return 0 if len(recorder.saved) == len(given) else 1


if __name__ == "__main__":
    sys.exit(main())
