"""Calls of attention with features: rows that cover every pair of options, and random ones; sizes are small."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pairwise import Row, pairwise

from aotriton.rules.arch import ADDRESSING
from aotriton.rules.flash.features import (
    ALIBI,
    BIAS,
    DROPOUT,
    OF_FULL,
    PACKED,
    SINKS,
    SOFTCAP,
    USED_K,
    USED_Q,
    Feature,
    bits,
    refusal,
)

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One call. ``lengths_q`` and ``lengths_k`` are those of each sequence, or of each batch, which then are equal.

    ``used_q``, ``used_k``: how many rows of each count, None where that is not given. A packed call has ``beyond`` rows
    behind its last sequence, and a max_seqlen that is larger than it needs to be by as many. ``spread`` multiplies q:
    0.3 makes the softmax flat, 8 makes it peaked; with 0 it is the scale that is 0. ``layout``: rows of a head follow
    each other ("heads"), rows of all heads alternate ("rows"), or rows are odd numbers of elements apart ("odd").
    ``bias``: one for all scores ("full"), a row of it for all batches and queries ("broadcast"), minus infinity for
    many scores, and for all of some rows ("hiding"), or none (""). ``alibi``: a slope for each head ("heads"; below -1
    where "negative") and batch ("batch"), or none. ``head_dim_v``: of v; 0: as the others. ``addressing`` is that of
    kernels which a test launches by itself; the library chooses its own.
    """

    lengths_q: Lengths
    lengths_k: Lengths
    packed: bool = False
    used_q: Lengths | None = None
    used_k: Lengths | None = None
    beyond: int = 0
    heads_k: int = 2
    group: int = 1
    head_dim: int = 32
    head_dim_v: int = 0
    dtype: str = "fp16"
    causal: bool = False
    causal_variant: str = "top_left"
    window: tuple[int, int] = (-1, -1)
    bias: str = ""
    alibi: str = ""
    sinks: bool = False
    softcap: float = 0.0
    dropout: float = 0.0
    spread: float = 1.0
    layout: str = "heads"
    addressing: str = "general"
    number: int = 0  # of the random inputs

    def __post_init__(self) -> None:
        if self.bias and self.packed:
            raise ValueError("a packed call has no bias")
        if not self.packed and len({*self.lengths_q}) * len({*self.lengths_k}) > 1:
            raise ValueError("batches have equal lengths")

    def __str__(self) -> str:
        mask = f"{self.causal_variant}" if self.causal else "full" if self.causal_variant == "top_left" else "br"
        if self.window != (-1, -1):
            mask += "-window{}:{}".format(*self.window)
        lengths = "x".join(map(_spelled, (self.lengths_q, self.lengths_k)))
        used = "x".join(map(_spelled, (self.used_q, self.used_k)))
        given = {"bias": self.bias, "alibi": self.alibi, "softcap": self.softcap, "dropout": self.dropout}
        features = [f"{name}{value}" for name, value in given.items() if value] + ["sinks"] * self.sinks
        return "-".join(
            [
                "packed" if self.packed else "dense", lengths, *([f"used{used}"] if self.used_q or self.used_k else []),
                f"h{self.heads_q}:{self.heads_k}", f"d{self.head_dim}" + f":{self.head_dim_v}" * bool(self.head_dim_v),
                self.dtype, mask, *features,
                f"spread{self.spread:g}", self.layout, self.addressing, str(self.number),
            ]
        )  # fmt: skip

    @property
    def features(self) -> tuple[Feature, ...]:
        """Those that the call asks for; of a window, or of a mask that is aligned at the last key, none is told."""
        given = {PACKED: self.packed, USED_Q: self.used_q is not None, USED_K: self.used_k is not None}
        return tuple(one for one, has in (given | {one: getattr(self, one.name) for one in VALUES}).items() if has)

    @property
    def heads_q(self) -> int:
        return self.heads_k * self.group

    @property
    def batch(self) -> int:
        return 1 if self.packed else len(self.lengths_q)

    @property
    def rows_q(self) -> int:
        """Of a tensor."""
        return sum(self.lengths_q) + self.beyond if self.packed else self.lengths_q[0]

    @property
    def rows_k(self) -> int:
        return sum(self.lengths_k) + self.beyond if self.packed else self.lengths_k[0]

    @property
    def q_shape(self) -> tuple[int, ...]:
        return (self.batch, self.heads_q, self.rows_q, self.head_dim)

    @property
    def k_shape(self) -> tuple[int, ...]:
        return (self.batch, self.heads_k, self.rows_k, self.head_dim)

    @property
    def v_shape(self) -> tuple[int, ...]:
        return (*self.k_shape[:3], self.head_dim_v or self.head_dim)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (*self.q_shape[:3], self.head_dim_v or self.head_dim)

    @property
    def bias_shape(self) -> tuple[int, ...]:
        """Of the bias as it is given."""
        return (self.batch, self.heads_q, self.rows_q, self.rows_k)

    @property
    def scalars(self) -> dict[str, Any]:
        """The numbers of the call, but for sm_scale, as the binding takes them."""
        left, right = self.window
        longest = {f"max_seqlen_{side}": max(one) + self.beyond for side, one in
                   (("q", self.lengths_q), ("k", self.lengths_k))}  # fmt: skip
        return {
            "causal": self.causal, "causal_variant": self.causal_variant, "window_left": left, "window_right": right,
            "softcap": self.softcap, "dropout": self.dropout, **(longest if self.packed else {}),
        }  # fmt: skip

    @property
    def sm_scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5)) if self.spread else 0.0

    @property
    def seed(self) -> int:
        """Of dropout; the high half counts, too."""
        return random.Random(f"seed {self.number}").getrandbits(64) - (1 << 63)

    @property
    def offset(self) -> int:
        """Its high half is one that wraps when heads are added."""
        return (0xFFFFFFFF << 32 | random.Random(f"offset {self.number}").getrandbits(32)) - (1 << 64)


def _spelled(lengths: Lengths | None) -> str:
    """All of them, or where they are many how many, and the least and the most."""
    if lengths is None:
        return "all"
    return "_".join(map(str, lengths)) if len(lengths) < 9 else f"{len(lengths)}*{min(lengths)}..{max(lengths)}"


def inputs(case: Case) -> dict[str, np.ndarray]:
    """Operands of both operators by name, in float64 and not rounded to the call's type, or in int32.

    Rows that do not count, and rows of no sequence, are NaN, and so is the bias of their scores. Broadcast dimensions
    of bias and alibi_slopes have a size of 1.
    """
    rng = np.random.default_rng(case.number)

    def normal(shape: tuple[int, ...], factor: float = 1.0) -> np.ndarray:
        made: np.ndarray = rng.standard_normal(shape) * factor
        return made

    made = {"q": normal(case.q_shape, case.spread or 1.0), "k": normal(case.k_shape)}
    made |= {"v": normal(case.v_shape), "dout": normal(case.out_shape)}
    counts_q, counts_k = (_counting(case, side) for side in "qk")
    for name, counts in (("q", counts_q), ("dout", counts_q), ("k", counts_k), ("v", counts_k)):
        made[name] = np.where(counts[:, None, :, None], made[name], np.nan)
    if case.bias:
        own = (1, case.heads_q, 1, case.rows_k) if case.bias == "broadcast" else case.bias_shape
        bias = normal(own, 2.0)
        if case.bias == "hiding":
            bias[rng.random(own) < 0.2] = -np.inf
            bias[:, :, rng.random(case.rows_q) < 0.1] = -np.inf
            bias[:, -1, :, : case.rows_k // 2] = -np.inf
        if case.bias != "broadcast":
            bias = np.where((counts_q[:, None, :, None] & counts_k[:, None, None, :]), bias, np.nan)
        made["bias"] = bias
    if case.alibi:
        slopes = rng.random((case.batch if case.alibi == "batch" else 1, case.heads_q))
        made["alibi_slopes"] = -1 - slopes if case.alibi == "negative" else 0.3 * slopes
    if case.sinks:
        made["sinks"] = normal((case.heads_q,), 2.0)
    for side, lengths, used in (("q", case.lengths_q, case.used_q), ("k", case.lengths_k, case.used_k)):
        if case.packed:
            made[f"cu_seqlens_{side}"] = np.cumsum((0, *lengths)).astype(np.int32)
        if used is not None:
            made[f"seqused_{side}"] = np.array(used, np.int32)
    return made


def _counting(case: Case, side: str) -> np.ndarray:
    """[batch, rows]: which rows of q or k count."""
    lengths, used, rows = getattr(case, f"lengths_{side}"), getattr(case, f"used_{side}"), getattr(case, f"rows_{side}")
    ones = [np.arange(length) < count for length, count in zip(lengths, used or lengths, strict=True)]
    if not case.packed:
        return np.stack(ones)
    return np.concatenate([*ones, np.zeros(rows - sum(lengths), bool)])[None]


# ---- which calls -----------------------------------------------------------------------------------------------------

MASKS: dict[str, Row] = {
    "full": {},
    "causal": {"causal": True},
    "bottom_right": {"causal": True, "causal_variant": "bottom_right"},
    "window": {"window": (9, 5)},
    "window bottom_right": {"window": (20, 0), "causal_variant": "bottom_right"},
    "causal window": {"window": (13, -1), "causal": True},
}
# What sequences are, and the values of the other features, by what a case calls them. A test compares both with the
# table of features.
SEQUENCES: dict[str, tuple[Feature, ...]] = {
    "dense": (),
    "packed": (PACKED,),
    "dense used k": (USED_K,),
    "dense used": (USED_K, USED_Q),
    "packed used": (PACKED, USED_K, USED_Q),
}
VALUES: dict[Feature, tuple[Any, ...]] = {
    BIAS: ("", "full", "broadcast", "hiding"),
    ALIBI: ("", "heads", "batch", "negative"),
    SINKS: (False, True),
    SOFTCAP: (0.0, 4.0),
    DROPOUT: (0.0, 0.1, 0.5),
}
OPTIONS: dict[str, tuple[Any, ...]] = {
    "mask": tuple(MASKS),
    "lengths": ("equal", "q longer", "k longer"),
    "sequences": tuple(SEQUENCES),
    **{one.name: values for one, values in VALUES.items()},
    "group": (1, 2, 4),
    "head_dim": (8, 20, 32, 64, 72, 99, 128, 136, 256),
    "head_dim_v": (0, 5, 64, 120),
    "dtype": ("fp16", "bf16", "fp32"),
    "spread": (0.0, 0.3, 8.0),
    "layout": ("heads", "rows", "odd"),
    "addressing": ADDRESSING,
}


def possible(row: Mapping[str, Any]) -> bool:
    """Whether the library takes a call with these options, of which some may be missing."""
    sequences = SEQUENCES[row.get("sequences", "dense")]
    features = bits((*sequences, *(one for one in VALUES if row.get(one.name))))
    if refusal(features) or (PACKED in sequences and row.get("alibi") == "batch"):
        return False
    # Descriptors need rows that begin at 16 bytes, and at level 5 or beyond head dim 128 sequences that end where the
    # tensor does; fp32 and rows that end elsewhere have none.
    dims = row.get("head_dim", 0), row.get("head_dim_v", 0)
    return not (
        row.get("addressing") == "descriptor"
        and (
            row.get("layout") == "odd"
            or row.get("dtype") == "fp32"
            or any(dim % 8 for dim in dims)
            or ((features & OF_FULL or max(dims) > 128) and sequences)
        )
    )


def case_of(row: Row, choose: random.Random, longest: int) -> Case:
    """A call with these options, of random lengths up to ``longest``."""
    row = dict(row)
    mask, relation, sequences = MASKS[row.pop("mask")], row.pop("lengths"), row.pop("sequences")
    packed = PACKED in SEQUENCES[sequences]
    count = choose.randint(2, 4) if packed else choose.randint(1, 3)
    pairs = [_lengths(relation, choose, longest)] * count
    if packed:  # some are empty, on one side or on both
        pairs = [_lengths(relation, choose, longest) for _ in range(count)]
        pairs[choose.randrange(count)] = choose.choice([(0, 0), (0, 7), (5, 0), (1, 1), (1, longest), (longest, 1)])
        if not sum(k for _, k in pairs) or not sum(q for q, _ in pairs):
            pairs.append((3, 3))
    lengths_q, lengths_k = (tuple(one) for one in zip(*pairs, strict=True))

    def used(lengths: Lengths) -> Lengths:
        return tuple(choose.choice([0, 1, length, choose.randint(0, length), choose.randint(0, length)])
                     if length else 0 for length in lengths)  # fmt: skip

    counts: Row = {}
    if USED_K in SEQUENCES[sequences]:
        counts["used_k"] = used(lengths_k)
    if USED_Q in SEQUENCES[sequences]:
        counts["used_q"] = used(lengths_q)
    return Case(
        lengths_q, lengths_k, packed, **counts, **mask, **row, beyond=choose.choice([0, 6]) if packed else 0,
        heads_k=1 if row["group"] == 4 else choose.choice((1, 2)), number=choose.getrandbits(30),
    )  # fmt: skip


def _lengths(relation: str, choose: random.Random, longest: int) -> tuple[int, int]:
    short, long = sorted(choose.sample(range(1, longest), 2))
    return {"equal": (long, long), "q longer": (long, short), "k longer": (short, long)}[relation]


def covering(longest: int, options: Mapping[str, tuple[Any, ...]] = OPTIONS) -> list[Case]:
    """Calls that have every possible pair of options."""
    choose = random.Random(4)
    return [case_of(row, choose, longest) for row in pairwise(options, possible)]


def random_cases(count: int, seed: int, longest: int) -> list[Case]:
    """Calls with random options; heads of any dim, mostly a multiple of 8 and that of v, too, and half of the features
    of a call left out.
    """
    choose = random.Random(seed)
    made: list[Case] = []
    plain = {one.name: values[0] for one, values in VALUES.items()}
    while len(made) < count:
        row = {name: choose.choice(values) for name, values in OPTIONS.items()}
        row["softcap"] = choose.choice([0.0, 0.5, 4.0, 50.0])
        row |= {name: value for name, value in plain.items() if choose.random() < 0.4}
        step = choose.choice((1, 8, 8))
        row["head_dim"] = step * choose.randint(1, 256 // step)
        row["head_dim_v"] = choose.choice((0, 0, step * choose.randint(1, 256 // step)))
        if possible(row):
            case = case_of(row, choose, longest)
            window = (choose.choice([-1, 0, choose.randint(0, longest)]), choose.choice([-1, 0, 3]))
            made.append(replace(case, window=window) if case.window != (-1, -1) else case)
    return made
