"""From a function to that part of its module which it needs, as the source of a module of its own."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from aotriton.rules.constants import DEFINITIONS
from aotriton.tune.autotune.constants import fixed

OURS = "autotune"  # the decorator that is not the function's own


def slice_of(function: FunctionType) -> str:
    """The source of the function with all that it uses of its module: other functions, constants and imports.

    Nothing else of the module is included, so nothing else runs, or changes what the function is. Constants have the
    values that they have now (``constants.fixed``), so that they do not depend on where the source is read. ValueError
    names what cannot be included.
    """
    name = function.__qualname__
    if not name.isidentifier():  # <lambda>, or inside of something
        raise ValueError(f"{name}: autotune takes functions that are defined by `def` at the top of a module")
    path, text = _file_of(function)
    tree = ast.parse(text)
    constants = _constants(tree, function.__globals__)
    needed = _closure(tree, name, constants)
    parts = [f'"""{name}, as aotriton.autotune found it in {path.name}."""']
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            kept = [one for one in node.names if _bound(one) in needed or one.name == "*" or _is_future(node)]
            if kept:
                node.names = kept
                if isinstance(node, ast.ImportFrom) and node.level:
                    raise ValueError(f"{name}: `{ast.unparse(node)}` means nothing elsewhere: name the package")
                parts.append(ast.unparse(node))
        elif needed & _binds(node):
            parts.append(constants.get(id(node)) or _text(text, node))
    return "\n\n".join(parts) + "\n"


def statement_of(function: FunctionType, name: str) -> tuple[ast.stmt, str]:
    """The statement that defines ``name`` at the top of the function's module, and its text; of an import only the part
    that does. ValueError where there is none, or more than one.
    """
    path, text = _file_of(function)
    found = [node for node in ast.parse(text).body if name in _binds(node)]
    if len(found) != 1:
        raise ValueError(f"{function.__name__}: {path.name} does not say in one statement what {name} is")
    (node,) = found
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        node.names = [one for one in node.names if _bound(one) == name]
        return node, ast.unparse(node)
    return node, _text(text, node)


def _file_of(function: FunctionType) -> tuple[Path, str]:
    """The file of a function, and its text."""
    try:
        path = Path(str(inspect.getsourcefile(function)))
        return path, path.read_text()
    except (OSError, TypeError):
        raise ValueError(
            f"{function.__qualname__}: its source is in no file, from which autotune would take it"
        ) from None


def _closure(tree: ast.Module, name: str, constants: Mapping[int, str]) -> set[str]:
    """``name`` and the names at the top of the module that it depends on, directly or not; ``constants``: the texts
    that stand for some statements, by id.
    """
    bound: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for one in _binds(node):
            bound.setdefault(one, []).append(node)
    found: set[str] = set()
    waiting = [name]
    while waiting:
        own = waiting.pop()
        if own in found or own not in bound:
            continue
        found.add(own)
        texts = [ast.parse(constants[id(node)]).body if id(node) in constants else [node] for node in bound[own]]
        waiting += [one for nodes in texts for node in nodes for one in names_of(node)]
    return found


def _constants(tree: ast.Module, values: Mapping[str, Any]) -> dict[int, str]:
    """By the id of a statement that defines constants: the text that stands for it, where another one must."""
    found = {}
    for node in tree.body:
        own = {name: values[name] for name in sorted(_binds(node)) if name in values}
        if not isinstance(node, DEFINITIONS) and (text := fixed(node, own)):
            found[id(node)] = text
    return found


def _binds(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {_bound(one) for one in node.names}
    return {one for inner in ast.walk(node) for one in _stored(inner)}


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _stored(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from map(_bound, node.names)
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name


def names_of(node: ast.stmt) -> set[str]:
    """The names of its module that a statement uses."""
    asked, own = set(), set()
    parts: list[ast.AST] = [node]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        parts = [*_decorators(node), node.args, *([node.returns] if node.returns else []), *node.body]
        own = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
        own |= {name for inner in node.body for one in ast.walk(inner) for name in _stored(one)}
    for part in parts:
        asked |= {one.id for one in ast.walk(part) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    return asked - own


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[ast.expr]:
    """The function's decorators without ours."""
    called = [(one, one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list]
    return [one for one, name in called if ast.unparse(name).rpartition(".")[2] != OURS]


def _text(text: str, node: ast.stmt) -> str:
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        lines = [f"@{ast.get_source_segment(text, one)}" for one in _decorators(node)] + lines
    return "\n".join(lines)


def _is_future(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
