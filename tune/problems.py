"""What to tune: from kernels, choices and bins to an ordered list of problems, each with a shape for its bin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from aotriton.rules.binning import REFERENCE_TILE, WAVES, bin_text, waves
from aotriton.rules.flash import HEAD_DIM
from aotriton.rules.kernel import Functional, KernelDescription, Value

Cell = tuple[int, ...]

FULL = WAVES.representatives[-1]  # kernels without the waves key are measured on a full GPU

# Most valuable first, so that a run cut by its time budget is useful: what training runs, then the rest.
SEQLEN_RANK = (2048, 8192, 512, 64)
HEAD_DIM_RANK = (128, 64, 256, 32)

# The general addressing serves odd strides and alignments; one measured bin is enough to borrow from.
GENERAL_BIN = {"max_seqlen_q": 512, "max_seqlen_k": 512, "waves": FULL}
# Short queries against long keys on an otherwise empty GPU: decoding and cross attention.
SHORT_QUERY_BINS = (
    {"max_seqlen_q": 64, "max_seqlen_k": 2048, "waves": 1},
    {"max_seqlen_q": 64, "max_seqlen_k": 8192, "waves": 1},
)


@dataclass(frozen=True)
class Shape:
    """Sizes of the tensors; queries and keys have the same number of heads."""

    batch: int
    heads: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int


@dataclass(frozen=True)
class Problem:
    """A functional, a bin and the shape measured for it."""

    functional: Functional
    cell: Cell
    shape: Shape

    @property
    def kernel(self) -> KernelDescription:
        return self.functional.kernel

    @property
    def keys(self) -> dict[str, int]:
        return dict(zip((key.name for key in self.kernel.tuning_keys), self.cell, strict=True))

    @property
    def shape_dict(self) -> dict[str, int]:
        return asdict(self.shape)

    @property
    def shape_text(self) -> str:
        """The shape as the database spells it."""
        return json.dumps(self.shape_dict, sort_keys=True)

    @property
    def bin(self) -> str:
        return bin_text(self.kernel.tuning_keys, self.cell)

    def __str__(self) -> str:
        return f"{self.kernel.name} {self.functional} {self.bin}"


@dataclass(frozen=True)
class Wish:
    """What the user asked for; ``choices`` and ``bins`` map names to allowed values. None or empty is the default."""

    choices: Mapping[str, Sequence[Value]]
    bins: Mapping[str, Sequence[int]]
    batch: int | None = None
    heads: int | None = None


def problems(kernels: Iterable[KernelDescription], arch: str, multiprocessors: int, wish: Wish) -> list[Problem]:
    """The problems that the wish leaves, most valuable first."""
    found = []
    for kernel in kernels:
        for functional in kernel.functionals(arch):
            if not all(functional.get(name, values[0]) in values for name, values in wish.choices.items() if values):
                continue
            if not wish.choices.get("T") and functional["T"] != "bf16":
                continue  # fp16 borrows from bf16: same size, same instructions, same speed
            for cell in kernel.cells():
                if _wanted(functional, cell, wish) and (shape := _shape(functional, cell, multiprocessors, wish)):
                    found.append(Problem(functional, cell, shape))
    return sorted(found, key=_rank)


def _wanted(functional: Functional, cell: Cell, wish: Wish) -> bool:
    keys = dict(zip((key.name for key in functional.kernel.tuning_keys), cell, strict=True))
    seqlen_q = keys["max_seqlen_q"]
    diagonal = seqlen_q == keys.get("max_seqlen_k", seqlen_q)
    if functional.get("CAUSAL", False) and not diagonal:
        return False  # causal needs seqlen_q == seqlen_k, so this cell is never reached
    if any(keys.get(name, values[0]) not in values for name, values in wish.bins.items() if values):
        return False
    if wish.bins.get("max_seqlen_q") and wish.bins.get("max_seqlen_k"):
        return True
    if functional["ADDRESSING"] == "general" and not any((wish.choices.get("ADDRESSING"), *wish.bins.values())):
        return all(GENERAL_BIN[name] == value for name, value in keys.items())
    return diagonal or (keys in SHORT_QUERY_BINS and not any(wish.bins.values()))


def _shape(functional: Functional, cell: Cell, multiprocessors: int, wish: Wish) -> Shape | None:
    """A shape in the middle of the cell's bin; None where the wished batch and heads, or the GPU, do not reach it."""
    kernel = functional.kernel
    keys = dict(zip((key.name for key in kernel.tuning_keys), cell, strict=True))
    seqlen_q = keys["max_seqlen_q"]
    seqlen_k = keys.get("max_seqlen_k", seqlen_q)
    tiled = seqlen_q if kernel.tiled_axis == "q" else seqlen_k
    total = max(1, keys.get("waves", FULL) * multiprocessors // -(-tiled // REFERENCE_TILE))
    heads = wish.heads or (max(1, total // wish.batch) if wish.batch else min(total, 16))
    batch = wish.batch or max(1, total // heads)
    if "waves" in keys:
        reached = WAVES.representatives[WAVES.bin_of(waves(batch, heads, tiled, multiprocessors))]
        if reached != keys["waves"]:
            return None
    return Shape(batch, heads, seqlen_q, seqlen_k, int(functional["BLOCK_DMODEL"]))


def _rank(problem: Problem) -> tuple[object, ...]:
    functional, keys = problem.functional, problem.keys
    seqlen_q = keys["max_seqlen_q"]
    return (
        functional["ADDRESSING"] == "general",
        functional["T"] != "bf16",
        seqlen_q != keys.get("max_seqlen_k", seqlen_q),
        -keys.get("waves", FULL),
        _place(SEQLEN_RANK, seqlen_q),
        _place(SEQLEN_RANK, keys.get("max_seqlen_k", seqlen_q)),
        _place(HEAD_DIM_RANK, int(functional["BLOCK_DMODEL"])),
        functional.get("CAUSAL", False),  # kernels last: they share inputs and reference
        problem.kernel.name,
    )


def _place(order: Sequence[int], value: int) -> int:
    return order.index(value) if value in order else len(order)


assert set(HEAD_DIM_RANK) == set(HEAD_DIM.values)
