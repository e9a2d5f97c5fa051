"""Attention for PyTorch: what ``torch.compile``, autograd, autocast and vmap have to know of attn_fwd and attn_bwd."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function

from aotriton.torch import library  # noqa: F401 (defines the operators)
from aotriton.torch.hints import within
from aotriton.torch.transforms import (
    autograd_of,
    fold,
    register_autocast,
    register_autograd,
    register_fake,
    register_traced,
    unfold,
)

OPS = torch.ops.aotriton
FORWARD = OPS.attn_fwd.default  # to find it among overloads costs each call a microsecond


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
) -> torch.Tensor:
    """softmax(scale q kᵀ) v on the tensors' device, on torch's current stream; differentiable in q, k and v.

    q: [batch, heads_q, seqlen_q, head_dim]; k, v: [batch, heads_k, seqlen_k, head_dim], heads_q a multiple of heads_k,
    head_dim a multiple of 8 up to 256. float16 or bfloat16, any strides. ``causal``: a query sees no key behind its own
    position, which is key i for query i, or with the ``causal_variant`` "bottom_right" the key that is as far from the
    last key as the query is from the last query. A query sees ``window_left`` keys before its position and
    ``window_right`` behind it; -1: all. The result of a query that sees no key is zero. ``scale``: not negative; None:
    head_dim ** -0.5. The result is as q, in shape and strides. RuntimeError, naming the argument, for anything else.

    Tensors of a CPU are computed as the formula reads, which is right, and slow.
    """
    hints = within()
    if causal_variant == "top_left" and window_left < 0 and window_right < 0:
        out, _ = FORWARD(q, k, v, sm_scale=scale, causal=causal, hints=hints)
    else:
        mask = {"causal_variant": causal_variant, "window_left": window_left, "window_right": window_right}
        out, _ = FORWARD(q, k, v, sm_scale=scale, causal=causal, **mask, hints=hints)
    return out


# What a call says beside its tensors, in the schemas' order.
PARAMETERS, BACKWARD_PARAMETERS = (
    tuple(one.name for one in operator._schema.arguments if one.kwarg_only)
    for operator in (OPS.attn_fwd.default, OPS.attn_bwd.default)
)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """As the operators have it: a copy where the last dimension is not contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _fake_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(_rows(q)), q.new_empty(q.shape[:3], dtype=torch.float32)


def _fake_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty_like(_rows(tensor)) for tensor in (q, k, v))


register_fake("attn_fwd", _fake_forward)
register_fake("attn_bwd", _fake_backward)


class _Attention(torch.autograd.Function):
    """attn_fwd, whose gradient is attn_bwd; logsumexp has none."""

    @staticmethod  # with setup_context, which torch would rather have, a call costs the host three times as much
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *parameters: Any) -> Any:
        ctx.parameters = dict(zip(PARAMETERS, parameters, strict=True))
        out, logsumexp = OPS._attn_fwd(q, k, v, **ctx.parameters)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.mark_non_differentiable(logsumexp)
        ctx.set_materialize_grads(False)
        return out, logsumexp

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
        if dout is None:
            return (None,) * (3 + len(PARAMETERS))
        q, k, v, out, logsumexp = ctx.saved_tensors
        gradients = OPS.attn_bwd(q, k, v, out, dout, logsumexp, **ctx.parameters)
        return *gradients, *(None,) * len(PARAMETERS)


class _Gradients(torch.autograd.function._SingleLevelFunction):
    """attn_bwd, whose gradient does not exist: who records one is told so when it is asked for.

    autograd.Function would look for torch.func's transforms once more, which a backward is called below.
    """

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        with enable_single_level_autograd_function():
            return super().apply(*arguments)

    @staticmethod
    def forward(_: Any, *arguments: Any) -> Any:
        parameters = zip(BACKWARD_PARAMETERS, arguments[-len(BACKWARD_PARAMETERS) :], strict=True)
        # An outer transform's autograd is to see this call; the twin would hide it.
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
            return OPS.attn_bwd(*arguments[: -len(BACKWARD_PARAMETERS)], **dict(parameters))

    @staticmethod
    def backward(*_: Any) -> Any:
        raise NotImplementedError(
            "aotriton's attention has no second derivative: attn_fwd has a gradient, attn_bwd, and that has none. "
            "torch's attention has, with sdpa_kernel(SDPBackend.MATH)"
        )


# autograd.cc has the kernel for tensors of a CPU and of a GPU. This one is for what tracers see, and other devices; and
# for all tensors in a release of torch that the library was not built with.
AUTOGRAD = autograd_of("attn_fwd", _Attention)
register_autograd("attn_fwd", AUTOGRAD)
register_traced("attn_fwd", AUTOGRAD)
register_autograd("attn_bwd", autograd_of("attn_bwd", _Gradients))
register_autocast("attn_fwd")


def _folding(operator: Any) -> Any:
    def vmap(info: Any, in_dims: Any, *tensors: torch.Tensor, **kwargs: Any) -> Any:
        folded = [fold(tensor, dim, info.batch_size) for tensor, dim in zip(tensors, in_dims, strict=False)]
        results = operator(*folded, **kwargs)
        return tuple(unfold(result, info.batch_size) for result in results), (0,) * len(results)

    return vmap


for name in ("attn_fwd", "_traced_attn_fwd"):
    torch.library.register_vmap(f"aotriton::{name}", _folding(OPS.attn_fwd))
torch.library.register_vmap("aotriton::attn_bwd", _folding(OPS.attn_bwd))
