"""How the reader of a message runs the tuner: a source tree's file, a program that pip installs, or a module."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def in_source_tree() -> bool:
    return (_PACKAGE.parent / "CMakePresets.json").is_file()


def tuner() -> str:
    """The command without its options, as it can be typed where this package is."""
    if in_source_tree():
        return "python3 tune/tune.py"
    return "aotriton-tune" if _in_wheel() else "python3 -m aotriton.tune.tune"


def must_have(program: str, module: str, project: str) -> None:
    """Ends the process with status 2 where a module is missing that a program begins with, and says what brings it."""
    if find_spec(module) is None:
        brings = "'aotriton-v2[tune]'" if _in_wheel() else project
        print(f"{program}: {module} is missing: pip install {brings}", file=sys.stderr)
        sys.exit(2)


def _in_wheel() -> bool:
    return (_PACKAGE / "include").is_dir()
