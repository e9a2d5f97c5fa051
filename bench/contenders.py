"""Attention by the library and by its peers on the same tensors, called below autograd, so that nobody pays for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

LIBRARY, FA2, CUDNN, FA4 = "aotriton", "FA2", "cuDNN", "FA4"
PEERS = (FA2, CUDNN, FA4)  # FA4 where flash_attn.cute is installed


@dataclass
class Contender:
    """One implementation on fixed inputs. ``forward`` and ``backward`` return (out, ...) and (dq, dk, dv). A peer that
    knows no groups of heads has its keys and values repeated beforehand, and a dk and dv for each head of q.
    """

    forward: Callable[[], tuple[Any, ...]]
    backward: Callable[[], tuple[Any, ...]] | None  # None where it has but the forward


@cache
def flash_attention_4() -> Any:
    """Its module, or None."""
    try:
        from flash_attn.cute import interface
    except ImportError:
        return None
    return interface


def contenders(q: Any, k: Any, v: Any, dout: Any, causal: bool) -> dict[str, Contender]:
    """The library, then each peer that takes the problem: [batch, heads, seqlen, head_dim], k and v with as many heads
    or fewer. What a peer refuses it refuses when it is called; who does is told on stderr, and left out of it.
    """
    found = {LIBRARY: _library(q, k, v, dout, causal)}
    makers = {FA2: _fa2, CUDNN: _cudnn} | ({FA4: _fa4} if flash_attention_4() else {})
    for who, make in makers.items():
        try:
            made = make(q, k, v, dout, causal)
            made.forward()
            found[who] = made
            if made.backward:
                made.backward()
        except Exception as error:  # of another project: any
            if who in found:
                found[who].backward = None
            what = f"the {'backward' if who in found else 'forward'} of {tuple(q.shape)} on {k.shape[1]}"
            print(
                f"{who} refuses {what}: {(str(error).splitlines() or [type(error).__name__])[0][:100]}", file=sys.stderr
            )
    return found


def with_workspace(op: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of this operator, and the workspace that it asks for, on q's device."""
    import torch

    import aotriton

    size = getattr(aotriton, f"{op}_workspace_size")(**given)
    more = {"workspace": torch.empty(size, dtype=torch.uint8, device=given["q"].device)} if size else {}
    return {**given, **more}


def _library(q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Contender:
    import torch

    import aotriton

    out, dq, dk, dv = (torch.full_like(like, float("nan")) for like in (q, q, k, v))
    lse = torch.full(q.shape[:3], float("nan"), dtype=torch.float32, device=q.device)
    options: dict[str, Any] = {"sm_scale": q.shape[-1] ** -0.5, "causal": causal}
    given = {"q": q, "k": k, "v": v, "out": out, "logsumexp": lse, **options}
    to_forward = with_workspace("attn_fwd", given)
    to_backward = with_workspace("attn_bwd", {**given, "dout": dout, "dq": dq, "dk": dk, "dv": dv})
    stream = torch.cuda.current_stream().cuda_stream

    def forward() -> tuple[Any, ...]:
        aotriton.attn_fwd(**to_forward, stream=stream)
        return (out,)

    def backward() -> tuple[Any, ...]:
        aotriton.attn_bwd(**to_backward, stream=stream)
        return dq, dk, dv

    return Contender(forward, backward)


def _fa2(q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Contender:
    import torch

    aten, scale, group = torch.ops.aten, q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
    if group > 1:
        k, v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))

    def forward() -> tuple[Any, ...]:
        found: tuple[Any, ...] = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
        return found

    out, lse, *lengths, seed, offset, _ = forward()  # lengths: cumulative of q and k, longest of q and k
    do = torch.empty_like(out).copy_(dout)  # laid out as this peer likes it

    def backward() -> tuple[Any, ...]:
        found: tuple[Any, ...] = aten._scaled_dot_product_flash_attention_backward(
            do, q, k, v, out, lse, *lengths, 0.0, causal, seed, offset, scale=scale
        )
        return found

    return Contender(forward, backward)


def _cudnn(q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Contender:
    import torch

    aten, scale = torch.ops.aten, q.shape[-1] ** -0.5

    def forward() -> tuple[Any, ...]:
        found: tuple[Any, ...] = aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal, False, scale=scale
        )
        return found

    out, lse, *lengths, seed, offset, _ = forward()
    do = torch.empty_like(out).copy_(dout)

    def backward() -> tuple[Any, ...]:
        found: tuple[Any, ...] = aten._scaled_dot_product_cudnn_attention_backward(
            do, q, k, v, out, lse, seed, offset, None, *lengths, 0.0, causal, scale=scale
        )
        return found

    return Contender(forward, backward)


def _fa4(q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Contender:
    """[batch, seqlen, heads, head_dim] in memory, which this peer is made for."""
    interface, scale = flash_attention_4(), q.shape[-1] ** -0.5
    q, k, v, do = (tensor.transpose(1, 2).contiguous() for tensor in (q, k, v, dout))

    def forward() -> tuple[Any, ...]:
        out, lse, *_ = interface._flash_attn_fwd(q, k, v, softmax_scale=scale, causal=causal, return_lse=True)
        return out.transpose(1, 2), lse

    out, lse = forward()
    out = out.transpose(1, 2)

    def backward() -> tuple[Any, ...]:
        found = interface._flash_attn_bwd(q, k, v, out, do, lse, scale, causal)
        return tuple(tensor.transpose(1, 2) for tensor in found[:3])

    return Contender(forward, backward)


def fa4_calls(q: Any, k: Any, v: Any, dout: Any, **asked: Any) -> dict[str, Callable[[], tuple[Any, ...]]]:
    """FlashAttention-4's calls by direction, which return (out, lse) and (dq, dk, dv), on tensors [batch, seqlen,
    heads, head_dim], or packed ones without batch; ``asked``: its own arguments, windows, cu_seqlens and so on. Without
    what it refuses, which is said on stderr; empty where it is not installed.
    """
    interface, made = flash_attention_4(), {}
    if not interface:
        return {}
    scale = q.shape[-1] ** -0.5

    def forward() -> tuple[Any, ...]:
        found: tuple[Any, ...] = interface._flash_attn_fwd(q, k, v, softmax_scale=scale, return_lse=True, **asked)
        return found[:2]

    def backward() -> tuple[Any, ...]:
        found: tuple[Any, ...] = interface._flash_attn_bwd(q, k, v, out, dout, lse, scale, **asked)
        return found[:3]

    try:
        out, lse = forward()
        made["forward"] = forward
        backward()
        made["backward"] = backward
    except Exception as error:  # of another project: any
        refused = "backward" if made else "forward"
        what = (str(error).splitlines() or [type(error).__name__])[0][:100]
        print(f"{FA4} refuses the {refused} of {tuple(q.shape)} with {sorted(asked)}: {what}", file=sys.stderr)
    return made
