"""From something that can be launched to samples in microseconds: how often, in what order, with what in the caches."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median

BUDGET_US = 15_000.0  # GPU time for one candidate's sweep
OVERHEAD_US = 100.0  # of one repetition: the L2 flush
FIRST, FEWEST, MOST = 3, 5, 25  # repetitions: before a slow candidate is given up, of any other, of a very fast one
HOPELESS = 1.5  # times the best so far

ROUNDS = 15


def sweep(time: Callable[[int], Sequence[float]], best_us: float | None) -> list[float]:
    """Samples of one candidate, about BUDGET_US of them; only the first few where it cannot win against ``best_us``.

    ``time(n)`` gives n samples in microseconds. The caller has launched the candidate before: that was the warm-up.
    """
    samples = list(time(FIRST))
    typical = median(samples)
    if best_us is not None and typical > HOPELESS * best_us:
        return samples
    repetitions = min(MOST, max(FEWEST, int(BUDGET_US / (typical + OVERHEAD_US))))
    return samples + list(time(repetitions - FIRST))


def race(time: Callable[[str], float], names: Sequence[str], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Samples of each of ``names``, taken in turns in an order shuffled anew each round.

    So drift of clocks and temperature hits all alike. The order is the same on each call: a race can be repeated.
    """
    order, shuffle = list(names), random.Random(0).shuffle
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            samples[name].append(time(name))
    return samples


class GpuClock:
    """Times launches on the current GPU with events, L2 flushed before each."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        # At least twice L2, and long enough (some 80 µs on an H100) that the host has enqueued the launch and both
        # events before the flush ends: the time between the events is then the kernel's alone.
        self._flush = torch.empty(max(2 * l2, 256 << 20), dtype=torch.int8, device="cuda")

    def time(self, launch: Callable[[], None], repetitions: int) -> list[float]:
        """Microseconds of each of ``repetitions`` launches; waits for the GPU before it returns."""
        event = self._torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(repetitions)]
        for start, end in pairs:
            self._flush.zero_()
            start.record()
            launch()
            end.record()
        self._torch.cuda.synchronize()
        return [1000.0 * start.elapsed_time(end) for start, end in pairs]
