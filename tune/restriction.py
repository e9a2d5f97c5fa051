"""What a restriction of the tuner's space is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aotriton.rules.kernel import Functional

ELEMENT = 2  # bytes of fp16 and bf16

Config = Mapping[str, int]


@dataclass(frozen=True)
class Restriction:
    """``applies`` says whether a config (psels and copts) is not worth trying in a functional and bin."""

    why: str
    applies: Callable[[Functional, Mapping[str, int], Config], bool]
