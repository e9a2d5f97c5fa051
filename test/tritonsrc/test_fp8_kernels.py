"""The kernels for keys and values of 8 bits, run by Triton's interpreter, against attention in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import Case
from attention_truth import truth
from fp8_cases import NUMBERS, encode, of_fp8, quantised
from paged_cases import in_pages, of_pages
from test_feature_kernels import CASES, assert_right, call_of, plain_of
from test_split_kernels import DECODING, forward

from aotriton.rules.flash.split import DECODE, SPLIT, Keys

FORMATS = (Keys.fp8e4nv, Keys.fp8e4b8)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_each_number_has_its_code(dtype: str) -> None:
    """What tests take for a number of 8 bits is one, and the nearest one of others is found."""
    numbers = NUMBERS[dtype]
    assert np.array_equal(numbers[encode(dtype, numbers)], numbers, equal_nan=True)
    assert np.nanmax(numbers) == {"fp8e4nv": 448, "fp8e4b8": 240}[dtype]
    assert numbers[encode(dtype, np.array([1.07, -1e9, 3e-4]))].tolist() == [1.125, -np.nanmax(numbers), 0.0]


@pytest.mark.parametrize("keys", FORMATS, ids=str)
@pytest.mark.parametrize("case", [*DECODING, *dict.fromkeys(map(of_fp8, CASES[3::17]))], ids=str)
def test_results_are_of_the_numbers_times_their_scales(launch: Any, case: Case, keys: Keys) -> None:
    """out and logsumexp are of the keys and values that codes and scales stand for, in rows and in pages."""
    case = of_fp8(case)
    _, given = call_of(case)
    paged = case.number % 2 == 1
    if paged:
        case = of_pages(case)
        _, given = call_of(case)
    made = {name: quantised(case, str(keys), given[name], False) for name in "kv"}
    call, _ = call_of(case)
    call.k, call.v = made["k"].values, made["v"].values
    plain = plain_of(case, call)
    given |= {f"{name}_descale": one.scale for name, one in made.items()}
    given |= {name: NUMBERS[str(keys)][one.codes] for name, one in made.items()}
    pages = 0
    if paged:
        pool = in_pages(case, given["k"], given["v"], 48)
        given |= {"k": pool.k, "v": pool.v, "block_table": pool.table}
        pages = pool.seqlen_k
    # On Hopper few rows have a kernel in Gluon, which no interpreter runs: test/gpu/test_fp8_keys.py has it.
    few = max(case.lengths_q) * case.group <= 16 and keys != Keys.fp8e4nv
    backend = DECODE if few else SPLIT
    results = forward(launch, case, given, (8, 132)[case.number % 3 == 0], pages, backend, keys)
    assert_right(case, call, results, truth(call), plain)
