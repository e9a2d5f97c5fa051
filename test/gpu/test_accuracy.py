"""Forward and backward through the library's dispatch against float64: sizes, types, layouts, kinds of softmax."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

from attention_truth import check, ordinary, truth  # noqa: E402 - after what may be missing
from gpu.gpu_problem import LAYOUTS, Case, Problem, bits, same_bits  # noqa: E402
from pairwise import pairwise  # noqa: E402

LENGTHS = (1, 17, 65, 127, 513, 1000)


def _head_dims() -> list[Problem]:
    return [
        Problem(seqlen_q=130, seqlen_k=130, head_dim=d, dtype=dtype, causal=(d // 8 + (dtype == "fp16")) % 2 == 0)
        for d in range(8, 257, 8)
        for dtype in ("bf16", "fp16")
    ]


def _lengths() -> list[Problem]:
    full = [Problem(seqlen_q=q, seqlen_k=k) for q in LENGTHS for k in LENGTHS]
    return full + [Problem(seqlen_q=s, seqlen_k=s, causal=True, head_dim=d) for s in LENGTHS for d in (64, 128)]


def _groups() -> list[Problem]:
    return [
        Problem(heads_q=q, heads_k=k, seqlen_q=200, seqlen_k=200, causal=causal)
        for q, k in ((1, 1), (8, 8), (8, 2), (6, 3), (8, 1), (5, 1))
        for causal in (False, True)
    ]


def _layouts() -> list[Problem]:
    return [
        Problem(seqlen_q=150, seqlen_k=150 if causal else 90, head_dim=d, dtype=dtype, causal=causal, layout=layout)
        for layout in (*LAYOUTS, "broadcast", "mixed")
        for d, dtype, causal in ((64, "bf16", True), (72, "fp16", False), (256, "bf16", False))
    ]


def _spreads() -> list[Problem]:
    return [
        Problem(seqlen_q=300, seqlen_k=300, head_dim=d, dtype=dtype, causal=causal, spread=spread)
        for d in (32, 64, 128, 256)
        for dtype in ("bf16", "fp16")
        for causal in (False, True)
        for spread in (0.1, 12.0)
    ]


def _fill() -> list[Problem]:
    """Long sequences with few and with many programs: the other bins of each tuning key."""
    sizes = ((1, 1, 3000), (4, 16, 2048), (1, 2, 8200), (1, 24, 8200), (64, 16, 64), (32, 16, 500))
    return [
        Problem(batch=b, heads_q=h, heads_k=max(1, h // 2), seqlen_q=s, seqlen_k=s, head_dim=d, causal=causal)
        for b, h, s in sizes
        for d, causal in ((64, True), (128, False))
    ]


def _backends() -> list[Problem]:
    """Odd lengths and groups where the Hopper backends are faster: see the test that counts them."""
    sizes = ((2047, 2047, True), (2050, 1991, False), (70, 3001, False))
    few = [
        Problem(batch=1, heads_q=8, heads_k=2, seqlen_q=s, seqlen_k=s, head_dim=d, dtype="bf16", causal=causal)
        for s, d, causal in ((1601, 184, True), (711, 192, False), (1393, 256, True))
    ]
    return few + [
        Problem(batch=4, heads_q=16, heads_k=4, seqlen_q=q, seqlen_k=k, head_dim=d, dtype=dtype, causal=causal)
        for q, k, causal in sizes
        for d, dtype in (
            (24, "bf16"),
            (40, "fp16"),
            (64, "bf16"),
            (72, "bf16"),
            (128, "fp16"),
            (160, "bf16"),
            (200, "bf16"),
            (256, "fp16"),
        )
    ]


def _many() -> list[Problem]:
    """More batches than a grid has places along y or z."""
    return [
        Problem(batch=b, heads_q=h, heads_k=h, seqlen_q=16, seqlen_k=16, head_dim=64, causal=causal)
        for b, h, causal in ((70_000, 1, False), (70_000, 1, True), (1, 70_000, False))
    ]


BANDS: dict[str, tuple[Any, ...]] = {
    "causal": (False, True),
    "causal_variant": ("top_left", "bottom_right"),
    "left": (-1, 0, 33, 200),
    "right": (-1, 0, 70),
    "lengths": ((257, 257), (100, 333), (333, 100), (1, 500), (515, 1)),
    "head_dim": (8, 64, 72, 128, 184, 256),
    "dtype": ("bf16", "fp16"),
    "heads": ((4, 2), (5, 1), (2, 2)),
    "layout": (*LAYOUTS, "broadcast"),
    "spread": (0.1, 1.0, 12.0),
}


def _bands() -> list[Problem]:
    """Every pair of what bands are made of: rows that see nothing, at the beginning and at the end, among them."""
    made = []
    for row in pairwise(BANDS):
        left, right = row.pop("left"), row.pop("right")
        (seqlen_q, seqlen_k), (heads_q, heads_k) = row.pop("lengths"), row.pop("heads")
        sizes = {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "heads_q": heads_q, "heads_k": heads_k}
        made.append(Problem(**sizes, **row, window=(left, right)))
    long: dict[str, Any] = {"batch": 1, "heads_q": 4, "heads_k": 2, "head_dim": 128}
    return [
        *made,
        Problem(seqlen_q=4100, seqlen_k=4100, causal=True, window=(1024, -1), **long),
        Problem(seqlen_q=2000, seqlen_k=5000, causal=True, causal_variant="bottom_right", **long),
        Problem(seqlen_q=5000, seqlen_k=2000, causal=True, causal_variant="bottom_right", deterministic=True, **long),
    ]


def _random(count: int) -> list[Problem]:
    choose = random.Random(20)
    made = []
    for _ in range(count):
        heads_k, causal = choose.choice((1, 2, 3)), choose.random() < 0.5
        seqlen_q = choose.randint(1, 700)
        made.append(
            Problem(
                batch=choose.randint(1, 3),
                heads_q=heads_k * choose.choice((1, 2, 4)),
                heads_k=heads_k,
                seqlen_q=seqlen_q,
                seqlen_k=seqlen_q if causal else choose.randint(1, 700),
                head_dim=8 * choose.randint(1, 32),
                dtype=choose.choice(("bf16", "fp16")),
                causal=causal,
                spread=choose.choice((0.1, 1.0, 12.0)),
                layout="mixed",
            )
        )
    return made


PROBLEMS = [
    *(*_head_dims(), *_lengths(), *_groups(), *_layouts(), *_spreads()),
    *(*_fill(), *_backends(), *_many(), *_bands(), *_random(60)),
]


@pytest.mark.parametrize("problem", list(dict.fromkeys(PROBLEMS)), ids=str)
def test_forward_and_backward_are_as_accurate_as_ordinary_low_precision(problem: Problem) -> None:
    """Each result is as near to float64 as ordinary low precision is; nothing beyond a view is read or written."""
    case = Case(problem)
    outputs = case.outputs()
    case.launch(outputs)
    torch.cuda.synchronize()
    exact, plain = truth(case.call), ordinary(case.call)
    for name in ("out", "logsumexp", "dv", "dk", "dq"):
        check(name, outputs[name].view, exact, plain, case.problem.dtype)
    for name, guarded in outputs.items():
        guarded.assert_untouched_outside(name)


def test_the_problems_reach_every_backend() -> None:
    """What the test above says, it says of each backend that this GPU has."""
    import aotriton
    from aotriton.rules.family import operator

    def backend(op: str, problem: Problem) -> str:
        names = ("dtype", "batch", "heads_q", "heads_k", "seqlen_q", "seqlen_k", "head_dim")
        sizes = {name: getattr(problem, name) for name in names} | problem.mask
        place = {"arch": aotriton.arch(), "product": aotriton.product()}
        lead = aotriton.explain(op, multiprocessors=aotriton.multiprocessors(), **place, **sizes)[-1]
        return str(lead["backend"])

    for attention in map(operator, ("attn_fwd", "attn_bwd")):
        used = {backend(attention.name, problem) for problem in PROBLEMS if problem.layout == "bhsd"}
        served = {one.name for one in attention.backends if all(aotriton.arch() in of.archs for of in one.kernels)}
        served -= {"invariant", "latent", "hopper_latent", "hopper_fp8"}  # for a hint, own head dims, and 8 bits
        assert used == (served if aotriton.arch() == "sm_90" else {"portable"})


@pytest.mark.parametrize("layout", ["bhsd", "odd_rows"])
def test_logsumexp_is_optional(layout: str) -> None:
    """Without a logsumexp tensor the forward gives the same bits."""
    import aotriton

    case = Case(Problem(seqlen_q=300, seqlen_k=300, causal=True, layout=layout))
    wanted, got = case.outputs(), case.outputs()
    case.forward(wanted)
    aotriton.attn_fwd(case.q, case.k, case.v, got["out"].view, sm_scale=case.sm_scale, causal=True)
    torch.cuda.synchronize()
    assert torch.equal(bits(wanted["out"].view.contiguous()), bits(got["out"].view.contiguous()))
    got["out"].assert_untouched_outside("out")


def test_scale_is_the_callers() -> None:
    """Any positive sm_scale is honoured: a tiny one gives the mean of V."""
    case = Case(Problem(batch=1, heads_q=2, heads_k=2, seqlen_q=100, seqlen_k=60))
    outputs = case.outputs()
    for sm_scale in (1e-9, 0.7):
        case.sm_scale = sm_scale
        case.launch(outputs)
        torch.cuda.synchronize()
        exact, plain = truth(case.call), ordinary(case.call)
        for name in ("out", "logsumexp", "dv", "dk", "dq"):
            check(name, outputs[name].view, exact, plain, case.problem.dtype)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 192, 256])
def test_scores_may_rise_from_step_to_step(head_dim: int, causal: bool, dtype: str) -> None:
    """Keys are gone through from the last: exponentials of every second row rise by 2^23 in 64 keys, others fall."""
    case = Case(Problem(seqlen_q=700, seqlen_k=700, head_dim=head_dim, causal=causal, dtype=dtype))
    case.sm_scale = 0.125
    case.q[..., 0] = torch.tensor([4.0, -4.0], device="cuda").repeat(350)
    case.k[..., 0] = torch.arange(700, 0, -1, device="cuda") * 0.5
    outputs = case.outputs()
    case.launch(outputs)
    torch.cuda.synchronize()
    exact, plain = truth(case.call), ordinary(case.call)
    for name in ("out", "logsumexp", "dv", "dk", "dq"):
        check(name, outputs[name].view, exact, plain, case.problem.dtype)


@pytest.mark.parametrize("head_dim", [64, 72])
def test_scale_has_a_default(head_dim: int) -> None:
    """Left out, or None, it is 1 / sqrt(head_dim): forward and backward give the bits that they give with that."""
    import aotriton

    case = Case(Problem(seqlen_q=100, seqlen_k=100, head_dim=head_dim, deterministic=True))
    case.sm_scale = 1 / math.sqrt(head_dim)
    wanted = case.outputs()
    case.launch(wanted)
    for given in ({}, {"sm_scale": None}):
        got = case.outputs()
        o = {name: guarded.view for name, guarded in got.items()}
        aotriton.attn_fwd(case.q, case.k, case.v, o["out"], o["logsumexp"], **given)
        aotriton.attn_bwd(*case.backward_tensors(got), o["workspace"].view(torch.uint8), **given, **case.options)
        torch.cuda.synchronize()
        assert same_bits(wanted, got)


EMPTY: dict[str, dict[str, Any]] = {
    "batch": {"batch": 0},
    "heads": {"heads_q": 0, "heads_k": 0},
    "queries": {"seqlen_q": 0},
    "keys": {"seqlen_k": 0},
    "queries and keys, causal": {"seqlen_q": 0, "seqlen_k": 0, "causal": True},
}


@pytest.mark.parametrize("what", EMPTY)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_empty_problems_have_results(what: str, layout: str) -> None:
    """A size of 0 is no error: what is left of the results is zeros, and -inf in logsumexp; nothing else is written."""
    case = Case(Problem(layout=layout, **EMPTY[what]))
    outputs = case.outputs()
    case.launch(outputs)
    torch.cuda.synchronize()
    for name in ("out", "dq", "dk", "dv"):
        assert not outputs[name].view.any(), name
    assert (outputs["logsumexp"].view == float("-inf")).all()
    for name, guarded in outputs.items():
        guarded.assert_untouched_outside(name)
