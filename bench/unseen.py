"""Attention on random problems that nobody tuned on, forward and backward, beside the best peer of each.

``python bench/unseen.py --json OUT [--count N] [--seed S]`` with torch, a CUDA GPU and the binding on PYTHONPATH;
``--from OUT`` prints the tables of a record.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stored
from attention import DIRECTIONS, OPERATORS, gpu_state, machine, race
from contenders import LIBRARY, PEERS, contenders

HEAD_DIMS = (64, 96, 128, 192, 256)
GROUPS = (1, 4, 8)
MOST_HEADS, MOST_BATCH, SEQLENS = 64, 16, (100, 12000)
WORK = (1e9, 2e13)  # floating-point operations of a forward
MOST_BYTES = 4 << 30  # of q
ROUNDS = 15
FAR = 0.03  # a relative distance between two results that are right: gradients of bf16 are up to 0.01 apart


def problems(count: int, seed: int) -> list[dict[str, Any]]:
    """Odd lengths, 1 to 64 query heads in groups of 1, 4 and 8, batches of 1 to 16, full and causal."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        group = draw.choice(GROUPS)
        heads_k = 2 ** draw.randint(0, int(math.log2(MOST_HEADS // group)))
        head_dim, causal = draw.choice(HEAD_DIMS), draw.random() < 0.5
        seqlen = 2 * int(math.exp(draw.uniform(*(math.log(end / 2) for end in SEQLENS)))) + 1
        batch, heads = 2 ** draw.randint(0, int(math.log2(MOST_BATCH))), group * heads_k
        flops = 4 * batch * heads * seqlen * seqlen * head_dim * (0.5 if causal else 1)
        if WORK[0] <= flops <= WORK[1] and 2 * batch * heads * seqlen * head_dim <= MOST_BYTES:
            found.append(
                {"batch": batch, "heads": heads, "heads_k": heads_k, "seqlen": seqlen, "head_dim": head_dim}
                | {"causal": causal, "flops": flops}
            )
    return found


def measure(problem: dict[str, Any]) -> list[dict[str, Any]]:
    """The problem in both directions with times, the ratio to the best peer and what ran; ValueError where results
    differ.
    """
    import torch

    import aotriton

    sizes = {name: problem[name] for name in ("batch", "heads_k", "head_dim", "causal")} | {"heads_q": problem["heads"]}
    generator = torch.Generator(device="cuda").manual_seed(problem["seqlen"])
    q, k, v, dout = (
        torch.randn((problem["batch"], heads, problem["seqlen"], problem["head_dim"]), generator=generator,
                    device="cuda", dtype=torch.bfloat16)
        for heads in (problem["heads"], problem["heads_k"], problem["heads_k"], problem["heads"])
    )  # fmt: skip
    found = contenders(q, k, v, dout, problem["causal"])
    if len(found) == 1:
        raise ValueError(f"{problem}: no peer takes it")
    rows = []
    for direction in DIRECTIONS:
        calls = {who: call for who, one in found.items() if (call := getattr(one, direction))}
        apart = distances(calls)
        if not max(apart.values()) < FAR:
            raise ValueError(f"{problem}, {direction}: relative distances {apart}")
        us = {who: statistics.median(taken) for who, taken in race(calls, ROUNDS).items()}
        best = min((who for who in us if who != LIBRARY), key=lambda who: us[who])
        choices = aotriton.explain(
            OPERATORS[direction], arch=aotriton.arch(), product=aotriton.product(),
            multiprocessors=aotriton.multiprocessors(), dtype="bf16", seqlen=problem["seqlen"], **sizes,
        )  # fmt: skip
        flops = problem["flops"] * (2.5 if direction == "backward" else 1)
        rows.append(
            problem
            | {
                "direction": direction,
                "us": {who: round(time, 2) for who, time in us.items()},
                "tflops": round(flops / us[LIBRARY] / 1e6, 1),
                "best": best,
                "ratio": round(us[best] / us[LIBRARY], 4),
                "apart": {peer: round(distance, 6) for peer, distance in apart.items()},
                "images": [choice["image"] for choice in choices],
            }
        )
    return rows


def distances(calls: Mapping[str, Callable[[], tuple[Any, ...]]]) -> dict[str, float]:
    """How far the library's first result, out or dq, is from each peer's."""
    ours = calls[LIBRARY]()[0].float()
    size = ours.norm()
    return {who: float((calls[who]()[0].float() - ours).norm() / size) for who in calls if who in PEERS}


def mean(cells: Iterable[dict[str, Any]]) -> float:
    return math.exp(statistics.fmean(math.log(cell["ratio"]) for cell in cells))


def work_class(cell: dict[str, Any]) -> str:
    """By a forward's floating-point operations."""
    return next(
        name
        for most, name in ((1e11, "below 0.1 TFLOP"), (1e12, "0.1 to 1 TFLOP"), (1e99, "above"))
        if cell["flops"] < most
    )


GROUPED_BY: dict[str, Callable[[dict[str, Any]], Any]] = {
    "head dim": lambda cell: cell["head_dim"],
    "mask": lambda cell: "causal" if cell["causal"] else "full",
    "group": lambda cell: cell["heads"] // cell["heads_k"],
    "size": work_class,
}


def summary(cells: list[dict[str, Any]]) -> str:
    """Markdown: how many times as fast as the best peer, in geometric mean, tenth percentile and the worst."""
    lines = ["| | " + " | ".join(f"{d}: mean | p10 | worst" for d in DIRECTIONS) + " |", "|---" * 7 + "|"]

    def line(name: str, mine: list[dict[str, Any]]) -> str:
        text = f"| {name} |"
        for direction in DIRECTIONS:
            ratios = sorted(cell["ratio"] for cell in mine if cell["direction"] == direction)
            of = [cell for cell in mine if cell["direction"] == direction]
            text += f" {mean(of):.2f} | {ratios[len(ratios) // 10]:.2f} | {ratios[0]:.2f} |" if of else " | | |"
        return text

    lines.append(line("all", cells))
    for what, of in GROUPED_BY.items():
        for value in sorted({of(cell) for cell in cells}, key=lambda one: (isinstance(one, str), one)):
            lines.append(line(f"{what} {value}", [cell for cell in cells if of(cell) == value]))
    return "\n".join(lines)


def table(cells: list[dict[str, Any]], most: int = 20) -> str:
    """Markdown: the worst of each direction."""
    head = "| direction | D | mask | S | batch × heads / heads_k | GFLOP | TFLOP/s | × best peer | peer | kernels |"
    lines = [head, "|---" * 10 + "|"]
    for direction in DIRECTIONS:
        mine = [cell for cell in cells if cell["direction"] == direction]
        for cell in sorted(mine, key=lambda cell: cell["ratio"])[:most]:
            mask = "causal" if cell["causal"] else "full"
            shape = f"{cell['batch']} × {cell['heads']} / {cell['heads_k']}"
            row = (direction, cell["head_dim"], mask, cell["seqlen"], shape, f"{cell['flops'] / 1e9:.0f}")
            kernels = ", ".join(image.rsplit("_sm_", 1)[0] for image in cell["images"])
            told = (f"{cell['tflops']:.0f}", f"{cell['ratio']:.2f}", cell["best"], kernels)
            lines.append(f"| {' | '.join(map(str, (*row, *told)))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--json", type=Path, help="measure, and write the record here")
    source.add_argument("--from", type=Path, nargs="+", dest="given", help="take these records instead of measuring")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-budget", type=float, default=math.inf, help="seconds, after which no problem is begun")
    options = parser.parse_args()
    if options.given:
        result: dict[str, Any] = {"cells": [cell for one in options.given for cell in stored.load(one)["cells"]]}
    else:
        import torch

        torch.zeros(1, device="cuda")  # makes the device current for the library
        result = {"machine": machine(), "rounds": ROUNDS, "seed": options.seed, "cells": [], "failed": []}
        begun = time.monotonic()
        for problem in problems(options.count, options.seed):
            if time.monotonic() - begun > options.time_budget:
                break
            try:
                result["cells"] += measure(problem)
            except ValueError as error:
                result["failed"].append(str(error))
                print(error, file=sys.stderr)
            torch.cuda.empty_cache()
            options.json.write_text(json.dumps(result, indent=1) + "\n")  # each time: a run cut short leaves its cells
        options.json.write_text(json.dumps(result | {"gpu": gpu_state()}, indent=1) + "\n")
    print(summary(result["cells"]), table(result["cells"]), sep="\n\n")
    if result.get("failed"):
        sys.exit(f"{len(result['failed'])} problems failed, see `failed` of the record")


if __name__ == "__main__":
    main()
