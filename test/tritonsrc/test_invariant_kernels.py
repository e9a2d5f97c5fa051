"""The kernels of the hint `batch_invariant`, run by Triton's interpreter: right, and the same bits in any call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import Case
from attention_truth import truth
from paged_cases import in_pages, of_pages
from test_feature_kernels import CASES, Arrays, assert_right, call_of, plain_of
from test_split_kernels import DECODING, forward, of_split

from aotriton.rules.flash.invariant import INVARIANT

LONG = [
    Case((2,) * 2, (1300,) * 2, used_k=(1300, 512), group=3, head_dim=32, sinks=True, number=2),
    Case((3, 1), (1100, 40), packed=True, causal=True, causal_variant="bottom_right", head_dim=32, number=5),
    Case((5,), (1600,), window=(900, 0), causal_variant="bottom_right", head_dim=32, dtype="bf16", softcap=3.0),
]


@pytest.mark.parametrize("case", [*LONG, *DECODING, *dict.fromkeys(map(of_split, CASES[1::11]))], ids=str)
def test_results_are_right(launch: Any, case: Case) -> None:
    """Out and logsumexp, in rows, of calls of any number of parts, split between programs or not."""
    call, given = call_of(case)
    assert_right(case, call, forward(launch, case, given, 132, 0, INVARIANT), truth(call), plain_of(case, call))


@pytest.mark.parametrize("case", [*LONG, *DECODING[1:5]], ids=str)
def test_results_in_pages_are_right(launch: Any, case: Case) -> None:
    """The same, in pages."""
    case = of_pages(case)
    call, given = call_of(case)
    pool = in_pages(case, given["k"], given["v"], 48)
    given |= {"k": pool.k, "v": pool.v, "block_table": pool.table}
    results = forward(launch, case, given, 132, pool.seqlen_k, INVARIANT)
    assert_right(case, call, results, truth(call), plain_of(case, call))


QUERIES, KEYS = 3, 1300
ALONE = Case(
    (QUERIES,), (KEYS,), used_k=(KEYS,), causal=True, causal_variant="bottom_right", group=2, heads_k=1, head_dim=32,
    sinks=True, number=5,
)  # fmt: skip


def sequence(x: np.ndarray, rows: int) -> np.ndarray:
    """The first sequence's rows."""
    return np.array(x[:1, :, :rows])


def first_in(case: Case, given: Arrays) -> Arrays:
    """Operands of a larger call, whose first sequence is that of ALONE."""
    _, larger = call_of(case)
    for name in ("q", "k", "v"):
        rows = given[name].shape[2]
        larger[name] = np.array(larger[name])
        larger[name][:1, :, :rows] = given[name]
    return larger | {"sinks": given["sinks"]}


OTHERS = [
    replace(ALONE, lengths_q=(QUERIES,) * 3, lengths_k=(KEYS,) * 3, used_k=(KEYS, 7, 600)),
    replace(ALONE, lengths_q=(QUERIES, 40), lengths_k=(KEYS, 1700), used_k=None, packed=True),
    # More rows than are split between programs.
    replace(ALONE, lengths_q=(QUERIES, 520), lengths_k=(KEYS, 520), used_k=None, packed=True),
]


@pytest.mark.parametrize("case", OTHERS, ids=["batch", "packed", "with a prompt"])
def test_a_sequence_has_the_same_bits_in_any_call(launch: Any, case: Case) -> None:
    """Alone, beside others in rows, and in pages, whether its parts have a program each or not."""
    _, given = call_of(ALONE)
    alone = forward(launch, ALONE, given, 132, 0, INVARIANT)
    larger = first_in(case, given)
    results = [forward(launch, case, larger, 132, 0, INVARIANT)]
    paged = of_pages(case)
    pool = in_pages(paged, larger["k"], larger["v"], 16)
    in_pool = larger | {"k": pool.k, "v": pool.v, "block_table": pool.table}
    in_pool["seqused_k"] = np.array(paged.used_k)
    results.append(forward(launch, paged, in_pool, 132, pool.seqlen_k, INVARIANT))
    for result in results:
        for name in ("out", "logsumexp"):
            assert np.array_equal(sequence(result[name], QUERIES), alone[name]), name
