"""The work of a kernel in tiles: from a call and a tile to the terms of a sum that predicts its time.

The sum is linear in coefficients that are fitted for each image. Python evaluates the formulas, and the generator
writes them as C++ for the runtime. They follow the usual view of a GPU (S. Williams et al., "Roofline", CACM 2009, and
the rounds of programs that NVIDIA's "Matrix Multiplication Background User's Guide" calls wave quantization): programs
run in rounds, a round takes as long as its longest loop, and the whole takes at least as long as the products and the
memory traffic. If loops differ, programs begin as others end (R. Graham, "Bounds on Multiprocessing Timing Anomalies",
1969).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from aotriton.rules.expression import Environment, Expression, constant, evaluate
from aotriton.rules.formula import Real, choose, down, less, maximum, minimum, up

# The number of steps in the loop of the program of the i-th tile of rows, in the order of the C++ enumeration.
#   whole      steps that cover the depth
#   growing    steps that cover the rows up to its own last one: scores below the diagonal
#   shrinking  steps that cover the depth from its own first row on: the same, seen from the keys
#   split      as for whole, but the tiles of a last round that would not fill the GPU are split along the depth
#   band       steps that cover, for each of its rows, the depth from row + begin to row + end
FORMS = ("whole", "growing", "shrinking", "split", "band")
WHOLE, GROWING, SHRINKING, SPLIT, BAND = range(len(FORMS))

MOST_SPLITS, FEWEST_STEPS = 16, 4  # of a split tile: its parts, and a part's steps
CACHED = 2**25  # bytes of what tiles share that the L2 cache holds until the next one comes to them

FORM = "tiles"  # the name of a model of these terms
# The factors of the coefficients, in the order of the C++ code. A "round" fills the GPU once, with as many programs on
# a multiprocessor as the grid expects; a "packed" one with as many as fit.
TERMS = (
    "one",
    "rounds",
    "steps of the rounds",
    "packed rounds",  # split: parts of tiles
    "steps of the packed rounds",  # split: tiles that are split
    "steps of all programs, by multiprocessor",
    "programs, by multiprocessor",
    "steps of the longest program",
    "traffic, of the first kind",
    "traffic, of the second kind",
    "steps of the rounds, where access is slow",
    "steps of all programs, by multiprocessor, where access is slow",
    "walks after a program's first",
    "walks after their first of all programs, by multiprocessor",
)
NOISE = 1e-6  # of quotients that are whole but for rounding
TRAFFIC_UNIT = 1e-7  # so that a coefficient of 1 is 10 TB/s in µs: coefficients are of one order of magnitude

# An image is in a build if calls take longer without it, in the mean, by at least this relative amount.
WORTH_SHIPPING = 1e-3

ONE, NONE = constant(1), constant(0)


@dataclass(frozen=True)
class Work:
    """The work of a kernel: the tiles of a call, and the steps and the traffic of their programs.

    Tiles divide the ``rows`` × ``columns`` of each of ``outer`` independent pieces. A tile's program walks ``depth``
    in steps, ``repeat`` times, or ``parts`` programs share its steps. The sides of a tile and ``programs`` are
    expressions of tunables, all other fields are expressions of the call. ``form`` is an index into FORMS; ``band`` is
    where a band begins and ends. ``packed`` neighbouring rows see the same part of the depth. ``traffic`` is in bytes,
    of two kinds that are cached differently. ``slow`` is 1 if the layout of the tensors makes access slower.
    ``programs`` is the number of programs that the grid expects on each multiprocessor. ``sorted_rounds``: tiles are
    sorted by their steps in groups of pieces that fill so many rounds, so that tiles of a piece do not run together;
    0: they do, or groups are what the cache holds. ``hiding_rows``: the products of so many rows take as long as memory
    takes for what a piece shares, and hide it, as those of fewer rows hide a part of it; 0: none does.
    """

    rows: Expression
    row_tile: Expression
    packed: Expression = ONE
    outer: Expression = ONE
    columns: Expression = ONE
    column_tile: Expression = ONE
    depth: Expression = ONE
    depth_tile: Expression = ONE
    repeat: Expression = ONE
    parts: Expression = ONE
    form: Expression = NONE
    band: tuple[Expression, Expression] = (NONE, NONE)
    traffic: tuple[Expression, Expression] = (NONE, NONE)
    slow: Expression = NONE
    programs: Expression = ONE
    sorted_rounds: Expression = NONE
    hiding_rows: Expression = NONE

    @property
    def of_call(self) -> tuple[Expression, ...]:
        """The expressions of the call, in the order of the C++ code."""
        of_walk = self.depth, self.repeat, self.parts, self.form, *self.band
        return (self.outer, self.rows, self.packed, self.columns, *of_walk, *self.traffic, self.slow)

    @property
    def of_tile(self) -> tuple[Expression, ...]:
        """The expressions of tunables alone, in the order of the C++ code."""
        of_memory = self.sorted_rounds, self.hiding_rows
        return (self.row_tile, self.column_tile, self.depth_tile, self.programs, *of_memory)

    @property
    def tunables(self) -> frozenset[str]:
        """The tunables that the work depends on."""
        steps = (step for one in (*self.of_call, *self.of_tile) for step in one.postfix())
        return frozenset(str(name) for code, name in steps if code == "tunable")


def terms(work: Work, environment: Environment, occupancy: int) -> tuple[float, ...]:
    """The TERMS of a call, all 0 where the kernel has no programs for it.

    ``environment`` has the call's sizes and scalars, the candidate's tunables and the GPU's number of multiprocessors.
    ``occupancy`` is the number of programs of the image that fit on one multiprocessor.
    """
    form, call = work_of_call(work, environment)
    if call.rows == 0:
        return (0.0,) * len(TERMS)
    made = formulas(form, call, tile_of([evaluate(one, environment) for one in work.of_tile], occupancy))
    return tuple(float(one) for one in made)  # type: ignore[arg-type]  # of floats no formula is a symbol


def work_of_call(work: Work, environment: Environment) -> tuple[int, OfCall]:
    """The form of the work, and what it has of the call and the GPU, for any tile; ``environment`` as for ``terms``."""
    *of_call, form, begin, end, near, far, slow = (evaluate(one, environment) for one in work.of_call)
    outer, rows, packed, columns, depth, repeat, parts = map(float, of_call)
    whole = outer, rows, packed, columns, depth, repeat, parts
    return form, OfCall(*whole, begin, end, near, far, slow, environment.multiprocessors)


@dataclass(frozen=True)
class OfCall:
    """The values of ``Work.of_call`` without the form, and the GPU's multiprocessors, as WorkOfCall of C++."""

    outer: Real
    rows: Real
    packed: Real
    columns: Real
    depth: Real
    repeat: Real
    parts: Real
    begin: Real
    end: Real
    near: Real
    far: Real
    slow: Real
    multiprocessors: Real


@dataclass(frozen=True)
class OfTile:
    """The values of ``Work.of_tile``, and the programs of the image that fit on a multiprocessor, as Cost of C++."""

    row_tile: Real
    column_tile: Real
    depth_tile: Real
    programs: Real
    sorted_rounds: Real
    hiding_rows: Real  # infinitely many, where none hide anything: then their inverse is 0, as in C++
    occupancy: Real


def tile_of(numbers: Sequence[int], occupancy: int) -> OfTile:
    """The tile of these values of ``Work.of_tile``."""
    rows, columns, depth, programs, sorted_rounds, hiding_rows = map(float, numbers)
    return OfTile(rows, columns, depth, programs, sorted_rounds, hiding_rows or inf, occupancy)


def formulas(form: int, call: OfCall, tile: OfTile) -> tuple[Real, ...]:
    """The TERMS: numbers if the arguments are floats, formulas for ``codegen/formulas.py`` if they are symbols."""
    row_tiles = up(call.rows / tile.row_tile)
    across = call.outer * up(call.columns / tile.column_tile)
    tiles = across * row_tiles * call.parts  # programs, but of split ones
    steps = up(call.depth / tile.depth_tile)
    walked, longest = row_tiles * steps, steps
    shortest: Real = 0.0
    if form == GROWING:
        grown = tile.row_tile / call.packed  # from one tile to the next
        below = minimum(row_tiles, down(call.depth / grown))  # tiles that end above the last step
        walked = grown / tile.depth_tile * below * (below + 1) / 2 + (row_tiles - below) * steps
        walked = walked + choose(less(grown, tile.depth_tile), 0.5 * below, 0.0)  # a step that is begun
        longest = up(minimum(row_tiles * grown, call.depth) / tile.depth_tile)
    elif form == SHRINKING:
        reaching = minimum(row_tiles, up(call.depth / tile.row_tile))
        triangle = reaching * call.depth - tile.row_tile * reaching * (reaching - 1) / 2
        walked = triangle / tile.depth_tile + 0.5 * reaching
    elif form == BAND:
        walked, longest, shortest = _banded(call, tile, row_tiles, steps)
    walks = call.repeat / call.parts
    longest = up(longest * walks)
    further = maximum(walks, 1.0) - 1.0
    total = across * call.repeat * walked
    slots = call.multiprocessors * tile.programs

    def walk_of(count: Real, room: Real) -> Real:
        """The steps of ``count`` rounds of ``room`` programs."""
        if form == GROWING:
            return maximum(longest, total / room)
        if form == BAND:  # the last round, which may not be full, has the shortest tiles
            return maximum(longest, total / room + (count - tiles / room) * (shortest * walks))
        if form == SHRINKING:  # each piece begins with its longest program, so a late one may be as long as any
            return maximum(longest, total / room + (longest - total / maximum(tiles, 1.0)))
        return count * longest

    count = up(tiles / slots)
    if form == SPLIT:
        full = down(tiles / slots)
        left = tiles - full * slots
        splits = minimum(
            minimum(down(slots / maximum(left, 1.0)), MOST_SPLITS), maximum(down(longest / FEWEST_STEPS), 1.0)
        )
        split = less(0.0, left) * less(1.0, splits)
        walk = choose(split, full * longest + up(longest / splits), walk_of(count, slots))
        packed = choose(split, left * splits / call.multiprocessors, 0.0)
        packed_walk = choose(split, left / call.multiprocessors, 0.0)
    else:
        walk = walk_of(count, slots)
        room, several = call.multiprocessors * tile.occupancy, less(1.0, tile.occupancy)
        rounds = up(tiles / room)
        packed = choose(several, rounds, 0.0)
        packed_walk = choose(several, walk_of(rounds, room), 0.0)
    far = call.far
    if form in (GROWING, BAND):
        # A piece's tiles come to what they share one after the other, and between two of them come those of the group.
        of_group = minimum(up(tile.sorted_rounds * slots / row_tiles), across) * far  # times all pieces
        beyond = maximum(1.0 - across * CACHED / maximum(of_group, 1.0), 0.0)
        far = far + far * maximum(walked / steps - 1.0, 0.0) * beyond
    far = far * maximum(1.0 - walked / steps * tile.row_tile / tile.hiding_rows, 0.0)
    spread = total / call.multiprocessors
    programs = tiles / call.multiprocessors
    return (
        1.0,
        count,
        walk,
        packed,
        packed_walk,
        spread,
        programs,
        longest,
        call.near * TRAFFIC_UNIT,
        far * TRAFFIC_UNIT,
        call.slow * walk,
        call.slow * spread,
        further,
        further * programs,
    )


def _fraction(number: Real) -> Real:
    """What ``number`` has behind the point, none where rounding alone has made it so."""
    return maximum(number - down(number + NOISE), 0.0)


def _banded(call: OfCall, tile: OfTile, tiles: Real, steps: Real) -> tuple[Real, Real, Real]:
    """The steps of all tiles of a band together, the most that one has, and about the fewest, which are those of the
    first or of the last one.

    Tile t covers depth from t * grown + first to t * grown + after: two arithmetic series, both clamped to the depth.
    Where a tile does not begin or end with the depth it begins or ends with a part of a step that it does not need.
    """
    grown = tile.row_tile / call.packed  # from one tile to the next
    first, after = call.begin, call.end + grown
    left = _fraction(grown / tile.depth_tile)
    phase = choose(less(NOISE, left), left, 1.0)  # of a step: tiles begin at places of it that are so far apart
    others = 1.0 - phase

    def needless(place: Real) -> Real:
        """The least part of a step that lies before such a place of a tile; at most it is ``others`` more."""
        return _fraction(place / tile.depth_tile / phase) * phase

    before, behind = needless(first), needless(after * -1.0)

    def reached(place: Real) -> Real:
        """The tile from which on t * grown + place is not negative."""
        return minimum(up(maximum(place * -1.0 / grown, 0.0)), tiles)

    def series(place: Real) -> Real:
        """The sum over all tiles of t * grown + place where that is not negative."""
        begun = reached(place)
        return grown * (tiles * (tiles - 1) - begun * (begun - 1)) / 2 + place * (tiles - begun)

    def clamped(place: Real) -> Real:
        return series(place) - series(place - call.depth)

    any_step, no_more = reached(after), reached(first - call.depth)
    beginning = maximum(no_more - maximum(reached(first), any_step), 0.0)
    ending = maximum(minimum(reached(after - call.depth), no_more) - any_step, 0.0)
    walked = (clamped(after) - clamped(first)) / tile.depth_tile
    walked = walked + beginning * (before + 0.5 * others) + ending * (behind + 0.5 * others)

    def of(place: Real) -> Real:
        """The steps of the tile that is at ``place``."""
        return maximum(minimum(place + after, call.depth) - maximum(place + first, 0.0), 0.0) / tile.depth_tile

    shortest = minimum(of(0.0), of((tiles - 1) * grown))
    covered = (after - first) / tile.depth_tile
    longest = minimum(up(covered) + 1, up(covered + before + behind + 2.0 * others))
    return walked, minimum(longest, steps), shortest
