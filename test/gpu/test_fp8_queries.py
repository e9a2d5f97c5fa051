"""Attention of queries, keys and values of 8 bits against float64."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from gpu.gpu_problem import DEVICE, Guarded, bits  # noqa: E402

NARROW, NO_NUMBER = torch.float8_e4m3fn, 0x7F
MOST_WEIGHT = 256.0  # of weights in 8 bits, relative to their row
# As much more than an ordinary implementation that rounds weights to 8 bits; and 14 bits that products of 8 bits keep.
FACTOR, FLOOR = 1.3, 2.0**-10


@dataclass(frozen=True)
class Case:
    """``peak`` multiplies the scores; ``given``: the scales, by the first letter of their tensor."""

    batch: int
    heads_k: int
    group: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    head_dim_v: int
    causal: bool = False
    dtype: str = "bf16"
    rows_first: bool = False
    peak: float = 1.0
    given: str = "qkv"


FIXED = (
    Case(2, 2, 2, 512, 512, 128, 128),
    Case(1, 4, 1, 1000, 1000, 64, 64, causal=True),
    Case(1, 1, 8, 77, 333, 128, 128, given=""),
    Case(2, 1, 5, 130, 130, 256, 256, causal=True, dtype="fp16", rows_first=True),
    Case(1, 2, 1, 1, 1, 16, 16, causal=True),
    Case(1, 2, 4, 2048, 2048, 128, 128, causal=True, peak=8.0),
    Case(3, 2, 3, 700, 45, 96, 64, given="q"),
    Case(1, 2, 1, 64, 4100, 192, 128, dtype="fp16", given="kv"),
)


def drawn(count: int, seed: int) -> Iterator[Case]:
    draw = random.Random(seed)
    for _ in range(count):
        causal = draw.random() < 0.5
        rows, keys = (int(2 ** draw.uniform(0, 11)) for _ in range(2))
        width = 16 * draw.randint(1, 16)
        yield Case(
            draw.randint(1, 3), draw.randint(1, 3), draw.choice((1, 2, 3, 4, 8)), rows, rows if causal else keys, width,
            draw.choice((width, 16 * draw.randint(1, 16))), causal, draw.choice(("bf16", "fp16")), draw.random() < 0.5,
            draw.choice((0.1, 1.0, 8.0)), draw.choice(("qkv", "", "q", "kv", "v")),
        )  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
        metafunc.parametrize("case", [*FIXED, *drawn(60 + count, seed)], ids=str)


class Prepared:
    """A case's tensors, with numbers around them that are none, and what they stand for in float64."""

    def __init__(self, case: Case) -> None:
        self.case = case
        heads = {"q": case.heads_k * case.group, "k": case.heads_k, "v": case.heads_k, "out": case.heads_k * case.group}
        rows = {"q": case.seqlen_q, "k": case.seqlen_k, "v": case.seqlen_k, "out": case.seqlen_q}
        width = {"q": case.head_dim, "k": case.head_dim, "v": case.head_dim_v, "out": case.head_dim_v}
        layout = "bshd" if case.rows_first else "bhsd"
        generator = torch.Generator(DEVICE).manual_seed(zlib.crc32(str(case).encode()))
        self.given: dict[str, Any] = {"sm_scale": case.head_dim**-0.5, "causal": case.causal}
        self.meant: dict[str, torch.Tensor] = {}
        self.guarded: dict[str, Guarded] = {}
        for name in "qkv":
            shape = (case.batch, heads[name], rows[name], width[name])
            numbers = torch.randn(shape, generator=generator, device=DEVICE)
            codes = numbers.to(NARROW)
            guarded = Guarded(shape, torch.uint8, layout, NO_NUMBER)
            guarded.view.copy_(codes.view(torch.uint8))
            self.guarded[name] = guarded
            self.given[name] = guarded.view.view(NARROW)
            scale = torch.ones(case.batch, case.heads_k, device=DEVICE)
            if name in case.given:
                scale = torch.empty_like(scale).uniform_(0.3, 3, generator=generator)
                scale *= case.peak if name == "q" else 1.0
                self.given[f"{name}_descale"] = scale
            each = scale.repeat_interleave(heads[name] // case.heads_k, 1)
            self.meant[name] = codes.double() * each[:, :, None, None].double()
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[case.dtype]
        self.out = Guarded((case.batch, heads["out"], rows["out"], width["out"]), kind, layout, 1.0)
        self.logsumexp = Guarded((case.batch, heads["q"], rows["q"]), torch.float32, "contiguous", 1.0)
        for one in (self.out, self.logsumexp):
            one.view.fill_(float("nan"))
        self.guarded |= {"out": self.out, "logsumexp": self.logsumexp}

    def run(self) -> None:
        results = {"out": self.out.view, "logsumexp": self.logsumexp.view}
        size = aotriton.attn_fwd_workspace_size(**self.given, **results)
        workspace = torch.full((size,), NO_NUMBER, dtype=torch.uint8, device=DEVICE)
        aotriton.attn_fwd(**self.given, **results, workspace=workspace)
        torch.cuda.synchronize()

    def truth(self, narrow: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Out and logsumexp; ``narrow``: with weights as an ordinary implementation rounds them."""
        case = self.case
        k, v = (self.meant[name].repeat_interleave(case.group, 1) for name in "kv")
        scores = self.meant["q"] @ k.transpose(-1, -2) * self.given["sm_scale"]
        if case.causal:
            scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool, device=DEVICE).triu(1), -torch.inf)
        logsumexp = torch.logsumexp(scores, -1)
        weights = (scores - logsumexp[..., None]).exp()
        if narrow:
            most = weights.amax(-1, keepdim=True) / MOST_WEIGHT
            weights = (weights / most).float().to(NARROW).double() * most
        return weights @ v, logsumexp

    def check(self) -> None:
        out, logsumexp = self.truth(False)
        ordinary = self.truth(True)[0].to(self.out.view.dtype).double()
        scale = out.pow(2).mean().sqrt()
        error = (self.out.view.double() - out).pow(2).mean().sqrt() / scale
        allowed = FACTOR * (ordinary - out).pow(2).mean().sqrt() / scale + FLOOR
        assert error <= allowed, f"out: {error:.5f}, {allowed:.5f} are allowed"
        # Products of 8 bits keep 14 bits of a sum.
        largest = self.meant["q"].norm(dim=-1).amax() * self.meant["k"].norm(dim=-1).amax() * self.given["sm_scale"]
        off = (self.logsumexp.view.double() - logsumexp).abs().amax()
        assert off <= largest * 2.0**-10 + 1e-4, f"logsumexp is off by {off:.6f}, scores reach {largest:.1f}"
        for name, one in self.guarded.items():
            one.assert_untouched_outside(name)


def test_the_forward_is_as_accurate(case: Case) -> None:
    """Out is as near to float64 as weights of 8 bits are, logsumexp as near as sums of products of 8 bits; what lies
    around tensors counts not, and is not written.
    """
    prepared = Prepared(case)
    prepared.run()
    prepared.check()


def test_it_is_this_backend_that_runs() -> None:
    """Such calls have one backend, whose image is of 8 bits."""
    prepared = Prepared(FIXED[0])
    sizes = {"batch": 2, "heads_q": 4, "heads_k": 2, "seqlen_q": 512, "seqlen_k": 512, "head_dim": 128}
    narrow = {f"float8_e4m3fn_{name}": True for name in "qk"}
    kernels = aotriton.explain("attn_fwd", arch="sm_90", dtype="bf16", **sizes, **narrow)
    assert [one["kernel"] for one in kernels] == ["attn_fwd_turn", "attn_fwd_hopper_fp8"]
    prepared.run()


def test_the_same_bits_each_time() -> None:
    """Nothing is added in an order that differs from call to call."""
    prepared = Prepared(FIXED[5])
    prepared.run()
    first = bits(prepared.out.view.contiguous()).clone()
    prepared.run()
    assert torch.equal(bits(prepared.out.view.contiguous()), first)
