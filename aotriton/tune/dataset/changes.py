"""The changes between two states of a database: cells whose winner has another config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

from aotriton.rules.database.rows import Winner
from aotriton.rules.image import config_values

Key = tuple[str, str, str, str, str]  # arch, product, kernel, functional and bin of a winner


@dataclass(frozen=True)
class Change:
    """A cell whose winner has changed; ``ratio`` is the new one's time over that of the old one."""

    cell: str
    differs: str  # what the two configs differ in
    ratio: float


def changed(before: Mapping[Key, Winner], now: Mapping[Key, Winner]) -> list[Change]:
    """The cells that have another config in each of the two, those first whose time changed most."""
    found = []
    for key in before.keys() & now.keys():
        old, new = (config_values(one.config) for one in (before[key], now[key]))
        if old != new:
            values = {name: (old.get(name, ""), new.get(name, "")) for name in {**old, **new}}
            differs = ", ".join(f"{name} {was} → {value}" for name, (was, value) in values.items() if was != value)
            found.append(Change(" ".join(key[1:]), differs, now[key].median_us / before[key].median_us))
    return sorted(found, key=lambda one: (-abs(log(one.ratio)), one.cell))
