"""The functions of flash-attn 2, on tensors of a CPU: each is attention, whose values are tested elsewhere, of what
flash-attn's arguments mean.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aotriton.torch import attention, flash, stats


def tensor(*sizes: int, seed: int = 0) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


QKV = tensor(2, 9, 3, 4, 16)
Q, K, V = QKV.unbind(2)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
STARTS = torch.tensor([0, 4, 4, 13, 18], dtype=torch.int32)
PACKED = QKV.flatten(0, 1)
SIGNATURE = """dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
deterministic=False, return_attn_probs=False"""
SCALES = "q_descale=None, k_descale=None, v_descale=None"  # flash-attn 3's
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
CACHED = """q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1),
softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False"""


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (flash.flash_attn_func, f"q, k, v, {SIGNATURE}, *, {SCALES}"),
        (flash.flash_attn_varlen_func, f"q, k, v, {LENGTHS}, {SIGNATURE}, block_table=None, *, {SCALES}"),
        (flash.flash_attn_with_kvcache, f"{CACHED}, *, {SCALES}"),
    ],
)
def test_signatures_are_those_of_flash_attn(function: Any, signature: str) -> None:
    """Names, order and defaults of flash-attn 2's arguments, behind which are the scales of flash-attn 3, by name."""
    (made,) = ast.parse(f"def f({signature}): ...").body
    assert isinstance(made, ast.FunctionDef)
    defaults = [ast.literal_eval(one) for one in made.args.defaults]
    names = [one.arg for one in made.args.args]
    given = inspect.signature(function).parameters
    by_name = [one.arg for one in made.args.kwonlyargs]
    assert list(given) == names + by_name
    assert [name for name, p in given.items() if p.kind is p.KEYWORD_ONLY] == by_name
    expected = [inspect.Parameter.empty] * (len(names) - len(defaults)) + defaults + [None] * len(by_name)
    assert [p.default for p in given.values()] == expected


MEANINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "scale": ({"softmax_scale": 0.3}, {"scale": 0.3}),
    "causal": ({"causal": True}, {"causal": True}),
    "window": ({"window_size": (2, 1)}, {"window_left": 2, "window_right": 1}),
    "softcap": ({"softcap": 2.0}, {"softcap": 2.0}),
    "all with slopes": (
        {"causal": True, "window_size": (3, 0), "alibi_slopes": SLOPES},
        {"causal": True, "window_left": 3, "window_right": 0, "alibi_slopes": SLOPES},
    ),
}


@pytest.mark.parametrize(("theirs", "ours"), MEANINGS.values(), ids=MEANINGS)
def test_arguments_mean_what_they_mean_there(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Fewer queries than keys are aligned at the last key; results and gradients are laid out as q, k and v are, in any
    of the ways to pass these.
    """

    def expected(q: Any, k: Any, v: Any) -> Any:
        how: dict[str, Any] = {"causal_variant": "bottom_right", **ours}
        return attention(*(x.transpose(1, 2) for x in (q, k, v)), **how, return_logsumexp=True)

    q, k, v = (x.clone().requires_grad_() for x in (Q[:, 4:], K, V))
    out = flash.flash_attn_func(q, k, v, **theirs)
    want, want_lse = expected(q, k, v)
    assert torch.equal(out, want.transpose(1, 2))
    assert out.is_contiguous()
    dout = tensor(*out.shape, seed=1)
    pairs = zip(
        torch.autograd.grad(out, (q, k, v), dout),
        torch.autograd.grad(want, (q, k, v), dout.transpose(1, 2)),
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in pairs)
    again, lse, nothing = flash.flash_attn_func(q, k, v, **theirs, return_attn_probs=True)
    assert torch.equal(again, out)
    assert torch.equal(lse, want_lse)
    assert nothing is None
    assert torch.equal(flash.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **theirs), out)
    assert torch.equal(flash.flash_attn_qkvpacked_func(QKV, **theirs), flash.flash_attn_func(Q, K, V, **theirs))


@pytest.mark.parametrize("how", [theirs for theirs, _ in MEANINGS.values()], ids=MEANINGS)
def test_sequences_are_each_by_itself(how: dict[str, Any]) -> None:
    """flash_attn_varlen_func is flash_attn_func of each sequence, in any of the ways to pass it."""
    q, k, v = PACKED.unbind(1)
    each = [
        flash.flash_attn_func(q[a:b][None], k[a:b][None], v[a:b][None], **how, return_attn_probs=True)
        for a, b in pairwise(STARTS.tolist())
    ]
    expected = torch.cat([out[0] for out, *_ in each])
    lengths = STARTS, STARTS, 9, 9
    out, lse, nothing = flash.flash_attn_varlen_func(q, k, v, *lengths, **how, return_attn_probs=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, torch.cat([one[0] for _, one, _ in each], 1))
    assert nothing is None
    assert torch.equal(flash.flash_attn_varlen_qkvpacked_func(PACKED, STARTS, 9, **how), out)
    assert torch.equal(flash.flash_attn_varlen_kvpacked_func(q, PACKED[:, 1:], *lengths, **how), out)


with_kvcache: Any = flash.flash_attn_with_kvcache
varlen: Any = flash.flash_attn_varlen_func

# Caches of four sequences, 42 rows of each at most, of seven query heads for each of two heads; what no sequence uses
# is no number.
SEQLENS = [19, 0, 34, 7]
SEQLENS_K = torch.tensor(SEQLENS, dtype=torch.int32)
HEADS, GROUP, WIDTH, PAGE = 2, 7, 16, 16
COS, SIN = (getattr(torch.arange(60.0)[:, None] * torch.tensor([1.0, 0.3, 0.01]), name)() for name in ("cos", "sin"))


def keys_and_values() -> list[list[Any]]:
    """Of each of both, those of each sequence, [keys, heads, head_dim]."""
    return [[tensor(keys, HEADS, WIDTH, seed=10 * i + n) for n, keys in enumerate(SEQLENS)] for i in (1, 2)]


def contiguous() -> tuple[list[Any], dict[str, Any]]:
    made = torch.full((2, len(SEQLENS), 48, HEADS, WIDTH), float("nan")).bfloat16()
    for cache, sequences in zip(made, keys_and_values(), strict=True):
        for n, rows in enumerate(sequences):
            cache[n, : len(rows)] = rows
    return list(made), {}


def picked() -> tuple[list[Any], dict[str, Any]]:
    """Sequences of a larger cache, in another order."""
    caches, _ = contiguous()
    places = torch.tensor([5, 0, 3, 2], dtype=torch.int32)
    made = torch.full((2, 6, *caches[0].shape[1:]), float("nan")).bfloat16()
    made[:, places] = torch.stack(caches)
    return list(made), {"cache_batch_idx": places}


def paged() -> tuple[list[Any], dict[str, Any]]:
    """Pages in any order, with room for eight more keys of each sequence; entries behind those are no pages."""
    caches, _ = contiguous()
    table, order = torch.full((4, 4), -1, dtype=torch.int32), iter([8, 2, 5, 0, 9, 3, 6])
    made = torch.full((2, 10, PAGE, HEADS, WIDTH), float("nan")).bfloat16()
    for n, keys in enumerate(SEQLENS):
        for i in range(-(-(keys + 8) // PAGE)):
            table[n, i] = next(order)
            made[:, table[n, i]] = torch.stack(caches)[:, n, i * PAGE : (i + 1) * PAGE]
    return list(made), {"block_table": table}


CACHES = [contiguous, picked, paged]


def turned(x: Any, first: int, interleaved: bool, still: bool = False) -> Any:
    """[rows, heads, head_dim] in double precision, pairs of elements as complex numbers, turned by their angles."""
    angles = torch.complex(COS, SIN).to(torch.complex128)[first : first + (1 if still else len(x)), None]
    x, pairs = x.double(), COS.shape[1]
    parts = (x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]) if interleaved else x[..., : 2 * pairs].chunk(2, -1)
    moved = torch.complex(*parts) * angles
    back = torch.stack([moved.real, moved.imag], -1 if interleaved else -2).flatten(-2)
    return torch.cat([back, x[..., 2 * pairs :]], -1)


def exact(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float = WIDTH**-0.5,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
) -> tuple[Any, Any]:
    """out [rows, heads, head_dim] and softmax_lse [heads, rows] of one sequence, in double precision."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(GROUP, 0) for x in (k, v))
    x = softmax_scale * q @ k.mT
    x = softcap * torch.tanh(x / softcap) if softcap else x
    own, key = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], torch.arange(k.shape[1])
    x = x if alibi_slopes is None else x - alibi_slopes.double()[:, None, None] * (own - key).abs()
    left, right = window_size
    hidden = (key > own) & causal | (own - key > left) & (left >= 0) | (key - own > right) & (right >= 0)
    x = x.masked_fill(hidden, -torch.inf)
    return (x.softmax(-1).nan_to_num() @ v).transpose(0, 1), x.logsumexp(-1)


OF_CACHE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"window_size": (6, 0), "softmax_scale": 0.4},
    "capped": {"causal": True, "softcap": 1.5},
}


def check_cached(
    caches: list[Any], given: dict[str, Any], how: dict[str, Any], rows: int, new: int, rotary: bool | None = None
) -> None:
    """The call is each sequence by itself, with ``new`` keys behind those that there were; ``rotary``: interleaved."""
    q, more = tensor(4, rows, HEADS * GROUP, WIDTH), [tensor(4, new, HEADS, WIDTH, seed=n) for n in (8, 9)]
    untouched = [cache.clone() for cache in caches]
    told: dict[str, Any] = dict(zip("kv", more, strict=True)) if new else {}
    if rotary is not None:
        told |= {"rotary_cos": COS, "rotary_sin": SIN, "rotary_interleaved": rotary}
    found = with_kvcache(q, *caches, cache_seqlens=SEQLENS_K, **told, **given, **how, return_softmax_lse=True)
    changed = 0
    for n, (keys, *kv) in enumerate(zip(SEQLENS, *keys_and_values(), strict=True)):
        of_q, added = q[n], [one[n] for one in more]
        if rotary is not None:
            still = not how.get("causal") and how.get("window_size", (-1, -1)) == (-1, -1)
            of_q, added[0] = turned(of_q, keys, rotary, still).bfloat16(), turned(added[0], keys, rotary).bfloat16()
        k, v = (torch.cat(pair) for pair in zip(kv, added, strict=True))
        for got, expected in zip(found, exact(of_q, k, v, **how), strict=True):
            torch.testing.assert_close(got[n].double(), expected, rtol=0.02, atol=0.02)
        changed += len(added[0]) * HEADS * WIDTH
    assert found[0].shape == q.shape
    differing = [(a != b) & ~(a.isnan() & b.isnan()) for a, b in zip(caches, untouched, strict=True)]
    assert [int(one.sum()) for one in differing] == [changed] * 2
    again = with_kvcache(
        q, *untouched, cache_seqlens=SEQLENS_K, **told, **given, **how, num_splits=3
    )  # fmt: skip
    assert torch.equal(again, found[0])


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("new", [0, 1, 4])
@pytest.mark.parametrize("how", OF_CACHE.values(), ids=OF_CACHE)
def test_a_cache_is_each_of_its_sequences(cache: Any, new: int, how: dict[str, Any]) -> None:
    """In any layout; new keys and values are written behind the others, and nothing else is."""
    caches, given = cache()
    check_cached(caches, given, how, max(new, 1), new)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("how", OF_CACHE.values(), ids=OF_CACHE)
def test_rotary_embeddings_turn_queries_and_new_keys(cache: Any, interleaved: bool, how: dict[str, Any]) -> None:
    """At their positions; queries of a call that is neither causal nor has a window are all at the first one."""
    caches, given = cache()
    check_cached(caches, given, how, 3, 3, interleaved)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(("rows", "new"), [(3, 1), (1, 4), (5, 2)])
@pytest.mark.parametrize("how", OF_CACHE.values(), ids=OF_CACHE)
def test_queries_may_be_more_or_fewer_than_new_keys(cache: Any, rows: int, new: int, how: dict[str, Any]) -> None:
    """Both are turned by the angles from the same position on."""
    caches, given = cache()
    check_cached(caches, given, how, rows, new, True)


class Called(TorchDispatchMode):
    """The operators that are called, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function._schema.name)
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    ("rows", "new", "rotary", "causal", "calls"),
    [
        (1, 1, True, False, 1),
        (3, 1, True, False, 1),
        (4, 4, True, True, 1),
        (4, 4, False, False, 1),
        (4, 4, True, False, 2),
    ],
)
def test_a_step_appends_in_one_launch(cache: Any, rows: int, new: int, rotary: bool, causal: bool, calls: int) -> None:
    """Nothing else writes into the cache, and q is the caller's; queries of other positions than the new keys' take a
    second launch.
    """
    caches, given = cache()
    q, more = tensor(4, rows, HEADS * GROUP, WIDTH), [tensor(4, new, HEADS, WIDTH, seed=n) for n in (8, 9)]
    before, told = q.clone(), {"rotary_cos": COS, "rotary_sin": SIN} if rotary else {}
    with Called() as called:
        with_kvcache(q, *caches, *more, cache_seqlens=SEQLENS_K, causal=causal, **told, **given)
    assert torch.equal(q, before)
    assert called.names.count("aotriton::_kv_append") == calls
    assert not [name for name in called.names if "index" in name or "scatter" in name or "aten::cat" in name]


def test_angles_of_16_bits_turn_as_those_of_32() -> None:
    """flash-attn has them in q's type."""
    q, new = tensor(4, 1, HEADS * GROUP, WIDTH), tensor(4, 1, HEADS, WIDTH, seed=3)
    results = []
    for of in (torch.bfloat16, torch.float32):
        angles = {"rotary_cos": COS.bfloat16().to(of), "rotary_sin": SIN.bfloat16().to(of)}
        caches, given = paged()
        results.append(with_kvcache(q, *caches, new, new, cache_seqlens=SEQLENS_K, **angles, **given))
    assert torch.equal(*results)


def test_autocast_on_a_cache() -> None:
    """Queries and new keys of float32 become what the cache is of."""
    q, new = tensor(4, 1, HEADS * GROUP, WIDTH), tensor(4, 1, HEADS, WIDTH, seed=3)
    results = []
    for wide in (True, False):
        caches, given = paged()
        step = [x.float() if wide else x for x in (q, new, new)]
        with torch.autocast("cpu", torch.bfloat16):
            results.append(with_kvcache(step[0], *caches, *step[1:], COS, SIN, cache_seqlens=SEQLENS_K, **given))
    assert torch.equal(*results)


def test_new_keys_have_no_gradient() -> None:
    """Where one would be recorded, they are refused."""
    caches, given = contiguous()
    q, new = tensor(4, 1, HEADS * GROUP, WIDTH), tensor(4, 1, HEADS, WIDTH, seed=3).requires_grad_()
    with pytest.raises(NotImplementedError, match="kv_append: k asks for a gradient"):
        with_kvcache(q, *caches, new, new, cache_seqlens=SEQLENS_K, **given)
    with torch.no_grad():
        with_kvcache(q, *caches, new, new, cache_seqlens=SEQLENS_K, **given)


def test_slopes_of_a_cache() -> None:
    """ALiBi is of caches without pages."""
    caches, _ = contiguous()
    check_cached(caches, {}, {"causal": True, "alibi_slopes": torch.linspace(0.1, 0.9, HEADS * GROUP)}, 2, 2)


def test_lengths_of_a_cache_may_be_one_number_or_none() -> None:
    """A number is that of each sequence; without one all rows count."""
    q, caches = tensor(4, 1, HEADS * GROUP, WIDTH), [tensor(4, 48, HEADS, WIDTH, seed=n) for n in (1, 2)]
    full = torch.full((4,), 48, dtype=torch.int32)
    expected = with_kvcache(q, *caches, cache_seqlens=full)
    assert torch.equal(with_kvcache(q, *caches, cache_seqlens=48), expected)
    assert torch.equal(with_kvcache(q, *caches), expected)
    pages = [one.view(12, 16, HEADS, WIDTH) for one in caches]
    table = torch.arange(12, dtype=torch.int32).view(4, 3)
    assert torch.equal(with_kvcache(q, *pages, block_table=table), expected)
    few = with_kvcache(q, *caches, cache_seqlens=5)
    assert torch.equal(few, flash.flash_attn_func(q, *(one[:, :5] for one in caches)))


@pytest.mark.parametrize("how", OF_CACHE.values(), ids=OF_CACHE)
def test_packed_queries_on_pages(how: dict[str, Any]) -> None:
    """Chunks of prompts beside decoding steps: each sequence has its own numbers of queries and of keys."""
    (k, v), given = paged()
    starts, starts_k = ([0, *torch.tensor(lengths).cumsum(0).tolist()] for lengths in ([1, 0, 30, 4], SEQLENS))
    q = tensor(starts[-1], HEADS * GROUP, WIDTH)
    lengths = *(torch.tensor(one, dtype=torch.int32) for one in (starts, starts_k)), 30, 34
    out, lse, nothing = varlen(q, k, v, *lengths, **given, **how, return_attn_probs=True)
    for (a, b), *kv in zip(pairwise(starts), *keys_and_values(), strict=True):
        expected, expected_lse = exact(q[a:b], *kv, **how)
        torch.testing.assert_close(out[a:b].double(), expected, rtol=0.02, atol=0.02)
        torch.testing.assert_close(lse[:, a:b].double(), expected_lse, rtol=0.02, atol=0.02)
    assert nothing is None


@pytest.mark.parametrize("cache", CACHES)
def test_a_step_on_a_cache_compiles(cache: Any) -> None:
    """In one graph, which writes into the cache, too."""
    torch._dynamo.reset()
    parts, given = cache()
    caches, others = ([one.clone() for one in parts] for _ in range(2))  # not parts of one tensor
    q, new = tensor(4, 1, HEADS * GROUP, WIDTH), tensor(4, 1, HEADS, WIDTH, seed=3)
    function = partial(with_kvcache, rotary_cos=COS, rotary_sin=SIN, causal=True, **given)
    call = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(
        call(q, *caches, new, new, cache_seqlens=SEQLENS_K), function(q, *others, new, new, cache_seqlens=SEQLENS_K)
    )
    for a, b in zip(caches, others, strict=True):
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def narrow(caches: list[Any]) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """Caches of 8 bits, one scale of each for all by strides of 0, and what they stand for in 16 bits."""
    stored = [one.to(torch.float8_e4m3fn) for one in caches]
    numbers = {"k_descale": 0.5, "v_descale": 2.0}
    scales = {name: torch.tensor(one).expand(4, HEADS) for name, one in numbers.items()}
    wide = [(x.float() * one).bfloat16() for x, one in zip(stored, numbers.values(), strict=True)]
    return stored, scales, wide


@pytest.mark.parametrize("how", list(OF_CACHE.values())[:3], ids=list(OF_CACHE)[:3])
@pytest.mark.parametrize("cache", CACHES)
def test_caches_of_8_bits(cache: Any, how: dict[str, Any]) -> None:
    """They are what their scales make of them."""
    caches, given = cache()
    stored, scales, wide = narrow(caches)
    q = tensor(4, 2, HEADS * GROUP, WIDTH)
    made = with_kvcache(q, *stored, cache_seqlens=SEQLENS_K, **given, **how, **scales)
    assert torch.equal(made, with_kvcache(q, *wide, cache_seqlens=SEQLENS_K, **given, **how))


@pytest.mark.parametrize("rotary", [{}, {"rotary_cos": COS, "rotary_sin": SIN}], ids=["", "rotary"])
@pytest.mark.parametrize("cache", CACHES)
def test_new_keys_in_a_cache_of_8_bits(cache: Any, rotary: dict[str, Any]) -> None:
    """They are rotated, and what the cache holds of them is near to what one of 16 bits does."""
    caches, given = cache()
    stored, scales, wide = narrow(caches)
    q, new = tensor(4, 1, HEADS * GROUP, WIDTH), tensor(4, 1, HEADS, WIDTH, seed=3)
    results = [
        with_kvcache(q, *one, new, new, cache_seqlens=SEQLENS_K, causal=True, **given, **rotary, **of_one)
        for one, of_one in ((stored, scales), (wide, {}))
    ]
    torch.testing.assert_close(*results, rtol=0.1, atol=0.1)
    for x, scale, expected in zip(stored, (0.5, 2.0), wide, strict=True):
        torch.testing.assert_close(x.float() * scale, expected.float(), rtol=0.08, atol=0.02, equal_nan=True)


def test_packed_queries_on_pages_of_8_bits() -> None:
    """And packed keys."""
    (k, v), given = paged()
    stored, scales, wide = narrow([k, v])
    starts, starts_k = ([0, *torch.tensor(lengths).cumsum(0).tolist()] for lengths in ([1, 0, 30, 4], SEQLENS))
    lengths = *(torch.tensor(one, dtype=torch.int32) for one in (starts, starts_k)), 30, 34
    q = tensor(starts[-1], HEADS * GROUP, WIDTH)
    assert torch.equal(varlen(q, *stored, *lengths, **given, **scales), varlen(q, *wide, *lengths, **given))
    stored, _, wide = narrow([tensor(starts_k[-1], HEADS, WIDTH, seed=n) for n in (1, 2)])
    assert torch.equal(varlen(q, *stored, *lengths, **scales), varlen(q, *wide, *lengths))


def test_dropout_draws_from_torchs_generator() -> None:
    """dropout_p drops other weights in each call, and the same ones after the same manual_seed."""
    calls: list[Callable[[], Any]] = [
        partial(flash.flash_attn_func, Q, K, V, 0.5),
        partial(flash.flash_attn_varlen_qkvpacked_func, PACKED, STARTS, 9, 0.5),
    ]
    for call in calls:
        torch.manual_seed(3)
        first, second = call(), call()
        torch.manual_seed(3)
        assert torch.equal(call(), first)
        assert not torch.equal(second, first)


def test_deterministic_is_a_hint() -> None:
    """The backward of a call that asks for it is told so, and no other one."""
    before = stats()["hints"].get("attn_bwd", {}).get("deterministic=1", 0)
    q = Q.clone().requires_grad_()
    for deterministic in (True, False):
        flash.flash_attn_func(q, K, V, deterministic=deterministic).sum().backward()
    assert stats()["hints"]["attn_bwd"]["deterministic=1"] - before == 1


def test_it_compiles() -> None:
    """In one graph."""
    torch._dynamo.reset()
    function = partial(flash.flash_attn_varlen_qkvpacked_func, causal=True, deterministic=True)
    call = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(call(PACKED, STARTS, 9), function(PACKED, STARTS, 9))


def test_what_is_not_served_is_refused() -> None:
    """By name."""
    with pytest.raises(RuntimeError, match="k has 3 dimensions, which must be 4 with block_table"):
        flash.flash_attn_varlen_kvpacked_func(
            PACKED[:, 0], PACKED[:, 1:], STARTS, STARTS, 9, 9, block_table=STARTS[None]
        )
    with pytest.raises(NotImplementedError, match="return_attn_probs with dropout_p"):
        flash.flash_attn_func(Q, K, V, 0.5, return_attn_probs=True)
    with pytest.raises(NotImplementedError, match="flash_attn_varlen_func: q_descale is given, and no kernel has q of"):
        flash.flash_attn_varlen_qkvpacked_func(PACKED, STARTS, 9, q_descale=torch.ones(4, 4))
    wide = torch.zeros(1, 3, 2, 520)
    with pytest.raises(RuntimeError, match="q has head_dim 520"):
        flash.flash_attn_func(wide, wide, wide)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cache_leftpad": SEQLENS_K}, "no kernel has cache_leftpad"),
        ({"cache_batch_idx": SEQLENS_K, "block_table": SEQLENS_K[:, None]}, "cache_batch_idx is of caches without"),
        ({"q_descale": torch.ones(2, 4)}, "q_descale is given, and no kernel has q of 8 bits"),
        ({"k": K}, "one of k and v is given, which go together"),
        ({"rotary_cos": COS}, "one of rotary_cos and rotary_sin is given, which go together"),
        ({"rotary_cos": COS, "rotary_sin": SIN}, "rotary_cos is given, k is not"),
        ({"k": K, "v": K}, "k is given, cache_seqlens is not"),
        ({"cache_batch_idx": SEQLENS_K}, "with cache_batch_idx, k_cache has 9 rows, no multiple of 16"),
        (
            {"block_table": torch.zeros(2, 1, dtype=torch.int32)},
            "k has page_size 9, which must be a positive multiple of 16",
        ),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, dict) else None,
)
def test_what_is_not_served_of_a_cache_is_refused(given: dict[str, Any], message: str) -> None:
    """By name."""
    with pytest.raises(RuntimeError, match=message):  # NotImplementedError is one
        with_kvcache(Q, K, V, **given)
