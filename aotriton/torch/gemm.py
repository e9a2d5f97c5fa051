"""Matrix products for PyTorch: what ``torch.compile``, autograd, autocast and vmap have to know of gemm."""

from __future__ import annotations

from typing import Any

import torch

from aotriton.torch import library  # noqa: F401 (defines the operator)
from aotriton.torch.hints import within
from aotriton.torch.transforms import (
    autograd_of,
    mapped_first,
    register_autocast,
    register_autograd,
    register_fake,
    unfold,
)

OPS = torch.ops.aotriton


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    alpha: float = 1.0,
    activation: str = "none",
) -> torch.Tensor:
    """activation(alpha a b + bias) on the tensors' device, on torch's current stream; differentiable in a, b and bias.

    a: [m, k], b: [k, n], or both with a batch in front; bias: [n]. float16 or bfloat16, sums of fp32. Rows or columns
    may be contiguous, so that a weight stored as [n, k] is passed as ``weight.mT``. ``activation``: none, relu, gelu or
    silu. The result is contiguous. RuntimeError, naming the argument, for anything else.
    """
    return OPS.gemm(a, b, bias, alpha=alpha, activation=activation, hints=within())


def _fake(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


register_fake("gemm", _fake)


class _Gemm(torch.autograd.Function):
    """gemm, whose gradients are products, too."""

    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, *parameters: Any
    ) -> torch.Tensor:
        ctx.alpha, ctx.activation, ctx.hints = parameters
        d = OPS._gemm(a, b, bias, alpha=ctx.alpha, activation=ctx.activation, hints=ctx.hints)
        ctx.save_for_backward(a, b, bias, d)
        return d

    @staticmethod
    def backward(ctx: Any, dd: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, b, bias, d = ctx.saved_tensors
        alpha, activation, hints = ctx.alpha, ctx.activation, ctx.hints
        if activation == "relu":
            dd = torch.ops.aten.threshold_backward(dd, d, 0)
        elif activation != "none":
            before = OPS.gemm(a, b, bias, alpha=alpha, hints=hints)  # cheaper than to keep it
            dd = DERIVATIVES[activation](dd, before)
        da, db, dbias = ctx.needs_input_grad[:3]
        return (
            OPS.gemm(dd, b.mT, alpha=alpha, hints=hints) if da else None,
            OPS.gemm(a.mT, dd, alpha=alpha, hints=hints) if db else None,
            dd.flatten(0, -2).sum(0) if dbias else None,
            *(None, None, None),
        )


DERIVATIVES = {"gelu": torch.ops.aten.gelu_backward, "silu": torch.ops.aten.silu_backward}


register_autograd("gemm", autograd_of("gemm", _Gemm))
register_autocast("gemm")


@torch.library.register_vmap("aotriton::gemm")
def _(
    info: Any, in_dims: Any, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, **kwargs: Any
) -> tuple[torch.Tensor, int]:
    count = info.batch_size
    a, b = mapped_first(a, in_dims[0], count), mapped_first(b, in_dims[1], count)
    if bias is not None and in_dims[2] is not None:  # a call has one bias
        each = zip(a, b, mapped_first(bias, in_dims[2], count), strict=True)
        return torch.stack([OPS.gemm(*one, **kwargs) for one in each]), 0
    if a.dim() == 3:
        return OPS.gemm(a, b, bias, **kwargs), 0
    return unfold(OPS.gemm(a.flatten(0, 1), b.flatten(0, 1), bias, **kwargs), count), 0
