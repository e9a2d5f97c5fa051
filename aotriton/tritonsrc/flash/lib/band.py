"""Band: which keys a query sees where both ends of the interval are known at run time.

Query i sees keys from i + lo to i + hi, and key j is seen by queries from j - hi to j - lo: what a tile of either side
sees of the other one is the same function of its own positions, `own` many, and the `other` many, with lo and hi, or
-hi and -lo. Causal masks and windows are bands.
"""

import triton
import triton.language as tl


@triton.jit
def interval(positions, other, lo, hi):
    """Of each position, the first of the other side that it sees, and how many."""
    first = positions + lo
    return first, tl.maximum(tl.minimum(positions + hi + 1, other) - first, 0)


@triton.jit
def inside(positions, first, count):
    """The mask: whether a position is in an interval. One comparison, as each of a tile's masks takes registers."""
    return (positions - first).to(tl.uint32) < count.to(tl.uint32)


@triton.jit
def visited(begin, end, own, other, lo, hi, STEP: tl.constexpr):
    """Of a tile of positions from `begin` to before `end`, what any of them sees: from `first`, a multiple of STEP, to
    before `after`; nothing where that is not behind `first`.

    Steps from `clear` to before `full`, multiples of STEP, are seen whole by the whole tile, and need no mask.
    """
    last = tl.minimum(end, own) - 1
    first = tl.maximum(begin + lo, 0) // STEP * STEP
    after = tl.minimum(last + hi + 1, other)
    clear = (tl.maximum(last + lo, 0) + STEP - 1) // STEP * STEP
    full = tl.maximum(tl.minimum(begin + hi + 1, other), 0) // STEP * STEP
    return first, clear, full, after


@triton.jit
def visited_by_queries(sequence, row, ROWS: tl.constexpr, STEP: tl.constexpr):
    """What ROWS rows from `row` on visit of a sequence's keys. Rows that are not used see nothing."""
    q, k = sequence.q, sequence.k
    first, clear, full, after = visited(row, row + ROWS, q.used, k.used, sequence.lo, sequence.hi, STEP)
    if row + ROWS > q.used:
        full = first
        after = tl.where(row < q.used, after, first)
    return first, clear, full, after


@triton.jit
def visited_by_keys(sequence, key, KEYS: tl.constexpr, STEP: tl.constexpr):
    """What KEYS keys from `key` on visit of a sequence's rows."""
    q, k = sequence.q, sequence.k
    return visited(key, key + KEYS, k.used, q.used, -sequence.hi, -sequence.lo, STEP)


@triton.jit
def keys_of(sequence, rows):
    """Of each row, the first key that it sees, and how many."""
    first, count = interval(rows, sequence.k.used, sequence.lo, sequence.hi)
    return first, tl.where(rows < sequence.q.used, count, 0)
