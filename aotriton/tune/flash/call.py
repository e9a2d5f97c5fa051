"""A call of attention on the current GPU: the operator's arguments, and memory for its results."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from aotriton.rules.flash.split import Keys
from aotriton.tune.flash.stored_keys import narrow, narrowed, stored
from aotriton.tune.problem.dtypes import torch_dtype
from aotriton.tune.problem.family import Inputs

if TYPE_CHECKING:
    import torch


def inputs(
    sizes: Mapping[str, int],
    dtype: str,
    asked: Mapping[str, int],
    backward: bool,
    seed: int = 0,
    keys: Keys = Keys.rows,
) -> Inputs:
    """Normal q, k, v [batch, heads, seqlen, head_dim], and for the backward dout as well; ``asked`` has the scalars.
    k and v are held as ``keys`` says.

    The backward's out and logsumexp are PyTorch's own, of its flash attention, and of a band those of all keys: what
    they hold does not change the time.
    """
    import torch

    kind = torch_dtype(dtype)
    generator = torch.Generator(device="cuda").manual_seed(seed)
    batch, width = sizes["batch"], sizes["head_dim"]
    of_q = batch, sizes["heads_q"], sizes["seqlen_q"], width
    of_k = batch, sizes["heads_k"], sizes["seqlen_k"], width
    # All of them: a kernel may have numbers that follow from those of tensors that it does not take.
    known = {name: size for name, size in sizes.items() if name != "window"} | {"head_dim_v": width}

    def normal(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=kind, device="cuda").normal_(generator=generator)

    q, k, v = normal(of_q), normal(of_k), normal(of_k)
    scale = 1 / sqrt(width)
    scalars = {"sm_scale": scale, **asked}
    causal = bool(asked["causal"])
    given = {"q": q, "k": k, "v": v}
    if not backward:
        made = {"out": torch.empty_like(q), "logsumexp": torch.empty(of_q[:3], device="cuda")}
        held = _held(given, keys, seed)
        if "q_descale" in held:  # which is of heads of keys
            held["q_descale"] = held["q_descale"][:, :: of_q[1] // of_k[1]].contiguous()
        given |= held
        return Inputs({**given, **made}, scalars, made, known)
    group = of_q[1] // of_k[1]
    half_q, half_k, half_v = (x if kind.itemsize == 2 else x.bfloat16() for x in (q, k, v))
    out, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention(
        half_q, half_k.repeat_interleave(group, 1), half_v.repeat_interleave(group, 1), 0.0, causal, False, scale=scale
    )[:2]
    given |= {"out": out.to(kind).contiguous(), "logsumexp": logsumexp.float().contiguous(), "dout": normal(of_q)}
    made = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
    return Inputs({**given, **made}, scalars, made, known)


def _held(given: Mapping[str, torch.Tensor], keys: Keys, seed: int) -> dict[str, torch.Tensor]:
    """k and v, or q, too, and what else a call has where they are held in another way than in rows of 16 bits."""
    rows, scales = {name: given[name] for name in narrow(keys) or "kv"}, {}
    for number, name in enumerate(narrow(keys)):
        rows[name], scales[name] = narrowed(given[name].float(), keys, seed + number)
    return stored(rows, scales, keys, seed)
