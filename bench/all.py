"""Takes the figures of the documents anew, within a time, and writes them into README.md and pages of docs/.

python bench/all.py --only grid unseen --minutes 9.5   # on a GPU: results, each with the state that it is of
python bench/all.py --readme                           # the documents from the results; needs no GPU
python bench/all.py --check                            # which figures are of an older state than this tree
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fingerprints
import readme
import stored
from figures.results import Results

from aotriton.rules.arch import ARCHS

ROOT = Path(__file__).resolve().parent.parent
BENCH, RESULTS = ROOT / "bench", ROOT / "bench" / "results"
PRODUCTS = {"h200": "NVIDIA H200", "h100": "NVIDIA H100 80GB HBM3"}  # by the first word of a result's name
FORWARD, ATTENTION, GEMM = ("attn_fwd",), ("attn_fwd", "attn_bwd"), ("gemm",)
SEED = 70117  # of random problems: another one than what was tuned on


@dataclass(frozen=True)
class Run:
    """What a program is given: the build, where its result goes, a seed, and how many seconds are left."""

    build: Path
    out: Path
    seed: int
    left: float


@dataclass(frozen=True)
class Figure:
    """A program and the result that it writes, ``<gpu>-<file>.json``. It is not begun with less than ``seconds`` left.

    The result is of a state: of what ``operators`` choose and run, and of the ``runtime``, with PyTorch's operators
    where that is "torch"; or of ``declarations``.
    """

    file: str
    seconds: int
    command: Callable[[Run], Sequence[object]]
    operators: Sequence[str] = ATTENTION
    runtime: str = ""
    plain: bool = True  # else images with features are timed, too
    declarations: bool = False  # it depends on these alone


def _python(program: str, *more: object) -> list[object]:
    return [sys.executable, BENCH / program, *more]


# In this order: what takes long is last, but for the two that FlashAttention-4 has to be installed for.
FIGURES = {
    "grid": Figure("bf16", 75, lambda run: _python("attention.py", "--json", run.out)),
    "unseen": Figure(
        "bf16-unseen", 60,
        lambda run: _python(
            "unseen.py", "--json", run.out, "--seed", run.seed, "--count", 500,
            "--time-budget", min(200, run.left - 20),
        ),
    ),
    "launch": Figure(
        "launch", 40,
        lambda run: _python("launch.py", "--json", run.out, "--program", run.build / "bench-launch"),
        runtime="library",
    ),
    "new-shape": Figure(
        "new-shape", 10, lambda run: [run.build / "bench-new-shape", "--json", run.out], runtime="library"
    ),
    "latency": Figure(
        "latency", 45,
        lambda run: _python("latency.py", "--json", run.out, "--library", run.build / "bench-latency.so"),
        FORWARD, "library",
    ),
    "regret": Figure(
        "regret", 60,
        lambda run: _python(
            "regret.py", "--json", run.out, "--seed", run.seed, "--build", run.build,
            "--time-budget", min(75, (run.left - 20) / 2),
        ),
    ),
    "lengths": Figure(
        "lengths", 60, lambda run: _python("lengths.py", "--json", run.out, "--seed", run.seed), plain=False
    ),
    "hints": Figure("hints", 40, lambda run: _python("hints.py", "--json", run.out)),
    "band": Figure("band", 60, lambda run: _python("band.py", "--json", run.out), plain=False),
    "features": Figure("features", 200, lambda run: _python("features.py", "--json", run.out), plain=False),
    "decode": Figure(
        "decode", 100, lambda run: _python("decode.py", "--json", run.out, "--seed", run.seed), FORWARD, plain=False
    ),
    "pages": Figure("pages", 20, lambda run: _python("pages.py", "--json", run.out), FORWARD, plain=False),
    "invariant": Figure("invariant", 15, lambda run: _python("invariant.py", "--json", run.out), FORWARD, plain=False),
    "fp8-keys": Figure("fp8-keys", 15, lambda run: _python("fp8_keys.py", "--json", run.out), FORWARD, plain=False),
    "fp8-queries": Figure(
        "fp8-queries", 20, lambda run: _python("fp8_queries.py", "--json", run.out), FORWARD, plain=False
    ),
    "latent": Figure("latent", 20, lambda run: _python("latent.py", "--json", run.out), FORWARD, plain=False),
    "first-call": Figure("first-call", 130, lambda run: _python("first_call.py", "--json", run.out), runtime="library"),
    "gemm": Figure("gemm", 90, lambda run: _python("gemm.py", "--json", run.out, "--seed", run.seed), GEMM),
    "pytorch": Figure(
        "pytorch", 90,
        lambda run: _python("pytorch.py", "--json", run.out, "--only", "host", "--only", "prefill"),
        runtime="torch",
    ),
    "train": Figure(
        "pytorch-train", 240, lambda run: _python("pytorch.py", "--json", run.out, "--only", "train"), runtime="torch"
    ),
    "packed-train": Figure(
        "pytorch-packed", 330, lambda run: _python("packed_training.py", "--json", run.out),
        runtime="torch", plain=False,
    ),
    "public-kernels": Figure(
        "public-kernels", 60,
        lambda run: _python("public_kernels.py", "--json", run.out, "--minutes", max(0.5, (run.left - 40) / 60)),
        declarations=True,
    ),
}  # fmt: skip
ROWS = "regret-rows"  # regret.py --rows, and the next is what a default build has: neither needs a GPU
SIZE = "build-size"
AT_HOME = ("rows", "size")


@cache
def state_now(result: str) -> Mapping[str, str]:
    """The fingerprints of what a result of this name depends on, in this tree."""
    if result == SIZE:
        return {"images": fingerprints.shipped()}
    gpu, _, file = result.partition("-")
    if file == ROWS:
        return {"images": fingerprints.images(PRODUCTS[gpu], FORWARD)}
    figure = next(one for one in FIGURES.values() if one.file == file)
    if figure.declarations:
        return {"declarations": fingerprints.declarations()}
    found = {"images": fingerprints.images(PRODUCTS[gpu], figure.operators, plain=figure.plain)}
    return found | ({"runtime": fingerprints.runtime(torch=figure.runtime == "torch")} if figure.runtime else {})


def is_older(result: str, record: Mapping[str, Any]) -> bool:
    """Whether a result is of another state than this tree; one that does not say which it is of is."""
    return any(record["state"].get(kind) != now for kind, now in state_now(result).items())


def put_state(path: Path, result: str, commit: str, seconds: float, fresh: Path) -> None:
    """Writes a fresh result to its path, with which state it is of, and how long it took."""
    about = {"commit": commit, **state_now(result), "seconds": round(seconds)}
    stored.store(path, json.loads(fresh.read_text()) | {"state": about})
    fresh.unlink()


def gpu_word() -> str:
    """The first GPU as results are named after it; SystemExit where there is none, or no figure is quoted of it."""
    try:
        command = ["nvidia-smi", "--id=0", "--query-gpu=name", "--format=csv,noheader"]
        name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        sys.exit("bench/all.py: nvidia-smi finds no GPU; --only rows size, --readme and --check need none")
    for word, product in PRODUCTS.items():
        if product == name:
            return word
    sys.exit(f"bench/all.py: {name}: figures are of {' and '.join(PRODUCTS.values())}")


def is_taken(path: Path, commit: str, result: str) -> bool:
    """Whether there is a result of this very commit and state."""
    if commit == "unknown" or commit.endswith("-dirty"):
        return False
    try:
        about: dict[str, Any] = stored.load(path).get("state", {})
    except (OSError, ValueError):
        return False
    return about == about | {"commit": commit, **state_now(result)}


def take(names: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Runs programs one after the other; what became of those whose result is not there, for a reader."""
    deadline = time.monotonic() + 60 * options.minutes
    gpu = gpu_word() if set(names) - set(AT_HOME) else ""
    commit, missing = options.commit or fingerprints.commit(), []
    environment = _environment(options.build)
    if {"grid", "unseen"} & set(names) and not importlib.util.find_spec("flash_attn"):
        print("FlashAttention-4 is not installed: it is no peer in this run", flush=True)
    for name in names:
        result = {"rows": f"h100-{ROWS}", "size": SIZE}.get(name) or f"{gpu}-{FIGURES[name].file}"
        path = options.out / f"{result}.json"
        if is_taken(path, commit, result) and not options.again:
            print(f"{name}: {path} is of this commit already", flush=True)
            continue
        left = deadline - time.monotonic()
        if name in FIGURES and left < FIGURES[name].seconds:
            missing.append(f"{name}: it needs {FIGURES[name].seconds} s, and {max(left, 0):.0f} were left")
            continue
        begun = time.monotonic()
        fresh = path.with_suffix(".part.json")
        fresh.unlink(missing_ok=True)
        if name == "size":
            problem = build_size(options.build, fresh)
        else:
            command = rows(options.build, fresh) if name == "rows" else FIGURES[name].command(
                Run(options.build, fresh, options.seed, left)
            )  # fmt: skip
            problem = _ran(list(map(str, command)), environment, left)
        took = time.monotonic() - begun
        if not problem:
            put_state(path, result, commit, took, fresh)
        else:
            missing.append(f"{name}: {problem}")
        print(f"{name}: {problem or path} ({took:.0f} s)", flush=True)
    return missing


def _ran(command: Sequence[str], environment: Mapping[str, str], left: float) -> str:
    """What went wrong; empty where nothing did."""
    try:
        code = subprocess.run(command, env=dict(environment), cwd=ROOT, timeout=left).returncode
    except subprocess.TimeoutExpired:
        return f"not finished in the {left:.0f} s that were left"
    except OSError as error:
        return str(error)
    return f"exit status {code}" if code else ""


def rows(build: Path, out: Path) -> list[object]:
    return _python("regret.py", "--json", out, "--rows", PRODUCTS["h100"], "--build", build)


def build_size(build: Path, out: Path) -> str:
    """Writes what a build of the preset default has; what is wrong where it is another build."""
    packs = json.loads((build / "generated" / "images.json").read_text())["packs"]
    archs = sorted({pack["arch"] for pack in packs})
    if archs != sorted(row.arch for row in ARCHS):
        return f"{build} has images for {', '.join(archs)} alone: build the preset default"
    images = sum(len(pack["images"]) for pack in packs)
    out.write_text(json.dumps({"images": images, "archive_bytes": (build / "libaotriton_v2.a").stat().st_size}) + "\n")
    return ""


def results() -> Results:
    return Results(RESULTS, is_older)


def quoted() -> tuple[str, ...]:
    """The names of the results that the documents quote: of each figure the newest, of any GPU."""
    found = results()
    return SIZE, *(found.newest(file) for file in (*(one.file for one in FIGURES.values()), ROWS) if found.has(file))


def check() -> bool:
    """Tells which results are older than the tree; whether the documents say what the results do."""
    fits = True
    for name in quoted():
        record = results()(name)
        about = record["state"]
        older = f"of an older state, commit {about['commit']}" if is_older(name, record) else "of this state"
        print(f"{name}: {older}")
    for document in readme.DOCUMENTS:
        text = (ROOT / document).read_text()
        if readme.written(text, results()) != text:
            print(f"{document} does not say what the results do: python bench/all.py --readme writes it")
            fits = False
    return fits


def confirm(build: Path) -> None:
    """Puts results of an older state into this one where each call runs the images in the build that it ran then. That
    says what a GPU takes, so it is for results that do not depend on the runtime.
    """
    for name in quoted():
        record = results()(name)
        if is_older(name, record) and set(state_now(name)) == {"images"} and _has_images(record):
            path = RESULTS / f"{name}.json"
            print(f"{name}: ", end="", flush=True)
            if not _ran(list(map(str, _python("same_images.py", path))), _environment(build), 600):
                stored.store(path, record | {"state": record["state"] | state_now(name)})


def _has_images(record: Mapping[str, Any]) -> bool:
    """Whether a result says of each call which images it ran, and on what machine, as those of plain attention do."""
    return "machine" in record and all("images" in cell for cell in record.get("cells") or [{}])


def _environment(build: Path) -> dict[str, str]:
    folders = [ROOT, build / "python", *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}


def write() -> None:
    for document in readme.DOCUMENTS:
        path = ROOT / document
        path.write_text(readme.written(path.read_text(), results()))


def _path(text: str) -> Path:
    return Path(text).resolve()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--readme", action="store_true", help="write the documents' figures from the results")
    what.add_argument(
        "--check", action="store_true", help="say which figures are of an older state; 1 if one is hidden"
    )
    what.add_argument(
        "--confirm", action="store_true", help="put into this state what runs the same images in --build; needs no GPU"
    )
    parser.add_argument(
        "--only", nargs="+", choices=[*FIGURES, *AT_HOME], default=list(FIGURES), help="figures to take"
    )
    parser.add_argument("--out", type=_path, default=RESULTS, help="folder of the results (default: bench/results)")
    parser.add_argument("--minutes", type=float, default=25, help="for all of them (default: %(default)s)")
    parser.add_argument("--build", type=_path, default=ROOT / "build" / "default", help="(default: build/default)")
    parser.add_argument("--seed", type=int, default=SEED, help="of random problems (default: %(default)s)")
    parser.add_argument("--commit", default="", help="of this tree, where git does not know it")
    parser.add_argument("--again", action="store_true", help="also what is there of this commit")
    options = parser.parse_args()
    if options.check:
        return 0 if check() else 1
    if options.readme:
        write()
        return 0
    if options.confirm:
        confirm(options.build)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    missing = take([name for name in (*FIGURES, *AT_HOME) if name in options.only], options)
    for one in missing:
        print(f"left out: {one}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
