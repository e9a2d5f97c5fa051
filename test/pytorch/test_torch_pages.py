"""Attention of keys and values in pages, in torch, on tensors of a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

import numpy as np
import torch
from attention_cases import Case, covering, inputs
from attention_truth import Call, check, ordinary, truth
from paged_cases import in_pages, of_pages

from aotriton.torch import attention

OPS = torch.ops.aotriton
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
PAGE_SIZES = (16, 48)
BOTTOM_RIGHT: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right"}

# Chunks of prompts beside decoding steps, of seven query heads for each head of keys.
MIXED = [
    Case((1, 40, 0, 9, 3), (70, 40, 5, 0, 90), packed=True, beyond=2, group=7, sinks=True, **BOTTOM_RIGHT),
    Case(
        (33, 1), (100, 200), packed=True, group=7, window=(20, 0), softcap=5.0, dtype="bf16", number=1, **BOTTOM_RIGHT
    ),
    Case((1, 1, 1), (97, 97, 97), group=7, used_k=(97, 0, 48), sinks=True, layout="rows", number=2, **BOTTOM_RIGHT),
]


def served(case: Case) -> Case:
    """What calls with a block table have of the case: no weights, 16 bits, and head dims that fill vectors."""
    dims = {name: -(-getattr(case, name) // 8) * 8 for name in ("head_dim", "head_dim_v")}
    dtype = "bf16" if case.dtype == "fp32" else case.dtype
    return of_pages(replace(case, **dims, dtype=dtype, bias="", alibi="", dropout=0.0))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("case", dict.fromkeys(map(served, [*MIXED, *covering(70)])), ids=str)
def test_every_pair_of_features_is_what_float64_says(case: Case, page_size: int) -> None:
    """Pages lie in any order; what is no sequence's is no number, and entries of the table that no query needs are no
    pages.
    """
    low = DTYPES[case.dtype]
    given: dict[str, Any] = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in inputs(case).items()}
    given |= {name: given[name].to(low) for name in ("q", "k", "v", "dout")}
    if case.sinks:
        given["sinks"] = given["sinks"].float()
    wide: dict[str, Any] = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    call = Call(**wide, **{n: x for n, x in case.scalars.items() if not n.startswith("max")}, sm_scale=case.sm_scale)
    rounded, exact = ordinary(call, lambda x: x.to(low).float()), truth(call)

    pool = in_pages(case, given.pop("k").double().numpy(), given.pop("v").double().numpy(), page_size)
    q, table = given.pop("q"), torch.from_numpy(pool.table)
    k, v = (torch.from_numpy(x).to(low) for x in (pool.k, pool.v))
    if case.layout == "rows":  # a cache of [pages, page_size, heads, head_dim]
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    features = {name: x for name, x in given.items() if name not in ("dout", "cu_seqlens_k")}
    results = OPS.attn_fwd(q, k, v, **features, **case.scalars, block_table=table, sm_scale=case.sm_scale)
    owned, _ = call.owned
    for name, result in zip(("out", "logsumexp"), results, strict=True):
        result[:, :, owned:] = getattr(exact, name)[:, :, owned:]
        check(name, result, exact, rounded, case.dtype)


def tensor(*sizes: int, seed: int = 0) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


def ints(*numbers: int) -> Any:
    return torch.tensor(numbers, dtype=torch.int32)


# Three sequences of 40, 0 and 17 keys in pages 4, 0, 2 and 5, 3; other entries of the table are no pages.
LENGTHS = (40, 0, 17)
USED = ints(*LENGTHS)
TABLE = torch.tensor([[4, 0, 2], [-1, 99, -7], [5, 3, -1]], dtype=torch.int32)
CACHE = tensor(2, 6, 16, 2, 24, seed=1)
CACHE[:, 1] = math.nan
CACHE[:, 2, 8:] = CACHE[:, 3, 1:] = math.nan
K, V = (one.transpose(1, 2) for one in CACHE)
Q = tensor(3, 4, 5, 24)
PAGED: dict[str, Any] = {"block_table": TABLE, "seqused_k": USED}


def rows_of(sequence: int) -> list[Any]:
    """Keys and values of one sequence, as calls without pages have them."""
    pages = -(-LENGTHS[sequence] // 16)
    return [one[TABLE[sequence, :pages]].flatten(0, 1)[: LENGTHS[sequence]].transpose(0, 1)[None] for one in CACHE]


HOW: dict[str, dict[str, Any]] = {
    "all": {},
    "causal": BOTTOM_RIGHT,
    "capped": {**BOTTOM_RIGHT, "softcap": 2.0, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0]).bfloat16(), "scale": 0.3},
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_attention_of_pages_is_that_of_their_rows(how: dict[str, Any]) -> None:
    """Of a batch, and of packed queries of other numbers for each sequence; logsumexp, too."""
    each = [attention(Q[n : n + 1], *rows_of(n), **how, return_logsumexp=True) for n in range(3)]
    found = attention(Q, K, V, **PAGED, **how, return_logsumexp=True)
    for got, expected in zip(found, zip(*each, strict=True), strict=True):
        assert torch.equal(got, torch.cat(expected))

    starts, packed = [0, 5, 6, 9], tensor(9, 4, 24, seed=3)
    each = [attention(packed[a:b].transpose(0, 1)[None], *rows_of(n), **how, return_logsumexp=True)
            for n, (a, b) in enumerate(pairwise(starts))]  # fmt: skip
    lengths = {"cu_seqlens_q": ints(*starts), "max_seqlen_q": 5}
    out, logsumexp = attention(packed, K, V, **PAGED, **lengths, **how, return_logsumexp=True)
    assert torch.equal(out, torch.cat([one[0].transpose(0, 1) for one, _ in each]))
    assert torch.equal(logsumexp, torch.cat([one[0] for _, one in each], 1))


def test_keys_behind_max_seqlen_k_do_not_count() -> None:
    """They are as if they were not used."""
    got = attention(Q, K, V, **PAGED, max_seqlen_k=17)
    assert torch.equal(got, attention(Q, K, V, block_table=TABLE, seqused_k=ints(17, 0, 17)))
    assert not torch.equal(got, attention(Q, K, V, **PAGED))


def test_tables_without_pages() -> None:
    """No sequence has a key, and results are those of rows that see none; and there may be no sequence."""
    nothing = {"block_table": TABLE[:, :0], "seqused_k": ints(0, 0, 0)}
    out, logsumexp = attention(Q, K, V, **nothing, return_logsumexp=True)
    assert not out.any()
    assert (logsumexp == -math.inf).all()
    assert attention(Q[:0], K, V, block_table=TABLE[:0], seqused_k=ints()).shape == (0, *Q.shape[1:])


def layer(q: Any, cache: Any, table: Any, used: Any) -> Any:
    k, v = (one.transpose(1, 2) for one in cache.unbind(0))
    return attention(q.sin(), k, v, block_table=table, seqused_k=used, **BOTTOM_RIGHT).cos()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_it_compiles(backend: str) -> None:
    """In one graph, of several sizes of table and cache."""
    torch._dynamo.reset()
    call = torch.compile(layer, fullgraph=True, backend=backend)
    for pages, rows in ((6, 5), (9, 2)):
        cache = torch.nn.functional.pad(CACHE, (0,) * 7 + (pages - 6,))
        given = Q[:, :, :rows], cache, torch.nn.functional.pad(TABLE, (0, pages - 6)), USED
        torch.testing.assert_close(call(*given), layer(*given), rtol=0.02, atol=0.02)


class Layer(torch.nn.Module):
    def forward(self, *given: Any) -> Any:
        return layer(*given)


def test_it_is_exported() -> None:
    """The program has the operator, and computes the same."""
    program = torch.export.export(Layer(), (Q, CACHE, TABLE, USED))
    assert OPS.attn_fwd.features in [node.target for node in program.graph.nodes]
    assert torch.equal(program.module()(Q, CACHE, TABLE, USED), layer(Q, CACHE, TABLE, USED))


def test_values_of_another_head_dim_have_that_shape_everywhere() -> None:
    """On the device meta, too."""
    given: dict[str, Any] = {"q": Q, "k": K, "v": V[..., :16], **PAGED}
    made = attention(**given)
    fake = attention(**{name: one.to("meta") for name, one in given.items()})
    assert made.shape == fake.shape == (3, 4, 5, 16)
    assert made.stride() == fake.stride()


def test_opcheck() -> None:
    """torch's own check of an operator (schema, fake results, tracing with dynamic shapes) finds nothing."""
    torch.library.opcheck(OPS.attn_fwd.features, (Q, K, V), {**PAGED, "softcap": 0.5})


def test_vmap_shares_the_cache() -> None:
    """Each of a batch of batches has queries and a table of its own."""
    q, tables = torch.stack([Q, 2 * Q]), torch.stack([TABLE, TABLE[[2, 1, 0]]])
    used = torch.stack([USED, USED.flip(0)])

    def call(q: Any, table: Any, used: Any) -> Any:
        return attention(q, K, V, block_table=table, seqused_k=used)

    got = torch.vmap(call)(q, tables, used)
    assert torch.equal(got, torch.stack([call(q[n], tables[n], used[n]) for n in range(2)]))


@pytest.mark.parametrize("name", ["q", "k", "v", "sinks"])
def test_there_is_no_gradient(name: str) -> None:
    """A call of which one is asked for is refused; under no_grad none is asked for."""
    given: dict[str, Any] = {"q": Q, "k": K, "v": V, "sinks": torch.zeros(4)}
    given[name] = given[name].clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=r"^attn_fwd: a call with block_table has no gradient"):
        attention(**given, **PAGED)
    with torch.no_grad():
        assert not attention(**given, **PAGED).requires_grad


def test_autocast_computes_in_its_type() -> None:
    """Queries of float32 meet a cache of 16 bits."""
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention(Q.float(), K, V, **PAGED), attention(Q, K, V, **PAGED))


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: attention(Q, K, V, block_table=TABLE), "attn_fwd: block_table is given, seqused_k is not"),
    (
        lambda: attention(Q, K, V, block_table=TABLE.long(), seqused_k=USED),
        "attn_fwd: block_table has dtype int64, which must be int32",
    ),
    (
        lambda: attention(Q, K, V, block_table=TABLE[0], seqused_k=USED),
        "attn_fwd: block_table has 1 dimensions, which must be 2",
    ),
    (
        lambda: attention(Q, K, V, block_table=TABLE - 3, seqused_k=USED),
        "attn_fwd: block_table[0, 1] is -3, there are 6 pages",
    ),
    (
        lambda: attention(Q, K, V, block_table=TABLE + 1, seqused_k=USED),
        "attn_fwd: block_table[2, 0] is 6, there are 6 pages",
    ),
    (
        lambda: attention(Q, K[:, :, :15], V[:, :, :15], **PAGED),
        "attn_fwd: k has page_size 15, which must be a positive multiple of 16",
    ),
    (
        lambda: attention(Q, K, V[:5], **PAGED),
        "attn_fwd: v has pages 5, k has 6",
    ),
    (
        lambda: attention(Q, K, V.transpose(2, 3).contiguous().transpose(2, 3), **PAGED),
        "attn_fwd: with block_table, the last dimension of v must be contiguous: no call copies all pages",
    ),
    (
        lambda: attention(Q, K[0], V, **PAGED),
        "attention: k has 3 dimensions, which must be 4 with block_table",
    ),
    (
        lambda: attention(Q, K, V, **PAGED, bias=tensor(5, 48)),
        "attention: no kernel has bias together with block_table yet; served without bias, or without block_table",
    ),
    (
        lambda: attention(Q, K, V, **PAGED, alibi_slopes=torch.ones(4)),
        "attn_fwd: no kernel has alibi_slopes together with block_table yet; served without alibi_slopes, or without "
        "block_table",
    ),
    (
        lambda: attention(Q, K, V, **PAGED, dropout=0.5),
        "attn_fwd: no kernel has dropout together with block_table yet; served without dropout, or without block_table",
    ),
    (
        lambda: attention(Q.float(), K.float(), V.float(), **PAGED),
        "attn_fwd: with block_table, q must be float16 or bfloat16, head_dim and head_dim_v multiples of 8",
    ),
    (
        lambda: attention(tensor(6, 4, 24), K, V, **PAGED, cu_seqlens_q=ints(0, 2, 4, 6), cu_seqlens_k=ints(0, 1, 2, 3),
                          max_seqlen_q=2, max_seqlen_k=48),
        "attn_fwd: block_table and cu_seqlens_k are given, of which one says where keys lie",
    ),
    (lambda: attention(Q[:2], K, V, **PAGED), "attn_fwd: seqused_k has 3 lengths, there are 2 sequences"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_errors_name_the_argument(call: Callable[[], Any], message: str) -> None:
    """What cannot be computed is refused, by the argument's name."""
    with pytest.raises(RuntimeError) as raised:
        call()
    assert str(raised.value).splitlines()[0] == message


def test_what_was_written_for_calls_without_pages_still_fits() -> None:
    """The argument is behind those, by place, and nothing where it is not given."""
    names = [one.name for one in OPS.attn_fwd.features._schema.arguments if not one.kwarg_only]
    assert names[names.index("dropout_offset") + 1] == "block_table"
    k, v = tensor(3, 2, 7, 24, seed=4), tensor(3, 2, 7, 24, seed=5)
    out, _ = OPS.attn_fwd.features(Q, k, v, *[None] * 6, ints(7, 0, 3), None, None, softcap=0.5)
    assert torch.equal(out, attention(Q, k, v, seqused_k=ints(7, 0, 3), softcap=0.5))
