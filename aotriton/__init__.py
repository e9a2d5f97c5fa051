"""The Python side of aotriton: rules, kernels, tuner and code generator under one importable name."""

from typing import Any

__all__ = ["autotune", "hints"]


def __getattr__(name: str) -> Any:
    """``aotriton.autotune`` and ``aotriton.hints``, which the code generator and its workers have no use for."""
    if name == "autotune":
        from aotriton.tune.anything.autotune import autotune

        return autotune
    if name == "hints":
        from aotriton.torch.hints import hints

        return hints
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
