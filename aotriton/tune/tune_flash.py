"""Tunes the attention kernels: ``tune.py`` for the family flash.

Run it as ``python tune/tune_flash.py``, or ``aotriton-tune`` where the package is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

    from aotriton.rules.commands import must_have

    must_have("tune", "sqlite_utils", "sqlite-utils")

from aotriton.tune.cli import main as cli


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    return cli.main(arguments, "flash", "tune_flash.py")


if __name__ == "__main__":
    sys.exit(main())
