"""Launches of Triton's JIT, with scratch memory where a kernel needs any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any


def with_scratch(launch: Callable[..., None], arguments: Mapping[str, Any]) -> None:
    """Calls ``launch``, a launch of Triton's JIT, with scratch memory from torch for as many bytes as it asks for.

    torch hands the memory to another tensor as soon as the launch returns, while the kernel may still run: that is
    safe, because it is memory of the current stream, on which the JIT launches, and what comes next on this stream
    runs behind the kernel. While a graph is captured, torch takes the memory from the graph's own pool, which lives as
    long as the graph does, so that replays have it. An allocator that the program has set with
    ``triton.set_allocator`` is there again after the call.
    """

    def call() -> None:
        import triton

        triton.set_allocator(_allocated)
        launch(**arguments)

    copy_context().run(call)  # Triton keeps its allocator in the context


def _allocated(size: int, alignment: int, stream: int | None) -> Any:
    """Memory of the current device and stream, which are the launch's: ``stream``. torch aligns all to 512 bytes, more
    than Triton asks for.
    """
    import torch

    return torch.empty(size, dtype=torch.uint8, device="cuda")
