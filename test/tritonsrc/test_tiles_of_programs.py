"""How programs share tiles out: the kernels' own code, run as plain Python for each program."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from math import ceil, prod
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

from device_functions import language, loading, take, vectors

from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.flash.backward import ATTN_BWD_HOPPER_PAIR, HEADS_TOGETHER
from aotriton.rules.work import CACHED
from aotriton.tritonsrc.flash.lib import (
    backward_scheduler,
    features,
    forward_features,
    forward_scheduler,
    hopper_column_parts,
    mask,
    packed_search,
    packed_tiles,
    scheduler,
)

MULTIPROCESSORS = 132
SHAPES = [  # batch, key heads, keys
    (1, 1, 100),
    (1, 7, 2000),
    (2, 3, 5000),
    (3, 40, 700),
    (8, 16, 2048),
    (64, 16, 300),
    (1, 2, 40_000),
    (2, 1, 300_000),
    (132, 1, 1),
    (1, 133, 128),
]


def tiles_of_programs(batch: int, heads_k: int, keys: int, causal: bool) -> list[list[tuple[int, int]]]:
    """Head and first key of each tile that each program of a call takes."""
    sizes = {"batch": batch, "heads_q": heads_k, "heads_k": heads_k, "seqlen_q": keys, "seqlen_k": keys, "head_dim": 64}
    environment = Environment(sizes, {"causal": int(causal)}, multiprocessors=MULTIPROCESSORS)
    programs, together = evaluate(ATTN_BWD_HOPPER_PAIR.grid[0], environment), evaluate(HEADS_TOGETHER, environment)
    return [_taken(one, programs, batch, heads_k, keys, together, causal) for one in range(programs)]


def _taken(
    program: int, programs: int, batch: int, heads_k: int, keys: int, together: int, causal: bool
) -> list[tuple[int, int]]:
    special = {"%ctaid.x": program, "%nctaid.x": programs}
    space: dict[str, Any] = {"gl": language(), "special_register": special.get, "opaque": lambda x: x}
    space["KEYS"] = backward_scheduler.KEYS.value
    take(space, backward_scheduler, "heads_of_group", "work_index", "work_at")
    found: list[Any] = []
    ticket, key, head = space["work_at"](0, heads_k, keys, batch, together, causal)
    while key >= 0:
        assert ticket & 1 == len(found) & 1  # the phase of what happens once a tile
        found.append((head, key))
        ticket, key, head = space["work_at"]((ticket + 2) ^ 1, heads_k, keys, batch, together, causal)
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("batch", "heads_k", "keys"), SHAPES)
def test_each_tile_is_taken_once(batch: int, heads_k: int, keys: int, causal: bool) -> None:
    programs = tiles_of_programs(batch, heads_k, keys, causal)
    assert all(programs), "a program without a tile"
    everything = Counter(tile for one in programs for tile in one)
    assert everything == Counter((head, key) for head in range(batch * heads_k) for key in range(0, keys, 128))


@pytest.mark.parametrize(("batch", "heads_k", "keys"), [shape for shape in SHAPES if prod(shape) > 1e5])
def test_causal_tiles_are_shared_evenly(batch: int, heads_k: int, keys: int) -> None:
    """The busiest program has no more steps than a tenth above the mean, or than the longest tile."""
    steps = [sum(ceil((keys - key) / 128) for _, key in one) for one in tiles_of_programs(batch, heads_k, keys, True)]
    assert max(steps) <= max(1.1 * sum(steps) / MULTIPROCESSORS, ceil(keys / 128))


@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("group_rounds", [0, 1, 4])
@pytest.mark.parametrize(("batch", "heads", "queries"), SHAPES)
def test_each_tile_of_the_forward_is_taken_once(
    batch: int, heads: int, queries: int, group_rounds: int, consumers: int
) -> None:
    """And every program has one, as its consumers expect. GROUP_ROUNDS is 0 where tiles are alike."""
    of_programs = forward_tiles(batch * heads, queries, 64 * consumers, group_rounds)
    assert all(of_programs), "a program without a tile"
    everything = Counter((head, row) for one in of_programs for head, row, _ in one)
    rows = range(0, queries, 64 * consumers)
    assert everything == Counter((head, row) for head in range(batch * heads) for row in rows)


@pytest.mark.parametrize(("batch", "heads", "queries"), [shape for shape in SHAPES if prod(shape) > 1e5])
def test_causal_tiles_of_the_forward_are_shared_evenly(batch: int, heads: int, queries: int) -> None:
    """The busiest program has no more key tiles than an eighth above the mean, or than the longest tile."""
    work = [sum(steps for _, _, steps in one) for one in forward_tiles(batch * heads, queries, 128, 4)]
    assert max(work) <= max(1.125 * sum(work) / MULTIPROCESSORS, ceil(queries / KEYS))


@pytest.mark.parametrize("window", [1, 200, 1 << 30])
@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize(("batch", "heads", "queries"), SHAPES)
@pytest.mark.parametrize("keys", [1, 4096, 300_000])
def test_each_tile_of_groups_that_the_cache_holds_is_taken_once(
    batch: int, heads: int, queries: int, keys: int, window: int, consumers: int
) -> None:
    """And every program has one, and groups with more heads than fill a round have no more keys than the cache."""
    rows = 64 * consumers
    space, programs = forward_scheduler_of(batch * heads, queries, rows)
    schedule = space["schedule"](call_with_features(batch * heads, queries, keys, window, consumers))
    of_programs = taken_of_schedule(space, schedule, programs, queries, rows, True)
    assert all(of_programs), "a program without a tile"
    everything = Counter((head, row) for one in of_programs for head, row, _ in one)
    assert everything == Counter((head, row) for head in range(batch * heads) for row in range(0, queries, rows))
    held = schedule.size * min(keys, window) * 2 * 2 * HEAD_DIM  # keys and values of 16 bits
    assert held <= forward_features.CACHED.value or schedule.size < 2 * ceil(programs / schedule.blocks)


@pytest.mark.parametrize(
    ("heads", "queries", "keys", "groups"), [(64, 1024, 4096, 3), (32, 8192, 8192, 4), (32, 8192, 1024, 1)]
)
def test_groups_that_the_cache_holds_are_even(heads: int, queries: int, keys: int, groups: int) -> None:
    assert forward_features.CACHED.value == CACHED  # a model expects that such groups read nothing twice
    space, _ = forward_scheduler_of(heads, queries, 128)
    schedule = space["schedule"](call_with_features(heads, queries, keys, 1 << 30, 2))
    assert schedule.groups == groups
    assert schedule.size == heads // groups


KEYS = 128  # of a step of the forward
HEAD_DIM = 128


def call_with_features(heads: int, queries: int, keys: int, window: int, consumers: int) -> SimpleNamespace:
    """What `schedule` of forward_features.py reads of a call with a causal window, and GROUP_ROUNDS = 0."""
    hi = keys - queries
    return SimpleNamespace(
        CONSUMERS=consumers, GROUP_ROUNDS=0, k_slots=[SimpleNamespace(shape=(2, 1, 1, KEYS, HEAD_DIM))],
        k_tensors=[SimpleNamespace(block_type=SimpleNamespace(nbytes=KEYS * HEAD_DIM * 2))],
        num_heads_q=heads, log2_packed=0, sequences=1, longest=queries, lo=hi - window + 1, hi=hi,
        max_seqlen_q=queries, max_seqlen_k=keys,
    )  # fmt: skip


def forward_tiles(heads: int, queries: int, rows: int, group_rounds: int) -> list[list[tuple[int, int, int]]]:
    """Head, first row and key tiles of each tile that each program of a call takes, heads not packed."""
    causal = group_rounds > 0
    space, programs = forward_scheduler_of(heads, queries, rows)
    schedule = space["schedule_of"](heads, queries, rows, causal, group_rounds)
    return taken_of_schedule(space, schedule, programs, queries, rows, causal)


def forward_scheduler_of(heads: int, queries: int, rows: int) -> tuple[dict[str, Any], int]:
    """The scheduler's functions, and how many programs a call has."""
    programs = min(MULTIPROCESSORS, ceil(queries / rows) * heads)
    gl = language()
    space: dict[str, Any] = {
        "gl": gl,
        "tl": gl,
        "special_register": {"%nctaid.x": programs}.get,
        "opaque": lambda x: x,
        "quotient": lambda a, b: a // b,
        "Schedule": lambda *values: SimpleNamespace(
            **dict(zip(("programs", "blocks", "heads", "size", "groups"), values, strict=True))
        ),
        "CACHED": forward_features.CACHED.value,
    }
    take(space, mask, "key_interval")
    take(space, hopper_column_parts, "bytes_of")
    take(space, forward_scheduler, "heads_of_group", "work_index", "schedule_of", "work_at")
    take(space, forward_features, "schedule")
    return space, programs


def taken_of_schedule(
    space: dict[str, Any], schedule: SimpleNamespace, programs: int, queries: int, rows: int, causal: bool
) -> list[list[tuple[int, int, int]]]:
    """Head, first row and key tiles of each tile that each program takes by a schedule."""
    found = []
    for program in range(programs):
        mine, state = [], (0, 0, program)
        while True:
            *state, row, head, tiles = space["work_at"](schedule, *state, queries, 0, rows, KEYS, causal)
            if not tiles:
                break
            mine.append((head, row, tiles))
            state[1] += 1
        found.append(mine)
    return found


CU_SEQLENS = [  # of packed sequences
    [0, 1],
    [0, 128, 129, 129, 640, 1000],
    [0, 0, 300, 300, 5000],
    [37, 165, 1024],  # rows before the first sequence are nobody's
    [0, *range(127, 4000, 127)],
]


@pytest.mark.parametrize("rows", [64, 192])
@pytest.mark.parametrize(("heads", "together"), [(1, 1), (6, 1), (6, 4), (5, 5)])
@pytest.mark.parametrize("starts", CU_SEQLENS, ids=str)
def test_each_tile_of_packed_sequences_is_taken_once(starts: list[int], heads: int, together: int, rows: int) -> None:
    """With the rows of two heads packed, too. Whose sequence has its last tile first has the same tiles."""
    for log2_packed in (0, 1):
        taken = packed_tiles_of_programs(starts, heads, together, rows, log2_packed)
        lengths = {index: (end - begin) << log2_packed for index, (begin, end) in enumerate(pairwise(starts))}
        there = [(head, index, tile) for head, index, tile, _ in taken if 0 <= tile * rows < lengths[index]]
        everything = Counter(
            (head, index, tile)
            for head in range(heads)
            for index, length in lengths.items()
            for tile in range(-(-length // rows))
        )
        assert Counter(there) == everything
        turned = [(head, index, tile) for head, index, _, tile in taken if 0 <= tile * rows < lengths[index]]
        assert Counter(turned) == everything
        for begin in range(0, heads, together):  # heads that go together begin with the same tiles
            width = min(together, heads - begin)
            each = len(taken) // heads
            group = [head for head, *_ in taken[begin * each : (begin + width) * each]]
            assert group == list(range(begin, begin + width)) * each


def packed_tiles_of_programs(
    starts: list[int], heads: int, together: int, rows: int, log2_packed: int
) -> list[tuple[int, int, int, int]]:
    """Head, sequence and tile of each program, and the tile if each sequence has its last one first."""
    count = len(starts) - 1
    programs = ((starts[-1] << log2_packed) // rows + count) * heads
    tl = language(load=loading(starts), num_programs=lambda _: programs)
    space: dict[str, Any] = {"tl": tl, "PACKED": features.PACKED.value}
    take(space, scheduler, "tile_of_heads_together")
    take(space, packed_tiles, "first_tile", "place_in_grid", "tile_of_sequences", "last_first")
    found = []
    for program in range(programs):
        tl.program_id = lambda _, program=program: program
        tile, head, index = space["tile_of_sequences"](
            features.PACKED.value, 0, count, max(end - begin for begin, end in pairwise(starts)), starts[-1], heads,
            together, rows, log2_packed,
        )  # fmt: skip
        found.append((head, index, tile, space["last_first"](tile, 0, index, log2_packed, rows)))
    return found


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("starts", [*CU_SEQLENS, [*range(0, 4000, 31)], [*range(5, 200_000, 9)]], ids=len)
def test_the_sequence_of_a_tile_is_found_by_all_threads_at_once(starts: list[int], rows: int) -> None:
    """As by bisection; also of more sequences than there are threads, and where rows are before the first one."""
    count = len(starts) - 1
    gl = language(load=loading(starts), **vectors())
    space: dict[str, Any] = {"gl": gl, "tl": gl}
    take(space, packed_tiles, "first_tile")
    take(space, packed_search, "sequence_of_tile")
    first = [begin // rows + index for index, begin in enumerate(starts[:-1])]
    tiles = starts[-1] // rows + count
    for tile in range(0, tiles, max(tiles // 500, 1)):
        expected = max(bisect_right(first, tile) - 1, 0)
        for threads in (32, 128):
            assert space["sequence_of_tile"](tile, 0, count, rows, threads, threads // 32) == expected, tile
