"""Claims about what a kernel computes: the terms of a call are what counting its tiles and steps one by one gives."""

from __future__ import annotations

from dataclasses import fields, replace
from math import ceil, prod
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aotriton.rules.arch import arch_spec
from aotriton.rules.expression import Environment, constant, evaluate, multiprocessors, scalar, size, tunable
from aotriton.rules.family import IN_TREE, family
from aotriton.rules.flash.backward import (
    ATTN_BWD_HOPPER_FEATURES,
    ATTN_BWD_HOPPER_PARTS_FINISH,
    ATTN_BWD_HOPPER_PARTS_PREPARE,
    ATTN_BWD_HOPPER_SPLIT_PREPARE,
)
from aotriton.rules.flash.common import EVENED_K, EXPECTED_K, EXPECTED_Q, SEEN_K, expected_band
from aotriton.rules.flash.features import OWN_LAST
from aotriton.rules.flash.planned import ATTN_FWD_HOPPER_PLANNED, ATTN_FWD_PLANNED_COMBINE
from aotriton.rules.flash.split import DECODE, splits_keys
from aotriton.rules.gemm.operator import GEMM_HOPPER_SPLIT, HOPPER_SPLIT
from aotriton.rules.kernel import KernelDescription
from aotriton.rules.operators import derived_sizes
from aotriton.rules.work import (
    BAND,
    CACHED,
    FEWEST_STEPS,
    FORMS,
    GROWING,
    MOST_SPLITS,
    SHRINKING,
    SPLIT,
    TERMS,
    TRAFFIC_UNIT,
    WHOLE,
    Work,
    terms,
)


def work(*, traffic: tuple[int, int] = (0, 0), band: tuple[int, int] = (0, 0), **numbers: int) -> Work:
    made: dict[str, Any] = {name: constant(number) for name, number in numbers.items()}
    return Work(
        **made, traffic=(constant(traffic[0]), constant(traffic[1])), band=(constant(band[0]), constant(band[1]))
    )


def terms_of(multiprocessors: int, occupancy: int = 1, **numbers: Any) -> dict[str, float]:
    found = terms(work(**numbers), Environment(multiprocessors=multiprocessors), occupancy)
    return dict(zip(TERMS, found, strict=True))


def several(found: dict[str, float], *names: str) -> tuple[float, ...]:
    return tuple(found[name] for name in names)


ROUNDS = ("rounds", "steps of the rounds")
PACKS = ("packed rounds", "steps of the packed rounds")
SPREAD = "steps of all programs, by multiprocessor"
PROGRAMS = "programs, by multiprocessor"
LONGEST = "steps of the longest program"
WALKS = "walks after their first of all programs, by multiprocessor"

numbers = st.integers(1, 300)
sides = st.integers(1, 64)
powers = st.sampled_from((1, 2, 4, 8, 16, 32, 64, 128))


@st.composite
def calls(draw: st.DrawFn, tiles: st.SearchStrategy[int] = sides) -> dict[str, int]:
    """Sizes and tiles of a work in few enough pieces to be counted."""
    return {
        "rows": draw(numbers),
        "row_tile": draw(tiles),
        "outer": draw(st.integers(1, 9)),
        "columns": draw(st.integers(1, 40)),
        "column_tile": draw(st.integers(8, 32)),
        "depth": draw(numbers),
        "depth_tile": draw(tiles),
        "repeat": draw(st.integers(1, 3)),
    }


def programs_of(form: int, call: dict[str, int]) -> list[int]:
    """The steps of each program, one by one, all repeats together: by what FORMS says of the i-th tile of rows."""
    found = []
    for _ in range(call["outer"]):
        for _ in range(0, call["columns"], call["column_tile"]):
            for first in range(0, call["rows"], call["row_tile"]):
                begin, end = 0, call["depth"]
                if form == GROWING:
                    end = min(first + call["row_tile"], end)
                if form == SHRINKING:
                    begin = first
                found.append(call["repeat"] * len(range(begin, end, call["depth_tile"])))
    return found


def test_a_whole_form_by_hand() -> None:
    """4 x 2 tiles of 3 pieces, each walked twice in 3 steps, on 5 multiprocessors that hold 2 programs: every term."""
    found = terms_of(
        5, 2, rows=100, row_tile=32, outer=3, columns=70, column_tile=64, depth=130, depth_tile=64, repeat=2,
        traffic=(1000, 3000), slow=1,
    )  # fmt: skip
    assert found == {
        "one": 1,
        "rounds": 5,
        "steps of the rounds": 30,
        "packed rounds": 3,
        "steps of the packed rounds": 18,
        "steps of all programs, by multiprocessor": 28.8,
        "programs, by multiprocessor": 4.8,
        "steps of the longest program": 6,
        "traffic, of the first kind": pytest.approx(1e-4),
        "traffic, of the second kind": pytest.approx(3e-4),
        "steps of the rounds, where access is slow": 30,
        "steps of all programs, by multiprocessor, where access is slow": 28.8,
        "walks after a program's first": 1,
        "walks after their first of all programs, by multiprocessor": 4.8,
    }


def test_what_is_not_given_is_one_or_nothing() -> None:
    """Rows alone are a program for each tile of one step, with no traffic, nothing slow and nothing walked again."""
    found = terms_of(4, rows=100, row_tile=10)
    assert several(found, "rounds", "steps of the rounds", LONGEST, PROGRAMS, SPREAD) == (3, 3, 1, 2.5, 2.5)
    others = {"traffic", "walks", "steps of the rounds, where", "packed", "steps of the packed"}
    assert [value for name, value in found.items() if any(name.startswith(one) for one in others)] == [0] * 7


def test_occupancy_counts_packed_rounds_alone() -> None:
    """An image of which one program fits has no packed rounds; one of which three fit has a third of the rounds, and
    all else is the same.
    """
    given = {"rows": 130, "row_tile": 10, "depth": 40, "depth_tile": 8}
    one, three = terms_of(2, 1, **given), terms_of(2, 3, **given)
    assert several(one, *ROUNDS, *PACKS) == (7, 35, 0, 0)
    assert several(three, *ROUNDS, *PACKS) == (7, 35, 3, 15)
    assert {name for name in TERMS if one[name] != three[name]} == set(PACKS)


def test_the_programs_that_the_grid_counts_on_make_a_round() -> None:
    """With three programs to a multiprocessor a round is three times as wide, and work by multiprocessor the same."""
    one, three = (terms_of(2, rows=130, row_tile=10, depth=40, depth_tile=8, programs=n) for n in (1, 3))
    assert several(three, *ROUNDS) == (3, 15)
    assert several(three, SPREAD, PROGRAMS) == several(one, SPREAD, PROGRAMS) == (32.5, 6.5)


def test_slow_access_counts_steps_again() -> None:
    """Where access is slow, the steps of rounds and of all programs are there twice; elsewhere once."""
    slow = ("steps of the rounds, where access is slow", f"{SPREAD}, where access is slow")
    given = {"rows": 130, "row_tile": 10, "depth": 40, "depth_tile": 8}
    assert several(terms_of(2, **given, slow=1), *slow) == (35, 32.5)
    assert several(terms_of(2, **given, slow=0), *slow) == (0, 0)


def test_a_growing_form_by_hand() -> None:
    """Tiles of 64 of 256 rows over a depth of 200 walk 2, 4, 6 and 7 steps of 32, in two pieces on 3 multiprocessors;
    a round takes at least as long as the longest of them.
    """
    given = {"rows": 256, "row_tile": 64, "depth": 200, "depth_tile": 32, "outer": 2, "form": GROWING}
    found = terms_of(3, 2, **given)
    assert several(found, *ROUNDS, LONGEST) == (3, pytest.approx(38 / 3), 7)
    assert several(found, *PACKS) == (2, 7)  # 38 / 6 is less than the longest
    assert found[SPREAD] == pytest.approx(38 / 3)
    assert terms_of(3, **given | {"repeat": 2})["steps of the rounds"] == pytest.approx(76 / 3)
    assert terms_of(3, **given | {"rows": 64})[LONGEST] == 2  # no tile reaches the end
    # Tiles of 32 in steps of 128: four walk 1 step, four 2 and so on, which is 40. Each adds half of one that it began.
    fine = terms_of(1, rows=512, row_tile=32, depth=512, depth_tile=128, form=GROWING)
    assert fine[SPREAD] == 34 + 16 / 2


def test_a_shrinking_form_by_hand() -> None:
    """Tiles of 64 of 256 rows over a depth of 160 begin at 0, 64 and 128, and the last one beyond the end: 5, 3 and 1
    steps, of which 96, 32 and half a step for each are worked out.
    """
    given = {"rows": 256, "row_tile": 64, "depth": 160, "depth_tile": 32, "form": SHRINKING}
    found = terms_of(2, 2, **given)
    assert found[SPREAD] == (160 + 96 + 32) / 32 / 2 + 3 * 0.5 / 2
    assert found[LONGEST] == 5
    mean = (160 + 96 + 32 + 3 * 16) / 32 / 4  # of the steps of a program
    assert several(found, *ROUNDS) == (2, 2 * mean + 5 - mean)
    assert several(found, *PACKS) == (1, mean + 5 - mean)
    assert found[PROGRAMS] == 2  # what computes nothing is launched, too


def test_a_split_form_by_hand() -> None:
    """Of 10 tiles on 4 multiprocessors the last 2 are split in 2 parts; none is where a round is full or loops are
    short, and none in more than MOST_SPLITS.
    """
    given = {"rows": 10, "row_tile": 1, "depth": 40, "depth_tile": 1, "form": SPLIT}
    assert several(terms_of(4, 2, **given), *ROUNDS, *PACKS) == (3, 2 * 40 + 20, 2 * 2 / 4, 2 / 4)
    assert several(terms_of(5, 2, **given), *ROUNDS, *PACKS) == (2, 80, 0, 0)
    assert several(terms_of(4, 2, **given | {"depth": 7}), *ROUNDS, *PACKS) == (3, 21, 0, 0)
    assert several(terms_of(3, 2, **given | {"rows": 5}), *ROUNDS, *PACKS) == (2, 80, 0, 0)  # 2 left for 3
    alone = terms_of(100, **given | {"rows": 1, "depth": 1000})
    assert several(alone, *ROUNDS, *PACKS) == (1, ceil(1000 / MOST_SPLITS), MOST_SPLITS / 100, 1 / 100)
    short = terms_of(100, **given | {"rows": 1, "depth": 3 * FEWEST_STEPS + 1})
    assert several(short, *ROUNDS, *PACKS) == (1, 5, 3 / 100, 1 / 100)


@given(calls(), st.integers(1, 20), st.integers(1, 4), st.integers(1, 4))
def test_a_whole_form_is_counted_exactly(call: dict[str, int], gpu: int, programs: int, occupancy: int) -> None:
    """Rounds that are filled one by one, and the steps of their longest programs, are what the terms say, and so are
    all programs and all their steps.
    """
    found = terms_of(gpu, occupancy, **call, programs=programs, form=WHOLE)
    counted = programs_of(WHOLE, call)

    def rounds(room: int) -> tuple[float, float]:
        filled = [counted[begin : begin + room] for begin in range(0, len(counted), room)]
        return len(filled), sum(map(max, filled))

    assert several(found, *ROUNDS) == rounds(gpu * programs)
    assert several(found, *PACKS) == (rounds(gpu * occupancy) if occupancy > 1 else (0, 0))
    assert found[LONGEST] == max(counted)
    assert found[SPREAD] == pytest.approx(sum(counted) / gpu, rel=1e-12)
    assert found[PROGRAMS] == pytest.approx(len(counted) / gpu, rel=1e-12)


@given(calls(), st.integers(1, 20))
def test_a_split_form_is_counted_exactly(call: dict[str, int], gpu: int) -> None:
    """Full rounds are whole; what is left takes one more, as long as the longest part of a tile, in as many parts as
    there are programs for.
    """
    counted = programs_of(WHOLE, call)
    left = len(counted) % gpu
    parts = next(n for n in range(MOST_SPLITS, 0, -1) if n == 1 or (n * left <= gpu and n * FEWEST_STEPS <= counted[0]))
    found = terms_of(gpu, 3, **call, form=SPLIT)
    full = len(counted) // gpu * counted[0]
    assert found["steps of the rounds"] == full + (-(-counted[0] // parts) if left else 0)
    split = (left * parts / gpu, left / gpu) if left and parts > 1 else (0, 0)
    assert several(found, *PACKS) == pytest.approx(split, rel=1e-12)
    assert several(found, SPREAD, LONGEST) == several(terms_of(gpu, 3, **call), SPREAD, LONGEST)


@given(calls(powers), st.integers(1, 20), st.sampled_from((GROWING, SHRINKING)))
def test_a_triangle_is_counted_within_half_a_step(call: dict[str, int], gpu: int, form: int) -> None:
    """Steps below or above the diagonal are off by half a step for each walk of a tile at most, with tiles of a power
    of two; a growing form is exact where steps end with the tiles. The longest program is.
    """
    found = terms_of(gpu, **call, form=form)
    counted = programs_of(form, call)
    assert found[LONGEST] == max(counted)
    assert found[PROGRAMS] == pytest.approx(len(counted) / gpu, rel=1e-12)
    exact = form == GROWING and call["row_tile"] >= call["depth_tile"]
    bound = 0 if exact else call["repeat"] * len(counted) / 2
    assert abs(found[SPREAD] * gpu - sum(counted)) <= bound + 1e-9 * sum(counted)
    tail = found[LONGEST] - found[SPREAD] / found[PROGRAMS] if form == SHRINKING else 0
    assert found["steps of the rounds"] == pytest.approx(max(found[LONGEST], found[SPREAD] + tail))


@given(calls(powers), st.integers(1, 20))
def test_a_shrinking_form_takes_as_long_as_programs_in_order(call: dict[str, int], gpu: int) -> None:
    """Programs of one piece after the other, each where one ends first: within the longest of them, and no less than
    the longest.
    """
    ends = [0.0] * gpu
    counted = programs_of(SHRINKING, call)
    for steps in counted:
        ends[ends.index(min(ends))] += steps
    found = terms_of(gpu, **call, form=SHRINKING)
    walk = found["steps of the rounds"]
    assert walk >= found[LONGEST]
    assert abs(walk - max(ends)) <= found[LONGEST] + call["repeat"] * -(-len(counted) // gpu)


ONE_ROW = {"rows": 1, "row_tile": 1, "outer": 1, "columns": 1, "column_tile": 8, "depth": 97, "repeat": 1}


@given(calls(powers), st.integers(1, 20), st.integers(-300, 300), st.integers(0, 400))
@example(ONE_ROW | {"depth_tile": 8}, 1, 86, 10)  # off by 1.125
@example(ONE_ROW | {"depth_tile": 32}, 1, 95, 10)  # by 1.453125
def test_a_band_is_counted_within_a_step_and_a_half(call: dict[str, int], gpu: int, begin: int, width: int) -> None:
    """Steps that tiles of a band visit are off by one for each walk at most, with tiles of a power of two: by a half at
    either end, where the mean is counted of tiles that begin at different places of a step. Where the depth ends within
    a step, nothing is counted for the rest of that step, so a tile that ends with the depth may be off by another half.
    No tile visits more than the longest program's.
    """
    band = begin, begin + width
    found = terms_of(gpu, **call, form=BAND, band=band)
    visited, bound, step = [], 0.0, call["depth_tile"]
    for first in range(0, call["rows"], call["row_tile"]):
        least = max(first + begin, 0) // step
        after = min(first + call["row_tile"] + begin + width, call["depth"])
        visited.append(max(-(-after // step) - least, 0) if after > 0 else 0)
        within = after == call["depth"] and after % step
        bound += 1.5 if within else 1
    times = call["outer"] * -(-call["columns"] // call["column_tile"])
    total = times * call["repeat"] * sum(visited)
    assert abs(found[SPREAD] * gpu - total) <= times * call["repeat"] * bound + 1e-9 * total
    assert found[LONGEST] >= call["repeat"] * max(visited)
    assert found[PROGRAMS] == pytest.approx(times * len(visited) / gpu, rel=1e-12)


@given(
    st.integers(1, 40), st.integers(1, 40), st.sampled_from((32, 64, 128)), st.sampled_from((1, 2, 3)),
    st.integers(-5000, 5000), st.integers(0, 4999),
)  # fmt: skip
@example(64, 64, 128, 1, -1023, 1023)  # a window of 1,024 keys: nine steps, of which a mean of ten is no prediction
def test_a_band_of_tiles_of_whole_steps_is_counted_exactly(
    tiles: int, depths: int, step: int, of_tile: int, begin: int, width: int
) -> None:
    """All tiles begin at the same place of a step where a tile's rows are whole steps."""
    rows, depth, band = step * of_tile, step * depths, (begin, begin + width)
    visited = []
    for first in range(0, tiles * rows, rows):
        least, after = max(first + begin, 0), min(first + rows + begin + width, depth)
        visited.append(-(-after // step) - least // step if after > least else 0)
    given = {"rows": tiles * rows, "row_tile": rows, "depth": depth, "depth_tile": step}
    found = terms_of(7, **given, form=BAND, band=band)
    assert found[SPREAD] * 7 == pytest.approx(sum(visited), abs=1e-6)
    if all(first + begin >= 0 and first + rows + begin + width <= depth for first in range(0, tiles * rows, rows)):
        assert found[LONGEST] == max(visited)


def test_a_band_that_is_a_triangle_is_counted_as_one() -> None:
    """From every row to its own place, and for keys from their place on: the steps of growing and shrinking forms."""
    for call in ({"row_tile": 64, "depth_tile": 32}, {"row_tile": 32, "depth_tile": 128}):
        given = {"rows": 4096, "depth": 4096, "outer": 3, **call}
        growing = terms_of(5, **given, form=BAND, band=(-4096, 0))
        shrinking = terms_of(5, **given, form=BAND, band=(0, 4096))
        assert growing[SPREAD] == pytest.approx(terms_of(5, **given, form=GROWING)[SPREAD], rel=0.01)
        assert shrinking[SPREAD] == pytest.approx(terms_of(5, **given, form=SHRINKING)[SPREAD], rel=0.01)


def test_the_last_round_of_a_band_has_its_shortest_tiles() -> None:
    """Five tiles of ten steps on four multiprocessors end after two rounds of ten, as whole ones do. Of a triangle the
    shortest tile is one step, and a round that it begins adds a part of a step.
    """
    given: dict[str, Any] = {"rows": 80, "row_tile": 16, "depth": 160, "depth_tile": 16, "form": BAND}
    assert terms_of(4, **given, band=(-1000, 1000))["steps of the rounds"] == 20
    triangle = terms_of(4, **given | {"rows": 2560, "depth": 2560}, band=(-2560, 0))
    assert triangle["steps of the rounds"] == triangle[SPREAD]  # 40 rounds, of which none is left over
    triangle = terms_of(3, **given | {"rows": 2560, "depth": 2560}, band=(-2560, 0))
    assert triangle["steps of the rounds"] == pytest.approx(triangle[SPREAD] + 2 / 3)  # of 53 and a third


@pytest.mark.parametrize(("form", "band", "passes"), [(GROWING, (0, 0), 2.5), (BAND, (-512, 512), 4)])
def test_tiles_that_do_not_run_together_read_again_what_the_cache_cannot_hold(
    form: int, band: tuple[int, int], passes: float
) -> None:
    """Six pieces of four tiles on four multiprocessors, and each piece's keys take a third of what the cache holds. In
    groups of one round (a piece) and of three (three pieces) they are read once. In groups of six rounds, all pieces,
    half of them is read again at each pass but the first. Not sorted, they are read once.
    """
    call: dict[str, Any] = {"rows": 512, "row_tile": 128, "outer": 6, "depth": 512, "depth_tile": 128}
    keys = 2 * CACHED

    def read(rounds: int) -> float:
        found = terms_of(4, **call, form=form, band=band, traffic=(0, keys), sorted_rounds=rounds)
        return found["traffic, of the second kind"] / (keys * TRAFFIC_UNIT)

    assert (read(0), read(1), read(3)) == (1, 1, 1)
    assert read(6) == read(8) == pytest.approx(1 + (passes - 1) / 2)


@pytest.mark.parametrize(("form", "seen"), [(WHOLE, 1), (GROWING, 0.625), (BAND, 1)])
def test_products_hide_what_memory_brings(form: int, seen: float) -> None:
    """Of four tiles of 128 rows that walk the same 512 places, 512 rows hide all, and 2,048 rows' worth would be four
    times as many; of a triangle five eighths of the rows see a place in the mean. With none that hide, all counts.
    """
    call: dict[str, Any] = {"rows": 512, "row_tile": 128, "depth": 512, "depth_tile": 128, "band": (-512, 512)}

    def counted(rows: int) -> float:
        found = terms_of(4, **call, form=form, traffic=(0, 1000), hiding_rows=rows)
        return found["traffic, of the second kind"] / (1000 * TRAFFIC_UNIT)

    assert [counted(rows) for rows in (0, 64, 320)] == [1, 0, 0]
    assert counted(2048) == pytest.approx(1 - seen / 4)


@given(calls(), st.integers(0, 2**40), st.integers(0, 2**40), st.sampled_from(range(len(FORMS))))
def test_traffic_and_walks_are_of_every_form(call: dict[str, int], near: int, far: int, form: int) -> None:
    """Bytes are counted in one unit, apart by their kind, and walks after the first one by program."""
    found = terms_of(7, **call, traffic=(near, far), form=form)
    bytes_of = several(found, "traffic, of the first kind", "traffic, of the second kind")
    assert bytes_of == pytest.approx((near * TRAFFIC_UNIT, far * TRAFFIC_UNIT))
    again = several(
        found, "walks after a program's first", "walks after their first of all programs, by multiprocessor"
    )
    assert again == pytest.approx((call["repeat"] - 1, (call["repeat"] - 1) * found[PROGRAMS]))


def test_a_work_is_worked_out_in_its_call() -> None:
    """Sizes, scalars, tunables and multiprocessors reach the terms, from the places of Work that name them."""
    made = Work(
        rows=size("rows"),
        row_tile=tunable("BLOCK"),
        depth=scalar("times"),
        programs=multiprocessors(),
        form=constant(WHOLE),
    )
    environment = Environment({"rows": 90}, {"times": 5}, {"BLOCK": 10}, multiprocessors=2)
    found = dict(zip(TERMS, terms(made, environment, 1), strict=True))
    assert several(found, "rounds", LONGEST, PROGRAMS) == (3, 5, 4.5)


def test_the_orders_are_complete() -> None:
    """What depends on the call and what depends on the tile is all that a Work has, each once."""
    names = [field.name for field in fields(Work) if field.name not in ("traffic", "band")]
    pairs = {"traffic": (tunable("near"), tunable("far")), "band": (tunable("begin"), tunable("end"))}
    made = Work(**{name: tunable(name) for name in names}, **pairs)  # type: ignore[arg-type] # names are of fields
    of_tile = ("row_tile", "column_tile", "depth_tile", "programs", "sorted_rounds", "hiding_rows")
    assert tuple(one.name for one in made.of_tile) == of_tile
    assert sorted(one.name for one in made.of_call) == sorted({*names, "near", "far", "begin", "end"} - set(of_tile))


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 16384), st.sampled_from((1, 2, 3)))
def test_the_split_form_is_what_the_kernel_does(m: int, n: int, k: int, batch: int) -> None:
    """As many tiles are split, in as many parts, as the sizes of gemm's split backend say for the same call."""
    assert GEMM_HOPPER_SPLIT.work
    tunables = {name: values[0] for name, values in GEMM_HOPPER_SPLIT.tunable_values("cuda").items()}
    environment = Environment({"batch": batch, "m": m, "n": n, "k": k}, tunables=tunables, multiprocessors=132)
    derived = derived_sizes(HOPPER_SPLIT, environment)
    found = dict(zip(TERMS, terms(GEMM_HOPPER_SPLIT.work, environment, 1), strict=True))
    assert found["steps of the packed rounds"] == pytest.approx(derived["split_tiles"] / 132)
    assert found["packed rounds"] == pytest.approx(derived["split_tiles"] * derived["splits"] / 132)


KERNELS = [one for name in IN_TREE for one in family(name).kernels if one.work and one is not GEMM_HOPPER_SPLIT]


def test_parts_share_the_steps_of_a_walk() -> None:
    """7 steps, three times each, by 2 programs for each of 3 tiles, and by 5: more programs, shorter walks, as many
    steps in all; no walk after the first where there are more parts than walks.
    """
    given = {"rows": 30, "row_tile": 10, "depth": 56, "depth_tile": 8, "repeat": 3}
    names = "rounds", PROGRAMS, LONGEST, SPREAD, "walks after a program's first", WALKS
    assert several(terms_of(2, **given), *names) == (2, 1.5, 21, 31.5, 2, 3)
    assert several(terms_of(2, **given, parts=2), *names) == (3, 3, 11, 31.5, 0.5, 1.5)
    assert several(terms_of(2, **given, parts=5), *names) == (8, 7.5, 5, 31.5, 0, 0)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda one: one.name)
def test_a_kernel_launches_what_its_work_counts(kernel: KernelDescription) -> None:
    """The programs of a kernel of the tree are the tiles of its work; those of a persistent one are a round of them.
    One that has programs for rows of q and of k has a tile more for each head at most; one for split tiles has programs
    for as many as a plan may split.
    """
    names = ("batch", "heads_q", "heads_k", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "m", "n", "k", "splits")
    sizes = dict(zip(names, (3, 8, 2, 1000, 777, 64, 64, 700, 900, 500, 0), strict=True))
    tunables = {name: values[-1] for name, values in kernel.tunable_values(arch_spec(kernel.archs[0]).vendor).items()}
    numbers = {one.name: int(one.values[0]) for one in kernel.choices if not isinstance(one.values[0], str)}
    dense = {"longest_q": sizes["seqlen_q"], "longest_k": sizes["seqlen_k"], "packed_sequences": 1}
    scalars = {"causal": 0, "swapped": 0, "level": 0, "lo": 0, "hi": 0, "features": 0, "skip_gradients": 0, **dense}
    scalars["self_attention"] = 0
    environment = Environment(sizes, scalars, numbers | tunables, multiprocessors=30)
    if splits_keys(kernel):
        environment = replace(environment, sizes=sizes | derived_sizes(DECODE, environment))
    assert kernel.work
    tiles = round(30 * dict(zip(TERMS, terms(kernel.work, environment, 1), strict=True))[PROGRAMS])
    slots = 30 * evaluate(kernel.work.programs, environment)
    launched = prod(evaluate(one, environment) for one in kernel.grid)
    if kernel in (ATTN_BWD_HOPPER_PARTS_PREPARE, ATTN_BWD_HOPPER_PARTS_FINISH, ATTN_BWD_HOPPER_SPLIT_PREPARE):
        assert tiles <= launched <= tiles + sizes["batch"] * (sizes["heads_q"] + sizes["heads_k"])
    elif kernel is ATTN_FWD_PLANNED_COMBINE:
        assert 0 < tiles <= launched
    else:
        assert launched == tiles or (kernel.gluon and launched == slots < tiles)


# ---- lengths in device memory ----------------------------------------------------------------------------------------

SEQUENCES, QUERIES, KEYS, FAR = 6, 300, 700, 1 << 20
OF_BANDS = [kernel for kernel in KERNELS if kernel.work and kernel.work.band != (constant(0), constant(0))]


def causal(kernel: KernelDescription, given: str, batch: int, q: int, k: int, **scalars: int) -> Environment:
    """A call that is causal at the last key, of these operands beside q, k and v."""
    sizes = {"batch": batch, "heads_q": 8, "heads_k": 2, "seqlen_q": q, "seqlen_k": k}
    sizes |= {"head_dim": 64, "head_dim_v": 64, "page_size": 64}
    tunables = {name: values[-1] for name, values in kernel.tunable_values(arch_spec(kernel.archs[0]).vendor).items()}
    numbers = {one.name: int(one.values[0]) for one in kernel.choices if not isinstance(one.values[0], str)}
    on_host = {"level": 4, "lo": -FAR, "hi": k - q, "features": 0, "causal": 0, "skip_gradients": 0}
    lengths = {"longest_q": q, "longest_k": k, "packed_sequences": 1}
    return Environment(sizes, on_host | lengths | scalars, numbers | tunables, frozenset(given.split()), 132)


def packed(kernel: KernelDescription, q: int, k: int, longest_q: int, longest_k: int) -> Environment:
    """The same of so many rows and keys in packed sequences."""
    scalars = {"hi": 0, "features": OWN_LAST.bit, "packed_sequences": SEQUENCES}
    scalars |= {"longest_q": longest_q, "longest_k": longest_k}
    return causal(kernel, "cu_seqlens_q cu_seqlens_k", 1, q, k, **scalars)


@pytest.mark.parametrize("kernel", OF_BANDS, ids=lambda one: one.name)
def test_packed_sequences_of_one_length_have_the_work_of_a_batch(kernel: KernelDescription) -> None:
    """Whether the band is aligned on the host or where the kernel finds the last key."""
    assert kernel.work
    batch = causal(kernel, "", SEQUENCES, QUERIES, KEYS)
    alike = packed(kernel, SEQUENCES * QUERIES, SEQUENCES * KEYS, QUERIES, KEYS)
    assert terms(kernel.work, alike, 1) == terms(kernel.work, batch, 1)
    used = causal(kernel, "seqused_k", 1, QUERIES, KEYS, hi=0, features=OWN_LAST.bit)
    assert terms(kernel.work, used, 1) == terms(kernel.work, causal(kernel, "", 1, QUERIES, KEYS), 1)


def test_what_is_expected_of_sequences_of_different_lengths() -> None:
    """A mean one has 300 rows and 700 keys. A row's own has (900 - 300) / 3 rows more, and as many keys; programs wait
    for those with (2200 - 700) / 3 keys more, or, if all begin at once, with 2200. Rows are in the middle of their
    sequences.
    """
    kernel = ATTN_FWD_HOPPER_PLANNED
    call = packed(kernel, SEQUENCES * QUERIES, SEQUENCES * KEYS, 900, 2200)
    assert [evaluate(one, call) for one in (EXPECTED_Q, SEEN_K, EXPECTED_K, EVENED_K)] == [300, 1200, 2200, 900]
    call = replace(call, multiprocessors=119)  # eight heads of 15 tiles
    assert [evaluate(one, call) for one in (SEEN_K, EXPECTED_K)] == [1200, 1200]
    assert [evaluate(end, call) for _, end in map(expected_band, (EXPECTED_K, EVENED_K))] == [800, 500]


def test_what_is_expected_of_tiles_of_packed_keys() -> None:
    """As many as there are keys. Those of prompts are in the middle of a sequence with (900 - 300) / 3 rows more, and
    the 300 keys from the 100th on see the rows behind their own; keys before a sequence's own do not come with rows.
    """
    work = ATTN_BWD_HOPPER_FEATURES.work
    assert work
    for keys, rows, first in ((300, 500, 100), (900, 366, -567)):
        call = packed(ATTN_BWD_HOPPER_FEATURES, SEQUENCES * QUERIES, SEQUENCES * keys, 900, keys + 600)
        begin, _ = work.band
        assert [evaluate(one, call) for one in (work.rows, work.depth, begin)] == [keys, rows, first]


def test_a_plan_evens_out_keys_that_are_not_used() -> None:
    """Of several sequences half of the longest one's are expected; of one sequence all. Other kernels wait for it."""
    for batch, expected in ((1, KEYS), (SEQUENCES, KEYS // 2)):
        call = causal(ATTN_FWD_HOPPER_PLANNED, "seqused_k", batch, QUERIES, KEYS)
        assert (evaluate(EVENED_K, call), evaluate(EXPECTED_K, call)) == (expected, KEYS)
