"""The clock: from launches to samples in microseconds of the GPU's own time. How often, in what order, and what counts.

A *round* is a handful of launches, enqueued while the GPU sleeps, L2 flushed before each. A sample counts only if all
of its launch was enqueued before the GPU came to it: else it holds the host's time, too. A round at another SM clock
than those that it is compared with does not count either, and is measured again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median, median_low
from typing import Any, Protocol

HEAD_START = 3_000_000  # GPU cycles, 1.5 ms: the host enqueues a whole round while the GPU sleeps
LONGEST_HEAD_START = 16 * HEAD_START
LESS_AGAIN = 31 / 32  # of it after a round that counts: the host may have stood still just once

BUDGET_US = 15_000.0  # GPU time for one candidate's sweep
OVERHEAD_US = 400.0  # of one repetition: its part of the sleep, and the L2 flush
ROUND = 5  # launches in a round of a sweep
FIRST, FEWEST, MOST = 3, 5, 25  # samples: in the first round, of any candidate, of a very fast one
HOPELESS = 1.5  # times the best so far

ROUNDS, MOST_ROUNDS = 15, 60  # rounds of a race before it may end, and at most
RACE_BUDGET_US = 3e6  # GPU time after which a race that may end does
SURE = 3.0  # standard errors by which the leader of a race must lead the others for it to end early
PATIENCE = 4  # times the rounds that are needed, before the host is too slow to time anything

WITHIN = 1.05  # of the fastest: two timings of one image differ by 1 to 3.5 % from run to run
WITHIN_OTHERWISE = 1.13  # at another clock than the fastest's: one image took up to 8 % longer at a lower one

ONE_CLOCK = 0.02  # by how much of the usual SM clock a round may differ: a step of the clock is 15 MHz of 1,980
AGAIN = 8  # rounds at another clock that are measured again; if there are more, all of them count, and it is reported

Sample = float | None  # None: it does not count


class HostBehind(Exception):
    """The host did not keep ahead of the GPU, however long the GPU slept."""


class Clocks:
    """The SM clock after each round of a sweep or a race, in MHz, by ``read``; None where the GPU does not tell.

    They are compared with the clocks of the rounds ``before``, or with each other where there are none.
    """

    def __init__(self, read: Callable[[], int | None] = lambda: None, before: Sequence[int] = ()) -> None:
        self._read, self._before = read, before
        self.taken: list[int | None] = []

    def note(self) -> None:
        """Notes the clock of the round that has just ended."""
        self.taken.append(self._read())

    @property
    def known(self) -> list[int]:
        return [one for one in self.taken if one is not None]

    @property
    def counting(self) -> list[bool]:
        """Of each round whether it counts."""
        alike = self._alike()
        return [True] * len(alike) if alike.count(False) > AGAIN else alike

    @property
    def of_counting(self) -> int | None:
        """The clock of the rounds that count."""
        clocks = [one for one, counts in zip(self.taken, self.counting, strict=True) if counts and one is not None]
        return median_low(clocks) if clocks else None

    @property
    def remark(self) -> str:
        """What is to be said of rounds at another clock that had to count; empty where there are none."""
        alike = self._alike()
        if (off := alike.count(False)) <= AGAIN:
            return ""
        return f"{off} of {len(alike)} rounds ran at another clock than {self._usual} MHz, and all of them count"

    @property
    def _usual(self) -> int | None:
        clocks = self._before or self.known
        return median_low(clocks) if clocks else None

    def _alike(self) -> list[bool]:
        return [one_clock(one, self._usual) for one in self.taken]


def one_clock(one: int | None, other: int | None) -> bool:
    """Whether timings at these clocks compare; those at clocks that are not known do."""
    return one is None or other is None or abs(one - other) <= ONE_CLOCK * other


def sweep(time: Callable[[int], Sequence[Sample]], best_us: float | None, clocks: Clocks | None = None) -> list[float]:
    """Samples of one candidate, about BUDGET_US of them; only FEWEST where it cannot win against ``best_us``.

    ``time(n)`` gives a round of n launches. The caller has launched the candidate before: that was the warm-up.
    It is given up only if not one sample of two rounds was near the best: noise adds time, and takes none away.
    """
    clocks, rounds = clocks or Clocks(), list[list[float]]()
    samples = _counted(time, FIRST, rounds, clocks)
    samples = _counted(time, FEWEST, rounds, clocks)
    if best_us is not None and min(samples) > HOPELESS * best_us:
        return samples
    repetitions = min(MOST, max(FEWEST, int(BUDGET_US / (median(samples) + OVERHEAD_US))))
    return _counted(time, repetitions, rounds, clocks)


def may_win(samples: Sequence[float], best_us: float | None) -> bool:
    """Whether a candidate leads, or races with the one that does."""
    return best_us is None or median(samples) <= WITHIN * best_us * 1.0001  # rows have five digits


def _counted(
    time: Callable[[int], Sequence[Sample]], count: int, rounds: list[list[float]], clocks: Clocks
) -> list[float]:
    """The samples that count of ``rounds``, to which it adds until there are ``count``."""
    found: list[float] = []
    for _ in range(PATIENCE * -(-count // ROUND) + PATIENCE + AGAIN):
        found = [one for taken, counts in zip(rounds, clocks.counting, strict=True) if counts for one in taken]
        if len(found) >= count:
            return found
        rounds.append([sample for sample in time(min(ROUND, count - len(found))) if sample is not None])
        clocks.note()
    raise HostBehind(f"the host did not keep ahead of the GPU: {len(found)} of {count} samples count")


def race(
    time: Callable[[Sequence[str]], Sequence[Sample]],
    names: Sequence[str],
    rounds: int = ROUNDS,
    most: int = MOST_ROUNDS,
    clocks: Clocks | None = None,
) -> dict[str, list[float]]:
    """Samples of each of ``names``, taken in turns in an order shuffled anew each round.

    So drift of clocks and temperature hits all alike. A round counts if all of its samples do, and its clock. After
    ``rounds`` of them the race ends once one clearly leads, or it has taken long; at the latest after ``most``. The
    first round is the warm-up. The orders are the same on each call: a race can be repeated.
    """
    order, shuffle = list(names), random.Random(0).shuffle
    clocks, timed = clocks or Clocks(), list[dict[str, float]]()
    samples: dict[str, list[float]] = {name: [] for name in names}
    time(order)
    for _ in range(PATIENCE * most):
        shuffle(order)
        taken = time(order)
        if any(sample is None for sample in taken):
            continue
        timed.append(dict(zip(order, taken, strict=True)))  # type: ignore[arg-type] # none is None: see above
        clocks.note()
        counting = [one for one, counts in zip(timed, clocks.counting, strict=True) if counts]
        samples = {name: [one[name] for one in counting] for name in names}
        done = len(counting)
        spent = sum(sum(one.values()) for one in timed)
        if done >= most or (done >= rounds and (spent > RACE_BUDGET_US or decided(samples))):
            return samples
    counts = {name: len(taken) for name, taken in samples.items()}
    raise HostBehind(f"the host did not keep ahead of the GPU: {counts} samples count, {rounds} are needed of each")


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, whatever the distribution: from one of the samples to another; of none 0 to 0.

    Half of n samples lie below the true median, give or take 1.96 standard deviations of sqrt(n) / 2.
    """
    if not samples:
        return 0.0, 0.0
    ordered, count = sorted(samples), len(samples)
    below = max(0, int(count / 2 - 0.98 * count**0.5))
    return ordered[below], ordered[count - 1 - below]


def decided(samples: dict[str, list[float]]) -> bool:
    """Whether the one with the least median leads every other one, round by round, by SURE standard errors."""
    leader = min(samples, key=lambda name: median(samples[name]))
    return all(
        _surely_positive([b - a for a, b in zip(samples[leader], taken, strict=True)])
        for name, taken in samples.items()
        if name != leader
    )


def _surely_positive(differences: Sequence[float]) -> bool:
    middle = median(differences)
    # 1.48 x the median deviation is the standard deviation of normal noise, and outliers do not move it; 1.25 / sqrt(n)
    # of that is the median's standard error.
    spread = 1.48 * median(abs(difference - middle) for difference in differences)
    return bool(middle > SURE * 1.25 * spread / len(differences) ** 0.5)


class Gpu(Protocol):
    """What the clock needs of a GPU; tests put a simulated one here."""

    def sleep(self, cycles: int) -> None: ...

    def flush(self) -> None:
        """Empties L2."""

    def event(self) -> Any:
        """A torch.cuda.Event with timing, or what has its record, query and elapsed_time."""

    def synchronize(self) -> None: ...


class TorchGpu:
    """The current GPU and stream of torch."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self._memory = torch.empty(max(2 * l2, 256 << 20), dtype=torch.int8, device="cuda")

    def sleep(self, cycles: int) -> None:
        self._cuda._sleep(cycles)

    def flush(self) -> None:
        self._memory.zero_()

    def event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def synchronize(self) -> None:
        self._cuda.synchronize()


class GpuClock:
    """Times rounds of launches. Where a sample did not count, the GPU sleeps twice as long, then less again."""

    def __init__(self, gpu: Gpu | None = None) -> None:
        self._gpu: Gpu = gpu or TorchGpu()
        self._head_start = HEAD_START

    def round(
        self,
        launches: Sequence[Callable[[], object]],
        before: Sequence[Callable[[], object]] | None = None,
        restore: Sequence[Callable[[], object]] | None = None,
    ) -> list[Sample]:
        """Microseconds of each of the launches, which follow each other; waits for the GPU before it returns.

        ``before``: what is enqueued untimed before each, instead of the L2 flush. ``restore``: what
        is enqueued untimed before that.
        """
        gpu = self._gpu
        events = [(gpu.event(), gpu.event()) for _ in launches]
        ahead = []
        gpu.sleep(self._head_start)
        preludes = zip(restore or [_nothing] * len(launches), before or [gpu.flush] * len(launches), strict=True)
        for launch, (first, prelude), (start, end) in zip(launches, preludes, events, strict=True):
            first()
            prelude()
            start.record()
            launch()
            end.record()
            ahead.append(not start.query())
        gpu.synchronize()
        if all(ahead):
            self._head_start = max(int(LESS_AGAIN * self._head_start), HEAD_START)
        else:
            self._head_start = min(2 * self._head_start, LONGEST_HEAD_START)
        return [1000.0 * s.elapsed_time(e) if counts else None for (s, e), counts in zip(events, ahead, strict=True)]


def _nothing() -> None: ...
