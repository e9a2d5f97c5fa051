"""From a shape to matrices, their product in high precision, and the error that rounding it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from aotriton.rules.expression import Environment
from aotriton.rules.gemm.operator import HOPPER_SPLIT
from aotriton.rules.kernel import KernelDescription, Tensor
from aotriton.rules.operators import derived_sizes
from aotriton.tune.problem.accuracy import Check, Expected

if TYPE_CHECKING:
    import torch

SEED = 0
GROUP_M = 8  # of tritonsrc/gemm/lib/tile.py
PARTS_TILE = 128  # rows and columns of the tiles that gemm_reduce is measured with
MOST_SPLITS = 16
# Sums that stay in fp32 have no rounding to T to derive a tolerance from. Tensor cores, which cut off what they do not
# keep, and another order of summation are allowed this much.
FP32_FLOOR = 1e-4

Tile = tuple[int, slice, slice]  # batch, rows and columns of d
SCALARS = {"alpha": 1.0, "activation": 0.0}


def matrices(
    batch: int,
    m: int,
    n: int,
    k: int,
    layout: tuple[bool, bool],
    aligned: bool,
    dtype: torch.dtype,
    device: str,
    seed: int = SEED,
) -> dict[str, torch.Tensor]:
    """Normal a [batch, m, k] and b [batch, k, n]; ``layout``: which of them is stored by columns. Not ``aligned``: what
    is stored has one element between its rows.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def matrix(rows: int, columns: int, transposed: bool) -> torch.Tensor:
        if transposed:
            return matrix(columns, rows, False).transpose(1, 2)
        shape = batch, rows, columns + (0 if aligned else 1)
        stored = torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)
        return stored[:, :, :columns]

    return {"a": matrix(m, k, layout[0]), "b": matrix(k, n, layout[1])}


@dataclass
class Product:
    """One GEMM without bias and activation: a [batch, m, k], b [batch, k, n], d [batch, m, n], on ``device``.

    ``trans_a``, ``trans_b``: the matrices of a, of b, are stored by columns. Not ``aligned``: what is stored has one
    element between its rows. ``multiprocessors`` says how a kernel splits tiles.
    """

    batch: int
    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool
    aligned: bool
    dtype: torch.dtype
    device: str
    multiprocessors: int
    seed: int = SEED
    scalars = SCALARS

    def __post_init__(self) -> None:
        import torch

        torch.set_float32_matmul_precision("highest")  # no TF32
        layout = self.trans_a, self.trans_b
        self.tensors = matrices(
            self.batch, self.m, self.n, self.k, layout, self.aligned, self.dtype, self.device, self.seed
        )

    @cached_property
    def truth(self) -> torch.Tensor:
        """d in fp32, whose rounding is 4 digits finer than what is checked."""
        return self.tensors["a"].float() @ self.tensors["b"].float()

    @cached_property
    def expected(self) -> Expected:
        return Expected.of(self.truth, self.truth.to(self.dtype).float())

    def result(
        self, kernel: KernelDescription, argument: Tensor, tunables: Mapping[str, int]
    ) -> tuple[torch.Tensor, float]:
        import torch

        if argument.operand.name == "d":
            return self.truth.new_empty(self.truth.shape, dtype=self.dtype), torch.nan
        sizes = self._partial_sizes(tunables)
        return self.truth.new_empty([sizes[dim] for dim in argument.operand.dims]), torch.nan

    def expect(self, kernel: KernelDescription, argument: Tensor) -> None:
        _ = self.expected

    def check(
        self,
        kernel: KernelDescription,
        argument: Tensor,
        tunables: Mapping[str, int],
        results: Mapping[str, torch.Tensor],
    ) -> Check:
        actual = results[argument.operand.name]
        if all(one.operand.name != "partial" for one in kernel.arguments if isinstance(one, Tensor)):
            return check_finite("d", actual) or self.expected.compare("d", actual.float())
        sizes = self._partial_sizes(tunables)
        split = split_tiles(self.truth.shape, sizes["tile_m"], sizes["tile_n"], sizes["split_tiles"])
        if argument.operand.name == "partial":
            return self._compare_parts(split, actual.sum(1))
        whole = actual.float()
        for tile in split:  # the other kernel's to write
            whole[tile] = self.truth[tile]
        return check_finite("d", whole) or self.expected.compare("d", whole)

    def _compare_parts(self, split: Sequence[Tile], sums: torch.Tensor) -> Check:
        checks = []
        for i, tile in enumerate(split):
            true = self.truth[tile]
            part = sums[i, : true.shape[0], : true.shape[1]]
            name = f"the sum of the parts of tile {i}"
            checks.append(check_finite(name, part) or Expected(true, FP32_FLOOR, FP32_FLOOR).compare(name, part))
        return max(checks, key=lambda check: check.badness)

    def _partial_sizes(self, tunables: Mapping[str, int]) -> dict[str, int]:
        sizes = {"batch": self.batch, "m": self.m, "n": self.n, "k": self.k}
        return derived_sizes(HOPPER_SPLIT, Environment(sizes, tunables=tunables, multiprocessors=self.multiprocessors))


@dataclass
class Parts:
    """The input of gemm_reduce: parts of as many tiles as a kernel with tiles of PARTS_TILE leaves, at least one."""

    batch: int
    m: int
    n: int
    k: int
    dtype: torch.dtype
    device: str
    multiprocessors: int
    seed: int = SEED
    scalars = SCALARS

    def __post_init__(self) -> None:
        import torch

        tiles = self.batch * -(-self.m // PARTS_TILE) * -(-self.n // PARTS_TILE)
        left = tiles % self.multiprocessors or 1
        splits = max(2, min(self.multiprocessors // left, MOST_SPLITS))
        generator = torch.Generator(device=self.device).manual_seed(self.seed)
        parts = torch.empty(left, splits, PARTS_TILE, PARTS_TILE, dtype=torch.float32, device=self.device)
        self.tensors = {"partial": parts.normal_(generator=generator)}

    @cached_property
    def truth(self) -> torch.Tensor:
        """d in fp32; NaN in tiles that are whole."""
        import torch

        true = torch.full((self.batch, self.m, self.n), torch.nan, device=self.device)
        sums = self.tensors["partial"].double().sum(1).float()
        for i, tile in enumerate(self._split):
            true[tile] = sums[i, : true[tile].shape[0], : true[tile].shape[1]]
        return true

    def result(
        self, kernel: KernelDescription, argument: Tensor, tunables: Mapping[str, int]
    ) -> tuple[torch.Tensor, float]:
        import torch

        return torch.empty(self.batch, self.m, self.n, dtype=self.dtype, device=self.device), torch.nan

    def expect(self, kernel: KernelDescription, argument: Tensor) -> None:
        _ = self.truth

    def check(
        self,
        kernel: KernelDescription,
        argument: Tensor,
        tunables: Mapping[str, int],
        results: Mapping[str, torch.Tensor],
    ) -> Check:
        actual = results[argument.operand.name]
        whole = actual.clone()
        for tile in self._split:
            whole[tile] = float("nan")
        if not bool(whole.isnan().all()):
            return Check(None, None, "d was written outside of the split tiles")
        checks = [check_finite("d", actual[tile]) or self._compare(tile, actual) for tile in self._split]
        return max(checks, key=lambda check: check.badness)

    def _compare(self, tile: Tile, actual: torch.Tensor) -> Check:
        true = self.truth[tile]
        return Expected.of(true, true.to(self.dtype).float()).compare(f"tile {tile} of d", actual[tile].float())

    @cached_property
    def _split(self) -> list[Tile]:
        shape = self.batch, self.m, self.n
        return split_tiles(shape, PARTS_TILE, PARTS_TILE, len(self.tensors["partial"]))


def check_finite(name: str, actual: torch.Tensor) -> Check | None:
    """A verdict where a result still is NaN, as it was before the launch."""
    if bool(actual.isfinite().all()):
        return None
    return Check(None, None, f"{name} has elements that were not written, or are not finite")


def split_tiles(shape: Sequence[int], tile_m: int, tile_n: int, count: int) -> list[Tile]:
    """The last ``count`` tiles of d, [batch, m, n], in the order of the kernels' ``tile_at``."""
    batch, m, n = shape
    tiles_m, tiles_n = -(-m // tile_m), -(-n // tile_n)
    found = []
    for number in range(batch * tiles_m * tiles_n - count, batch * tiles_m * tiles_n):
        matrix, tile = divmod(number, tiles_m * tiles_n)
        band, tile = divmod(tile, GROUP_M * tiles_n)
        height = min(tiles_m - band * GROUP_M, GROUP_M)
        row, column = (band * GROUP_M + tile % height) * tile_m, tile // height * tile_n
        found.append((matrix, slice(row, row + tile_m), slice(column, column + tile_n)))
    return found
