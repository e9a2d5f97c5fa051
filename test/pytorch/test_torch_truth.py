"""The float64 attention that results are compared with, against torch's own attention and autograd."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")

from attention_cases import Case, inputs, random_cases  # noqa: E402 - after what may be missing
from attention_truth import NUMBERS, Call, hidden, kept, threshold, truth  # noqa: E402

CASES = random_cases(60, seed=5, longest=40)


def call_of(case: Case) -> Call:
    """The call in float64; what kernels must not read is zero, for autograd multiplies it by zeros."""
    given: dict[str, Any] = {name: torch.from_numpy(array) for name, array in inputs(case).items()}
    given |= {name: torch.nan_to_num(given[name], 0.0, neginf=-torch.inf) for name in ("q", "k", "v", "dout", "bias")
              if name in given}  # fmt: skip
    scalars = {name: value for name, value in case.scalars.items() if not name.startswith("max_seqlen")}
    call = Call(**given, **scalars, sm_scale=case.sm_scale, dropout_seed=case.seed, dropout_offset=case.offset)
    if case.bias:
        call.bias = call.bias.expand(case.bias_shape)
    return call


def textbook(case: Case, call: Call, z: int, at: tuple[int, slice, slice]) -> Any:
    """[heads_q, rows, head_dim]: the output of one sequence, by operations that autograd knows."""
    b, rows, keys = at
    q, k, v = call.q[b, :, rows], call.k[b, :, keys], call.v[b, :, keys]
    k, v = (x.repeat_interleave(case.group, 0) for x in (k, v))
    count_q, count_k = q.shape[1], k.shape[1]
    row, key = torch.arange(count_q)[:, None], torch.arange(count_k)
    x = call.sm_scale * (q @ k.mT)
    if case.softcap:
        x = case.softcap * torch.tanh(x / case.softcap)
    if case.alibi:
        slopes = call.alibi_slopes[z if case.alibi == "batch" else 0]
        x = x - slopes[:, None, None] * abs(row + count_k - count_q - key)
    if case.bias:
        x = x + call.bias[b, :, rows, keys]
    x = x.masked_fill(hidden(call, row, key, count_q, count_k), -torch.inf)
    if case.sinks:
        x = torch.cat([x, call.sinks[:, None, None].expand(-1, count_q, 1)], 2)
        v = torch.cat([v, v.new_zeros(case.heads_q, 1, v.shape[2])], 1)
    seen = (x > -torch.inf).any(-1, keepdim=True)
    p = torch.softmax(torch.where(seen, x, 0.0), -1) * seen
    if case.dropout:
        dropped = threshold(case.dropout)
        heads = (z * case.heads_q + torch.arange(case.heads_q))[None]
        stay = kept(case.seed, case.offset, heads, count_q, count_k, dropped)[0].double()
        p = torch.cat([p[..., :count_k] * stay * (NUMBERS / (NUMBERS - dropped)), p[..., count_k:]], -1)
    return p @ v


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_torchs(case: Case) -> None:
    """out is what a softmax of torch gives, sequence by sequence, and gradients are those of its autograd."""
    call = call_of(case)
    leaves = {name: getattr(call, name).contiguous().requires_grad_() for name in ("q", "k", "v", "bias", "sinks")
              if getattr(call, name) is not None}  # fmt: skip
    traced = Call(**{**vars(call), **leaves})
    out, row, key = torch.zeros(case.out_shape, dtype=torch.float64), 0, 0
    for z, (length_q, length_k) in enumerate(zip(case.lengths_q, case.lengths_k, strict=True)):
        used_q = case.used_q[z] if case.used_q else length_q
        used_k = case.used_k[z] if case.used_k else length_k
        at = (0, slice(row, row + used_q), slice(key, key + used_k)) if case.packed else (
            z, slice(0, used_q), slice(0, used_k))  # fmt: skip
        if used_q and (used_k or case.sinks):
            out[at[0], :, at[1]] = textbook(case, traced, z, at)
        row, key = row + length_q, key + length_k
    found = truth(call)
    assert torch.allclose(found.out, out.detach(), rtol=1e-10, atol=1e-12)
    if out.requires_grad:
        gradients = torch.autograd.grad(out, list(leaves.values()), call.dout, allow_unused=True)
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            wanted = torch.zeros_like(leaf) if gradient is None else torch.nan_to_num(gradient)
            assert torch.allclose(getattr(found, f"d{name}"), wanted, rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize("lengths", [(13, 13), (9, 21), (21, 9)])
@pytest.mark.parametrize("causal", [False, True])
def test_out_is_that_of_torchs_attention(lengths: tuple[int, int], causal: bool) -> None:
    """scaled_dot_product_attention with a mask or a bias, and heads that share keys, has the same output."""
    count_q, count_k = lengths
    case = Case((count_q,) * 2, (count_k,) * 2, group=2, causal=causal, bias="" if causal else "full")
    call = call_of(case)
    seen = torch.ones(count_q, count_k, dtype=torch.bool).tril() if causal else None
    mask = seen if causal else call.bias
    own = torch.nn.functional.scaled_dot_product_attention(
        call.q, call.k, call.v, attn_mask=mask, scale=call.sm_scale, enable_gqa=True
    )
    assert torch.allclose(truth(call).out, own, rtol=1e-10, atol=1e-12)
