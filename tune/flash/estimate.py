"""Attention without a GPU: from a candidate's registers and local memory to cycles of an MI300X.

The model counts, for one compute unit, the cycles that one pass of a kernel's loop takes from each part of the unit,
and those that one program alone would take. Enough resident programs hide the second behind the first:

    one pass of all resident programs = max(programs x busiest part, one program alone)

How many are resident follows from the registers and the local memory of the image. One thing outranks the estimate: a
tile that was published as good on this GPU wins unless the model finds it more than half as slow again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aotriton.rules.flash.common import REFERENCE_TILE, tiled_side
from aotriton.rules.kernel import Functional
from aotriton.tune.compute_unit import (
    CACHE_BYTES,
    LATENCY,
    MATRIX_FLOPS,
    MEMORY_BYTES,
    MOST_WAVES,
    SHARED_BYTES,
    SIMDS,
    VECTOR_LANES,
    Candidate,
    resident_programs,
)
from aotriton.tune.problems import Cell, keys_of

ELEMENT = 2  # bytes of fp16 and bf16


class Work(NamedTuple):
    """What one program does. All but the last are for one pass of the loop."""

    products: int  # matrix products of a tile of scores with the head dim
    operations: int  # elementwise operations on a score; an exponential counts four
    reads: int  # tiles that each wave reads from local memory, of those that the loop streams
    tiles: int  # tiles read before the loop or written after it


WORK = {
    "attn_fwd": Work(2, 12, 2, 2),
    "attn_bwd_preprocess": Work(0, 0, 0, 2),
    "attn_bwd_dk_dv": Work(4, 14, 4, 4),
    "attn_bwd_dq": Work(3, 14, 3, 3),
}

UNCOUNTED = Work(4, 14, 4, 4)  # of a kernel that is not in the table

# BLOCK_M x BLOCK_N by head dim, as published in tuned settings of Triton attention kernels on MI300X, long sequences.
# Those kernels are not these, but they were measured.
PUBLISHED = {
    ("attn_fwd", 64): (128, 64),
    ("attn_fwd", 128): (128, 64),
    ("attn_fwd", 256): (64, 32),
    ("attn_bwd_dk_dv", 64): (64, 32),
    ("attn_bwd_dk_dv", 128): (64, 32),
    ("attn_bwd_dq", 64): (64, 64),
    ("attn_bwd_dq", 128): (64, 16),
}
PRIOR = 0.65  # share of its estimated time that a published tile is charged

SHORT = 64  # cells whose tiled sequence is not longer share one winner, the others of a functional another


def estimate(functional: Functional, cell: Cell, candidate: Candidate) -> float:
    """Cycles that a compute unit needs for its share of the problem that stands for ``cell``. Good to compare with."""
    kernel, config, work = functional.kernel, candidate.config, WORK.get(functional.kernel.name, UNCOUNTED)
    keys = keys_of(functional, cell)
    length = {"BLOCK_M": keys["max_seqlen_q"], "BLOCK_N": keys.get("max_seqlen_k", 0)}
    tiled, streamed = ("BLOCK_M", "BLOCK_N") if tiled_side(kernel) == "q" else ("BLOCK_N", "BLOCK_M")
    rows, columns = config[tiled], config.get(streamed, 0)
    row_bytes = int(functional["BLOCK_DMODEL"]) * ELEMENT
    warps = config["num_warps"]

    share = keys.get("waves", MOST_WAVES) * -(-length[tiled] // rows) / -(-length[tiled] // REFERENCE_TILE)
    resident = min(resident_programs(candidate, functional.target.shared_limit), max(1, share))

    moved = work.tiles * rows * row_bytes / MEMORY_BYTES
    cycles = max(resident * moved, moved + LATENCY)
    if columns:
        scores = rows * columns
        computed = work.products * scores * row_bytes / MATRIX_FLOPS + work.operations * scores / VECTOR_LANES
        shared = (2 + warps * work.reads) * columns * row_bytes / SHARED_BYTES
        cached = 2 * columns * row_bytes / CACHE_BYTES
        busiest = max(computed / SIMDS, shared, cached)
        alone = computed / min(warps, SIMDS) + shared + cached + LATENCY
        passes = -(-length[streamed] // columns)
        cycles += max(resident * busiest, alone) * (passes / 2 if functional.get("CAUSAL", False) else passes)
    return cycles * max(1, share) / resident


def rank(functional: Functional, cells: Sequence[Cell], candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, best first, for cells that share one winner."""
    published = PUBLISHED.get((functional.kernel.name, int(functional["BLOCK_DMODEL"])))
    if is_short(functional, cells[0]) or functional.addressing == "general":
        published = None  # it was measured on long sequences of aligned tensors
    fastest = {cell: min(estimate(functional, cell, candidate) for candidate in candidates) for cell in cells}

    def slowness(candidate: Candidate) -> float:
        """Estimated time over that of the fastest, averaged over the cells."""
        mean = sum(estimate(functional, cell, candidate) / fastest[cell] for cell in cells) / len(cells)
        return mean * (PRIOR if (candidate.config["BLOCK_M"], candidate.config.get("BLOCK_N")) == published else 1)

    return sorted(candidates, key=lambda c: (slowness(c), sorted(c.config.items())))


def groups(functional: Functional) -> list[list[Cell]]:
    """Short sequences, and the others."""
    cells = list(functional.kernel.cells())
    return [[cell for cell in cells if is_short(functional, cell) == short] for short in (True, False)]


def is_short(functional: Functional, cell: Cell) -> bool:
    """Whether the sequence whose rows the grid walks is at most SHORT."""
    return keys_of(functional, cell)[f"max_seqlen_{tiled_side(functional.kernel)}"] <= SHORT
