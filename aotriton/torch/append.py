"""Keys and values of new tokens into a cache, for PyTorch: what autograd and ``torch.compile`` have to know of
kv_append.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.graph import increment_version

from aotriton.torch import library  # noqa: F401 (defines the operator)
from aotriton.torch.attention import each_of_heads, require_rows
from aotriton.torch.hints import within
from aotriton.torch.transforms import autograd_of, register_autograd, register_fake

APPEND = torch.ops.aotriton.kv_append.default
ARGUMENTS = APPEND._schema.arguments
WRITTEN = [place for place, one in enumerate(ARGUMENTS) if one.alias_info is not None and one.alias_info.is_write]


def kv_append(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    seqused_k: torch.Tensor,
    *,
    q: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    rotary_interleaved: bool = False,
    cu_seqlens_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
) -> None:
    """Writes the keys and values of new tokens into the cache that `attention` then reads, and rotates keys and queries
    by their positions (a rotary embedding), in one launch on the tensors' device, on torch's current stream.

    k: [batch, heads_k, seqlen_new, head_dim]; v: [batch, heads_k, seqlen_new, head_dim_v]; k_cache: [batch, heads_k,
    seqlen_k, head_dim]; v_cache: [batch, heads_k, seqlen_k, head_dim_v]. float16, bfloat16 or float32, one type for
    all, any head dims; caches are views of any strides with a contiguous last dimension. ``seqused_k``, [batch] int32:
    how many keys each sequence has afterwards, as `attention` takes it. Token i of n new ones of sequence z is at
    position p = seqused_k[z] - n + i: row p of the sequence in the caches becomes its key and value. Nothing else of
    the caches is written. Two tokens must not have one place.

    With ``block_table``, [batch, pages_of_sequence] int32, the caches lie in pages: k_cache is [pages, heads_k,
    page_size, head_dim], v_cache [pages, heads_k, page_size, head_dim_v], and the row is p % page_size of page
    block_table[z, p // page_size]. page_size may be any; `attention` takes multiples of 16.

    With ``rotary_cos`` and ``rotary_sin``, [positions, rotary_pairs] of any floating type (float32 is taken as it is,
    others are converted), the first 2 rotary_pairs elements of each row of k are rotated by the angles of row p, in
    float32, before they are written: element j with element j + rotary_pairs, or with ``rotary_interleaved`` element
    2 j with 2 j + 1. ``q``, [batch, heads_q, seqlen_new, head_dim] of any number of heads and with a contiguous last
    dimension, is rotated by the same angles, in place.

    A token is left out, and its row of q stays as it is, where p is negative, behind the cache's last row of the
    sequence or behind the last row of rotary_cos, and where its entry of block_table is none of the pages. Lengths and
    tables are read on the device, so that a CUDA graph follows their changes; a sequence that has ended has a seqused_k
    of 0.

    With ``cu_seqlens_k``, [sequences + 1] int32, sequences have different numbers of new tokens, one after the other: k
    is [total, heads_k, head_dim], v [total, heads_k, head_dim_v], q [total, heads_q, head_dim], and sequence z has the
    rows from cu_seqlens_k[z] to before cu_seqlens_k[z + 1]. Rows of no sequence are left out. For batch, sequences
    stands in seqused_k, block_table, the scales and the caches.

    Both caches may be of 8 bits instead, float8_e4m3fn, or float8_e4m3fnuz on gfx942. What they get is, after the
    rotation, divided by ``k_descale`` and ``v_descale``, [batch, heads_k] float32 of any strides, or one number for all
    as a tensor without dimensions (None: 1), and rounded to the nearest number. What is beyond the largest one, 448, or
    240 of float8_e4m3fnuz, becomes that; what is no number stays none.

    A cache must share no memory with another tensor, nor q with k and v; all may lie side by side in one tensor. What
    is written in a compiled function must not be two inputs of it that lie in one tensor: give the function that
    tensor, and take its parts inside. There is no gradient: NotImplementedError where one would be recorded.
    RuntimeError, naming the argument, for anything else. Tensors of a CPU are computed as the formula reads, which is
    right, and slow.
    """
    if cu_seqlens_k is not None:
        require_rows("kv_append", k=k, v=v, **({} if q is None else {"q": q}))
        k, v = _one_batch(k), _one_batch(v)
        q = q if q is None else _one_batch(q)
    APPEND(
        k,
        v,
        k_cache,
        v_cache,
        seqused_k,
        q,
        rotary_cos if rotary_cos is None else rotary_cos.float(),
        rotary_sin if rotary_sin is None else rotary_sin.float(),
        cu_seqlens_k,
        block_table,
        each_of_heads(k_descale, seqused_k.numel(), k),
        each_of_heads(v_descale, seqused_k.numel(), k),
        rotary_interleaved=rotary_interleaved,
        hints=within(),
    )


def _one_batch(tensor: torch.Tensor) -> torch.Tensor:
    """[total, heads, head_dim] as the operator has it: [1, heads, total, head_dim]."""
    return tensor.transpose(0, 1).unsqueeze(0)


class _NoGradient:
    """What autograd has of the operator where a gradient would be recorded."""

    @staticmethod
    def apply(*given: Any) -> NoReturn:
        names = (a.name for a, one in zip(ARGUMENTS, given, strict=True) if getattr(one, "requires_grad", False))
        raise NotImplementedError(f"kv_append: {next(names)} asks for a gradient, which kv_append has not")


_WITHOUT_GRADIENT = autograd_of("kv_append", _NoGradient)


def _autograd(*given: Any, **parameters: Any) -> None:
    """Also has a backward notice that a tensor was written which its forward has kept."""
    written = {ARGUMENTS[at].name: given[at] for at in WRITTEN if at < len(given) and given[at] is not None}
    if any(isinstance(one, FunctionalTensor) for one in written.values()):
        _refuse_parts(written)
    _WITHOUT_GRADIENT(*given, **parameters)
    increment_version(list(written.values()))


def _refuse_parts(written: dict[str, Any]) -> None:
    """RuntimeError where two written tensors are inputs of what is compiled, and parts of one tensor.

    Inductor of torch 2.11 has the operator write a copy of the second one, and takes the copy from the wrong place: it
    counts the input's offset in the storage twice.
    """
    inputs: dict[int, tuple[str, int]] = {}  # of each storage: an argument, and the input that it is a view of
    for name, one in written.items():
        base = one if one._base is None else one._base
        elements = torch._from_functional_tensor(base.elem)
        other, its_base = inputs.setdefault(elements.untyped_storage()._cdata, (name, id(base)))
        if its_base != id(base):
            raise RuntimeError(
                f"kv_append: {other} and {name} are inputs of the compiled function, and parts of one tensor, which "
                "torch's compiler cannot write both: give the function that tensor, and take its parts inside"
            )


def _fake(*_: Any, **__: Any) -> None:
    """Nothing is returned."""


register_fake("kv_append", _fake)
register_autograd("kv_append", _autograd)
