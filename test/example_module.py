"""The Python files of ``examples``, for the tests that run them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def example(path: str) -> ModuleType:
    """The module of a file, such as ``autotune/softmax.py``. Its name is its own: bench/ has an ``attention``, too."""
    file = EXAMPLES / path
    spec = importlib.util.spec_from_file_location(f"example_{file.parent.name}_{file.stem}", file)
    assert spec
    assert spec.loader
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)  # where a compiler looks it up
    spec.loader.exec_module(module)
    return module
