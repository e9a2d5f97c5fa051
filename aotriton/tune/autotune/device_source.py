"""From a Triton or Gluon kernel to one file with all device code that it needs, from whichever modules it comes."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from aotriton.tune.autotune.constants import spelled
from aotriton.tune.autotune.source import names_of, statement_of

# Packages that device code may import: they change with Triton's version, which is part of an image's name.
IMPORTS = frozenset({"triton"}) | (sys.stdlib_module_names - {"__main__"})


def device_source(kernel: Any) -> str:
    """The source of a module with the ``triton.jit`` or Gluon function ``kernel`` and everything that it names.

    Names are resolved to what they are in this process, so it does not matter which branch of an ``if`` or ``try``
    defined them, or in which module: functions are taken in whole, with what they name themselves; constants are
    written as their values; what belongs to triton is imported. ValueError says what cannot be taken, and why.
    """
    function = kernel.fn
    name = function.__qualname__
    if not name.isidentifier():  # inside of something
        raise ValueError(f"{name}: autotune takes functions that are defined by `def` at the top of a module")
    gathered = _Gathered(name)
    gathered.take(name, kernel, function)
    head = f'"""{name}, as aotriton.autotune found it in {_file_name(function)}."""'
    imports = ["import triton", *(["from triton.experimental import gluon"] if gathered.gluon else [])]
    lines = [head, "from __future__ import annotations", "\n".join(dict.fromkeys([*imports, *gathered.imports]))]
    return "\n\n".join([*lines, *gathered.parts]) + "\n"


class _Gathered:
    """The parts of the module, each after those that it needs."""

    def __init__(self, kernel: str) -> None:
        self.kernel, self.gluon = kernel, False
        self.imports: list[str] = []
        self.parts: list[str] = []
        self._taken: dict[str, Any] = {}

    def take(self, name: str, value: Any, user: FunctionType) -> None:
        """Defines ``name``, which ``user`` names, as ``value``."""
        if name in self._taken:
            before = self._taken[name]
            if before is not value and (_text(value) is None or _text(value) != _text(before)):
                raise ValueError(
                    f"{self.kernel}: two things are called {name}, and one file has all of its device code"
                )
            return
        self._taken[name] = value
        if line := _import_of(name, value):
            self.imports.append(line)
        elif isinstance(value, ModuleType):
            raise ValueError(
                f"{self.kernel}: `{value.__name__}` is a module of another package: a change there would not rename"
                f" the images that are made of it. Import the functions of it that {user.__name__} needs by their names"
            )
        elif isinstance(value, FunctionType) and _is_known(value.__module__):
            self._take_statement(name, user)  # one that triton has under this name in another module
        elif isinstance(value, FunctionType):
            raise ValueError(f"{self.kernel}: {name} is a Python function, which device code cannot call")
        elif isinstance(function := getattr(value, "fn", None), FunctionType):
            self._take_function(name, value, function)
        elif (text := _text(value)) is not None:
            self.parts.append(f"{name} = {text}")
        else:
            self._take_statement(name, user)

    def _take_function(self, name: str, value: Any, function: FunctionType) -> None:
        if name != function.__name__:  # it is imported by another name
            self.take(function.__name__, value, function)
            self.parts.append(f"{name} = {function.__name__}")
            return
        if function.__closure__:
            raise ValueError(f"{self.kernel}: {name} is defined inside of another function, whose variables it uses")
        tree, text = _definition(function)
        for own in _names(tree):
            self._take_named(own, function)
        self.parts.append("\n".join([*self._decorators(value), text]))

    def _take_named(self, name: str, user: FunctionType) -> None:
        if name in user.__globals__:
            self.take(name, user.__globals__[name], user)
        elif not hasattr(builtins, name):
            raise ValueError(f"{user.__name__}: it names {name}, which its module has not")

    def _take_statement(self, name: str, user: FunctionType) -> None:
        """Takes the statement that defines a value which cannot be written down, such as a layout."""
        node, text = statement_of(user, name)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not isinstance(node, ast.ImportFrom) or not _is_known(str(node.module)):
                raise ValueError(
                    f"{self.kernel}: `{text}`: a change there would not rename the images that are made of it. Define"
                    " what the kernel needs in its own module"
                )
            self.imports.append(text)
            return
        for own in sorted(names_of(node) - {name}):
            self._take_named(own, user)
        self.parts.append(text)

    def _decorators(self, value: Any) -> list[str]:
        kind = type(value).__name__
        if kind == "ConstexprFunction":
            return ["@triton.constexpr_function"]
        self.gluon |= bool(value.is_gluon())
        options = "(noinline=True)" if value.noinline else ""
        return [f"@{'gluon' if value.is_gluon() else 'triton'}.jit{options}"]


def _file_name(function: FunctionType) -> str:
    return str(inspect.getsourcefile(function)).rpartition("/")[2]


def _definition(function: FunctionType) -> tuple[ast.FunctionDef, str]:
    """The syntax of a function, and its text without decorators."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise ValueError(f"{function.__name__}: its source is in no file, from which autotune would take it") from None
    (node,) = ast.parse(text).body
    if not isinstance(node, ast.FunctionDef):
        raise ValueError(f"{function.__name__}: autotune takes functions that are defined by `def`")
    return node, "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])


def _names(node: ast.FunctionDef) -> list[str]:
    """The names of its module that a function uses, in order; the types of its arguments are not evaluated."""
    own = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)} | {node.name}
    own |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    parts: list[ast.AST] = [*node.args.defaults, *(one for one in node.args.kw_defaults if one), *node.body]
    found = (one for part in parts for one in ast.walk(part) if isinstance(one, ast.Name))
    return [name for name in dict.fromkeys(one.id for one in found if isinstance(one.ctx, ast.Load)) if name not in own]


def _import_of(name: str, value: Any) -> str | None:
    """The import that defines ``name`` as ``value`` where that belongs to triton or to the standard library."""
    if isinstance(value, ModuleType):
        if not _is_known(value.__name__):
            return None
        return f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
    module, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not module or not own or not _is_known(module):
        return None
    for place in (module, *_public(module)):
        if getattr(importlib.import_module(place), own, None) is value:
            return f"from {place} import {own}" + (f" as {name}" if own != name else "")
    return None


def _is_known(module: str) -> bool:
    """Whether a module is of a package whose changes would rename images."""
    return module.partition(".")[0] in IMPORTS


def _public(module: str) -> Iterator[str]:
    """The packages that a module is in: some of its names are only there."""
    while module := module.rpartition(".")[0]:
        yield module


def _text(value: Any) -> str | None:
    """The Python code that makes a constant of device code; None where ``value`` is none."""
    return spelled(value, "triton.language.constexpr", "triton.language.dtype")
