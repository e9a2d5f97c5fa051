"""Providers: the compilers of kernels that are not Triton's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aotriton.rules.checked import identifier

if TYPE_CHECKING:
    from aotriton.rules.image import ImageSpec


@dataclass(frozen=True)
class Provider:
    """The compiler of a kernel: ``module`` is a ``Compiler``.

    ``version`` is the compiler's version when the kernel was described; measurements belong to this version. The
    kernel's source is <function>.<suffix> beside the family's other kernels. ``called``: nothing is compiled; an image
    is a Python function, which the tuner calls and no build can contain.
    """

    module: str
    version: str
    suffix: str
    called: bool = False

    def __post_init__(self) -> None:
        for part in self.module.split("."):
            identifier("a part of a provider's module", part)
        if not self.version or not self.suffix.isalnum():
            raise ValueError(f"provider {self.module}: version and suffix must be given, got {self}")


class Compiler(Protocol):
    """The functions of a provider's module."""

    def version(self) -> str:
        """The version of the installed compiler; RuntimeError, with advice, if there is none."""

    def parameters(self, name: str, source: str, space: Collection[str]) -> Sequence[tuple[str, str]]:
        """The kernel's arguments in order: names, and types such as "*bf16", "i32", "i64" or "fp32".

        ValueError if its images cannot be launched, or do not use a name in ``space``, which has the names of configs.
        """

    def compile(self, spec: ImageSpec, source: Path) -> tuple[bytes, dict[str, Any]]:
        """The cubin or hsaco of ``spec``, and its metadata.

        The metadata are "entry", the function's name; "threads" of a program; "shared", bytes of dynamic shared memory;
        "registers" of a thread; "spills" and "stack", bytes that cost time if not 0; "serialised", if known, ptxas'
        codes of products that wait for each other. RuntimeError has the compiler's message.
        """
