"""Times the library beside its peers' attention: from the grid below to JSON and a table.

python bench/attention.py --json bench/results/attention.json
python bench/attention.py --from bench/results/attention.json   # needs no GPU
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent))

import stored
from contenders import LIBRARY, PEERS, Contender, contenders

from aotriton.tune.measure.clock import GpuClock

OPERATORS = {"forward": "attn_fwd", "backward": "attn_bwd"}
DIRECTIONS = tuple(OPERATORS)

TOKENS, WIDTH = 16384, 2048  # batch x seqlen, heads x head_dim
HEAD_DIMS, SEQLENS = (64, 128, 256), (512, 2048, 8192)
ROUNDS, QUICK_ROUNDS, WARM_UP = 31, 7, 3


def truth(q: Any, k: Any, v: Any, dout: Any, causal: bool = False, hidden: Any = None) -> dict[str, Any]:
    """out, dq, dk, dv of one head, [seqlen, head_dim] each, in float64. ``hidden``, if any, is a mask of the scores."""
    import torch

    q, k, v, dout = (tensor.double() for tensor in (q, k, v, dout))
    scale = q.shape[-1] ** -0.5
    s = (q @ k.T).mul_(scale)
    if causal:
        s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu_(1), float("-inf"))
    if hidden is not None:
        s.masked_fill_(hidden, float("-inf"))
    p = torch.softmax(s, -1)
    del s
    out = p @ v
    ds = (dout @ v.T).sub_((dout * out).sum(-1, keepdim=True)).mul_(p).mul_(scale)
    return {"out": out, "dq": ds @ k, "dk": ds.T @ q, "dv": p.T @ dout}


def check(
    q: Any, k: Any, v: Any, dout: Any, causal: bool, implementations: dict[str, Contender]
) -> dict[str, dict[str, float]]:
    """``compare`` of all that the implementations with a backward compute."""
    names = ("out", "dq", "dk", "dv")
    results = {}
    for who, contender in implementations.items():
        if contender.backward is None:
            continue
        results[who] = dict(zip(names, (contender.forward()[0], *contender.backward()), strict=True))
    return compare(q, k, v, dout, causal, results)


def compare(
    q: Any, k: Any, v: Any, dout: Any, causal: bool, results: dict[str, dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """{who: {tensor: relative error}} against float64, in the first and the last head.

    SystemExit where one that is not a peer is more than twice as far from the truth as the farther peer, or, over whole
    tensors, farther from a peer than both their errors explain.
    """
    names = tuple(results[LIBRARY])
    heads = ((0, 0), (q.shape[0] - 1, q.shape[1] - 1))
    errors: dict[str, dict[str, float]] = {who: dict.fromkeys(names, 0.0) for who in results}
    for head in heads:
        exact = truth(q[head], k[head], v[head], dout[head], causal)
        for who, result in results.items():
            for name in names:
                errors[who][name] = _worse(errors[who][name], _distance(result[name][head], exact[name]))
        del exact
    peers = [who for who in results if who in PEERS]
    for who, name in itertools.product((who for who in results if who not in PEERS), names):
        allowed = 2 * max(errors[peer][name] for peer in peers)
        what = f"{_shape(q, causal)}: {who}'s {name}"
        if not errors[who][name] <= allowed:
            sys.exit(f"{what} is off by {errors[who][name]:.2e}, peers by {allowed / 2:.2e}")
        for peer in peers:
            apart = _distance(results[who][name], results[peer][name])
            if not apart <= allowed + errors[peer][name]:
                sys.exit(f"{what} is {apart:.2e} from {peer}'s, whose error is {errors[peer][name]:.2e}")
    return errors


def _distance(a: Any, b: Any) -> float:
    """Relative Frobenius distance, in float64, of b's batches one by one where there are many."""
    pairs = zip(a, b, strict=True) if a.dim() == 4 else [(a, b)]
    apart = size = 0.0
    for x, y in pairs:
        apart += float((x.double() - y.double()).square().sum())
        size += float(y.double().square().sum())
    return math.sqrt(apart / size)


def _worse(a: float, b: float) -> float:
    return b if math.isnan(b) or b > a else a


def _shape(q: Any, causal: bool) -> str:
    batch, heads, seqlen, head_dim = q.shape
    return f"head_dim {head_dim} seqlen {seqlen} {'causal' if causal else 'full'} batch {batch} heads {heads}"


def race(calls: Mapping[str, Callable[[], object]], rounds: int, cold: bool = True) -> dict[str, list[float]]:
    """Microseconds of GPU time of each call, by the tuner's clock: in turns, in a rotating order.

    ``cold``: L2 is flushed before each call; otherwise the same call is made just before it, untimed.
    """
    clock = GpuClock()
    order, samples = list(calls), {name: list[float]() for name in calls}
    for turn in range(-WARM_UP, 4 * rounds):
        launches = [calls[name] for name in order]
        taken = clock.round(launches, before=None if cold else launches)
        for name, sample in zip(order, taken, strict=True):
            if turn >= 0 and sample is not None:
                samples[name].append(sample)
        order.append(order.pop(0))
        if min(map(len, samples.values())) >= rounds:
            return samples
    counts = {name: len(taken) for name, taken in samples.items()}
    sys.exit(f"the host could not keep ahead of the GPU: samples {counts}, wanted {rounds} of each")


def measure(
    rounds: int, head_dims: Sequence[int] = HEAD_DIMS, seqlens: Sequence[int] = SEQLENS
) -> Iterator[dict[str, Any]]:
    """One record for each cell of the grid and direction."""
    import torch

    import aotriton

    torch.zeros(1, device="cuda")  # makes the device current for the library
    arch, multiprocessors = aotriton.arch(), aotriton.multiprocessors()
    for head_dim in head_dims:
        for causal in (False, True):
            for seqlen in seqlens:
                batch, heads = TOKENS // seqlen, WIDTH // head_dim
                generator = torch.Generator(device="cuda").manual_seed(seqlen + head_dim)
                sizes = (batch, heads, seqlen, head_dim)
                q, k, v, dout = (
                    torch.randn(sizes, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(4)
                )
                implementations = contenders(q, k, v, dout, causal)
                errors = check(q, k, v, dout, causal, implementations)
                for direction in DIRECTIONS:
                    calls = {who: call for who, c in implementations.items() if (call := getattr(c, direction))}
                    samples = race(calls, rounds)
                    flops = 4 * batch * heads * seqlen * seqlen * head_dim * (0.5 if causal else 1)
                    flops *= 2.5 if direction == "backward" else 1
                    medians = {who: statistics.median(taken) for who, taken in samples.items()}
                    quarters = {who: statistics.quantiles(taken, n=4) for who, taken in samples.items()}
                    choices = aotriton.explain(
                        OPERATORS[direction], arch=arch, product=aotriton.product(), multiprocessors=multiprocessors,
                        dtype="bf16", batch=batch, heads=heads, seqlen=seqlen, head_dim=head_dim, causal=causal,
                    )  # fmt: skip
                    yield {
                        "head_dim": head_dim, "causal": causal, "seqlen": seqlen, "batch": batch, "heads": heads,
                        "direction": direction,
                        "us": {who: round(median, 2) for who, median in medians.items()},
                        "quartiles_us": {who: [round(q[0], 2), round(q[2], 2)] for who, q in quarters.items()},
                        "samples": {who: len(taken) for who, taken in samples.items()},
                        "tflops": {who: round(flops / median / 1e6, 1) for who, median in medians.items()},
                        "ratio": {who: round(medians[who] / medians[LIBRARY], 4) for who in PEERS if who in medians},
                        "errors": errors,
                        "images": [[choice["image"], choice["provenance"]] for choice in choices],
                        "gpu": gpu_state(),
                    }  # fmt: skip
                del implementations, q, k, v, dout
                torch.cuda.empty_cache()


def rows_of(
    description: str | None,
    rounds: int,
    measure: Callable[[int], Iterable[Mapping[str, Any]]],
    table: Callable[[Mapping[str, Any]], str],
) -> None:
    """The command line of a benchmark whose result is rows of so many rounds: measures, prints the ``table`` and stores
    the result, or prints the table of a result that is there.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--from", type=Path, dest="source", help="a result to print, instead of measuring")
    parser.add_argument("--rounds", type=int, default=rounds, help="timings of each call (default: %(default)s)")
    options = parser.parse_args()
    if options.source:
        print(table(stored.load(options.source)))
        return
    record = {"machine": machine(), "rows": list(measure(options.rounds)), "gpu": gpu_state()}
    print(table(record))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def gpu_state() -> dict[str, str]:
    """Clocks, power and temperature as nvidia-smi reads them now."""
    fields = ("clocks.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu")
    return dict(zip(fields, _nvidia_smi(*fields), strict=True))


def _nvidia_smi(*fields: str) -> list[str]:
    ours = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    command = ["nvidia-smi", f"--id={ours}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ["unknown"] * len(fields)
    return [value.strip() for value in answer.split(",")]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def machine() -> dict[str, str]:
    """What the timings depend on besides the library's code."""
    import torch

    import aotriton

    device = torch.cuda.get_device_properties(0)
    return {
        "gpu": device.name,
        "multiprocessors": str(device.multi_processor_count),
        "driver": _nvidia_smi("driver_version")[0],
        "host": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "fa3": _version("fa3-fwd"),
        "fa4": _version("flash-attn-4"),
        "aotriton": aotriton.version(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def best(cell: dict[str, Any]) -> float:
    """The time of the best peer over the library's."""
    ratios: dict[str, float] = cell["ratio"]
    return min(ratios.values())


def geometric_means(cells: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """{direction: {peer: geometric mean of its time over the library's}}, and under "best" that of the best peer."""
    found: dict[str, dict[str, float]] = {}
    for direction in DIRECTIONS:
        mine = [cell for cell in cells if cell["direction"] == direction]
        if mine:
            of = {peer: [c["ratio"][peer] for c in mine if peer in c["ratio"]] for peer in PEERS}
            of["best"] = [best(cell) for cell in mine]
            found[direction] = {who: round(statistics.geometric_mean(all_), 4) for who, all_ in of.items() if all_}
    return found


def table(record: dict[str, Any]) -> str:
    """The record as markdown: TFLOP/s of all, and how many times as fast as the best peer the library is."""
    about = record["machine"]
    versions = f"driver {about['driver']}, torch {about['torch']}, cuDNN {about['cudnn']}"
    lines = [f"{about['gpu']}, {versions}{fa4_version(about)}, {about['date']}", ""]
    peers = [peer for peer in PEERS if any(peer in cell["tflops"] for cell in record["cells"])]
    columns = "| D | mask | S |"
    for direction in DIRECTIONS:
        columns += f" {direction} {' / '.join((LIBRARY, *peers))}, TFLOP/s | × best peer |"
    lines += [columns, "|" + "---|" * (columns.count("|") - 1)]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell in record["cells"]:
        rows.setdefault((cell["head_dim"], cell["causal"], cell["seqlen"]), {})[cell["direction"]] = cell
    for (head_dim, causal, seqlen), cells in rows.items():
        if len(cells) < len(DIRECTIONS):
            continue  # the run was cut short
        line = f"| {head_dim} | {'causal' if causal else 'full'} | {seqlen} |"
        for direction in DIRECTIONS:
            rates = cells[direction]["tflops"]
            shown = (f"{rates[who]:.0f}" if who in rates else "–" for who in (LIBRARY, *peers))
            line += f" {' / '.join(shown)} | {best(cells[direction]):.2f} |"
        lines.append(line)
    means = geometric_means(record["cells"])
    return "\n".join([*lines, "| geometric mean | | |" + "".join(f" | {means[d]['best']:.2f} |" for d in DIRECTIONS)])


def fa4_version(about: dict[str, str]) -> str:
    return f", FlashAttention-4 {about['fa4']}" if about.get("fa4", "none") != "none" else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--json", type=Path, help="measure, and write the record here")
    source.add_argument("--from", type=Path, dest="given", help="take this record instead of measuring")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, seqlen 2048 alone")
    options = parser.parse_args()
    if options.given:
        record = stored.load(options.given)
    else:
        import torch

        if not torch.cuda.is_available():
            sys.exit("bench/attention.py: torch finds no CUDA GPU")
        rounds, seqlens = (QUICK_ROUNDS, (2048,)) if options.quick else (ROUNDS, SEQLENS)
        record = {"machine": machine(), "rounds": rounds, "cells": []}
        with torch.no_grad():
            for cell in measure(rounds, seqlens=seqlens):
                record["cells"].append(cell)
                shown = ("head_dim", "causal", "seqlen", "direction", "tflops", "ratio")
                print(*(cell[name] for name in shown), cell["gpu"]["clocks.sm"], file=sys.stderr, flush=True)
                record["geometric_means"] = geometric_means(record["cells"])
                options.json.write_text(
                    json.dumps(record, indent=1) + "\n"
                )  # each time: a run cut short leaves its cells
    print(table(record))


if __name__ == "__main__":
    main()
