"""Handles on strategies: in this process where a step costs nothing, in another one where the strategy learns."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from aotriton.tune.search.space import Config, Trial
from aotriton.tune.search.strategy import Strategy


@dataclass(frozen=True)
class Step:
    """The result of a step: the configs that the strategy asks for, whether these were all, the config that it prefers
    to others that are as fast, and the configs that it is likely to ask for next.
    """

    asked: list[Config]
    finished: bool
    winner: Config | None = None
    likely: Sequence[Config] = ()


def step(strategy: Strategy, trials: Sequence[Trial], count: int) -> Step:
    strategy.tell(trials)
    asked = strategy.ask(count) if count else []
    return Step(asked, strategy.finished, getattr(strategy, "winner", None), strategy.likely)


class StrategyHandle:
    """A strategy of this process, which is asked step by step."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def step(self, trials: Sequence[Trial], count: int) -> Future[Step]:
        """Tells the strategy the trials, and asks it for up to ``count`` configs."""
        done: Future[Step] = Future()
        done.set_result(step(self._strategy, trials, count))
        return done


class StrategyProcesses:
    """Processes that run strategies, so that many can learn while the coordinator goes on."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")  # this process has threads
        self._processes = [ProcessPoolExecutor(1, context, initializer=_prepare) for _ in range(count)]
        for process in self._processes:
            process.submit(_wake)  # it starts now, not when there is a strategy
        self._numbers = itertools.count()

    def add(self, make: Callable[..., Strategy], *arguments: object) -> StrategyHandle:
        """The handle of ``make(*arguments)``, which is called in one of the processes."""
        number = next(self._numbers)
        process = self._processes[number % len(self._processes)]
        process.submit(_make, number, make, arguments)
        return _ProcessHandle(process, number)

    def close(self) -> None:
        for process in self._processes:
            process.shutdown(wait=False, cancel_futures=True)


class _ProcessHandle(StrategyHandle):
    def __init__(self, process: Executor, number: int) -> None:
        self._process, self._number = process, number

    def step(self, trials: Sequence[Trial], count: int) -> Future[Step]:
        return self._process.submit(_step, self._number, list(trials), count)


_strategies: dict[int, Strategy] = {}


def _wake() -> None:
    """Does nothing, but in a process that has started."""


def _prepare() -> None:
    """Imports what models need while the first configs, which need none, are compiled and measured. Ends this process
    with its parent, also where that is killed.
    """
    threading.Thread(target=_import, args=("sklearn.ensemble",), daemon=True).start()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _import(module: str) -> None:
    with suppress(ImportError):  # a strategy that needs it will say so
        importlib.import_module(module)


def _make(number: int, make: Callable[..., Strategy], arguments: tuple[object, ...]) -> None:
    _strategies[number] = make(*arguments)


def _step(number: int, trials: Sequence[Trial], count: int) -> Step:
    made = step(_strategies[number], trials, count)
    if made.finished:
        del _strategies[number]
    return made
