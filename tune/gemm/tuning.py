"""How GEMM is tuned: which cells by default, in which shapes and order, on which data."""

from __future__ import annotations

from collections.abc import Sequence

from aotriton.rules.gemm.operator import GEMM_REDUCE
from aotriton.rules.kernel import Functional
from aotriton.tune.compute_unit import Candidate
from aotriton.tune.family import Data
from aotriton.tune.gemm import estimate
from aotriton.tune.problems import Cell, Problem, Shape, Wish, keys_of, shape_of

# Most valuable first, so that a run cut by its time budget is useful: sums as long as a layer is wide, then the rest.
K_RANK = (4096, 14336, 8192, 1024)
# The general addressing serves odd strides and alignments; one measured bin is enough to borrow from.
GENERAL_BIN = {"m": 1024, "columns": 1024, "k": 1024}


class GemmTuning:
    """``tune.family.Tuning`` of GEMM."""

    shape_options = ("batch",)

    def wanted(self, functional: Functional, cell: Cell, wish: Wish) -> bool:
        if functional.addressing == "general" and not any((wish.choices.get("ADDRESSING"), *wish.bins.values())):
            return keys_of(functional, cell) == GENERAL_BIN
        return True

    def shape(self, functional: Functional, cell: Cell, multiprocessors: int, wish: Wish) -> Shape | None:
        """The cell's representatives themselves, which are sizes that layers have."""
        keys = keys_of(functional, cell)
        batch = wish.sizes.get("batch", 1)
        if keys["columns"] % batch:
            return None
        return shape_of(batch=batch, m=keys["m"], n=keys["columns"] // batch, k=keys["k"])

    def rank(self, problem: Problem) -> tuple[object, ...]:
        functional, keys = problem.functional, problem.keys
        return (
            functional.addressing == "general",
            functional["T"] != "bf16",
            (functional.get("TRANS_A", False), not functional.get("TRANS_B", True)),
            K_RANK.index(keys["k"]),
            -keys["columns"],
            keys["m"],
            problem.kernel.name,  # kernels last: they share inputs and truth
        )

    def data_key(self, problem: Problem) -> tuple[object, ...]:
        functional = problem.functional
        layout = functional.get("TRANS_A", False), functional.get("TRANS_B", True), functional.addressing == "general"
        return functional["T"], problem.shape, layout, problem.kernel == GEMM_REDUCE

    def data(self, problem: Problem) -> Data:
        import torch

        from aotriton.tune.gemm.reference import Parts, Product

        functional = problem.functional
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[str(functional["T"])]
        if problem.kernel == GEMM_REDUCE:
            return Parts(**problem.sizes, dtype=dtype, device="cuda", multiprocessors=functional.target.multiprocessors)
        return Product(
            **problem.sizes,
            trans_a=bool(functional["TRANS_A"]),
            trans_b=bool(functional["TRANS_B"]),
            aligned=functional.addressing != "general",
            dtype=dtype,
            device="cuda",
            multiprocessors=functional.target.multiprocessors,
        )

    def groups(self, functional: Functional) -> Sequence[Sequence[Cell]]:
        return estimate.groups(functional)

    def guess(self, functional: Functional, cells: Sequence[Cell], candidates: Sequence[Candidate]) -> list[Candidate]:
        return estimate.rank(functional, cells, candidates)
