"""The Python side of aotriton: rules, kernels, tuner and code generator under one importable name."""

from typing import Any

__all__ = ["__version__", "autotune"]

__version__ = "0.1.0"  # the only place where it is written: cmake and pyproject.toml read it here


def __getattr__(name: str) -> Any:
    """``aotriton.autotune``, which the code generator and its workers have no use for."""
    if name == "autotune":
        from aotriton.tune.anything.autotune import autotune

        return autotune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
