"""The kernels that split keys, run by Triton's interpreter, against attention in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import VALUES, Case
from attention_truth import truth
from paged_cases import in_pages, of_pages
from test_feature_kernels import CASES, Arrays, assert_right, call_of, checked, plain_of, run

from aotriton.rules.expression import Environment
from aotriton.rules.flash.features import FULL
from aotriton.rules.flash.split import SPLIT, Keys
from aotriton.rules.operators import Backend, derived_sizes


def of_split(case: Case) -> Case:
    """What the kernels serve of the case."""
    dtype = "bf16" if case.dtype == "fp32" else case.dtype
    without: dict[str, Any] = {one.name: values[0] for one, values in VALUES.items() if one.level == FULL}
    return replace(case, dtype=dtype, **without)


DECODING = [
    Case((1,) * 2, (700,) * 2, group=4, heads_k=1, head_dim=64, dtype="bf16"),
    Case((1,) * 3, (300,) * 3, used_k=(300, 1, 130), group=7, sinks=True, head_dim=40, head_dim_v=24),
    Case((3,) * 2, (500,) * 2, causal=True, causal_variant="bottom_right", group=5, softcap=4.0, spread=8.0),
    Case((2,), (600,), window=(70, 0), causal_variant="bottom_right", group=3, layout="rows", sinks=True),
    Case((1, 4, 0, 20), (300, 4, 9, 200), packed=True, causal=True, causal_variant="bottom_right", group=2, beyond=3),
    Case((40,), (200,), group=2, heads_k=1, layout="odd"),
]


def forward(
    launch: Any,
    case: Case,
    given: Arrays,
    multiprocessors: int,
    pages: int = 0,
    backend: Backend = SPLIT,
    keys: Keys = Keys.rows,
) -> Arrays:
    """out and logsumexp of the backend's two kernels together, as they run on a GPU of so many multiprocessors.
    ``pages``: the keys that a block table has room for.
    """
    first, second = (kernel.name for kernel in backend.kernels)
    sizes = {"batch": case.batch, "heads_q": case.heads_q, "heads_k": case.heads_k, "head_dim": case.head_dim}
    sizes |= {"seqlen_q": case.rows_q, "seqlen_k": pages or case.rows_k, "head_dim_v": case.head_dim_v or case.head_dim}
    derived = derived_sizes(backend, Environment(sizes, checked(case), multiprocessors=multiprocessors))
    absent = frozenset({"cu_seqlens_k"} if pages else ())
    results = run(launch, case, first, given, absent, derived, multiprocessors, pages, keys)
    if not derived["partial_splits"]:
        return {name: results[name] for name in ("out", "logsumexp")}
    poison = {"out": results["out"], "logsumexp": results["logsumexp"]}
    for name, array in poison.items():
        assert np.unique(array).size == 1 or np.isnan(array).all(), f"{name} is written before it is whole"
    partial = {name: results[name].astype(np.float32) for name in ("partial", "partial_lse")}
    return run(launch, case, second, given | partial, derived=derived, multiprocessors=multiprocessors)


@pytest.mark.parametrize("case", [*DECODING, *dict.fromkeys(map(of_split, CASES[::5]))], ids=str)
def test_parts_combine_to_the_whole(launch: Any, case: Case) -> None:
    """Whatever the number of splits, of which some have no key that a row sees, out and logsumexp are right, and
    nothing outside of them is written.
    """
    call, given = call_of(case)
    results = forward(launch, case, given, (8, 132)[case.number % 2])
    assert_right(case, call, results, truth(call), plain_of(case, call))


@pytest.mark.parametrize("case", DECODING[:3], ids=str)
def test_one_split_is_the_whole(launch: Any, case: Case) -> None:
    """Without a second split the first kernel writes the results."""
    call, given = call_of(case)
    assert_right(case, call, forward(launch, case, given, 1), truth(call), plain_of(case, call))


@pytest.mark.parametrize("case", [*DECODING, *dict.fromkeys(map(of_split, CASES[2::9]))], ids=str)
def test_keys_in_pages_are_those_of_a_row(launch: Any, case: Case) -> None:
    """Keys and values are read where the block table says, and nothing else of the pool: neither rows behind the last
    key nor pages that no row sees.
    """
    case = of_pages(case)
    call, given = call_of(case)
    pool = in_pages(case, given["k"], given["v"], (16, 48, 64)[case.number % 3])
    given |= {"k": pool.k, "v": pool.v, "block_table": pool.table}
    results = forward(launch, case, given, (8, 132)[case.number % 2], pool.seqlen_k)
    assert_right(case, call, results, truth(call), plain_of(case, call))
