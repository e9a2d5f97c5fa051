"""Hints on a GPU: whichever way a call is made, its results are right, and it stays within the workspace that it asked
for.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed

BATCH, HEADS, SEQLEN = 6, 4, 512
GUARD = 4096  # bytes behind a workspace
BYTE = 0x5A


def tensors(head_dim: int) -> dict[str, torch.Tensor]:
    """A backward's operands, with what the forward wrote."""
    generator = torch.Generator(device="cuda").manual_seed(3)
    shape = (BATCH, HEADS, SEQLEN, head_dim)
    made = {name: torch.randn(shape, generator=generator, device="cuda").bfloat16() for name in ("q", "k", "v", "dout")}
    made |= {name: torch.empty(shape, dtype=torch.bfloat16, device="cuda") for name in ("out", "dq", "dk", "dv")}
    made["logsumexp"] = torch.empty(shape[:3], device="cuda")
    aotriton.attn_fwd(*(made[name] for name in ("q", "k", "v", "out", "logsumexp")), sm_scale=0.1)
    return made


def backward(given: dict[str, torch.Tensor], **more: Any) -> tuple[torch.Tensor, ...]:
    """The gradients; the workspace is as large as the call asks for, and nothing behind it is written."""
    for name in ("dq", "dk", "dv"):
        given[name].fill_(torch.nan)
    size = aotriton.attn_bwd_workspace_size(**given, sm_scale=0.1, **more)
    memory = torch.full((size + GUARD,), BYTE, dtype=torch.uint8, device="cuda")
    aotriton.attn_bwd(**given, workspace=memory[:size], sm_scale=0.1, **more)
    torch.cuda.synchronize()
    assert bool((memory[size:] == BYTE).all())
    return tuple(given[name].clone() for name in ("dq", "dk", "dv"))


def close(results: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> bool:
    """Within what two kernels of one precision differ by."""
    return all(torch.allclose(a.float(), b.float(), atol=3e-2, rtol=3e-2) for a, b in zip(results, wanted, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hints", ["schedule=bfs", "schedule=dfs", "backend=portable", "exclude=portable", "latency"])
def test_a_hinted_forward_is_right(hints: str, causal: bool) -> None:
    """Which image runs changes the result by rounding alone."""
    given = {name: one for name, one in tensors(128).items() if name in ("q", "k", "v", "out", "logsumexp")}
    if hints == "exclude=portable" and aotriton.arch() != "sm_90":
        pytest.skip("this arch has one backend")
    assert len(aotriton.attn_fwd_hint_outcomes(**given, causal=causal, hints=hints)) == 1
    results = []
    for one in (None, hints):
        given["out"].fill_(torch.nan)
        aotriton.attn_fwd(**given, sm_scale=0.1, causal=causal, hints=one)
        results.append((given["out"].clone(), given["logsumexp"].clone()))
    assert close(results[1], results[0])


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_limited_backward_is_right_and_stays_within_its_limit(head_dim: int) -> None:
    """For limits from all that the call would use down to what one of its batches needs."""
    given = tensors(head_dim)
    wanted = backward(given)
    whole = aotriton.attn_bwd_workspace_size(**given)
    rows = HEADS * SEQLEN * 4  # bytes of a batch's delta
    for limit in sorted({whole, whole - 1, whole // 2, whole // 3, rows * BATCH, rows}):
        hints = {"workspace_limit": limit}
        assert aotriton.attn_bwd_hint_outcomes(**given, hints=hints)["workspace_limit"]["honoured"]
        assert aotriton.attn_bwd_workspace_size(**given, hints=hints) <= limit
        assert close(backward(given, hints=hints), wanted)
        assert close(backward(given, hints=hints), wanted)  # a warm call


def test_pieces_have_the_bits_of_calls_on_their_batches() -> None:
    """A deterministic backward whose limit has room for two batches is three calls of two batches each."""
    given = tensors(128)
    hints = {"workspace_limit": 2 * HEADS * SEQLEN * 4, "deterministic": True}
    pieces = backward(given, hints=hints)
    for begin in range(0, BATCH, 2):
        part = {name: one[begin : begin + 2] for name, one in given.items()}
        for result, wanted in zip(pieces, backward(part, hints="deterministic"), strict=True):
            assert torch.equal(result[begin : begin + 2], wanted)


def test_a_deterministic_hint_gives_the_same_bits() -> None:
    """As the parameter does."""
    given = tensors(128)
    first = backward(given, hints="deterministic")
    for _ in range(20):
        again = backward(given, hints="deterministic")
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))
    by_parameter = backward(given, deterministic=True)
    assert all(torch.equal(a, b) for a, b in zip(by_parameter, first, strict=True))


def test_pieces_can_be_captured() -> None:
    """A graph of a call in pieces gives what the call gives, with the pointers of its capture."""
    given = tensors(128)
    hints = {"workspace_limit": HEADS * SEQLEN * 4 * 2, "deterministic": True}
    wanted = backward(given, hints=hints)
    size = aotriton.attn_bwd_workspace_size(**given, sm_scale=0.1, hints=hints)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        aotriton.attn_bwd(**given, workspace=workspace, sm_scale=0.1, hints=hints)
    for name in ("dq", "dk", "dv"):
        given[name].fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(given[name], one) for name, one in zip(("dq", "dk", "dv"), wanted, strict=True))
