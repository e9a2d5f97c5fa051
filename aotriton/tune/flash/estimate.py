"""Attention without a GPU: from a candidate's registers and local memory to cycles of an MI300X.

The model counts, for one compute unit, the cycles that one pass of a kernel's loop takes from each part of the unit,
and those that one program alone would take. Enough resident programs hide the second behind the first:

    one pass of all resident programs = max(programs x busiest part, one program alone)

How many are resident follows from the registers and the local memory of the image. One thing outranks the estimate: a
tile that was published as good on this GPU wins unless the model finds it more than half as slow again.

Of a cell the model knows how full the GPU is, of a call how many programs there are: then rounds that are not full
count, and the longest program of a causal call.

Where an arch has no compute unit of which the model knows, only what tiles read again is compared: ``by_tiles``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import exp, log
from statistics import mean
from typing import NamedTuple

from aotriton.rules.expression import Environment
from aotriton.rules.flash.common import REFERENCE_TILE, tiled_side
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.flash.split import splits_keys
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.work import TERMS, terms
from aotriton.tune.problem.compute_unit import Candidate, resident_programs, unit_of
from aotriton.tune.problem.problems import Cell, keys_of, scalars_of

ELEMENT = 2  # bytes of fp16 and bf16


class Work(NamedTuple):
    """The work of one program. All but the last are for one pass of the loop."""

    products: int  # matrix products of a tile of scores with the head dim
    operations: int  # elementwise operations on a score; an exponential counts four
    reads: int  # tiles that each wave reads from local memory, of those that the loop streams
    tiles: int  # tiles read before the loop or written after it


WORK = {
    "attn_fwd": Work(2, 12, 2, 2),
    "attn_fwd_split": Work(2, 12, 2, 2),
    "attn_fwd_combine": Work(0, 0, 0, 32),  # one row, and fp32 results of sixteen splits
    "attn_bwd_preprocess": Work(0, 0, 0, 2),
    "attn_bwd_dk_dv": Work(4, 14, 4, 4),
    "attn_bwd_dq": Work(3, 14, 3, 3),
}

UNCOUNTED = Work(4, 14, 4, 4)  # of a kernel that is not in the table

# BLOCK_M x BLOCK_N by head dim, as published in tuned settings of Triton attention kernels on MI300X, long sequences.
# Those kernels are not these, but they were measured. Of head dim 32, and dq of 256: the tile of this description that
# wins most of the rows from 2048 on in AOTriton's own table for gfx942 (commit 30ae967; winners without times).
PUBLISHED = {
    ("attn_fwd", 32): (128, 64),
    ("attn_fwd", 64): (128, 64),
    ("attn_fwd", 128): (128, 64),
    ("attn_fwd", 256): (64, 32),
    ("attn_bwd_dk_dv", 64): (64, 32),
    ("attn_bwd_dk_dv", 128): (64, 32),
    ("attn_bwd_dq", 32): (64, 64),
    ("attn_bwd_dq", 64): (64, 64),
    ("attn_bwd_dq", 128): (64, 16),
    ("attn_bwd_dq", 256): (64, 16),
}
PRIOR = 0.65  # share of its estimated time that a published tile is charged

SHORT = 64  # cells whose tiled sequence is not longer share one winner, the others of a functional another


# TFLOP/s of the forward pass on an MI300X by sequence length, as published: bf16, causal, head dim 128, batch 16,
# 16 heads. PyTorch's attention there is AOTriton's Triton kernel, whose tile for these is PUBLISHED's.
PUBLISHED_THROUGHPUT = {1024: 164, 2048: 214, 4096: 257, 8192: 290, 16384: 307}


class Program(NamedTuple):
    """Cycles of one program of an image; ``passes`` of its loop take more."""

    moved: float  # at most a share of the memory: to read and write what is not in the loop
    busiest: float  # part of the unit, in one pass
    alone: float  # one pass, where nothing hides behind another program
    latency: int

    def around(self, resident: float) -> float:
        """Cycles before and after the loop, of ``resident`` programs at once."""
        return max(resident * self.moved, self.moved + self.latency)

    def one_pass(self, resident: float) -> float:
        """Cycles of one pass of the loop, of ``resident`` programs at once."""
        return max(resident * self.busiest, self.alone)


def _sides(functional: Functional) -> tuple[str, str, str, str]:
    """The side whose rows the grid walks and its block, the other one that the loop streams and its block."""
    of_queries = tiled_side(functional.kernel) == "q"
    return ("q", "BLOCK_M", "k", "BLOCK_N") if of_queries else ("k", "BLOCK_N", "q", "BLOCK_M")


def _program(functional: Functional, candidate: Candidate) -> Program:
    config, work = candidate.config, WORK.get(functional.kernel.function, UNCOUNTED)
    unit = unit_of(functional.arch_spec)
    _, tiled, _, streamed = _sides(functional)
    rows, columns = config.get(tiled, 1), config.get(streamed, 0)
    row_bytes = int(functional["BLOCK_DMODEL"]) * ELEMENT
    warps = config["num_warps"]
    moved = work.tiles * rows * row_bytes / unit.memory_bytes
    if not columns:
        return Program(moved, 0, 0, unit.latency)
    scores = rows * columns
    computed = work.products * scores * row_bytes / unit.matrix_flops + work.operations * scores / unit.vector_lanes
    shared = (2 + warps * work.reads) * columns * row_bytes / unit.shared_bytes
    # What one program alone reads comes from memory.
    cached = 2 * columns * row_bytes / (unit.memory_bytes if splits_keys(functional.kernel) else unit.cache_bytes)
    busiest = max(computed / unit.simds, shared, cached)
    return Program(moved, busiest, computed / min(warps, unit.simds) + shared + cached + unit.latency, unit.latency)


def estimate(functional: Functional, cell: Cell, candidate: Candidate) -> float:
    """Cycles that a compute unit needs for its share of the problem that stands for ``cell``. Good to compare with."""
    config, program = candidate.config, _program(functional, candidate)
    keys = keys_of(functional, cell)
    of, tiled, along, streamed = _sides(functional)
    rows, length = config.get(tiled, 1), keys[f"max_seqlen_{of}"]
    share = (
        keys.get("waves", unit_of(functional.arch_spec).most_waves) * -(-length // rows) / -(-length // REFERENCE_TILE)
    )
    resident = min(resident_programs(candidate, functional.arch_spec), max(1, share))
    cycles = program.around(resident)
    if streamed in config:
        passes = -(-keys[f"max_seqlen_{along}"] // config[streamed])
        cycles += program.one_pass(resident) * (passes / 2 if functional.get("CAUSAL", False) else passes)
    return cycles * max(1, share) / resident


def call_time(functional: Functional, sizes: Mapping[str, int], candidate: Candidate) -> float:
    """Microseconds that a call of these sizes takes: the estimate, with PRIOR on the loop of a published tile, times
    the ``level`` of its kernel.
    """
    return _unscaled(functional, sizes, candidate) * level(functional.kernel)


def source(functional: Functional) -> str:
    """What ``call_time`` is derived from."""
    tiles = functional.addressing != "general" and (functional.kernel.name, functional["BLOCK_DMODEL"]) in PUBLISHED
    scaled = level(functional.kernel) != 1
    return (
        f"static model of the compiled image{' and published tiles' if tiles else ''}"
        f"{', scaled to published MI300X throughput' if scaled else ''}"
    )


@cache
def level(kernel: KernelDescription) -> float:
    """What calls take by PUBLISHED_THROUGHPUT over what the model says, in geometric mean, where it is of the kernel.

    1 of others: backward passes are published of other designs only, which say nothing of these kernels.
    """
    if kernel.function != ATTN_FWD.function:
        return 1.0
    one = ATTN_FWD.functional("gfx942", T="bf16", BLOCK_DMODEL=128, CAUSAL=True, ADDRESSING="offset32")
    rows, columns = PUBLISHED[ATTN_FWD.name, 128]
    candidate = Candidate({"BLOCK_M": rows, "BLOCK_N": columns, "num_warps": 4}, 344, 2 * columns * 128 * ELEMENT)

    def ratio(length: int) -> float:
        sizes = {"batch": 16, "heads_q": 16, "heads_k": 16, "seqlen_q": length, "seqlen_k": length}
        flops = 4 * 16 * 16 * length * length * 128 / 2
        return flops / PUBLISHED_THROUGHPUT[length] / 1e6 / _unscaled(one, sizes, candidate)

    return exp(mean(log(ratio(length)) for length in PUBLISHED_THROUGHPUT))


def _unscaled(functional: Functional, sizes: Mapping[str, int], candidate: Candidate) -> float:
    config, program = candidate.config, _program(functional, candidate)
    of, tiled, along, streamed = _sides(functional)
    rows = config.get(tiled, 1)
    tiles = -(-sizes[f"seqlen_{of}"] // rows)
    programs = sizes["batch"] * sizes[f"heads_{of}"] * tiles
    fitting = resident_programs(candidate, functional.arch_spec)
    share = -(-programs // functional.arch_spec.multiprocessors)  # of the busiest compute unit
    passes = [0]
    if streamed in config:
        step, length = config[streamed], sizes[f"seqlen_{along}"]
        repeat = -(-sizes["heads_q"] // sizes["heads_k"]) if of == "k" else 1
        if not functional.get("CAUSAL", False):
            passes = [-(-length // step) * repeat]
        elif of == "q":
            passes = [-(-min((tile + 1) * rows, length) // step) for tile in range(tiles)]
        else:
            passes = [-(-max(length - tile * rows, 0) // step) * repeat for tile in range(tiles)]
    if splits_keys(functional.kernel):
        programs, passes = _splits(functional, sizes, candidate)
        if not programs:
            return 0.0
        share = -(-programs // functional.arch_spec.multiprocessors)
    published = functional.addressing != "general" and _is_published(functional, candidate)

    def one_round(resident: int, passes: float) -> float:
        return program.around(resident) + passes * program.one_pass(resident) * (PRIOR if published else 1)

    full, rest = divmod(share, fitting)
    if len(passes) == 1:  # all programs are equal
        cycles = full * one_round(fitting, passes[0]) + (one_round(rest, passes[0]) if rest else 0)
    else:
        resident = min(fitting, share)
        rounds = programs / functional.arch_spec.multiprocessors / resident
        cycles = max(rounds * one_round(resident, mean(passes)), one_round(resident, max(passes)))
    return cycles / unit_of(functional.arch_spec).cycles


def _splits(functional: Functional, sizes: Mapping[str, int], candidate: Candidate) -> tuple[int, list[int]]:
    """The programs of a kernel that makes or combines results of parts of the keys, and the steps of each."""
    work = functional.kernel.work
    assert work, "the description says what these kernels do"
    tunables, compute_units = dict(candidate.config), functional.arch_spec.multiprocessors
    environment = Environment(sizes, scalars_of(functional, sizes), tunables, multiprocessors=compute_units)
    made = dict(zip(TERMS, terms(work, environment, 1), strict=True))
    return round(made["programs, by multiprocessor"] * compute_units), [int(made["steps of the longest program"])]


def _is_published(functional: Functional, candidate: Candidate) -> bool:
    tile = candidate.config["BLOCK_M"], candidate.config.get("BLOCK_N")
    return tile == PUBLISHED.get((functional.kernel.name, int(functional["BLOCK_DMODEL"])))


def rank(functional: Functional, cells: Sequence[Cell], candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, best first, for cells that share one winner."""
    if functional.arch_spec.compute_unit is None:
        return by_tiles(functional, candidates)
    # Tiles were published for long sequences of aligned tensors.
    long = not is_short(functional, cells[0]) and functional.addressing != "general"
    fastest = {cell: min(estimate(functional, cell, candidate) for candidate in candidates) for cell in cells}

    def slowness(candidate: Candidate) -> float:
        """Estimated time over that of the fastest, averaged over the cells."""
        of_cells = sum(estimate(functional, cell, candidate) / fastest[cell] for cell in cells) / len(cells)
        return of_cells * (PRIOR if long and _is_published(functional, candidate) else 1)

    return sorted(candidates, key=lambda c: (slowness(c), sorted(c.config.items())))


def by_tiles(functional: Functional, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates by what they read: the larger the tiles that stay, the less often all others are read; then by the
    rows of a step, and by registers. A kernel that reads everything once is to have small tiles.
    """
    _, tiled, _, streamed = _sides(functional)

    def order(one: Candidate) -> tuple[object, ...]:
        config = one.config
        rows, step = config.get(tiled, 0), config.get(streamed, 0)
        return (-rows, -step) if step else (rows, 0), one.registers, sorted(config.items())

    return sorted(candidates, key=order)


def groups(functional: Functional) -> list[list[Cell]]:
    """Short sequences, and the others; all cells, where the static model does not tell them apart."""
    cells = list(functional.kernel.cells())
    if functional.arch_spec.compute_unit is None:
        return [cells]
    return [[cell for cell in cells if is_short(functional, cell) == short] for short in (True, False)]


def is_short(functional: Functional, cell: Cell) -> bool:
    """Whether the sequence whose rows the grid walks is at most SHORT."""
    return keys_of(functional, cell)[f"max_seqlen_{tiled_side(functional.kernel)}"] <= SHORT
