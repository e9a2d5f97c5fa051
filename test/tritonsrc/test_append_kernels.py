"""The kernel that appends keys and values to a cache, run by Triton's interpreter, against the same in numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from append_cases import CASES, WRITTEN, Append, assert_appended, operands
from test_kernels import round_to

from aotriton.rules.flash.append import KV_APPEND, OPERATOR, Cache
from aotriton.rules.kernel import Tensor

OF_AMD = [replace(case, cache="fp8e4b8") for case in CASES if case.cache]


@pytest.mark.parametrize("case", [*CASES, *OF_AMD], ids=str)
def test_rows_go_to_their_places(launch: Any, case: Append) -> None:
    """Keys and values are where lengths and block table say, keys and queries are rotated, whatever is not rotated has
    its bits, and all else is as it was.
    """
    of_call = {one.name for one in OPERATOR.operands if one.dtype == "T"}
    rounded = of_call - {"k_cache", "v_cache"} if case.cache else of_call
    given = {name: round_to(case.dtype, x) if name in rounded else x for name, x in operands(case).items()}
    tensors = [one for one in KV_APPEND.arguments if isinstance(one, Tensor) and one.operand.name in given]
    read = {one.name: given[one.operand.name] for one in tensors}
    written = {one.name: given[one.operand.name].shape for one in tensors if one.operand.name in WRITTEN}
    lying = [one.name for one in tensors if one.operand.name in of_call]
    paged = {one.name: one.operand.paged_dims for one in tensors if case.page_size and one.operand.paged_dims}
    values = {"T": case.dtype, "ROWS": 4, "PAIRS": 64, "ADDRESSING": "general", "rotary_interleaved": case.interleaved}
    values["CACHE"] = Cache[case.cache or "same"]
    there = {dim for one in tensors for dim in paged.get(one.name, one.operand.dims)}
    absent = {dim: 0 for dim in OPERATOR.sizes if dim not in there}
    if not case.page_size:  # as the operator's own checks say
        absent["page_size"] = case.room
    results = launch(
        KV_APPEND.name, read, written, values, dict.fromkeys(lying, case.gap), frozenset(),
        dict.fromkeys(lying, (0, 2, 1, 3)) if case.rows else {}, paged, absent,
    )  # fmt: skip
    assert_appended(case, given, {one.operand.name: results[one.name] for one in tensors if one.name in results})
