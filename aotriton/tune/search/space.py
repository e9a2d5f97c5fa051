"""The space of a search, and all that is known about it before it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

COST = "cost"  # the fact that says roughly how much longer one config takes than another, before any is measured
WARP = "warp"  # the only fact that depends on more than the tile: what of it is a warp's part
Config = tuple[
    tuple[str, int], ...
]  # tunables, then compile options, in the description's order, as an ImageSpec has them


@dataclass(frozen=True)
class Trial:
    """The result of a config: a measurement's status, and the median time in µs where that is ``ok``.

    ``facts`` are those of the compiled image, where they are known: registers, shared, spills, instructions.
    """

    config: Config
    status: str
    median_us: float | None = None
    facts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.median_us is not None and self.median_us > 0):
            raise ValueError(f"{self.config}: status {self.status!r} with a median of {self.median_us} µs")


@dataclass(frozen=True)
class Past:
    """Another problem of the same kernel: its features, and what is known of its configs. Times in µs."""

    features: Mapping[str, float]
    medians: Mapping[Config, float]
    failed: frozenset[Config] = frozenset()
    facts: Mapping[Config, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchSpace:
    """The candidates of one problem. ValueError where a config is not of the parameters, or is there twice.

    ``parameters``: the ordered values of each, in the order that configs have. ``defaults``: of those parameters that
    have one. ``features``: numbers that distinguish the problem from others of the kernel. ``facts``: numbers that are
    known of a config before it is measured, the same ones for each config that has any. ``history``: the kernel's
    other problems.
    """

    configs: tuple[Config, ...]
    parameters: Mapping[str, tuple[int, ...]]
    defaults: Mapping[str, int] = field(default_factory=dict)
    features: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[Config, Mapping[str, float]] = field(default_factory=dict)
    history: tuple[Past, ...] = ()

    def __post_init__(self) -> None:
        names, known = tuple(self.parameters), {name: set(values) for name, values in self.parameters.items()}
        if not self.configs:
            raise ValueError("a search space needs a config")
        for config in self.configs:
            if tuple(name for name, _ in config) != names:
                raise ValueError(f"{config}: expected the parameters {names}")
            if wrong := [(name, value) for name, value in config if value not in known[name]]:
                raise ValueError(f"{config}: no values of the space: {wrong}")
        if len(self.known) != len(self.configs):
            raise ValueError("a config is there twice")

    @cached_property
    def known(self) -> frozenset[Config]:
        return frozenset(self.configs)

    @cached_property
    def default(self) -> Config:
        """The config with the fewest parameters off their defaults; of several, one of middling values."""

        def distance(config: Config) -> tuple[int, float]:
            off = sum(value != self.defaults.get(name, value) for name, value in config)
            indices = [(self.parameters[name].index(value), len(self.parameters[name]) - 1) for name, value in config]
            return off, sum(abs(index / last - 0.5) for index, last in indices if last)

        return min(self.configs, key=distance)

    def neighbours(self, config: Config) -> list[Config]:
        """The configs one step away: one parameter at its next larger or smaller value that gives a config."""
        found = []
        for index, (name, value) in enumerate(config):
            values = self.parameters[name]
            at = values.index(value)
            for way in (values[at + 1 :], values[:at][::-1]):
                steps = ((*config[:index], (name, other), *config[index + 1 :]) for other in way)
                found += [step for step in steps if step in self.known][:1]
        return found

    def lines(self, config: Config) -> Iterator[Config]:
        """The configs that differ in a single parameter, whatever its value."""
        for index, (name, value) in enumerate(config):
            for other in self.parameters[name]:
                step = (*config[:index], (name, other), *config[index + 1 :])
                if other != value and step in self.known:
                    yield step

    def diagonal(self, config: Config) -> Iterator[Config]:
        """The configs two steps away: two parameters, each at the value next to its own."""
        moves = []
        for index, (name, value) in enumerate(config):
            values = self.parameters[name]
            at = values.index(value)
            moves += [(index, (name, values[to])) for to in (at - 1, at + 1) if 0 <= to < len(values)]
        for (first, one), (second, other) in combinations(moves, 2):
            if first != second:
                step = list(config)
                step[first], step[second] = one, other
                if tuple(step) in self.known:
                    yield tuple(step)
