"""The Hopper backward with features in numpy, with the kernel's own functions of where tiles, steps and masks are.

What it adds up in steps of 64 and of 128 rows, over packed sequences and used lengths, is every gradient, whatever lies
behind the rows in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np
import pytest
from device_functions import language, loading, take, vectors

from aotriton.tritonsrc.flash.lib import band, features, packed_search, packed_tiles, scheduler

KEYS, COLUMNS, FAR = 128, 4, 1 << 20
BANDS = ((-FAR, 0), (-FAR, FAR), (-70, 90), (-130, 0), (-FAR, 60), (0, 0))
LENGTHS = (0, 1, 5, 63, 64, 65, 100, 127, 128, 129, 200, 300, 511)
Side = list[tuple[int, int, int]]  # of each sequence: its first row, its rows, and those that are used


@dataclass
class Call:
    """Packed sequences; rows that are not used are no numbers. Row i of each sees keys from its lo + i to hi + i."""

    q_side: Side
    k_side: Side
    bands: list[tuple[int, int]]
    q: np.ndarray
    dout: np.ndarray
    k: np.ndarray
    v: np.ndarray


def drawn(seed: int) -> Call:
    random, numbers = Random(seed), np.random.default_rng(seed)
    count = random.randint(1, 6)
    lengths = [[*random.choices(LENGTHS, k=count), 70] for _ in range(2)]
    lengths[1] = [random.choice([q, k]) for q, k in zip(*lengths, strict=True)]
    sides: list[Side] = []
    tensors: list[np.ndarray] = []
    for of_side in lengths:
        begins = [0, *accumulate(of_side)]
        used = [random.choice([rows, max(rows - random.randint(0, 70), 0)]) for rows in of_side]
        sides.append(list(zip(begins, of_side, used, strict=False)))
        for _ in range(2):
            made = np.full((begins[-1], COLUMNS), np.nan)
            for begin, _, rows in sides[-1]:
                made[begin : begin + rows] = numbers.standard_normal((rows, COLUMNS))
            tensors.append(made)
    (lo, hi), own_last = random.choice(BANDS), random.choice([0, 1])
    moved = [own_last * (of_k[2] - of_q[2]) for of_q, of_k in zip(*sides, strict=True)]
    of_q, of_k = sides
    q, dout, k, v = tensors
    return Call(of_q, of_k, [(lo + by, hi + by) for by in moved], q, dout, k, v)


def truth(call: Call) -> tuple[np.ndarray, ...]:
    """dq, dk, dv, and logsumexp and delta, zero where they are not used."""
    found = *(np.zeros_like(one) for one in (call.q, call.k, call.v)), np.zeros(len(call.q)), np.zeros(len(call.q))
    dq, dk, dv, lse, delta = found
    for (q_begin, _, q_used), (k_begin, _, k_used), (lo, hi) in zip(call.q_side, call.k_side, call.bands, strict=True):
        own, other = slice(q_begin, q_begin + q_used), slice(k_begin, k_begin + k_used)
        q, dout, k, v = call.q[own], call.dout[own], call.k[other], call.v[other]
        apart = np.arange(k_used) - np.arange(q_used)[:, None]
        weights = np.where((apart >= lo) & (apart <= hi), np.exp(q @ k.T), 0.0)
        total = weights.sum(1)
        lse[own] = np.log(total, out=np.full(q_used, -np.inf), where=total > 0)
        weights /= np.where(total > 0, total, 1.0)[:, None]
        delta[own] = (weights @ v * dout).sum(1)
        scores = weights * (dout @ v.T - delta[own][:, None])
        dq[own], dk[other], dv[other] = scores @ k, scores.T @ q, weights.T @ dout
    return found


def functions(k_begins: list[int], programs: int) -> dict[str, Any]:
    """The device functions, of numbers and of numpy's vectors."""
    tl = language(load=loading(k_begins), num_programs=lambda _: programs, **vectors())
    space: dict[str, Any] = {"tl": tl, "gl": tl, "PACKED": features.PACKED.value}
    take(space, scheduler, "tile_of_heads_together")
    take(space, packed_tiles, "first_tile", "place_in_grid")
    take(space, packed_search, "sequence_of_tile")
    take(space, band, "visited", "interval")
    return space


def rows_of(tensor: np.ndarray, begin: int, row: int, count: int, used: int) -> np.ndarray:
    """What a step has in shared memory: zeros behind the tensor, and behind the rows in use, which are cleared."""
    found = np.zeros((count, COLUMNS))
    some = tensor[begin + row : begin + row + count]
    found[: len(some)] = some
    found[max(used - row, 0) :] = 0.0
    return found


def walk(call: Call, step: int, lse: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, ...]:
    """dq, dk and dv as the programs of one head add them up, ``step`` rows at a time."""
    count, rows = len(call.k_side), len(call.k)
    programs = rows // KEYS + count
    of = functions([begin for begin, _, _ in call.k_side], programs)
    sums = np.zeros((-(-len(call.q) // 64) + count - 1, 64, COLUMNS))
    dk, dv = np.zeros_like(call.k), np.zeros_like(call.v)
    for program in range(programs):
        of["tl"].program_id = lambda _, program=program: program
        tile, _, _ = of["place_in_grid"](features.PACKED.value, count, 0, rows, 1, 1, KEYS, 0)
        index = of["sequence_of_tile"](tile, 0, count, KEYS, 128, 4)
        tile -= of["first_tile"](call.k_side[index][0], index, KEYS)
        (k_begin, k_rows, k_used), (q_begin, _, q_used) = call.k_side[index], call.q_side[index]
        key, (lo, hi) = tile * KEYS, call.bands[index]
        first, clear, full, after = of["visited"](key, key + KEYS, k_used, q_used, -hi, -lo, step)
        after = after if 0 <= key < k_used else first
        clear = after if key + KEYS > k_used else clear
        steps = max(-(-(after - first) // step), 0)
        row = key if first <= key < after else first + tile % max(steps, 1) * step
        if not 0 <= key < k_rows:
            assert not steps
            continue
        keys = key + np.arange(KEYS)
        k, v = (rows_of(one, k_begin, key, KEYS, k_used) for one in (call.k, call.v))
        seen_first, seen = of["interval"](keys, q_used, -hi, -lo)
        last, seen = seen_first + seen - 1, np.where(keys < k_used, seen, 0)
        own_dk, own_dv = np.zeros((KEYS, COLUMNS)), np.zeros((KEYS, COLUMNS))
        for _ in range(steps):
            q, dout = (rows_of(one, q_begin, row, step, q_used) for one in (call.q, call.dout))
            scores = k @ q.T
            if row < clear or row >= full:
                behind = (last - row)[:, None] - np.arange(step)
                scores = np.where((behind >= 0) & (behind < seen[:, None]), scores, -np.inf)
            there = np.arange(row, row + step) < q_used
            of_rows = q_begin + np.minimum(np.arange(row, row + step), max(q_used - 1, 0))
            own_lse, own_delta = (
                np.where(there & np.isfinite(one[of_rows]), one[of_rows], 0.0) for one in (lse, delta)
            )
            weights = np.exp(scores - own_lse)
            gradients = weights * (v @ dout.T - own_delta)
            own_dv += weights @ dout
            own_dk += gradients @ q
            for piece, added in enumerate((gradients.T @ k).reshape(-1, 64, COLUMNS)):
                if row + 64 * piece < after:
                    sums[of["first_tile"](q_begin, index, 64) + row // 64 + piece] += added
            row = row + step if row + step < after else first
        written = slice(k_begin + key, k_begin + min(key + KEYS, k_rows))
        dk[written], dv[written] = own_dk[: k_rows - key], own_dv[: k_rows - key]
    dq = np.zeros_like(call.q)
    for index, (begin, q_rows, _) in enumerate(call.q_side):
        dq[begin : begin + q_rows] = sums[of["first_tile"](begin, index, 64) :].reshape(-1, COLUMNS)[:q_rows]
    return dq, dk, dv


@pytest.mark.parametrize("step", [64, 128])
@pytest.mark.parametrize("seed", range(40))
def test_steps_of_any_height_add_up_to_all_gradients(seed: int, step: int) -> None:
    call = drawn(seed)
    *exact, lse, delta = truth(call)
    for name, found, true in zip(("dq", "dk", "dv"), walk(call, step, lse, delta), exact, strict=True):
        np.testing.assert_allclose(found, true, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("step", [64, 128])
@pytest.mark.parametrize("seed", range(10))
def test_what_is_no_number_stays_in_its_sequence(seed: int, step: int) -> None:
    call = drawn(seed)
    *_, lse, delta = truth(call)
    clean = walk(call, step, lse, delta)
    for side, tensors in ((call.q_side, (call.q, call.dout)), (call.k_side, (call.k, call.v))):
        for begin, rows, _ in side[::2]:
            for one in tensors:
                one[begin : begin + rows] = np.nan
    for side, wanted, found in zip(
        (call.q_side, call.k_side, call.k_side), clean, walk(call, step, lse, delta), strict=True
    ):
        for begin, rows, _ in side[1::2]:
            np.testing.assert_array_equal(found[begin : begin + rows], wanted[begin : begin + rows])
