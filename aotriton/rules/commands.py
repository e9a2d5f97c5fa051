"""The tuner's command in messages: a file of the source tree, an installed program, or a module."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def in_source_tree() -> bool:
    return (_PACKAGE.parent / "CMakePresets.json").is_file()


def tuner() -> str:
    """The command without its options, as the user of this package can type it."""
    if in_source_tree():
        return "python3 tune/tune.py"
    return "aotriton-tune" if _in_wheel() else "python3 -m aotriton.tune.tune"


def must_have(program: str, module: str, project: str) -> None:
    """Ends the process with status 2 if a module that a program imports is missing, and names what to install."""
    if find_spec(module) is None:
        brings = "'aotriton-v2[tune]'" if _in_wheel() else project
        print(f"{program}: {module} is missing: pip install {brings}", file=sys.stderr)
        sys.exit(2)


def _in_wheel() -> bool:
    return (_PACKAGE / "include").is_dir()
