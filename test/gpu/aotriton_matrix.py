"""The parameters that ROCm's AOTriton tests its own attention with, and how this library does on them.

    PYTHONPATH=build/default/python python test/gpu/aotriton_matrix.py --count 13000 --seed 7
    python test/gpu/aotriton_matrix.py --list        # what there is; needs neither a GPU nor torch

A case is a point of the matrices of AOTriton's test_forward.py and test_backward.py, its release ones included, and
causal cases with a bias, which AOTriton leaves out. The library serves it, forward and backward, or refuses it, for a
reason that is counted. A result passes as it does there: its largest error against attention in float64 is at most a
factor times that of textbook attention in the operands' own type. Weights that dropout drops are those of the library's
own numbers (`attention_truth.py`), where AOTriton asks its library for them.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod, sqrt
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

Heads = tuple[int, int]  # of q, of k and v
Dims = tuple[int, int]  # of q and k, of v
Scale = float | str  # "l1": 1 / head dim; "l2": its root

POWERS, BETWEEN = (16, 32, 64, 128, 256), (48, 80, 96, 160, 192, 224)
PRIMES = (7, 23, 37, 53, 67, 73, 89, 113, 149, 179, 211, 241)
BACKWARD_DIMS = tuple(sorted({8, 24, 40, 56, 72, 88, 120, 152, 184, 216, 248, 408, 512, *POWERS, *BETWEEN}))
PRIME_Q = (11, 17, 37, 67, 157, 257, 523, 1033, 2063, 4919)
PRIME_K = (13, 31, 41, 71, 223, 337, 571, 1063, 2081, 5237)
FORWARD_PRIME_Q = (*PRIME_Q, 10601)
FORWARD_PRIME_K = (13, 31, 41, 71, 211, 337, 571, 1063, 2081, 5237, 11369)
TYPES = ("float16", "bfloat16", "float32")
BOTH = (False, True)

# The largest error is at most so many times that of the textbook's, or this.
FACTORS = {"out": 3.0, "dq": 148.0, "dk": 48.0, "dv": 36.0, "dbias": 16.0}
OF_QUERIES = ("q", "dout", "out", "dq", "bias", "dbias")  # the others are of keys
SEED, OFFSET = 0x1BF51, 0x1D4B42  # of dropout
ALWAYS_ALLOWED = 1e-5
MOST_SCORES = 1 << 27  # of the references, at once
MOST_RESERVED = 1 << 34  # bytes that torch keeps of what cases took: other tests share the GPU


@dataclass(frozen=True)
class Case:
    """``flipped``: stored as [batch, seqlen, heads, head dim]."""

    batch: int
    heads: Heads
    dims: Dims
    seqlen_q: int
    seqlen_k: int
    causal: bool
    dropout: float
    dtype: str
    scale: Scale
    flipped: bool
    bias: bool

    @property
    def sm_scale(self) -> float:
        if isinstance(self.scale, str):
            return 1 / (self.dims[0] if self.scale == "l1" else sqrt(self.dims[0]))
        return self.scale

    def __str__(self) -> str:
        words = ["causal"] * self.causal + ["flipped"] * self.flipped + ["bias"] * self.bias
        words += [f"dropout {self.dropout}"] if self.dropout else []
        heads, dims = ("x".join(map(str, dict.fromkeys(pair))) for pair in (self.heads, self.dims))
        sizes = f"batch {self.batch}, heads {heads}, seqlens {self.seqlen_q} x {self.seqlen_k}, head dim {dims}"
        return ", ".join([f"{sizes}, {self.dtype}, scale {self.scale}", *words])


def _same(numbers: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((number, number) for number in numbers)


@dataclass(frozen=True)
class Matrix:
    """Every combination of these."""

    batch: tuple[int, ...]
    heads: tuple[Heads, ...]
    dims: tuple[Dims, ...]
    seqlen_q: tuple[int, ...]
    seqlen_k: tuple[int, ...]
    scale: tuple[Scale, ...]
    causal: tuple[bool, ...] = BOTH
    flipped: tuple[bool, ...] = BOTH
    bias: tuple[bool, ...] = (False,)
    dropout: tuple[float, ...] = (0.0, 0.5)
    dtype: tuple[str, ...] = TYPES

    @property
    def _axes(self) -> dict[str, tuple[Any, ...]]:
        return {name: getattr(self, name) for name in Case.__dataclass_fields__}

    def __len__(self) -> int:
        return prod(map(len, self._axes.values()))

    def draw(self, chance: random.Random) -> Case:
        return Case(**{name: chance.choice(values) for name, values in self._axes.items()})


def _unequal_dims() -> tuple[Dims, ...]:
    """A head dim beside what reaches into the middle of each power of two that it is computed as, both ways round."""
    found: set[Dims] = set()
    computed = sorted({512, *POWERS, *BETWEEN})
    for dim in BACKWARD_DIMS:
        left, begun = next(one for one in computed if one >= dim), 0
        while left:
            block = 1 << (left.bit_length() - 1)
            found |= {(dim, begun + block // 2), (begun + block // 2, dim)}
            begun, left = begun + block, left - block
    return tuple(sorted(found))


_FORWARD_DIMS = _same((*POWERS, *BETWEEN, *PRIMES))
_FORWARD_Q, _FORWARD_K = (4, 8, 64, 143, 256, 512, 1024, 2048), (4, 8, 64, 128, 256, 587, 1024, 2048)
_GROUPED: tuple[Heads, ...] = ((16, 8), (10, 2))
_REGULAR = tuple(8 << power for power in range(11))
_DIMS = _same(BACKWARD_DIMS)
MATRICES = {
    "forward": Matrix((1, 4), _same((1, 4)), _FORWARD_DIMS, _FORWARD_Q, _FORWARD_K, (0.0, 0.125)),
    "forward, release": Matrix((3,), _same((8,)), _FORWARD_DIMS, _FORWARD_Q, _FORWARD_K, ("l1", "l2")),
    "forward, bias": Matrix(
        (1, 4), _same((1, 4)), _FORWARD_DIMS, _FORWARD_Q, _FORWARD_K, (0.0, 0.125), causal=(False,), bias=(True,)
    ),
    "forward, grouped": Matrix(
        (1, 4), _GROUPED, _same((8, 203, 256)), (4, 143, 2048), (4, 127, 579, 2048), (0.0, 0.125), flipped=(False,)
    ),
    "forward, irregular": Matrix(
        (3,), _same((7,)), _same(PRIMES), FORWARD_PRIME_Q, FORWARD_PRIME_K, (1.2,), bias=BOTH
    ),
    "backward, fast": Matrix(
        (3,), ((5, 5), (10, 2)), (*_same((8, 64, 184)), (24, 152), (120, 8)), (11, 523, 2048), (31, 337, 1063),
        ("l1",), flipped=(True,),
    ),
    "backward, regular": Matrix((3,), _same((5,)), _DIMS, _REGULAR, _REGULAR, ("l1", "l2")),
    "backward, bias": Matrix(
        (3,), _same((5,)), _DIMS, _REGULAR[:9], _REGULAR[:9], ("l1",), causal=(False,), bias=(True,)
    ),
    "backward, grouped": Matrix(
        (3,), _GROUPED, _DIMS, (4, 143, 2048), (4, 127, 579, 2048), ("l1", "l2"), flipped=(False,)
    ),
    "backward, irregular": Matrix((3,), _same((5,)), _DIMS, PRIME_Q, PRIME_K, ("l1", "l2"), bias=BOTH),
    "backward, unequal head dims": Matrix(
        (3,), _same((5,)), _unequal_dims(), PRIME_Q[:7], PRIME_K[:7], ("l1",), flipped=(False,), bias=BOTH
    ),
}  # fmt: skip


def cases(seed: int) -> Iterator[tuple[str, Case]]:
    """Cases of all matrices in turn, by chance, without an end; ``seed`` says which."""
    chance = random.Random(seed)
    while True:
        for name, matrix in MATRICES.items():
            yield name, matrix.draw(chance)


class Refused(Exception):
    """The library does not serve a case."""


# From tensors by their names, q, k, v, dout and maybe bias, and the case, to out, dq, dk, dv and maybe dbias.
Tensors = dict[str, Any]
Library = Callable[[Tensors, Case], Tensors]


def served(given: Tensors, case: Case) -> Tensors:
    """What the library makes of a case; Refused says why it does not."""
    import torch

    from aotriton import _binding as aotriton

    nan = float("nan")  # a result that is not written shows
    q, k, v, dout = (given[name] for name in ("q", "k", "v", "dout"))
    made = {"out": torch.full_like(dout, nan)}
    made |= {"dq": torch.full_like(q, nan), "dk": torch.full_like(k, nan), "dv": torch.full_like(v, nan)}
    lse = torch.full(q.shape[:3], nan, dtype=torch.float32, device=q.device)
    options: dict[str, Any] = {"sm_scale": case.sm_scale, "causal": case.causal}
    gradients = {}
    if case.bias:
        options["bias"] = given["bias"]
        made["dbias"] = gradients["dbias"] = torch.full(given["bias"].shape, nan, dtype=q.dtype, device=q.device)
    if case.dropout:
        options["dropout"] = case.dropout
        for name, number in (("dropout_seed", SEED), ("dropout_offset", OFFSET)):
            options[name] = torch.tensor([number], dtype=torch.int64, device=q.device)
    stream = torch.cuda.current_stream().cuda_stream
    try:
        aotriton.attn_fwd(q, k, v, made["out"], lse, stream=stream, **options)
        tensors = (q, k, v, made["out"], dout, lse, made["dq"], made["dk"], made["dv"])
        size = aotriton.attn_bwd_workspace_size(*tensors, **options, **gradients)
        workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
        aotriton.attn_bwd(*tensors, workspace, stream=stream, **options, **gradients)
    except aotriton.AotritonError as error:
        raise Refused(re.sub(r"\d+", "N", str(error))) from error
    return made


def inputs(case: Case, device: str, seed: int) -> Tensors:
    """q, k, v and dout, between 0 and 1, and a bias, the same for all heads of all batches."""
    import torch

    chance = torch.Generator(device=device).manual_seed(seed)

    def drawn(*sizes: int) -> Any:
        return torch.rand(sizes, generator=chance, dtype=getattr(torch, case.dtype), device=device)

    def made(heads: int, seqlen: int, dim: int) -> Any:
        if case.flipped:
            return drawn(case.batch, seqlen, heads, dim).transpose(1, 2)
        return drawn(case.batch, heads, seqlen, dim)

    (heads_q, heads_k), (dim, dim_v) = case.heads, case.dims
    given = {
        "q": made(heads_q, case.seqlen_q, dim),
        "k": made(heads_k, case.seqlen_k, dim),
        "v": made(heads_k, case.seqlen_k, dim_v),
        "dout": made(heads_q, case.seqlen_q, dim_v),
    }
    if case.bias:
        given["bias"] = drawn(case.seqlen_q, case.seqlen_k).expand(case.batch, heads_q, -1, -1)
    return given


def textbook(given: Tensors, case: Case, work: Any, heads: Any) -> Tensors:
    """Attention and its gradients in type ``work``, each operation rounded to it; q has as many heads as share k.
    ``heads``: the numbers of q's heads, through all batches, as dropout counts them.
    """
    import torch
    from attention_truth import NUMBERS, kept, threshold

    names = ("q", "k", "v", *(["bias"] if case.bias else []))
    own = {name: given[name].detach().to(work).requires_grad_() for name in names}
    scores = (own["q"] * case.sm_scale) @ own["k"].mT
    if case.bias:
        scores = scores + own["bias"]
    if case.causal:  # aligned at the first query and the first key
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1)
    if case.dropout:
        dropped = threshold(case.dropout)
        stay = kept(SEED, OFFSET, heads, case.seqlen_q, case.seqlen_k, dropped)
        weights = weights * (stay * (NUMBERS / (NUMBERS - dropped))).to(work)
    out = weights @ own["v"]
    gradients = torch.autograd.grad(out, list(own.values()), given["dout"].to(work))
    return {"out": out.detach()} | {f"d{name}": one for name, one in zip(own, gradients, strict=True)}


def errors(given: Tensors, case: Case, made: Tensors) -> Any:
    """[5, 2], of each of FACTORS the largest error of what was made, and of the textbook, against float64; zeros of
    what a case has not.
    """
    import torch

    group = case.heads[0] // case.heads[1]
    rows = case.batch * case.heads[1]

    def split(name: str, one: Any) -> Any:
        of = (group, case.seqlen_q) if name in OF_QUERIES else (1, case.seqlen_k)
        return one.reshape(rows, *of, one.shape[-1])

    device = given["q"].device
    heads = torch.arange(rows * group, device=device).reshape(rows, group)
    operands = {name: split(name, one) for name, one in given.items() if name != "bias"}
    if case.bias:  # one matrix, which is not to be copied for each head
        operands["bias"] = given["bias"][:1, :1].expand(rows, group, -1, -1)
    results = {name: split(name, one) for name, one in made.items()}
    at_once = max(1, MOST_SCORES // (group * case.seqlen_q * case.seqlen_k))
    worst, none = [], torch.zeros((), dtype=torch.float64, device=device)
    for first in range(0, rows, at_once):
        now = slice(first, first + at_once)
        some = {name: one[now] for name, one in operands.items()}
        exact, usual = (textbook(some, case, work, heads[now]) for work in (torch.float64, given["q"].dtype))
        worst.append(torch.stack([
            (one - exact[name]).abs().amax() if one is not None else none
            for name in FACTORS for one in (results[name][now] if name in results else None, usual.get(name))
        ]))  # fmt: skip
    return torch.stack(worst).amax(0).reshape(-1, 2)


@dataclass
class Report:
    """How many cases of each matrix were drawn and served; why others were not; and those that failed, in words."""

    drawn: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)
    of_scale_zero: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"  {name:30}{self.drawn[name]:8}{self.served[name]:8}" for name in MATRICES]
        reasons = [f"  {count:8}  {why}" for why, count in self.refused.most_common()]
        total = self.served.total()
        return "\n".join([
            f"  {'matrix':30}{'drawn':>8}{'served':>8}", *rows, "refused:", *reasons,
            *(f"failed: {one}" for one in self.failed),
            f"{self.drawn.total()} cases: {total} served ({self.of_scale_zero} with a scale of 0),"
            f" {total - len(self.failed)} passed, {len(self.failed)} failed, {self.refused.total()} refused",
        ])  # fmt: skip


def run(count: int, seed: int, library: Library = served, device: str = "cuda", most: int = sys.maxsize) -> Report:
    """Draws cases until ``count`` were served; those of more than ``most`` scores are passed over."""
    import torch

    report = Report()
    waiting: list[tuple[Case, Any]] = []

    def check_waiting() -> None:
        if not waiting:
            return
        found = torch.stack([worst for _, worst in waiting]).tolist()  # the one time that the host waits
        for (case, _), rows in zip(waiting, found, strict=True):
            for (name, factor), (error, usual) in zip(FACTORS.items(), rows, strict=True):
                allowed = max(ALWAYS_ALLOWED, factor * usual)
                if not error <= allowed:
                    report.failed.append(f"{case}: {name} is {error:.3g} off, and {allowed:.3g} is allowed")
                    break
        waiting.clear()

    for matrix, case in cases(seed):
        if report.served.total() == count:
            break
        if case.batch * case.heads[0] * case.seqlen_q * case.seqlen_k > most:
            continue
        report.drawn[matrix] += 1
        given = inputs(case, device, report.drawn.total())
        try:
            made = library(given, case)
        except Refused as why:
            report.refused[str(why)] += 1
            continue
        report.served[matrix] += 1
        report.of_scale_zero += case.scale == 0
        waiting.append((case, errors(given, case, made)))
        if torch.cuda.memory_reserved() > MOST_RESERVED:
            torch.cuda.empty_cache()
        if len(waiting) == 100:
            check_waiting()
    check_waiting()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="AOTriton's own matrix of attention parameters, by chance.")
    parser.add_argument("--count", type=int, default=3000, help="draw until so many cases were served (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which cases are drawn (%(default)s)")
    parser.add_argument("--list", action="store_true", help="tell how many cases each matrix has, and run none")
    options = parser.parse_args()
    if options.list:
        for name, matrix in MATRICES.items():
            print(f"{len(matrix):10,}  {name}")
        print(f"{sum(map(len, MATRICES.values())):10,}  cases")
        return 0
    begun = time.perf_counter()
    report = run(options.count, options.seed)
    print(report)
    print(f"{time.perf_counter() - begun:.0f} s")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
