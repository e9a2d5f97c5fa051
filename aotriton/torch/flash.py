"""The functions of flash-attn 2, on this library: ``from aotriton.torch.flash import flash_attn_func``.

Signatures and layouts are flash-attn's: tensors are [batch, seqlen, heads, head_dim] or, of sequences of different
lengths, [total, heads, head_dim]; ``causal`` and ``window_size`` are aligned at the last key. A call that is not
supported is a RuntimeError or a NotImplementedError that names the argument.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from aotriton.torch.attention import attention
from aotriton.torch.hints import hints

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
]


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """softmax(softmax_scale q kᵀ) v as [batch, seqlen_q, heads_q, head_dim], of q as that, and k and v as [batch,
    seqlen_k, heads_k, head_dim]. With ``return_attn_probs`` (out, softmax_lse, None): softmax_lse is [batch, heads_q,
    seqlen_q], and there are no probabilities, which flash-attn has for tests of dropout.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    found = _attention(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )
    if return_attn_probs:
        out, softmax_lse = found
        return out.transpose(1, 2), softmax_lse, None
    return found.transpose(1, 2)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:
    """As flash_attn_func of each sequence, whose rows lie one after the other: q is [total_q, heads_q, head_dim], k and
    v are [total_k, heads_k, head_dim], cu_seqlens [sequences + 1] int32, softmax_lse [heads_q, total_q].
    """
    if block_table is not None:
        raise NotImplementedError("flash_attn_varlen_func: no kernel has block_table")
    lengths = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
    }
    found = _attention(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
        **lengths,
    )  # fmt: skip
    return (*found, None) if return_attn_probs else found


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *others: Any, **named: Any) -> Any:
    """flash_attn_func of qkv as [batch, seqlen, 3, heads, head_dim], and its other arguments."""
    return flash_attn_func(*qkv.unbind(2), *others, **named)


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *others: Any, **named: Any) -> Any:
    """flash_attn_func of kv as [batch, seqlen_k, 2, heads_k, head_dim], and its other arguments."""
    return flash_attn_func(q, *kv.unbind(2), *others, **named)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *others: Any, **named: Any
) -> Any:
    """flash_attn_varlen_func of qkv as [total, 3, heads, head_dim], and its other arguments."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *others, **named)


def flash_attn_varlen_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *others: Any, **named: Any) -> Any:
    """flash_attn_varlen_func of kv as [total_k, 2, heads_k, head_dim], and its other arguments."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *others, **named)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    return_attn_probs: bool,
    **lengths: Any,
) -> Any:
    if return_attn_probs and dropout_p:
        raise NotImplementedError(
            "flash_attn: return_attn_probs with dropout_p asks for probabilities, which are not kept"
        )
    left, right = window_size
    with hints(deterministic=True) if deterministic else nullcontext():
        return attention(
            q, k, v, causal=causal, causal_variant="bottom_right", window_left=left, window_right=right,
            scale=softmax_scale, softcap=softcap, alibi_slopes=alibi_slopes, dropout=dropout_p,
            return_logsumexp=return_attn_probs, **lengths,
        )  # fmt: skip
