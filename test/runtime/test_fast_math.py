"""A build whose user asks for -ffast-math chooses as any other one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = Path(os.environ.get("AOTRITON_BUILD") or ROOT / "build" / "test") / "compile_commands.json"


@pytest.mark.skipif(not COMMANDS.is_file(), reason="there is no build")
def test_fast_math_does_not_reach_the_choice() -> None:
    """Behind CMAKE_CXX_FLAGS with -ffast-math the library's own flags take it back: cost.cc, which refuses to be
    compiled with it, is compiled.
    """
    rows = [row for row in json.loads(COMMANDS.read_text()) if row["file"].endswith("v2src/program/cost.cc")]
    (command,) = {row["command"] for row in rows if "aotriton_v2.dir" in row["command"]}
    compiler, *flags = [one for one in shlex.split(command) if "ccache" not in one]
    flags = [*flags[: flags.index("-o")], "-fsyntax-only", rows[0]["file"]]
    fast = [compiler, "-ffast-math"]
    subprocess.run([*fast, *flags], check=True, cwd=rows[0]["directory"])
    without = [one for one in flags if one != "-fno-fast-math"]
    refused = subprocess.run([*fast, *without], capture_output=True, text=True, check=False)
    assert "-ffast-math rounds quotients" in refused.stderr
