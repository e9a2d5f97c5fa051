"""A scale of zero: every visible key has the same weight, whichever backend computes it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
aotriton = pytest.importorskip("aotriton")

BACKENDS = {
    "attn_fwd": ("portable", "hopper", "hopper_slim"),
    "attn_bwd": (
        "portable", "hopper_pair", "hopper_shares", "hopper_heads", "hopper_parts", "hopper_pair_slim", "hopper_split",
        "hopper_split_slim", "hopper_split_parts", "hopper_split_slim_parts",
    ),
}  # fmt: skip


def tensor(*sizes: int, dtype: Any, seed: int) -> Any:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


def served(operator: str, *tensors: Any, **scalars: Any) -> list[str]:
    """The backends that ran the call; the others must say that they do not serve it."""
    ran = []
    for name in BACKENDS[operator]:
        try:
            getattr(aotriton, operator)(*tensors, **scalars, hints={"backend": name})
            ran.append(name)
        except aotriton.AotritonError as error:
            if error.code != "not_supported":
                raise
    return ran


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 192, 256])
def test_a_scale_of_zero(dtype: str, causal: bool, head_dim: int) -> None:
    """Out is the mean of the visible values, logsumexp the logarithm of their number; dq and dk are 0, and
    dv is what the even weights make of dout. By default the scale is 1 / sqrt(head_dim), which is not this.
    """
    kind = getattr(torch, dtype)
    eps = torch.finfo(kind).eps
    batch, heads, heads_k, seqlen = 2, 4, 2, 200
    q, dout = (tensor(batch, heads, seqlen, head_dim, dtype=kind, seed=seed) for seed in (0, 1))
    k, v = (tensor(batch, heads_k, seqlen, head_dim, dtype=kind, seed=seed) for seed in (2, 3))
    mask = torch.ones(seqlen, seqlen, device="cuda", dtype=torch.float64)
    weights = (mask.tril() if causal else mask) / (mask.tril() if causal else mask).sum(-1, keepdim=True)
    wanted = weights @ v.double().repeat_interleave(heads // heads_k, 1)
    wanted_dv = (weights.T @ dout.double()).view(batch, heads_k, -1, seqlen, head_dim).sum(2)
    counts = torch.arange(1, seqlen + 1, device="cuda") if causal else torch.full((seqlen,), seqlen, device="cuda")
    out, logsumexp = torch.empty_like(q), torch.empty(batch, heads, seqlen, device="cuda")
    usual = torch.empty_like(out)
    aotriton.attn_fwd(q, k, v, usual, causal=causal)
    for name in served("attn_fwd", q, k, v, out, logsumexp, causal=causal, sm_scale=0.0):
        out.fill_(float("nan")), logsumexp.fill_(float("nan"))
        aotriton.attn_fwd(q, k, v, out, logsumexp, causal=causal, sm_scale=0.0, hints={"backend": name})
        assert (out.double() - wanted).abs().max() <= 4 * eps * wanted.abs().max(), name
        assert (logsumexp - counts.log()).abs().max() < 1e-4, name
        assert (out - usual).abs().max() > 0.1
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    workspace = torch.empty(1 << 26, dtype=torch.uint8, device="cuda")
    tensors = (q, k, v, out, dout, logsumexp, dq, dk, dv, workspace)
    names = served("attn_bwd", *tensors, causal=causal, sm_scale=0.0)
    assert len(names) > 1
    for name in names:
        for one in (dq, dk, dv):
            one.fill_(float("nan"))
        aotriton.attn_bwd(*tensors, causal=causal, sm_scale=0.0, hints={"backend": name})
        assert (dv.double() - wanted_dv).abs().max() <= 16 * eps * wanted_dv.abs().max(), name
        assert not dq.any(), name
        assert not dk.any(), name
