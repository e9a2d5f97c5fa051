"""From a shape to inputs, high-precision results and the error that an ordinary low-precision implementation makes.

Everything is worked out one head at a time, so the largest temporary is a few times seqlen_q x seqlen_k fp32 values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import log, sqrt
from typing import TYPE_CHECKING

from aotriton.rules.arch import DTYPES
from aotriton.rules.expression import Environment
from aotriton.rules.family import operator_of
from aotriton.rules.flash.append import KV_APPEND
from aotriton.rules.flash.backward import ATTN_BWD_DSINKS, MARKS
from aotriton.rules.flash.common import BANDED, PLAIN
from aotriton.rules.flash.fp8 import TURNED
from aotriton.rules.flash.invariant import INVARIANT
from aotriton.rules.flash.planned import KEYS, PLANNED, TILE_ROWS
from aotriton.rules.flash.split import OF_8_BITS, SPLIT, Keys
from aotriton.rules.kernel import KernelDescription, Tensor
from aotriton.rules.operators import Backend, derived_sizes
from aotriton.tune.flash import stored_keys
from aotriton.tune.flash.append import Append
from aotriton.tune.flash.dq_layout import from_dq_layout, to_dq_layout
from aotriton.tune.flash.plan import Plan, combine_tiles, plan_of, wrong_with
from aotriton.tune.flash.sinks import Sinks
from aotriton.tune.flash.split import ROWS, in_halves, sums, with_tiles
from aotriton.tune.problem.accuracy import Check, Expected
from aotriton.tune.problem.dtypes import torch_dtype

if TYPE_CHECKING:
    import torch

SUMMED, SHARED = ("dv", "dk"), ("split", "split_of")  # of split tiles, in the order of their halves, and where
PARTIAL, PARTIAL_LSE = PARTIALS = ("partial", "partial_lse")  # of parts of the keys: results, and their logsumexp
PARTS, PARTS_LSE = PARTS_OF_PLAN = ("parts", "parts_lse")  # the same, of the items of a plan
PLAN = ("items", "split_tiles", "counts")  # checked at once
UNCHECKED = (
    *SHARED,
    *PARTIALS,
    *PARTS_OF_PLAN,
    *PLAN,
    TURNED.name,
    MARKS.name,
)  # but as a part of dk and dv, or of out and logsumexp
PEAK = 8.0  # scale of q in peaked heads: logits of this standard deviation leave a few keys with all the weight
SAMPLED_HEADS = 8
MOST_WEIGHT = 256.0  # of weights that are rounded to 8 bits, relative to their row
EIGHTH = 1.15  # of normal numbers so many are above
# Results in fp32 (L, Delta, and all where T is fp32) carry no rounding to derive a tolerance from. Hardware exp2 and
# log2 and another order of summation are allowed this much, which moves P by less than its rounding to 16 bits does.
FP32_FLOOR = 1e-4
# And this much where scores are products of 8 bits, of which Hopper keeps 14 bits of a sum.
FP8_FLOOR = 1e-3

# The data of kernels whose results are not those of attention, but are made before or behind it.
OTHERS: dict[KernelDescription, type[Append | Sinks]] = {KV_APPEND: Append, ATTN_BWD_DSINKS: Sinks}

Head = tuple[int, int]


@dataclass
class Attention:
    """One attention problem on ``device``, forward and backward: inputs, and on a sample of heads the true results.

    q, k, v, out, dout are [batch, heads, seqlen, head_dim] of ``dtype``; lse and delta are what the backward kernels
    are given, [batch, heads, seqlen_q] fp32, for every head. Heads are flat (normal logits) and peaked in turns.
    ``truth`` is the dtype of the high-precision arithmetic: fp32 without TF32 is 4 digits better than 16 bits, and fp32
    needs fp64.
    ``keys``: how k and v are held, and maybe q. Of 8 bits they are codes, and the truth is of the numbers that these
    stand for times the scale of their head, of which an ordinary implementation rounds none; but it rounds weights to
    8 bits where q has them.
    ``multiprocessors`` says how persistent kernels split tiles. ``band``: row i sees keys from i + its begin to i + its
    end, of which there must be one. ``head_dim_v``: where it is given, values are so many of the keys' first columns.
    ``backend``: the one that splits the keys.
    """

    batch: int
    heads: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    causal: bool
    dtype: torch.dtype
    device: str
    truth: torch.dtype
    multiprocessors: int
    seed: int = 0
    band: tuple[int, int] | None = None
    keys: Keys = Keys.rows
    head_dim_v: int = 0
    backend: Backend = SPLIT
    _scales: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False)
    _results: dict[str, dict[Head, Expected]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        import torch

        torch.set_float32_matmul_precision("highest")  # no TF32
        generator = torch.Generator(device=self.device).manual_seed(self.seed)

        def normal(seqlen: int) -> torch.Tensor:
            shape = (self.batch, self.heads, seqlen, self.head_dim)
            return torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32)

        q = self._held("q", normal(self.seqlen_q))
        peaked = self._scales.get("q", q).view(self.batch * self.heads, -1)[1::2]
        peaked *= PEAK
        self.q = q if "q" in self._scales else q.to(self.dtype)
        self.k, self.v = (self._held(name, normal(self.seqlen_k)) for name in "kv")
        self.k, self.v = (x if name in self._scales else x.to(self.dtype) for name, x in (("k", self.k), ("v", self.v)))
        self.head_dim_v = self.head_dim_v or self.head_dim
        if self._latent:
            self.v = self.k[..., : self.head_dim_v]
        self.dout = normal(self.seqlen_q)[..., : self.head_dim_v].to(self.dtype).contiguous()
        self.out = torch.empty_like(self.dout)
        self.lse = torch.empty(self.q.shape[:3], dtype=torch.float32, device=self.device)
        self.delta = torch.empty_like(self.lse)
        self.sm_scale = 1.0 / sqrt(self.head_dim)
        for b in range(self.batch):
            for h in range(self.heads):
                logits = self._logits((b, h))
                lse = torch.logsumexp(logits, -1)
                out = logits.sub_(lse[:, None]).exp_() @ self._meant("v", (b, h))
                self.lse[b, h] = lse
                self.out[b, h] = out
                self.delta[b, h] = (self._high(self.out, (b, h)) * self._high(self.dout, (b, h))).sum(-1)

    @property
    def _latent(self) -> bool:
        """Whether values are columns of the keys."""
        return self.head_dim_v != self.head_dim

    def _held(self, name: str, numbers: torch.Tensor) -> torch.Tensor:
        """q, k or v as kernels read it, but for its type of 16 or 32 bits, and its pages."""
        if name not in stored_keys.narrow(self.keys):
            return numbers
        codes, self._scales[name] = stored_keys.narrowed(numbers, self.keys, self.seed + "kvq".index(name))
        return codes

    def _meant(self, name: str, head: Head) -> torch.Tensor:
        """What q, k or v of one head stands for."""
        numbers = self._high(getattr(self, name), head)
        return numbers * self._scales[name][head].to(self.truth) if name in self._scales else numbers

    @cached_property
    def _cache(self) -> dict[str, torch.Tensor]:
        """What kernels of levels of ``keys`` read."""
        rows = {"k": self.k} if self._latent else {"k": self.k, "v": self.v}
        turned = {TURNED.name: stored_keys.turned(self.v)} if self.keys == Keys.q_fp8e4nv else {}
        return {"q": self.q, **turned, **stored_keys.stored(rows, self._scales, self.keys, self.seed)}

    @cached_property
    def dq_rows(self) -> torch.Tensor:
        """dq as the last kernel of a Hopper backward reads it, in q's shape and fp32; any numbers will do."""
        return self._any_sum(self.q, 1)

    @cached_property
    def dq_sum(self) -> torch.Tensor:
        """The same as the kernel reads it, in tiles of any width that has the columns."""
        return to_dq_layout(self.dq_rows, -(-self.head_dim // 32) * 32)

    @cached_property
    def dk_sum(self) -> torch.Tensor:
        return self._any_sum(self.k, 2)

    @cached_property
    def dv_sum(self) -> torch.Tensor:
        return self._any_sum(self.v, 3)

    @cached_property
    def _portions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the last kernel of a backward in shares reads: the first tiles of dv_sum and dk_sum, one for each
        program but the last, each in two portions.
        """
        import torch

        of_head = -(-self.seqlen_k // ROWS)
        count = min(self.batch * self.heads * of_head, self.multiprocessors - 1)
        columns = max(32, 1 << (self.head_dim - 1).bit_length())
        padding = (0, columns - self.head_dim, 0, of_head * ROWS - self.seqlen_k)
        tiles = [
            torch.nn.functional.pad(one, padding).view(-1, ROWS, columns)[:count] for one in (self.dv_sum, self.dk_sum)
        ]
        whole = torch.stack(tiles, 1)
        portions = whole.new_zeros(count + 1, 2, *whole.shape[1:])  # of each program, what it began and ended with
        portions[:-1, 1] = self._any_sum(whole, 4)
        portions[1:, 0] = whole - portions[:-1, 1]
        number = 2 * torch.arange(count, dtype=torch.int32, device=self.device)
        whose = torch.full((count + 1, 2), -1, dtype=torch.int32, device=self.device)
        whose[:-1, 1], whose[1:, 0] = number + 1, number
        return in_halves(portions.flatten(0, 1), self.dtype), whose.flatten().view(torch.float32)

    @cached_property
    def _partials(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the last kernel of a forward with split keys reads; any numbers will do. A row sees no key in an eighth
        of the splits, of which there is nothing to read.
        """
        import torch

        rows = torch.empty(self._derived(self.backend)["partial_splits"], self.lse.numel(), self.head_dim_v)
        partial = self._any_sum(rows, 5)
        lse = self._any_sum(rows[..., 0], 6) * PEAK
        unseen = self._any_sum(rows[..., 0], 7) > EIGHTH
        unseen[:1] = False
        return partial.masked_fill_(unseen[..., None], torch.nan), lse.masked_fill_(unseen, -torch.inf)

    @cached_property
    def _plan(self) -> Plan:
        """What the kernels behind the first one of a planned forward read."""

        return plan_of(self.batch, self.heads, self.seqlen_q, self._keys_of, self.multiprocessors, self.device)

    def _keys_of(self, begin: int, end: int) -> tuple[int, int]:
        """The first key that rows from one to before another see, and the one behind their last."""
        lo, hi = self.band or (-self.seqlen_q, 0 if self.causal else self.seqlen_k)
        return max(begin + lo, 0), min(end + hi, self.seqlen_k)

    @cached_property
    def _parts(self) -> dict[str, torch.Tensor]:
        """What the last kernel of a planned forward reads; any numbers will do. A row sees no key in an eighth of the
        parts, of which there is nothing to read.
        """
        import torch

        sizes = self._derived(PLANNED)
        parts = self._any_sum(torch.empty(sizes["part_places"], sizes["part_rows"], self.head_dim), 8)
        lse = self._any_sum(parts[..., 0], 9) * PEAK
        unseen = self._any_sum(parts[..., 0], 10) > EIGHTH
        unseen[[tile.places[0] for tile in self._plan.tiles]] = False
        parts = parts.masked_fill_(unseen[..., None], torch.nan)
        return {PARTS: parts, PARTS_LSE: lse.masked_fill_(unseen, -torch.inf)}

    def _derived(self, backend: Backend) -> dict[str, int]:
        """The sizes that a backend derives."""
        scalars = {name: int(value) for name, value in self.scalars.items() if name != "sm_scale"}
        types = {name: DTYPES.index(OF_8_BITS[self.keys]) for name in stored_keys.narrow(self.keys)}
        environment = Environment(self.sizes, scalars, {}, frozenset(), self.multiprocessors, types)
        return self.sizes | derived_sizes(backend, environment)

    def _any_sum(self, like: torch.Tensor, seed: int) -> torch.Tensor:
        import torch

        generator = torch.Generator(device=self.device).manual_seed(self.seed + seed)
        return torch.randn(like.shape, generator=generator, device=self.device, dtype=torch.float32)

    def _heads(self) -> list[Head]:
        return [divmod(index, self.heads) for index in range(self.batch * self.heads)]

    @cached_property
    def sample(self) -> list[Head]:
        """The heads that are compared: the first, the last and some between, flat and peaked alike."""
        count = self.batch * self.heads
        if count <= SAMPLED_HEADS:
            return self._heads()
        half = SAMPLED_HEADS // 2
        chosen: set[int] = set()
        for kind in (range(0, count, 2), range(1, count, 2)):
            chosen |= {kind[round(i * (len(kind) - 1) / (half - 1))] for i in range(half)}
        return [divmod(index, self.heads) for index in sorted(chosen)]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What kernels read."""
        if self.backend is not SPLIT:
            return self._cache | dict(zip(PARTIALS, self._partials, strict=True))
        if self.keys:
            return self._cache | (self._planned if self.keys in KEYS.values else {})
        return {
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "out": self.out,
            "dout": self.dout,
            "logsumexp": self.lse,
            "delta": self.delta,
            "dq_sum": self.dq_sum,
            "dk_sum": self.dk_sum,
            "dv_sum": self.dv_sum,
            "split": self._portions[0],
            "split_of": self._portions[1],
            PARTIAL: self._partials[0],
            PARTIAL_LSE: self._partials[1],
            **self._planned,
        }

    @property
    def _planned(self) -> dict[str, torch.Tensor]:
        """What kernels of the planned forward hand to each other."""
        plan = self._plan
        return dict(zip(PLAN, (plan.items, plan.split_tiles, plan.counts), strict=True)) | self._parts

    @property
    def scalars(self) -> dict[str, float]:
        begin, end = self.band or (0, 0)
        level = BANDED if self.band else PLAIN
        asked = {"sm_scale": self.sm_scale, **({"batch_invariant": 1} if self.backend is INVARIANT else {})}
        if self.keys or self._latent:
            sizes = {"seqlen_q": self.seqlen_q, "seqlen_k": self.seqlen_k}
            sizes |= {"head_dim": self.head_dim, "head_dim_v": self.head_dim_v}
            return {**asked, **stored_keys.scalars(self.keys, sizes, self.causal)}
        lengths = {"longest_q": self.seqlen_q, "longest_k": self.seqlen_k, "packed_sequences": 1}
        lengths["self_attention"] = 0  # or a kernel by itself would wait for marks of another one
        band = {"causal": self.causal, "level": level, "lo": begin, "hi": end, "features": 0}
        return {**asked, **band, **lengths}

    @property
    def sizes(self) -> dict[str, int]:
        """All of the call: a kernel may have numbers that follow from those of tensors that it does not take."""
        sizes = {"batch": self.batch, "heads_q": self.heads, "heads_k": self.heads}
        sizes |= {"seqlen_q": self.seqlen_q, "seqlen_k": self.seqlen_k}
        return sizes | {"head_dim": self.head_dim, "head_dim_v": self.head_dim_v}

    def result(
        self, kernel: KernelDescription, argument: Tensor, tunables: Mapping[str, int]
    ) -> tuple[torch.Tensor, float]:
        import torch

        fill = 0.0 if argument.access == "add" else torch.nan
        if argument.operand.name in ("dq_sum", *UNCHECKED):
            sizes = self._derived(next(one for one in operator_of(kernel).backends if kernel in one.kernels))
            if argument.dtype == "i32":
                return self.lse.new_empty([sizes[dim] for dim in argument.operand.dims], dtype=torch.int32), -1.0
            dtype = self.dtype if argument.dtype == "T" else torch_dtype(argument.dtype)
            return self.lse.new_empty([sizes[dim] for dim in argument.operand.dims], dtype=dtype), fill
        like = {"out": self.out, "logsumexp": self.lse, "dq": self.q, "dk": self.k, "dv": self.v} | self.tensors
        return torch.empty_like(like[argument.operand.name]), fill

    def expect(self, kernel: KernelDescription, argument: Tensor) -> None:
        if argument.operand.name not in UNCHECKED:
            self.expected(name_of(kernel, argument))

    def check(
        self,
        kernel: KernelDescription,
        argument: Tensor,
        tunables: Mapping[str, int],
        results: Mapping[str, torch.Tensor],
    ) -> Check:
        import torch

        operand, name = argument.operand.name, name_of(kernel, argument)
        actual = results[operand]
        if operand == PLAN[0]:
            tiles = [(*head, row) for head in self._heads() for row in range(0, self.seqlen_q, TILE_ROWS)]
            wrong = wrong_with(results, tiles, self._keys_of, self.seqlen_q, self.multiprocessors)
            return Check(None, None, wrong) if wrong else Check(0.0, 0.0)
        if operand == TURNED.name:
            same = torch.equal(*(one.view(torch.uint8) for one in (actual, self.tensors[operand])))
            return Check(0.0, 0.0) if same else Check(None, None, f"{operand} has other numbers than v")
        if operand in UNCHECKED:
            return Check(None, None)
        if PARTIAL in results and len(results[PARTIAL]):
            if not bool(actual.isnan().all()):
                return Check(None, None, f"{operand} was written, which is another kernel's to combine")
            out, lse = combined(results[PARTIAL], results[PARTIAL_LSE])
            actual = (out.to(self.dtype) if name == "out" else lse).view(actual.shape)
        if PARTS in results or name.endswith("_of_parts"):
            return self._check_plan(name, actual, results)
        if operand in SUMMED and "split" in results:
            split = sums(results["split"], results["split_of"])
            actual = with_tiles(actual, {tile: summed[SUMMED.index(operand)] for tile, summed in split.items()})
        elif name.endswith("_of_split"):  # the other tiles are another kernel's to write
            ones = {tile: torch.ones_like(one[0]) for tile, one in sums(*self._portions).items()}
            split = with_tiles(torch.zeros_like(actual), ones)
            if not bool((actual.isnan() | (split != 0)).all()):
                return Check(None, None, f"{operand} was written outside of the split tiles")
            actual = torch.where(split != 0, actual, self.tensors[f"{operand}_sum"].to(self.dtype))
        return self.compare(name, actual)

    def _check_plan(self, name: str, actual: torch.Tensor, results: Mapping[str, torch.Tensor]) -> Check:
        """Checks out or logsumexp of a planned forward, of which one kernel writes the whole tiles, with parts of the
        others in ``results``, and one the split ones.
        """
        import torch

        split = torch.zeros(self.lse.shape, dtype=torch.bool, device=self.device)
        for tile in self._plan.tiles:
            split[tile.batch, tile.head, tile.rows] = True
        own = split if name.endswith("_of_parts") else ~split
        if not bool(actual[~own].isnan().all()):
            return Check(None, None, f"{name} was written in tiles that are another kernel's")
        if name.endswith("_of_parts"):
            actual = actual.masked_fill(~(split[..., None] if actual.ndim == 4 else split), 0)
        else:
            for tile, out, lse in combine_tiles(self._plan, results, combined):
                actual[tile.batch, tile.head, tile.rows] = out.to(self.dtype) if actual.ndim == 4 else lse
        return self.compare(name, actual)

    def compare(self, name: str, actual: torch.Tensor) -> Check:
        """Compares a result that was NaN before the launch, or zero where the kernel adds to it.

        ``name``: ``out``, ``lse``, ``delta``, ``dq``, ``dk``, ``dv``; of these three ``dq_added``, in fp32 before
        sm_scale; ``dq_cleared``, zeros; ``dq_of_sum``, ``dq_sum`` scaled by sm_scale, but for dv; ``dk_of_split`` and
        ``dv_of_split``, their sums as they are.
        """
        import torch

        if name in ("dq_added", "dq_cleared"):
            actual = from_dq_layout(actual, self.seqlen_q, self.head_dim)
        if not bool(torch.isfinite(actual).all()):
            return Check(None, None, f"{name} has elements that were not written, or are not finite")
        checks = [
            expected.compare(f"{name} of head {head}", actual[head].to(self.truth))
            for head, expected in self.expected(name).items()
        ]
        return max(checks, key=lambda check: check.badness)

    def expected(self, name: str) -> dict[Head, Expected]:
        """What ``compare`` compares with, by sampled head; worked out at the first call."""
        if name not in self._results:
            results: dict[str, dict[Head, Expected]] = {}
            work = self._work(name)
            for head in self.sample:
                true, ordinary = work(head, False), work(head, True)
                for key, value in true.items():
                    floor = FP32_FLOOR if key.startswith(("lse", "delta")) or self.dtype.itemsize == 4 else 0.0
                    floor = FP8_FLOOR if key == "lse" and "q" in self._scales else floor
                    results.setdefault(key, {})[head] = Expected.of(value, ordinary[key], floor)
            self._results.update(results)
        return self._results[name]

    def _work(self, name: str) -> Callable[[Head, bool], dict[str, torch.Tensor]]:
        gradient, _, what = name.partition("_")
        if what == "of_partial":
            return self._of_partials
        if what == "of_parts":
            return self._of_parts
        if gradient not in ("dq", "dk", "dv"):
            return self._forward
        return self._around_sums if what in ("cleared", "of_sum", "of_split") else self._backward

    def _high(self, tensor: torch.Tensor, head: Head) -> torch.Tensor:
        return tensor[head].to(self.truth)

    def _logits(self, head: Head) -> torch.Tensor:
        """sm_scale * q k^T of one head, -inf above the diagonal where causal, and outside of a band."""
        import torch

        logits = (self._meant("q", head) @ self._meant("k", head).T).mul_(self.sm_scale)
        if self.causal or self.band:
            begin, end = self.band or (-self.seqlen_q, 0)
            rows = torch.arange(self.seqlen_q, device=self.device)[:, None]
            columns = torch.arange(self.seqlen_k, device=self.device)
            logits.masked_fill_((columns < rows + begin) | (columns > rows + end), -torch.inf)
        return logits

    def _forward(self, head: Head, low: bool) -> dict[str, torch.Tensor]:
        """Forward results of one head: exact, or as an ordinary implementation in ``dtype`` rounds them."""
        import torch

        def rounded(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self.dtype).to(self.truth) if low else tensor

        logits = self._logits(head)
        lse = torch.logsumexp(logits, -1)
        weights = logits.sub_(lse[:, None]).exp_()
        if "q" in self._scales and low:
            most = weights.amax(-1, keepdim=True) / MOST_WEIGHT
            weights = (weights / most).to(self.q.dtype).to(self.truth) * most
        out = rounded(rounded(weights) @ self._meant("v", head))
        delta = rounded(self._high(self.out, head) * self._high(self.dout, head)).sum(-1)
        return {"out": out, "lse": lse, "delta": delta}

    def _of_partials(self, head: Head, low: bool) -> dict[str, torch.Tensor]:
        """What the last kernel of a forward with split keys makes of its parts, of one head."""
        first = (head[0] * self.heads + head[1]) * self.seqlen_q
        rows = slice(first, first + self.seqlen_q)
        out, lse = combined(*(one[:, rows].to(self.truth) for one in self._partials))
        return {"out_of_partial": out.to(self.dtype).to(self.truth) if low else out, "lse_of_partial": lse}

    def _of_parts(self, head: Head, low: bool) -> dict[str, torch.Tensor]:
        """What the last kernel of a planned forward makes of its parts, of one head; zeros in whole tiles."""
        import torch

        out = torch.zeros(self.seqlen_q, self.head_dim, dtype=self.truth, device=self.device)
        lse = torch.zeros(self.seqlen_q, dtype=self.truth, device=self.device)
        given = {name: one.to(self.truth) for name, one in self._parts.items()}
        for tile, own_out, own_lse in combine_tiles(self._plan, given, combined):
            if (tile.batch, tile.head) == head:
                out[tile.rows], lse[tile.rows] = own_out, own_lse
        return {"out_of_parts": out.to(self.dtype).to(self.truth) if low else out, "lse_of_parts": lse}

    def _backward(self, head: Head, low: bool) -> dict[str, torch.Tensor]:
        """Gradients of one head from lse and delta: exact, or with P, dS and the results rounded to ``dtype``."""

        def rounded(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self.dtype).to(self.truth) if low else tensor

        q, k, v, dout = (self._high(tensor, head) for tensor in (self.q, self.k, self.v, self.dout))
        p = self._logits(head).sub_(self._high(self.lse, head)[:, None]).exp_()
        dv = rounded(p).T @ dout
        ds = rounded((dout @ v.T).sub_(self._high(self.delta, head)[:, None]).mul_(p))
        dq, dk = ds @ k, ds.T @ q
        return {
            "dq": rounded(dq * self.sm_scale),
            "dk": rounded(dk * self.sm_scale),
            "dv": rounded(dv),
            "dq_added": dq,
            "dk_added": dk,
            "dv_added": dv,
        }

    def _around_sums(self, head: Head, low: bool) -> dict[str, torch.Tensor]:
        """What the first and the last kernel of a Hopper backward do with their sums."""
        found = {}
        for name, given, scale in (
            ("dq", self.dq_rows, self.sm_scale),
            ("dk", self.dk_sum, self.sm_scale),
            ("dv", self.dv_sum, 1.0),
        ):
            exact = self._high(given, head)
            scaled = exact * scale
            found[f"{name}_cleared"] = exact.new_zeros(exact.shape)
            for what, true in (("of_sum", scaled), ("of_split", exact)):
                found[f"{name}_{what}"] = true.to(self.dtype).to(self.truth) if low else true
        return found


def name_of(kernel: KernelDescription, argument: Tensor) -> str:
    """What the kernel leaves in a tensor, as ``Attention.compare`` calls it: it follows from what the kernel reads."""
    operand = argument.operand.name
    reads = {one.operand.name for one in kernel.arguments if isinstance(one, Tensor) and one.access == "read"}
    if operand.endswith("_sum"):
        return operand.removesuffix("sum") + ("added" if argument.access == "add" else "cleared")
    if f"{operand}_sum" in reads:
        return f"{operand}_of_sum"
    if operand in SUMMED and "split" in reads:
        return f"{operand}_of_split"
    name = {"logsumexp": "lse"}.get(operand, operand)
    return f"{name}_of_partial" if PARTIAL in reads else f"{name}_of_parts" if PARTS in reads else name


def combined(partial: torch.Tensor, partial_lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, columns] of out and [rows] of logsumexp, from [splits, rows, columns] of parts and [splits, rows] of their
    logsumexp in units of log2. Where a part has minus infinity it has no results.
    """
    lse = (partial_lse * log(2)).logsumexp(0)
    weights = (partial_lse * log(2) - lse).exp()
    return (partial.masked_fill(weights[..., None] == 0, 0) * weights[..., None]).sum(0), lse
