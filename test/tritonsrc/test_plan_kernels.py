"""The plan of the planned forward, and what combines its parts, run by Triton's interpreter."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from aotriton.rules.expression import Environment
from aotriton.rules.flash import planned
from aotriton.rules.flash.planned import PLANNED, STEP
from aotriton.rules.operators import derived_sizes
from aotriton.tritonsrc.flash.lib.features import OWN_LAST
from aotriton.tritonsrc.flash.lib.features import PACKED as PACKED_SEQUENCES

FAR = 1 << 20


@dataclass(frozen=True)
class Batch:
    """Sequences with so many queries and keys, causal at the last key or not."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int
    heads_k: int
    causal: bool = True
    multiprocessors: int = 132


def drawn(number: int) -> Batch:
    draw = random.Random(number)
    queries = [draw.choice((0, 1, 1, draw.randint(1, 700))) for _ in range(draw.randint(1, 40))]
    keys = [max(rows, int(draw.expovariate(1 / 3000))) for rows in queries]
    heads_k = draw.choice((1, 2, 8))
    group = draw.choice((1, 3, 4, 5, 7, 8, 16, 20))
    return Batch(tuple([*queries, 1]), tuple([*keys, 1]), heads_k * group, heads_k, draw.random() < 0.7, 40)


BATCHES = [
    Batch((128,), (32768,), 32, 8),
    Batch((512, *[1] * 31), (13401, 16384, *range(500, 6300, 200), 90), 32, 8),
    Batch((64,) * 8, (4096,) * 8, 28, 4),
    Batch((300, 300), (5000, 5000), 16, 4),
    Batch((2048,), (2048,), 32, 8),
    Batch((0, 5, 0), (0, 7, 10), 4, 4),
    Batch((3, 700), (9000, 40), 71, 1, causal=False),
    *(drawn(number) for number in range(12)),
]


def plan(launch: Any, batch: Batch) -> tuple[np.ndarray, np.ndarray, int]:
    """The items, the split tiles, and how many heads are packed."""
    count = len(batch.queries)
    starts_q, starts_k = (np.cumsum([0, *of]) for of in (batch.queries, batch.keys))
    sizes = {"batch": 1, "heads_q": batch.heads, "heads_k": batch.heads_k, "head_dim": 8, "head_dim_v": 8}
    sizes |= {"seqlen_q": int(starts_q[-1]), "seqlen_k": int(starts_k[-1])}
    scalars = {"features": PACKED_SEQUENCES.value | OWN_LAST.value, "level": 4, "lo": -FAR}
    scalars |= {"hi": 0 if batch.causal else FAR, "packed_sequences": count}
    environment = Environment(sizes, scalars, multiprocessors=batch.multiprocessors)
    derived = derived_sizes(PLANNED, environment)
    room = {"Items": (derived["plan_items"], 8), "Splits": (derived["plan_tiles"], 8), "Counts": (planned.COUNTS,)}
    inputs = {"CuSeqlensQ": starts_q, "CuSeqlensK": starts_k}
    inputs |= {
        "Q": np.zeros((1, batch.heads, sizes["seqlen_q"], 8)),
        "K": np.zeros((1, batch.heads_k, starts_k[-1], 8)),
    }
    tunables = {"T": "bf16", "AT_ONCE": 16, "EARLY": 0, "ADDRESSING": "general"}
    values = {**tunables, **scalars, "multiprocessors": batch.multiprocessors}
    made = launch("attn_fwd_plan", inputs, room, values)
    items, split, packed, drawn = (int(one) for one in made["Counts"])
    assert not drawn
    return made["Items"][:items].astype(int), made["Splits"][:split].astype(int), packed


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_a_plan_has_each_key_of_each_tile_once(launch: Any, batch: Batch) -> None:
    """Whole tiles have no place for parts; those of a split tile follow each other, and have places of their own, which
    the list of split tiles names in their order.
    """
    items, split, packed = plan(launch, batch)
    group = batch.heads // batch.heads_k
    assert packed == (group if group <= 16 else group & -group)
    positions = 64 // packed * 2
    found = defaultdict(list)
    for sequence, head, position, first, behind, place, *_ in items.tolist():
        found[sequence, head, position].append((first, behind, place))
    assert set(found) == {
        (sequence, head, position)
        for sequence, rows in enumerate(batch.queries)
        for head in range(batch.heads // packed)
        for position in range(0, rows, positions)
    }
    places = []
    listed = {tuple(one[1:4]): one for one in split.tolist()}
    for (sequence, head, position), parts in found.items():
        rows, keys = batch.queries[sequence], batch.keys[sequence]
        last = min(position + positions, rows) - rows + keys if batch.causal else keys
        ends = sorted(parts)
        assert ends[0][0] <= 0
        assert ends[-1][1] >= last
        assert all(one[1] == other[0] and one[1] % STEP == 0 for one, other in pairwise(ends))
        own = [place for *_, place in ends]
        if len(own) == 1:
            assert own == [-1]
            continue
        places += own
        count, *_, place, apart = listed.pop((sequence, head, position))[:6]
        assert own == [place + i * apart for i in range(count)]
    assert not listed
    assert len(set(places)) == len(places)
    assert all(0 <= place < 4 * batch.multiprocessors for place in places)


@pytest.mark.parametrize("batch", BATCHES[:5], ids=str)
def test_programs_have_about_the_same_to_do(launch: Any, batch: Batch) -> None:
    """In steps, of what programs have in the mean a third more at most, when they take items in turns."""
    items, _, packed = plan(launch, batch)
    positions, programs = 64 // packed * 2, batch.multiprocessors
    steps = np.zeros(programs)
    for number, (sequence, _, position, first, behind, *_) in enumerate(items.tolist()):
        rows, keys = batch.queries[sequence], batch.keys[sequence]
        after = min(min(position + positions, rows) - rows + keys, behind)
        turn, place = divmod(number, programs)
        steps[programs - 1 - place if turn % 2 else place] += max(-(-(after - first) // STEP), 1)
    assert steps.max() < 4 / 3 * steps.mean() + 1


@pytest.mark.parametrize("packed", [1, 4, 7])
def test_parts_combine_to_the_whole(launch: Any, packed: int) -> None:
    """Rows of split tiles are the sum of their parts, by weight; others are another kernel's."""
    draw = np.random.default_rng(packed)
    each = 64 // packed
    rows, heads, multiprocessors = 2 * each + 3, 2 * packed, 3
    parts = draw.standard_normal((4 * multiprocessors, 128, 24))
    lse = draw.standard_normal((4 * multiprocessors, 128)).astype(np.float32)
    lse[5, ::3] = -np.inf
    parts[5, ::3] = np.nan
    split = np.zeros((2 * multiprocessors, 8), int)
    split[0, :6] = 3, 0, 1, 0, 1, 2  # places 1, 3 and 5, of the first tile of the second packed head
    split[1, :6] = 2, 0, 0, 2 * each, 0, 7  # places 0 and 7, of a tile with three positions
    inputs = {"Splits": split, "Counts": np.array([9, 2, packed, 0]), "Parts": parts, "PartsL": lse}
    outputs = {"Out": (1, heads, rows, 24), "L": (1, heads, rows)}
    values = {"T": "bf16", "BLOCK_DMODEL": 32, "ROWS": 16, "EARLY": 0, "ADDRESSING": "descriptor", "features": 0}
    made = launch("attn_fwd_planned_combine", inputs, outputs, values | {"multiprocessors": multiprocessors})
    seen = np.zeros((heads, rows), bool)
    for count, _, head, position, place, apart, *_ in split[:2].tolist():
        for row in range(128):
            at = position + row // 64 * each + row % 64 // packed
            if row % 64 >= each * packed or at >= rows:
                continue
            own = [place + i * apart for i in range(count)]
            weights = np.exp2(lse[own, row])
            value = np.nan_to_num(parts[own, row]).T @ weights / weights.sum()
            found = head * packed + row % 64 % packed, at
            seen[found] = True
            assert np.allclose(made["Out"][0][found], value, atol=2e-2, rtol=1e-2)
            assert np.isclose(made["L"][0][found], np.log(weights.sum()), atol=1e-4)
    poison = made["L"][0][~seen]
    assert seen.sum() == packed * (2 * each + 3)
    assert np.unique(poison).size == 1
