"""Checks of database rows: from values as SQLite returns them to valid text, times and settings.

Every function takes a column's name and its value. It raises ValueError, with both, if the value is not valid.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import cache
from keyword import iskeyword
from math import inf

MOST = sys.float_info.max
MOST_US = 1e9  # a quarter of an hour; no launch takes as long
INT32 = range(-(2**31), 2**31)

# What may not be a name in C++, where Python would take it.
CXX_KEYWORDS = frozenset(
    """
    alignas alignof asm auto bool case catch char char8_t char16_t char32_t concept const consteval constexpr constinit
    const_cast co_await co_return co_yield decltype default delete do double dynamic_cast enum explicit export extern
    false float friend goto inline int long mutable namespace new noexcept nullptr operator private protected public
    register reinterpret_cast requires short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true typedef typeid typename union unsigned using virtual void volatile wchar_t
    """.split()  # noqa: SIM905 (a hundred quotation marks)
)


@cache
def identifier(column: str, value: object) -> str:
    """A name that is valid in Python and C++."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError(f"{column} is {value!r}, which is no name: letters, digits and underscores are")
    if iskeyword(value) or value in CXX_KEYWORDS:
        raise ValueError(f"{column} is {value!r}, which is a word of Python's or C++'s own")
    return value


def text(column: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{column} is {value!r}, not text")
    return value


def time_us(column: str, value: object) -> float:
    """A time in microseconds; 0 means none."""
    if type(value) not in (int, float) or not 0 <= value < MOST_US:  # type: ignore[operator] # a NaN is not, either
        raise ValueError(f"{column} is {value!r}, which is no time in microseconds")
    return float(value)  # type: ignore[arg-type] # its type is checked above


def relative(column: str, value: object) -> float:
    """A relative error."""
    if type(value) not in (int, float) or not 0 <= value <= MOST:  # type: ignore[operator] # a NaN is not, either
        raise ValueError(f"{column} is {value!r}, which is no relative error")
    return float(value)  # type: ignore[arg-type] # its type is checked above


def day(column: str, value: object) -> str:
    """The day of a time in ISO 8601."""
    if not isinstance(value, str) or not re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        raise ValueError(f"{column} is {value!r}, which begins with no day")
    return value[:10]


def moment(column: str, value: object) -> str:
    """A time or day in ISO 8601, of UTC if it names no zone, that has come; a clock may be a day ahead of this one."""
    try:
        time = datetime.fromisoformat(text(column, value))
    except ValueError:
        raise ValueError(f"{column} is {value!r}, which is no time in ISO 8601") from None
    if (time if time.tzinfo else time.replace(tzinfo=timezone.utc)) > datetime.now(timezone.utc) + timedelta(days=1):
        raise ValueError(f"{column} is {value!r}, in the future")
    return str(value)


def sha256(column: str, value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError(f"{column} is {value!r}, which is no SHA-256")
    return value


def count(column: str, value: object) -> int:
    """A whole number, at least 0, that fits C++'s type."""
    if type(value) is not int or not 0 <= value < INT32.stop:
        raise ValueError(f"{column} is {value!r}, which is no number of anything")
    return value


def positive(column: str, value: object) -> int:
    """Such a number that is not 0."""
    if not count(column, value):
        raise ValueError(f"{column} is 0")
    return int(str(value))


def byte_count(column: str, value: object) -> int:
    """A number of bytes, which fits 64 bits."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{column} is {value!r}, which is no number of bytes")
    return value


def number(column: str, value: object) -> float:
    """A finite number that is not less than 0."""
    if type(value) not in (int, float) or not 0 <= value <= MOST:  # type: ignore[operator] # a NaN is not, either
        raise ValueError(f"{column} is {value!r}, which is no finite number from 0 on")
    return float(value)  # type: ignore[arg-type] # its type is checked above


def numbers(column: str, value: object) -> tuple[float, ...]:
    """A list of such numbers."""
    return tuple(number(f"a number in {column}", one) for one in _list(column, value))


@cache  # few images are launched in many sequences
def identifiers(column: str, value: object) -> tuple[str, ...]:
    """A list of names."""
    return tuple(identifier(f"a name in {column}", one) for one in _list(column, value))


def sizes(column: str, value: object) -> Mapping[str, object]:
    """The shape of a call: names with numbers or words, each of them finite."""
    found = _json(column, value)
    if not isinstance(found, dict):
        raise ValueError(f"{column} is {value!r}, not names with values")
    for name, one in found.items():
        identifier(f"a name in {column}", name)
        if not isinstance(one, (int, float, str)) or one in (inf, -inf) or one != one:
            raise ValueError(f"{name} in {column} is {one!r}, neither a finite number nor a word")
    return found


@cache  # a hundred thousand rows have a few hundred of them
def config(column: str, value: object) -> str:
    """Names with whole numbers: ``BLOCK_M=128 num_warps=4``."""
    for part in text(column, value).split():
        name, equals, number = part.partition("=")
        if not equals or not re.fullmatch(r"-?[0-9]{1,10}", number) or int(number) not in INT32:
            raise ValueError(f"{column} is {value!r}, and {part!r} in it is no name with a whole number of 32 bits")
        identifier(f"a name in {column}", name)
    return str(value)


def runners_up(column: str, value: object) -> tuple[tuple[str, float], ...]:
    """Configs with their times."""
    if value == "[]":
        return ()
    found = _json(column, value)
    if not isinstance(found, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in found):
        raise ValueError(f"{column} is {value!r}, not pairs of config and time")
    return tuple((text(f"a config in {column}", config), time_us(f"a time in {column}", us)) for config, us in found)


def _list(column: str, value: object) -> list[object]:
    found = _json(column, value)
    if not isinstance(found, list):
        raise ValueError(f"{column} is {value!r}, not a list")
    return found


def _json(column: str, value: object) -> object:
    try:
        return json.loads(text(column, value))
    except (ValueError, RecursionError):
        raise ValueError(f"{column} is {value!r}, which cannot be read") from None
