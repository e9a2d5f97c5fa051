"""Attention whose values are the first columns of the keys, against float64: DeepSeek's decoding with latent caches."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from attention_cases import Case  # noqa: E402
from attention_truth import ordinary, truth  # noqa: E402
from gpu import gpu_problem  # noqa: E402
from gpu.gpu_problem import bits  # noqa: E402
from gpu.test_features import FORWARD, Prepared  # noqa: E402
from gpu.test_pages import PAGE_SIZES, in_pool  # noqa: E402
from gpu.test_split import run  # noqa: E402
from paged_cases import of_pages  # noqa: E402

from aotriton.rules.flash.features import LATENT_DIMS  # noqa: E402

DIM, DIM_V = LATENT_DIMS
SIZES: dict[str, Any] = {"heads_k": 1, "head_dim": DIM, "head_dim_v": DIM_V}
LAST: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right"}

CASES = [
    *(Case((q,) * batch, (keys,) * batch, group=group, dtype=dtype, number=q + group, **LAST, **SIZES)
      for batch, q, keys, dtype in (
          (1, 1, 4096, "bf16"), (7, 1, 1000, "fp16"), (3, 2, 5000, "bf16"), (2, 4, 70, "fp16"),
      )
      for group in (16, 128)),
    Case((1,) * 300, (700,) * 300, group=16, dtype="bf16", **SIZES),
    Case((1,) * 3, (9000,) * 3, used_k=(9000, 1, 4097), group=128, dtype="bf16", sinks=True, number=1, **SIZES),
    Case((1, 3, 0, 200, 1), (3000, 700, 9, 200, 64), packed=True, group=16, beyond=5, number=2, **LAST, **SIZES),
    Case((4,) * 2, (2500,) * 2, used_q=(4, 1), used_k=(2500, 900), group=24, softcap=30.0, spread=8.0, number=3,
         **LAST, **SIZES),
    Case((1,) * 2, (3000,) * 2, group=20, window=(1000, 0), causal_variant="bottom_right", number=4, **SIZES),
    Case((700,), (700,), group=5, causal=True, number=5, **SIZES),
    Case((1,) * 2, (1500,) * 2, group=8, spread=0.0, number=6, **SIZES | {"heads_k": 2}),
]  # fmt: skip


def decoding(count: int, seed: int) -> list[Case]:
    """Random steps, of one token or of a few, packed or not."""
    choose = random.Random(seed)
    made = []
    for number in range(count):
        batch, queries = choose.randint(1, 9), choose.choice((1, 1, 1, 2, 4))
        keys = choose.choice((choose.randint(1, 300), choose.randint(300, 3000), choose.randint(3000, 12000)))
        packed = choose.random() < 0.3
        of_k = (*(choose.randint(0, keys) for _ in range(batch - 1)), keys)
        made.append(
            Case(
                (*(choose.choice((0, 1, queries)) for _ in of_k[1:]), queries) if packed else (queries,) * batch,
                of_k if packed else (keys,) * batch,
                packed=packed,
                used_k=of_k if not packed and choose.random() < 0.7 else None,
                group=choose.choice((1, 5, 16, 16, 32, 64, 100, 128)),
                dtype=choose.choice(("fp16", "bf16")),
                sinks=choose.random() < 0.2,
                spread=choose.choice((0.3, 1.0, 8.0)),
                layout=choose.choice(("heads", "rows")),
                number=number,
                **(LAST if choose.random() < 0.7 else {}),
                **SIZES,
            )
        )
    return made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
        metafunc.parametrize("case", [*CASES, *decoding(60 + count, seed)], ids=str)


def latent(case: Case) -> Prepared:
    """The case's operands, with values that are columns of the keys."""
    prepared = Prepared(case)
    prepared.call.v = prepared.operands["v"] = prepared.operands["k"][..., :DIM_V]
    prepared.exact, prepared.ordinary = truth(prepared.call), ordinary(prepared.call)
    return prepared


def in_rows(prepared: Prepared) -> dict[str, Any]:
    """The arguments of a forward."""
    return {name: one for name, one in prepared.features.items() if name != "dout"}


def in_latent_pool(prepared: Prepared, page_size: int) -> dict[str, Any]:
    """The arguments of a forward with keys in pages."""
    given = in_pool(prepared, page_size)
    given["v"] = given["k"][..., :DIM_V]
    return given


def test_in_rows_the_forward_is_as_accurate(case: Case) -> None:
    """Out and logsumexp are as near to float64 as ordinary low precision is; what counts not is not read, and what is
    nobody's is not written.
    """
    prepared = latent(case)
    run(prepared, in_rows(prepared))
    torch.cuda.synchronize()
    prepared.check(*FORWARD, "workspace")


def test_in_pages_the_forward_is_as_accurate(case: Case) -> None:
    """The same, of keys in pages."""
    prepared = latent(of_pages(case))
    run(prepared, in_latent_pool(prepared, PAGE_SIZES[case.number % len(PAGE_SIZES)]))
    torch.cuda.synchronize()
    prepared.check(*FORWARD, "workspace")


def test_a_graph_follows_tables_on_the_device() -> None:
    """A captured step reads lengths and pages at each replay: sequences grow, end and move."""
    prepared = latent(of_pages(Case((1,) * 3, (3000,) * 3, group=16, dtype="bf16", **SIZES)))
    given = in_latent_pool(prepared, 64)
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


def test_values_elsewhere_are_refused_after_a_call_that_was_served() -> None:
    """A thread's last call is found again by all but its pointers: where values begin is checked each time."""
    prepared = latent(Case((1,), (500,), group=16, dtype="bf16", **SIZES))
    given = in_rows(prepared)
    run(prepared, given)
    k = given["k"].contiguous()
    run(prepared, given | {"k": k, "v": k[..., :DIM_V]})
    with pytest.raises(aotriton.AotritonError, match="at the same address"):
        run(prepared, given | {"k": k, "v": torch.zeros_like(k)[..., :DIM_V]})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_prompts_have_values_of_128_columns(dtype: str, causal: bool) -> None:
    """DeepSeek's prompts, forward and backward: head dim 192, of values 128."""
    prepared = Prepared(Case((900,) * 2, (900,) * 2, heads_k=8, head_dim=192, head_dim_v=128, dtype=dtype,
                             causal=causal, number=7))  # fmt: skip
    prepared.launch()
    torch.cuda.synchronize()
    prepared.check()
