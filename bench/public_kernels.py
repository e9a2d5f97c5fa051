"""Tunes kernels of public packages with aotriton.autotune, and times each winner beside its author's config.

python bench/public_kernels.py --json bench/results/h100-public-kernels.json   # on all visible GPUs, which share them
python bench/public_kernels.py --from bench/results/h100-public-kernels.json   # the table again, without a GPU

Each kernel is tuned from nothing: without images and without measurements. Then its winner and the config of its author
take turns on the same tensors, launched by Triton's JIT, timed by the tuner's clock. If the author's config is one of
several of triton.autotune, it is that of them which the tuning found the fastest. A run that was cut short goes on
where it stopped: FILE.rows has the rows. `--part 0/2` takes every second kernel from the first on.

The packages are not copied into this tree. They need nothing more than torch:

pip download --no-deps liger-kernel==0.8.5 fla-core==0.6.0 conch-triton-kernels==1.3 einops==0.8.2   # 2.2 MB
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent))

import attention
import stored
from public import conch, liger, linear_attention  # noqa: F401 - they declare kernels
from public.declared import KERNELS, Declared

import aotriton
from aotriton.rules.database import TuningDatabase
from aotriton.rules.image import config_values
from aotriton.rules.kernel import Tensor
from aotriton.tune.autotune.call import Call
from aotriton.tune.autotune.tuned import DATABASE, Tuned
from aotriton.tune.autotune.tuning import DrawnData
from aotriton.tune.autotune.user_kernel import read_kernel
from aotriton.tune.measure.clock import Clocks, GpuClock, race
from aotriton.tune.measure.launcher import Result, visible_gpus

DISTRIBUTIONS = {"liger_kernel": "liger-kernel", "fla": "fla-core", "conch": "conch-triton-kernels"}
LOST = 3  # the exit status of a worker whose GPU is of no use any more; all rows are written
PATIENCE = 150.0  # seconds that one kernel may take
GRACE = 20.0  # seconds after the end in which one that was begun may be completed
TOY = 2  # configs of each kernel
WINNER, AUTHOR = "winner", "author"


def space_of(one: Declared) -> tuple[list[dict[str, Any]], int]:
    """The configs to try; the first ones, whose number follows, are the author's."""
    own = read_kernel(one.found()).configs
    authors = [{**one.author, **config} for config in own] if own else [dict(one.author)]
    grid = [dict(zip(one.space, values, strict=True)) for values in itertools.product(*one.space.values())]
    more = one.declaration().get("space", grid)
    return [*authors, *(config for config in more if config not in authors)], len(authors)


def described(one: Declared, folder: Path, most: int | None = None, **given: Any) -> tuple[Tuned, int]:
    """The kernel, not tuned yet, with the number of its author's configs; ``most`` configs are tried."""
    space, authors = space_of(one)
    arguments = {**one.declaration(), "space": space[:most], "folder": folder, **given}
    made: Tuned = aotriton.autotune(**arguments)(one.found())
    return made, min(authors, len(space[:most]))


def small_sizes(one: Declared) -> dict[str, Any]:
    """Sizes for which Triton's interpreter is fast enough; what is not varied stays so."""
    sizes: dict[str, Any] = dict(one.declaration()["sizes"])
    return sizes | {name: str(value) if isinstance(sizes[name], str) else value for name, value in one.small.items()}


def medians(one: Tuned) -> tuple[list[float | None], dict[str, int]]:
    """The swept time of each config in microseconds, in the order of the space, with how often each verdict came."""
    with TuningDatabase(one.folder / DATABASE, readonly=True) as database:
        outcomes = database.evidence.outcomes()
    swept = {frozenset(config_values(each.config).items()): each for each in outcomes if each.phase == "sweep"}
    us = {config: each.median_us for config, each in swept.items() if each.status == "ok"}
    configs = [frozenset(config.items()) for config in one._declared.numbered_configs]
    return [us.get(config) for config in configs], dict(Counter(each.status for each in swept.values()))


def launch_of(one: Tuned, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> Callable[[], object]:
    """A launch by Triton's JIT, as the tuned object makes it."""
    call = Call.of(one._operator, (), tensors)
    grid, values = call.launch(config, one._described.constants_at(call.sizes))
    return partial(one.kernel[grid], **values, **config)


def side_by_side(one: Tuned, configs: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Samples in microseconds of each config, in turns on the same tensors; and what is wrong with their results."""
    import torch

    (sizes,) = one._declared.shapes
    declared = one._declared
    data = DrawnData(one._operator, sizes, declared.reference, declared.prepare, declared.tolerance, "cuda")
    written = [each for each in one._description.arguments if isinstance(each, Tensor) and each.operand.written]
    results = {each.name: Result(each, *data.result(one._description, each, {})) for each in written}
    tensors = data.tensors | {name: result.tensor for name, result in results.items()}
    launches = {who: launch_of(one, tensors, config) for who, config in configs.items()}

    def restore(all_: bool) -> None:
        for each in results.values():
            if all_ or each.argument.operand.updated:
                each.restore()

    wrong = {}
    for who, launch in launches.items():
        restore(True)
        launch()
        torch.cuda.synchronize()
        checks = [data.check(one._description, each, {}, tensors) for each in written]
        if said := [check.wrong for check in checks if check.wrong]:
            wrong[who] = said[0]
    clock, before = GpuClock(), partial(restore, False)

    def time_(order: Sequence[str]) -> Sequence[float | None]:
        return clock.round([launches[who] for who in order], restore=[before] * len(order))

    return race(time_, list(launches), clocks=Clocks()), wrong


def measure(one: Declared, row: dict[str, Any], folder: Path, options: Sequence[str], toy: bool = False) -> None:
    """Tunes one kernel here and completes its row. If it raises, the row has what was known until then."""
    small = {"sizes": small_sizes(one)} if toy else {}
    began = time.monotonic()
    tuned, authors = described(one, folder, TOY if toy else None, options=options, **small)
    row["configs"] = len(tuned._declared.configs)
    tuned.tune()
    row["tuned_s"] = round(time.monotonic() - began, 1)
    swept, row["verdicts"] = medians(tuned)
    best = author_of(tuned, swept, authors)
    configs = {WINNER: dict(tuned.config), AUTHOR: dict(tuned._declared.configs[best])}
    row["config"] = {who: {name: str(value) for name, value in config.items()} for who, config in configs.items()}
    if configs[WINNER] == configs[AUTHOR]:
        del configs[AUTHOR]  # it is timed once
    if toy:
        samples, row["wrong"] = {WINNER: [tuned.median_us], AUTHOR: [swept[best] or 0.0]}, {}
    else:
        samples, row["wrong"] = side_by_side(tuned, configs)
    row["samples"] = len(samples[WINNER])
    samples.setdefault(AUTHOR, samples[WINNER])
    row["us"] = {who: round(statistics.median(taken), 2) for who, taken in samples.items()}


def author_of(tuned: Tuned, swept: Sequence[float | None], authors: int) -> int:
    """The place of the config that the author's package takes: of several, the one that was swept the fastest."""
    if authors == 1:
        return 0
    timed = {place: us for place, us in enumerate(swept[:authors]) if us is not None}
    if not timed:
        raise RuntimeError(f"none of its author's {authors} configs is right")
    return min(timed, key=lambda place: timed[place])


def about(one: Declared) -> dict[str, Any]:
    """What of a row is known without a GPU."""
    package = DISTRIBUTIONS[one.package]
    try:
        package += f" {version(package)}"
    except PackageNotFoundError:
        package += " (not installed)"
    return {"kernel": one.name, "package": package, "sizes": one.declaration()["sizes"], "lines": one.lines}


def work(names: Sequence[str], rows: Path, until: float, options: Sequence[str], toy: bool) -> int:
    """Measures kernels one after the other on this GPU, and writes the row of each when it is there."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "AOTRITON_IMAGE_STORE": f"{folder}/images", "TRITON_CACHE_DIR": f"{folder}/jit", "XDG_CACHE_HOME": folder
        }  # fmt: skip
        for one in (each for each in KERNELS if each.name in names):
            if time.time() > until:
                return 0
            row = about(one)
            try:
                measure(one, row, Path(folder) / "families" / one.name, options, toy)
            except Exception as error:  # of any package's code, of the tuner's process, of the GPU
                row["error"] = f"{type(error).__name__}: {error}"
            write(rows, row)
            if not toy and not healthy():
                return LOST
    return 0


def healthy() -> bool:
    import torch

    try:
        torch.cuda.empty_cache()
        return float(torch.ones(1, device="cuda").sum()) == 1.0
    except Exception:  # whatever torch makes of an error of the GPU
        return False


def write(rows: Path, row: Mapping[str, Any]) -> None:
    """Adds a line in one write, so that those of two workers do not mix."""
    print(line_of(row), file=sys.stderr, flush=True)
    with rows.open("a") as file:
        file.write(f"{json.dumps(row)}\n")


def read(rows: Path) -> dict[str, dict[str, Any]]:
    """The rows that are there, by kernel."""
    lines = rows.read_text().splitlines() if rows.exists() else []
    return {row["kernel"]: row for row in map(json.loads, lines)}


def supervise(gpu: str, names: Sequence[str], rows: Path, until: float, given: Sequence[str]) -> None:
    """Has workers measure the kernels on one GPU. A kernel whose worker dies, or takes too long, is a row that says so,
    and the others go on.
    """
    command = [sys.executable, __file__, "--worker", "--json", rows.with_suffix(".json"), "--until", until, *given]
    while waiting := [name for name in names if name not in read(rows)]:
        if time.time() > until:
            return
        worker = subprocess.Popen(
            [*map(str, command), "--only", *waiting], start_new_session=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": gpu, "HIP_VISIBLE_DEVICES": gpu},
        )  # fmt: skip
        done, since = len(waiting), time.monotonic()
        problem = ""
        while worker.poll() is None:
            time.sleep(0.2)
            left = len([name for name in waiting if name not in read(rows)])
            if left < done:
                done, since = left, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                problem = f"it took more than {PATIENCE:.0f} s"
            if problem or time.time() > until + GRACE:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
        if worker.returncode == 0 or time.time() > until + GRACE:
            return
        open_ = [name for name in waiting if name not in read(rows)]
        if open_ and (problem or worker.returncode != LOST):
            one = next(each for each in KERNELS if each.name == open_[0])
            write(rows, about(one) | {"error": problem or f"its process ended with status {worker.returncode}"})


def record_of(rows: Path, names: Sequence[str], machine: Mapping[str, Any]) -> dict[str, Any]:
    """The result: a row for each kernel, also for those that were not reached."""
    there = read(rows)
    by_name = {one.name: one for one in KERNELS}
    missing = {"error": "not measured: the time was up"}
    return {"machine": machine, "rows": [there.get(name) or about(by_name[name]) | missing for name in names]}


def ratio(row: Mapping[str, Any]) -> float:
    """How many times as fast the winner is as the author's config."""
    return float(row["us"][AUTHOR] / row["us"][WINNER])


def line_of(row: Mapping[str, Any]) -> str:
    start = f"| {row['kernel']} | {row['lines']} |"
    if "error" in row:
        return f"{start} {' '.join(row['error'].split())[:300].replace('|', '/')} | | | | |"
    config = " ".join(f"{name} {value}" for name, value in row["config"][WINNER].items())
    us = [f"{row['us'][who]:.1f}" for who in (AUTHOR, WINNER)]
    wrong = "".join(f"; {who}'s result: {said}" for who, said in row["wrong"].items())
    return f"{start} {row['configs']} | {row['tuned_s']:.0f} | {' / '.join(us)} | {ratio(row):.2f} | {config}{wrong} |"


def table(record: Mapping[str, Any]) -> str:
    """The record as markdown; the worst first, and before them what is not there."""
    rows = sorted(record["rows"], key=lambda row: 0.0 if "error" in row else ratio(row))
    lines = [
        "| kernel | lines of its declaration | configs | s | author's / tuned, µs | × author's | the winner |",
        "|---|---|---|---|---|---|---|",
        *map(line_of, rows),
    ]
    return "\n".join(lines)


def chosen_names(only: Sequence[str], part: str) -> list[str]:
    """The kernels that are meant; of ``part`` i/n, those at places i, i + n, ..."""
    place, _, count = part.partition("/")
    return [one.name for one in KERNELS if not only or one.name in only][int(place) :: int(count)]


def machine() -> dict[str, Any]:
    return attention.machine() | {"triton": version("triton")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--json", type=Path, help="measure, and write the record here")
    source.add_argument("--from", type=Path, dest="given", help="take this record instead of measuring")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in KERNELS], default=(), help="these kernels")
    parser.add_argument("--part", default="0/1", help="of the kernels, as 0/2 and 1/2 (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=9, help="begin no kernel after them (default: %(default)s)")
    parser.add_argument("--jobs", type=int, help="compiler processes of a GPU (default: its share of the cores)")
    parser.add_argument("--toy", action="store_true", help="small sizes, two configs, times of the tests' stand-in")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.given:
        print(table(stored.load(options.given)))
        return 0
    rows = options.json.with_suffix(".rows")
    if options.worker:
        tuner = ["--launcher", "standin_launcher:StandinLauncher"] if options.toy else []
        return work(options.only, rows, options.until, [*tuner, "--jobs", str(options.jobs)], options.toy)
    gpus = ["0"] if options.toy else visible_gpus()
    if not gpus:
        sys.exit("bench/public_kernels.py: there is no GPU")
    about_machine = {"gpu": "stand-in"} if options.toy else machine()
    names, until = chosen_names(options.only, options.part), time.time() + 60 * options.minutes
    given = ["--jobs", options.jobs or max(1, (os.cpu_count() or 1) // len(gpus)), *(["--toy"] if options.toy else [])]
    with ThreadPoolExecutor(len(gpus)) as pool:
        parts = [names[place :: len(gpus)] for place in range(len(gpus))]
        list(pool.map(lambda gpu, part: supervise(gpu, part, rows, until, list(map(str, given))), gpus, parts))
    record = record_of(rows, names, about_machine)
    options.json.write_text(json.dumps(record, indent=1) + "\n")
    if read(rows).keys() >= set(names):
        rows.unlink()  # there is nothing left to go on with
    print(table(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
