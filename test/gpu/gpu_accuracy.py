"""Attention in float64, the same in ordinary low precision, and how far from the truth a result may be.

A result passes if its distance from float64 is at most twice that of the ordinary implementation. Two small terms keep
the rule meaningful where the ordinary one is exact by luck: half a unit roundoff of the result, and float32 rounding of
the sums that it came from.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor

# Of float32 sums of so many terms, relative to the sum of their magnitudes. A sum that runs along the keys is rescaled
# at each of its steps, and what that rounds adds up.
FLOAT32_NOISE, TERMS = 2.0**-20, 4096
MOST_SCORES = 1 << 26  # worked out at once


@dataclass
class Attention:
    """Results of a forward and a backward; ``bounds`` holds the sum of magnitudes behind each row of each."""

    out: Tensor  # [batch, heads_q, seqlen_q, head_dim]
    logsumexp: Tensor  # [batch, heads_q, seqlen_q]
    dq: Tensor
    dk: Tensor
    dv: Tensor
    bounds: dict[str, Tensor]


def truth(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, sm_scale: float, hidden: bool | Tensor) -> Attention:
    """Everything in float64. ``hidden``: True for causal, False for nothing, or the keys that queries do not see."""
    return _attention(q, k, v, dout, sm_scale, hidden, torch.float64, torch.float64)


def ordinary(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, sm_scale: float, hidden: bool | Tensor) -> Attention:
    """As tensor-core code computes it: sums in float32; P, dS and the results rounded to the operands' type."""
    return _attention(q, k, v, dout, sm_scale, hidden, torch.float32, q.dtype)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    sm_scale: float,
    hidden: bool | Tensor,
    work: torch.dtype,
    low: torch.dtype,
) -> Attention:
    """Textbook attention in ``work``, matrix operands and results rounded to ``low``; some heads at a time."""

    def rounded(x: Tensor) -> Tensor:
        return x.to(low).to(work)

    groups = k.shape[0] * k.shape[1]  # of query heads that share a key head
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    queries = q.reshape(groups, -1, *q.shape[2:])  # [groups, heads of a group, seqlen_q, head_dim]
    douts = dout.reshape(queries.shape)
    keys, values = (x.reshape(groups, 1, *k.shape[2:]) for x in (k, v))

    def zeros(like: Tensor, dims: int) -> Tensor:
        return torch.zeros(like.shape[:dims], dtype=work, device=q.device)

    names = {"out": queries, "dq": queries, "dk": keys, "dv": keys}
    made = {name: zeros(like, 4) for name, like in names.items()} | {"logsumexp": zeros(queries, 3)}
    bounds = {name: zeros(like, 3) for name, like in names.items()} | {"logsumexp": zeros(queries, 3)}
    if hidden is True:
        hidden = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device).triu(1)
    at_once = max(1, MOST_SCORES // (queries.shape[1] * seqlen_q * seqlen_k))
    for first in range(0, groups, at_once):
        now = slice(first, first + at_once)
        query, do, key, value = (x[now].to(work) for x in (queries, douts, keys, values))

        s = query @ key.mT * sm_scale
        if torch.is_tensor(hidden):
            s.masked_fill_(hidden, float("-inf"))
        lse = torch.logsumexp(s, -1)
        p = torch.exp(s - torch.where(lse == float("-inf"), 0.0, lse)[..., None])  # a row that sees nothing has zeros
        out = rounded(rounded(p) @ value)
        ds = rounded(p * (do @ value.mT - (do * out).sum(-1, keepdim=True)))
        made["out"][now], made["logsumexp"][now] = out, lse
        made["dq"][now] = rounded(ds @ key * sm_scale)
        made["dk"][now] = rounded((ds.mT @ query).sum(1, keepdim=True) * sm_scale)
        made["dv"][now] = rounded((rounded(p).mT @ do).sum(1, keepdim=True))

        q_norm, k_norm, v_norm, do_norm, out_norm = (x.norm(dim=-1)[..., None] for x in (query, key, value, do, out))
        weight = p * do_norm * (v_norm.mT + out_norm)  # |dS| before its difference cancels
        bounds["out"][now] = (p @ v_norm)[..., 0]
        bounds["logsumexp"][now] = 1 + q_norm[..., 0] * k_norm.amax(-2) * sm_scale
        bounds["dq"][now] = (weight @ k_norm)[..., 0] * sm_scale
        bounds["dk"][now] = (weight.mT @ q_norm).sum(1, keepdim=True)[..., 0] * sm_scale
        bounds["dv"][now] = (p.mT @ do_norm).sum(1, keepdim=True)[..., 0]

    def ungrouped(results: dict[str, Tensor]) -> dict[str, Tensor]:
        like = {"out": q, "logsumexp": q, "dq": q, "dk": k, "dv": v}
        return {name: x.reshape(like[name].shape[: x.dim()]) for name, x in results.items()}

    return Attention(**ungrouped(made), bounds=ungrouped(bounds))


def check(name: str, result: Tensor, reference: Attention, low_precision: Attention) -> None:
    """Asserts that ``result`` is as near to the reference as the rule above asks, in total and in its worst row."""
    exact, ordinary_result, bound = getattr(reference, name), getattr(low_precision, name), reference.bounds[name]
    unit = torch.finfo(result.dtype).eps / 2
    none = exact == float("-inf")  # a logsumexp of no key
    assert torch.equal(none, result == float("-inf")), f"{name}: minus infinity is not where no key is seen"
    exact, ordinary_result, result = (x.masked_fill(none, 0.0) for x in (exact, ordinary_result, result))
    assert not result.isnan().any(), f"{name}: {int(result.isnan().sum())} of {result.numel()} are NaN or unwritten"

    def rows(x: Tensor) -> Tensor:
        return x.double().abs() if name == "logsumexp" else x.double().norm(dim=-1)

    for what, size in (("in total", torch.norm), ("in the worst row", torch.max)):
        error = float(size(rows(result.double() - exact)))
        usual = float(size(rows(ordinary_result.double() - exact)))
        scale = float(size(rows(exact)))
        noise = FLOAT32_NOISE * max(1.0, reference.dv.shape[2] / TERMS)
        allowed = 2 * usual + unit / 2 * scale + noise * float(size(bound))
        assert error <= allowed, (
            f"{name}: error {error:.3g} {what}, allowed {allowed:.3g} (ordinary {usual:.3g}, result {scale:.3g})"
        )
