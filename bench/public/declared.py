"""A declared kernel of a public package."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Declared:
    """A kernel, by module and name, and what declares it: a function that returns the arguments of
    ``aotriton.autotune`` but for the kernel and its space, and, without them, the space as a grid.

    ``author``: the config that the package takes for a call of these sizes. If the kernel has configs within
    triton.autotune, these are the author's, each with ``author``. ``small``: sizes for Triton's interpreter.
    """

    module: str
    kernel: str
    declaration: Callable[[], Arguments]
    space: Mapping[str, Sequence[Any]]
    author: Config
    small: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.declaration.__name__

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def lines(self) -> int:
        """How many lines the declaration takes, with its reference, what prepares its inputs, and its space."""
        made = self.declaration()
        functions = [self.declaration, made["reference"], *([made["prepare"]] if "prepare" in made else [])]
        return sum(len(inspect.getsource(one).rstrip().splitlines()) for one in functions)

    def found(self) -> Any:
        """The kernel as its package has it. ImportError or AttributeError where it has not."""
        return getattr(importlib.import_module(self.module), self.kernel)


KERNELS: list[Declared] = []


def public(
    module: str, kernel: str, author: Config, small: Mapping[str, int], **space: Sequence[Any]
) -> Callable[[Callable[[], Arguments]], Declared]:
    """Declares a kernel of a public package: see ``Declared``."""

    def declared(declaration: Callable[[], Arguments]) -> Declared:
        KERNELS.append(Declared(module, kernel, declaration, space, author, small))
        return KERNELS[-1]

    return declared
