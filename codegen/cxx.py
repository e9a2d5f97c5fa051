"""C++ spellings: from Python values to the text that stands for them in generated code."""

from __future__ import annotations

from math import isinf


def string(text: str) -> str:
    """``text`` as a string literal; what is not printable ASCII is escaped in octal, of three digits at most."""
    plain = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("?"): "\\?"}
    spelled = (plain.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode())
    return f'"{"".join(spelled)}"'


def literal(value: int | float | bool | None) -> str:
    """A number or truth value; None, an unknown time, is 0."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if value is not None and isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inff()"
    return f"{value or 0.0:.6g}" + ("f" if any(c in f"{value or 0.0:.6g}" for c in ".e") else ".0f")
