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


class Threads(np.ndarray):
    """A number of each thread of a Gluon tensor."""

    def to(self, kind: Any) -> Any:
        return self.astype(kind)


def vectors() -> dict[str, Any]:
    """What of Gluon's language makes tensors and takes them together; layouts say nothing here."""
    return {
        "arange": lambda begin, end, _: np.arange(begin, end).view(Threads), "sum": lambda x, axis: int(x.sum(axis)),
        "BlockedLayout": lambda *_: None, "int32": np.int32,
    }  # fmt: skip


def loading(numbers: list[int]) -> Any:
    """`load` from a tensor of these numbers, whose pointer is 0: of an index, or of those that the mask has."""

    def load(place: Any, mask: Any = None, other: int = 0) -> Any:
        if mask is None:
            return numbers[place]
        assert not mask.any() or place[mask].max() < len(numbers)
        return np.where(mask, np.array(numbers)[np.where(mask, place, 0)], other).view(Threads)

    return load
