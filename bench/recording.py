"""Recordings: tuning problems whose configs were all compiled, and timed twice or three times, for replays.

Needs nothing but Python.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from stored import compressed

NEAR = 1.5  # times the best: what the noise is told of

Config = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Recording:
    """One problem. What is told of configs has the order of ``configs``; times are None where a pass gave none.

    ``passes``: median microseconds, drift divided out: A, which a search sees, B, which it is judged by, and where
    there is a third one C, the race of what is fastest on A. ``noise``: see the function. ``measure_s`` and
    ``compile_s``: wall seconds of a pass's child process and of one compiler. ``parameters``: the values of the rich
    space in their order, of tunables and compile options; ``defaults`` those that a name leaves out. ``facts``:
    registers, shared (bytes), spills and instructions of the image, or nothing of one that was not made. ``statuses``:
    ok, compile_failed, pruned, wrong, crashed or timed_out, if only in one pass. ``features``: the sizes and the tuning
    keys at this shape.
    """

    name: str
    kernel: str
    arch: str
    functional: str
    bin: str
    shape: Mapping[str, int]
    features: Mapping[str, float]
    product: str
    driver: str
    triton: str
    torch: str
    date: str
    parameters: Mapping[str, Sequence[int]]
    defaults: Mapping[str, int]
    configs: Sequence[Config]
    statuses: Sequence[str]
    facts: Sequence[Mapping[str, int]]
    compile_s: Sequence[float]
    measure_s: Sequence[Sequence[float]]
    passes: Sequence[Sequence[float | None]]
    noise: float

    def __post_init__(self) -> None:
        if len(self.passes) not in (2, 3) or len(self.measure_s) != len(self.passes):
            raise ValueError(f"there must be two passes or three, not {len(self.passes)} and {len(self.measure_s)}")
        of_configs = (self.statuses, self.facts, self.compile_s, *self.measure_s, *self.passes)
        if any(len(column) != len(self.configs) for column in of_configs):
            raise ValueError(f"of {len(self.configs)} configs it tells of {[len(column) for column in of_configs]}")
        names = list(self.parameters)
        if any([name for name, _ in config] != names for config in self.configs):
            raise ValueError(f"a config has other parameters than {names}")


def noise(passes: Sequence[Sequence[float | None]]) -> float:
    """Median relative difference of the first two passes among what is within NEAR of the first one's best.

    What all of a pass takes longer is left out: that is another GPU, and no ranking sees it. 0 where nothing was timed.
    """
    pairs = [(a, b) for a, b in zip(*passes[:2], strict=True) if a is not None and b is not None]
    best = min((a for a, _ in pairs), default=0.0)
    ratios: list[float] = [b / a for a, b in pairs if a <= NEAR * best]
    if not ratios:
        return 0.0
    middle = median(ratios)
    return median(abs(ratio / middle - 1) for ratio in ratios)


def path_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.json.xz"


def save(recording: Recording, folder: Path) -> Path:
    """Writes ``<name>.json.xz``, whole or not at all, and returns its path. Configs and facts lie there by column, and
    seconds are rounded, as so much is noise: these files are a part of every checkout.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, recording.name)
    told = asdict(recording)
    told["configs"] = [*zip(*[[value for _, value in config] for config in recording.configs], strict=True)]
    names = sorted({name for facts in recording.facts for name in facts})
    told["facts"] = {name: [facts.get(name) for facts in recording.facts] for name in names}
    told["compile_s"] = [round(seconds, 3) for seconds in recording.compile_s]
    told["measure_s"] = [[round(seconds, 4) for seconds in of_pass] for of_pass in recording.measure_s]
    new = path.with_name(path.name + ".new")
    new.write_bytes(compressed(json.dumps(told, separators=(",", ":"))))
    new.replace(path)
    return path


def load(folder: Path) -> list[Recording]:
    """Every recording of a folder, by name. ValueError names a file that is none; so where there are none at all."""
    paths = sorted(folder.glob("*.json.xz"))
    if not paths:
        raise ValueError(f"{folder}: there are no recordings")
    return [_read(path) for path in paths]


def _read(path: Path) -> Recording:
    try:
        told: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
        names = tuple(told["parameters"])
        told["configs"] = [tuple(zip(names, values, strict=True)) for values in zip(*told["configs"], strict=True)]
        of_facts = [dict(zip(told["facts"], row, strict=True)) for row in zip(*told["facts"].values(), strict=True)]
        facts = [{name: value for name, value in row.items() if value is not None} for row in of_facts]
        told["facts"] = facts or [{} for _ in told["configs"]]
        wanted = {field.name for field in fields(Recording)}
        if told.keys() != wanted:
            raise ValueError(f"its fields differ: {sorted(told.keys() ^ wanted)}")
        return Recording(**told)
    except (lzma.LZMAError, EOFError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a recording: {type(error).__name__}: {error}") from error
