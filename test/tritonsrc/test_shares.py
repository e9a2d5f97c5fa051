"""How programs share steps evenly: attn_bwd_hopper_shares' own code, run as plain Python for each program."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.flash.backward import ATTN_BWD_HOPPER_SHARES
from aotriton.tritonsrc.flash.kernels import attn_bwd_hopper_shares as kernel
from aotriton.tritonsrc.flash.lib import backward_scheduler

MULTIPROCESSORS = 132
SHAPES = [  # batch, query heads, key heads, queries, keys
    (1, 1, 1, 100, 100),
    (1, 7, 7, 2000, 2000),
    (2, 12, 3, 1000, 3000),
    (3, 40, 40, 700, 700),
    (8, 16, 16, 2048, 2048),
    (64, 16, 8, 300, 300),
    (1, 16, 2, 1600, 1600),
    (1, 2, 2, 40_000, 4_000),
    (2, 1, 1, 30_000, 30_000),
    (132, 1, 1, 1, 1),
    (1, 133, 133, 128, 128),
    (1, 5, 5, 200, 4000),
    (1, 8, 2, 4000, 200),
]


@dataclass(frozen=True)
class Portion:
    """What a program does of a tile: its steps as query head, first row and first key, and where it leaves the sums."""

    tile: tuple[int, int]  # key head, counted through all batches, and first key
    steps: list[tuple[int, int]]  # query head of those that share the key head, and first row
    slot: int
    opens: bool


def portions(
    batch: int, heads_q: int, heads_k: int, queries: int, keys: int, rows: int, causal: bool
) -> list[list[Portion]]:
    """Those of each program of a call, in their order, with steps of so many ``rows``."""
    sizes = {"batch": batch, "heads_q": heads_q, "heads_k": heads_k, "seqlen_q": queries, "seqlen_k": keys}
    environment = Environment({**sizes, "head_dim": 64}, {"causal": int(causal)}, multiprocessors=MULTIPROCESSORS)
    programs = evaluate(ATTN_BWD_HOPPER_SHARES.grid[0], environment)
    given = heads_q // heads_k, heads_k, queries, keys, batch, rows, causal
    return [_portions_of(program, programs, given) for program in range(programs)]


def _portions_of(program: int, programs: int, given: tuple[int, int, int, int, int, int, bool]) -> list[Portion]:
    special = {"%ctaid.x": program, "%nctaid.x": programs}
    gl = SimpleNamespace(
        where=lambda this, a, b: a if this else b, cdiv=lambda a, b: -(-a // b), minimum=min, maximum=max, constexpr=int
    )
    space: dict[str, Any] = {
        "gl": gl,
        "special_register": special.get,
        "opaque": lambda x: x,
        "KEYS": backward_scheduler.KEYS.value,
    }
    for name in ("begin_of", "portion_at"):
        space[name] = FunctionType(getattr(kernel, name).fn.__code__, space, name)
    queries, rows = given[2], given[5]
    found: list[Portion] = []
    ticket = 0
    while True:
        key, unit, first, begin, member, row, count, slot, opens = space["portion_at"](ticket, *given)
        if key < 0:
            return found
        assert ticket & 1 == len(found) & 1  # the phase of what happens once a portion
        steps = []
        for _ in range(count):
            steps.append((member, row))
            row = first if row + rows >= queries else row + rows  # as next_rows, which is not plain Python
            member += row == begin
        found.append(Portion((unit, key), steps, slot, opens))
        ticket = (ticket + 2 * count) ^ 1


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize(
    ("shape", "causal"), [(shape, causal) for shape in SHAPES for causal in (False, True)[: 1 + (shape[3] == shape[4])]]
)
def test_each_step_is_taken_once_and_shares_are_even(
    shape: tuple[int, int, int, int, int], rows: int, causal: bool
) -> None:
    batch, heads_q, heads_k, queries, keys = shape
    programs = portions(*shape, rows, causal)
    steps = Counter((one.tile, step) for program in programs for one in program for step in one.steps)
    assert steps == Counter(
        ((unit, key), (member, row))
        for unit in range(batch * heads_k)
        for key in range(0, keys, 128)
        for member in range(heads_q // heads_k)
        for row in range(key if causal else 0, queries, rows)
    )
    shares = [sum(len(one.steps) for one in program) for program in programs]
    split = any(one.slot >= 0 for program in programs for one in program)
    assert max(shares) < sum(shares) / len(shares) + (1 if split else 2 + 128 // rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_programs_leave_of_a_tile_is_found(shape: tuple[int, int, int, int, int]) -> None:
    """A tile in portions has its sums where attn_bwd_hopper_shares_finish looks for them; others need no place."""
    causal = shape[3] == shape[4]
    programs = portions(*shape, 64, causal)
    left = {one.slot: one for program in programs for one in program if one.slot >= 0}
    of_tile = defaultdict(list)
    for program, own in enumerate(programs):
        for one in own:
            assert one.slot in (-1, 2 * program, 2 * program + 1)
            of_tile[one.tile].append(one)
    assert len(left) == sum(one.slot >= 0 for own in of_tile.values() for one in own), "two have the same place"
    for tile, own in of_tile.items():
        assert own[0].opens
        if own[0].slot < 0:
            assert len(own) == 1
            continue
        found, slot = [own[0]], own[0].slot // 2 * 2 + 2
        while slot in left and left[slot].tile == tile and not left[slot].opens:
            found.append(left[slot])
            slot += 2
        assert found == own


def test_most_tiles_are_whole() -> None:
    """Tiles are split only in the last round of programs."""
    programs = portions(8, 16, 16, 2048, 2048, 64, True)
    assert sum(len({one.tile for one in own if one.slot >= 0}) for own in programs) <= 3 * len(programs)
    assert sum(len([one for one in own if one.slot < 0]) for own in programs) >= 2048 - 2 * len(programs)
