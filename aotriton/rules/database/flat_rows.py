"""What the columns of flat rows hold: from what a file or the database has to a value that can be relied on.

Every function raises ValueError with the column's name where the value will not do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from statistics import median

from aotriton.rules import checked
from aotriton.rules.database.schema import Column

INT64 = range(-(2**63), 2**63)
ROUNDED = 2e-4  # the relative difference of a median to that of its samples, all of which have five digits

# Beyond what its type says of a column. By its name, which means the same in every table.
CHECKS: Mapping[tuple[str, str], Callable[[str, object], object]] = {
    **{("REAL", name): checked.time_us for name in ("median_us", "low_us", "high_us", "spread")},
    ("TEXT", "config"): checked.config,
    **{("TEXT", name): checked.numbers for name in ("samples", "coefficients")},
    ("TEXT", "sha256"): checked.sha256,
    ("TEXT", "images"): checked.identifiers,
    ("TEXT", "runners_up"): checked.runners_up,
    ("TEXT", "image"): checked.identifier,
    ("TEXT", "started"): checked.moment,
    ("TEXT", "measured"): lambda name, value: value and checked.moment(name, value),
    **{("INTEGER", name): checked.count for name in ("registers", "spills", "shared", "trials", "sm_clock", "rounds")},
    **{("INTEGER", name): checked.count for name in ("samples", "occupancy", "power_limit")},
    ("INTEGER", "memory"): checked.byte_count,
    ("INTEGER", "multiprocessors"): checked.positive,
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


def sound_row(table: str, row: Mapping[str, object]) -> Mapping[str, object]:
    """The row, if what its columns hold, each of which is sound, agrees."""
    if table == "measurement" and row["status"] == "ok":
        _check_time(row)
    if table == "measurement" and row["status"] in ("ok", "checked"):
        _check_error(row)
    if table == "winner" and row["high_us"]:
        low, middle, high = (float(str(row[name])) for name in ("low_us", "median_us", "high_us"))
        if not low <= middle <= high:
            raise ValueError(f"median_us is {middle}, outside of its interval from {low} to {high}")
    return row


def _check_time(row: Mapping[str, object]) -> None:
    """ValueError where a measurement that is ok has no samples, or another median."""
    samples = json.loads(str(row["samples"] or "[]"))
    if not samples:
        raise ValueError("it is ok, and has no samples")
    told, middle = float(str(row["median_us"] or 0.0)), median(samples)
    if abs(told - middle) > ROUNDED * middle:
        raise ValueError(f"median_us is {told}, but the median of its samples is {middle:.5g}")


def _check_error(row: Mapping[str, object]) -> None:
    """ValueError where a measurement whose results are right has too large an error."""
    error, tolerance = row["error"], row["tolerance"]
    if error is not None and not (tolerance is not None and float(str(error)) <= float(str(tolerance))):
        raise ValueError(f"it is {row['status']}, but its error of {error} is above {tolerance}")


def read(column: Column, text: str) -> object:
    """The value that a cell of a CSV file holds. Where a value may be missing, an empty cell has none."""
    if not text and (column.optional or column.kind != "TEXT"):
        return sound(column, None)
    try:
        value = {"TEXT": str, "INTEGER": int, "REAL": float}[column.kind](text)
    except ValueError:
        raise ValueError(f"{column.name} is {text!r}, which is no number") from None
    return sound(column, value)
