"""Every config, in the order of the space."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from aotriton.tune.search.strategy import Config, Trial


class Exhaustive:
    def __init__(self, configs: Sequence[Config]) -> None:
        self._left = deque(configs)

    def ask(self, count: int) -> list[Config]:
        return [self._left.popleft() for _ in range(min(count, len(self._left)))]

    def tell(self, trials: Sequence[Trial]) -> None: ...

    @property
    def finished(self) -> bool:
        return not self._left
