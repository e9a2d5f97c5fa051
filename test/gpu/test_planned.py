"""Attention by a plan made on the device: the backend `hopper_planned` against float64, whatever is faster.

Each call is made with keys and values in pages, and in rows but for causal calls of equal lengths: those are plain.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from attention_cases import Case  # noqa: E402
from fp8_cases import of_fp8  # noqa: E402
from gpu import gpu_problem  # noqa: E402
from gpu.gpu_problem import bits  # noqa: E402
from gpu.test_features import CASES, FORWARD, UNEVEN, Prepared  # noqa: E402
from gpu.test_fp8_keys import OfFp8  # noqa: E402
from gpu.test_pages import MIXED, PAGE_SIZES, in_pool, served  # noqa: E402
from gpu.test_split import LONG, decoding, is_served, run  # noqa: E402
from paged_cases import of_pages  # noqa: E402

HINTS = {"backend": "hopper_planned"}
FEWEST_ROWS = 17  # of the query heads that share a key head
MOST_COLUMNS = 256  # that are measured


pytestmark = pytest.mark.skipif(
    bool(torch.version.hip) or not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="the backend is for sm_90",
)


def of_planned(case: Case) -> Case:
    """What the backend serves of the case."""
    longest = max(case.lengths_q) + case.beyond
    group = case.group if longest * case.group >= FEWEST_ROWS else -(-FEWEST_ROWS // longest)
    dims = {name: min(getattr(case, name), MOST_COLUMNS) for name in ("head_dim", "head_dim_v")}
    return served(replace(case, softcap=0.0, group=group, **dims))


CHUNKS = [
    Case((128,), (9000,), heads_k=2, group=4, causal=True, causal_variant="bottom_right", head_dim=128, dtype="bf16"),
    Case((300, 5, 64), (7000, 800, 64), packed=True, heads_k=2, group=7, causal=True, causal_variant="bottom_right",
         head_dim=128, dtype="bf16", sinks=True),
    Case((70,) * 3, (3000,) * 3, heads_k=2, group=3, window=(500, 0), causal_variant="bottom_right", head_dim=64),
    Case((33,), (5000,), heads_k=1, group=20, head_dim=96, dtype="bf16"),
    Case((200,), (3000,), heads_k=2, group=4, causal=True, causal_variant="bottom_right", head_dim=256, dtype="bf16"),
    Case((700, 90, 1), (700, 2000, 400), packed=True, heads_k=2, group=2, causal=True, causal_variant="bottom_right",
         head_dim=256),
    Case((257,) * 2, (1000,) * 2, heads_k=1, group=16, head_dim=128, dtype="bf16"),
    Case((1,) * 300, (77,) * 300, used_k=(77,) * 299 + (0,), heads_k=1, group=17, head_dim=32),
]  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
        cases = dict.fromkeys(
            map(of_planned, [*CHUNKS, *MIXED, *LONG, *decoding(80 + count, seed + 2), *CASES[:120], *UNEVEN])
        )
        in_rows = metafunc.function is test_in_rows_the_forward_is_as_accurate
        metafunc.parametrize("case", filter(is_served, cases) if in_rows else cases, ids=str)


def test_in_pages_the_forward_is_as_accurate(case: Case) -> None:
    """Out and logsumexp are as near to float64 as ordinary low precision is; what counts not is not read, and what is
    nobody's is not written.
    """
    prepared = Prepared(case)
    run(prepared, in_pool(prepared, PAGE_SIZES[case.number % len(PAGE_SIZES)]), HINTS)
    torch.cuda.synchronize()
    prepared.check(*FORWARD, "workspace")


def test_in_rows_the_forward_is_as_accurate(case: Case) -> None:
    """The same, of keys and values in rows of a tensor."""
    prepared = Prepared(case)
    run(prepared, {name: one for name, one in prepared.features.items() if name != "dout"}, HINTS)
    torch.cuda.synchronize()
    prepared.check(*FORWARD, "workspace")


@pytest.mark.parametrize("paged", [False, True], ids=["rows", "pages"])
def test_keys_of_8_bits_are_as_accurate(case: Case, paged: bool) -> None:
    """The same, of keys and values of 8 bits in rows and in pages."""
    case = of_fp8(case)
    prepared = OfFp8(of_pages(case) if paged else case)
    given = prepared.narrow(PAGE_SIZES[case.number % len(PAGE_SIZES)] if paged else 0)
    run(prepared, given, HINTS)
    torch.cuda.synchronize()
    prepared.check(*FORWARD, "workspace")


def test_keys_that_are_turned_around() -> None:
    """Scales may be negative, and rows of bf16 of any magnitude: the bits of a call without either."""
    case = of_fp8(Case((90,), (900,), heads_k=1, group=8, head_dim=64, dtype="bf16"))
    prepared = OfFp8(case)
    given = prepared.narrow(0)
    run(prepared, given, HINTS)
    expected = bits(prepared.results["out"].view.contiguous()).clone()
    factors = 2.0 ** torch.tensor([0, 90, -100, 17, -30, 1, 60, 3], device=gpu_problem.DEVICE)[None, :, None, None]
    negative = given | {"k_descale": -given["k_descale"], "q": -given["q"]}
    run(prepared, negative, HINTS)
    assert torch.equal(bits(prepared.results["out"].view.contiguous()), expected)
    scaled = given | {"q": (given["q"].float() * factors).to(torch.bfloat16)}
    for head, factor in enumerate(factors.flatten().tolist()):
        run(prepared, scaled | {"sm_scale": case.sm_scale / factor}, HINTS)
        found = bits(prepared.results["out"].view.contiguous())
        assert torch.equal(found[:, head], expected[:, head]), factor


def test_a_graph_follows_what_is_on_the_device() -> None:
    """A captured call makes its plan anew at each replay, from the lengths of queries and keys, and gives the bits of a
    call of its own.
    """
    case = Case((500, 1, 1, 300), (4000, 3000, 900, 300), packed=True, causal=True, causal_variant="bottom_right",
                heads_k=2, group=4, head_dim=128, dtype="bf16")  # fmt: skip
    prepared = Prepared(of_planned(case))
    given = in_pool(prepared, 64)
    run(prepared, given, HINTS)
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    results = {name: prepared.results[name].view for name in FORWARD}
    workspace = prepared.results["workspace"].view.view(torch.uint8)
    with torch.cuda.graph(graph, stream=stream):
        aotriton.attn_fwd(**given, **results, workspace=workspace, hints=HINTS, stream=stream.cuda_stream)
    draw = random.Random(1)
    for lengths in ((500, 1, 1, 300), (1, 1, 1, 500), (0, 400, 400, 2)):
        starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        used = [max(rows, draw.randint(1, keys)) if rows <= keys else keys
                for rows, keys in zip(lengths, case.lengths_k, strict=True)]  # fmt: skip
        given["cu_seqlens_q"].copy_(torch.tensor(starts, dtype=torch.int32, device=gpu_problem.DEVICE))
        given["seqused_k"].copy_(torch.tensor(used, dtype=torch.int32, device=gpu_problem.DEVICE))
        graph.replay()
        torch.cuda.synchronize()
        replayed = bits(prepared.results["out"].view.contiguous())
        run(prepared, given, HINTS)
        torch.cuda.synchronize()
        assert torch.equal(replayed, bits(prepared.results["out"].view.contiguous())), lengths
