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
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (flash.flash_attn_func, f"q, k, v, {SIGNATURE}"),
        (flash.flash_attn_varlen_func, f"q, k, v, {LENGTHS}, {SIGNATURE}, block_table=None"),
    ],
)
def test_signatures_are_those_of_flash_attn(function: Any, signature: str) -> None:
    """Names, order and defaults of flash-attn 2's arguments."""
    (made,) = ast.parse(f"def f({signature}): ...").body
    assert isinstance(made, ast.FunctionDef)
    defaults = [ast.literal_eval(one) for one in made.args.defaults]
    names = [one.arg for one in made.args.args]
    given = inspect.signature(function).parameters
    assert list(given) == names
    assert [p.default for p in given.values()] == [inspect.Parameter.empty] * (len(names) - len(defaults)) + defaults


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
    with pytest.raises(NotImplementedError, match="block_table"):
        flash.flash_attn_varlen_qkvpacked_func(PACKED, STARTS, 9, block_table=STARTS[None])
    with pytest.raises(NotImplementedError, match="return_attn_probs with dropout_p"):
        flash.flash_attn_func(Q, K, V, 0.5, return_attn_probs=True)
    wide = torch.zeros(1, 3, 2, 264)
    with pytest.raises(RuntimeError, match="q has head_dim 264"):
        flash.flash_attn_func(wide, wide, wide)
