"""Times attention whose rows see a band of keys, windows and causal masks of unequal lengths, beside its peers.

python bench/band.py --json bench/results/band.json

Peers: FlashAttention-2, torch's own build, and FlashAttention-4 where it is installed. All get the same tensors, in
memory in the order that FlashAttention takes, and the same mask, aligned at the last key. All results are checked
against float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import attention
from attention import gpu_state, machine, race
from contenders import FA4, LIBRARY, fa4_calls, with_workspace

PEER = "FlashAttention-2"
FULL = "the same 16,384 rows without a window"  # the library's own call, beside BESIDE_FULL
ROUNDS = 15
PRODUCTS = {"forward": 2, "backward": 5}  # matrix products of a pair of query and key


@dataclass(frozen=True)
class Case:
    """A call: sizes, and which keys a query sees; ``left`` and ``right`` as windows have them, -1 for all."""

    batch: int
    heads: int
    heads_k: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    left: int
    right: int

    @property
    def pairs(self) -> int:
        """Query and key that see each other, of one head."""
        offset = self.seqlen_k - self.seqlen_q
        low = [0 if self.left < 0 else max(0, i + offset - self.left) for i in range(self.seqlen_q)]
        high = [
            self.seqlen_k if self.right < 0 else min(self.seqlen_k, i + offset + self.right + 1)
            for i in range(self.seqlen_q)
        ]
        return sum(max(0, end - begin) for begin, end in zip(low, high, strict=True))

    def __str__(self) -> str:
        window = ", ".join(f"{n} {side}" for n, side in ((self.left, "before"), (self.right, "behind")) if n >= 0)
        heads = f"{self.heads}" if self.heads == self.heads_k else f"{self.heads}:{self.heads_k}"
        return f"{self.batch} x {heads} x {self.seqlen_q}:{self.seqlen_k} x {self.head_dim}, {window}"


BESIDE_FULL = Case(1, 16, 16, 16384, 16384, 128, 1023, 0)
CASES = (
    Case(8, 16, 16, 2048, 2048, 64, 127, 0),
    Case(2, 16, 16, 8192, 8192, 64, 1023, 0),
    Case(2, 16, 16, 8192, 8192, 128, 127, 0),
    Case(2, 16, 16, 8192, 8192, 128, 1023, 0),
    Case(2, 16, 16, 8192, 8192, 128, 4095, 0),
    BESIDE_FULL,
    Case(1, 16, 16, 16384, 16384, 128, 4095, 0),
    Case(1, 16, 16, 32768, 32768, 128, 1023, 0),
    Case(1, 32, 8, 16384, 16384, 128, 1023, 0),
    Case(2, 16, 16, 4096, 4096, 128, 256, 256),
    Case(4, 16, 16, 1024, 4096, 128, -1, 0),
    Case(4, 16, 16, 1024, 4096, 64, -1, 0),
    Case(1, 16, 16, 2048, 16384, 128, -1, 0),
    Case(2, 16, 16, 4096, 4096, 256, 1023, 0),
)


def truth(case: Case, **tensors: Any) -> dict[str, Any]:
    """Results of one head, [seqlen, head_dim] each, in float64."""
    import torch

    offset, device = case.seqlen_k - case.seqlen_q, tensors["q"].device
    own = torch.arange(case.seqlen_q, device=device)[:, None] + offset
    distance = torch.arange(case.seqlen_k, device=device) - own
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if case.left >= 0:
        hidden |= distance < -case.left
    if case.right >= 0:
        hidden |= distance > case.right
    return attention.truth(**tensors, hidden=hidden)


def calls(case: Case) -> Iterator[tuple[str, dict[str, Callable[[], object]], dict[str, dict[str, Any]]]]:
    """For each direction: the calls by implementation, and the results that they write, of head 0 of batch 0."""
    import torch

    import aotriton

    generator = torch.Generator(device="cuda").manual_seed(case.seqlen_q + case.head_dim)

    def made(seqlen: int, heads: int) -> Any:
        shape = case.batch, seqlen, heads, case.head_dim
        return torch.randn(shape, generator=generator, device="cuda").bfloat16()

    q, dout = (made(case.seqlen_q, case.heads) for _ in range(2))
    k, v = (made(case.seqlen_k, case.heads_k) for _ in range(2))
    inputs = {"q": q, "k": k, "v": v}
    own = {name: one.transpose(1, 2) for name, one in inputs.items()}
    out = torch.empty_like(q).transpose(1, 2)
    lse = torch.empty(case.batch, case.heads, case.seqlen_q, device="cuda")
    mask: dict[str, Any] = {"causal": case.right == 0, "causal_variant": "bottom_right", "window_left": case.left}
    mask["window_right"] = -1 if case.right == 0 else case.right
    window = {"window_size_left": case.left, "window_size_right": case.right, "scale": case.head_dim**-0.5}
    sizes = None, None, case.seqlen_q, case.seqlen_k, 0.0, False
    forward = partial(torch.ops.aten._flash_attention_forward, q, k, v, *sizes, False, **window)
    theirs = forward()
    own_forward = partial(
        aotriton.attn_fwd, **with_workspace("attn_fwd", {**own, "out": out, "logsumexp": lse, **mask})
    )
    own_forward()
    first = {name: one[0, :, 0] for name, one in (("q", q), ("k", k), ("v", v), ("dout", dout))}
    ends = {"window_size_left": case.left if case.left >= 0 else None, "window_size_right": case.right}
    fa4 = fa4_calls(q, k, v, dout, **({"causal": True} if case.left < 0 else ends))
    run: dict[str, Callable[[], object]] = {LIBRARY: own_forward, PEER: forward}
    results = {LIBRARY: {"out": out[0, 0]}, PEER: {"out": theirs[0][0, :, 0]}}
    if "forward" in fa4:
        run[FA4], results[FA4] = fa4["forward"], {"out": fa4["forward"]()[0][0, :, 0]}
    without: dict[str, Any] = {}
    if case == BESIDE_FULL:
        without = {"window_left": -1, "out": torch.empty_like(out), "logsumexp": torch.empty_like(lse)}
        run[FULL] = partial(aotriton.attn_fwd, **with_workspace("attn_fwd", {**own, **mask, **without}))
        run[FULL]()
    yield "forward", run, {**results, "truth": truth(case, **first)}
    gradients = {f"d{name}": torch.empty_like(one).transpose(1, 2) for name, one in inputs.items()}
    given = {**own, "out": out, "dout": dout.transpose(1, 2), "logsumexp": lse, **gradients, **mask}
    own_backward = partial(aotriton.attn_bwd, **with_workspace("attn_bwd", given))
    backward = partial(
        torch.ops.aten._flash_attention_backward, dout, q, k, v, theirs[0], theirs[1], *sizes, theirs[2], theirs[3],
        **window,
    )  # fmt: skip
    own_backward()
    own_first = {name: one[0, 0] for name, one in gradients.items()}
    their_first = dict(zip(("dq", "dk", "dv"), (one[0, :, 0] for one in backward()), strict=True))
    run = {LIBRARY: own_backward, PEER: backward}
    results = {LIBRARY: own_first, PEER: their_first}
    if "backward" in fa4:
        gradients_4 = (one[0, :, 0] for one in fa4["backward"]())
        run[FA4], results[FA4] = fa4["backward"], dict(zip(("dq", "dk", "dv"), gradients_4, strict=True))
    if without:
        run[FULL] = partial(aotriton.attn_bwd, **with_workspace("attn_bwd", {**given, **without}))
    if case.heads != case.heads_k:  # gradients of a key's head are sums over the heads that share it
        results = {name: {"dq": found["dq"]} for name, found in results.items()}
    yield "backward", run, {**results, "truth": truth(case, **first)}


def errors(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The largest relative error, in the norm, of the results of each implementation."""
    true = results.pop("truth")
    return {
        name: max(float((one.double() - true[what]).norm() / true[what].norm()) for what, one in found.items())
        for name, found in results.items()
    }


def ratios_to(peers: Sequence[str], rows: Sequence[Mapping[str, float]]) -> list[float]:
    """How often the library is as fast as the fastest of these peers, in each row that has one of them; ``rows`` are
    times by implementation.
    """
    found = [([row[name] for name in peers if name in row], row[LIBRARY]) for row in rows]
    return [min(theirs) / own for theirs, own in found if theirs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timings of each call")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| direction | batch x heads x seqlens x head_dim, window | TFLOP/s | best peer | x | errors |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        for direction, of_direction, results in calls(case):
            off = errors(results)
            if off[LIBRARY] > 2 * off[PEER] + 1e-3:
                sys.exit(f"{case}: {direction} is off by {off[LIBRARY]:.2e}, {PEER} by {off[PEER]:.2e}")
            us = {name: statistics.median(taken) for name, taken in race(of_direction, options.rounds).items()}
            flops = 2 * PRODUCTS[direction] * case.batch * case.heads * case.pairs * case.head_dim
            rows.append({"direction": direction, "case": asdict(case), "us": us, "flops": flops, "errors": off})
            best = min((name for name in us if name not in (LIBRARY, FULL)), key=lambda name: us[name])
            own, peer = (flops / us[name] / 1e6 for name in (LIBRARY, best))
            told = " ".join(f"{one:.1e}" for one in off.values())
            print(
                f"| {direction} | {case} | {own:.0f} | {best} {peer:.0f} | {us[best] / us[LIBRARY]:.2f} | {told} |",
                flush=True,
            )
            if FULL in us:
                print(f"{direction}: {us[FULL] / us[LIBRARY]:.2f} x as fast as without the window", flush=True)
    for direction in PRODUCTS:
        for peers in ([PEER], [FA4], [PEER, FA4]):
            ratios = ratios_to(peers, [one["us"] for one in rows if one["direction"] == direction])
            if ratios:
                named = "the best peer" if len(peers) > 1 else peers[0]
                mean = statistics.geometric_mean(ratios)
                print(f"{direction}: {mean:.2f} x {named} in the geometric mean, {min(ratios):.2f} at worst")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "gpu": gpu_state(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
