"""Kernels that were tuned ahead of time: each operator as a function, and what made them, under one importable name.

The operators, which ``aotriton.operators()`` lists, ``aotriton.explain`` and the like are the library's, which is
loaded when one of them is first named. ``aotriton.autotune``, ``aotriton.service`` and the modules tune, rules, codegen
and tritonsrc are the tuner and the code generator, and need what the extra ``tune`` brings; ``aotriton.torch`` and
``aotriton.hints`` need torch.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import extend_path
from types import ModuleType
from typing import Any

__version__ = "0.2.0"  # the only place where it is written: cmake and pyproject.toml read it here

__path__ = extend_path(__path__, __name__)  # a source tree's binding is in its build folder, if PYTHONPATH has that

_HERE = {
    "autotune": "aotriton.tune.autotune.autotune",
    "get_include": "aotriton.installed",
    "hints": "aotriton.torch.hints",
    "service": "aotriton.tune.autotune.service",
}


def __getattr__(name: str) -> Any:
    """What is loaded when it is first asked for; a module of the package is only there once it is imported."""
    if name.startswith("__") or find_spec(f"{__name__}.{name}"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HERE[name]) if name in _HERE else _library(), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    modules = {name for name, value in globals().items() if getattr(value, "__name__", "") == f"{__name__}.{name}"}
    public = {name for name in (*modules, *_HERE, *dir(_library())) if not name.startswith("_")}
    return sorted(public | {name for name in globals() if name.startswith("__")})


def _library() -> ModuleType:
    """The binding; ImportError says for which Pythons there is one, where there is none for this one."""
    try:
        return import_module("aotriton._binding")
    except ModuleNotFoundError as missing:
        if missing.name != "aotriton._binding":
            raise
        folders = dict.fromkeys(Path(folder).resolve() for folder in __path__)
        built = sorted(file.name for folder in folders for file in folder.glob("_binding.*"))
        raise ImportError(
            f"aotriton has no binding for Python {sys.version_info.major}.{sys.version_info.minor} here:"
            f" there is {', '.join(built) or 'none'} in {', '.join(map(str, folders))}"
        ) from missing
