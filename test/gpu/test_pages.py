"""Attention of keys and values in pages against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from attention_cases import Case  # noqa: E402
from gpu import gpu_problem  # noqa: E402
from gpu.gpu_problem import bits  # noqa: E402
from gpu.test_features import CASES, FORWARD, UNEVEN, Prepared  # noqa: E402
from gpu.test_features_hopper import without_weights  # noqa: E402
from gpu.test_split import LONG, decoding, run  # noqa: E402
from paged_cases import in_pages, of_pages  # noqa: E402

PAGE_SIZES = (16, 32, 48, 64, 128, 256, 272)

# Prompts beside decoding steps, in one call.
MIXED = [
    Case((1, 512, 1, 0, 77), (900, 512, 3000, 40, 1500), packed=True, causal=True, causal_variant="bottom_right",
         heads_k=2, group=4, head_dim=128, dtype="bf16"),
    Case((2000, 1), (2000, 5000), packed=True, causal=True, causal_variant="bottom_right", window=(300, 0), heads_k=1,
         group=8, head_dim=64, sinks=True),
    Case((4096,), (4096,), causal=True, heads_k=4, group=2, head_dim=128, dtype="bf16", layout="rows"),
]  # fmt: skip


def served(case: Case) -> Case:
    """What calls with a block table have of the case: no weights, and head dims that fill vectors."""
    case = without_weights(case)
    dims = {name: -(-getattr(case, name) // 8) * 8 for name in ("head_dim", "head_dim_v")}
    dtype = "bf16" if case.dtype == "fp32" else case.dtype
    return of_pages(replace(case, **dims, dtype=dtype, layout="rows" if case.layout == "rows" else "heads"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
        cases = [*MIXED, *LONG, *decoding(120 + count, seed + 1), *CASES[:100], *UNEVEN]
        metafunc.parametrize("case", dict.fromkeys(map(served, cases)), ids=str)


def in_pool(prepared: Prepared, page_size: int) -> dict[str, Any]:
    """The arguments of a forward, with keys and values in pages of a pool, and its block table."""
    k, v = (prepared.operands[one].double().cpu().numpy() for one in "kv")
    pool = in_pages(prepared.case, k, v, page_size)
    given = {name: one for name, one in prepared.features.items() if name not in ("dout", "cu_seqlens_k")}
    for name, values in (("k", pool.k), ("v", pool.v)):
        guarded = prepared._guarded(values.shape, prepared.dtype, float("nan"))
        guarded.view.copy_(torch.from_numpy(values))
        given[name] = guarded.view
    table = torch.from_numpy(pool.table)
    given["block_table"] = torch.full((len(table), table.shape[1] + 3), 1 << 30, dtype=torch.int32)
    given["block_table"][:, : table.shape[1]] = table
    given["block_table"] = given["block_table"].to(gpu_problem.DEVICE)[:, : table.shape[1]]
    return given


def test_the_forward_is_as_accurate(case: Case) -> None:
    """Out and logsumexp are as near to float64 as ordinary low precision is; rows and pages that count not are no
    numbers, entries of the table that count not are no pages, and what is nobody's is not written.
    """
    prepared = Prepared(case)
    run(prepared, in_pool(prepared, PAGE_SIZES[case.number % len(PAGE_SIZES)]))
    torch.cuda.synchronize()
    prepared.check(*FORWARD, "workspace")


def test_a_graph_follows_tables_on_the_device() -> None:
    """A captured decoding step reads lengths and pages at each replay: sequences grow, end and move."""
    case = of_pages(Case((1,) * 3, (3000,) * 3, heads_k=2, group=4, head_dim=128, dtype="bf16"))
    prepared = Prepared(case)
    given = in_pool(prepared, 64)
    run(prepared, given)
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    results = {name: prepared.results[name].view for name in FORWARD}
    workspace = prepared.results["workspace"].view.view(torch.uint8)
    with torch.cuda.graph(graph, stream=stream):
        aotriton.attn_fwd(**given, **results, workspace=workspace, stream=stream.cuda_stream)
    table = given["block_table"].clone()
    for order, lengths in (((0, 1, 2), (3000, 70, 1)), ((2, 0, 1), (2990, 3000, 64)), ((1, 1, 1), (5, 1000, 0))):
        given["block_table"].copy_(table[list(order)])
        given["seqused_k"].copy_(torch.tensor(lengths, dtype=torch.int32, device=gpu_problem.DEVICE))
        graph.replay()
        torch.cuda.synchronize()
        replayed = bits(prepared.results["out"].view.contiguous())
        run(prepared, given)
        torch.cuda.synchronize()
        assert torch.equal(replayed, bits(prepared.results["out"].view.contiguous())), (order, lengths)


def test_a_cache_may_be_larger_than_4_gigabytes() -> None:
    """Pages are found beyond 2³¹ elements."""
    page_size, heads, width, count = 256, 8, 128, 10_000
    pool = torch.zeros((2, count, page_size, heads, width), dtype=torch.bfloat16, device=gpu_problem.DEVICE)
    last = torch.randn((2, page_size, heads, width), dtype=torch.bfloat16, device=gpu_problem.DEVICE)
    pool[:, -1] = last
    q = torch.randn((1, heads, 1, width), dtype=torch.bfloat16, device=gpu_problem.DEVICE)
    of_device = {"dtype": torch.int32, "device": gpu_problem.DEVICE}
    given = {"q": q, "k": pool[0].transpose(1, 2), "v": pool[1].transpose(1, 2), "out": torch.empty_like(q)}
    given |= {"block_table": torch.tensor([[count - 1]], **of_device)}
    given |= {"seqused_k": torch.tensor([page_size], **of_device)}
    size = aotriton.attn_fwd_workspace_size(**given)
    aotriton.attn_fwd(**given, workspace=torch.empty(max(size, 1), dtype=torch.uint8, device=gpu_problem.DEVICE))
    k, v = (one.transpose(0, 1)[None].double() for one in last)
    exact = (q.double() @ k.mT * width**-0.5).softmax(-1) @ v
    assert (given["out"].double() - exact).norm() < 0.01 * exact.norm()
