"""Providers: who compiles a kernel that is not Triton's."""

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
    """``module`` is a ``Compiler``, ``version`` what it called itself when the kernel was described: measurements are
    tied to it. The kernel's source is <function>.<suffix> beside the family's other kernels. ``called``: there is
    nothing to compile; an image is a Python function, which the tuner calls and no build can have.
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
    """What a provider's module has."""

    def version(self) -> str:
        """Of the compiler that is here. RuntimeError where there is none, and what to do about it."""

    def parameters(self, name: str, source: str, space: Collection[str]) -> Sequence[tuple[str, str]]:
        """What kernel ``name`` takes, in its order: names, and types as "*bf16", "i32", "i64" or "fp32". ValueError
        where images of it cannot be launched, or have no use for a name in ``space``, of which configs are made.
        """

    def compile(self, spec: ImageSpec, source: Path) -> tuple[bytes, dict[str, Any]]:
        """The cubin or hsaco of ``spec``, and of it: "entry", its function's name; "threads" of a program; "shared",
        bytes of dynamic shared memory; "registers" of a thread; "spills" and "stack", bytes that cost time if not 0;
        "serialised", if it is known, ptxas' codes of products that wait for each other.
        RuntimeError with the compiler's message.
        """
