"""Autograd and autocast of attn_fwd and attn_bwd, in releases of torch for which v2src/torch/release/autograd.cc, which
does the same, was not built.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function

from aotriton.torch.attention import NARROW, names_of
from aotriton.torch.transforms import autograd_of, register_autocast, register_autograd

OPS = torch.ops.aotriton


class _SingleLevel(torch.autograd.function._SingleLevelFunction):
    """autograd.Function would look for torch.func's transforms once more, which autograd's kernels are called below."""

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        with enable_single_level_autograd_function():
            return super().apply(*arguments)


def _below_autograd(operator: Any) -> Any:
    """A call that an outer transform's autograd sees, but not this one; a twin would hide it from both."""

    def call(*given: Any, **parameters: Any) -> Any:
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
            return operator(*given, **parameters)

    return call


def _recorded(forward: Any, call: Any, backward: Any) -> Any:
    """What autograd records of a forward, which ``call`` computes, and whose gradient is the backward; logsumexp has
    none.
    """
    tensors, names = names_of(forward)
    shared = len(names_of(backward)[0]) - len(("out", "dout", "logsumexp"))  # tensors that the backward takes, too

    class Attention(_SingleLevel):
        @staticmethod  # with setup_context, which torch would rather have, a call costs the host three times as much
        def forward(ctx: Any, *given: Any) -> Any:
            given, parameters = given[: len(tensors)], given[len(tensors) :]
            for name, tensor in zip(tensors[shared:], given[shared:], strict=True):
                if tensor is not None:
                    raise NotImplementedError(f"attn_fwd: a call with {name} has no gradient, which an input asks for")
            for name, tensor in zip(("q", "k", "v"), given[:3], strict=True):
                if tensor.dtype in NARROW:
                    raise NotImplementedError(
                        f"attn_fwd: a call with {name} of 8 bits has no gradient, which an input asks for"
                    )
            for name, asks in zip(tensors[3:], ctx.needs_input_grad[3:], strict=False):
                if asks and name not in ("bias", "sinks"):
                    raise RuntimeError(f"attn_fwd: {name} asks for a gradient, which attention has not")
            ctx.parameters = dict(zip(names, parameters, strict=True))
            out, logsumexp = call(*given, **ctx.parameters)
            ctx.save_for_backward(*given[:shared], out, logsumexp)
            ctx.mark_non_differentiable(logsumexp)
            ctx.set_materialize_grads(False)
            return out, logsumexp

        @staticmethod
        def backward(ctx: Any, dout: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
            found: dict[str, torch.Tensor] = {}
            if dout is not None:
                q, k, v, *features, out, logsumexp = ctx.saved_tensors
                wanted = dict(zip(tensors, ctx.needs_input_grad, strict=False))
                asked = {f"d{name}": asks for name, asks in wanted.items() if name in ("bias", "sinks")}
                skipped = sum(bit for bit, name in ((1, "q"), (2, "k"), (4, "v")) if not wanted[name])  # as in c.h
                results = backward(
                    q, k, v, out, dout, logsumexp, *features, **ctx.parameters, skip_gradients=skipped, **asked
                )
                found = dict(zip(("q", "k", "v", *(name[1:] for name in asked)), results, strict=True))
                found = {name: result for name, result in found.items() if wanted[name]}
            return *(found.get(name) for name in tensors), *(None,) * len(names)

    return Attention


def _recorded_again(backward: Any) -> Any:
    """What autograd records of a backward, whose gradient does not exist: who records one is told so when it is asked
    for.
    """
    tensors, names = names_of(backward)
    call = _below_autograd(backward)

    class Gradients(_SingleLevel):
        @staticmethod
        def forward(_: Any, *given: Any) -> Any:
            return call(*given[: len(tensors)], **dict(zip(names, given[len(tensors) :], strict=True)))

        @staticmethod
        def backward(*_: Any) -> Any:
            raise NotImplementedError(
                "aotriton's attention has no second derivative: attn_fwd has a gradient, attn_bwd, and that has none. "
                "torch's attention has, with sdpa_kernel(SDPBackend.MATH)"
            )

    return Gradients


register_autograd(
    "attn_fwd", autograd_of("attn_fwd", _recorded(OPS.attn_fwd.default, OPS._attn_fwd.default, OPS.attn_bwd.default))
)
register_autograd("attn_bwd", autograd_of("attn_bwd", _recorded_again(OPS.attn_bwd.default)))
register_autocast("attn_fwd")

FEATURED = OPS.attn_fwd.features
OF_FEATURES = _recorded(FEATURED, _below_autograd(FEATURED), OPS.attn_bwd.features)
register_autograd("attn_fwd.features", autograd_of("attn_fwd.features", OF_FEATURES))
register_autograd("attn_bwd.features", autograd_of("attn_bwd.features", _recorded_again(OPS.attn_bwd.features)))
register_autocast("attn_fwd.features", kept=("alibi_slopes", "sinks", "k_descale", "v_descale", "q_descale"))
