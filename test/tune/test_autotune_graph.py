"""Tuned kernels within torch.compile, on the CPU: what stands for a kernel of Triton computes there. It needs torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernel_package import kernels

from aotriton.tune.autotune import graph
from aotriton.tune.autotune.tuned import Best, Tuned

torch = pytest.importorskip("torch", reason="torch is not installed")

from test_autotune_kernels import UPDATED, described, of_updated  # noqa: E402


class OnCpu:
    """A kernel that computes by torch, and counts its launches."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        self.compute, self.launched = compute, 0

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._launch

    def _launch(self, **named: Any) -> None:
        self.launched += 1
        self.compute(**named)


def tuned(kernel: Any, compute: Callable[..., Any], config: dict[str, int], **changes: Any) -> tuple[Tuned, OnCpu]:
    one, inner = described(kernel, **changes), OnCpu(compute)
    made = Tuned(inner, one._described, one.folder)
    made._winners = tuple(Best(sizes, config, 1.0, "image") for sizes in one._declared.shapes)
    return made, inner


def thrice(x: Any, out: Any, **_: Any) -> None:
    out.copy_(3 * x)


@pytest.fixture
def wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tuned, OnCpu]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch._dynamo.reset()
    inputs, space = {"x": "fp32[n]", "bias": None, "WIDTH": 8}, {"BLOCK": (64,), "num_warps": (1,)}
    return tuned(kernels.wrapped, thrice, {"BLOCK": 64, "num_warps": 1}, inputs=inputs, space=space)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_call_is_one_operator_of_the_graph(wrapped: tuple[Tuned, OnCpu], backend: str) -> None:
    """There is no graph break, and the same graph serves other sizes; functionalisation keeps what is written."""
    one, inner = wrapped

    def function(x: Any) -> Any:
        out = torch.empty_like(x)
        one(x + 1, out)
        return 2 * out

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for count in (1000, 500, 700):
        x = torch.randn(count)
        torch.testing.assert_close(compiled(x), 6 * (x + 1))
    assert inner.launched == 3


def test_what_is_updated_is_written_in_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is read and written, by name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def add(x: Any, y: Any, out: Any, **_: Any) -> None:
        out.copy_(x)
        x += y

    one, _ = tuned(kernels.accumulate, add, {"BLOCK": 64}, **UPDATED | {"reference": of_updated})

    def function(x: Any, y: Any) -> Any:
        out = torch.empty_like(x)
        one(out=out, x=x, y=y)
        return out + x

    x, y = torch.randn(1024), torch.randn(1024)
    before = x.clone()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y), 2 * before + y)
    torch.testing.assert_close(x, before + y)


def test_wrong_calls_are_named(wrapped: tuple[Tuned, OnCpu]) -> None:
    """Names when the call is traced; types and sizes when the operator runs."""
    one, inner = wrapped
    x, out = torch.randn(64), torch.empty(64)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: one(x), "wrapped: out is not given"),
        (lambda: one(x, out, y=x), "wrapped: it takes x, out"),
        (lambda: one(x[:3], out), "wrapped: out has n 64, others have 3"),
    ]
    for call, message in calls:
        with pytest.raises(Exception, match=message):  # torch's own, or ours
            torch.compile(call, backend="eager", fullgraph=True)()
    assert inner.launched == 0


def test_a_kernel_that_is_not_there_is_named(wrapped: tuple[Tuned, OnCpu]) -> None:
    """A graph, which torch may keep on disk, has a kernel's key and not the kernel."""
    assert graph.LAUNCHED[wrapped[0]._key] is wrapped[0]
    with pytest.raises(RuntimeError, match=r"absent-1: this process has no such kernel of aotriton\.autotune"):
        graph.operator()("absent-1", [torch.empty(1)], [], [])
