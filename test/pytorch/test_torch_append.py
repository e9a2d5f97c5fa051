"""Keys and values that are appended to a cache, in torch, on tensors of a CPU."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

import torch
from append_cases import CASES, WRITTEN, Append, Arrays, assert_appended, operands
from torch._inductor.utils import fresh_cache

import aotriton
from aotriton.torch import attention, kv_append, stats

OPS = torch.ops.aotriton
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
NARROW = {"fp8e4nv": torch.float8_e4m3fn, "fp8e4b8": torch.float8_e4m3fnuz}
MATRICES = ("k", "v", "k_cache", "v_cache", "q")
BACKENDS = [
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="inductor wants g++ for a CPU")),
]


def given_to_torch(case: Append) -> tuple[dict[str, Any], Arrays]:
    """The operands of a case as tensors, and their numbers in float64."""
    exact, given = operands(case), {}
    for name, values in exact.items():
        if name not in MATRICES:
            given[name] = torch.from_numpy(values).to(torch.int32 if values.dtype.kind == "i" else torch.float32)
            continue
        dtype = NARROW[case.cache] if case.cache and name.endswith("cache") else DTYPES[case.dtype]
        wide = torch.nn.functional.pad(torch.from_numpy(values), (0, case.gap)).to(dtype)
        if case.rows:
            wide = wide.transpose(1, 2).contiguous().transpose(1, 2)
        given[name] = wide[..., : values.shape[-1]]
        exact[name] = given[name].double().numpy()
    return given, exact


def results_of(given: dict[str, Any]) -> Arrays:
    return {name: given[name].double().numpy() for name in WRITTEN if name in given}


OF_GFX942 = [replace(case, cache="fp8e4b8") for case in CASES if case.cache]


@pytest.mark.parametrize("case", [*CASES, *OF_GFX942], ids=str)
def test_rows_go_to_their_places(case: Append) -> None:
    """Keys and values are where lengths and block table say, keys and queries are rotated, and all else has its bits:
    dense and in pages, packed or not, rotated in part or not at all, also of tokens that have no place.
    """
    given, exact = given_to_torch(case)
    OPS.kv_append(**given, rotary_interleaved=case.interleaved)
    assert_appended(case, exact, results_of(given))


@pytest.mark.parametrize("case", [case for case in CASES if case.packed], ids=str)
def test_packed_tokens_are_rows_of_the_function(case: Append) -> None:
    """kv_append takes them as [total, heads, head_dim]."""
    given, exact = given_to_torch(case)
    rows = {name: given[name][0].transpose(0, 1) for name in ("k", "v", "q") if name in given}
    kv_append(**given | rows, rotary_interleaved=case.interleaved)
    assert_appended(case, exact, results_of(given))


def tensor(*sizes: int, seed: int = 0) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


def ints(*numbers: int) -> Any:
    return torch.tensor(numbers, dtype=torch.int32)


# Two tokens of each of three sequences, the last of which has ended, in pages of 16 rows.
USED, TABLE = ints(17, 40, 0), torch.tensor([[4, 0, 2], [5, 3, 1], [-1, 99, -7]], dtype=torch.int32)
ANGLES = torch.arange(50.0)[:, None] * torch.tensor([1.0, 0.3, 0.01])
ROTARY: dict[str, Any] = {"rotary_cos": ANGLES.cos(), "rotary_sin": ANGLES.sin()}


def paged() -> dict[str, Any]:
    """Queries, keys and values in the rows of one tensor; pages of keys and values in another one."""
    q, k, v = tensor(3, 2, 8, 24, seed=1).transpose(1, 2).split((4, 2, 2), 1)
    k_cache, v_cache = tensor(2, 6, 16, 2, 24, seed=2).transpose(2, 3).unbind(0)
    new = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "seqused_k": USED}
    return new | {"q": q, "block_table": TABLE} | ROTARY


def dense() -> dict[str, Any]:
    """The same, with room for 40 keys of each sequence."""
    given = paged()
    del given["block_table"]
    k_cache, v_cache = tensor(2, 3, 40, 2, 24, seed=2).transpose(2, 3).unbind(0)
    return given | {"k_cache": k_cache, "v_cache": v_cache}


def written(given: dict[str, Any]) -> list[Any]:
    return [given[name] for name in WRITTEN]


def same(got: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(map(torch.equal, written(got), written(expected)))


def test_attention_reads_what_was_appended() -> None:
    """A step is two calls with the same lengths and the same table; the caches of both layouts have the same keys."""
    of_pages, rows = paged(), dense()
    for n in range(2):
        pages = TABLE[n]
        for name in ("k_cache", "v_cache"):
            rows[name][n] = of_pages[name][pages].transpose(0, 1).flatten(1, 2)[:, :40]
    kv_append(**of_pages)
    kv_append(**rows)
    results = []
    for given, table in ((of_pages, {"block_table": TABLE}), (rows, {})):
        results.append(attention(given["q"], given["k_cache"], given["v_cache"], seqused_k=USED, **table))
    assert torch.equal(*results)
    assert results[0][:2].abs().sum() > 0
    assert not results[0][2].any()


def narrow(given: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with caches of 8 bits, and scales."""
    caches = {name: given[name].to(torch.float8_e4m3fn) for name in ("k_cache", "v_cache")}
    scales = {name: 0.1 + torch.rand(3, 2) for name in ("k_descale", "v_descale")}
    return given | caches | scales


def test_attention_reads_what_was_appended_in_8_bits() -> None:
    """Keys and values of both functions have the same scales; a new token is nearly what it was."""

    def wider() -> dict[str, Any]:  # head dims fill vectors of 8 bits
        return {name: torch.cat([x, x[..., :8]], -1) if x.dim() == 4 else x for name, x in dense().items()}

    given = narrow(wider())
    scales = {name: given[name] for name in ("k_descale", "v_descale")}
    kv_append(**given)
    wide = wider()
    for name in ("k_cache", "v_cache"):
        wide[name] = (given[name].float() * scales[f"{name[0]}_descale"][:, :, None, None]).bfloat16()
    kv_append(**wide)  # unlike the narrow ones, of 16 bits
    for name in ("k_cache", "v_cache"):
        stored = given[name].float() * scales[f"{name[0]}_descale"][:, :, None, None]
        torch.testing.assert_close(stored, wide[name].float(), rtol=0.08, atol=0.02)
    found, expected = (
        attention(given["q"], one["k_cache"], one["v_cache"], seqused_k=USED, **of_one)
        for one, of_one in ((given, scales), (wide, {}))
    )
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("dtype", NARROW.values(), ids=NARROW)
def test_a_cache_of_8_bits_has_the_nearest_numbers(dtype: torch.dtype) -> None:
    """Half ways go to even ones, what is beyond the largest number becomes that, and what is no number stays none; a
    scale may be one number for all.
    """
    most = torch.finfo(dtype).max
    values = [-math.inf, -1e4, -most - 1, 1.0625, 1.1875, 0.3, 2.0**-11, most, most * 1.03, math.inf, math.nan]
    row = torch.tensor(values).expand(1, 1, 1, -1)
    caches = [torch.zeros(1, 1, 1, len(values)).to(dtype) for _ in range(2)]
    kv_append(2 * row, row, caches[0], caches[1], ints(1), k_descale=torch.tensor(2.0))
    expected = row.clamp(-most, most).to(dtype).view(torch.uint8)
    for cache in caches:
        assert torch.equal(cache.view(torch.uint8), expected)
    assert caches[0].float()[0, 0, 0, :5].tolist() == [-most, -most, -most, 1.0, 1.25]


def test_angles_of_any_floating_type() -> None:
    """They are those numbers as float32."""
    low = {name: one.bfloat16() for name, one in ROTARY.items()}
    got, expected = paged(), paged()
    kv_append(**got | low)
    kv_append(**expected | {name: one.float() for name, one in low.items()})
    assert same(got, expected)


def test_what_is_read_may_have_any_strides() -> None:
    """New keys and values, lengths, angles and tables whose last dimension is not contiguous are copied."""
    got, expected = paged(), paged()
    apart = {
        name: one[..., None].expand(*one.shape, 2).contiguous()[..., 0]
        for name, one in got.items()
        if name not in WRITTEN
    }
    assert all(one.stride(-1) == 2 for one in apart.values())
    OPS.kv_append(**got | apart)
    OPS.kv_append(**expected)
    assert same(got, expected)


def test_nothing_to_append() -> None:
    """Without tokens, without sequences, or in a table without pages nothing is written."""
    got = paged()
    before = [one.clone() for one in written(got)]
    kv_append(**got | {name: got[name][:, :, :0] for name in ("k", "v", "q")})
    kv_append(**got | {name: got[name][:0] for name in ("k", "v", "q", "seqused_k", "block_table")})
    kv_append(**got | {"block_table": TABLE[:, :0]})
    kv_append(**got | {name: one[:0] for name, one in ROTARY.items()})
    assert all(map(torch.equal, written(got), before))


def test_without_heads_of_keys_queries_are_rotated() -> None:
    """As they are beside keys."""
    got, expected = dense(), dense()
    none = {name: got[name][:, :0] for name in ("k", "v", "k_cache", "v_cache")}
    kv_append(**got | none)
    kv_append(**expected)
    assert torch.equal(got["q"], expected["q"])


def step(k: Any, v: Any, cache: Any, table: Any, used: Any, q: Any) -> Any:
    """A step of a model whose caches lie in one tensor; queries are rotated in a copy."""
    k_cache, v_cache = cache.transpose(2, 3).unbind(0)
    turned = q.clone()
    kv_append(k.sin(), v, k_cache, v_cache, used, q=turned, block_table=table, **ROTARY)
    return attention(turned, k_cache, v_cache, block_table=table, seqused_k=used).cos()


def arguments(rows: int) -> tuple[Any, ...]:
    cache = tensor(2, 6, 16, 2, 24, seed=2)
    return *(tensor(3, 2, rows, 24, seed=n) for n in (3, 4)), cache, TABLE, USED, tensor(3, 4, rows, 24, seed=5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_compiles(backend: str) -> None:
    """In one graph, of several numbers of tokens; the caller's caches are written, and nothing else is."""
    torch._dynamo.reset()
    call = torch.compile(step, fullgraph=True, backend=backend)
    for rows in (2, 5, 7):
        given, expected = arguments(rows), arguments(rows)
        torch.testing.assert_close(call(*given), step(*expected), rtol=0.02, atol=0.02)
        torch.testing.assert_close(given[2], expected[2], rtol=0.02, atol=0.02)
        assert not torch.equal(given[2], arguments(rows)[2])
        assert all(map(torch.equal, given[3:], arguments(rows)[3:]))


def narrow_step(k: Any, v: Any, cache: Any, table: Any, used: Any, q: Any, scale: Any) -> Any:
    """As above, with a cache of 8 bits and one scale."""
    k_cache, v_cache = cache.transpose(2, 3).unbind(0)
    turned, scales = q.clone(), {"k_descale": scale, "v_descale": scale}
    kv_append(k.sin(), v, k_cache, v_cache, used, q=turned, block_table=table, **ROTARY, **scales)
    return attention(turned, k_cache, v_cache, block_table=table, seqused_k=used, **scales).cos()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_with_a_cache_of_8_bits_compiles(backend: str) -> None:
    """In one graph; the caller's cache is written."""
    torch._dynamo.reset()
    call = torch.compile(narrow_step, fullgraph=True, backend=backend)
    k, v = (tensor(3, 2, 2, 32, seed=n) for n in (3, 4))
    before = tensor(2, 6, 16, 2, 32, seed=2).to(torch.float8_e4m3fn)
    given, expected = before.clone(), before.clone()
    others = TABLE, USED, tensor(3, 4, 2, 32, seed=5), torch.tensor(0.25)
    torch.testing.assert_close(call(k, v, given, *others), narrow_step(k, v, expected, *others), rtol=0.02, atol=0.02)
    torch.testing.assert_close(given.float(), expected.float(), rtol=0.13, atol=0.01)
    assert not torch.equal(given.float(), before.float())


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_inputs_in_one_tensor_are_not_compiled(backend: str) -> None:
    """Torch's compiler would write one of them wrongly; the message says what to give instead, and nothing is
    written. Caches by themselves compile.
    """
    torch._dynamo.reset()
    call = torch.compile(lambda given: kv_append(**given), fullgraph=True, backend=backend)
    got, expected = paged(), paged()
    kv_append(**expected)
    refusal = pytest.raises(
        RuntimeError, match=r"kv_append: k_cache and v_cache are inputs of .* take its parts inside"
    )
    with fresh_cache(), refusal:  # what was compiled for caches by themselves, and is kept on disk, is right here, too
        call(got)
    assert same(got, paged())
    got = {name: one.clone() if name in ("k_cache", "v_cache") else one for name, one in got.items()}
    call(got)
    assert same(got, expected)


class Step(torch.nn.Module):
    def forward(self, *given: Any) -> Any:
        return step(*given)


def test_it_is_exported() -> None:
    """The program has the operator, and writes and computes the same; so does it without operators that write."""
    program = torch.export.export(Step(), arguments(2))
    assert OPS.kv_append.default in [node.target for node in program.graph.nodes]
    for one in (program, program.run_decompositions()):
        given, expected = arguments(2), arguments(2)
        assert torch.equal(one.module()(*given), step(*expected))
        assert torch.equal(given[2], expected[2])


def test_on_the_device_meta_nothing_is_done() -> None:
    """And nothing is refused."""
    kv_append(**{name: one.to("meta") for name, one in paged().items()})


@pytest.mark.parametrize("given", [paged, dense])
def test_opcheck(given: Callable[[], dict[str, Any]]) -> None:
    """torch's own check of an operator (schema with what it writes, fake results, tracing with dynamic shapes) finds
    nothing.
    """
    torch.library.opcheck(OPS.kv_append.default, (), given())


def test_hints_are_told_and_counted() -> None:
    """In a region, and by a call of the operator."""
    before = stats()["hints"].get("kv_append", {})
    with aotriton.hints(backend="portable"):
        kv_append(**paged())
    OPS.kv_append(**paged(), hints="backend=portable")
    assert stats()["hints"]["kv_append"]["backend=portable"] - before.get("backend=portable", 0) == 2
    with pytest.raises(RuntimeError, match="schedule"):
        OPS.kv_append(**paged(), hints="schedule=sideways")


@pytest.mark.parametrize("name", ["k", "v", "k_cache", "v_cache", "q", "rotary_cos"])
def test_there_is_no_gradient(name: str) -> None:
    """A call of which one would be recorded is refused before anything is written; under no_grad it is none."""
    given, expected = paged(), paged()
    kv_append(**expected)
    given[name] = given[name].detach().requires_grad_()
    before = [one.detach().clone() for one in written(given)]
    with pytest.raises(NotImplementedError, match=f"^kv_append: {name} asks for a gradient, which kv_append has not"):
        kv_append(**given)
    assert all(map(torch.equal, written(given), before))
    with torch.no_grad():
        kv_append(**given)
    assert same(given, expected)


def test_a_backward_notices_that_its_cache_was_written() -> None:
    """As it does of torch's own operators that write."""
    given = dense()
    q = given.pop("q").clone().requires_grad_()
    out = attention(q, given["k_cache"], given["v_cache"], seqused_k=USED)
    with torch.no_grad():
        kv_append(**given)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_in_inference_mode() -> None:
    """It writes the same."""
    expected = paged()
    kv_append(**expected)
    with torch.inference_mode():
        got = paged()
        kv_append(**got)
        assert same(got, expected)


def test_tangents_and_vmap_are_refused() -> None:
    """There is no formula of the one, and no rule for the other."""
    given = paged()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(given["k"].clone(), torch.ones_like(given["k"]))
        with pytest.raises(NotImplementedError, match="kv_append: forward AD has no formula"):
            kv_append(**given | {"k": dual})

    def call(k: Any) -> Any:
        kv_append(**given | {"k": k})
        return k

    with pytest.raises(RuntimeError, match="kv_append"):
        torch.vmap(call)(torch.stack([given["k"]] * 2))


Change = Callable[[dict[str, Any]], dict[str, Any]]
WRONG: list[tuple[Change, str]] = [
    (lambda g: {"k": g["k"][0]}, "kv_append: k has 3 dimensions, which must be 4"),
    (lambda g: {"seqused_k": g["seqused_k"][:, None]}, "kv_append: seqused_k has 2 dimensions, which must be 1"),
    (lambda g: {"block_table": TABLE[0]}, "kv_append: block_table has 1 dimensions, which must be 2"),
    (lambda g: {"block_table": TABLE.long()}, "kv_append: block_table has dtype int64, which must be int32"),
    (lambda g: {"seqused_k": USED.long()}, "kv_append: seqused_k has dtype int64, which must be int32"),
    (lambda g: {"seqused_k": USED[:2], "block_table": TABLE[:2]},
     "kv_append: seqused_k has 2 lengths, there are 3 sequences"),
    (lambda g: {"v": g["v"].half()}, "kv_append: v has dtype float16, others have bfloat16"),
    (lambda g: {"k": g["k"].long()}, "kv_append: k has dtype int64, which must be float16 or bfloat16 or float32"),
    (lambda g: {"v_cache": g["v_cache"][:5]}, "kv_append: v_cache has pages 5, k_cache has 6"),
    (lambda g: {"q": g["q"][:, :, :1]}, "kv_append: q has seqlen_new 1, k has 2"),
    (lambda g: {"v_cache": g["v_cache"].transpose(2, 3).contiguous().transpose(2, 3)},
     "kv_append: v_cache has head_dim_v stride 16, which must be 1"),
    (lambda g: {"q": g["q"].transpose(2, 3).contiguous().transpose(2, 3)},
     "kv_append: q has head_dim stride 2, which must be 1"),
    (lambda g: {"v_cache": g["k_cache"]}, "kv_append: k_cache and v_cache are written, but overlap"),
    (lambda g: {"q": g["k"]}, "kv_append: q is written and k is read, but they overlap"),
    (lambda g: {"rotary_sin": None}, "kv_append: rotary_cos is given, rotary_sin is not"),
    (lambda g: {"rotary_cos": None, "rotary_sin": None},
     "kv_append: q is given, rotary_cos is not, and nothing else is done with q"),
    (lambda g: {name: torch.ones(9, 13) for name in ROTARY},
     "kv_append: rotary_cos has rotary_pairs 13, too many for head_dim 24"),
    (lambda g: {"cu_seqlens_k": ints(0, 1, 2, 3)}, "kv_append: k has 4 dimensions, which must be 3 with cu_seqlens"),
    (lambda g: {name: g[name][0].transpose(0, 1) for name in "qkv"} | {"cu_seqlens_k": ints(0, 1, 1, 3)},
     "kv_append: cu_seqlens_k[3] is 3, which must be from 1 to 2"),
    (lambda g: {"k_descale": torch.ones(3, 2)},
     "kv_append: k_descale is given, and k_cache has dtype bfloat16, which has no scale"),
    (lambda g: narrow(g) | {"v_cache": g["v_cache"]},
     "kv_append: k_cache has dtype float8_e4m3fn, v_cache has bfloat16"),
    (lambda g: narrow(g) | {"v_descale": torch.ones(2, 2)},
     "kv_append: v_descale has sequences 2, seqused_k has 3"),
    (lambda g: narrow(g) | {"v_descale": torch.ones(3)}, "kv_append: v_descale has 1 dimensions, which must be 2"),
    (lambda g: {"block_table": None}, "kv_append: seqused_k has sequences 3, k_cache has 6"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_errors_name_the_argument(change: Change, message: str) -> None:
    """What cannot be done is refused by the argument's name, before anything is written."""
    given = paged()
    before = [one.clone() for one in written(given)]
    with pytest.raises(RuntimeError) as raised:
        kv_append(**given | change(given))
    assert str(raised.value).splitlines()[0] == message
    assert all(map(torch.equal, written(given), before))
