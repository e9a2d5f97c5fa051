"""What hints cost and save: time and workspace of attention under each, beside the call without hints.

python bench/hints.py --json bench/results/hints.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attention import gpu_state, machine, race

ROUNDS = 31
# batch, heads of q and k, seqlen, head_dim, causal: many short heads; what fits in the L2 cache; far beyond it.
SHAPES = (
    (16, 16, 16, 512, 128, True),
    (1, 16, 16, 2048, 64, True),
    (4, 32, 8, 4096, 128, True),
    (16, 32, 32, 2048, 128, True),
    (1, 16, 16, 16384, 128, True),
    (8, 16, 16, 4096, 128, False),
)
FORWARD = ("", "schedule=dfs", "schedule=bfs", "backend=portable")
FRACTIONS = (1.0, 0.5, 0.25, 0.02)  # of the workspace that the call without hints asks for


def operands(shape: tuple[Any, ...]) -> dict[str, Any]:
    """A backward's tensors, with what the forward wrote."""
    import torch

    import aotriton

    batch, heads, heads_k, seqlen, head_dim, causal = shape
    generator = torch.Generator(device="cuda").manual_seed(seqlen + head_dim)
    of_q, of_k = (batch, heads, seqlen, head_dim), (batch, heads_k, seqlen, head_dim)
    sizes = {"q": of_q, "k": of_k, "v": of_k, "out": of_q, "dout": of_q, "dq": of_q, "dk": of_k, "dv": of_k}
    made = {name: torch.randn(one, generator=generator, device="cuda").bfloat16() for name, one in sizes.items()}
    made["logsumexp"] = torch.empty(of_q[:3], device="cuda")
    forward = {name: made[name] for name in ("q", "k", "v", "out", "logsumexp")}
    aotriton.attn_fwd(**forward, causal=causal)
    return made


def rows_of(shape: tuple[Any, ...], rounds: int) -> list[dict[str, Any]]:
    """A row for each operator and hints: median time, workspace, pieces, and what became of the hints."""
    import torch

    import aotriton

    tensors, causal = operands(shape), shape[-1]
    forward = {name: tensors[name] for name in ("q", "k", "v", "out", "logsumexp")}
    needed = aotriton.attn_bwd_workspace_size(**tensors, causal=causal)
    limits = [f"workspace_limit={int(needed * fraction)}" for fraction in FRACTIONS]
    rows = []
    for op, given, all_hints in (("attn_fwd", forward, FORWARD), ("attn_bwd", tensors, ("", "deterministic", *limits))):
        calls: dict[str, Callable[[], object]] = {}
        for hints in all_hints:
            more = {"causal": causal, "hints": hints}
            size = getattr(aotriton, f"{op}_workspace_size")(**given, **more)
            if size:
                more["workspace"] = torch.empty(size, dtype=torch.uint8, device="cuda")
            calls[hints] = partial(getattr(aotriton, op), **given, **more)
            outcomes = getattr(aotriton, f"{op}_hint_outcomes")(**given, **more)
            rows.append({"op": op, "shape": shape, "hints": hints, "workspace": size, "outcomes": outcomes})
        samples = race(calls, rounds)
        for row in rows[-len(calls) :]:
            row["us"] = statistics.median(samples[row["hints"]])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timings of each call")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| operator | batch x heads:heads_k x seqlen x head_dim | hints | µs | workspace, MB | honoured |")
    print("|---|---|---|---|---|---|")
    for shape in SHAPES:
        for row in rows_of(shape, options.rounds):
            batch, heads, heads_k, seqlen, head_dim, causal = row["shape"]
            text = f"{batch} x {heads}:{heads_k} x {seqlen} x {head_dim}{' causal' if causal else ''}"
            told = ", ".join(
                f"{name}: {'yes' if one['honoured'] else 'no'}{', ' if one['why'] else ''}{one['why']}"
                for name, one in row["outcomes"].items()
            )
            print(
                f"| {row['op']} | {text} | {row['hints']} | {row['us']:.1f} | {row['workspace'] / 1e6:.1f} | {told} |",
                flush=True,
            )
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "gpu": gpu_state(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
