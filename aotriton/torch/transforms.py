"""What autograd, autocast and vmap do with an operator that knows none of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from aotriton.torch.hints import within

# A call on these is made here and now; that on a tracer's tensors is for later.
PLAIN = (torch.Tensor, torch.nn.Parameter)

# Registrations last as long as this.
LIBRARY = torch.library.Library("aotriton", "FRAGMENT")


def operator_of(name: str) -> Any:
    """The operator of a name, which may have an overload behind a dot."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aotriton, packet), overload or "default")


def register_fake(name: str, function: Any) -> None:
    """What the operator and its twin return, as shapes, dtypes and strides."""
    torch.library.register_fake(f"aotriton::{name}", function)
    torch.library.register_fake(f"aotriton::_{name}", function)


def register_autograd(name: str, kernel: Any) -> None:
    """What autograd does with a call of the operator: ``kernel(*arguments, **keywords)`` of what the caller gave. Its
    twin, of the same name behind a ``_``, autograd lets through.
    """
    LIBRARY.impl(name, kernel, "Autograd")
    LIBRARY.impl(f"_{name}", torch.library.fallthrough_kernel, "Autograd")


def autograd_of(name: str, function: Any) -> Any:
    """A kernel for `register_autograd`: ``function.apply`` of all arguments, in the schema's order, where a gradient is
    recorded; elsewhere the twin.

    torch.library.register_autograd would do the same, and have each call cost the host three times as much.
    """
    operator, twin = operator_of(name), operator_of(f"_{name}")
    arguments = operator._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.kwarg_only}
    tensors = len(arguments) - len(defaults)

    def autograd(*given: Any, **parameters: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(name, given)
        if torch.is_grad_enabled():
            for tensor in given:
                if tensor is not None and tensor.requires_grad:
                    missing = (None,) * (tensors - len(given))
                    if type(tensor) in PLAIN:
                        parameters["hints"] = within(parameters.get("hints", ""))
                    return function.apply(*given, *missing, *(defaults | parameters).values())
        return twin(*given, **parameters)

    return autograd


def _refuse_tangents(name: str, given: Any) -> None:
    for tensor in given:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(f"{name}: forward AD has no formula for aotriton's operators, only backward has")


def register_autocast(name: str, kept: tuple[str, ...] = ()) -> None:
    """Under autocast, the operator's floating tensors become what autocast computes in; not those that are ``kept``,
    nor those of 8 bits, which mean something only with their scales.
    """
    operator = operator_of(name)
    cast = [one.name not in kept for one in operator._schema.arguments]

    def on(device: str) -> Any:
        def autocast(*args: Any, **kwargs: Any) -> Any:
            dtype = torch.get_autocast_dtype(device)
            given = [
                a.to(dtype) if c and isinstance(a, torch.Tensor) and _is_wide(a) else a
                for a, c in zip(args, cast, strict=False)
            ]
            with torch.autocast(device, enabled=False):
                return operator(*given, **kwargs)

        return autocast

    LIBRARY.impl(name, on("cuda"), "AutocastCUDA")
    LIBRARY.impl(name, on("cpu"), "AutocastCPU")


def _is_wide(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.dtype.itemsize > 1)


def mapped_first(tensor: torch.Tensor, dim: int | None, count: int) -> torch.Tensor:
    """The tensor with the dimension that vmap maps in front, or repeated ``count`` times where it has none."""
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def fold(tensor: torch.Tensor, dim: int | None, count: int) -> torch.Tensor:
    """The mapped dimension folded into the batch, which is the first one of what the operator is written for."""
    return mapped_first(tensor, dim, count).flatten(0, 1)


def unfold(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return tensor.unflatten(0, (count, -1))
