"""The Python side of aotriton: rules, kernels, tuner and code generator under one importable name."""

from typing import Any

__all__ = ["autotune"]


def __getattr__(name: str) -> Any:
    """``aotriton.autotune``, which the code generator and its workers have no use for."""
    if name == "autotune":
        from aotriton.tune.anything.autotune import autotune

        return autotune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
