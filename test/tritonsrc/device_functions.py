"""Device functions of Triton as plain Python, of numbers and of numpy's vectors."""

from __future__ import annotations

from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np


def language(**more: Any) -> SimpleNamespace:
    """What stands in for triton.language, or Gluon's."""

    def either(of_numbers: Any, of_vectors: Any) -> Any:
        return lambda a, b: (of_vectors if np.ndim(a) or np.ndim(b) else of_numbers)(a, b)

    return SimpleNamespace(
        where=lambda this, a, b: a if this else b, cdiv=lambda a, b: -(-a // b), constexpr=int,
        minimum=either(min, np.minimum), maximum=either(max, np.maximum), static_assert=lambda *_: None, **more,
    )  # fmt: skip


def take(space: dict[str, Any], module: ModuleType, *names: str) -> None:
    """Adds functions of a module to ``space``, which has what they call."""
    space |= {name: FunctionType(getattr(module, name).fn.__code__, space, name) for name in names}
