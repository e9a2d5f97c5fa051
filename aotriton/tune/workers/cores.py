"""The cores that launch: a host that stalls while it enqueues makes samples that do not count."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence


def launch_cores(gpus: Sequence[str]) -> list[int | None]:
    """A core for each GPU's child: GPU 0 has the last one that this process may use, GPU 1 the one before it, so that
    tuners of different GPUs use different cores. None for all where no core would be left for the compilers.
    """
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    indices = [int(gpu) if gpu.isdigit() else index for index, gpu in enumerate(gpus)]
    fits = len(set(indices)) == len(indices) and max(indices) + 1 < len(cores)
    return [cores[index] if fits else None for index in indices]


def pin(core: int | None) -> None:
    """Keeps this thread, and what it starts from now on, to the core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def leave(cores: Collection[int | None]) -> None:
    """Keeps this thread, and what it starts from now on, off the cores."""
    if rest := os.sched_getaffinity(0) - set(cores):
        os.sched_setaffinity(0, rest)
