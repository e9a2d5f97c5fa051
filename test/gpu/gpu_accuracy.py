"""Attention in float64, the same in ordinary low precision, and how far from the truth a result may be.

A result passes if its distance from float64 is at most twice that of the ordinary implementation. Two small terms keep
the rule meaningful where the ordinary one is exact by luck: half a unit roundoff of the result, and float32 rounding of
the sums that it came from.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

FLOAT32_NOISE = 2.0**-20  # of sums of up to a few thousand float32 terms, relative to the sum of their magnitudes


@dataclass
class Attention:
    """Results of a forward and a backward; ``bounds`` holds the sum of magnitudes behind each row of each."""

    out: torch.Tensor  # [batch, heads_q, seqlen_q, head_dim]
    logsumexp: torch.Tensor  # [batch, heads_q, seqlen_q]
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    bounds: dict[str, torch.Tensor]


def truth(q, k, v, dout, sm_scale, causal) -> Attention:
    """Everything in float64."""
    return _attention(q, k, v, dout, sm_scale, causal, torch.float64, torch.float64)


def ordinary(q, k, v, dout, sm_scale, causal) -> Attention:
    """As tensor-core code computes it: sums in float32; P, dS and the results rounded to the operands' type."""
    return _attention(q, k, v, dout, sm_scale, causal, torch.float32, q.dtype)


def _attention(q, k, v, dout, sm_scale, causal, work, low) -> Attention:
    """Textbook attention in ``work``, matrix operands and results rounded to ``low``; one group of heads at a time."""

    def rounded(x):
        return x.to(low).to(work)

    batch, heads_q, seqlen_q, _ = q.shape
    heads_k, seqlen_k = k.shape[1:3]
    group = heads_q // heads_k

    def zeros(*shape):
        return torch.zeros(shape, dtype=work, device=q.device)

    names = {"out": q, "dq": q, "dk": k, "dv": v}
    made = {name: zeros(*like.shape) for name, like in names.items()}
    made["logsumexp"] = zeros(batch, heads_q, seqlen_q)
    bounds = {name: zeros(*like.shape[:3]) for name, like in names.items()}
    bounds["logsumexp"] = zeros(batch, heads_q, seqlen_q)
    hidden = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device).triu(1) if causal else None
    for b in range(batch):
        for head_k in range(heads_k):
            heads = slice(head_k * group, (head_k + 1) * group)
            query, do = q[b, heads].to(work), dout[b, heads].to(work)  # [group, seqlen_q, head_dim]
            key, value = k[b, head_k].to(work), v[b, head_k].to(work)  # [seqlen_k, head_dim]

            s = query @ key.T * sm_scale
            if causal:
                s.masked_fill_(hidden, float("-inf"))
            lse = torch.logsumexp(s, -1)
            p = torch.exp(s - lse[..., None])
            out = rounded(rounded(p) @ value)
            ds = rounded(p * (do @ value.T - (do * out).sum(-1, keepdim=True)))
            made["out"][b, heads], made["logsumexp"][b, heads] = out, lse
            made["dq"][b, heads] = rounded(ds @ key * sm_scale)
            made["dk"][b, head_k] = rounded((ds.mT @ query).sum(0) * sm_scale)
            made["dv"][b, head_k] = rounded((rounded(p).mT @ do).sum(0))

            q_norm, k_norm, v_norm = query.norm(dim=-1), key.norm(dim=-1), value.norm(dim=-1)
            do_norm, out_norm = do.norm(dim=-1), out.norm(dim=-1)
            weight = p * do_norm[..., None] * (v_norm + out_norm[..., None])  # |dS| before its difference cancels
            bounds["out"][b, heads] = p @ v_norm
            bounds["logsumexp"][b, heads] = 1 + q_norm * k_norm.max() * sm_scale
            bounds["dq"][b, heads] = weight @ k_norm * sm_scale
            bounds["dk"][b, head_k] = (weight.mT @ q_norm[..., None]).sum(0)[..., 0] * sm_scale
            bounds["dv"][b, head_k] = (p.mT @ do_norm[..., None]).sum(0)[..., 0]
    return Attention(**made, bounds=bounds)


def check(name: str, result: torch.Tensor, reference: Attention, low_precision: Attention) -> None:
    """Asserts that ``result`` is as near to the reference as the rule above asks, in total and in its worst row."""
    exact, ordinary_result, bound = getattr(reference, name), getattr(low_precision, name), reference.bounds[name]
    unit = torch.finfo(result.dtype).eps / 2
    assert not result.isnan().any(), f"{name}: {int(result.isnan().sum())} of {result.numel()} are NaN or unwritten"

    def rows(x):
        return x.double().abs() if name == "logsumexp" else x.double().norm(dim=-1)

    for what, size in (("in total", torch.norm), ("in the worst row", torch.max)):
        error = float(size(rows(result.double() - exact)))
        usual = float(size(rows(ordinary_result.double() - exact)))
        scale = float(size(rows(exact)))
        allowed = 2 * usual + unit / 2 * scale + FLOAT32_NOISE * float(size(bound))
        assert error <= allowed, (
            f"{name}: error {error:.3g} {what}, allowed {allowed:.3g} (ordinary {usual:.3g}, result {scale:.3g})"
        )
