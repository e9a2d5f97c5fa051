"""What a kernel computes, in tiles: from a call and a tile to the terms of a sum that its time is predicted by.

The sum is linear in coefficients that are fitted for each image; v2src/cost.cc works out the same terms. It follows the
usual view of a GPU (S. Williams et al., "Roofline", CACM 2009, and the rounds of programs that NVIDIA's "Matrix
Multiplication Background User's Guide" calls wave quantization): programs run in rounds, a round takes as long as its
longest loop, and all of it at least as long as the products and the memory traffic do. Where loops differ, programs
begin as others end (R. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

from aotriton.rules.expression import Environment, Expression, constant, evaluate

# How many steps the loop of a program has that computes the i-th tile of rows, in the order of the C++ enumeration.
#   whole      as many as cover the depth
#   growing    as many as cover rows up to its own last: scores below the diagonal
#   shrinking  as many as cover the depth from its own first row on: the same, seen from the keys
#   split      as whole, but the tiles of a last round that would not fill the GPU are split along the depth
FORMS = ("whole", "growing", "shrinking", "split")
WHOLE, GROWING, SHRINKING, SPLIT = range(len(FORMS))

MOST_SPLITS, FEWEST_STEPS = 16, 4  # of a split tile: its parts, and a part's steps

FORM = "tiles"  # what a model of these terms is called
# What a coefficient is multiplied by, in the order of the C++ code. A "round" fills the GPU once, with as many programs
# on a multiprocessor as the grid counts on; a "packed" one with as many as fit.
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
TRAFFIC_UNIT = 1e-7  # so that a coefficient of 1 is 10 TB/s in µs: coefficients are of one order of magnitude

# How much longer calls take in the mean without an image, relatively, for it to be in a build.
WORTH_SHIPPING = 1e-3

ONE, NONE = constant(1), constant(0)


@dataclass(frozen=True)
class Work:
    """``outer`` independent pieces have tiles of ``rows`` and ``columns``; a tile's program walks ``depth`` in steps,
    ``repeat`` times; or ``parts`` programs share its steps. The sides of a tile are expressions of psels, all else of
    the call.

    ``form`` is a place among FORMS. ``packed`` rows next to each other see as much of the depth. ``traffic`` in bytes,
    of two kinds that are cached differently. ``slow`` is 1 where the tensors lie so that access is slower.
    ``programs``: how many the grid counts on for each multiprocessor.
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
    traffic: tuple[Expression, Expression] = (NONE, NONE)
    slow: Expression = NONE
    programs: Expression = ONE

    @property
    def of_call(self) -> tuple[Expression, ...]:
        """What depends on the call, in the order of the C++ code."""
        of_walk = self.depth, self.repeat, self.parts, self.form
        return (self.outer, self.rows, self.packed, self.columns, *of_walk, *self.traffic, self.slow)

    @property
    def of_tile(self) -> tuple[Expression, ...]:
        """What depends on psels alone, in the order of the C++ code."""
        return (self.row_tile, self.column_tile, self.depth_tile, self.programs)

    @property
    def psels(self) -> frozenset[str]:
        """The psels that it depends on."""
        steps = (step for one in (*self.of_call, *self.of_tile) for step in one.postfix())
        return frozenset(str(name) for code, name in steps if code == "psel")


def terms(work: Work, environment: Environment, occupancy: int) -> tuple[float, ...]:
    """The TERMS of a call: ``environment`` has its sizes and scalars, the candidate's psels and the GPU's
    multiprocessors. ``occupancy`` programs of the image fit on one; with 1 there is nothing to pack.
    """
    found = (evaluate(one, environment) for one in work.of_call)
    outer, rows, packed_rows, columns, depth, repeat, parts, form, near, far, slow = found
    row_tile, column_tile, depth_tile, programs = (evaluate(one, environment) for one in work.of_tile)
    multiprocessors = environment.multiprocessors
    row_tiles = ceil(rows / row_tile)
    across = outer * ceil(columns / column_tile)
    tiles = float(across * row_tiles * parts)  # programs, but of split ones
    steps = float(ceil(depth / depth_tile))
    if form == GROWING:
        grown = row_tile / packed_rows  # from one tile to the next
        below = min(row_tiles, floor(depth / grown))  # tiles that end above the last step
        walked = grown / depth_tile * below * (below + 1) / 2 + (row_tiles - below) * steps
        walked += 0.5 * below if grown < depth_tile else 0.0  # a step that is begun
        longest = float(ceil(min(row_tiles * grown, depth) / depth_tile))
    elif form == SHRINKING:
        reaching = min(row_tiles, ceil(depth / row_tile))
        walked = (reaching * depth - row_tile * reaching * (reaching - 1) / 2) / depth_tile + 0.5 * reaching
        longest = steps
    else:
        walked, longest = row_tiles * steps, steps
    longest = float(ceil(longest * repeat / parts))
    walks = max(repeat / parts, 1.0)
    total = across * repeat * walked
    slots = multiprocessors * programs

    def rounds(room: int) -> tuple[float, float]:
        count = float(ceil(tiles / room))
        if form == GROWING:
            return count, max(longest, total / room)
        if form == SHRINKING:  # each piece begins with its longest program, so a late one may be as long as any
            return count, max(longest, total / room + longest - total / max(tiles, 1.0))
        return count, count * longest

    count, walk = rounds(slots)
    packed, packed_walk = rounds(multiprocessors * occupancy) if occupancy > 1 else (0.0, 0.0)
    if form == SPLIT:
        full = floor(tiles / slots)
        left = tiles - full * slots
        splits = float(min(floor(slots / max(left, 1)), MOST_SPLITS, max(floor(longest / FEWEST_STEPS), 1)))
        if left and splits > 1:
            walk = full * longest + ceil(longest / splits)
            packed, packed_walk = left * splits / multiprocessors, left / multiprocessors
        else:
            packed, packed_walk = 0.0, 0.0
    spread = total / multiprocessors
    return (
        1.0,
        count,
        walk,
        packed,
        packed_walk,
        spread,
        tiles / multiprocessors,
        longest,
        near * TRAFFIC_UNIT,
        far * TRAFFIC_UNIT,
        slow * walk,
        slow * spread,
        walks - 1.0,
        (walks - 1.0) * tiles / multiprocessors,
    )
