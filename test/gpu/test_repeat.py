"""The same bits every time: of each backend's results those that no two programs add to, the others within rounding."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
aotriton = pytest.importorskip("aotriton._binding")

import torch  # noqa: E402 - where it is installed

RUNS = 1000
BATCH, HEADS, HEADS_K, SEQLEN = 2, 16, 8, 1500  # more tiles than a GPU has multiprocessors

FORWARDS = [
    ("portable", 80),
    ("hopper", 64),
    ("hopper", 128),
    ("hopper", 256),
    ("hopper_slim", 96),
    ("hopper_slim", 192),
]
DQ, KEYS = ("dq",), ("dk", "dv")
BACKWARDS = [  # with those of the gradients that one program each writes
    ("portable", 80, (*DQ, *KEYS)),
    ("hopper_pair", 32, KEYS),
    ("hopper_pair", 64, KEYS),
    ("hopper_pair", 128, KEYS),
    ("hopper_shares", 32, KEYS),
    ("hopper_shares", 64, KEYS),
    ("hopper_shares", 128, KEYS),
    ("hopper_pair_slim", 96, KEYS),
    ("hopper_heads", 64, (*DQ, *KEYS)),
    ("hopper_heads", 128, (*DQ, *KEYS)),
    ("hopper_parts", 64, ()),
    ("hopper_parts", 128, ()),
    ("hopper_split", 256, (*DQ, *KEYS)),
    ("hopper_split_slim", 192, (*DQ, *KEYS)),
    ("hopper_split_parts", 256, DQ),
    ("hopper_split_slim_parts", 192, DQ),
]


def tensors(head_dim: int) -> dict[str, torch.Tensor]:
    """A backward's operands, with what the forward wrote."""
    generator = torch.Generator(device="cuda").manual_seed(0)

    def made(heads: int) -> torch.Tensor:
        return torch.randn((BATCH, heads, SEQLEN, head_dim), generator=generator, device="cuda").bfloat16()

    given = {"q": made(HEADS), "k": made(HEADS_K), "v": made(HEADS_K), "dout": made(HEADS)}
    given |= {"out": torch.empty_like(given["q"]), "logsumexp": torch.empty((BATCH, HEADS, SEQLEN), device="cuda")}
    aotriton.attn_fwd(*(given[name] for name in ("q", "k", "v", "out", "logsumexp")), sm_scale=0.1, causal=True)
    return given | {f"d{name}": torch.empty_like(given[name]) for name in "qkv"}


def only_on_hopper(backend: str) -> None:
    if backend != "portable" and aotriton.arch() != "sm_90":
        pytest.skip(f"{backend} is of sm_90, and this GPU is of {aotriton.arch()}")


@pytest.mark.parametrize(("backend", "head_dim"), FORWARDS)
def test_a_thousand_forwards_have_the_same_bits(backend: str, head_dim: int) -> None:
    only_on_hopper(backend)
    given = {name: one for name, one in tensors(head_dim).items() if name in ("q", "k", "v", "out", "logsumexp")}
    results = [given["out"], given["logsumexp"]]
    first: list[torch.Tensor] = []
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(RUNS):
        for result in results:
            result.fill_(torch.nan)
        aotriton.attn_fwd(**given, sm_scale=0.1, causal=True, hints=f"backend={backend}")
        first = first or [result.clone() for result in results]
        for result, wanted in zip(results, first, strict=True):
            differing += (result != wanted).sum()
    assert int(differing) == 0


@pytest.mark.parametrize(("backend", "head_dim", "same"), BACKWARDS)
def test_a_thousand_backwards_have_the_same_bits(backend: str, head_dim: int, same: tuple[str, ...]) -> None:
    only_on_hopper(backend)
    given, hints = tensors(head_dim), f"backend={backend}"
    size = aotriton.attn_bwd_workspace_size(**given, sm_scale=0.1, causal=True, hints=hints)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    first: dict[str, torch.Tensor] = {}
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    farthest = torch.zeros((), device="cuda")
    for _ in range(RUNS):
        for name in (*DQ, *KEYS):
            given[name].fill_(torch.nan)
        aotriton.attn_bwd(**given, workspace=workspace, sm_scale=0.1, causal=True, hints=hints)
        first = first or {name: given[name].float() for name in (*DQ, *KEYS)}
        for name, wanted in first.items():
            distance = (given[name].float() - wanted).abs()
            if name in same:
                differing += (distance != 0).sum()  # NaN differs
            else:
                farthest = torch.maximum(farthest, (distance / wanted.abs().clamp_min(0.25)).max())
    assert int(differing) == 0
    assert float(farthest) < 2**-6  # two units of bf16's last place


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_deterministic_backwards_have_the_same_bits(head_dim: int) -> None:
    given = tensors(head_dim)
    size = aotriton.attn_bwd_workspace_size(**given, sm_scale=0.1, causal=True, deterministic=True)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    first: list[torch.Tensor] = []
    for _ in range(50):
        results = [given[name].fill_(torch.nan) for name in (*DQ, *KEYS)]
        aotriton.attn_bwd(**given, workspace=workspace, sm_scale=0.1, causal=True, deterministic=True)
        first = first or [result.clone() for result in results]
        assert all(torch.equal(result, wanted) for result, wanted in zip(results, first, strict=True))
