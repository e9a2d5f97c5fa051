"""Random steps of a server, in torch, on tensors of a CPU: a few of those that test/gpu makes many of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

import torch
from attention_truth import Call, truth
from serving import Setup, Simulation, attention

OPS = torch.ops.aotriton
SMALL = Setup(head_dim=16, rotary_pairs=8, batch=5, longest=70, chunk=9, tokens=24)
SETUPS = (
    SMALL,
    replace(SMALL, group=7, heads_k=1, window=20, sinks=True, dtype="fp16", tokens_first=False, rotary_pairs=4),
    replace(SMALL, group=1, head_dim=24, page_size=48, softcap=5.0, interleaved=True),
    replace(SMALL, group=8, heads_k=1, rotary_pairs=0, window=0, batch=2),
    replace(SMALL, captured=True),  # in the shapes of a graph: rows and sequences that a step has not are nobody's
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products are so small that threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


EVENTS = (
    "added", "ended", "moved", "swapped out", "swapped in", "rows swapped", "packed", "chunks beside decoding",
)  # fmt: skip


class Operators:
    """torch's operators. What is given to them may be changed before by functions of the names of the calls."""

    def __init__(self, **change: Any) -> None:
        self.change = change

    def call(self, append: dict[str, Any], attend: dict[str, Any], out: Any, logsumexp: Any) -> None:
        given = dict(append)
        self.change.get("kv_append", lambda given: None)(given)
        OPS.kv_append(**given)
        given = dict(attend)
        self.change.get("attn_fwd", lambda given: None)(given)
        rows = int(given["cu_seqlens_q"][-1]) if "cu_seqlens_q" in given else out.shape[2]
        for x, result in zip((out, logsumexp), OPS.attn_fwd(**given), strict=True):
            x[:, :, :rows] = result[:, :, :rows]


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_every_step_is_right(setup: Setup) -> None:
    """400 steps of packed and of batched tokens, while pages move and sequences come, end, and are swapped."""
    simulation = Simulation(setup, Operators(), "cpu", seed=1)
    simulation.run(400)
    happened = simulation.server.happened
    wanted = [*EVENTS, *([] if setup.captured else ["1 new of each", "2 new of each"])]
    wanted += [] if setup.window >= 0 else ["short of pages"]
    assert all(happened[what] for what in wanted), happened
    error, ordinary, scale, _ = simulation.squares[0].sqrt().tolist()
    assert error / scale == pytest.approx(ordinary / scale, rel=0.5), "ordinary code rounds weights and results"


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_truth_is_that_of_other_tests(setup: Setup) -> None:
    """Results and the sizes of their terms are what attention_truth says, of three queries behind other keys."""
    draw = torch.Generator().manual_seed(1)

    def normal(*sizes: int) -> Any:
        return torch.randn(sizes, generator=draw, dtype=torch.float64)

    heads, group, width = setup.heads_k, setup.group, setup.head_dim
    q, sinks = normal(1, heads * group, 3, width), normal(heads * group)
    k, v = normal(1, heads, 40, width), normal(1, heads, 40, width)
    scalars: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right", "softcap": setup.softcap}
    if setup.sinks:
        scalars["sinks"] = sinks
    expected = truth(Call(q, k, v, torch.zeros_like(q), width**-0.5, window_left=setup.window, **scalars))
    place = torch.tensor([[37, 38, 39]])
    got = attention(setup, q.view(1, heads, group, 3, width), k, v, place, sinks, torch.float64)
    bounds = expected.bounds
    pairs = ((got.out, expected.out), (got.logsumexp, expected.logsumexp), (got.out_bound, bounds["out"]))
    for x, y in (*pairs, (got.logsumexp_bound, bounds["logsumexp"])):
        torch.testing.assert_close(x.flatten(1, 2), y, rtol=1e-12, atol=1e-12)


def one_key_less(given: dict[str, Any]) -> None:
    given["seqused_k"] = (given["seqused_k"] - 1).clamp(min=1)


def another_page(given: dict[str, Any]) -> None:
    given["block_table"] = given["block_table"].flip(0).clamp(max=given["k"].shape[0] - 1)


def beyond_the_last_key(given: dict[str, Any]) -> None:
    given["seqused_k"] = given["seqused_k"] + 1
    given["block_table"] = given["block_table"].clamp(max=given["k"].shape[0] - 1)


def stray(given: dict[str, Any]) -> None:
    given["k_cache"][-1, 0, 3, 0] = 1.0


def half_a_turn(given: dict[str, Any]) -> None:
    given["rotary_sin"] = -given["rotary_sin"]


def another_angle(given: dict[str, Any]) -> None:
    given["rotary_cos"] = given["rotary_cos"].clone()
    given["rotary_cos"][7, 3] += 0.1


FAULTS = {
    "one_key_less": ({"attn_fwd": one_key_less}, "attn_fwd: out of row "),
    "another_page": ({"attn_fwd": another_page}, "attn_fwd: out of row "),
    "beyond_the_last_key": ({"attn_fwd": beyond_the_last_key}, "attn_fwd: out of row "),
    "stray": ({"kv_append": stray}, "the cache was written elsewhere; step "),
    "half_a_turn": ({"kv_append": half_a_turn}, "kv_append: a key or value in the cache, or a query of row "),
    "another_angle": ({"kv_append": another_angle}, "kv_append: a key or value in the cache, or a query of row "),
}


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    """A call that reads or writes something else is found, with seed and step."""
    with pytest.raises(AssertionError) as raised:
        Simulation(SMALL, Operators(**change), "cpu", seed=3).run(100)
    text = str(raised.value)
    assert text.startswith(message)
    assert "step " in text
    assert text.endswith(f"; seed 3; {SMALL}")
