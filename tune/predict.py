"""gfx942 winners without a GPU: from what the compiler says of each candidate to the likely fastest, by a static model.

The model counts, for one compute unit of an MI300X, the cycles that one pass of a kernel's loop takes from each part of
the unit, and those that one program alone would take. Enough resident programs hide the second behind the first:

    one pass of all resident programs = max(programs x busiest part, one program alone)

How many are resident follows from the registers and the local memory of the image. One thing outranks the estimate: a
tile that was published as good on this GPU wins unless the model finds it more than half as slow again.

Nothing here was measured, and the winners say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images
from aotriton.rules.binning import REFERENCE_TILE, bin_text
from aotriton.rules.database import TuningDatabase, Winner
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.tune.session import prune

Cell = tuple[int, ...]

ELEMENT = 2  # bytes of fp16 and bf16

# One compute unit of an MI300X at 2.1 GHz, after AMD's CDNA 3 white paper; rates are per cycle.
SIMDS = 4
REGISTERS = 512  # of a lane, vector and accumulation registers together; the waves of a SIMD share them
REGISTER_GRANULE = 8
MOST_WAVES = 8  # of a SIMD
MATRIX_FLOPS = 512  # of a SIMD
VECTOR_LANES = 16  # of a SIMD
SHARED_BYTES = 128  # from local memory
CACHE_BYTES = 64  # from the L2 cache
MEMORY_BYTES = 8  # 5.3 TB/s among 304 units
LATENCY = 1000  # cycles from a load to its use, barriers included, in a loop that prefetches nothing


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


@dataclass(frozen=True)
class Candidate:
    """A config and what is known of its image; ``shared`` is in bytes."""

    config: Mapping[str, int]
    registers: int
    shared: int

    @classmethod
    def of(cls, spec: ImageSpec, metadata: Mapping[str, Any]) -> Candidate:
        return cls(dict(spec.psels + spec.copts), int(metadata["registers"]), int(metadata["shared"]))


def resident_programs(candidate: Candidate, shared_limit: int) -> int:
    """Programs that a compute unit holds at once; at least 1, even of an image that does not fit."""
    held = -(-max(candidate.registers, 1) // REGISTER_GRANULE) * REGISTER_GRANULE
    waves = min(MOST_WAVES, REGISTERS // held) * SIMDS
    by_shared = shared_limit // candidate.shared if candidate.shared else waves
    return max(1, min(waves // candidate.config["num_warps"], by_shared))


def estimate(functional: Functional, cell: Cell, candidate: Candidate) -> float:
    """Cycles that a compute unit needs for its share of the problem that stands for ``cell``. Good to compare with."""
    kernel, config, work = functional.kernel, candidate.config, WORK[functional.kernel.name]
    keys = dict(zip((key.name for key in kernel.tuning_keys), cell, strict=True))
    length = {"BLOCK_M": keys["max_seqlen_q"], "BLOCK_N": keys.get("max_seqlen_k", 0)}
    tiled, streamed = ("BLOCK_M", "BLOCK_N") if kernel.tiled_axis == "q" else ("BLOCK_N", "BLOCK_M")
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
    if is_short(functional, cells[0]) or functional["ADDRESSING"] == "general":
        published = None  # it was measured on long sequences of aligned tensors
    fastest = {cell: min(estimate(functional, cell, candidate) for candidate in candidates) for cell in cells}

    def slowness(candidate: Candidate) -> float:
        """Estimated time over that of the fastest, averaged over the cells."""
        mean = sum(estimate(functional, cell, candidate) / fastest[cell] for cell in cells) / len(cells)
        return mean * (PRIOR if (candidate.config["BLOCK_M"], candidate.config.get("BLOCK_N")) == published else 1)

    return sorted(candidates, key=lambda c: (slowness(c), sorted(c.config.items())))


def is_short(functional: Functional, cell: Cell) -> bool:
    """Whether the sequence whose rows the grid walks is at most SHORT."""
    names = [key.name for key in functional.kernel.tuning_keys]
    return cell[names.index(f"max_seqlen_{functional.kernel.tiled_axis}")] <= SHORT


def decide(functional: Functional, found: Sequence[tuple[ImageSpec, Candidate]]) -> list[Winner]:
    """The predicted winner of every cell of ``functional``, among the images ``found``."""
    winners = []
    for short in (True, False):
        cells = [cell for cell in functional.kernel.cells() if is_short(functional, cell) == short]
        best = rank(functional, cells, [candidate for _, candidate in found])[0]
        spec = next(spec for spec, candidate in found if candidate is best)
        for cell in cells:
            winners.append(
                Winner(
                    arch=functional.arch,
                    kernel=functional.kernel.name,
                    functional=str(functional),
                    bin=bin_text(functional.kernel.tuning_keys, cell),
                    image=spec.name,
                    psels=dict(spec.psels),
                    copts=dict(spec.copts),
                    provenance="predicted",
                    source="static model of tune/predict.py",
                )
            )
    return winners


def candidates_of(functional: Functional) -> list[ImageSpec]:
    """Every config of the description: the spaces of an arch without GPUs are small enough to compile whole."""
    kernel, vendor = functional.kernel, functional.target.vendor
    psels, copts = kernel.psels[vendor], kernel.copts[vendor]
    configs = (dict(zip((*psels, *copts), v, strict=True)) for v in product(*psels.values(), *copts.values()))
    return [ImageSpec.of(functional, {n: c[n] for n in psels}, {n: c[n] for n in copts}) for c in configs]


def predict(
    database: TuningDatabase,
    kernels: Sequence[KernelDescription],
    functionals: Iterable[Functional],
    store: ImageStore,
    jobs: int | None = None,
) -> list[Winner]:
    """Compiles all candidates of the functionals of ``kernels``, writes a winner for every cell and returns them.

    ValueError for an arch that the model does not describe, RuntimeError where every candidate fails or is pruned.
    """
    waiting: dict[tuple[str, str], set[str]] = {}
    found: dict[tuple[str, str], list[tuple[ImageSpec, Candidate]]] = {}
    specs: list[ImageSpec] = []
    for functional in functionals:
        if functional.arch != "gfx942":
            raise ValueError(f"the static model describes gfx942, not {functional.arch}: measure there")
        if functional.kernel in kernels:
            made = candidates_of(functional)
            waiting[functional.kernel.name, str(functional)] = {spec.name for spec in made}
            found[functional.kernel.name, str(functional)] = []
            specs += made

    winners: list[Winner] = []
    for spec, image in compile_images(specs, store, jobs):
        functional = spec.functional
        place = functional.kernel.name, str(functional)
        if isinstance(image, CompiledImage) and not prune({image.name: spec}, {image.name: image}):
            found[place].append((spec, Candidate.of(spec, image.metadata)))
        waiting[place].discard(spec.name)
        if waiting[place]:
            continue
        if not found[place]:
            raise RuntimeError(f"{' '.join(place)} {functional.arch}: no candidate compiles, fits and does not spill")
        # In the order of the description, not of compilation: equal candidates are told apart the same way each time.
        decided = decide(functional, sorted(found[place], key=lambda pair: pair[0].config))
        database.put_winners(decided)
        winners += decided
        print(f"{' '.join(place)}: {len({winner.image for winner in decided})} images", flush=True)
    return winners
