"""Launches of Triton's JIT: scratch memory, and tensor descriptors as arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from math import prod
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


def descriptor(name: str, tensor: Any, block: Sequence[int]) -> Any:
    """The TensorDescriptor of a contiguous tensor. ValueError where Triton can describe no such tensor, as one whose
    rows do not begin at multiples of 16 bytes.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    try:
        return TensorDescriptor.from_tensor(tensor, [*block])
    except AssertionError as error:
        raise ValueError(f"{name}: it has no tensor descriptor: {error}") from error


def blocks_after(
    hook: Callable[[Mapping[str, object]], object],
    arguments: Mapping[str, object],
    tensors: Mapping[str, Sequence[int]],
    blocks: Mapping[str, Sequence[int]],
) -> dict[str, list[int]]:
    """The blocks that descriptors have when a hook was called with them, and with the other ``arguments``.

    Of ``tensors`` there are the sizes alone, and those that have ``blocks`` are descriptors. Errors of the hook pass.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    made: dict[str, Any] = {name: object() for name in tensors}
    for name, block in blocks.items():
        made[name] = one = TensorDescriptor.__new__(TensorDescriptor)  # without the checks of a tensor, which is none
        one.base, one.shape, one.block_shape, one.padding = object(), [*tensors[name]], [*block], "zero"
        one.strides = [prod(one.shape[dim + 1 :]) for dim in range(len(one.shape))]
    hook({**arguments, **made})
    return {name: [*made[name].block_shape] for name in blocks}
