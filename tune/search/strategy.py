"""What a search is: a strategy is asked for configs to try, and told what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Config = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Trial:
    config: Config
    status: str
    median_us: float | None
    facts: Mapping[str, float] = field(default_factory=dict)


class Strategy(Protocol):
    def ask(self, count: int) -> list[Config]: ...

    def tell(self, trials: Sequence[Trial]) -> None: ...

    @property
    def finished(self) -> bool: ...
