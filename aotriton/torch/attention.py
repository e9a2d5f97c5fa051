"""Attention for PyTorch: what ``torch.compile``, autograd, autocast and vmap have to know of attn_fwd and attn_bwd."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from aotriton.torch import library  # noqa: F401 (defines the operators)
from aotriton.torch.hints import within
from aotriton.torch.transforms import fold, mapped_first, operator_of, register_fake, unfold

OPS = torch.ops.aotriton
FORWARD = OPS.attn_fwd.default  # to find it among overloads costs each call a microsecond
FEATURED = OPS.attn_fwd.features
NARROW = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)  # tensors of 8 bits


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    causal_variant: str = "top_left",
    window_left: int = -1,
    window_right: int = -1,
    scale: float | None = None,
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    dropout_seed: torch.Tensor | int | None = None,
    dropout_offset: torch.Tensor | int | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    return_logsumexp: bool = False,
) -> Any:
    """softmax(scale q kᵀ) v on the tensors' device, on torch's current stream; differentiable in q, k, v, bias and
    sinks. With ``return_logsumexp`` also the logarithm of the softmax's denominator, which has no gradient.

    q: [batch, heads_q, seqlen_q, head_dim]; k: [batch, heads_k, seqlen_k, head_dim]; v: [batch, heads_k, seqlen_k,
    head_dim_v]; heads_q a multiple of heads_k, both head dims 1 to 512. float16, bfloat16 or float32, any strides.
    ``causal``: a query sees no key behind its own position, which is key i for query i, or with the ``causal_variant``
    "bottom_right" the key that is as far from the last key as the query is from the last query. A query sees
    ``window_left`` keys before its position and ``window_right`` behind it; -1: all. The result of a query that sees no
    key is zero. ``scale``: not negative; None: head_dim ** -0.5. The result is as q, in shape and strides, with v's
    head dim. RuntimeError, naming the argument, for anything else.

    A score becomes softcap tanh(score / softcap), where ``softcap`` is not zero. Then ``alibi_slopes``, [heads_q] or
    [batch, heads_q], times the distance of the key from the bottom right variant's own position is subtracted, and
    ``bias`` is added: of q's type, or of bool, where False hides a key; of any shape that broadcasts to [batch,
    heads_q, seqlen_q, seqlen_k]. The gradient of a bias takes memory of that whole shape, before it is summed.
    ``sinks``, [heads_q]: a score that takes part in the softmax and has no value.

    ``dropout``: the probability, in steps of 2 ** -16, with which a weight becomes zero; the others grow in proportion.
    The same ``dropout_seed`` and ``dropout_offset``, numbers or tensors of one int64 each on q's device, drop the same
    weights (``dropout_mask``); without a seed, torch's generator of the device draws a number that is both.

    With ``cu_seqlens_q`` and ``cu_seqlens_k``, [sequences + 1] int32, sequences of different lengths lie one after the
    other: q is [total, heads_q, head_dim], k and v are [total, heads_k, ...], logsumexp is [heads_q, total], and
    sequence n has the rows from cu_seqlens[n] to before cu_seqlens[n + 1]. ``max_seqlen_q`` and ``max_seqlen_k`` are
    the most rows that a sequence has. Results behind the last sequence are not set. ``seqused_q`` and ``seqused_k``,
    [sequences] or [batch] int32: only so many rows of each count; results of the others are zero.

    With ``block_table``, [sequences or batch, pages_of_sequence] int32, keys and values lie in pages: k is [pages,
    heads_k, page_size, head_dim], v [pages, heads_k, page_size, head_dim_v], views of a cache of any strides with a
    contiguous last dimension; key j of sequence n is row j % page_size of page block_table[n, j // page_size]. Needed
    is ``seqused_k``, the number of each sequence's keys. Pages of keys that no query sees are not read, nor entries
    of the table for them. page_size is a positive multiple of 16, head dims are multiples of 8, q is float16 or
    bfloat16; with ``cu_seqlens_q`` and ``max_seqlen_q``, q is packed. Where ``max_seqlen_k`` is given, keys behind
    it do not count. Such a call has no gradient (NotImplementedError where one is asked for), ``cu_seqlens_k``,
    ``bias``, ``alibi_slopes`` or ``dropout``.

    k and v may be of 8 bits, in rows and in pages: both float8_e4m3fn, or float8_e4m3fnuz on gfx942, beside q of
    float16 or bfloat16, with head dims and strides that are multiples of 16. ``k_descale`` and ``v_descale``,
    [sequences or batch, heads_k] float32 of any strides, or one number for all as a tensor without dimensions, multiply
    them; None: 1. Autocast leaves such keys and values as they are. Such a call has no gradient (NotImplementedError
    where one is asked for), ``bias``, ``alibi_slopes`` or ``dropout``.

    q may be float8_e4m3fn, too, on sm_90, with ``q_descale`` as ``k_descale``, of the heads of k: products are then of
    8 bits, to which weights are rounded, and the result is bfloat16. Such a call sees all keys, or is causal with as
    many queries as keys, and asks for nothing else.

    Keys of head dim 576 whose first 512 columns are the values, ``v = k[..., :512]``, are a latent cache, of DeepSeek's
    models: float16 or bfloat16, in rows or in pages, and without gradient, bias, slopes and dropout. ``scale`` is then
    that of the head dim before keys were absorbed.

    Tensors of a CPU are computed as the formula reads, which is right, and slow.
    """
    mask: dict[str, Any] = {"sm_scale": scale, "causal": causal, "hints": within()}
    if causal_variant != "top_left" or window_left >= 0 or window_right >= 0:
        mask |= {"causal_variant": causal_variant, "window_left": window_left, "window_right": window_right}
    if (
        bias is None
        and alibi_slopes is None
        and sinks is None
        and cu_seqlens_q is None
        and cu_seqlens_k is None
        and seqused_q is None
        and seqused_k is None
        and block_table is None
        and k_descale is None
        and v_descale is None
        and q_descale is None
        and not softcap
        and not dropout
    ):
        out, logsumexp = FORWARD(q, k, v, **mask)
        return (out, logsumexp) if return_logsumexp else out
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    if packed:
        require_rows("attention", q=q)
    if block_table is not None:
        for name, tensor in (("k", k), ("v", v)):
            if tensor.dim() != 4:
                raise RuntimeError(f"attention: {name} has {tensor.dim()} dimensions, which must be 4 with block_table")
    elif packed:
        require_rows("attention", k=k, v=v)
    if bias is not None:
        if packed or block_table is not None:
            other = "block_table" if block_table is not None else "cu_seqlens"
            raise RuntimeError(
                f"attention: no kernel has bias together with {other} yet; served without bias, or without {other}"
            )
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=q.dtype).masked_fill(~bias, -inf)
        bias = bias.expand(*q.shape[:3], k.shape[2])
    if alibi_slopes is not None:
        if packed and alibi_slopes.dim() != 1:
            raise RuntimeError(
                "attention: with cu_seqlens, alibi_slopes must be [heads_q]: all sequences have the same"
            )
        alibi_slopes = alibi_slopes.float().expand((1, q.shape[1]) if packed else q.shape[:2])
    if k_descale is not None or v_descale is not None or q_descale is not None:
        sequences = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        scales = k_descale, v_descale, q_descale
        k_descale, v_descale, q_descale = (each_of_heads(one, sequences, k) for one in scales)
    if dropout and dropout_seed is None:
        dropout_seed = dropout_offset = torch.randint(2**62, (), device=q.device)
    elif dropout:
        dropout_seed = _one_of(dropout_seed, q.device)
        dropout_offset = _one_of(0 if dropout_offset is None else dropout_offset, q.device)
    out, logsumexp = FEATURED(
        q,
        k,
        v,
        bias,
        alibi_slopes,
        sinks if sinks is None else sinks.float(),
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_q,
        seqused_k,
        dropout_seed if dropout else None,
        dropout_offset if dropout else None,
        block_table,
        k_descale,
        v_descale,
        q_descale,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        softcap=softcap,
        dropout=dropout,
        **mask,
    )
    return (out, logsumexp) if return_logsumexp else out


def _one_of(number: torch.Tensor | int | None, device: torch.device) -> torch.Tensor:
    """A number in memory of the device; a tensor is one already."""
    return number if isinstance(number, torch.Tensor) else torch.full((), number, dtype=torch.int64, device=device)


def require_rows(op: str, **named: torch.Tensor) -> None:
    """RuntimeError where packed sequences are not [total, heads, head_dim]."""
    for name, tensor in named.items():
        if tensor.dim() != 3:
            raise RuntimeError(f"{op}: {name} has {tensor.dim()} dimensions, which must be 3 with cu_seqlens")


def each_of_heads(scale: torch.Tensor | None, sequences: int, k: torch.Tensor) -> torch.Tensor | None:
    """A scale as the operators have it, [sequences, heads of k]; one number for all is repeated by strides of 0."""
    return scale if scale is None or scale.dim() else scale.expand(sequences, k.shape[1])


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """As the operators have it: a copy where the last dimension is not contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _out_of(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As q, with the head dim of v. Where that is another one, its dimensions lie in the order of q's. Of queries of 8
    bits it is bfloat16.
    """
    if q.dtype in NARROW:
        q = torch.empty_like(q, dtype=torch.bfloat16)
    if q.shape[-1] == v.shape[-1]:
        return torch.empty_like(q)
    sizes, order = (*q.shape[:-1], v.shape[-1]), sorted(range(q.dim()), key=q.stride, reverse=True)
    return q.new_empty([sizes[dim] for dim in order]).permute([order.index(dim) for dim in range(q.dim())])


def _fake_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    of_rows = (q.shape[1], q.shape[0]) if q.dim() == 3 else q.shape[:3]  # of packed sequences, or of a batch
    return _out_of(_rows(q), v), q.new_empty(of_rows, dtype=torch.float32)


def _fake_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, skip_gradients: int = 0, **__: Any
) -> tuple[torch.Tensor, ...]:
    return tuple(
        one.new_empty(0) if skip_gradients >> i & 1 else torch.empty_like(_rows(one)) for i, one in enumerate((q, k, v))
    )


def _fake_featured_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, dbias: bool = False, dsinks: bool = False, **more: Any
) -> tuple[torch.Tensor, ...]:
    of_bias = (*q.shape[:3], k.shape[2]) if dbias else (0,)
    of_sinks = q.new_empty(q.shape[1] if dsinks else 0, dtype=torch.float32)
    return *_fake_backward(q, k, v, **more), q.new_empty(of_bias), of_sinks


register_fake("attn_fwd", _fake_forward)
register_fake("attn_bwd", _fake_backward)
register_fake("attn_fwd.features", _fake_forward)
register_fake("attn_bwd.features", _fake_featured_backward)


def names_of(operator: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The operator's tensors, and what a call says beside them, in the schema's order."""
    arguments = operator._schema.arguments
    return tuple(a.name for a in arguments if not a.kwarg_only), tuple(a.name for a in arguments if a.kwarg_only)


# Calls of which each needs its own, as its batch is one, or all of its batch share what is mapped, or the first
# dimension of some tensors is none.
APART = ("sinks", "cu_seqlens_q", "cu_seqlens_k", "dropout_seed", "dropout_offset", "block_table")


def _mapping(operator: Any) -> Any:
    """vmap's kernel: one call, with what is mapped folded into the batch, where that can be."""
    names, _ = names_of(operator)

    def vmap(info: Any, in_dims: Any, *tensors: Any, **kwargs: Any) -> Any:
        count = info.batch_size
        if any(tensor is not None and name in APART for name, tensor in zip(names, tensors, strict=False)):
            mapped = [
                [None] * count if tensor is None else mapped_first(tensor, dim, count)
                for tensor, dim in zip(tensors, in_dims, strict=False)
            ]
            calls = [operator(*one, **kwargs) for one in zip(*mapped, strict=True)]
            results = [torch.stack(each) for each in zip(*calls, strict=True)]
        else:
            folded = [
                None if tensor is None else fold(tensor, dim, count)
                for tensor, dim in zip(tensors, in_dims, strict=False)
            ]
            # A gradient that is not asked for has no batch.
            results = [
                unfold(result, count) if result.dim() > 1 else result.expand(count, 0)
                for result in operator(*folded, **kwargs)
            ]
        return tuple(results), (0,) * len(results)

    return vmap


for name in ("attn_fwd", "attn_bwd", "attn_fwd.features", "attn_bwd.features"):
    torch.library.register_vmap(f"aotriton::{name}", _mapping(operator_of(name)))
