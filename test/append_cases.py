"""Calls that append keys and values to a cache: their operands, and what is to become of these, row by row."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from fp8_cases import NUMBERS, encode

Arrays = dict[str, np.ndarray]
WRITTEN = ("k_cache", "v_cache", "q")
# Of a rotated number, relative to the two that it is made of: one rounding, also towards zero, and those of fp32.
UNIT = {"fp16": 2.0**-10 + 2.0**-21, "bf16": 2.0**-7 + 2.0**-21, "fp32": 2.0**-21}


@dataclass(frozen=True)
class Append:
    """``new`` tokens of each sequence, which has ``used`` keys with them, and room for ``room``, in pages unless
    page_size is 0. Sequences of ``lost`` have pages that are none. ``beyond``: packed rows of no sequence.
    """

    new: tuple[int, ...]
    used: tuple[int, ...]
    packed: bool = False
    page_size: int = 0
    room: int = 64
    heads_k: int = 2
    group: int = 2  # 0: no q
    head_dim: int = 32
    head_dim_v: int = 32
    rotary_pairs: int = 0
    interleaved: bool = False
    positions: int = 100
    lost: tuple[int, ...] = ()
    beyond: int = 0
    dtype: str = "bf16"
    rows: bool = False  # heads lie within rows
    gap: int = 0  # elements between rows
    cache: str = ""  # its type, where it is of 8 bits
    scaled: bool = True  # whether such a cache has scales

    @property
    def seed(self) -> int:
        return random.Random(repr(self)).randrange(2**31)


CASES = (
    Append((1, 1, 1), (1, 64, 17), page_size=16, rotary_pairs=16),
    Append((1,) * 9, (5, 3, 64, 65, 0, 9, 30, 31, 32), page_size=32, rotary_pairs=16, lost=(2, 5), dtype="fp16"),
    Append((7, 7), (7, 40), page_size=16, rotary_pairs=8, head_dim=48, head_dim_v=24, rows=True),
    Append((7, 7), (3, 68), page_size=48, room=96, rotary_pairs=8, interleaved=True, head_dim=48, dtype="fp16"),
    Append((5, 0, 1, 0, 0, 12, 1), (64, 9, 1, 0, 0, 30, 70), packed=True, page_size=16, rotary_pairs=16, beyond=3),
    Append(
        (0, 3, 0),
        (0, 3, 0),
        packed=True,
        rotary_pairs=5,
        interleaved=True,
        head_dim=13,
        head_dim_v=7,
        beyond=2,
        dtype="fp32",
    ),
    Append((1, 30), (20, 50), packed=True, group=0, head_dim=72, gap=3, lost=(1,), page_size=16),
    Append((4, 4, 4), (4, 66, 2), room=65, group=4, heads_k=1, rotary_pairs=64, head_dim=160, dtype="fp16"),
    Append((3,) * 2, (41, 3), rotary_pairs=16, positions=40, group=3, heads_k=1, gap=5),
    Append((2,), (9,), group=0, head_dim=1, head_dim_v=130, page_size=3, room=9, dtype="fp32", rows=True),
    Append((6,), (6,), rotary_pairs=80, interleaved=True, head_dim=256, head_dim_v=256, page_size=256, room=256),
    Append((1, 1, 1), (1, 64, 17), page_size=16, rotary_pairs=16, cache="fp8e4nv"),
    Append((5, 0, 12), (64, 9, 30), packed=True, beyond=3, rows=True, head_dim=48, dtype="fp16", cache="fp8e4nv"),
    Append((3,) * 2, (41, 3), rotary_pairs=16, group=0, dtype="fp32", cache="fp8e4nv", scaled=False),
)


def operands(case: Append) -> Arrays:
    """The operands of a call, as float64 and int32. Values and elements that are not rotated have ones that are no
    numbers among them.
    """
    draw = np.random.default_rng(case.seed)
    count = len(case.new)
    assert case.packed or len(set(case.new)) == 1
    rows = (1, sum(case.new) + case.beyond) if case.packed else (count, case.new[0])

    def numbers(*shape: int, wild_from: int = 0) -> np.ndarray:
        found = draw.standard_normal(shape)
        wild = draw.random(shape) < 0.05
        wild[..., :wild_from] = False
        found[wild] = draw.choice([np.nan, np.inf, -np.inf], wild.sum())
        return found

    made = {"k": numbers(rows[0], case.heads_k, rows[1], case.head_dim, wild_from=2 * case.rotary_pairs)}
    made["v"] = numbers(rows[0], case.heads_k, rows[1], case.head_dim_v)
    pages, page = count, case.room
    if case.page_size:
        assert case.room % case.page_size == 0
        of_one = case.room // case.page_size
        pages, page = count * of_one + 2, case.page_size
        made["block_table"] = draw.permutation(pages)[: count * of_one].reshape(count, of_one).astype(np.int32)
        for z in case.lost:
            made["block_table"][z] = (-1, pages)[z % 2]
    made["k_cache"] = numbers(pages, case.heads_k, page, case.head_dim)
    made["v_cache"] = numbers(pages, case.heads_k, page, case.head_dim_v)
    if case.cache:
        made |= {name: NUMBERS[case.cache][encode(case.cache, made[name])] for name in ("k_cache", "v_cache")}
        for name in ("k_descale", "v_descale") if case.scaled else ():
            made[name] = draw.uniform(0.001, 3, (count, case.heads_k)).astype(np.float32).astype(np.float64)
    made["seqused_k"] = np.array(case.used, np.int32)
    if case.rotary_pairs:
        angles = draw.uniform(-np.pi, np.pi, (case.positions, case.rotary_pairs))
        made |= {"rotary_cos": np.cos(angles), "rotary_sin": np.sin(angles)}
        made |= {name: made[name].astype(np.float32).astype(np.float64) for name in ("rotary_cos", "rotary_sin")}
        if case.group:
            made["q"] = numbers(rows[0], case.heads_k * case.group, rows[1], case.head_dim, wild_from=case.head_dim)
    if case.packed:
        made["cu_seqlens_k"] = np.concatenate([[0], np.cumsum(case.new)]).astype(np.int32)
    return made


def appended(case: Append, given: Arrays) -> tuple[Arrays, Arrays]:
    """What is to be in each of WRITTEN that is given, and how far from it a number may be; 0: the same bits."""
    after = {name: given[name].copy() for name in WRITTEN if name in given}
    slack = {name: np.zeros(array.shape) for name, array in after.items()}
    for z, (count, used) in enumerate(zip(case.new, case.used, strict=True)):
        for i in range(count):
            position = used - count + i
            batch, row = (0, sum(case.new[:z]) + i) if case.packed else (z, i)
            page, place = (z, position)
            if case.page_size:
                page, place = (-1, position % case.page_size)
                if 0 <= position < case.room and z not in case.lost:
                    page = int(given["block_table"][z, position // case.page_size])
            if not 0 <= position < case.room or page < 0 or (case.rotary_pairs and position >= case.positions):
                continue
            value = given["v"][batch, :, row], np.zeros((case.heads_k, case.head_dim_v))
            key = _rotated(case, given, given["k"][batch, :, row], position)
            for name, kept in (("k_cache", key), ("v_cache", value)):
                cached = _narrow(case, given, name, kept, z) if case.cache else kept
                after[name][page, :, place], slack[name][page, :, place] = cached
            if "q" in after:
                query = _rotated(case, given, given["q"][batch, :, row], position)
                after["q"][batch, :, row], slack["q"][batch, :, row] = query
    return after, slack


def _narrow(
    case: Append, given: Arrays, name: str, kept: tuple[np.ndarray, np.ndarray], sequence: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows [heads, width] as a cache of 8 bits has them, and how far a number may be from that: one rounding, also
    towards zero.
    """
    scale = given.get(f"{name[0]}_descale", np.ones((len(case.new), case.heads_k)))[sequence, :, None]
    most = np.nanmax(NUMBERS[case.cache])
    x = np.clip(kept[0] / scale, -most, most)
    return x, kept[1] / scale + abs(x) * 2.0**-3 + 2.0**-9


def _rotated(case: Append, given: Arrays, x: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of x [heads, head_dim], rotated by the angles of a position, and how far a number may be from that."""
    result, slack = x.copy(), np.zeros(x.shape)
    for pair in range(case.rotary_pairs):
        one, other = (2 * pair, 2 * pair + 1) if case.interleaved else (pair, pair + case.rotary_pairs)
        cos, sin = given["rotary_cos"][position, pair], given["rotary_sin"][position, pair]
        result[:, one] = x[:, one] * cos - x[:, other] * sin
        result[:, other] = x[:, other] * cos + x[:, one] * sin
        slack[:, [one, other]] = UNIT[case.dtype] * (abs(x[:, one]) + abs(x[:, other]))[:, None]
    return result, slack


def assert_appended(case: Append, given: Arrays, results: Arrays) -> None:
    """Each result has what is to be in it, and nothing else has changed."""
    after, slack = appended(case, given)
    assert results.keys() == after.keys()
    for name, result in results.items():
        with np.errstate(invalid="ignore"):
            near = abs(result - after[name]) <= slack[name]
        same = (result == after[name]) | (np.isnan(result) & np.isnan(after[name]))
        wrong = np.argwhere(~(near | same))
        assert not len(wrong), f"{name}{wrong[0].tolist()} of {len(wrong)} is {result[tuple(wrong[0])]}"
