"""Tunes the kernels of a family: the command line, as a program.

Run it as ``python tune/tune.py --family NAME``, or with the folder of a family that lives outside of this tree.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

    from aotriton.rules.commands import must_have

    must_have("tune", "sqlite_utils", "sqlite-utils")

from aotriton.tune.cli.main import main as main

if __name__ == "__main__":
    sys.exit(main())
