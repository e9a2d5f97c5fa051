"""How GEMM is tuned: which cells by default, in which shapes and order, on which data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from aotriton.rules.gemm.operator import GEMM_REDUCE
from aotriton.rules.kernel import Functional
from aotriton.tune.gemm import estimate
from aotriton.tune.problem.compute_unit import Candidate
from aotriton.tune.problem.dtypes import torch_dtype
from aotriton.tune.problem.family import Data, Inputs
from aotriton.tune.problem.problems import Cell, Problem, Shape, Wish, at, belongs, keys_of, log_uniform, shape_of

# Most valuable first, so that a run cut by its time budget is useful: sums as long as a layer is wide, then the rest.
K_RANK = (4096, 14336, 8192, 1024)
# The general addressing serves odd strides and alignments; one measured bin is enough to borrow from.
GENERAL_BIN = {"m": 1024, "columns": 1024, "k": 1024}


# Data of sizes that are no multiples of a tile: so much smaller than a representative, the first that leaves some. Rows
# that a descriptor walks have 16 bytes or a multiple.
FEWER, FEWER_IN_ROWS = (27, 5), (24, 8)

MOST_FLOPS, MOST_BYTES = 3e12, 4e9  # of what is drawn: some 5 ms of an H200


class GemmTuning:
    """``tune.family.Tuning`` of GEMM."""

    shape_options = ("batch",)

    def selects(self, functional: Functional, cell: Cell, wish: Wish) -> bool:
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

    def sizes(self, shape: Mapping[str, int]) -> dict[str, int]:
        return dict(shape)

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
        return self.product_on("cuda", problem, problem.sizes, 0)

    def further(self, problem: Problem) -> Mapping[str, Data]:
        found = {"on other numbers": self.product_on("cuda", problem, problem.sizes, 1)}
        if (ragged := self.ragged(problem)) != problem.sizes:
            found[at(ragged)] = self.product_on("cuda", problem, ragged, 2)
        return found

    def ragged(self, problem: Problem) -> dict[str, int]:
        """Sizes of the problem's cell that are no multiples of a tile, as far as that goes."""
        functional, sizes = problem.functional, problem.sizes
        rows = {"n", "m" if functional.get("TRANS_A", False) else "k", "k" if functional.get("TRANS_B", True) else "n"}
        for name in "mnk":
            steps = FEWER_IN_ROWS if name in rows and functional.addressing != "general" else FEWER
            tried = ({**sizes, name: sizes[name] - step} for step in steps)
            sizes = next((one for one in tried if belongs(problem, one)), sizes)
        return sizes

    def product_on(self, device: str, problem: Problem, sizes: Mapping[str, int], seed: int) -> Data:
        """The data of a problem's functional at some sizes."""
        from aotriton.tune.gemm.reference import Parts, Product

        functional = problem.functional
        dtype = torch_dtype(str(functional["T"]))
        if problem.kernel == GEMM_REDUCE:
            return Parts(
                **sizes,
                dtype=dtype,
                device=device,
                multiprocessors=functional.arch_spec.multiprocessors,
                seed=seed,
            )
        return Product(
            **sizes,
            trans_a=bool(functional["TRANS_A"]),
            trans_b=bool(functional["TRANS_B"]),
            aligned=functional.addressing != "general",
            dtype=dtype,
            device=device,
            multiprocessors=functional.arch_spec.multiprocessors,
            seed=seed,
        )

    def draw(self, functional: Functional, random: Random) -> Shape:
        """m from 1 to 16,384, n and k from 64 to 28,672, half of them multiples of 64, others of 8; some batches."""
        while True:
            multiple = random.choice((8, 64))
            n, k = (multiple * log_uniform(random, 64 // multiple, 28672 // multiple) for _ in range(2))
            m = log_uniform(random, 1, 16384)
            m = m if m < 64 else multiple * -(-m // multiple)
            batch = random.choice((1, 1, 1, 1, 2, 8))
            if 2 * batch * m * n * k <= MOST_FLOPS and 2 * batch * (m * k + n * k + m * n) <= MOST_BYTES:
                return shape_of(batch=batch, m=m, n=n, k=k)

    def inputs(self, functional: Functional, shape: Shape) -> Inputs:
        import torch

        from aotriton.tune.gemm.reference import SCALARS, matrices

        sizes, dtype = dict(shape), torch_dtype(str(functional["T"]))
        layout = bool(functional["TRANS_A"]), bool(functional["TRANS_B"])
        given = matrices(**sizes, layout=layout, aligned=functional.addressing != "general", dtype=dtype, device="cuda")
        made = {"d": torch.empty(sizes["batch"], sizes["m"], sizes["n"], dtype=dtype, device="cuda")}
        return Inputs({**given, **made}, SCALARS, made)

    def groups(self, functional: Functional) -> Sequence[Sequence[Cell]]:
        return estimate.groups(functional)

    def guess(self, functional: Functional, cells: Sequence[Cell], candidates: Sequence[Candidate]) -> list[Candidate]:
        return estimate.rank(functional, cells, candidates)

    def call_time(self, functional: Functional, sizes: Mapping[str, int], candidate: Candidate) -> float:
        return estimate.call_time(functional, sizes, candidate)

    def model_source(self, functional: Functional) -> str:
        return estimate.STATIC
