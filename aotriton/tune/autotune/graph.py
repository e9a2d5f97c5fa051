"""Tuned kernels in the graphs of torch.compile: one operator of torch, which launches any of them by its key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

# By their keys. A key follows from the kernel and its description: graphs that torch keeps on disk have it.
LAUNCHED: WeakValueDictionary[str, Any] = WeakValueDictionary()


def is_compiling() -> bool:
    """Whether torch.compile traces the caller."""
    if "torch" not in sys.modules:
        return False
    import torch

    return bool(torch.compiler.is_compiling())


@cache
def operator() -> Callable[..., None]:
    """``aotriton_autotuned::launch(key, results, inputs, numbers)``, which writes the results. Defines it in torch when
    it is first asked for, which must not be while torch.compile traces.
    """
    import torch

    def launch(
        key: str, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[float]
    ) -> None:
        if key not in LAUNCHED:
            raise RuntimeError(f"{key}: this process has no such kernel of aotriton.autotune, or dropped it")
        LAUNCHED[key].launch_in_order(results, inputs, numbers)

    # The types of its arguments are torch's, which no module here may name outside of functions.
    types = {"key": str, "results": Sequence[torch.Tensor], "inputs": Sequence[torch.Tensor]}
    launch.__annotations__ = {**types, "numbers": Sequence[float], "return": None}
    made: Any = torch.library.custom_op("aotriton_autotuned::launch", launch, mutates_args=("results",))
    made.register_fake(lambda key, results, inputs, numbers: None)
    found: Callable[..., None] = torch.ops.aotriton_autotuned.launch
    return found
