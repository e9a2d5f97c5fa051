"""The constants of a module, written down as the values that they have now."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from math import isfinite
from typing import Any

from aotriton.rules.constants import CONSTEXPR, is_literal, looks


def fixed(node: ast.stmt, values: Mapping[str, Any]) -> str | None:
    """The statements that define the names that ``node`` binds by their ``values``; None where its own text says them.

    Its text says a value that is written there: a literal, or a constexpr of one. What comes from elsewhere, such as
    the environment, would be another value in another process, under the same name of an image. Where a value cannot be
    written down, the text stays, and a string of what the value looks like follows it.
    """
    if not values or is_literal(node):
        return None
    constexpr = _constexpr(node)
    texts = {name: spelled(value, constexpr) for name, value in values.items()}
    if None not in texts.values():
        kind = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
        return "\n".join(f"{name}{kind} = {text}" for name, text in texts.items())
    known = map(repr, looks(values))
    return "\n".join([ast.unparse(node), *known]) if looks(values) else None


def spelled(value: Any, constexpr: str = CONSTEXPR, dtype: str | None = None) -> str | None:
    """The Python code that makes a constant, with Triton's constexpr and its types by these names; None where ``value``
    is none, or is a type and those have no name.
    """
    if type(value) is float and not isfinite(value):
        return f'float("{value}")'
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if type(value) is tuple:
        parts = [spelled(one, constexpr, dtype) for one in value]
        return None if None in parts else f"({', '.join(map(str, parts))}{',' * (len(parts) == 1)})"
    if type(value).__name__ == CONSTEXPR and (inner := spelled(value.value, constexpr, dtype)):
        return f"{constexpr}({inner})"
    if dtype and f"{type(value).__module__}.{type(value).__name__}" == "triton.language.core.dtype":
        return f"{dtype}({value.name!r})"
    return None


def _constexpr(node: ast.stmt) -> str:
    """How the statement calls Triton's constexpr."""
    called = (ast.unparse(one.func) for one in ast.walk(node) if isinstance(one, ast.Call))
    return next((name for name in called if name.endswith(CONSTEXPR)), CONSTEXPR)
