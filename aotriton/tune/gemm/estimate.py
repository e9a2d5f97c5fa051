"""GEMM without a GPU: from a candidate's registers and local memory to cycles of an MI300X.

As attention's estimate: all resident programs together take what the busiest part of a compute unit takes, and no less
than one program alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aotriton.rules.kernel import Functional
from aotriton.tune.problem.compute_unit import Candidate, resident_programs, unit_of
from aotriton.tune.problem.problems import Cell, keys_of

ELEMENT = 2  # bytes of fp16 and bf16
MATRIX_ROWS = 16  # of a matrix instruction; fewer rows of a tile are padded
# Rows of d up to which cells share a winner, where the grid has tiles enough.
GROUPS = (16, 128, 1024)
STATIC = "static model of the compiled image"


def estimate(functional: Functional, cell: Cell, candidate: Candidate) -> float:
    """Cycles that a compute unit needs for its share of the problem that stands for ``cell``. Good to compare with."""
    keys = keys_of(functional, cell)
    return _cycles(functional, {"batch": 1, "m": keys["m"], "n": keys["columns"], "k": keys["k"]}, candidate)


def call_time(functional: Functional, sizes: Mapping[str, int], candidate: Candidate) -> float:
    """Microseconds that a call of these sizes takes, by the estimate."""
    return _cycles(functional, sizes, candidate) / unit_of(functional.arch_spec).cycles


def _cycles(functional: Functional, sizes: Mapping[str, int], candidate: Candidate) -> float:
    config, unit = candidate.config, unit_of(functional.arch_spec)
    rows, columns, step = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    tiles = sizes["batch"] * -(-sizes["m"] // rows) * -(-sizes["n"] // columns)
    share = -(-tiles // functional.arch_spec.multiprocessors)  # of the busiest compute unit
    fitting = resident_programs(candidate, functional.arch_spec)

    warps = config["num_warps"]
    down = min(warps, max(1, rows // 64))  # warps below each other; each reads its rows of a and its columns of b
    across = max(1, warps // down)
    computed = 2 * max(rows, MATRIX_ROWS) * columns * step / unit.matrix_flops
    streamed = (rows + columns) * step * ELEMENT
    shared = (streamed + (rows * across + columns * down) * step * ELEMENT) / unit.shared_bytes
    # What a program reads comes from the cache but for its share of what must come from memory once.
    read_once = sizes["batch"] * (sizes["m"] + sizes["n"]) * step * ELEMENT
    needed = read_once / functional.arch_spec.multiprocessors / share
    loaded = max(streamed / unit.cache_bytes, needed / unit.memory_bytes)
    busiest = max(computed / unit.simds, shared, loaded)
    alone = max(computed / min(warps, unit.simds) + shared, unit.latency / 2)  # loads are one step ahead
    passes = -(-sizes["k"] // step)
    written = rows * columns * ELEMENT / unit.memory_bytes

    def one_round(resident: int) -> float:
        return max(resident * busiest, alone) * passes + unit.latency + resident * written

    full, rest = divmod(share, fitting)
    return full * one_round(fitting) + (one_round(rest) if rest else 0)


def rank(functional: Functional, cells: Sequence[Cell], candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, best first, for cells that share one winner."""
    fastest = {cell: min(estimate(functional, cell, candidate) for candidate in candidates) for cell in cells}

    def slowness(candidate: Candidate) -> float:
        """Estimated time over that of the fastest, averaged over the cells."""
        return sum(estimate(functional, cell, candidate) / fastest[cell] for cell in cells) / len(cells)

    return sorted(candidates, key=lambda c: (slowness(c), sorted(c.config.items())))


def groups(functional: Functional) -> list[list[Cell]]:
    """Cells by the height of d."""
    found: dict[int, list[Cell]] = {}
    for cell in functional.kernel.cells():
        m = keys_of(functional, cell)["m"]
        found.setdefault(next((most for most in GROUPS if m <= most), 0), []).append(cell)
    return list(found.values())
