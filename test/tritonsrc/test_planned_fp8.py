"""How a warp of the planned forward converts rows of 8 bits: what each lane has, and the banks of shared memory."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from aotriton.rules.arch import arch_spec
from aotriton.rules.flash.planned import ATTN_FWD_HOPPER_PLANNED
from aotriton.rules.flash.split import Keys
from aotriton.tritonsrc.flash.lib import planned_fp8 as own

BANKS, WORD = 32, 4  # of four bytes


def words_of(words: int) -> list[list[tuple[int, int]]]:
    """By lane: the row and the place of each word of a group, in the order of registers."""
    layout = own.layout_of_group(words)
    assert layout.shape == [own.GROUP.value, words]
    found: list[list[tuple[int, int]]] = [[] for _ in range(32)]
    for lane, register in product(range(32), range(2 ** len(layout.reg_bases))):
        at = np.zeros(2, dtype=int)
        for number, bases in ((lane, layout.lane_bases), (register, layout.reg_bases)):
            for bit, base in enumerate(bases):
                at ^= np.array(base) * (number >> bit & 1)
        found[lane].append((int(at[0]), int(at[1])))
    return found


def bank(row: int, byte: int, width: int) -> int:
    """Of a byte in rows of so many bytes: pieces of 16 bytes change places, by their line of 128 bytes."""
    line, at = divmod(row * width + byte, 128)
    piece = at // 16 ^ line % 8 & width // 16 - 1
    return (piece * 16 + at % 16) // WORD


@pytest.mark.parametrize("words", [8, 16, 32])
def test_each_word_is_in_one_lane_with_its_neighbour(words: int) -> None:
    """A lane has two words next to each other, which it loads at once."""
    found = words_of(words)
    assert sorted(one for of_lane in found for one in of_lane) == [*product(range(own.GROUP.value), range(words))]
    for of_lane in found:
        for first, second in zip(of_lane[::2], of_lane[1::2], strict=True):
            assert first[1] % 2 == 0
            assert second == (first[0], first[1] + 1)


@pytest.mark.parametrize("words", [8, 16, 32])
def test_lanes_that_are_served_together_have_different_banks(words: int) -> None:
    """16 lanes load eight bytes each, and 8 lanes store 16 bytes of fp16 each, of 64 columns at most in a row."""
    found = words_of(words)
    wide = min(2 * words * WORD, own.MOST_BYTES.value)
    for first in range(0, len(found[0]), 2):
        for lanes in range(0, 32, 16):
            loaded = [of_lane[first] for of_lane in found[lanes : lanes + 16]]
            of_some = [bank(row, place * WORD, words * WORD) for row, place in loaded]
            assert len({*of_some, *(one + 1 for one in of_some)}) == BANKS
        for lanes in range(0, 32, 8):
            stored = [of_lane[first] for of_lane in found[lanes : lanes + 8]]
            assert len({2 * place * WORD // wide for _, place in stored}) == 1  # one half of a row
            of_some = [bank(row, 2 * place * WORD % wide, wide) for row, place in stored]
            assert len({one + i for one in of_some for i in range(4)}) == BANKS


@pytest.mark.parametrize("columns", [64, 128, 256])
def test_restrictions_count_the_slots_of_bytes(columns: int) -> None:
    """What they rule out everywhere is what does not fit: queries of 128 rows, steps of fp16, and the bytes of some."""
    functional = ATTN_FWD_HOPPER_PLANNED.functional(
        "sm_90", T="bf16", BLOCK_DMODEL=columns, CAUSAL=False, ADDRESSING="descriptor", KEYS=Keys.fp8e4nv
    )
    room = arch_spec("sm_90").shared_limit
    for keys, stages in product((64, 128), (2, 3, 4)):
        slots = 2 * stages + own.byte_stages.fn(columns)  # a slot of bytes of both has as many as one of keys in fp16
        bytes = (128 + slots * keys) * 2 * columns
        config = {"BLOCK_N": keys, "STAGES": stages, "num_warps": 4, "maxnreg": 168}
        if columns * keys <= 128 * 128:  # or accumulators do not fit in the registers
            assert functional.wins_nowhere(config) == (bytes > room), config
