"""A kernel's file, run by Triton's interpreter on tensors of the CPU: in a process that has no other Triton."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def run(path: Path, kernel: str, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors among the kernel's arguments after a launch."""
    spec = importlib.util.spec_from_file_location(kernel, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _complete(module)
    function = getattr(module, kernel)
    constants = {name for name, kind in function.fn.__annotations__.items() if "constexpr" in str(kind)}
    floats = {name for name, value in arguments.items() if type(value) is float and name not in constants}
    given = {name: _number(value, "float32") if name in floats else value for name, value in arguments.items()}
    function[grid](**given)
    return {name: value for name, value in arguments.items() if hasattr(value, "shape")}


def _complete(module: ModuleType) -> None:
    """Gives the module what the interpreter lacks: libdevice, and loops over whole numbers that are tensors."""
    from triton import language as tl

    own = {"rsqrt": lambda x: tl.rsqrt(x), "tanh": lambda x: 2 * tl.sigmoid(2 * x) - 1}
    vars(module).update({name: function for name, function in own.items() if name in vars(module)})
    vars(module)["range"] = lambda *bounds: (_number(one, "int32") for one in range(*map(int, bounds)))


def _number(value: float, dtype: str) -> Any:
    """A number as compiled kernels have it."""
    import numpy as np
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    kind = getattr(tl, dtype)
    return tl.core.tensor(TensorHandle(np.array([value], dtype=dtype), kind), kind)
