"""Attention of latent caches in torch, whose values are the first columns of the keys, on tensors of a CPU."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

import torch

from aotriton.rules.flash.features import LATENT_DIMS
from aotriton.torch import attention

DIM, DIM_V = LATENT_DIMS
SCALE = 192**-0.5
LAST: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right"}


def normal(*sizes: int) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).bfloat16()


def expected(q: Any, k: Any) -> Any:
    """In float64; queries are the last rows."""
    scores = q.double() @ k.double().mT * SCALE
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(k.shape[-2] - q.shape[-2] + 1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ k[..., :DIM_V].double()


def decode(q: Any, k: Any, **more: Any) -> Any:
    return attention(q, k, k[..., :DIM_V], scale=SCALE, **LAST, **more)


def test_values_are_columns_of_the_keys() -> None:
    """In rows, of one key head for all heads of q and of two."""
    for heads_k in (1, 2):
        q, k = normal(2, 4, 3, DIM), normal(2, heads_k, 70, DIM)
        exact = expected(q, k.repeat_interleave(4 // heads_k, 1))
        assert (decode(q, k).double() - exact).norm() < 0.01 * exact.norm()


def test_pages_hold_what_rows_do() -> None:
    """A cache of pages × tokens × columns, as servers keep it, in any order."""
    q, rows = normal(2, 4, 1, DIM), normal(2, 1, 64, DIM)
    order = torch.tensor([3, 0, 5, 2])
    cache = torch.full((6, 32, 1, DIM), torch.nan, dtype=torch.bfloat16)
    cache[order] = rows.reshape(4, 32, 1, DIM)
    more = {"block_table": order.int().view(2, 2), "seqused_k": torch.tensor([64, 64], dtype=torch.int32)}
    assert torch.equal(decode(q, cache.transpose(1, 2), **more), decode(q, rows))


def test_a_compiled_step_still_has_both_at_one_place() -> None:
    """The slice is in the graph."""
    q, k = normal(1, 2, 1, DIM), normal(1, 1, 40, DIM)
    assert torch.equal(torch.compile(decode, fullgraph=True)(q, k), decode(q, k))


@pytest.mark.parametrize(
    ("of_v", "message"),
    [(DIM_V, "at the same address"), (256, "head_dim_v 256"), (DIM, "head_dim_v 576")],
    ids=["elsewhere", "less", "all"],
)
def test_other_values_are_refused(of_v: int, message: str) -> None:
    """A CPU refuses what a GPU does."""
    q, k = normal(1, 2, 1, DIM), normal(1, 1, 40, DIM)
    with pytest.raises(RuntimeError, match=message):
        attention(q, k, k[..., :of_v].clone(), scale=SCALE)


def test_there_is_no_gradient() -> None:
    """The forward is refused where one is asked for, or the backward is."""
    q, k = normal(1, 2, 1, DIM).requires_grad_(), normal(1, 1, 40, DIM)
    with pytest.raises(RuntimeError, match="attn_bwd: q has head_dim 576"):
        decode(q, k).sum().backward()
