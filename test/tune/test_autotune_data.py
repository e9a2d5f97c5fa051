"""What autotune draws as inputs, restores and compares, on the CPU: it needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kernel_package import kernels

from aotriton.rules.kernel import Tensor
from aotriton.tune.autotune.tuning import DrawnData

torch = pytest.importorskip("torch")

from test_autotune_kernels import UPDATED, described, of_updated  # noqa: E402


def drawn(one: Any, reference: Any, prepare: Any = None, **sizes: int) -> DrawnData:
    return DrawnData(one._operator, sizes, reference, prepare, 0.0, "cpu")


def verdict(one: Any, data: DrawnData, name: str, results: Mapping[str, Any]) -> str | None:
    """What is wrong with a result."""
    (argument,) = [each for each in one._description.arguments if isinstance(each, Tensor) and each.name == name]
    return data.check(one._description, argument, {}, results).wrong


def test_what_is_updated_is_drawn_and_compared() -> None:
    """The result begins as a copy of the input, which the reference cannot change."""
    one = described(kernels.accumulate, **UPDATED | {"reference": of_updated})
    data = drawn(one, of_updated, n=64)
    (x,) = [each for each in one._description.arguments if each.name == "x"]
    assert isinstance(x, Tensor)
    memory, before = data.result(one._description, x, {})
    assert torch.equal(memory, data.tensors["x"])
    assert before is data.tensors["x"]
    assert memory.data_ptr() != before.data_ptr()
    memory += data.tensors["y"]
    assert verdict(one, data, "x", {"x": memory}) is None
    assert verdict(one, data, "out", {"out": before}) is None
    assert "x is off by" in str(verdict(one, data, "x", {"x": before}))
