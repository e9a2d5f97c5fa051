"""What programs of the Hopper backward with features do for each other, by the kernels' own functions and the host's
own numbers: all sums are cleared before they are needed, all dq is stored once it is complete, and nobody waits for a
program that begins later.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from device_functions import language, loading, take

from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.flash import features as names
from aotriton.rules.flash.backward import (
    AHEAD,
    ATTN_BWD_HOPPER_FEATURES,
    ATTN_BWD_HOPPER_FEATURES_FINISH,
    BEHIND,
    FEATURES_TOGETHER,
)
from aotriton.tritonsrc.flash.lib import band, features, packed_tiles, scheduler, walk_order

ROWS, FAR = 128, 1 << 20


@dataclass
class Call:
    """Self-attention; with ``starts``, of packed sequences, which then are one batch."""

    batch: int
    heads_k: int
    group: int
    rows: int
    head_dim: int
    lo: int
    hi: int
    multiprocessors: int
    starts: list[int]

    @property
    def sequences(self) -> int:
        return len(self.starts) - 1 if self.starts else 1

    @property
    def longest(self) -> int:
        return (
            max(end - begin for begin, end in zip(self.starts, self.starts[1:], strict=False))
            if self.starts
            else self.rows
        )

    def value(self, *expressions: Any, **tunables: int) -> list[int]:
        sizes = {"batch": self.batch, "heads_q": self.heads_k * self.group, "heads_k": self.heads_k}
        sizes |= {"seqlen_q": self.rows, "seqlen_k": self.rows, "head_dim": self.head_dim, "head_dim_v": self.head_dim}
        scalars = {"lo": self.lo, "hi": self.hi, "longest_q": self.longest, "longest_k": self.longest, "level": 4}
        scalars |= {"packed_sequences": self.sequences, "self_attention": 1, "skip_gradients": 0}
        scalars["features"] = names.PACKED.bit if self.starts else 0
        given = frozenset({"cu_seqlens_q", "cu_seqlens_k"} if self.starts else ())
        environment = Environment(sizes, scalars, tunables, given, self.multiprocessors)
        return [evaluate(one, environment) for one in expressions]


def drawn(seed: int) -> Call:
    choose = Random(seed)
    batch, heads_k = choose.choice([(1, 12), (2, 16), (8, 3), (1, 40)])
    rows, starts = choose.choice([700, 2048, 2500, 4000]), []
    if choose.random() < 0.5:
        lengths = [choose.choice([0, 1, 63, 128, 129, 500, 2000]) for _ in range(choose.randint(1, 20))]
        starts = [0, *accumulate([*lengths, 300])]
        batch, rows = 1, starts[-1] + choose.choice([0, 77])
    lo, hi = choose.choice([(-FAR, 0), (-1023, 0), (-127, 0), (-300, 260), (0, 600), (-FAR, FAR), (-700, FAR)])
    processors = choose.choice([2, 20, 132])
    call = Call(batch, heads_k, choose.choice([1, 3, 8]), rows, choose.choice([64, 128]), lo, hi, processors, starts)
    # As the checks have it. What is longer than the caller says sees no more.
    longest = max(call.longest // choose.choice([1, 1, 2]), 1)
    return replace(call, lo=max(lo, -longest), hi=min(hi, longest))


def functions(call: Call, programs: int) -> dict[str, Any]:
    tl = language(load=loading(call.starts), num_programs=lambda _: programs)
    space: dict[str, Any] = {"tl": tl, "PACKED": features.PACKED.value}
    take(space, scheduler, "tile_of_heads_together")
    take(space, packed_tiles, "first_tile", "place_in_grid")
    take(space, walk_order, "walked_by", "who_walks", "sequence_walked")
    take(space, band, "visited")
    return space


@pytest.mark.parametrize("seed", range(60))
def test_programs_wait_for_earlier_ones_alone_and_do_everything_once(seed: int) -> None:
    call = drawn(seed)
    grid = ATTN_BWD_HOPPER_FEATURES.grid[0]
    programs, together, ahead, behind = call.value(grid, FEATURES_TOGETHER, AHEAD, BEHIND)
    of, packed = functions(call, programs), bool(call.starts)
    tiles = programs // (call.batch * call.heads_k)
    assert max(ahead, behind) <= programs

    def place(program: int) -> tuple[int, int, int, int]:
        """Head, and its tile, and the first tile and the rows of the tile's sequence."""
        tile, head = of["walked_by"](program, programs, tiles, together)
        if not packed:
            return head, tile, 0, call.rows
        sequence = of["sequence_walked"](tile, 0, call.sequences, ROWS)
        begin, end = call.starts[sequence : sequence + 2]
        return head, tile, of["first_tile"](begin, sequence, ROWS), end - begin

    def sums_of(program: int) -> tuple[int, int]:
        """The tile of 64 rows of sums where its sequence begins, in all of its head, and how many its head has."""
        if not packed:
            return 0, -(-call.rows // 64)
        tile, _ = of["walked_by"](program, programs, tiles, together)
        sequence = of["sequence_walked"](tile, 0, call.sequences, ROWS)
        return of["first_tile"](call.starts[sequence], sequence, 64), -(-call.rows // 64) + call.sequences - 1

    stored: Counter[tuple[int, int]] = Counter()
    for program in range(programs):
        of["tl"].program_id = lambda _, program=program: program
        tile, head_k, batch = of["place_in_grid"](
            4 * packed, call.sequences, call.longest, call.rows, call.heads_k, together, ROWS, 0
        )
        head, own, begin, rows = place(program)
        assert (own, head) == (tile, (0 if packed else batch) * call.heads_k + head_k)
        assert of["who_walks"](own, head, programs, tiles, together) == program

        # Whom it needs to have cleared: what attn_bwd_hopper_features_prepare has not cleared, an earlier one did.
        key = (own - begin) * ROWS
        first, _, _, after = of["visited"](key, key + ROWS, rows, rows, -call.hi, -call.lo, 64)
        if 0 <= key < rows and first < after and ahead < programs:
            at, _ = sums_of(program)
            for pair in range((at + first // 64) // 2, (at + (after - 1) // 64) // 2 + 1):
                needed = of["who_walks"](pair, head, programs, tiles, together)
                assert pair < tiles
                assert needed < ahead or needed - ahead < program

        # Whose rows it stores, and who has added to them.
        if program >= behind:
            head, theirs, begin, rows = place(program - behind)
            row = (theirs - begin) * ROWS
            if 0 <= row < rows:
                for of_keys in range(
                    max(row + call.lo, 0) // ROWS, min(row + ROWS - 1 + call.hi, rows - 1) // ROWS + 1
                ):
                    assert of["who_walks"](begin + of_keys, head, programs, tiles, together) < program
                stored[head, theirs] += 1

    pairs = -(-sums_of(0)[1] // 2)
    assert pairs <= tiles  # as many programs as have something to clear
    if behind < programs:
        finish = ATTN_BWD_HOPPER_FEATURES_FINISH.grid[0]
        assert call.value(finish, BLOCK_M=32) == [behind * call.group * 4]
        for program in range(programs - behind, programs):
            head, theirs, begin, rows = place(program)
            stored[head, theirs] += 0 <= (theirs - begin) * ROWS < rows
        assert set(stored.values()) <= {0, 1}
        heads = call.batch * call.heads_k
        lengths = [end - begin for begin, end in zip(call.starts, call.starts[1:], strict=False)] or [call.rows]
        assert sum(stored.values()) == heads * sum(-(-length // ROWS) for length in lengths)
