"""Hooks of triton.autotune's configs, which set the blocks of tensor descriptors. They are not run with launches."""

from __future__ import annotations

from collections.abc import Mapping

from aotriton.tune.autotune import jit
from aotriton.tune.autotune.call import Call
from aotriton.tune.autotune.describe import Described
from aotriton.tune.autotune.user_kernel import Hook


def check_hooks(described: Described) -> None:
    """ValueError where the hook of an author's config does anything but to set blocks as ``descriptors`` has them."""
    kernel = described.kernel
    for config, hook in zip(kernel.configs, kernel.hooks, strict=True):
        if hook is not None:
            for sizes in described.declared.shapes:
                _check(described, config, hook, sizes)


def _check(described: Described, config: Mapping[str, object], hook: Hook, sizes: Mapping[str, int]) -> None:
    operator, where = described.operator, f"kernel: the pre_hook of its config {dict(config)}"
    tensors = {one.name: tuple(sizes[dim] for dim in one.dims) for one in operator.operands}
    scalars = {one.name: one.default for one in operator.scalars}
    values = {**Call(operator, scalars, sizes).values(described.constants_at(sizes)), **config}
    try:
        blocks = operator.lead.blocks(values)
    except KeyError as error:
        raise ValueError(f"descriptors: a block follows from {error}, which the config {dict(config)} lacks") from None
    try:
        found = jit.blocks_after(hook, values, tensors, blocks)
    except Exception as error:
        raise ValueError(
            f"{where} may only set the block_shape of tensors that `descriptors` names: {type(error).__name__}: {error}"
        ) from error
    for name, block in found.items():
        if block != blocks[name]:
            raise ValueError(f"{where} makes the block of {name} {block}, and `descriptors` says {blocks[name]}")
