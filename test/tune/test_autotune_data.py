"""What autotune draws as inputs, restores and compares, on the CPU: it needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kernel_package import kernels

from aotriton.rules.kernel import Tensor
from aotriton.tune.autotune.tuning import DrawnData

torch = pytest.importorskip("torch")

from test_autotune_kernels import TYPED, UPDATED, described, of_typed, of_updated  # noqa: E402


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


def test_every_type_is_drawn_and_compared() -> None:
    """Whole numbers from 0 on, which index; results of them are compared element by element."""
    one = described(kernels.typed, **TYPED | {"reference": of_typed})
    data = drawn(one, of_typed, n=256)
    assert data.tensors["labels"].dtype == torch.int64
    assert int(data.tensors["labels"].min()) >= 0
    assert data.tensors["labels"].unique().numel() > 50
    assert data.tensors["flags"].float().mean().item() == pytest.approx(0.5, abs=0.2)
    assert data.tensors["small"].dtype == torch.float8_e4m3fn
    for name, poison in (("codes", -128), ("count", -(2**31))):
        (argument,) = [each for each in one._description.arguments if each.name == name]
        assert isinstance(argument, Tensor)
        memory, before = data.result(one._description, argument, {})
        assert before == poison
        memory.fill_(before)
        assert f"{name} differs in 1 of its elements" in str(verdict(one, data, name, {name: memory}))
    wide = [each.double() if each.is_floating_point() else each for each in data.tensors.values()]
    codes, count, out = (
        each.to(kind) for each, kind in zip(of_typed(*wide), (torch.int8, torch.int32, torch.float32), strict=True)
    )
    assert verdict(one, data, "count", {"count": count}) is None
    assert verdict(one, data, "codes", {"codes": codes}) is None
    assert verdict(one, data, "out", {"out": out}) is None
    count[3] += 1
    assert "count differs in 0.0039 of its elements, allowed 0" in str(verdict(one, data, "count", {"count": count}))


def test_inputs_may_be_made_of_whole_numbers() -> None:
    """``prepare`` keeps their type."""
    one = described(kernels.typed, **TYPED | {"reference": of_typed})
    data = drawn(one, of_typed, lambda labels: {"labels": labels.clamp(max=3)}, n=256)
    assert int(data.tensors["labels"].max()) == 3
    with pytest.raises(ValueError, match=r"prepare: labels of torch\.float32"):
        drawn(one, of_typed, lambda labels: {"labels": labels.float()}, n=256)
