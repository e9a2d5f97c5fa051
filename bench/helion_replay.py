"""Helion's own search on recorded times, in a Python that has Helion: ``bench/search.py --helion`` starts it.

Reads a JSON object from standard input: ``algorithm``, a name of Helion's; ``problem``: ``parameters`` (lists of
values by name), ``default`` (a config), ``configs`` (lists of values) and ``times`` (µs of each; null where it fails);
``seeds``. Writes a JSON list to standard output, for each seed the batches: lists of indices of configs in the order in
which Helion had them measured, each config once.

The search is Helion's, through its interface for kernels that are not its own (``helion.autotuner.external``), with its
default settings. Replaced is what needs a GPU: the provider of benchmarks, and the function that times again, are ones
that look times up; and its random configs are drawn from the problem's, as it cannot be told which combinations there
are. Another one that it comes to counts as a failure, and is not in the batches.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from math import inf
from typing import Any

import numpy
import torch
from helion import Config
from helion.autotuner import EnumFragment, IntegerFragment, PowerOfTwoFragment, search_algorithms
from helion.autotuner.benchmark_provider import BenchmarkProvider, BenchmarkResult
from helion.autotuner.external import _ExternalKernelAdapter, create_user_config_spec

Values = tuple[int, ...]


def fragment(values: list[int], default: int) -> Any:
    """A parameter as Helion knows it: a range of powers of two or of integers where it is one, else a choice."""
    if len(values) > 1 and values == list(range(values[0], values[-1] + 1)):
        return IntegerFragment(values[0], values[-1], default)
    if (
        len(values) > 1
        and all(value.bit_count() == 1 for value in values)
        and values[-1] == values[0] << len(values) - 1
    ):
        return PowerOfTwoFragment(values[0], values[-1], default)
    return EnumFragment((default, *(value for value in values if value != default)))


class Replay(BenchmarkProvider):
    """Times of one problem, by config; it remembers what was asked for."""

    names: list[str]
    times: dict[Values, float]
    indices: dict[Values, int]
    batches: list[list[int]]

    def __init__(self, **_: Any) -> None:
        self.mutated_arg_indices: list[int] = []
        self._asked: set[Values] = set()

    def setup(self) -> None:
        """Nothing is needed."""

    def cleanup(self) -> None:
        """Nothing is left."""

    def benchmark(self, configs: list[Any], **_: Any) -> list[BenchmarkResult]:
        batch: list[int] = []
        results = []
        for config in configs:
            values = tuple(int(config[name]) for name in self.names)
            if values in self.indices and values not in self._asked:
                batch.append(self.indices[values])
            self._asked.add(values)
            ms = self.times.get(values, inf) / 1e3
            status = "ok" if ms < inf else "error"
            results.append(BenchmarkResult(config, lambda ms=ms: ms, ms, status, 0.0))
        if batch:
            self.batches.append(batch)
        return results


def again(functions: list[Any], **_: Any) -> list[float]:
    """The times of what is timed again, in ms."""
    return [function() for function in functions]


def run(algorithm: str, problem: dict[str, Any], seed: int) -> list[list[int]]:
    names = list(problem["parameters"])
    configs = [tuple(config) for config in problem["configs"]]
    known = {config: time for config, time in zip(configs, problem["times"], strict=True) if time is not None}
    indices = {config: place for place, config in enumerate(configs)}
    own: type[Replay] = type("Own", (Replay,), {"names": names, "times": known, "indices": indices, "batches": []})
    tunables = {name: fragment(problem["parameters"][name], problem["default"][name]) for name in names}
    random.seed(seed)
    numpy.random.seed(seed)
    kernel = _ExternalKernelAdapter(
        create_user_config_spec(tunables),
        lambda config: config,
        (),
        device=torch.device("cpu"),
        autotune_random_seed=seed,
        autotune_benchmark_fn=again,
        autotune_progress_bar=False,
        autotune_log_level=logging.CRITICAL,
    )
    search = search_algorithms[algorithm](kernel, ())
    search._benchmark_provider_cls = own
    generator = search.config_gen
    generator.random_flat = lambda: generator.flatten(Config(**dict(zip(names, random.choice(configs), strict=True))))
    search.autotune()
    return own.batches


def main() -> None:
    asked = json.load(sys.stdin)
    started = time.perf_counter()
    found = [run(asked["algorithm"], asked["problem"], seed) for seed in asked["seeds"]]
    print(f"{asked['algorithm']}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
