"""How attention is tuned: which cells by default, in which shapes and order, on which data."""

from __future__ import annotations

from collections.abc import Sequence

from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.flash.common import HEAD_DIM, REFERENCE_TILE, tiled_side, waves
from aotriton.rules.kernel import Functional
from aotriton.tune.compute_unit import Candidate
from aotriton.tune.family import Data
from aotriton.tune.flash import estimate
from aotriton.tune.problems import Cell, Problem, Shape, Wish, keys_of, shape_of

FULL = waves("q").representatives[-1]  # kernels without the waves key are measured on a full GPU

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


class FlashTuning:
    """``tune.family.Tuning`` of attention."""

    shape_options = ("batch", "heads")

    def wanted(self, functional: Functional, cell: Cell, wish: Wish) -> bool:
        keys = keys_of(functional, cell)
        seqlen_q = keys["max_seqlen_q"]
        diagonal = seqlen_q == keys.get("max_seqlen_k", seqlen_q)
        if functional.get("CAUSAL", False) and not diagonal:
            return False  # causal needs seqlen_q == seqlen_k, so this cell is never reached
        if wish.bins.get("max_seqlen_q") and wish.bins.get("max_seqlen_k"):
            return True
        if functional.addressing == "general" and not any((wish.choices.get("ADDRESSING"), *wish.bins.values())):
            return all(GENERAL_BIN[name] == value for name, value in keys.items())
        return diagonal or (keys in SHORT_QUERY_BINS and not any(wish.bins.values()))

    def shape(self, functional: Functional, cell: Cell, multiprocessors: int, wish: Wish) -> Shape | None:
        """A shape in the middle of the cell's bin, queries and keys with the same number of heads."""
        keys, side = keys_of(functional, cell), tiled_side(functional.kernel)
        seqlen_q = keys["max_seqlen_q"]
        seqlen_k = keys.get("max_seqlen_k", seqlen_q)
        tiled = seqlen_q if side == "q" else seqlen_k
        total = max(1, keys.get("waves", FULL) * multiprocessors // -(-tiled // REFERENCE_TILE))
        given = wish.sizes.get("batch")
        heads = wish.sizes.get("heads") or (max(1, total // given) if given else min(total, 16))
        batch = given or max(1, total // heads)
        if "waves" in keys:
            key = waves(side)
            sizes = {"batch": batch, f"heads_{side}": heads, f"seqlen_{side}": tiled}
            reached = evaluate(key.quantity, Environment(sizes=sizes, multiprocessors=multiprocessors))
            if key.representatives[key.bin_of(reached)] != keys["waves"]:
                return None
        head_dim = int(functional["BLOCK_DMODEL"])
        return shape_of(batch=batch, heads=heads, seqlen_q=seqlen_q, seqlen_k=seqlen_k, head_dim=head_dim)

    def rank(self, problem: Problem) -> tuple[object, ...]:
        functional, keys = problem.functional, problem.keys
        seqlen_q = keys["max_seqlen_q"]
        return (
            functional.addressing == "general",
            functional["T"] != "bf16",
            seqlen_q != keys.get("max_seqlen_k", seqlen_q),
            -keys.get("waves", FULL),
            _place(SEQLEN_RANK, seqlen_q),
            _place(SEQLEN_RANK, keys.get("max_seqlen_k", seqlen_q)),
            _place(HEAD_DIM_RANK, int(functional["BLOCK_DMODEL"])),
            functional.get("CAUSAL", False),  # kernels last: they share inputs and reference
            problem.kernel.name,
        )

    def data_key(self, problem: Problem) -> tuple[object, ...]:
        return problem.functional["T"], problem.shape, bool(problem.functional.get("CAUSAL", False))

    def data(self, problem: Problem) -> Data:
        import torch

        from aotriton.tune.flash.reference import Attention

        dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16}
        return Attention(
            **problem.sizes,
            causal=bool(problem.functional.get("CAUSAL", False)),
            dtype=dtypes[str(problem.functional["T"])],
            device="cuda",
            truth=torch.float32,
        )

    def groups(self, functional: Functional) -> Sequence[Sequence[Cell]]:
        return estimate.groups(functional)

    def guess(self, functional: Functional, cells: Sequence[Cell], candidates: Sequence[Candidate]) -> list[Candidate]:
        return estimate.rank(functional, cells, candidates)


def _place(order: Sequence[int], value: int) -> int:
    return order.index(value) if value in order else len(order)


assert set(HEAD_DIM_RANK) == set(HEAD_DIM.values)
