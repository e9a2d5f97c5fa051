"""The values of triton.heuristics: what they say of every call that a declaration describes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from aotriton.rules.kernel import Operand
from aotriton.tune.problem.dtypes import torch_dtype

Function = Callable[[Mapping[str, object]], object]


class _Arguments(dict[str, object]):
    """The arguments of a call, which notes those that are read."""

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> object:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: object = None) -> object:
        self.read.add(name)
        return super().get(name, default)


def evaluated(
    functions: Mapping[str, Function], constants: Mapping[str, object], operands: Mapping[str, Operand], other: set[str]
) -> dict[str, object]:
    """The value of each of the heuristics, in their order; one may read those before.

    ``constants`` are the arguments that all calls have in common; the ``other`` ones differ between calls or configs.
    ValueError names a heuristic that reads one of these, or the sizes of a tensor: its value would be right for some
    calls only.
    """
    found: dict[str, object] = {}
    for name, function in functions.items():
        arguments, failed = _Arguments({**constants, **{one: _tensor(of) for one, of in operands.items()}, **found}), ""
        try:
            found[name] = function(arguments)
        except Exception as error:  # it is the user's function, which may raise anything
            failed = f"{type(error).__name__}: {error}"
        read = arguments.read & (other | (operands.keys() if failed else set()))
        if read:
            raise ValueError(
                f"{name}: its heuristic reads {', '.join(sorted(read))}, which differs between calls or configs: say in"
                f" inputs or in space what {name} is"
            )
        if failed:
            raise ValueError(f"{name}: its heuristic failed: {failed}")
    return found


def _tensor(operand: Operand) -> Any:
    """What stands for a tensor: it has a type, and no sizes."""
    if "torch" not in sys.modules:
        return SimpleNamespace()
    import torch

    return torch.empty((), dtype=torch_dtype(operand.dtype), device="meta")
