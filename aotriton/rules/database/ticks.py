"""Times in a file of the archive, where most are whole numbers of ticks in place of decimal fractions.

A tick is the unit of NVIDIA's events, 0.032 us. A time is kept with five significant digits, and the integer ``k``
stands for ``0.032 * k`` with so many; a time that no integer stands for is written with its point. The samples of a
measurement, which are text in the database, are a list: how many ticks each is above the measurement's median, in the
order taken. Samples that would not come back as the same text are written as that text. So every row comes back as it
was, whatever GPU it was timed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TICK = 0.032  # microseconds
TIMES, SAMPLES, MEDIAN = ("median_us", "spread"), "samples", "median_us"

Columns = Mapping[str, Sequence[object]]  # of one table


def written(columns: Columns) -> dict[str, Sequence[object]]:
    """The columns as a file has them."""
    made = dict(columns)
    for name in TIMES:
        if name in columns:
            made[name] = [_written_time(time) for time in columns[name]]
    if SAMPLES in columns:
        made[SAMPLES] = [_written_samples(*row) for row in zip(columns[SAMPLES], columns[MEDIAN], strict=True)]
    return made


def read(name: str, values: Sequence[object], before: Columns) -> Sequence[object]:
    """The column of this name as the database has it; ``before`` are those that stand before it in the file.

    What is neither an integer among times nor a list among samples stays as it is. ValueError for a number of ticks
    that is none.
    """
    if name in TIMES:
        return [_time(value) if type(value) is int else value for value in values]
    if name == SAMPLES:
        rows = zip(values, before[MEDIAN], strict=True)
        return [_samples(row, median) if isinstance(row, list) else row for row, median in rows]
    return values


def _ticks(time: object) -> int:
    """The nearest number of ticks, 0 where there is no time; ValueError if it is not finite."""
    try:
        return round(time / TICK) if isinstance(time, float) else 0
    except OverflowError:
        raise ValueError(f"{time} us are no number of ticks") from None


def _text(ticks: int) -> str:
    try:
        return f"{ticks * TICK:.5g}"
    except OverflowError:
        raise ValueError("so many ticks are no time") from None


def _time(ticks: int) -> float:
    return float(_text(ticks))


def _written_time(time: object) -> object:
    try:
        ticks = _ticks(time)
        return ticks if _time(ticks) == time else time
    except ValueError:
        return time


def _samples(above: Sequence[object], median: object) -> str:
    middle, texts = _ticks(median), []
    for one in above:
        if type(one) is not int:
            raise ValueError(f"{SAMPLES}: {one!r} is not a whole number of ticks")
        texts.append(_text(middle + one))
    return f"[{','.join(texts)}]"


def _written_samples(text: object, median: object) -> object:
    if not isinstance(text, str):
        return text
    try:
        middle = _ticks(median)
        above = [_ticks(float(one)) - middle for one in text[1:-1].split(",")]
        return above if _samples(above, median) == text else text
    except ValueError:
        return text
