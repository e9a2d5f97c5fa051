"""The provider of Python functions: nothing is compiled, and the tuner calls and times the function itself."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from aotriton.rules.image import ImageSpec


def version() -> str:
    """As ``aotriton.rules.provider.Compiler``."""
    return platform.python_version()


def compile(spec: ImageSpec, source: Path) -> tuple[bytes, dict[str, Any]]:
    """As ``aotriton.rules.provider.Compiler``: the source is the image."""
    nothing = dict.fromkeys(("threads", "shared", "registers", "spills", "stack"), 0)
    return source.read_bytes(), {"entry": spec.functional.kernel.name, **nothing}
