"""Times attention with bias, ALiBi, dropout, softcap and packed sequences beside the kernel of torch that has it, too.

python bench/features.py --json bench/results/features.json

Peers: torch's memory-efficient kernel (bias), torch's build of FlashAttention-2 (dropout, packed sequences),
FlashAttention-4 where it is installed (packed sequences), and FlexAttention as torch compiles it (softcap and ALiBi,
forward only). Both sides get the same tensors, in memory in the
order that FlashAttention takes. Results are checked against float64, but for those of dropout: the random numbers
differ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attention import gpu_state, machine, race
from band import errors, ratios_to
from contenders import FA4, LIBRARY, fa4_calls, with_workspace

ROUNDS = 15
PRODUCTS = {"forward": 2, "backward": 5}  # matrix products of a pair of query and key
FLASH, EFFICIENT, FLEX = "FlashAttention-2", "memory-efficient", "FlexAttention"
PEERS = {"bias": EFFICIENT, "alibi": FLEX, "dropout": FLASH, "softcap": FLEX, "packed": FLASH}
DROPOUT, SOFTCAP = 0.1, 30.0
Results = dict[str, dict[str, Any]]
Calls = Iterator[tuple[str, dict[str, Callable[[], object]], Results]]


@dataclass(frozen=True)
class Case:
    """A call. ``lengths`` of a packed one are those of its sequences; else there is one for all batches."""

    feature: str
    batch: int
    heads: int
    lengths: tuple[int, ...]
    head_dim: int
    causal: bool

    @property
    def pairs(self) -> int:
        """Query and key that see each other, of one head."""
        return self.batch * sum(n * (n + 1) // 2 if self.causal else n * n for n in self.lengths)

    def __str__(self) -> str:
        packed = f"{len(self.lengths)} sequences of {min(self.lengths)} to {max(self.lengths)}"
        rows = packed if self.feature == "packed" else f"{self.lengths[0]}"
        causal = ", causal" if self.causal else ""
        return f"{self.feature}: {self.batch} x {self.heads} x {rows} x {self.head_dim}{causal}"


def log_normal(total: int, count: int) -> tuple[int, ...]:
    """Lengths whose logarithms are normal with a deviation of 1, and which sum up to ``total``."""
    random = Random(total + count)
    drawn = [random.lognormvariate(0, 1) for _ in range(count)]
    lengths = [max(1, int(total * one / sum(drawn))) for one in drawn]
    lengths[0] += total - sum(lengths)
    return tuple(lengths)


# Batch, heads, rows, head dim, causal: calls of every feature but packed sequences.
SHAPES = (
    (4, 16, 2048, 64, False),
    (16, 16, 512, 64, False),
    (2, 16, 4096, 64, False),
    (8, 12, 1024, 64, True),
    (4, 16, 2048, 64, True),
    (2, 8, 3000, 96, True),
    (4, 16, 2048, 128, False),
    (8, 16, 1024, 128, False),
    (2, 16, 4096, 128, False),
    (16, 16, 512, 128, True),
    (4, 32, 2048, 128, True),
    (2, 16, 4096, 128, True),
)
CASES = (
    *(
        Case(feature, batch, heads, (rows,), head_dim, causal)
        for feature in PEERS
        if feature != "packed"
        for batch, heads, rows, head_dim, causal in SHAPES
    ),
    Case("packed", 1, 16, (1024,) * 16, 128, True),
    Case("packed", 1, 16, log_normal(16384, 16), 128, True),
    Case("packed", 1, 16, log_normal(32768, 64), 64, True),
)


def truth(case: Case, own: dict[str, Any], dout: Any, asked: dict[str, Any], begin: int, end: int) -> dict[str, Any]:
    """Results of the first head, of the rows from ``begin`` to before ``end``, in float64."""
    import torch

    q, k, v = (one[0, 0, begin:end].double().requires_grad_() for one in own.values())
    scores = q @ k.T * case.head_dim**-0.5
    rows = torch.arange(end - begin, device=q.device)
    if "softcap" in asked:
        scores = asked["softcap"] * torch.tanh(scores / asked["softcap"])
    if "alibi_slopes" in asked:
        scores = scores - asked["alibi_slopes"][0, 0].double() * (rows[:, None] - rows).abs()
    if "bias" in asked:
        scores = scores + asked["bias"][0, 0].double()
    if case.causal:
        scores = scores.masked_fill(rows > rows[:, None], -torch.inf)
    out = torch.softmax(scores, -1) @ v
    gradients = torch.autograd.grad(out, (q, k, v), dout[0, 0, begin:end].double())
    return {"out": out.detach(), **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}


def peer_calls(case: Case, q: Any, k: Any, v: Any, dout: Any, asked: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """The peer's call of each direction, on tensors [batch, seqlen, heads, head_dim], or packed ones without batch."""
    import torch

    scale = case.head_dim**-0.5
    if PEERS[case.feature] == FLEX:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        slopes: Any = asked.get("alibi_slopes")
        rows = case.lengths[0]

        def capped(score: Any, *_: Any) -> Any:
            return SOFTCAP * torch.tanh(score / SOFTCAP)

        def sloped(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
            return score - slopes[batch, head] * (row - key).abs()

        def seen(batch: Any, head: Any, row: Any, key: Any) -> Any:
            return row >= key

        heads = [one.transpose(1, 2) for one in (q, k, v)]
        mask = create_block_mask(seen, None, None, rows, rows) if case.causal else None
        score_mod = capped if case.feature == "softcap" else sloped
        torch._dynamo.reset()  # it stops compiling a function after a few shapes
        flex = torch.compile(flex_attention, dynamic=False)
        return {"forward": lambda: (flex(*heads, score_mod=score_mod, block_mask=mask),)}
    if case.feature == "bias":
        heads = [one.transpose(1, 2) for one in (q, k, v)]
        bias = asked["bias"]
        forward = partial(
            torch.ops.aten._scaled_dot_product_efficient_attention, *heads, bias, True, 0.0, case.causal, scale=scale
        )
        made = forward()
        backward = partial(
            torch.ops.aten._scaled_dot_product_efficient_attention_backward, dout.transpose(1, 2), *heads, bias, *made,
            0.0, [True] * 4, case.causal, scale=scale,
        )  # fmt: skip
        return {"forward": forward, "backward": backward}
    dropout = DROPOUT if case.feature == "dropout" else 0.0
    starts, longest = asked.get("cu_seqlens_q"), max(case.lengths)
    sizes = starts, starts, longest, longest, dropout, case.causal
    forward = partial(torch.ops.aten._flash_attention_forward, q, k, v, *sizes, False, scale=scale)
    made = forward()
    backward = partial(
        torch.ops.aten._flash_attention_backward, dout, q, k, v, made[0], made[1], *sizes, made[2], made[3], scale=scale
    )
    return {"forward": forward, "backward": backward}


def calls(case: Case) -> Calls:
    """For each direction: the calls by implementation, and the results that they write, of one head and sequence."""
    import torch

    import aotriton

    generator = torch.Generator(device="cuda").manual_seed(sum(case.lengths) + case.head_dim)
    packed, rows = case.feature == "packed", sum(case.lengths)
    peer = PEERS[case.feature]

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device="cuda").bfloat16()

    q, k, v, dout = (normal(case.batch, rows, case.heads, case.head_dim) for _ in range(4))
    own = {name: one.transpose(1, 2) for name, one in (("q", q), ("k", k), ("v", v))}
    asked: dict[str, Any] = {"causal": case.causal, "causal_variant": "bottom_right"}
    if case.feature == "bias":
        asked["bias"] = normal(case.batch, case.heads, rows, rows)
    if case.feature == "alibi":
        slopes = torch.tensor([2.0 ** (-8 * (one + 1) / case.heads) for one in range(case.heads)], device="cuda")
        asked["alibi_slopes"] = slopes.expand(case.batch, -1).contiguous()
    if case.feature == "dropout":
        asked |= {"dropout": DROPOUT, "dropout_seed": torch.tensor([7], device="cuda")}
        asked["dropout_offset"] = torch.tensor([0], device="cuda")
    if case.feature == "softcap":
        asked["softcap"] = SOFTCAP
    if packed:
        starts = torch.tensor([0, *case.lengths], device="cuda").cumsum(0).int()
        asked |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
        asked |= {"max_seqlen_q": max(case.lengths), "max_seqlen_k": max(case.lengths)}
    out = torch.empty_like(q).transpose(1, 2)
    lse = torch.empty(case.batch, case.heads, rows, device="cuda")
    of_queries, of_keys, of_values, of_out = ((one[0] if packed else one) for one in (q, k, v, dout))
    of_peer = peer_calls(case, of_queries, of_keys, of_values, of_out, asked)
    begin = sum(case.lengths[:-1]) if packed else 0  # of the last sequence
    end = rows
    forward = partial(aotriton.attn_fwd, **with_workspace("attn_fwd", {**own, "out": out, "logsumexp": lse, **asked}))
    forward()
    true = truth(case, own, dout.transpose(1, 2), asked, begin, end) if case.feature != "dropout" else {}

    def first(tensor: Any) -> Any:
        """The first head's rows of a tensor of the peer, which has heads first if it is not FlashAttention."""
        tensor = tensor[None] if packed else tensor
        return (tensor[0, :, 0] if peer == FLASH else tensor[0, 0])[begin:end]

    fa4: dict[str, Callable[[], tuple[Any, ...]]] = {}
    if packed:
        starts = asked["cu_seqlens_q"]
        sequences = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
        longest = {"max_seqlen_q": max(case.lengths), "max_seqlen_k": max(case.lengths)}
        fa4 = fa4_calls(of_queries, of_keys, of_values, of_out, causal=case.causal, **sequences, **longest)

    def of_fa4(direction: str, names: Sequence[str]) -> dict[str, Any]:
        return dict(zip(names, map(first, fa4[direction]()), strict=False)) if direction in fa4 else {}

    results: Results = {}
    if true:
        results = {LIBRARY: {"out": out[0, 0, begin:end]}, peer: {"out": first(of_peer["forward"]()[0])}, "truth": true}
        results |= {FA4: found} if (found := of_fa4("forward", ["out"])) else {}
    run: dict[str, Callable[[], object]] = {LIBRARY: forward, peer: of_peer["forward"]}
    yield "forward", run | ({FA4: fa4["forward"]} if "forward" in fa4 else {}), results
    if "backward" not in of_peer:
        return
    gradients = {f"d{name}": torch.empty_like(q).transpose(1, 2) for name in own}
    given = {**own, "out": out, "dout": dout.transpose(1, 2), "logsumexp": lse, **gradients, **asked}
    if "bias" in asked:
        given["dbias"] = torch.empty_like(asked["bias"])
    backward = partial(aotriton.attn_bwd, **with_workspace("attn_bwd", given))
    backward()
    if true:
        theirs = dict(zip(("dq", "dk", "dv"), map(first, of_peer["backward"]()[:3]), strict=True))
        ours = {name: one[0, 0, begin:end] for name, one in gradients.items()}
        results = {LIBRARY: ours, peer: theirs, "truth": true}
        results |= {FA4: found} if (found := of_fa4("backward", ("dq", "dk", "dv"))) else {}
    run = {LIBRARY: backward, peer: of_peer["backward"]}
    yield "backward", run | ({FA4: fa4["backward"]} if "backward" in fa4 else {}), results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timings of each call")
    parser.add_argument("--feature", choices=PEERS, nargs="+", default=list(PEERS), help="leave out the others")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| direction | feature: batch x heads x seqlen x head_dim | TFLOP/s | peer | x | errors |")
    print("|---|---|---|---|---|---|")
    for case in (one for one in CASES if one.feature in options.feature):
        peer = PEERS[case.feature]
        for direction, of_direction, results in calls(case):
            off = errors(results) if results else {}
            if off and off[LIBRARY] > 2 * off[peer] + 1e-3:
                sys.exit(f"{case}: {direction} is off by {off[LIBRARY]:.2e}, {peer} by {off[peer]:.2e}")
            us = {name: statistics.median(taken) for name, taken in race(of_direction, options.rounds).items()}
            flops = 2 * PRODUCTS[direction] * case.heads * case.pairs * case.head_dim
            rows.append({"direction": direction, "case": asdict(case), "us": us, "flops": flops, "errors": off})
            best = min((name for name in us if name != LIBRARY), key=lambda name: us[name])
            own, theirs = (flops / us[name] / 1e6 for name in (LIBRARY, best))
            said = " ".join(f"{one:.1e}" for one in off.values())
            print(
                f"| {direction} | {case} | {own:.0f} | {best} {theirs:.0f} | {us[best] / us[LIBRARY]:.2f} | {said} |",
                flush=True,
            )
    for feature in PEERS:
        for direction in PRODUCTS:
            of_both = [one for one in rows if one["direction"] == direction and one["case"]["feature"] == feature]
            for peer in (PEERS[feature], FA4):
                if ratios := ratios_to([peer], [one["us"] for one in of_both]):
                    mean = statistics.geometric_mean(ratios)
                    print(
                        f"{feature} {direction}: {mean:.2f} x {peer} in the geometric mean, {min(ratios):.2f} at worst"
                    )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "gpu": gpu_state(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
