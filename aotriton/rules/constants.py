"""Constants at the top of a module of device code: whether its text says their values."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

CONSTEXPR = "constexpr"
DEFINITIONS = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom
UNSTABLE = re.compile("0x|<module")  # in the text of a value: where it is in this process


def computed(tree: ast.Module) -> set[str]:
    """The names at the top of a module whose values its text does not say, as they come from calls or other names."""
    return {
        name.id
        for node in tree.body
        if not isinstance(node, DEFINITIONS) and not is_literal(node)
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }


def is_literal(node: ast.stmt) -> bool:
    """Whether the statement defines a constant by a literal, or by a constexpr of one."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return False
    value = node.value
    if isinstance(value, ast.Call) and len(value.args) == 1 and ast.unparse(value.func).endswith(CONSTEXPR):
        value = value.args[0]
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True


def looks(values: Mapping[str, Any]) -> list[str]:
    """What constants look like, the same in each process; of functions and of what has an address nothing is said."""
    found = (f"{name} is {value!r}" for name, value in sorted(values.items()) if not callable(value))
    return [look for look in found if not UNSTABLE.search(look)]
