"""How attention is tuned: which cells by default, in which shapes and order, on which data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from random import Random

from aotriton.rules.arch import ARCHS
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import operator_of
from aotriton.rules.flash.common import HEAD_DIM_PORTABLE, REFERENCE_TILE, T, tiled_side, waves
from aotriton.rules.flash.planned import ATTN_FWD_HOPPER_PLANNED, ATTN_FWD_PLAN, ATTN_FWD_PLANNED_COMBINE
from aotriton.rules.flash.split import (
    ATTN_FWD_COMBINE,
    ATTN_FWD_DECODE,
    ATTN_FWD_SPLIT,
    KEYS,
    MOST_ROWS,
    OF_CACHES,
    OF_FP8,
    OF_PAGES,
)
from aotriton.rules.kernel import Functional
from aotriton.tune.flash import estimate, stored_keys, untimed
from aotriton.tune.problem.compute_unit import Candidate
from aotriton.tune.problem.dtypes import torch_dtype
from aotriton.tune.problem.family import Data, Inputs
from aotriton.tune.problem.problems import (
    Cell,
    Problem,
    Shape,
    Wish,
    at,
    belongs,
    keys_of,
    log_uniform,
    scalars_of,
    shape_of,
)

FULL = waves("q").representatives[-1]  # kernels without the waves key are measured on a full GPU

# Most valuable first, so that a run cut by its time budget is useful: what training runs, then the rest.
SEQLEN_RANK = (2048, 8192, 512, 64)
HEAD_DIM_RANK = (128, 64, 256, 32, 512)

# The general addressing serves odd strides and alignments; one measured bin is enough to borrow from.
GENERAL_BIN = {"max_seqlen_q": 512, "max_seqlen_k": 512, "waves": FULL}
# Short queries against long keys on an otherwise empty GPU: decoding and cross attention.
SHORT_QUERY_BINS = (
    {"max_seqlen_q": 64, "max_seqlen_k": 2048, "waves": 1},
    {"max_seqlen_q": 64, "max_seqlen_k": 8192, "waves": 1},
)
# Of kernels that split keys, how many queries, of heads that share no keys, stand for a bin.
SPLIT_QUERIES = {
    ATTN_FWD_DECODE: {64: 16},
    ATTN_FWD_SPLIT: {64: 64, 512: 128},
    ATTN_FWD_COMBINE: {64: 16},
    ATTN_FWD_PLAN: {64: 64},
    ATTN_FWD_HOPPER_PLANNED: {64: 64, 512: 128},
    ATTN_FWD_PLANNED_COMBINE: {64: 64},
}
SPLIT_KEYS = {64: (2048, 8192), 512: (8192,)}  # the bins of keys, by that of queries


# Data of lengths that are no multiples of a tile: so many fewer rows than a representative has, the first that leaves
# some; and the most heads, of which an odd number of programs takes tiles.
FEWER = (27, 5)
FEW_HEADS = 3

LONGEST = 16384  # of what is drawn; a call beyond has as much to do for each of its rows
LONGEST_DECODED = 131072
LEAST_WINDOW = 32
MOST_HEADS = 64 * 64  # of all of a batch
MOST_FLOPS, MOST_BYTES = 3e12, 2e9  # of what is drawn: the forward's, some 6 ms of an H200, and its four tensors'


class FlashTuning:
    """``tune.family.Tuning`` of attention."""

    shape_options = ("batch", "heads")
    guessed = tuple(one.arch for one in ARCHS)
    untimed = frozenset(kernel.name for kernel in untimed.SIZES)

    def selects(self, functional: Functional, cell: Cell, wish: Wish) -> bool:
        keys = keys_of(functional, cell)
        if functional.kernel in untimed.SIZES:
            return untimed.is_in(functional, keys, self.sizes(untimed.sizes_of(functional)))
        seqlen_q = keys["max_seqlen_q"]
        diagonal = seqlen_q == keys.get("max_seqlen_k", seqlen_q)
        if functional.get("CAUSAL", False) and not diagonal:
            return False  # of unequal lengths it is a band, so this cell is never reached
        if functional.kernel in SPLIT_QUERIES:
            served = seqlen_q in SPLIT_QUERIES[functional.kernel] and keys["max_seqlen_k"] in SPLIT_KEYS[seqlen_q]
            return served and keys["waves"] == 1 and _measures_level(functional, wish)
        if wish.bins.get("max_seqlen_q") and wish.bins.get("max_seqlen_k"):
            return True
        if functional.addressing == "general" and not any((wish.choices.get("ADDRESSING"), *wish.bins.values())):
            return all(GENERAL_BIN[name] == value for name, value in keys.items())
        return diagonal or (keys in SHORT_QUERY_BINS and not any(wish.bins.values()))

    def shape(self, functional: Functional, cell: Cell, multiprocessors: int, wish: Wish) -> Shape | None:
        """A shape in the middle of the cell's bin, queries and keys with the same number of heads."""
        if functional.kernel in untimed.SIZES:
            return shape_of(**untimed.sizes_of(functional))
        keys, side = keys_of(functional, cell), tiled_side(functional.kernel)
        seqlen_q = keys["max_seqlen_q"]
        seqlen_k = keys.get("max_seqlen_k", seqlen_q)
        if functional.kernel in SPLIT_QUERIES:
            seqlen_q = SPLIT_QUERIES[functional.kernel][seqlen_q]
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
        return shape_of(batch=batch, heads=heads, seqlen_q=seqlen_q, seqlen_k=seqlen_k, head_dim=_head_dim(functional))

    def sizes(self, shape: Mapping[str, int]) -> dict[str, int]:
        heads = {f"heads_{side}": shape["heads"] for side in "qk"} if "heads" in shape else {}
        of_values = {"head_dim_v": shape["head_dim"]} if "head_dim" in shape else {}
        return {**of_values, **shape, **heads}  # values of another head dim are not measured

    def rank(self, problem: Problem) -> tuple[object, ...]:
        functional, keys = problem.functional, problem.keys
        seqlen_q = keys["max_seqlen_q"]
        return (
            functional.addressing == "general",
            functional.level,
            _type(functional) != "bf16",
            seqlen_q != keys.get("max_seqlen_k", seqlen_q),
            -keys.get("waves", FULL),
            _place(SEQLEN_RANK, seqlen_q),
            _place(SEQLEN_RANK, keys.get("max_seqlen_k", seqlen_q)),
            _place(HEAD_DIM_RANK, _head_dim(functional)),
            functional.get("CAUSAL", False),  # kernels last: they share inputs and reference
            problem.kernel.name,
        )

    def data_key(self, problem: Problem) -> tuple[object, ...]:
        functional, keys = problem.functional, stored_keys.stored_as(problem.functional)
        own = problem.kernel.name if problem.kernel in untimed.SIZES else ""
        return _type(functional), problem.shape, bool(functional.get("CAUSAL", False)), functional.level, str(keys), own

    def data(self, problem: Problem) -> Data:
        return self.data_on("cuda", problem, problem.sizes, 0)

    def further(self, problem: Problem) -> Mapping[str, Data]:
        found = {"on other numbers": self.data_on("cuda", problem, problem.sizes, 1)}
        if whole := untimed.WHOLE.get(problem.kernel):
            sizes = {**problem.sizes, **whole}
            found["causal, of keys that are not split"] = self.data_on("cuda", problem, sizes, 2, causal=True)
        if ragged := self.ragged(problem):
            found[at(ragged)] = self.data_on("cuda", problem, ragged, 3)
        return found

    def ragged(self, problem: Problem) -> dict[str, int]:
        """Sizes of the problem's cell, but for its waves: lengths that are no multiples of a tile, of few heads. Pages
        are whole. Empty for kernels that are not timed, whose sizes say it themselves, and where no such lengths are of
        the cell.
        """
        sizes, paged = problem.sizes, stored_keys.stored_as(problem.functional) in OF_PAGES
        if problem.kernel in untimed.SIZES:
            return {}
        few = {"batch": 1, "heads": min(FEW_HEADS, sizes["batch"] * sizes["heads"])}
        for fewer in FEWER:
            of_k = stored_keys.PAGE if paged else fewer
            lengths = {"seqlen_q": sizes["seqlen_q"] - fewer, "seqlen_k": sizes["seqlen_k"] - of_k}
            if belongs(problem, {**sizes, **lengths}):
                return {**sizes, **few, **lengths}
        return {}

    def data_on(self, device: str, problem: Problem, sizes: Mapping[str, int], seed: int, causal: bool = False) -> Data:
        """The data of a problem's functional at some sizes; ``causal``: where no choice says it."""
        import torch

        from aotriton.tune.flash.reference import OTHERS, Attention

        functional = problem.functional
        if other := OTHERS.get(problem.kernel):
            return other(functional, self.sizes(sizes), device, seed)
        asked = {"causal": 0} | scalars_of(functional, sizes)
        keys = stored_keys.stored_as(functional)
        return Attention(
            **sizes,
            # Where keys have a type of their own, it is a band.
            causal=causal or bool(functional.get("CAUSAL", False) if keys else asked["causal"]),
            band=(asked["lo"], asked["hi"]) if asked["level"] and not keys else None,
            keys=keys,
            backend=untimed.splitting(problem.kernel),
            dtype=torch_dtype(_type(functional)),
            device=device,
            truth=torch.float64 if keys or _type(functional) == "fp32" else torch.float32,
            multiprocessors=functional.arch_spec.multiprocessors,
            seed=seed,
        )

    def scalars(self, functional: Functional, sizes: Mapping[str, int]) -> Mapping[str, int]:
        keys, own = stored_keys.stored_as(functional), untimed.scalars(functional)
        if "window" in sizes:
            own |= {"lo": max(sizes["seqlen_k"] - sizes["seqlen_q"], 0) - sizes["window"]}
        return own | stored_keys.scalars(keys, sizes, bool(functional.get("CAUSAL", False))) if keys else own

    def given(self, functional: Functional) -> Set[str]:
        return stored_keys.given(stored_keys.stored_as(functional))

    def draw(self, functional: Functional, random: Random) -> Shape:
        """Sequences of 16 to 16,384, of different lengths in 40 % of what is not causal; 1 to 64 heads, in groups of 1
        to 8, and batches of 1 to 64; of head dims that are padded, too. In half of the calls all heads have 16,384
        rows together at most, as in a short batch of long sequences: their programs run at once, and the longest one
        counts. Where keys may be split, 60 % of the calls decode: one query in half of these, else as many as may be
        split, of up to 131,072 keys, in groups of up to 16; with a band 30 %, and half have sequences of 512 and more.
        Where a level says how keys are held, all calls decode. Half of the calls with a band and at least as many keys
        as rows have a window, of 32 keys or more before the row's own.
        """
        if stored_keys.stored_as(functional) in OF_CACHES[1:]:
            return _draw_of_cache(functional, random)
        padded = int(functional["BLOCK_DMODEL"])
        smaller = max((value for value in HEAD_DIM_RANK if value < padded), default=0)
        decoding = (0.3 if functional.level else 0.6) if _may_split(functional) else 0.0
        while True:
            shortest = 512 if decoding and functional.level and random.random() < 0.5 else 16
            seqlen_q = seqlen_k = log_uniform(random, shortest, LONGEST)
            if not functional.get("CAUSAL", False) and random.random() < 0.4:
                seqlen_k = log_uniform(random, shortest, LONGEST)
            group = random.choice((1, 1, 2, 4, 8))
            most_heads = LONGEST // seqlen_q if random.random() < 0.5 else MOST_HEADS
            if decoding and random.random() < decoding:
                group, most_heads = random.choice((1, 4, 7, 8, 16)), MOST_HEADS
                seqlen_q = 1 if random.random() < 0.5 else log_uniform(random, 2, MOST_ROWS // group)
                seqlen_k = log_uniform(random, 256, LONGEST_DECODED)
            group = group if group <= most_heads else 1
            heads_k = log_uniform(random, 1, min(most_heads, 64) // group)
            batch = log_uniform(random, 1, min(most_heads // (heads_k * group), 64))
            head_dim = padded if random.random() < 0.5 else random.randrange(smaller + 8, padded + 1, 8)
            every_row_sees = seqlen_q <= seqlen_k  # or a logsumexp is minus infinity, of which results are not compared
            windowed = functional.level and every_row_sees and seqlen_k > LEAST_WINDOW and random.random() < 0.5
            window = {"window": log_uniform(random, LEAST_WINDOW, seqlen_k - 1)} if windowed else {}
            pairs, rows = batch * heads_k * group * seqlen_q * seqlen_k, batch * heads_k * (group * seqlen_q + seqlen_k)
            if 4 * pairs * head_dim <= MOST_FLOPS and rows * head_dim * 2 <= MOST_BYTES:
                return shape_of(batch=batch, heads_q=heads_k * group, heads_k=heads_k, seqlen_q=seqlen_q,
                                seqlen_k=seqlen_k, head_dim=head_dim, **window)  # fmt: skip

    def inputs(self, functional: Functional, shape: Shape) -> Inputs:
        from aotriton.tune.flash.call import inputs

        backward = any(one.name == "DO" for one in functional.kernel.arguments)
        sizes = dict(shape)
        asked, keys = {"causal": 0} | scalars_of(functional, sizes), stored_keys.stored_as(functional)
        return inputs(sizes, _type(functional), asked, backward, keys=keys)

    def groups(self, functional: Functional) -> Sequence[Sequence[Cell]]:
        return estimate.groups(functional)

    def guess(self, functional: Functional, cells: Sequence[Cell], candidates: Sequence[Candidate]) -> list[Candidate]:
        return estimate.rank(functional, cells, candidates)

    def call_time(self, functional: Functional, sizes: Mapping[str, int], candidate: Candidate) -> float:
        return estimate.call_time(functional, sizes, candidate)

    def model_source(self, functional: Functional) -> str:
        return estimate.source(functional)


def _type(functional: Functional) -> str:
    """That of the call's results; the one that is measured where the kernel has no tensor of it."""
    return str(functional.get("T", str(T.measured_as)))


def _head_dim(functional: Functional) -> int:
    """Its columns, padded; those of most models where it has the same images for all."""
    return int(functional.get("BLOCK_DMODEL", HEAD_DIM_RANK[0]))


def _measures_level(functional: Functional, wish: Wish) -> bool:
    """Whether cells of the level of a kernel that splits keys are measured: those of 8 bits, and pages of 16 bits if
    they are asked for. These take longer than rows, and the same images win; models of their own would be compared with
    those of another backend for pages, which are of rows.
    """
    if not functional.level:
        return True
    keys = stored_keys.stored_as(functional)
    own = functional.kernel in (ATTN_FWD_DECODE, ATTN_FWD_SPLIT, ATTN_FWD_HOPPER_PLANNED)
    return own and (keys in OF_FP8 or keys in wish.choices.get(KEYS.name, ()))


def _draw_of_cache(functional: Functional, random: Random) -> Shape:
    """A step of decoding in half of the calls, a few tokens or a chunk of a prompt in the others."""
    padded, keys = int(functional["BLOCK_DMODEL"]), stored_keys.stored_as(functional)
    smaller = max((value for value in HEAD_DIM_RANK if value < padded), default=0)
    step = 16 if keys in OF_FP8 else 8
    while True:
        group = random.choice((1, 4, 7, 8, 16))
        seqlen_q = 1 if random.random() < 0.5 else log_uniform(random, 2, MOST_ROWS // group)
        seqlen_k = log_uniform(random, 256, LONGEST_DECODED)
        if keys in OF_PAGES:
            seqlen_k = -(-seqlen_k // stored_keys.PAGE) * stored_keys.PAGE
        heads_k, batch = log_uniform(random, 1, 64 // group), log_uniform(random, 1, 128)
        head_dim = padded if random.random() < 0.5 else random.randrange(smaller + step, padded + 1, step)
        pairs, rows = batch * heads_k * group * seqlen_q * seqlen_k, batch * heads_k * (group * seqlen_q + seqlen_k)
        if 4 * pairs * head_dim <= MOST_FLOPS and rows * head_dim * 2 <= MOST_BYTES:
            return shape_of(batch=batch, heads_q=heads_k * group, heads_k=heads_k, seqlen_q=seqlen_q,
                            seqlen_k=seqlen_k, head_dim=head_dim)  # fmt: skip


def _may_split(functional: Functional) -> bool:
    """Whether a backend of the functional's operator splits the keys of its calls."""
    return any(one in SPLIT_QUERIES and one.like(functional) for one in operator_of(functional.kernel).kernels)


def _place(order: Sequence[int], value: int) -> int:
    return order.index(value) if value in order else len(order)


assert set(HEAD_DIM_RANK) == set(HEAD_DIM_PORTABLE.values)
