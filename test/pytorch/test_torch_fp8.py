"""Attention of keys and values of 8 bits, and of queries of 8 bits, in torch, on tensors of a CPU."""

from __future__ import annotations

from collections.abc import Callable
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
from fp8_cases import NO_NUMBER, of_fp8, quantised
from paged_cases import in_pages, of_pages

from aotriton.torch import attention
from aotriton.torch.flash import flash_attn_func

OPS = torch.ops.aotriton
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
NARROW = {"fp8e4nv": torch.float8_e4m3fn, "fp8e4b8": torch.float8_e4m3fnuz}
BOTTOM_RIGHT: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right"}
MIXED = [
    Case((1, 40, 0, 9, 3), (70, 40, 5, 0, 90), packed=True, beyond=2, group=7, sinks=True, **BOTTOM_RIGHT),
    Case((33, 1), (100, 200), packed=True, group=7, window=(20, 0), softcap=5.0, number=1, **BOTTOM_RIGHT),
    Case((1, 1, 1), (97, 97, 97), group=7, used_k=(97, 0, 48), sinks=True, layout="rows", number=2, **BOTTOM_RIGHT),
]


@pytest.mark.parametrize("page_size", [0, 16, 48], ids=["rows", "pages of 16", "pages of 48"])
@pytest.mark.parametrize("case", dict.fromkeys(map(of_fp8, [*MIXED, *covering(40)])), ids=str)
def test_every_pair_of_features_is_what_float64_says(case: Case, page_size: int) -> None:
    """With scales of each sequence and head; what is no sequence's is no number."""
    case = of_pages(case) if page_size else case
    dtype, low, made = list(NARROW)[case.number % 2], DTYPES[case.dtype], inputs(case)
    narrow = {name: quantised(case, dtype, made[name], exact=True) for name in "kv"}
    made |= {name: one.values for name, one in narrow.items()}
    given: dict[str, Any] = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in made.items()}
    given |= {name: given[name].to(low) for name in ("q", "k", "v", "dout")}
    if case.sinks:
        given["sinks"] = given["sinks"].float()
    wide: dict[str, Any] = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    call = Call(**wide, **{n: x for n, x in case.scalars.items() if not n.startswith("max")}, sm_scale=case.sm_scale)
    rounded, exact = ordinary(call, lambda x: x.to(low).float()), truth(call)

    codes = {name: one.codes.astype(float) for name, one in narrow.items()}
    if page_size:
        pool = in_pages(case, codes["k"], codes["v"], page_size)
        codes = {"k": pool.k, "v": pool.v}
        del given["k"], given["v"]
        given |= {"block_table": torch.from_numpy(pool.table)}
        given.pop("cu_seqlens_k", None)
    for name, one in codes.items():
        stored = np.ascontiguousarray(np.nan_to_num(one, nan=NO_NUMBER[dtype]).astype(np.uint8))
        given[name] = torch.from_numpy(stored).view(NARROW[dtype])
        if case.layout == "rows":  # a cache of [pages, page_size, heads, head_dim]
            given[name] = given[name].transpose(1, 2).contiguous().transpose(1, 2)
        given[f"{name}_descale"] = torch.from_numpy(narrow[name].scale)
    del given["dout"]
    results = OPS.attn_fwd(**given, **case.scalars, sm_scale=case.sm_scale)
    owned, _ = call.owned
    for name, result in zip(("out", "logsumexp"), results, strict=True):
        result[:, :, owned:] = getattr(exact, name)[:, :, owned:]
        check(name, result, exact, rounded, case.dtype)


def tensor(*sizes: int, seed: int = 0) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


def ints(*numbers: int) -> Any:
    return torch.tensor(numbers, dtype=torch.int32)


def values_of(stored: Any, scale: Any) -> Any:
    """[sequences, heads, rows, width] bfloat16, which holds them where scales are powers of two."""
    return (stored.float() * scale[:, :, None, None]).bfloat16()


Q = tensor(3, 4, 5, 32)
K, V = (tensor(3, 2, 48, 32, seed=n).to(torch.float8_e4m3fn) for n in (1, 2))
SCALES: dict[str, Any] = {name: 2.0 ** torch.randint(-3, 3, (3, 2)) for name in ("k_descale", "v_descale")}
HOW: list[dict[str, Any]] = [{}, BOTTOM_RIGHT, {"softcap": 2.0, "sinks": torch.ones(4)}]
VALUES = values_of(K, SCALES["k_descale"]), values_of(V, SCALES["v_descale"])
# The same as three pages of 16 rows for each sequence.
PAGES = [one.unflatten(2, (3, 16)).transpose(1, 2).flatten(0, 1) for one in (K, V)]
PAGED: dict[str, Any] = {"block_table": torch.arange(9, dtype=torch.int32).view(3, 3), "seqused_k": ints(48, 0, 17)}


def test_they_are_keys_and_values_of_16_bits() -> None:
    """In rows, in pages and packed; logsumexp, too."""
    for how in HOW:
        found = attention(Q, K, V, **SCALES, **how, return_logsumexp=True)
        for got, expected in zip(found, attention(Q, *VALUES, **how, return_logsumexp=True), strict=True):
            assert torch.equal(got, expected)
        got = attention(Q, PAGES[0], PAGES[1], **SCALES, **PAGED, **how)
        assert torch.equal(got, attention(Q, *VALUES, seqused_k=PAGED["seqused_k"], **how))
    q, k, v = (one.transpose(1, 2).flatten(0, 1) for one in (Q, K, V))
    lengths: dict[str, Any] = {"cu_seqlens_q": ints(0, 5, 10, 15), "cu_seqlens_k": ints(0, 48, 96, 144)}
    got = attention(q, k, v, **lengths, max_seqlen_q=5, max_seqlen_k=48, **SCALES)
    assert torch.equal(got, attention(Q, *VALUES).transpose(1, 2).flatten(0, 1))


def test_scales_of_any_strides() -> None:
    """They are 1 where they are not given, and one number for all is that."""
    halves = attention(Q, *(one.float().mul(0.5).bfloat16() for one in (K, V)))
    for half in (torch.tensor(0.5), torch.tensor(0.5).expand(3, 2), torch.full((2, 3, 2), 0.5).permute(1, 0, 2)[:, 1]):
        assert torch.equal(attention(Q, K, V, k_descale=half, v_descale=half), halves)
    by_columns = {name: one.mT.contiguous().mT for name, one in SCALES.items()}
    assert torch.equal(attention(Q, K, V, **by_columns), attention(Q, K, V, **SCALES))
    plain = attention(Q, K.bfloat16(), V.bfloat16())
    assert torch.equal(attention(Q, K, V), plain)
    assert torch.equal(OPS.attn_fwd(Q, K, V)[0], plain)
    (k, v), starts = PAGES, ints(0, 5, 10, 15)
    packed = Q.transpose(1, 2).flatten(0, 1)
    lengths: dict[str, Any] = {"cu_seqlens_q": starts, "max_seqlen_q": 5, **PAGED}
    one = {"k_descale": torch.tensor(2.0), "v_descale": torch.tensor(0.25)}
    each = {name: scale.expand(3, 2) for name, scale in one.items()}
    assert torch.equal(attention(packed, k, v, **lengths, **one), attention(packed, k, v, **lengths, **each))


def test_rows_may_have_any_strides() -> None:
    """Keys whose last dimension is not contiguous are copied."""
    k, v = (one.transpose(2, 3).contiguous().transpose(2, 3) for one in (K, V))
    assert torch.equal(attention(Q, k, v, **SCALES), attention(Q, K, V, **SCALES))


def layer(q: Any, k: Any, v: Any, **more: Any) -> Any:
    return attention(q.sin(), k, v, **more).cos()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_it_compiles(backend: str) -> None:
    """In one graph, with scales of each head, of all, and with none; of several sizes."""
    torch._dynamo.reset()
    call = torch.compile(layer, fullgraph=True, backend=backend)
    for rows in (5, 2):
        for scales in (SCALES, dict.fromkeys(SCALES, torch.tensor(0.5)), {}):
            given = Q[:, :, :rows], K, V
            torch.testing.assert_close(call(*given, **scales), layer(*given, **scales), rtol=0.02, atol=0.02)


class Layer(torch.nn.Module):
    def forward(self, q: Any, k: Any, v: Any, scale: Any) -> Any:
        return layer(q, k, v, k_descale=scale, v_descale=scale)


def test_it_is_exported() -> None:
    """The program has the operator, and computes the same."""
    given = Q, K, V, torch.tensor(0.5)
    program = torch.export.export(Layer(), given)
    assert OPS.attn_fwd.features in [node.target for node in program.graph.nodes]
    assert torch.equal(program.module()(*given), Layer()(*given))


def test_results_have_the_shape_and_type_of_queries_everywhere() -> None:
    """On the device meta, too."""
    given: dict[str, Any] = {"q": Q, "k": K, "v": V[..., :16], **SCALES}
    made = attention(**given)
    fake = attention(**{name: one.to("meta") for name, one in given.items()})
    assert made.shape == fake.shape == (3, 4, 5, 16)
    assert made.dtype == fake.dtype == torch.bfloat16
    assert made.stride() == fake.stride()


def test_opcheck() -> None:
    """torch's own check of an operator (fake results, tracing with dynamic shapes) finds nothing; that of the schema
    computes on a CPU with numbers of 8 bits, which torch does not.
    """
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(OPS.attn_fwd.features, (Q, *PAGES), {**PAGED, **SCALES}, test_utils=checks)


def test_vmap_folds_scales_into_the_batch() -> None:
    """Each of a batch of batches has scales of its own."""
    q, scale = torch.stack([Q, 2 * Q]), torch.stack([SCALES["k_descale"], SCALES["v_descale"]])

    def call(q: Any, scale: Any) -> Any:
        return attention(q, K, V, k_descale=scale, v_descale=SCALES["v_descale"])

    assert torch.equal(torch.vmap(call)(q, scale), torch.stack([call(q[n], scale[n]) for n in range(2)]))


@pytest.mark.parametrize("scales", [{}, SCALES], ids=["plain", "scaled"])
def test_there_is_no_gradient(scales: dict[str, Any]) -> None:
    """A call of which one is asked for is refused; under no_grad none is asked for."""
    q = Q.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=r"^attn_fwd: a call with k(_descale| of 8 bits) has no gradient"):
        attention(q, K, V, **scales)
    with torch.no_grad():
        assert torch.equal(attention(q, K, V, **scales), attention(Q, K, V, **scales))


def test_the_plain_operator_has_no_gradient() -> None:
    with pytest.raises(NotImplementedError, match="attn_fwd: a call with k of 8 bits has no gradient"):
        OPS.attn_fwd(Q.clone().requires_grad_(), K, V)


def test_autocast_leaves_them() -> None:
    """Queries of float32 meet keys of 8 bits, and scales of float32."""
    with torch.autocast("cpu", torch.bfloat16):
        for scales in (SCALES, {}):
            assert torch.equal(attention(Q.float(), K, V, **scales), attention(Q, K, V, **scales))
        assert torch.equal(OPS.attn_fwd(Q.float(), K, V)[0], attention(Q, K, V))


SCALE = SCALES["k_descale"]
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: attention(Q, K, V.bfloat16()), "attn_fwd: k has dtype float8_e4m3fn, v has bfloat16"),
    (
        lambda: attention(Q, *VALUES, k_descale=SCALE),
        "attn_fwd: k_descale is given, and k has dtype bfloat16, which has no scale",
    ),
    (lambda: attention(Q, K, V, k_descale=SCALE[:2]), "attn_fwd: k_descale is of 2 sequences, there are 3"),
    (lambda: attention(Q, K, V, k_descale=SCALE[:, :1]), "attn_fwd: k_descale has heads_k 1, k has 2"),
    (lambda: attention(Q, K, V, v_descale=SCALE[0]), "attn_fwd: v_descale has 1 dimensions, which must be 2"),
    (
        lambda: attention(Q, K, V, v_descale=SCALE.double()),
        "attn_fwd: v_descale has dtype none, which must be float32",
    ),
    (
        lambda: attention(Q.float(), K, V),
        "attn_fwd: with k of dtype float8_e4m3fn, out must be float16 or bfloat16, and head_dim, head_dim_v and the "
        "strides of all of 8 bits multiples of 16",
    ),
    (
        lambda: attention(Q[..., :24], K[..., :24], V),
        "attn_fwd: with k of dtype float8_e4m3fn, out must be float16 or bfloat16, and head_dim, head_dim_v and the "
        "strides of all of 8 bits multiples of 16",
    ),
    (
        lambda: attention(Q.to(K.dtype), K, V, causal=True),
        "attn_fwd: no kernel has q of dtype float8_e4m3fn with a window, or causal with unequal lengths, yet; served "
        "with q of dtype bfloat16",
    ),
    (
        lambda: attention(Q, K, V, bias=tensor(5, 48)),
        "attn_fwd: no kernel has bias together with k of 8 bits yet; served without bias, or without k of 8 bits",
    ),
    (
        lambda: attention(Q, K, V, dropout=0.5),
        "attn_fwd: no kernel has dropout together with k of 8 bits yet; served without dropout, or without k of 8 bits",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_errors_name_the_argument(call: Callable[[], Any], message: str) -> None:
    """What cannot be computed is refused, by the argument's name."""
    with pytest.raises(RuntimeError) as raised:
        call()
    assert str(raised.value).splitlines()[0] == message


def test_what_was_written_for_calls_without_scales_still_fits() -> None:
    """The arguments are the last ones of those by place, and nothing where they are not given."""
    for operator, more in ((OPS.attn_fwd.features, ["q_descale"]), (OPS.kv_append.default, [])):
        names = [one.name for one in operator._schema.arguments if not one.kwarg_only]
        assert names[-3 - len(more) :] == ["block_table", "k_descale", "v_descale", *more]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_queries_of_8_bits_are_what_float64_says(causal: bool) -> None:
    """q, k and v are numbers times scales, of which each may be one number for all; the result is bfloat16, in the
    order of q's dimensions, and as a compiled model expects it. `flash_attn_func` has the same.
    """
    codes = [tensor(2, 40, heads, 32, seed=seed).to(torch.float8_e4m3fn) for seed, heads in enumerate((4, 2, 2))]
    q, k, v = (one.transpose(1, 2) for one in codes)
    scales = {"q_descale": torch.tensor([[0.5, 2.0], [1.0, 0.25]]), "v_descale": torch.tensor(3.0)}
    wide = q.double() * scales["q_descale"].repeat_interleave(2, 1)[..., None, None], k.double(), 3 * v.double()
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal, enable_gqa=True)
    of_heads = {name: scale.expand(2, 2) for name, scale in scales.items()}
    with torch.no_grad():
        out = attention(q, k, v, causal=causal, **scales)
        by_flash = flash_attn_func(codes[0], codes[1], codes[2], causal=causal, **of_heads)
        traced = torch.compile(lambda *x: attention(*x, causal=causal, **scales), backend="eager", fullgraph=True)
        assert torch.equal(traced(q, k, v), out)
    assert (out.dtype, out.stride()) == (torch.bfloat16, q.stride())
    torch.testing.assert_close(out.double(), expected, rtol=2**-7, atol=2**-7)
    assert torch.equal(by_flash.transpose(1, 2), out)


def test_what_queries_of_8_bits_are_refused() -> None:
    """Without keys of their type, with another mask, with other features, and with a gradient."""
    q, k, v = (tensor(1, 2, 16, 32).to(torch.float8_e4m3fn) for _ in "qkv")
    refused: list[tuple[Any, dict[str, Any], str]] = [
        ((q, k.bfloat16(), v.bfloat16()), {}, "q has dtype float8_e4m3fn, k has bfloat16"),
        ((q, k, v), {"window_left": 3}, "with a window, or causal with unequal lengths, yet"),
        ((q[:, :, :9], k, v), {"causal": True}, "with a window, or causal with unequal lengths, yet"),
        ((q, k, v), {"softcap": 5.0}, "together with other features yet"),
        ((q.bfloat16(), k, v), {"q_descale": torch.tensor(1.0)}, "q_descale is given, and q has dtype bfloat16"),
    ]
    for given, more, message in refused:
        with pytest.raises(RuntimeError, match=message):
            attention(*given, **more)
