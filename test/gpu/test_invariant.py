"""The hint `batch_invariant`: against float64, and to the bit the same in any batch, in pages and in chunks."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
pytest.importorskip("aotriton.torch", reason="libaotriton_torch.so is not built", exc_type=ImportError)

import torch  # noqa: E402 - where it is installed
from attention_cases import Case  # noqa: E402
from gpu.gpu_problem import DEVICE  # noqa: E402
from gpu.test_features import CASES, FORWARD, UNEVEN, Prepared  # noqa: E402
from gpu.test_features_hopper import without_weights  # noqa: E402
from gpu.test_pages import MIXED, PAGE_SIZES, in_pool, served  # noqa: E402
from gpu.test_split import LONG, decoding, run  # noqa: E402

from aotriton.torch import attention  # noqa: E402
from aotriton.torch.hints import hints  # noqa: E402

HINTS = {"batch_invariant": True}
BATCHES = 60  # of random sequences; --random-calls adds more


def of_rows(case: Case) -> Case:
    """What calls with keys in rows have of the case: head dims and rows that fill vectors."""
    dims = {name: -(-getattr(case, name) // 8) * 8 for name in ("head_dim", "head_dim_v")}
    dtype = "bf16" if case.dtype == "fp32" else case.dtype
    return replace(without_weights(case), **dims, dtype=dtype, layout="rows" if case.layout == "rows" else "heads")


SQUARE = [
    Case((700,) * 2, (700,) * 2, causal=True, heads_k=2, group=4, head_dim=128, dtype="bf16"),
    Case((1300,), (1300,), heads_k=1, group=1, head_dim=64),
    Case((2100,), (2100,), causal=True, heads_k=1, group=8, head_dim=256, dtype="bf16"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
    if "case" in metafunc.fixturenames:
        of = of_rows if metafunc.function is test_in_rows_the_forward_is_as_accurate else served
        cases = dict.fromkeys(map(of, [*SQUARE, *MIXED, *LONG, *decoding(60, seed + 3), *CASES[:80], *UNEVEN]))
        metafunc.parametrize("case", cases, ids=str)
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(seed, seed + BATCHES + count))


def test_in_rows_the_forward_is_as_accurate(case: Case) -> None:
    """Out and logsumexp are as near to float64 as ordinary low precision is; what counts not is not read, and what is
    nobody's is not written.
    """
    prepared = Prepared(case)
    run(prepared, {name: one for name, one in prepared.features.items() if name != "dout"}, HINTS)
    torch.cuda.synchronize()
    prepared.check(*FORWARD, "workspace")


def test_in_pages_the_forward_is_as_accurate(case: Case) -> None:
    """The same, of keys and values in pages."""
    prepared = Prepared(case)
    run(prepared, in_pool(prepared, PAGE_SIZES[case.number % len(PAGE_SIZES)]), HINTS)
    torch.cuda.synchronize()
    prepared.check(*FORWARD, "workspace")


class Server:
    """Sequences of a model, each with queries, keys and values of its own, in calls of several forms."""

    def __init__(self, number: int, **of_calls: bool) -> None:
        self.hints = of_calls
        draw = self.draw = random.Random(number)
        self.head_dim = draw.choice((64, 128, 128, 256, 80))
        self.heads_k = draw.choice((1, 2, 4))
        self.group = draw.choice((1, 4, 7, 8))
        self.dtype = draw.choice((torch.bfloat16, torch.float16))
        how: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right"}
        if draw.random() < 0.3:
            how["window_left"] = draw.choice((40, 511, 1024))
        if draw.random() < 0.2:
            how["softcap"] = 20.0
        generator = torch.Generator(DEVICE).manual_seed(number)
        if draw.random() < 0.3:
            heads = self.heads_k * self.group
            how["sinks"] = torch.randn(heads, generator=generator, device=DEVICE)
        self.how = how
        self.lengths = [self._lengths() for _ in range(draw.randint(1, 7))]

        def rows(count: int, heads: int) -> Any:
            sizes = count, heads, self.head_dim
            return (torch.randn(sizes, generator=generator, device=DEVICE) * 2).to(self.dtype)

        self.q = [rows(queries, self.heads_k * self.group) for queries, _ in self.lengths]
        self.k, self.v = ([rows(keys, self.heads_k) for _, keys in self.lengths] for _ in "kv")

    def _lengths(self) -> tuple[int, int]:
        """Queries and keys: of a step, a chunk, or a whole prompt."""
        draw = self.draw
        keys = draw.choice((draw.randint(1, 300), draw.randint(300, 3000), draw.randint(3000, 9000)))
        return draw.choice(((1, keys), (min(keys, draw.randint(2, 200)), keys), (min(keys, 1500),) * 2))

    def call(self, q: Any, k: Any, v: Any, **more: Any) -> tuple[Any, Any]:
        with hints(**self.hints):
            return attention(q, k, v, **self.how, **more, return_logsumexp=True)  # type: ignore[no-any-return] # torch has no types here

    def alone(self, i: int, begin: int = 0) -> tuple[Any, Any]:
        """Rows from ``begin`` on of a sequence, in a call by itself: out [rows, heads, head_dim], lse [heads, rows]."""
        given = (one[i].transpose(0, 1)[None] for one in (self.q, self.k, self.v))
        q, k, v = given
        out, lse = self.call(q[:, :, begin:], k, v)
        return out[0].transpose(0, 1), lse[0]

    def packed(self, order: list[int], page_size: int = 0) -> list[tuple[Any, Any]]:
        """All sequences in one call, in this order, with keys packed too, or in pages."""
        starts = [torch.tensor([0, *accumulate(one)], dtype=torch.int32, device=DEVICE)
                  for one in zip(*(self.lengths[i] for i in order), strict=True)]  # fmt: skip
        longest = [max(self.lengths[i][side] for i in order) for side in (0, 1)]
        q = torch.cat([self.q[i] for i in order])
        more: dict[str, Any] = {"cu_seqlens_q": starts[0], "max_seqlen_q": longest[0]}
        if page_size:
            k, v, more["block_table"] = self.pages(order, page_size)
            more["seqused_k"] = torch.tensor([self.lengths[i][1] for i in order], dtype=torch.int32, device=DEVICE)
        else:
            k, v = (torch.cat([one[i] for i in order]) for one in (self.k, self.v))
            more |= {"cu_seqlens_k": starts[1], "max_seqlen_k": longest[1]}
        out, lse = self.call(q, k, v, **more)
        spans = list(pairwise(starts[0].tolist()))
        return [(out[begin:end], lse[:, begin:end]) for begin, end in spans]

    def pages(self, order: list[int], page_size: int) -> tuple[Any, Any, Any]:
        """A pool of pages in any order, with no numbers where none belong, and its table."""
        counts = [-(-self.lengths[i][1] // page_size) for i in order]
        places = self.draw.sample(range(sum(counts) + 4), sum(counts))
        table = torch.full((len(order), max(counts) + 1), 1 << 30, dtype=torch.int32)
        sizes = sum(counts) + 4, page_size, self.heads_k, self.head_dim
        pools = [torch.full(sizes, float("nan"), dtype=self.dtype, device=DEVICE) for _ in "kv"]
        for row, (i, count) in enumerate(zip(order, counts, strict=True)):
            own, places = places[:count], places[count:]
            table[row, :count] = torch.tensor(own, dtype=torch.int32)
            for pool, rows in zip(pools, (self.k[i], self.v[i]), strict=True):
                filled = torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, count * page_size - len(rows)))
                pool[own] = filled.view(count, *sizes[1:])
        k, v = (pool.transpose(1, 2) for pool in pools)
        return k, v, table.to(DEVICE)


def same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Out and logsumexp, to the bit."""
    return all(map(torch.equal, one, other))


def test_a_sequence_has_the_same_bits_in_any_batch(number: int) -> None:
    """Alone, among others whose keys are packed or in pages, whichever they are, and as the last rows of a prompt that
    came before: steps, chunks and prompts, also of a trainer's causal call.
    """
    server = Server(number, batch_invariant=True)
    count = len(server.lengths)
    alone = [server.alone(i) for i in range(count)]
    forms: dict[str, tuple[list[int], int]] = {
        "packed": (list(range(count)), 0),
        "in pages": (server.draw.sample(range(count), count), server.draw.choice((16, 48, 64, 256))),
        "some in pages": (server.draw.sample(range(count), server.draw.randint(1, count)), 16),
    }
    for form, (order, page_size) in forms.items():
        for i, found in zip(order, server.packed(order, page_size), strict=True):
            assert same(found, alone[i]), f"{form}: sequence {i} of {server.lengths}, order {order}"
    for i, (queries, keys) in enumerate(server.lengths):
        begin = server.draw.randrange(queries)
        out, lse = alone[i]
        assert same(server.alone(i, begin), (out[begin:], lse[:, begin:])), f"rows {begin} on of {queries, keys}"


def test_other_calls_are_not() -> None:
    """Without the hint, some batch changes a sequence's bits: the test above can fail."""
    changed = 0
    for number in range(8):
        server = Server(number)
        order = list(range(len(server.lengths)))
        changed += not all(same(found, server.alone(i)) for i, found in zip(order, server.packed(order), strict=True))
    assert changed
