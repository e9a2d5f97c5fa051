"""Attention's features in torch, on tensors of a CPU: values and gradients are those of a dense formula in double
precision, which torch's own autograd differentiates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
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
from torch.utils.checkpoint import checkpoint

from aotriton.torch import attention, dropout_mask

OPS = torch.ops.aotriton
WORD = 0xFFFFFFFF
EPS = 2.0**-8  # of one rounding to bfloat16


def tensor(*sizes: int, seed: int = 0) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


def ints(*numbers: int) -> Any:
    return torch.tensor(numbers, dtype=torch.int32)


def product(factor: int, word: Any) -> tuple[Any, Any]:
    """The words of factor x word, by factors of 16 bits, so that int64 holds the products."""
    high, rest = word * (factor >> 16), word * (factor & 0xFFFF)
    total = (high & 0xFFFF) * 65536 + rest
    return (high >> 16) + (total >> 32), total & WORD


def philox(key: Any, counter: Any) -> Any:
    """The words of Philox 2x32 or 4x32 with 7 rounds for each counter, after Salmon et al., 2011."""
    c = [part.clone() for part in counter.long().unbind(-1)]
    keys = [key & WORD, key >> 32 & WORD]
    for _ in range(7):
        if len(c) == 2:
            high, low = product(0xD256D193, c[0])
            c = [high ^ c[1] ^ keys[0], low]
        else:
            (high0, low0), (high2, low2) = product(0xD2511F53, c[0]), product(0xCD9E8D57, c[2])
            c = [high2 ^ c[1] ^ keys[0], low2, high0 ^ c[3] ^ keys[1], low0]
        keys = [keys[0] + 0x9E3779B9 & WORD, keys[1] + 0xBB67AE85 & WORD]
    return torch.stack(c, -1)


def kept(p: float, seed: int, offset: int, slices: Any, rows: int, keys: int) -> Any:
    """What the weights of each slice, the number of a head of all sequences, are multiplied by, for dropout."""
    dropped = min(math.floor(p * 32768 + 0.5), 32640)
    of_call, of_key, of_row, _ = philox(seed, torch.tensor([offset & WORD, offset >> 32 & WORD, 0, 0]))
    key, row, of = torch.meshgrid(torch.arange(keys), torch.arange(rows), slices, indexing="ij")
    c0, c1 = 4 * (key // 16) + key % 8 // 2 + of_key, 8 * (row // 16) + row % 8 + of_row
    words = philox(of_call + of * 0xBB67AE85 & WORD, torch.stack([c0 & WORD, c1 & WORD], -1))
    word = words.gather(-1, (row // 8 % 2)[..., None])[..., 0]
    word = torch.where(key // 8 % 2 == 1, word >> 8 | (word & 0xFF) << 24, word)
    number = torch.where(key % 2 == 1, word >> 16, word) & 0x7FFF
    return torch.where(number < dropped, 0.0, 32768 / (32768 - dropped)).double().permute(2, 1, 0)


def dense(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    causal_variant: str = "top_left",
    window_left: int = -1,
    window_right: int = -1,
    scale: float | None = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    softcap: float = 0.0,
    keep: Any = 1.0,
) -> tuple[Any, Any]:
    """out and logsumexp of [batch, heads, rows, columns], as the documentation says; double precision."""
    rows, keys, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    x = q.double() @ k.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    i, j = torch.arange(rows)[:, None], torch.arange(keys)
    if alibi_slopes is not None:
        x = x - alibi_slopes.double()[..., None, None] * (i + keys - rows - j).abs()
    if bias is not None:
        x = x + bias.double()
    own = i + (keys - rows if causal_variant == "bottom_right" else 0)
    hidden = (j > own) & causal | (own - j > window_left) & (window_left >= 0)
    hidden = hidden | (j - own > window_right) & (window_right >= 0)
    x = x.masked_fill(hidden, -math.inf)
    if sinks is not None:
        x = torch.cat([x, sinks.double()[:, None, None].expand(*x.shape[:3], 1)], -1)
    nothing = (x == -math.inf).all(-1, keepdim=True)
    weights = x.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)[..., :keys]
    return (weights * keep) @ v, x.logsumexp(-1)


def close(got: Any, expected: Any, roundings: float = 6) -> None:
    """Within so many roundings of the largest element."""
    assert got.shape == expected.shape
    worst = (got.double() - expected.double()).abs().max().item() if got.numel() else 0
    assert worst <= roundings * EPS * expected.double().abs().max().item() + 1e-6, worst


def same(call: Callable[..., Any], formula: Callable[..., Any], leaves: dict[str, Any]) -> None:
    """Both give the same out and logsumexp of the leaves, and the same gradients of all of them."""
    mine = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    exact = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    out, logsumexp = call(**mine)
    out_exact, logsumexp_exact = formula(**exact)
    close(out, out_exact, 2)
    torch.testing.assert_close(logsumexp.double(), logsumexp_exact, rtol=0, atol=1e-4)
    assert not logsumexp.requires_grad
    dout = tensor(*out.shape, seed=99)
    found = torch.autograd.grad(out, list(mine.values()), dout)
    for got, expected, leaf in zip(
        found, torch.autograd.grad(out_exact, list(exact.values()), dout.double()), leaves.values(), strict=True
    ):
        assert got.dtype == leaf.dtype
        close(got, expected.nan_to_num())


ROWS, KEYS = 9, 13
Q, K, V = tensor(2, 4, ROWS, 16), tensor(2, 2, KEYS, 16, seed=1), tensor(2, 2, KEYS, 16, seed=2)
QKV = {"q": Q, "k": K, "v": V}
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
MASK: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right", "window_left": 6}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias": ({"bias": tensor(2, 4, ROWS, KEYS, seed=3)}, {}),
    "bias of all": ({"bias": tensor(ROWS, KEYS, seed=3)}, {"causal": True}),
    "bias of a batch": ({"bias": tensor(2, 1, 1, KEYS, seed=3)}, MASK),
    "bias of a row": ({"bias": tensor(4, ROWS, 1, seed=3), "sinks": SINKS}, MASK),
    "alibi": ({}, {"alibi_slopes": SLOPES}),
    "alibi of a batch": ({}, {"alibi_slopes": torch.stack([SLOPES, 2 * SLOPES]), "causal": True}),
    "softcap": ({}, {"softcap": 0.7, "scale": 0.5}),
    "sinks": ({"sinks": SINKS}, {}),
    "sinks of bfloat16": ({"sinks": SINKS.bfloat16()}, MASK),
    "all with a bias": (
        {"sinks": SINKS, "bias": tensor(2, 4, ROWS, KEYS, seed=3)},
        {"alibi_slopes": SLOPES, "scale": 0.4, **MASK},
    ),
    "values of a larger head dim": ({"v": tensor(2, 2, KEYS, 24, seed=2)}, {"causal": True}),
    "values of a smaller head dim": ({"v": tensor(2, 2, KEYS, 3, seed=2), "sinks": SINKS}, MASK),
    "an odd head dim": ({"q": tensor(2, 4, ROWS, 13), "k": tensor(2, 2, KEYS, 13, seed=1)}, MASK),
    "all with a softcap": ({"sinks": SINKS}, {"softcap": 2.0, "scale": 0.4, **MASK}),
}


@pytest.mark.parametrize(("leaves", "how"), CASES.values(), ids=CASES)
def test_features_are_what_the_formula_says(leaves: dict[str, Any], how: dict[str, Any]) -> None:
    """out, logsumexp and the gradients of q, k, v, bias and sinks, each of the shape and type that it was given in."""
    same(partial(attention, return_logsumexp=True, **how), partial(dense, **how), QKV | leaves)


def test_a_mask_of_bool_is_a_bias() -> None:
    """True means that the key counts, as in SDPA; a row of which no key counts is zero, and so are its gradients."""
    mask = torch.rand(2, 1, ROWS, KEYS, generator=torch.Generator().manual_seed(5)) > 0.4
    mask[0, :, 2] = False
    hidden = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    same(partial(attention, return_logsumexp=True, bias=mask), partial(dense, bias=hidden), QKV)
    q = Q.clone().requires_grad_()
    out = attention(q, K, V, bias=mask)
    out.float().square().sum().backward()
    assert not out[0, :, 2].any()
    assert not q.grad[0, :, 2].any()
    assert q.grad.isfinite().all()


def test_a_sink_alone() -> None:
    """A row that sees no key, with a sink: out is zero, logsumexp the sink."""
    q = tensor(1, 4, 5, 16)
    out, logsumexp = attention(
        q, K[:1, :, :2], V[:1, :, :2], causal=True, causal_variant="bottom_right", sinks=SINKS, return_logsumexp=True
    )
    assert not out[:, :, :3].any()
    assert torch.equal(logsumexp[0, :, 0], SINKS)


def test_philox_is_the_published_one() -> None:
    """The tests' own random bits are those of the authors' list of known answers, for seven rounds."""
    four, two = torch.tensor([[0] * 4, [WORD] * 4]), torch.tensor([[0] * 2, [WORD] * 2])
    assert philox(0, four)[0].tolist() == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]
    assert philox(2**64 - 1, four)[1].tolist() == [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]
    assert philox(torch.tensor(0), two)[0].tolist() == [0x257A3673, 0xCD26BE2A]
    assert philox(torch.tensor(WORD), two)[1].tolist() == [0xAB302C4D, 0x3DC9D239]


@pytest.mark.parametrize(("seed", "offset"), [(1, 0), (-5, 2**40 + 7), (2**62 + 12345, 2**33 - 1)])
@pytest.mark.parametrize("p", [0.25, 0.9, 1e-6])
def test_dropout_drops_by_philox(p: float, seed: int, offset: int) -> None:
    """Which weights are dropped follows from the seed and the offset; both ways."""
    keep = kept(p, seed, offset, torch.arange(8), ROWS, KEYS).view(2, 4, ROWS, KEYS)
    assert torch.equal(dropout_mask(2, 4, ROWS, KEYS, p, torch.tensor(seed), offset), keep > 0)
    how = {"dropout": p, "dropout_seed": torch.tensor(seed), "dropout_offset": torch.tensor(offset)}
    same(partial(attention, return_logsumexp=True, **how, **MASK), partial(dense, keep=keep, **MASK), QKV)


def test_the_largest_dropout() -> None:
    """One weight of 256 is kept, and that by its number."""
    out = attention(torch.zeros_like(Q), torch.zeros_like(K), torch.ones_like(V), dropout=255 / 256, dropout_seed=9)
    keep = dropout_mask(2, 4, ROWS, KEYS, 255 / 256, 9, 0)
    assert keep.any()
    assert torch.equal(keep, kept(255 / 256, 9, 0, torch.arange(8), ROWS, KEYS).view(keep.shape) > 0)
    torch.testing.assert_close(out[..., 0].float(), keep.sum(-1) * 256 / KEYS, rtol=2 * EPS, atol=0)


def test_a_mask_of_no_such_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="dropout is 1, which must be at least 0 and at most 255 / 256"):
        dropout_mask(1, 1, 16, 16, 1.0, 0, 0)


def test_dropout_draws_from_torchs_generator() -> None:
    """Without a seed, calls drop other weights each, and the same ones after the same manual_seed; about as many as
    asked for.
    """
    q, v = torch.zeros(1, 1, 64, 128).bfloat16(), torch.eye(128).bfloat16()[None, None]
    call = partial(attention, q, v, v, dropout=0.3)
    torch.manual_seed(3)
    first, second = call(), call()
    torch.manual_seed(3)
    assert torch.equal(call(), first)
    assert not torch.equal(second, first)
    assert (first == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)
    seed = torch.tensor(7)
    assert torch.equal(call(dropout_seed=seed), call(dropout_seed=seed, dropout_offset=torch.tensor(0)))
    assert torch.equal(call(dropout_seed=7, dropout_offset=2), call(dropout_seed=seed, dropout_offset=torch.tensor(2)))


def test_dropout_under_checkpointing() -> None:
    """What a checkpoint computes again drops the same weights."""

    def call(x: Any) -> Any:
        return attention(x.sin(), K, V, dropout=0.5).cos()

    gradients = []
    for run in (call, partial(checkpoint, call, use_reentrant=False)):
        q = Q.clone().requires_grad_()
        torch.manual_seed(3)
        run(q).float().sum().backward()
        gradients.append(q.grad)
    assert torch.equal(*gradients)


LENGTHS = [(5, 7), (0, 3), (9, 2), (4, 0), (1, 6)]  # rows and keys of sequences
STARTS_Q = ints(0, *torch.tensor([q for q, _ in LENGTHS]).cumsum(0).tolist())
STARTS_K = ints(0, *torch.tensor([k for _, k in LENGTHS]).cumsum(0).tolist())
PACKED = {
    "q": tensor(int(STARTS_Q[-1]), 4, 16),
    "k": tensor(int(STARTS_K[-1]), 2, 16, seed=1),
    "v": tensor(int(STARTS_K[-1]), 2, 16, seed=2),
}
OF_PACKED: dict[str, Any] = {"cu_seqlens_q": STARTS_Q, "cu_seqlens_k": STARTS_K, "max_seqlen_q": 9, "max_seqlen_k": 7}


def of_sequences(q: Any, k: Any, v: Any, *, used: Any = None, keep: Any = None, **how: Any) -> tuple[Any, Any]:
    """The formula for each sequence by itself, of which only some rows may be used."""
    outs, logsumexps = [], []
    for n, ((q_begin, q_end), (k_begin, k_end)) in enumerate(zip(pairwise(STARTS_Q), pairwise(STARTS_K), strict=True)):
        of_q, of_k = (q_end - q_begin, k_end - k_begin) if used is None else (used[0][n], used[1][n])
        of_keys = [x[k_begin : k_begin + of_k].transpose(0, 1)[None] for x in (k, v)]
        if keep is not None:
            how["keep"] = keep(n, int(of_q), int(of_k))
        out, logsumexp = dense(q[q_begin : q_begin + of_q].transpose(0, 1)[None], *of_keys, **how)
        unused = int(q_end - q_begin - of_q)
        outs.append(torch.nn.functional.pad(out[0].transpose(0, 1), (0, 0, 0, 0, 0, unused)))
        logsumexps.append(torch.nn.functional.pad(logsumexp[0], (0, unused), value=-math.inf))
    return torch.cat(outs), torch.cat(logsumexps, 1)


@pytest.mark.parametrize(
    ("leaves", "how"),
    [
        ({}, {}),
        ({}, MASK),
        ({"sinks": SINKS}, {"causal": True, "alibi_slopes": SLOPES}),
        ({"sinks": SINKS}, {"causal": True, "softcap": 1.5}),
        ({"v": tensor(int(STARTS_K[-1]), 2, 24, seed=2)}, MASK),
    ],
    ids=["plain", "masked", "alibi", "softcap", "values of another head dim"],
)
def test_packed_sequences_are_each_by_itself(leaves: dict[str, Any], how: dict[str, Any]) -> None:
    """Sequences of different lengths, some of which have no rows or no keys, are what each of them is alone."""
    same(partial(attention, return_logsumexp=True, **how, **OF_PACKED), partial(of_sequences, **how), PACKED | leaves)


def test_operators_take_packed_sequences_as_a_batch_of_one() -> None:
    """Forward and backward have the same bits as of rows by themselves."""

    def results(*given: Any) -> list[Any]:
        leaves = [x.detach().requires_grad_() for x in given]
        out, logsumexp = OPS.attn_fwd(*leaves, **OF_PACKED, causal=True)
        return [out, logsumexp, *torch.autograd.grad(out.square().sum(), leaves)]

    alone = results(*PACKED.values())
    batch = results(*(x.transpose(0, 1)[None] for x in PACKED.values()))
    for one, other in zip(alone, batch, strict=True):
        assert torch.equal(one if one.dim() == 2 else one.transpose(0, 1), other[0])


def test_dropout_of_packed_sequences() -> None:
    """A sequence's number, and positions within it, choose what is dropped."""

    def keep(sequence: int, rows: int, keys: int) -> Any:
        return kept(0.4, 11, 5, torch.arange(4) + 4 * sequence, rows, keys)[None]

    how = {"dropout": 0.4, "dropout_seed": torch.tensor(11), "dropout_offset": torch.tensor(5)}
    call = partial(attention, return_logsumexp=True, **how, **OF_PACKED)
    same(call, partial(of_sequences, keep=keep), PACKED)


def test_used_rows_of_packed_sequences() -> None:
    """Rows that are not used have results of zero, and masks end at those that are."""
    used = ints(3, 0, 9, 2, 1), ints(7, 1, 0, 0, 4)
    how: dict[str, Any] = {**MASK, "alibi_slopes": SLOPES}
    call = partial(attention, return_logsumexp=True, seqused_q=used[0], seqused_k=used[1], **how, **OF_PACKED)
    same(call, partial(of_sequences, used=used, **how), PACKED)


@pytest.mark.parametrize("sides", ["q", "k", "qk"])
def test_used_rows_of_a_batch(sides: str) -> None:
    """Each of a batch counts so many rows, of either side or of both."""
    used = {"q": (4, 9), "k": (13, 6)}
    given = {f"seqused_{side}": ints(*used[side]) for side in sides}

    def formula(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        outs, logsumexps = [], []
        for n in range(2):
            of_q, of_k = used["q"][n] if "q" in sides else ROWS, used["k"][n] if "k" in sides else KEYS
            out, logsumexp = dense(q[n : n + 1, :, :of_q], k[n : n + 1, :, :of_k], v[n : n + 1, :, :of_k], **MASK)
            outs.append(torch.nn.functional.pad(out, (0, 0, 0, ROWS - of_q)))
            logsumexps.append(torch.nn.functional.pad(logsumexp, (0, ROWS - of_q), value=-math.inf))
        return torch.cat(outs), torch.cat(logsumexps)

    same(partial(attention, return_logsumexp=True, **given, **MASK), formula, QKV)


def test_without_features_the_overloads_agree() -> None:
    """The overload with features, given none, computes what the plain one does, both ways."""
    out, logsumexp = OPS.attn_fwd.default(Q, K, V, causal=True)
    assert all(map(torch.equal, OPS.attn_fwd.features(Q, K, V, causal=True), (out, logsumexp)))
    found = OPS.attn_bwd.features(Q, K, V, out, out, logsumexp, causal=True)
    assert all(map(torch.equal, found, OPS.attn_bwd.default(Q, K, V, out, out, logsumexp, causal=True)))
    assert [one.numel() for one in found[3:]] == [0, 0]


def test_an_operator_takes_features_by_name() -> None:
    """torch finds the overload by the arguments."""
    out, _ = OPS.attn_fwd(Q, K, V, sinks=SINKS, softcap=0.5)
    assert torch.equal(out, attention(Q, K, V, sinks=SINKS, softcap=0.5))


V24 = tensor(2, 2, KEYS, 24)
SAMPLES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "forward": (
        OPS.attn_fwd.features,
        (Q, K, V, tensor(2, 4, ROWS, KEYS), SLOPES.expand(2, 4), SINKS),
        {"causal": True},
    ),
    "values of another head dim": (OPS.attn_fwd.default, (Q.transpose(1, 2).contiguous().transpose(1, 2), K, V24), {}),
    "values of another head dim, with sinks": (OPS.attn_fwd.features, (Q, K, V24, None, None, SINKS), {}),
    "packed": (
        OPS.attn_fwd.features,
        (*PACKED.values(), None, None, SINKS, STARTS_Q, STARTS_K),
        {"max_seqlen_q": 9, "max_seqlen_k": 7, "causal": True},
    ),
    "packed, as a batch of one": (
        OPS.attn_fwd.features,
        (*(x.transpose(0, 1)[None] for x in PACKED.values()), None, None, SINKS, STARTS_Q, STARTS_K),
        {"max_seqlen_q": 9, "max_seqlen_k": 7, "causal": True},
    ),
    "packed, values of another head dim": (
        OPS.attn_fwd.features,
        (PACKED["q"], PACKED["k"], tensor(int(STARTS_K[-1]), 2, 24), None, None, None, STARTS_Q, STARTS_K),
        {"max_seqlen_q": 9, "max_seqlen_k": 7},
    ),
    "backward": (
        OPS.attn_bwd.features,
        (Q, K, V, Q, Q, Q[..., 0].float().abs() + 9, tensor(2, 4, ROWS, KEYS), None, SINKS),
        {"dbias": True, "dsinks": True},
    ),
    "backward without dq and dv": (
        OPS.attn_bwd.features,
        (Q, K, V, Q, Q, Q[..., 0].float().abs() + 9, tensor(2, 4, ROWS, KEYS), None, SINKS),
        {"dsinks": True, "skip_gradients": 5},
    ),
}


@pytest.mark.parametrize(("operator", "args", "kwargs"), SAMPLES.values(), ids=SAMPLES)
def test_opcheck(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """torch's own check of an operator finds nothing, with and without gradients."""
    torch.library.opcheck(operator, args, kwargs)
    if operator is OPS.attn_fwd.features:
        asking = (0, 1, 2, 3, 5)
        given = [arg.clone().requires_grad_() if i in asking and arg is not None else arg for i, arg in enumerate(args)]
        torch.library.opcheck(operator, tuple(given), kwargs)


def test_autocast() -> None:
    """Under autocast q, k, v and the bias are computed in its type; slopes and sinks stay in fp32."""
    given = [x.float().clone().requires_grad_() for x in (Q, K, V, tensor(ROWS, KEYS), SINKS)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q, k, v, bias, sinks = given
        out = attention(q, k, v, bias=bias, sinks=sinks, alibi_slopes=SLOPES)
    cast = [x.detach().bfloat16() for x in given[:4]]
    assert torch.equal(out, attention(*cast[:3], bias=cast[3], sinks=SINKS, alibi_slopes=SLOPES))
    out.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in given)


VMAPPED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias": ({"bias": tensor(3, ROWS, KEYS)}, {"alibi_slopes": SLOPES}),
    "sinks": ({"sinks": torch.stack([SINKS, SINKS + 1, SINKS - 1])}, {"softcap": 1.0}),
    "dropout": ({}, {"dropout": 0.5, "dropout_seed": torch.tensor(1)}),
    "used": ({"seqused_k": torch.stack([ints(3, 13), ints(5, 2), ints(0, 7)])}, {}),
}


@pytest.mark.parametrize(("mapped", "shared"), VMAPPED.values(), ids=VMAPPED)
def test_vmap(mapped: dict[str, Any], shared: dict[str, Any]) -> None:
    """Each result of vmap is the one of its own call."""
    q = torch.stack([Q, 2 * Q, Q.sin()])

    def call(q: Any, mapped: Any) -> Any:
        return attention(q, K, V, **mapped, **shared)

    got = torch.vmap(call)(q, mapped)
    each = [call(q[i], {name: one[i] for name, one in mapped.items()}) for i in range(3)]
    assert torch.equal(got, torch.stack(each))


@pytest.mark.parametrize("name", ["bias", "sinks"])
def test_vmap_of_gradients(name: str) -> None:
    """A batch of gradients at once is each of them by itself."""
    leaves = [Q.clone().requires_grad_(), {"bias": tensor(ROWS, KEYS), "sinks": SINKS}[name].clone().requires_grad_()]
    out, douts = attention(leaves[0], K, V, **{name: leaves[1]}), tensor(3, *Q.shape)
    got = torch.autograd.grad(out, leaves, douts, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(out, leaves, dout, retain_graph=True) for dout in douts]
    for one, expected in zip(got, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack(expected))


@pytest.mark.parametrize("transform", ["grad", "vjp", "jacrev"])
def test_functions_of_torch_func(transform: str) -> None:
    """Their gradients are autograd's, of a bias and sinks, too; a derivative in the other direction is refused."""

    def loss(q: Any, bias: Any, sinks: Any) -> Any:
        return attention(q, K, V, bias=bias, sinks=sinks).float().square().sum()

    given = Q, tensor(ROWS, KEYS), SINKS
    leaves = [x.clone().requires_grad_() for x in given]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    if transform == "grad":
        found = torch.func.grad(loss, (0, 1, 2))(*given)
    elif transform == "vjp":
        found = torch.func.vjp(loss, *given)[1](torch.ones(()))
    else:
        found = torch.func.jacrev(loss, (0, 1, 2))(*given)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want)
    with pytest.raises(NotImplementedError, match=r"attn_fwd\.features: forward AD"):
        torch.func.jvp(loss, given, given)


def test_tensors_without_memory() -> None:
    """On the device meta gradients have shapes."""
    given = [x.to("meta").requires_grad_() for x in (Q, K, V, tensor(4, ROWS, KEYS), SINKS)]
    q, k, v, bias, sinks = given
    attention(q, k, v, bias=bias, sinks=sinks).sum().backward()
    assert all(x.grad.shape == x.shape for x in given)


def test_a_gradient_has_no_gradient() -> None:
    """A second derivative is refused with features, too; to record a gradient is not."""
    q = Q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(attention(q, K, V, sinks=SINKS).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"^aotriton's attention has no second derivative"):
        torch.autograd.grad(gradient.sum(), q)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: attention(Q, K, V, alibi_slopes=SLOPES.clone().requires_grad_()),
        "attn_fwd: alibi_slopes asks for a gradient, which attention has not",
    ),
    (
        lambda: attention(Q, K, V, **OF_PACKED),
        "attention: q has 4 dimensions, which must be 3 with cu_seqlens",
    ),
    (
        lambda: attention(**PACKED, **OF_PACKED, alibi_slopes=SLOPES.expand(5, 4)),
        "attention: with cu_seqlens, alibi_slopes must be [heads_q]: all sequences have the same",
    ),
    (
        lambda: attention(**PACKED, **OF_PACKED | {"cu_seqlens_q": STARTS_Q + 1}),
        "attn_fwd: cu_seqlens_q[5] is 20, which must be from 19 to 19",
    ),
    (
        lambda: attention(**PACKED, **OF_PACKED | {"cu_seqlens_k": STARTS_K.flip(0)}),
        "attn_fwd: cu_seqlens_k[1] is 12, which must be from 18 to 18",
    ),
    (
        lambda: attention(Q, K, V, softcap=1.0, bias=tensor(ROWS, KEYS)),
        "attn_fwd: no kernel has softcap together with bias yet; served without softcap, or without bias",
    ),
    (
        lambda: attention(**PACKED, **OF_PACKED, bias=tensor(1, 1, 19, 18)),
        "attention: no kernel has bias together with cu_seqlens yet; served without bias, or without cu_seqlens",
    ),
    (
        lambda: attention(**PACKED, **OF_PACKED | {"cu_seqlens_q": STARTS_Q.long()}),
        "attn_fwd: cu_seqlens_q has dtype int64, which must be int32",
    ),
    (
        lambda: attention(**PACKED, **OF_PACKED | {"cu_seqlens_k": None}),
        "attn_fwd: cu_seqlens_k is not given, and the other one is",
    ),
    (
        lambda: attention(Q, K, V, dropout=1.0),
        "attn_fwd: dropout is 1, which must be at least 0 and at most 255 / 256",
    ),
    (lambda: OPS.attn_fwd(Q, K, V, dropout=0.5), "attn_fwd: dropout is given, dropout_seed is not"),
    (lambda: attention(Q, K, V, sinks=SINKS[:3]), "attn_fwd: sinks has heads_q 3, q has 4"),
    (lambda: OPS.attn_fwd(Q, K, V, bias=Q[0]), "attn_fwd: bias has 3 dimensions, which must be 4"),
    (
        lambda: attention(Q, K, V, dropout=0.5, dropout_seed=ints(1)),
        "attn_fwd: dropout_seed must be one number of int64, in a tensor",
    ),
    (
        lambda: OPS.attn_bwd.features(Q, K, V, Q, Q, Q[..., 0].float(), dbias=True),
        "attn_bwd: dbias is asked for, and bias is not given",
    ),
    (
        lambda: OPS.attn_bwd.features(Q, K, V, Q, Q, Q[..., 0].float(), dsinks=True),
        "attn_bwd: dsinks is asked for, and sinks is not given",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_errors_name_the_argument(call: Callable[[], Any], message: str) -> None:
    """What cannot be computed is refused, by the argument's name."""
    with pytest.raises(RuntimeError) as raised:
        call()
    assert str(raised.value).splitlines()[0] == message


DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@pytest.mark.parametrize("case", covering(40), ids=str)
def test_every_pair_of_features_is_what_float64_says(case: Case) -> None:
    """The operators, forward and backward, are as near to float64 as an ordinary implementation; rows that do not count
    are not read, and their results are zeros.
    """
    low = DTYPES[case.dtype]
    given: dict[str, Any] = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in inputs(case).items()}
    given |= {name: given[name].to(low) for name in ("q", "k", "v", "dout", "bias") if name in given}
    given |= {name: given[name].float() for name in ("alibi_slopes", "sinks") if name in given}
    if case.bias:
        given["bias"] = given["bias"].expand(case.bias_shape)
    if case.alibi:
        given["alibi_slopes"] = given["alibi_slopes"].expand(case.batch, case.heads_q)
    seeds: dict[str, Any] = {"dropout_seed": case.seed, "dropout_offset": case.offset} if case.dropout else {}
    scalars = {"sm_scale": case.sm_scale, **case.scalars}

    wide: dict[str, Any] = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    of_call: dict[str, Any] = {name: x for name, x in scalars.items() if not name.startswith("max_seqlen")}
    call = Call(**wide, **of_call, **seeds)
    rounded = ordinary(call, lambda x: x.to(low).float())
    exact = truth(call)

    q, k, v, dout = (given.pop(name) for name in ("q", "k", "v", "dout"))
    given |= {name: torch.tensor(number) for name, number in seeds.items()}
    out, logsumexp = OPS.attn_fwd.features(q, k, v, **given, **scalars)
    of_bias, of_sinks = bool(case.bias), case.sinks
    gradients = OPS.attn_bwd.features(q, k, v, out, dout, logsumexp, **given, **scalars, dbias=of_bias, dsinks=of_sinks)
    names = ["out", "logsumexp", "dq", "dk", "dv", *["dbias"] * of_bias, *["dsinks"] * of_sinks]
    owned_q, owned_k = call.owned
    for name, result in zip(names, (out, logsumexp, *(one for one in gradients if one.numel())), strict=True):
        if name in ("out", "logsumexp", "dq"):
            result[:, :, owned_q:] = getattr(exact, name)[:, :, owned_q:]
        elif name in ("dk", "dv"):
            result[:, :, owned_k:] = getattr(exact, name)[:, :, owned_k:]
        check(name, result, exact, rounded, case.dtype)
