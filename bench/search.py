"""How good are search strategies, on recorded problems? Regret against trials, ours and Helion's, replayed.

``python bench/search.py --json OUT [--recordings FOLDER] [--seeds N] [--helion NAME=PYTHON ...]`` needs numpy and
scikit-learn, and for each ``--helion`` a Python that has Helion; no GPU. ``--table`` prints the result, ``--plot OUT``
draws it (matplotlib). ``--from JSON ...`` takes the arms that these results have, and replays those of ``--arms`` and
``--helion`` alone.

Strategies see pass A of a recording and are judged by pass B: regret is how much longer than B's best the config takes
that was the fastest on A among what was tried; what is below the noise of the recording is none. Where a recording has
a pass C, the leaders on A race as those of the tuner do: the fastest of them on C counts, and the race's time is added.
A race is no trial. Every trial counts, whatever became of it. ``transfer`` tunes the problems of a kernel one after the
other, in an order drawn anew for each seed, beginning from nothing, and learns from its own trials only; ``cold`` is
the same without the others' trials. Seconds are simulated: WORKERS compile ahead of one GPU, which measures, and half
of them what a strategy calls likely, as the tuner has it; Helion compiles a batch, then measures it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from math import inf
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stored
from recording import Recording, load

from aotriton.rules.family import families
from aotriton.rules.family import kernel as description
from aotriton.rules.kernel import parse_functional
from aotriton.tune.coordinator.expected import expected
from aotriton.tune.problem.family import tuning
from aotriton.tune.search.space import Config, Past, SearchSpace, Trial
from aotriton.tune.search.strategies import strategy
from aotriton.tune.winners.decide import Swept, leaders

HERE = Path(__file__).resolve().parent
# Recorded when the default strategy was finished for the first time: that one was not chosen by their results.
HELD_OUT = (
    "attn_bwd_dk_dv-d64-4096",
    "attn_bwd_dq-d64-1024",
    "attn_fwd-d64-1024",
    "attn_fwd_hopper-d64-4096",
    "gemm-nn-2048x2048x8192",
    "gemm_hopper-nn-128x8192x3072",
    "gemm_hopper-nn-8192x1024x2048",
    "gemm_hopper_split-nn-256x3072x12288",
)
# Recorded when the default strategy was finished: it was not chosen by them, nor has it been changed since.
FRESH = (
    "attn_bwd_dk_dv-d256-1024",
    "attn_bwd_dq-d32-4096",
    "attn_fwd-d32-2048",
    "attn_fwd_hopper-d64-full-2048",
    "gemm-nn-4096x1024x4096",
    "gemm_hopper-1024x1024x8192",
    "gemm_hopper-nn-2048x4096x4096",
    "gemm_hopper_split-nn-64x8192x8192",
)
# Hyper-parameters were chosen on these problems first. What came later (facts of descriptions, polish, closeness) was
# chosen after the results of all but those held out had been seen, with attn_bwd_dq and gemm_hopper_split beside these
# because they were the worst.
DEVELOPMENT = (
    "attn_bwd_dq-2048",
    "attn_bwd_dq-512",
    "attn_fwd-2048",
    "attn_fwd-512",
    "attn_fwd-64x8192",
    "gemm_hopper-16x6144x4096",
    "gemm_hopper-4096x4096x4096",
    "gemm_hopper-512x4096x14336",
    "gemm_hopper_split-4096x4096x4096",
    "gemm_hopper_split-64x4096x14336",
)
RACE = 2  # the place of pass C
WORKERS = 16
GRID = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # trials at which curves are told
LEARNS = {
    "pattern": "pattern",
    "lfbo": "lfbo",
    "cold": "transfer",
    "transfer": "transfer",
}  # arms, and their strategies
HELION = {"pattern": "LFBOPatternSearch", "tree": "LFBOTreeSearch"}  # its two LFBO searches


@dataclass(frozen=True)
class Run:
    """One search of one problem: indices of configs in the order of their trials, when each was told, and what it
    cost to choose them. Seconds.
    """

    tried: tuple[int, ...]
    told: tuple[float, ...]
    thought: float


class Problem:
    """A recording as all its passes together see it: what failed in one of them has no time.

    Microseconds by config: ``seen`` by a search, ``true`` by the judge, and ``raced``, where there is a third pass.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        known = [
            status == "ok" and None not in times
            for status, *times in zip(recording.statuses, *recording.passes, strict=True)
        ]
        seen, true, *raced = (
            [us if there and us is not None else inf for there, us in zip(known, times, strict=True)]
            for times in recording.passes
        )
        self.seen, self.true, self.raced = seen, true, raced[0] if raced else None
        self.place = {config: place for place, config in enumerate(recording.configs)}
        self.features = {**recording.features, **numbers(recording.functional)}
        self.facts = stated(recording)

    def space(self, history: Sequence[Past] = ()) -> SearchSpace:
        one = self.recording
        parameters = {name: tuple(values) for name, values in one.parameters.items()}
        return SearchSpace(tuple(one.configs), parameters, one.defaults, self.features, self.facts, tuple(history))

    def trial(self, place: int) -> Trial:
        one, ok = self.recording, self.seen[place] < inf
        status = one.statuses[place] if ok or one.statuses[place] != "ok" else "crashed"
        return Trial(one.configs[place], status, self.seen[place] if ok else None, one.facts[place])

    def regret(self, place: int) -> float:
        """How much longer the config takes than the best; 0 where that is noise."""
        found = self.true[place] / min(self.true) - 1
        return found if found > self.recording.noise else 0.0

    def leaders(self, tried: Sequence[int]) -> list[int]:
        """What the tuner would have race: the configs that pass A does not tell from the fastest of these. None where
        one leads, or where the recording has no race.
        """
        swept = {str(place): Swept(self.seen[place], str(place)) for place in tried if self.seen[place] < inf}
        return [int(name) for name in leaders(swept)] if self.raced else []

    def winner(self, tried: Sequence[int]) -> int:
        """The config that a search which ends here has found."""
        if self.raced and (racing := self.leaders(tried)):
            return min(racing, key=self.raced.__getitem__)
        return min(tried, key=self.seen.__getitem__)

    def past(self, tried: Sequence[int]) -> Past:
        """What a search leaves behind for others."""
        configs = self.recording.configs
        medians = {configs[place]: self.seen[place] for place in tried if self.seen[place] < inf}
        return Past(self.features, medians, frozenset(configs[place] for place in tried) - set(medians), self.facts)


def stated(recording: Recording) -> dict[Config, dict[str, float]]:
    """What the kernel's description says of the configs; nothing where the kernel is none of the families'."""
    if recording.kernel not in {kernel.name for family in families() for kernel in family.kernels}:
        return {}
    kernel = description(recording.kernel)
    functional = parse_functional(kernel, recording.arch, recording.functional)
    return expected(functional, tuning(kernel.family).sizes(recording.shape), recording.configs)


def numbers(functional: str) -> dict[str, float]:
    """The choices of a functional that are numbers, or yes and no."""
    choices = dict(word.split("=") for word in functional.split())
    told = {name: {"True": "1", "False": "0"}.get(value, value) for name, value in choices.items()}
    return {name: float(value) for name, value in told.items() if value.isdigit()}


def replay(problem: Problem, name: str, seed: int, history: Sequence[Past] = ()) -> Run:
    """A search as the tuner would run it: WORKERS configs are compiled while the GPU measures those that are."""
    one = problem.recording
    began = time.process_time()
    search = strategy(name, problem.space(history), seed)
    thought = time.process_time() - began
    workers, now = [0.0] * WORKERS, 0.0
    made: dict[int, float] = {}  # by config: when its image is there
    compiled: list[tuple[float, int]] = []
    tried, told = [], []

    def compile_image(config: Config) -> None:
        place = problem.place[config]
        if place not in made:
            made[place] = max(now, heapq.heappop(workers)) + one.compile_s[place]
            heapq.heappush(workers, made[place])

    while compiled or not search.finished:
        began = time.process_time()
        asked = search.ask(WORKERS - len(compiled))
        thought += time.process_time() - began
        for config in asked:
            compile_image(config)
            heapq.heappush(compiled, (made[problem.place[config]], problem.place[config]))
        began = time.process_time()
        likely = search.likely
        thought += time.process_time() - began
        for config in likely:
            if sum(until > now for until in workers) >= WORKERS // 2:
                break
            compile_image(config)
        ready, place = heapq.heappop(compiled)
        now = max(now, ready) + one.measure_s[0][place]
        tried.append(place)
        told.append(now)
        began = time.process_time()
        search.tell([problem.trial(place)])
        thought += time.process_time() - began
    return Run(tuple(tried), tuple(told), thought)


def one_by_one(problems: Sequence[Problem], seed: int) -> dict[str, Run]:
    """The problems in a random order, each with what the searches of its kernel's problems before it have told."""
    order = random.Random(f"order {seed}").sample(problems, len(problems))
    history: dict[tuple[str, ...], list[Past]] = defaultdict(list)  # a kernel's parameters may have changed since
    runs = {}
    for problem in order:
        one = problem.recording
        key = (one.kernel, one.arch, one.product, *one.parameters)
        before = history[key]
        runs[one.name] = replay(problem, "transfer", seed, before)
        before.append(problem.past(runs[one.name].tried))
    return runs


def batched(problem: Problem, batches: Sequence[Sequence[int]]) -> Run:
    """Batches, each compiled as a whole before it is measured."""
    one, now = problem.recording, 0.0
    tried, told = [], []
    for batch in batches:
        workers = [now] * WORKERS
        for place in batch:
            heapq.heapreplace(workers, workers[0] + one.compile_s[place])
        now = max(workers)
        for place in batch:
            now += one.measure_s[0][place]
            tried.append(place)
            told.append(now)
    return Run(tuple(tried), tuple(told), 0.0)


def helion(python: str, algorithm: str, problem: Problem, seeds: Sequence[int]) -> list[Run]:
    """Helion's searches of the problem, one for each seed; RuntimeError with what it said where it failed."""
    one, default = problem.recording, problem.space().default
    asked = {
        "algorithm": algorithm,
        "seeds": [*seeds],
        "problem": {
            "parameters": {name: [*values] for name, values in one.parameters.items()},
            "default": dict(default),
            "configs": [[value for _, value in config] for config in one.configs],
            "times": [time if time < inf else None for time in problem.seen],
        },
    }
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, HERE / "helion_replay.py"],
        input=json.dumps(asked), text=True, capture_output=True, env=os.environ | threads,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{python}: {algorithm} on {one.name}: {done.stderr.strip()[-2000:]}")
    return [batched(problem, batches) for batches in json.loads(done.stdout)]


def judged(problem: Problem, run: Run) -> dict[str, Any]:
    """What the result keeps of a run: ``regrets`` at GRID as far as it goes, and at its end; ``needed``: after how many
    trials it had its final config.
    """
    regrets = [round(problem.regret(problem.winner(run.tried[:count])), 5) for count in GRID if count <= len(run.tried)]
    found = problem.winner(run.tried)
    race = sum(problem.recording.measure_s[RACE][place] for place in problem.leaders(run.tried))
    return {
        "regrets": regrets,
        "regret": round(problem.regret(found), 5),
        "trials": len(run.tried),
        "needed": run.tried.index(found) + 1,
        "seconds": round(run.told[-1] + race, 1),
        "thought": round(run.thought, 2),
    }


def at_random(problem: Problem) -> dict[str, Any]:
    """The expected regret of random search, in closed form.

    Of N configs in the order of pass A, the best of n drawn ones is the i-th with probability
    n / N * (N - i - n)! ... / (N - i - 1)! ..., which a product has step by step.
    """
    places = sorted(range(len(problem.seen)), key=problem.seen.__getitem__)
    total, curve = len(places), []
    worst = max(problem.regret(place) for place in places if problem.true[place] < inf)
    for count in GRID:
        if count > total:
            break
        chance, expected = count / total, 0.0
        for rank, place in enumerate(places[: total - count + 1]):
            expected += chance * min(problem.regret(place), worst)
            chance *= (total - rank - count) / max(total - rank - 1, 1)
        curve.append(round(expected, 5))
    return {"regrets": curve, "regret": round(problem.regret(places[0]), 5), "trials": total}


def _task(task: tuple[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Arm, problem and what is kept of each run of a task; in a process of its own."""
    arm, (name, problems, seeds, python) = task
    found = []
    if python:
        (problem,) = problems
        algorithm = HELION[arm.rpartition(" ")[2]]
        found = [(arm, name, judged(problem, run)) for run in helion(python, algorithm, problem, seeds)]
    elif arm == "transfer":
        named = {problem.recording.name: problem for problem in problems}
        found = [(arm, one, judged(named[one], run)) for one, run in one_by_one(problems, seeds[0]).items()]
    else:
        (problem,) = problems
        found = [(arm, name, judged(problem, replay(problem, LEARNS[arm], seed))) for seed in seeds]
    return found


def tasks(
    problems: Sequence[Problem], seeds: int, arms: Sequence[str], helions: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, Any]]:
    """The longest first."""
    for name, python in helions:
        for algorithm in HELION:
            for problem in problems:
                yield f"{name} {algorithm}", (problem.recording.name, [problem], range(seeds), python)
    if "transfer" in arms:
        for seed in range(seeds):
            yield "transfer", ("", problems, [seed], "")
    for arm in arms:
        if arm != "transfer":
            for problem in problems:
                yield arm, (problem.recording.name, [problem], range(seeds), "")


def searched(problems: Sequence[Problem], options: argparse.Namespace) -> dict[str, Any]:
    """By arm, and by problem: the runs, in the order of their seeds."""
    arms: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for problem in problems:
        arms["random"][problem.recording.name].append(at_random(problem))
    waiting = [*tasks(problems, options.seeds, options.arms, options.helion)]
    with ProcessPoolExecutor(options.jobs) as pool:
        for done, found in enumerate(pool.map(_task, waiting), 1):
            for arm, name, run in found:
                arms[arm][name].append(run)
            print(f"\r{done} of {len(waiting)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {arm: dict(by_problem) for arm, by_problem in arms.items()}


def made(options: argparse.Namespace) -> dict[str, Any]:
    """The result of the arms and of the Helions that were asked for."""
    problems = [Problem(recording) for recording in load(options.recordings)]
    if options.only:
        problems = [one for one in problems if group(one.recording.name) == options.only]
    result = {"machine": machine(problems, options), "seeds": options.seeds, "grid": [*GRID]}
    return {**result, "problems": [*map(described, problems)], "arms": searched(problems, options)}


def joined(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All arms of results of the same problems; SystemExit where they are not. The later result's arm counts."""
    told = [[result[key] for key in ("seeds", "grid", "problems")] for result in results]
    if any(one != told[-1] for one in told):
        sys.exit("the results are not of the same problems, seeds and points")
    arms = {arm: runs for result in results for arm, runs in result["arms"].items()}
    peers = sorted({name for result in results for name in result["machine"]["helion"]})
    return {**results[-1], "machine": results[-1]["machine"] | {"helion": peers}, "arms": arms}


def described(problem: Problem) -> dict[str, Any]:
    one = problem.recording
    told = {name: getattr(one, name) for name in ("name", "kernel", "functional", "bin", "product", "date", "noise")}
    ok = sum(time < inf for time in problem.true)
    return told | {"configs": len(one.configs), "ok": ok, "group": group(one.name)}


def group(name: str) -> str:
    """Which of the recorded problems it belongs to: those that `--only` takes."""
    named = {"fresh": FRESH, "held-out": HELD_OUT, "development": DEVELOPMENT}
    return next((group for group, names in named.items() if name in names), "judged")


def curve(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Mean regret at each point of GRID; a run that is over keeps its last."""
    return [
        fmean((*run["regrets"], run["regret"])[min(at, len(run["regrets"]))] for run in runs) for at in range(len(GRID))
    ]


def of_problems(result: dict[str, Any], arm: str, key: str) -> list[float]:
    """The mean over seeds of each problem."""
    return [fmean(run[key] for run in runs) for runs in result["arms"][arm].values()]


def spread(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """The 95 % interval of the mean, by drawing problems again (bootstrap)."""
    draw = random.Random(0)
    means = sorted(fmean(draw.choices(values, k=len(values))) for _ in range(draws))
    return means[round(0.025 * draws)], means[round(0.975 * draws) - 1]


def table(result: dict[str, Any]) -> str:
    """Markdown: an arm a line, the means over problems and seeds."""
    lines = ["| arm | regret, % | 95 % interval | p90, % | trials | until its best | seconds | to choose, s |"]
    lines.append("|---" * 8 + "|")
    for arm, by_problem in result["arms"].items():
        runs = [run for runs in by_problem.values() for run in runs]
        regrets = of_problems(result, arm, "regret")
        low, high = spread(regrets)
        cells = [arm, f"{100 * fmean(regrets):.2f}", f"{100 * low:.2f} to {100 * high:.2f}", f"{100 * p90(runs):.2f}"]
        cells.append(f"{fmean(of_problems(result, arm, 'trials')):.0f}")
        for key, digits in (("needed", 0), ("seconds", 0), ("thought", 1)):
            cells.append(f"{fmean(of_problems(result, arm, key)):.{digits}f}" if key in runs[0] else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def p90(runs: Sequence[dict[str, Any]]) -> float:
    regrets: list[float] = [run["regret"] for run in runs]
    return quantiles(regrets, n=10, method="inclusive")[8] if len(regrets) > 1 else regrets[0]


def verdict(result: dict[str, Any]) -> list[str]:
    """What is asked of the default, and of our LFBO beside Helion's."""
    arms = result["arms"]
    if "transfer" not in arms:
        return []
    ours = [run for runs in arms["transfer"].values() for run in runs]
    trials = fmean(run["trials"] for run in ours)
    said = [
        f"transfer: regret {100 * fmean(run['regret'] for run in ours):.2f} %, p90 {100 * p90(ours):.2f} %,"
        f" {trials:.0f} trials"
    ]
    theirs = [arm for arm in arms if " " in arm]
    if not theirs:
        return said
    better = min(
        theirs, key=lambda arm: (fmean(of_problems(result, arm, "regret")), fmean(of_problems(result, arm, "trials")))
    )
    runs = [run for runs in arms[better].values() for run in runs]
    total, needed = (fmean(run[key] for run in runs) for key in ("trials", "needed"))
    said.append(
        f"{better}, the better of Helion's: regret {100 * fmean(r['regret'] for r in runs):.2f} %, {total:.0f} trials,"
        f" {needed:.0f} until it had its best"
    )
    said.append(
        f"transfer takes {trials / total:.2f} of all of its trials, {trials / needed:.2f} of those until its best"
    )
    if "lfbo" in arms:
        said.append(_beside(result, "lfbo", next(arm for arm in reversed(theirs) if arm.endswith("pattern"))))
    return said


def _beside(result: dict[str, Any], arm: str, other: str) -> str:
    """How often one curve is within what the seeds of the other spread over, or below it."""
    seeds = len(next(iter(result["arms"][other].values())))
    by_seed = [curve([runs[seed] for runs in result["arms"][other].values()]) for seed in range(seeds)]
    own = curve([run for runs in result["arms"][arm].values() for run in runs])
    highest = [max(values) for values in zip(*by_seed, strict=True)]
    within = sum(mine <= most for mine, most in zip(own, highest, strict=True))
    return f"{arm} is within {other}'s spread over seeds, or below, at {within} of {len(GRID)} points"


def plot(result: dict[str, Any], path: Path) -> None:
    """Mean regret against trials; bands: the 95 % interval over problems. A line ends where half of its runs have."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(stored.PLOT)
    figure, axes = plt.subplots(figsize=(9, 5.5))
    for arm, by_problem in result["arms"].items():
        each = [curve(runs) for runs in by_problem.values()]
        longest = sorted(len(run["regrets"]) for runs in by_problem.values() for run in runs)
        end = longest[len(longest) // 2]
        means = [100 * fmean(values) for values in zip(*each, strict=True)][:end]
        bands = [spread(values, 500) for values in zip(*each, strict=True)][:end]
        (line,) = axes.plot(
            GRID[:end], means, marker="o", markersize=3, label=arm, linewidth=2.5 if arm == "transfer" else 1.2
        )
        low, high = zip(*bands, strict=True)
        axes.fill_between(
            GRID[:end], [100 * v for v in low], [100 * v for v in high], alpha=0.1, color=line.get_color()
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0)
    axes.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("trials")
    axes.set_ylabel("mean regret on pass B, %")
    axes.set_title(f"{len(result['problems'])} problems, {result['seeds']} seeds, {result['machine']['product']}")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    stored.save_plot(figure, path, bbox_inches="tight")


def machine(problems: Sequence[Problem], options: argparse.Namespace) -> dict[str, Any]:
    one = problems[0].recording
    return {
        "product": one.product,
        "driver": one.driver,
        "triton": one.triton,
        "torch": one.torch,
        "python": platform.python_version(),
        "scikit-learn": version("scikit-learn"),
        "helion": [name for name, _ in options.helion],
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def _named(text: str) -> tuple[str, str]:
    name, equals, python = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=PYTHON, got {text!r}")
    return name, python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=HERE / "recordings")
    parser.add_argument(
        "--only", choices=("development", "judged", "held-out", "fresh"), help="those problems, not all"
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--arms", nargs="*", choices=list(LEARNS), metavar="ARM", help=f"of {', '.join(LEARNS)}")
    parser.add_argument("--helion", type=_named, action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--from", dest="read", type=Path, nargs="+", default=[], metavar="JSON")
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.arms is None:
        options.arms = [] if options.read else list(LEARNS)
    results = [stored.load(path) for path in options.read]
    if options.arms or options.helion:
        results.append(made(options))
    result = joined(results)
    if options.json:
        stored.store(options.json, result)
    if options.table:
        print(table(result))
    if options.plot:
        plot(result, options.plot)
    print("\n".join(verdict(result)))


if __name__ == "__main__":
    main()
