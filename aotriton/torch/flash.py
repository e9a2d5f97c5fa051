"""The functions of flash-attn 2, on this library: ``from aotriton.torch.flash import flash_attn_func``.

Signatures and layouts are flash-attn's: tensors are [batch, seqlen, heads, head_dim] or, of sequences of different
lengths, [total, heads, head_dim]; a cache may be in pages, [pages, page_size, heads_k, head_dim], which block_table
puts in order. ``causal`` and ``window_size`` are aligned at the last key. A call that is not supported is a
RuntimeError or a NotImplementedError that names the argument.

Functions of caches have flash-attn 3's scales, too, by name: keys and values may be float8_e4m3fn, beside q of float16
or bfloat16, as `attention` has them. ``k_descale`` and ``v_descale``, [batch or sequences, heads_k] float32 of any
strides, multiply them; None: 1. flash_attn_func takes q of float8_e4m3fn, too, with ``q_descale``, which other
functions refuse: no kernel has packed queries or queries of a cache in 8 bits.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from aotriton.torch.append import kv_append
from aotriton.torch.attention import NARROW, attention
from aotriton.torch.hints import hints

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
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
    *,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
) -> Any:
    """softmax(softmax_scale q kᵀ) v as [batch, seqlen_q, heads_q, head_dim], of q as that, and k and v as [batch,
    seqlen_k, heads_k, head_dim]. With ``return_attn_probs`` (out, softmax_lse, None): softmax_lse is [batch, heads_q,
    seqlen_q], and there are no probabilities, which flash-attn has for tests of dropout.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    found = _attention(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
    )  # fmt: skip
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
    *,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
) -> Any:
    """As flash_attn_func of each sequence, whose rows lie one after the other: q is [total_q, heads_q, head_dim], k and
    v are [total_k, heads_k, head_dim], cu_seqlens [sequences + 1] int32, softmax_lse [heads_q, total_q].

    With ``block_table``, [sequences, pages_of_sequence] int32, k and v are [pages, page_size, heads_k, head_dim], as
    `attention` has them, and without gradients; cu_seqlens_k says how many keys each sequence has.
    """
    _refuse_scale_of_q("flash_attn_varlen_func", "packed sequences", q_descale)
    lengths = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    lengths |= {"k_descale": k_descale, "v_descale": v_descale}
    if block_table is None:
        lengths["cu_seqlens_k"] = cu_seqlens_k
    else:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        lengths |= {"seqused_k": cu_seqlens_k.diff(), "block_table": block_table}
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


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
) -> Any:
    """flash_attn_func of q as [batch, seqlen_q, heads_q, head_dim] on the keys of a cache; with ``return_softmax_lse``
    (out, softmax_lse [batch, heads_q, seqlen_q]).

    k_cache and v_cache: [batch, seqlen_cache, heads_k, head_dim], or with ``block_table``, [batch, pages_of_sequence]
    int32, [pages, page_size, heads_k, head_dim], as `attention` has them. The first ``cache_seqlens`` rows of each
    sequence count, one number for all or [batch] int32; None: all. ``k`` and ``v``, [batch, seqlen_new, heads_k,
    head_dim], are first written behind these, in place, by `kv_append`, and count, too; there must be room. Where the
    cache is of 8 bits, they are of 16 bits, and divided by their scales. Such a call has no gradient
    (NotImplementedError where one would be recorded). Nothing waits for the device.

    ``rotary_cos`` and ``rotary_sin``, [positions, rotary_dim / 2], best of float32, rotate the first rotary_dim
    elements of q (in a copy) and k, neighbours together with ``rotary_interleaved``, else the first half with the
    second one. New keys are at cache_seqlens and behind, as queries are where the call is causal or has a window; else
    all queries are at cache_seqlens.

    ``cache_batch_idx``, [batch] int32: which sequence of a cache without pages each of q's is; then seqlen_cache must
    be a multiple of 16. ``num_splits`` says nothing: the library chooses. Refused is ``cache_leftpad``.
    """
    if cache_leftpad is not None:
        raise NotImplementedError("flash_attn_with_kvcache: no kernel has cache_leftpad")
    _refuse_scale_of_q("flash_attn_with_kvcache", "a cache", q_descale)
    scales = {"k_descale": k_descale, "v_descale": v_descale}
    batch, rows = q.shape[0], k_cache.shape[1]
    if cache_batch_idx is not None:
        if block_table is not None:
            raise NotImplementedError("flash_attn_with_kvcache: cache_batch_idx is of caches without block_table")
        if rows % 16:
            raise NotImplementedError(
                f"flash_attn_with_kvcache: with cache_batch_idx, k_cache has {rows} rows, no multiple of 16"
            )
        block_table = cache_batch_idx.to(torch.int32)[:, None]  # a page each
    if (k is None) != (v is None):
        raise RuntimeError("flash_attn_with_kvcache: one of k and v is given, which go together")
    if (rotary_cos is None) != (rotary_sin is None):
        raise RuntimeError("flash_attn_with_kvcache: one of rotary_cos and rotary_sin is given, which go together")
    used: torch.Tensor | None = None
    if isinstance(cache_seqlens, int):
        used = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    elif cache_seqlens is not None:
        used = cache_seqlens.to(torch.int32)
    if k is not None and v is not None:
        if used is None:
            raise RuntimeError("flash_attn_with_kvcache: k is given, cache_seqlens is not")
        moving = causal or tuple(window_size) != (-1, -1) or q.shape[1] == 1
        rotary = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "rotary_interleaved": rotary_interleaved}
        q = _append(q, k, v, k_cache, v_cache, used, block_table, moving, rotary, scales)
        used = used + k.shape[1]
    elif rotary_cos is not None:
        raise RuntimeError("flash_attn_with_kvcache: rotary_cos is given, k is not")
    if used is None and block_table is not None:
        used = torch.full((batch,), block_table.shape[1] * rows, dtype=torch.int32, device=q.device)
    q, k, v = (x.transpose(1, 2) for x in (q, k_cache, v_cache))
    found = _attention(
        q, k, v, 0.0, softmax_scale, causal, window_size, softcap, alibi_slopes, False, return_softmax_lse,
        seqused_k=used, block_table=block_table, **scales,
    )  # fmt: skip
    if return_softmax_lse:
        out, softmax_lse = found
        return out.transpose(1, 2), softmax_lse
    return found.transpose(1, 2)


def _refuse_scale_of_q(function: str, keys: str, q_descale: torch.Tensor | None) -> None:
    if q_descale is not None:
        raise NotImplementedError(f"{function}: q_descale is given, and no kernel has q of 8 bits with {keys} yet")


def _append(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    used: torch.Tensor,
    block_table: torch.Tensor | None,
    moving: bool,
    rotary: dict[str, Any],
    scales: dict[str, Any],
) -> torch.Tensor:
    """Writes k and v into the cache, and returns q, or where there is something to rotate, a rotated copy. All are as
    flash_attn_with_kvcache has them; ``moving``: queries are one behind the other, and not all at one position.
    """
    dtype = q.dtype if k_cache.dtype in NARROW else k_cache.dtype
    new_k, new_v = (x.to(dtype).transpose(1, 2) for x in (k, v))
    rotated = with_keys = None
    if rotary["rotary_cos"] is not None:
        rotated = q.to(dtype, copy=True, memory_format=torch.contiguous_format)
        # Rows of one position count as heads.
        rows = rotated.transpose(1, 2) if moving else rotated.flatten(1, 2)[:, :, None]
        if rows.shape[2] == k.shape[1]:
            with_keys = rows
        else:
            _rotate(rows, used, rotary)
    kv_append(
        new_k, new_v, k_cache.transpose(1, 2), v_cache.transpose(1, 2), used + k.shape[1],
        q=with_keys, block_table=block_table, **rotary, **scales,
    )  # fmt: skip
    return q if rotated is None else rotated.to(q.dtype)


def _rotate(q: torch.Tensor, used: torch.Tensor, rotary: dict[str, Any]) -> None:
    """Rotates q, [batch, heads, rows, head_dim], in place, by the angles of the rows behind those that are used. The
    call has no heads of keys, and caches of none, with room for all positions.
    """
    batch, _, rows, width = q.shape
    positions = rotary["rotary_cos"].shape[0]
    new, k_cache, v_cache = (q.new_empty(batch, 0, count, width) for count in (rows, positions, positions))
    kv_append(new, new, k_cache, v_cache, used + rows, q=q, **rotary)


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
