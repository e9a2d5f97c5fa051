"""The GEMM kernels that are no Gluon, run by Triton's interpreter, against products in float64.

The tolerance of a case is what a plain low-precision implementation gets wrong on the same inputs, twice over.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import erf
from typing import Any

import numpy as np
import pytest
from test_kernels import assert_close, round_to

from aotriton.rules.gemm.operator import GEMM_REDUCE

ACTIVATIONS = ("none", "relu", "gelu", "silu")
BAND = 8  # rows of tiles that gemm_hopper goes through column by column


@dataclass(frozen=True)
class Finish:
    """What becomes of a product: activation(alpha x + bias).

    ``bias`` goes along "n", along "m", as the caller's n does in a swapped call, or is not there.
    """

    bias: str = ""
    activation: str = "none"
    alpha: float = 1.0

    def __str__(self) -> str:
        return f"bias{self.bias or 'less'}-{self.activation}-alpha{self.alpha:g}"

    def of(self, x: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """Of a product [batch, m, n], in its own precision."""
        along = {"n": bias[None, None, :], "m": bias[None, :, None], "": 0.0}[self.bias]
        x = self.alpha * x + along
        if self.activation == "relu":
            return np.maximum(x, 0)
        if self.activation == "gelu":
            return x * 0.5 * (1 + np.vectorize(erf)(x / 2**0.5))
        return x / (1 + np.exp(-x)) if self.activation == "silu" else x

    @property
    def scalars(self) -> dict[str, Any]:
        """As a call gives them."""
        activation = ACTIVATIONS.index(self.activation)
        return {"alpha": self.alpha, "activation": activation, "swapped": int(self.bias == "m")}

    @property
    def absent(self) -> frozenset[str]:
        return frozenset() if self.bias else frozenset({"bias"})

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """A swapped call has exchanged m and n, but not in the bias."""
        return {"Bias": ("m",)} if self.bias == "m" else {}

    def length(self, m: int, n: int) -> int:
        return m if self.bias == "m" else n


def padded(length: int) -> int:
    """Elements beyond a row of this length: some, up to the next multiple of 16 bytes."""
    return -length % 8 + 8


@dataclass(frozen=True)
class Case:
    """One product, and one way to store it and to tile it. ``trans`` names the tensors that are stored by columns."""

    m: int
    n: int
    k: int
    finish: Finish = Finish()
    addressing: str = "descriptor"
    trans: str = ""
    T: str = "fp16"
    batch: int = 1
    block: tuple[int, int, int] = (32, 32, 32)

    def __str__(self) -> str:
        tile = "x".join(map(str, self.block))
        stored = f"{self.trans or 'none'}-by-columns"
        return f"{self.T}-b{self.batch}-m{self.m}-n{self.n}-k{self.k}-{tile}-{stored}-{self.addressing}-{self.finish}"

    @property
    def gaps(self) -> dict[str, int]:
        """Rows apart from each other, by whole vectors but where addressing is general."""
        rows = {"A": (self.m, self.k), "B": (self.k, self.n), "D": (self.m, self.n)}
        lengths = {name: sizes[0 if name in self.trans else 1] for name, sizes in rows.items()}
        return {name: 3 if self.addressing == "general" else padded(length) for name, length in lengths.items()}

    @property
    def values(self) -> dict[str, Any]:
        """Scalars, choices and tunables."""
        general = self.addressing == "general"
        return {
            **self.finish.scalars,
            **dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), self.block, strict=True)),
            "GROUP_M": 8,
            "T": self.T,
            "TRANS_A": "A" in self.trans and not general,
            "TRANS_B": "B" in self.trans or general,
            "ADDRESSING": self.addressing,
        }


FINISHES = (
    Finish(),
    Finish("n", "relu"),
    Finish("m", "gelu", 0.375),
    Finish("m", "silu", -2.0),
    Finish("n", "gelu"),
    Finish("m", "relu"),
    Finish("n", "silu", 0.5),
    Finish("", "gelu", 0.375),
)
# How A and B are stored and reached, with one finish each on its way through all of them; sides that no tile divides.
WAYS = tuple(
    Case(33, 40, 19, FINISHES[(place + turn) % len(FINISHES)], addressing, trans, T, batch=2)
    for turn, T in enumerate(("fp16", "bf16"))
    for place, (trans, addressing) in enumerate(product(("", "A", "B", "AB"), ("descriptor", "offset32", "general")))
)
CASES = (
    *WAYS,
    Case(1, 8, 8),
    Case(1, 1, 1, Finish("m"), "offset32"),
    Case(1, 1, 1, Finish("n"), "general"),
    Case(64, 64, 64, Finish("n"), trans="B"),
    Case(65, 40, 100, Finish("n", "silu", 0.5), batch=2, block=(32, 32, 64)),
    Case(65, 41, 100, Finish("n", "gelu"), "general", batch=2),
    Case(65, 41, 100, Finish("m", "gelu"), "general", "D", T="bf16", batch=2),
    # Where m and n are multiples of 8, loads along them are said to be.
    Case(64, 40, 33, Finish("n", "silu"), "offset32"),
    Case(64, 40, 33, Finish(alpha=-2.0), "offset32", "A", batch=3),
    Case(64, 33, 40, Finish("m"), "offset32", "AB"),
    Case(300, 40, 16, trans="B", T="bf16", block=(32, 16, 32)),  # more than one band of tiles
    Case(5, 90, 16, Finish("n", "gelu"), "general", block=(16, 64, 16)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gemm(launch: Any, case: Case) -> None:
    """gemm writes act(alpha A B + bias), however A and B are stored, and nothing outside of D."""
    rng = np.random.default_rng(3)
    a = round_to(case.T, rng.standard_normal((case.batch, case.m, case.k)))
    b = round_to(case.T, rng.standard_normal((case.batch, case.k, case.n)))
    finish = case.finish
    bias = round_to(case.T, rng.standard_normal(finish.length(case.m, case.n)))
    orders = dict.fromkeys(case.trans, (0, 2, 1))
    shapes = {"D": (case.batch, case.m, case.n)}
    inputs = {"A": a, "B": b, "Bias": bias}
    results = launch("gemm", inputs, shapes, case.values, case.gaps, finish.absent, orders, finish.dims)
    exact = finish.of(a @ b, bias)
    plain = round_to(case.T, finish.of(a.astype(np.float32) @ b.astype(np.float32), bias.astype(np.float32)))
    assert_close("D", results["D"], exact, plain)


def test_cases_reach_every_finish() -> None:
    """Each activation, with a bias along n, along m and with none; and every way to store A and B in both types."""
    assert {(case.finish.bias, case.finish.activation) for case in CASES} >= {
        *product("nm", ("relu", "gelu", "silu")),
        ("", "none"),
        ("", "gelu"),
    }
    ways = {(case.addressing, case.trans, case.T) for case in WAYS}
    assert len(ways) == len(WAYS) == 3 * 4 * 2


@dataclass(frozen=True)
class Split:
    """A D whose tiles from ``whole`` on are split."""

    m: int
    n: int
    splits: int
    finish: Finish = Finish()
    whole: int = 0
    tile: tuple[int, int] = (64, 64)
    T: str = "fp16"
    batch: int = 1

    def __str__(self) -> str:
        tile = "x".join(map(str, self.tile))
        return f"{self.T}-b{self.batch}-m{self.m}-n{self.n}-{tile}-whole{self.whole}-splits{self.splits}-{self.finish}"

    def tiles(self) -> list[tuple[int, slice, slice]]:
        """Batch, rows and columns of each tile that is split, in the order of gemm_hopper."""
        (rows, columns), down = self.tile, range(-(-self.m // self.tile[0]))
        found = [
            (batch, slice(row * rows, min((row + 1) * rows, self.m)), slice(column, min(column + columns, self.n)))
            for batch in range(self.batch)
            for first in down[::BAND]
            for column in range(0, self.n, columns)
            for row in down[first : first + BAND]
        ]
        return found[self.whole :]


SPLITS = (
    Split(64, 128, 4),
    Split(9, 65, 8, Finish("n", "relu")),
    Split(70, 200, 3, Finish("m", "silu", 0.5), whole=3, batch=2),
    Split(70, 200, 3, Finish("n", "gelu", -0.37), whole=11, batch=2, T="bf16"),
    Split(130, 33, 5, Finish("", "gelu"), whole=1, tile=(16, 64)),
    Split(33, 300, 16, Finish("m"), whole=2, tile=(16, 128), T="bf16"),
    Split(33, 72, 2, Finish("n"), tile=(128, 64)),
    Split(1100, 70, 2, Finish("n", "silu"), whole=3),  # more than one band of tiles
    Split(1100, 70, 2, Finish("m", "gelu", 0.375), whole=30, T="bf16"),
)


@pytest.mark.parametrize("case", SPLITS, ids=str)
def test_gemm_reduce(launch: Any, case: Split) -> None:
    """gemm_reduce writes act(alpha sum(parts) + bias) to the tiles of D that are split, and to nothing else. Of a tile
    at an edge the parts hold anything beyond it.
    """
    rng, finish, tiles = np.random.default_rng(5), case.finish, case.tiles()
    shape, nan = (case.batch, case.m, case.n), float("nan")
    # On their way to D sums are rounded to fp32 at best: parts are.
    whole = rng.standard_normal((case.splits, *shape)).astype(np.float32)
    partial = np.full((len(tiles), case.splits, *case.tile), nan, np.float32)
    split = np.zeros(shape, bool)
    for part, (batch, rows, columns) in enumerate(tiles):
        piece = whole[:, batch, rows, columns]
        partial[part, :, : piece.shape[1], : piece.shape[2]] = piece
        split[batch, rows, columns] = True
    bias = round_to(case.T, rng.standard_normal(finish.length(case.m, case.n)))
    values = {**finish.scalars, "T": case.T, "ADDRESSING": "descriptor"}
    values |= {name: tunable[0] for name, tunable in GEMM_REDUCE.tunable_values("cuda").items()}
    inputs = {"Partial": partial, "D": np.full(shape, nan), "Bias": bias}
    gaps = {"D": padded(case.n)}
    written = launch("gemm_reduce", inputs, {"D": shape}, values, gaps, finish.absent, None, finish.dims)["D"]
    assert np.array_equal(np.isfinite(written), split)
    exact = finish.of(whole.astype(np.float64).sum(0), bias)
    plain = round_to(case.T, finish.of(whole.sum(0), bias.astype(np.float32)))
    assert_close("D", written[split], exact[split], plain[split])
