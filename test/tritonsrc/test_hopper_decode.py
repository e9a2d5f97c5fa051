"""Where the Hopper kernel of decoding loads numbers of 8 bits, beside where products of Ampere's kind take operands."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from aotriton.tritonsrc.flash.lib import hopper_decode as own

WARPS, GROUPS, BYTES = 4, 2, 4


def places(columns: int, of_keys: bool) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """By warp and lane: the key of the step, and the first column, of each word, in the order of registers."""
    layout = own.layout_of_words(WARPS, GROUPS, columns, of_keys)
    assert layout.shape == [WARPS, GROUPS, 16, columns // BYTES]
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for warp, lane, register in product(range(WARPS), range(32), range(2 ** len(layout.reg_bases))):
        at = np.zeros(4, dtype=int)
        for number, bases in ((warp, layout.warp_bases), (lane, layout.lane_bases), (register, layout.reg_bases)):
            for bit, base in enumerate(bases):
                at ^= np.array(base) * (number >> bit & 1)
        key = (at[0] * GROUPS + at[1]) * 16 + at[2]
        found.setdefault((warp, lane), []).append((int(key), int(at[3]) * BYTES))
    return found


@pytest.mark.parametrize("of_keys", [True, False], ids=["keys", "values"])
@pytest.mark.parametrize("columns", [32, 64, 128, 256])
def test_words_lie_where_products_take_them(columns: int, of_keys: bool) -> None:
    """Every word of a step is loaded once. Of an operand of 16 x 8, lane l has the numbers 2 (l % 4), 2 (l % 4) + 1,
    and those 8 further on, of column l / 4 (PTX: mma.m16n8k16). Warps have keys of their own.
    """
    at = own.number_at if of_keys else own.column_at
    order = list(np.asarray(at.fn(np.arange(columns), columns)))
    assert sorted(order) == [*range(columns)]
    place = {column: number for number, column in enumerate(order)}
    found = places(columns, of_keys)
    words = [word for of_lane in found.values() for word in of_lane]
    assert sorted(words) == [(k, c) for k in range(WARPS * GROUPS * 16) for c in range(0, columns, BYTES)]
    for (warp, lane), of_lane in found.items():
        for key, first in of_lane:
            assert key // (GROUPS * 16) == warp
            for column in range(first, first + BYTES):
                summed, across = (place[column], key) if of_keys else (key, place[column])
                assert (summed % 8 // 2, across % 8) == (lane % 4, lane // 4)


@pytest.mark.parametrize("of_keys", [True, False], ids=["keys", "values"])
@pytest.mark.parametrize("columns", [32, 64, 128, 256])
def test_lanes_load_neighbouring_bytes(columns: int, of_keys: bool) -> None:
    """As many at once as a lane has of a row, up to 16."""
    most = min(16, columns // (4 if of_keys else 8))
    for of_lane in places(columns, of_keys).values():
        for first in range(0, len(of_lane), most // BYTES):
            key, column = of_lane[first]
            assert column % most == 0
            assert of_lane[first : first + most // BYTES] == [(key, column + i) for i in range(0, most, BYTES)]


@pytest.mark.parametrize("columns", [32, 64, 128, 256])
def test_orders_are_those_of_the_operands(columns: int) -> None:
    """What `number_at` and `column_at` say, as `as_keys` and `as_values` move axes."""
    numbers = np.arange(columns)
    words = min(16, columns // 4) // BYTES
    of_keys = numbers.reshape(-1, 4, words, 2, 2).transpose(0, 2, 3, 1, 4)
    assert (own.number_at.fn(numbers, columns) == of_keys.ravel()).all()
    of_values = numbers.reshape(-1, 8, min(16, columns // 8)).transpose(0, 2, 1)
    assert (own.column_at.fn(numbers, columns) == of_values.ravel()).all()
