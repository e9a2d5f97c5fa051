"""What the columns of flat rows hold: from what a file or the database has to a value that can be relied on.

Every function raises ValueError with the column's name where the value will not do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aotriton.rules import checked
from aotriton.rules.database.schema import Column

INT64 = range(-(2**63), 2**63)

# Beyond what its type says of a column. By its name, which means the same in every table.
CHECKS: Mapping[tuple[str, str], Callable[[str, object], object]] = {
    **{("REAL", name): checked.time_us for name in ("median_us", "low_us", "high_us", "spread")},
    ("TEXT", "config"): checked.config,
    **{("TEXT", name): checked.numbers for name in ("samples", "coefficients")},
    ("TEXT", "sha256"): checked.sha256,
    ("TEXT", "images"): checked.identifiers,
    ("TEXT", "runners_up"): checked.runners_up,
}


def sound(column: Column, value: object) -> object:
    """The value, if the column may hold it."""
    if value is None:
        if not column.optional:
            raise ValueError(f"{column.name} is missing")
    elif column.kind == "TEXT":
        checked.text(column.name, value)
        if column.name == "shape" and value:
            checked.sizes(column.name, value)
    elif column.kind == "INTEGER":
        if type(value) is not int or value not in INT64:
            raise ValueError(f"{column.name} is {value!r}, not a whole number of 64 bits")
    elif type(value) is not float or value != value:
        raise ValueError(f"{column.name} is {value!r}, which is no number")
    if value is not None and (check := CHECKS.get((column.kind, column.name))):
        check(column.name, value)
    return value


def read(column: Column, text: str) -> object:
    """The value that a cell of a CSV file holds. Where a value may be missing, an empty cell has none."""
    if not text and (column.optional or column.kind != "TEXT"):
        return sound(column, None)
    try:
        value = {"TEXT": str, "INTEGER": int, "REAL": float}[column.kind](text)
    except ValueError:
        raise ValueError(f"{column.name} is {text!r}, which is no number") from None
    return sound(column, value)
