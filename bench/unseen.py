"""Forward on random problems that nobody tuned on: the library beside the better of FA2 and cuDNN, as JSON and a table.

``python bench/unseen.py --json OUT [--count N] [--seed S]`` with torch, a CUDA GPU and the binding on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attention import CUDNN, FA2, LIBRARY, PEERS, gpu_state, machine, race

WORK = (1e9, 1e13)  # floating-point operations of a problem
MOST_BYTES = 8 << 30  # of q, k, v and out together
ROUNDS = 15


def problems(count: int, seed: int) -> list[dict[str, Any]]:
    """Head dim 40 to 256, odd lengths, 1 to 16 query heads for each key head, batch 1 to 64, full and causal."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        group, heads_k = draw.choice((1, 2, 4, 8, 16)), draw.choice((1, 2, 4, 8))
        head_dim, causal = 8 * draw.randint(5, 32), draw.random() < 0.5
        seqlen = 2 * int(math.exp(draw.uniform(math.log(50), math.log(4096)))) + 1
        heads = group * heads_k
        one = 4 * heads * seqlen * seqlen * head_dim * (0.5 if causal else 1)
        batch = round(math.exp(draw.uniform(*map(math.log, WORK))) / one)
        size = 4 * batch * heads * seqlen * head_dim * 2
        if 1 <= batch <= 64 and WORK[0] <= batch * one <= WORK[1] and size <= MOST_BYTES:
            found.append(
                {"batch": batch, "heads": heads, "heads_k": heads_k, "seqlen": seqlen, "head_dim": head_dim}
                | {"causal": causal, "flops": batch * one}
            )
    return found


def calls(q, k, v, causal: bool) -> dict[str, Callable[[], Any]]:
    """The forward of each contender. A peer that refuses grouped heads gets keys and values repeated beforehand."""
    import torch

    import aotriton

    aten, scale, group = torch.ops.aten, q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
    out, stream = torch.full_like(q, float("nan")), torch.cuda.current_stream().cuda_stream

    def library() -> Any:
        aotriton.attn_fwd(q, k, v, out, sm_scale=scale, causal=causal, stream=stream)
        return out

    def fa2(k, v) -> Any:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[0]

    def cudnn(k, v) -> Any:
        return aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, causal, False, scale=scale)[0]

    made: dict[str, Callable[[], Any]] = {LIBRARY: library}
    for who, call in ((FA2, fa2), (CUDNN, cudnn)):
        keys, values = k, v
        try:
            call(keys, values)
        except RuntimeError:
            keys, values = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
        made[who] = lambda call=call, keys=keys, values=values: call(keys, values)
    return made


def measure(problem: dict[str, Any]) -> dict[str, Any]:
    """The problem with times, the ratio to the better peer and what ran; SystemExit where results differ."""
    import torch

    import aotriton

    sizes = {name: problem[name] for name in ("batch", "heads_k", "head_dim", "causal")} | {"heads_q": problem["heads"]}
    shape = (problem["batch"], problem["heads"], problem["seqlen"], problem["head_dim"])
    generator = torch.Generator(device="cuda").manual_seed(problem["seqlen"])
    q, k, v = (
        torch.randn((shape[0], heads, *shape[2:]), generator=generator, device="cuda", dtype=torch.bfloat16)
        for heads in (problem["heads"], problem["heads_k"], problem["heads_k"])
    )
    contenders = calls(q, k, v, problem["causal"])
    ours = contenders[LIBRARY]().float()
    apart = {peer: float((contenders[peer]().float() - ours).norm() / ours.norm()) for peer in PEERS}
    if not max(apart.values()) < 0.01:  # two roundings to bf16 are 0.003 apart
        sys.exit(f"{problem}: relative distances {apart}")
    del ours
    us = {who: statistics.median(taken) for who, taken in race(contenders, ROUNDS).items()}
    (choice,) = aotriton.explain(
        "attn_fwd", arch=aotriton.arch(), product=aotriton.product(),
        multiprocessors=aotriton.multiprocessors(), dtype="bf16",
        seqlen=problem["seqlen"], **sizes,
    )  # fmt: skip
    return problem | {
        "us": {who: round(time, 2) for who, time in us.items()},
        "tflops": round(problem["flops"] / us[LIBRARY] / 1e6, 1),
        "ratio": round(min(us[peer] for peer in PEERS) / us[LIBRARY], 4),
        "apart": apart,
        "image": choice["image"],
        "config": f"{choice['psels']} {choice['copts']}",
    }


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown, worst ratio first."""
    lines = ["| D | mask | S | batch × heads / heads_k | GFLOP | TFLOP/s | × better peer | kernel |", "|---" * 8 + "|"]
    for cell in sorted(cells, key=lambda cell: cell["ratio"]):
        mask = "causal" if cell["causal"] else "full"
        shape = f"{cell['batch']} × {cell['heads']} / {cell['heads_k']}"
        row = (cell["head_dim"], mask, cell["seqlen"], shape, f"{cell['flops'] / 1e9:.0f}", f"{cell['tflops']:.0f}")
        kernel = cell["image"].rsplit("_sm_", 1)[0]
        lines.append(f"| {' | '.join(map(str, row))} | {cell['ratio']:.2f} | {kernel} |")
    mean = math.exp(statistics.fmean(math.log(cell["ratio"]) for cell in cells))
    return "\n".join((*lines, f"| geometric mean | | | | | | {mean:.2f} | |"))


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.zeros(1, device="cuda")  # makes the device current for the library
    result: dict[str, Any] = {"machine": machine(), "rounds": ROUNDS, "seed": options.seed, "cells": []}
    for problem in problems(options.count, options.seed):
        result["cells"].append(measure(problem))
        torch.cuda.empty_cache()
    result["gpu"] = gpu_state()
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result["cells"]))


if __name__ == "__main__":
    main()
