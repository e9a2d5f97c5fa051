"""Attention with keys split between programs: the backends `decode` and `split` against float64, whatever is faster."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from attention_cases import Case  # noqa: E402
from gpu import gpu_problem  # noqa: E402
from gpu.gpu_problem import Guarded, bits  # noqa: E402
from gpu.test_features import CASES, FORWARD, UNEVEN, Prepared  # noqa: E402
from gpu.test_features_hopper import without_weights  # noqa: E402


def of_split(case: Case) -> Case:
    """What the backends serve of the case."""
    longest = max(case.lengths_q) + case.beyond
    return replace(without_weights(case), softcap=case.softcap, group=max(1, min(case.group, 1024 // longest)))


def backend_of(case: Case) -> str:
    """By the rows of the query heads that share a key head."""
    return "decode" if (max(case.lengths_q) + case.beyond) * case.group <= 16 else "split"


def is_served(case: Case) -> bool:
    """Causal calls of equal lengths are level 0's, and have no images here."""
    square = case.causal and case.lengths_q == case.lengths_k and case.window == (-1, -1)
    return not square or case.packed or case.sinks or bool(case.softcap or case.head_dim_v or case.used_k)


def decoding(count: int, seed: int) -> list[Case]:
    """Random calls of few queries and many keys, of which lengths in use are given for half."""
    choose = random.Random(seed)
    made = []
    for number in range(count):
        batch, q = choose.randint(1, 4), choose.choice((1, 1, 1, 2, 5, 16, 40))
        k = choose.choice((choose.randint(1, 200), choose.randint(200, 3000)))
        group = choose.choice((1, 4, 5, 7, 8, 16))
        used = tuple(choose.randint(0, k) for _ in range(batch)) if choose.random() < 0.5 else None
        mask: dict[str, Any] = choose.choice(
            ({}, {"causal": True}, {"window": (choose.randint(0, 300), 0)}, {"window": (9, 3)})
        )
        if mask:
            mask["causal_variant"] = "bottom_right"
        packed = choose.random() < 0.25
        lengths = [(choose.choice((1, 1, q)), choose.randint(0, k)) for _ in range(batch)]
        of_q, of_k = zip(*lengths, strict=True)
        made.append(
            Case(
                of_q if packed else (q,) * batch,
                (*of_k[:-1], k) if packed else (k,) * batch,
                packed=packed,
                used_k=None if packed else used,
                heads_k=choose.choice((1, 2, 3)),
                group=group,
                head_dim=choose.choice((64, 128, 128, 256, 40, 96)),
                head_dim_v=choose.choice((0, 0, 64)),
                dtype=choose.choice(("fp16", "bf16")),
                sinks=choose.random() < 0.3,
                softcap=choose.choice((0.0, 0.0, 4.0)),
                spread=choose.choice((0.3, 1.0, 8.0)),
                layout=choose.choice(("heads", "rows")),
                number=number,
                **mask,
            )
        )
    return made


LONG = [
    Case((1,), (20000,), heads_k=2, group=8, head_dim=128, dtype="bf16"),
    Case((1,) * 3, (9000,) * 3, used_k=(9000, 1, 4097), heads_k=1, group=7, head_dim=128, dtype="bf16", sinks=True),
    Case((128,), (5000,), heads_k=2, group=4, causal=True, causal_variant="bottom_right", head_dim=128, dtype="bf16"),
    Case((64,) * 200, (129,) * 200, heads_k=2, group=2, head_dim=64),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
        others = dict.fromkeys(map(of_split, [*CASES[:140], *UNEVEN]))
        cases = filter(is_served, [*LONG, *decoding(150 + count, seed), *others])
        metafunc.parametrize("case", cases, ids=str)


def run(prepared: Prepared, given: dict[str, Any], hints: dict[str, Any] | None = None) -> None:
    """A forward of these operands, with a workspace that holds no numbers and has ones around."""
    results = {name: prepared.results[name].view for name in FORWARD}
    size = aotriton.attn_fwd_workspace_size(**given, **results, hints=hints)
    workspace = Guarded((max(size // 4, 1),), torch.float32, "contiguous", 1.0)
    workspace.view.fill_(float("nan"))
    prepared.results["workspace"] = workspace
    aotriton.attn_fwd(**given, **results, workspace=workspace.view.view(torch.uint8), hints=hints)


def forward(prepared: Prepared) -> None:
    """A forward by one of the backends."""
    given = {name: one for name, one in prepared.features.items() if name != "dout"}
    run(prepared, given, {"backend": backend_of(prepared.case)})


def test_the_forward_is_as_accurate(case: Case) -> None:
    """Out and logsumexp are as near to float64 as ordinary low precision is; what counts not is not read, and what is
    nobody's is not written.
    """
    prepared = Prepared(case)
    forward(prepared)
    torch.cuda.synchronize()
    prepared.check(*FORWARD, "workspace")


def test_a_batch_that_fills_the_gpu_needs_no_workspace() -> None:
    """A step of many sequences, whose keys are not split, runs on the backend without one, unless hints say otherwise;
    the bits are those with one.
    """
    case = Case((1,) * 300, (500,) * 300, heads_k=4, group=7, head_dim=128, dtype="bf16")
    prepared = Prepared(case)
    forward(prepared)
    expected = bits(prepared.results["out"].view.contiguous()).clone()
    given = {name: one for name, one in prepared.features.items() if name != "dout"}
    results = {name: prepared.results[name].view for name in FORWARD}
    assert aotriton.attn_fwd_workspace_size(**given, **results) == 0
    for hints in (None, {"backend": "decode"}):
        prepared.results["out"].view.zero_()
        aotriton.attn_fwd(**given, **results, hints=hints)
        assert torch.equal(bits(prepared.results["out"].view.contiguous()), expected), hints


def test_a_graph_follows_lengths_on_the_device() -> None:
    """A captured call reads the lengths in use at each replay, and gives the bits of a call of its own."""
    case = Case((1,) * 3, (3000,) * 3, used_k=(3000, 70, 1), heads_k=2, group=4, head_dim=128, dtype="bf16")
    prepared = Prepared(replace(case, used_k=(3000,) * 3))  # whose keys are all numbers
    forward(prepared)
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        given = {name: one for name, one in prepared.features.items() if name != "dout"}
        results = {name: prepared.results[name].view for name in FORWARD}
        workspace = prepared.results["workspace"].view.view(torch.uint8)
        aotriton.attn_fwd(
            **given, **results, workspace=workspace, hints={"backend": "decode"}, stream=stream.cuda_stream
        )
    for lengths in ((3000, 70, 1), (1, 2, 3), (2999, 64, 65)):
        prepared.operands["seqused_k"].copy_(torch.tensor(lengths, dtype=torch.int32, device=gpu_problem.DEVICE))
        graph.replay()
        torch.cuda.synchronize()
        replayed = bits(prepared.results["out"].view.contiguous())
        forward(prepared)
        torch.cuda.synchronize()
        assert torch.equal(replayed, bits(prepared.results["out"].view.contiguous())), lengths
