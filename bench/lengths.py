"""How close to the best the choice of a backend comes where lengths are in device memory, on random calls.

python bench/lengths.py --json bench/results/lengths.json --seed 1

Of such calls the library knows how many rows there are, how many sequences, and the longest one, and expects the rest
(`expected_band` and what is around it in rules/flash/common.py). Each call runs as the library chooses, and on each
backend that serves it, by the hint ``backend``. Regret is how much longer than the fastest of them the choice took. The
results of all of them are compared before they are timed.

The kinds of calls: chunks of prompts beside decoding steps (mixed); equal numbers of queries on caches of different
lengths (chunks); packed sequences that attend to themselves (prompts), and to more keys before them (prefixes), forward
and backward. Lengths are log-normal, uniform or all equal; keys are in rows or in pages of 64; bf16.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stored
from attention import gpu_state, machine, race
from contenders import with_workspace
from pages import log_normal, paged, starts

from aotriton.rules.family import operator
from aotriton.tune.problem.problems import log_uniform

FORWARD, BACKWARD = "attn_fwd", "attn_bwd"
CHOSEN = "chosen"
ROUNDS, COUNT = 5, 1200
PAGE = 64
HEADS = ((32, 8), (28, 4), (64, 8), (16, 2), (40, 8), (12, 2), (32, 32), (8, 1), (16, 16))
MOST_BYTES, MOST_FLOPS = 6e9, 3e12  # of keys and values; of two products, as if nothing was hidden
TOLERATED = 0.02  # of a result, relative to that of the choice in the norm
Us = Mapping[str, float]  # the median of each contender, in microseconds


@dataclass(frozen=True)
class Lengths:
    """A call: of each sequence its queries, the last of its keys, and its keys."""

    op: str
    kind: str
    spread: str
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int
    heads_k: int
    head_dim: int
    in_pages: bool

    def __str__(self) -> str:
        where = "keys in pages" if self.in_pages else "keys in rows"
        return (
            f"{self.op}, {self.kind}: {len(self.queries)} sequences, {sum(self.queries)} queries, at most "
            f"{max(self.queries)}, {sum(self.keys)} keys, at most {max(self.keys)} ({self.spread}), "
            f"{self.heads}:{self.heads_k} heads, D {self.head_dim}, {where}"
        )


# ---- random calls ----------------------------------------------------------------------------------------------------


def drawn(draw: Random, count: int, longest: int, spread: str) -> list[int]:
    if spread == "log-normal":
        return log_normal(draw, count, longest)
    return [draw.randint(1, longest) if spread == "uniform" else longest for _ in range(count)]


def mixed(draw: Random, spread: str) -> tuple[list[int], list[int]]:
    chunks, steps, rows = draw.randint(1, 4), log_uniform(draw, 2, 64), log_uniform(draw, 32, 2048)
    keys = drawn(draw, chunks + steps, log_uniform(draw, 1024, 32768), spread)
    return [rows] * chunks + [1] * steps, keys


def chunks(draw: Random, spread: str) -> tuple[list[int], list[int]]:
    count, rows = log_uniform(draw, 1, 64), log_uniform(draw, 2, 512)
    return [rows] * count, drawn(draw, count, log_uniform(draw, 512, 32768), spread)


def prompts(draw: Random, spread: str) -> tuple[list[int], list[int]]:
    rows = drawn(draw, log_uniform(draw, 2, 64), log_uniform(draw, 128, 8192), spread)
    return rows, rows


def prefixes(draw: Random, spread: str) -> tuple[list[int], list[int]]:
    rows = drawn(draw, log_uniform(draw, 2, 32), log_uniform(draw, 128, 2048), spread)
    return rows, [one + draw.randint(0, 8192) for one in rows]


# Of each kind: the directions, how often keys are in pages, and what draws queries and keys.
KINDS: dict[str, tuple[Sequence[str], float, Callable[[Random, str], tuple[list[int], list[int]]]]] = {
    "mixed": ((FORWARD,), 0.8, mixed),
    "chunks": ((FORWARD,), 0.5, chunks),
    "prompts": ((FORWARD, BACKWARD), 0, prompts),
    "prefixes": ((FORWARD, BACKWARD), 0, prefixes),
}


def calls(seed: int) -> Iterator[Lengths]:
    """Without end; each kind and direction in turn."""
    draw = Random(f"lengths {seed}")
    while True:
        for kind, (directions, in_pages, draw_lengths) in KINDS.items():
            for op in directions:
                call = None
                while call is None or too_large(call):
                    spread = draw.choice(("log-normal", "log-normal", "uniform", "equal"))
                    queries, keys = draw_lengths(draw, spread)
                    keys = [max(q, k) for q, k in zip(queries, keys, strict=True)]
                    heads, head_dim = draw.choice(HEADS), draw.choice((64, 128, 128))
                    call = Lengths(
                        op, kind, spread, tuple(queries), tuple(keys), *heads, head_dim, draw.random() < in_pages
                    )
                yield call


def too_large(call: Lengths) -> bool:
    pairs = sum(q * k for q, k in zip(call.queries, call.keys, strict=True))
    size = sum(call.keys) * call.heads_k * call.head_dim * 4
    return size > MOST_BYTES or pairs * call.heads * call.head_dim * 4 > MOST_FLOPS


# ---- measuring -------------------------------------------------------------------------------------------------------


def arguments(call: Lengths) -> dict[str, Any]:
    """Of a forward of the library's binding, causal at the last key."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(sum(call.keys))

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    def ints(numbers: Sequence[int]) -> Any:
        return torch.tensor(numbers, dtype=torch.int32, device="cuda")

    count, longest = len(call.queries), max(call.queries)
    q = normal(sum(call.queries), call.heads, call.head_dim)
    given: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right"}
    if call.kind == "chunks":
        given |= {"q": q.unflatten(0, (count, longest)).transpose(1, 2)}
    else:
        given |= {"q": q[None].transpose(1, 2), "cu_seqlens_q": starts(call.queries, "cuda"), "max_seqlen_q": longest}
    if call.in_pages:
        order = torch.randperm(sum(-(-keys // PAGE) for keys in call.keys), generator=generator, device="cuda")
        for name in "kv":
            rows = [normal(keys, call.heads_k, call.head_dim) for keys in call.keys]
            pool, given["block_table"] = paged(rows, PAGE, order)
            given[name] = pool.transpose(1, 2)
        given["seqused_k"] = ints(call.keys)
    elif call.kind == "chunks":
        given |= {name: normal(count, max(call.keys), call.heads_k, call.head_dim).transpose(1, 2) for name in "kv"}
        given["seqused_k"] = ints(call.keys)
    else:
        given |= {name: normal(sum(call.keys), call.heads_k, call.head_dim)[None].transpose(1, 2) for name in "kv"}
        given |= {"cu_seqlens_k": starts(call.keys, "cuda"), "max_seqlen_k": max(call.keys)}
    return given


def contender(op: str, given: Mapping[str, Any], results: Sequence[str], hints: str) -> tuple[Any, list[Any]]:
    """A function that makes the call, with results and a workspace of its own, and these results. RuntimeError where
    it is refused.
    """
    import torch

    import aotriton

    like = {"out": "q", "dq": "q", "dk": "k", "dv": "v"}
    made = {
        name: torch.full(given["q"].shape[:3], math.nan, device="cuda")
        if name == "logsumexp"
        else torch.full_like(given[like[name]], math.nan)
        for name in results
    }
    parameters = with_workspace(op, {**given, **made, **({"hints": hints} if hints else {})})
    run = getattr(aotriton, op)
    run(**parameters)
    return lambda: run(**parameters), list(made.values())


def measure(call: Lengths, rounds: int) -> dict[str, float]:
    """Microseconds of the choice, and of each backend that serves the call."""
    import torch

    given = arguments(call)
    results: tuple[str, ...] = ("out", "logsumexp")
    if call.op == BACKWARD:
        _, (out, logsumexp) = contender(FORWARD, given, results, "")
        given |= {"out": out, "logsumexp": logsumexp, "dout": torch.randn_like(out)}
        results = ("dq", "dk", "dv")
    running: dict[str, Callable[[], Any]] = {}
    first: list[Any] = []
    for backend in (CHOSEN, *(one.name for one in operator(call.op).backends)):
        try:
            run, made = contender(call.op, given, results, "" if backend == CHOSEN else f"backend={backend}")
        except RuntimeError:
            if backend == CHOSEN:
                raise
            continue
        first = first or made
        for one, other in zip(made, first, strict=True):
            apart = (one.float() - other.float()).norm() / other.float().norm()
            if not apart < TOLERATED:
                raise SystemExit(f"bench/lengths.py: {backend} is {float(apart):.3g} from the choice: {call}")
        running[backend] = run
    return {who: float(f"{statistics.median(taken):.4g}") for who, taken in race(running, rounds).items()}


# ---- results ---------------------------------------------------------------------------------------------------------


def regret(us: Us) -> float:
    """How much longer than the fastest backend the choice took, with the noise of timing one backend twice."""
    others = [taken for who, taken in us.items() if who != CHOSEN]
    return max(us[CHOSEN] / min(others) - 1, 0.0) if others else 0.0


def timed(record: Mapping[str, Any]) -> list[tuple[Lengths, Us]]:
    """The calls of a result, which it has by its seed, and their times."""
    return list(zip(calls(record["seed"]), record["us"]))  # noqa: B905 (calls have no end)


def table(record: Mapping[str, Any]) -> str:
    """Markdown, the worst kind first."""
    lines = ["| operator | calls | number | regret, mean | p90 | p99 | worst |", "|---" * 7 + "|"]
    of: dict[tuple[str, str], list[float]] = {}
    for call, us in timed(record):
        of.setdefault((call.op, call.kind), []).append(regret(us))
    for (op, kind), found in sorted(of.items(), key=lambda one: -statistics.mean(one[1])):
        found.sort()
        places = [found[min(int(part * len(found)), len(found) - 1)] for part in (0.9, 0.99, 1.0)]
        cells = [f"{100 * one:.1f} %" for one in (statistics.mean(found), *places)]
        lines.append(f"| `{op}` | {kind} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def worst(record: Mapping[str, Any], count: int) -> list[str]:
    """Of the calls with most regret the regret, what they are, and all times."""
    found = []
    for call, us in sorted(timed(record), key=lambda one: regret(one[1]), reverse=True)[:count]:
        times = ", ".join(f"{who} {taken}" for who, taken in us.items())
        found.append(f"{100 * regret(us):.0f} %: {call}: {times} µs")
    return found


def show(record: Mapping[str, Any]) -> None:
    print("\n".join([table(record), "", "Worst:", "", *worst(record, 8)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--json", type=Path, help="measure, and write the record here")
    source.add_argument("--from", type=Path, dest="given", help="take this record instead of measuring")
    parser.add_argument("--seed", type=int, default=0, help="of the calls (default %(default)s)")
    parser.add_argument("--count", type=int, default=COUNT, help="how many calls (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timings of each (default %(default)s)")
    options = parser.parse_args()
    if options.given:
        show(stored.load(options.given))
        return
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench/lengths.py: torch finds no CUDA GPU")
    drawn_calls = islice(calls(options.seed), options.count)
    us = [measure(call, options.rounds) for call in drawn_calls]
    record = {"machine": machine(), "seed": options.seed, "rounds": options.rounds, "us": us, "gpu": gpu_state()}
    options.json.write_text(json.dumps(record) + "\n")
    show(record)


if __name__ == "__main__":
    main()
