"""The kernels of values that are the first columns of the keys, run by Triton's interpreter, against float64."""

from __future__ import annotations

from typing import Any

import pytest
from attention_cases import Case
from attention_truth import Call, truth
from paged_cases import in_pages, of_pages
from test_feature_kernels import Arrays, assert_right, call_of, plain_of
from test_split_kernels import forward

from aotriton.rules.flash.features import LATENT_DIMS
from aotriton.rules.flash.latent import LATENT

DIM, DIM_V = LATENT_DIMS
SIZES: dict[str, Any] = {"heads_k": 1, "head_dim": DIM, "head_dim_v": DIM_V}

CASES = [
    Case((1,) * 2, (300,) * 2, group=16, dtype="bf16", **SIZES),
    Case((1,) * 3, (270,) * 3, used_k=(270, 1, 0), group=5, sinks=True, number=1, **SIZES),
    Case((3,) * 2, (290,) * 2, causal=True, causal_variant="bottom_right", group=6, softcap=4.0, spread=8.0, **SIZES),
    Case((2,), (600,), window=(70, 0), causal_variant="bottom_right", group=3, layout="rows", number=3, **SIZES),
    Case((1, 2, 0, 9), (300, 2, 9, 70), packed=True, causal=True, causal_variant="bottom_right", group=4, beyond=3,
         number=4, **SIZES),
    Case((40,), (40,), causal=True, group=2, layout="odd", spread=0.0, dtype="bf16", **SIZES),
    Case((1,) * 2, (300,) * 2, group=2, number=2, **SIZES | {"heads_k": 2}),
]  # fmt: skip


def latent_call(case: Case) -> tuple[Call, Arrays]:
    """As call_of, with values that are columns of the keys."""
    call, given = call_of(case)
    call.v = given["v"] = given["k"][..., :DIM_V]
    return call, given


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_right(launch: Any, case: Case) -> None:
    """Out and logsumexp of keys in rows, split between programs and not."""
    call, given = latent_call(case)
    exact, plain = truth(call), plain_of(case, call)
    for multiprocessors in (1, 132):
        assert_right(case, call, forward(launch, case, given, multiprocessors, 0, LATENT), exact, plain)


@pytest.mark.parametrize("case", CASES[:5], ids=str)
def test_results_in_pages_are_right(launch: Any, case: Case) -> None:
    """The same in pages, of which nothing is read that no row sees."""
    case = of_pages(case)
    call, given = latent_call(case)
    pool = in_pages(case, given["k"], given["v"], (16, 48, 64)[case.number % 3])
    given |= {"k": pool.k, "block_table": pool.table}
    results = forward(launch, case, given, 132, pool.seqlen_k, LATENT)
    assert_right(case, call, results, truth(call), plain_of(case, call))
