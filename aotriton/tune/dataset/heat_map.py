"""The heat maps of a report: the winners of a functional over its tuning keys, and how fast each is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product as combinations

from aotriton.rules.binning import bin_text
from aotriton.rules.database.rows import Winner
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional
from aotriton.rules.operators import Operator
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import scalars_of

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Square:
    """A cell of a heat map; ``share`` is its value over the map's best, None where nothing was measured."""

    text: str
    title: str
    share: float | None = None


@dataclass(frozen=True)
class Map:
    """The winners of a functional over two tuning keys, the others held at ``fixed``."""

    fixed: str
    columns: tuple[int, ...]
    rows: tuple[tuple[int, tuple[Square, ...]], ...]


@dataclass(frozen=True)
class Functionals:
    """The maps of one functional on one product, and the configs that its letters stand for, with their cells."""

    name: str
    maps: tuple[Map, ...]
    configs: tuple[tuple[str, str, int], ...]


def functional_maps(operator: Operator | None, functional: Functional, winners: Mapping[str, Winner]) -> Functionals:
    """The maps of the functional with these ``winners`` by bin. They show TFLOP/s where an ``operator`` is given."""
    kernel = functional.kernel
    specs = {bin: ImageSpec.parse(functional, one.config).config for bin, one in _fitting(functional, winners)}
    counts = Counter(specs.values())
    letters = {config: _letter(index) for index, (config, _) in enumerate(counts.most_common())}
    values = {bin: _value(operator, functional, winners[bin]) for bin in specs}
    known = [value for value in values.values() if value is not None]
    best = max(known, default=1.0) if operator else min(known, default=1.0)
    keys = kernel.tuning_keys
    # Rows and columns are the first two keys; a kernel with fewer has one row, or one column, too.
    row_key, column_key = (keys[0] if keys else None), (keys[1] if len(keys) > 1 else None)
    maps = []
    for fixed in combinations(*(key.representatives for key in keys[2:])):
        rows = []
        for row in row_key.representatives if row_key else (0,):
            squares = []
            for column in column_key.representatives if column_key else (0,):
                bin = bin_text(keys, (row, column, *fixed)[: len(keys)])
                if bin not in specs:
                    squares.append(Square("", f"{bin}: borrowed from another bin"))
                    continue
                value, letter, title = values[bin], letters[specs[bin]], _title(winners[bin], specs[bin])
                if value is None:
                    squares.append(Square(letter, title))
                else:
                    share = value / best if operator else best / value
                    squares.append(Square(f"{letter} {value:.3g}", title, share))
            rows.append((row, tuple(squares)))
        named = " ".join(f"{key.name}={value}" for key, value in zip(keys[2:], fixed, strict=True))
        maps.append(Map(named, column_key.representatives if column_key else (0,), tuple(rows)))
    legend = tuple((letters[config], config, count) for config, count in counts.most_common())
    return Functionals(str(functional), tuple(maps), legend)


def _title(winner: Winner, config: str) -> str:
    """What a square says of its winner: bin, config, time with its interval, provenance and shape."""
    title = f"{winner.bin}: {config}" + (f", {winner.median_us:.4g} µs" if winner.median_us else "")
    title += f" ({winner.low_us:.4g} to {winner.high_us:.4g})" if winner.low_us else ""
    title += f", {winner.provenance}" + (f" on {winner.measured}" if winner.measured else "")
    return title + (f", of {_readable(winner.shape)}" if winner.shape else "")


def _letter(index: int) -> str:
    """A, B, ... z, A1, B1, ..."""
    again, letter = divmod(index, len(LETTERS))
    return LETTERS[letter] + (str(again) if again else "")


def _fitting(functional: Functional, winners: Mapping[str, Winner]) -> Iterable[tuple[str, Winner]]:
    """The winners whose config the kernel's description still has."""
    for bin, winner in winners.items():
        try:
            ImageSpec.parse(functional, winner.config)
        except ValueError:
            continue
        yield bin, winner


def _value(operator: Operator | None, functional: Functional, winner: Winner) -> float | None:
    """TFLOP/s where the operator counts its operations, else microseconds; None where neither is known."""
    if winner.provenance != "measured" or not winner.median_us:
        return None
    if operator is None or operator.flops is None:
        return winner.median_us
    if not winner.shape:
        return None
    sizes = tuning(operator.family).sizes(json.loads(winner.shape))
    scalars = dict.fromkeys((one.name for one in operator.scalars), 0) | scalars_of(functional, sizes)
    return evaluate(operator.flops, Environment(sizes, scalars=scalars)) / winner.median_us / 1e6


def _readable(shape: str) -> str:
    return " ".join(f"{name} {value}" for name, value in json.loads(shape).items())
