"""How rms_norm is tuned: shapes that stand for a bin, inputs from a seed, and the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aotriton.rules.kernel import Functional, KernelDescription, Tensor
from aotriton.tune.problem.accuracy import Check, Expected
from aotriton.tune.problem.compute_unit import Candidate, resident_programs
from aotriton.tune.problem.problems import Cell, Problem, Shape, Wish, keys_of, shape_of

if TYPE_CHECKING:
    import torch

SEED = 0


class RmsNormData:
    """Inputs on the GPU, and what comes out in fp64: exactly, and as an ordinary implementation rounds it."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype, device: str) -> None:
        import torch

        generator = torch.Generator(device=device).manual_seed(SEED)
        x = torch.randn(rows, width, generator=generator, device=device).to(dtype)
        weight = torch.randn(width, generator=generator, device=device).to(dtype)
        self.tensors = {"x": x, "weight": weight}
        self.scalars = {"eps": 1e-6}
        wide, factor = x.double(), weight.double()
        true = wide * torch.rsqrt((wide * wide).mean(1, keepdim=True) + 1e-6) * factor
        self._expected = Expected.of(true, true.to(dtype).double())

    def result(
        self, kernel: KernelDescription, argument: Tensor, tunables: Mapping[str, int]
    ) -> tuple[torch.Tensor, float]:
        import torch

        return torch.empty_like(self.tensors["x"]), torch.nan

    def expect(self, kernel: KernelDescription, argument: Tensor) -> None:
        """There is one result, and it is known."""

    def check(
        self, kernel: KernelDescription, argument: Tensor, tunables: Mapping[str, int], actual: torch.Tensor
    ) -> Check:
        import torch

        if not bool(torch.isfinite(actual).all()):
            return Check(None, None, "out has elements that were not written, or are not finite")
        return self._expected.compare("out", actual.double())


class RmsNormTuning:
    """``aotriton.tune.problem.family.Tuning`` of rms_norm."""

    shape_options = ()

    def selects(self, functional: Functional, cell: Cell, wish: Wish) -> bool:
        return True

    def shape(self, functional: Functional, cell: Cell, multiprocessors: int, wish: Wish) -> Shape | None:
        return shape_of(rows=keys_of(functional, cell)["rows"], width=int(functional["WIDTH"]))

    def rank(self, problem: Problem) -> tuple[object, ...]:
        return problem.functional.addressing == "general", -problem.sizes["rows"], problem.sizes["width"]

    def data_key(self, problem: Problem) -> tuple[object, ...]:
        return problem.functional["T"], problem.shape

    def data(self, problem: Problem) -> RmsNormData:
        import torch

        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[str(problem.functional["T"])]
        return RmsNormData(problem.sizes["rows"], problem.sizes["width"], dtype, "cuda")

    def groups(self, functional: Functional) -> Sequence[Sequence[Cell]]:
        return [list(functional.kernel.cells())]

    def guess(self, functional: Functional, cells: Sequence[Cell], candidates: Sequence[Candidate]) -> list[Candidate]:
        """Memory is what it waits for: the more programs a compute unit holds, the better."""
        arch = functional.arch_spec
        return sorted(candidates, key=lambda one: (-resident_programs(one, arch), sorted(one.config.items())))


TUNING = RmsNormTuning()
