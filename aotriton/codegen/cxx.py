"""C++ spellings: from Python values to the text that stands for them in generated code."""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite, isinf

PLAIN = re.compile(r"[ !#->@-\[\]-~]*")  # printable ASCII without quotation marks, question marks and backslashes


def comment(text: str) -> str:
    """``text`` as the rest of a // comment: nothing in it ends the comment or continues it on the next line."""
    if text.isascii() and text.isprintable() and "\\" not in text and "?" not in text:
        return text
    plain = "".join(c if c.isascii() and c.isprintable() else " " for c in text)
    return plain.replace("\\", "/").replace("??", "? ?")


@lru_cache(1 << 16)
def string(text: str) -> str:
    """``text`` as a string literal; anything but printable ASCII becomes octal escapes of up to three digits."""
    if PLAIN.fullmatch(text):
        return f'"{text}"'
    plain = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("?"): "\\?"}
    spelled = (plain.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode())
    return f'"{"".join(spelled)}"'


@lru_cache(1 << 16, typed=True)  # of the microseconds in tables most are 0
def literal(value: int | float | bool | None) -> str:
    """A number or truth value as C++ spells it; None, an unknown time, is 0. ValueError for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if value is not None and isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inff()"
    if value is not None and not isfinite(value):
        raise ValueError(f"{value} is no number that C++ could have")
    return f"{value or 0.0:.6g}" + ("f" if any(c in f"{value or 0.0:.6g}" for c in ".e") else ".0f")
