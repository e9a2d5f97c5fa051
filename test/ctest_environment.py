"""What a build tells the tests that belong to it: one of ours that ctest names, or the newest that the presets made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
UNDER_CTEST = "DASHBOARD_TEST_FROM_CTEST" in os.environ


def from_ctest(name: str) -> str:
    """An environment variable that a build of the test preset sets; without one the test is skipped, or under ctest
    fails.
    """
    if value := os.environ.get(name):
        return value
    if UNDER_CTEST:
        pytest.fail(f"ctest does not set {name}")
    raise pytest.skip.Exception(f"{name} is not set: build the test preset first, cmake --workflow --preset test")


def on_standin_driver(script: str) -> Any:
    """What a script prints as JSON, run in a process of its own where libcuda.so.1 is test/runtime/vendor's."""
    paths = [str(ROOT / "test"), str(ROOT / "test" / "runtime"), os.environ.get("PYTHONPATH", "")]
    given = {"LD_LIBRARY_PATH": from_ctest("AOTRITON_STANDINS"), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def enter_build() -> None:
    """Takes over what the build says, but for what is set already, and its binding, if there is no other."""
    folder = Path(os.environ.get("AOTRITON_BUILD") or ROOT / "build" / "test")
    paths = [str(ROOT)]
    if (told := folder / "test-environment").is_file():
        given = dict(line.split("=", 1) for line in told.read_text().splitlines())
        if UNDER_CTEST or _installed(folder, given["CMAKE_COMMAND"], given["AOTRITON_INSTALL"]):
            os.environ.update({name: value for name, value in given.items() if name not in os.environ})
        if not any([*Path(path or ".").glob("aotriton/_binding.*")] for path in sys.path):
            paths.append(str(folder / "python"))
    sys.path[:0] = [path for path in paths if path not in sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])


def _installed(folder: Path, cmake: str, prefix: str) -> bool:
    """Whether what ctest does first could be done: a build that is not complete has nothing to install."""
    return not subprocess.run([cmake, "--install", folder, "--prefix", prefix], capture_output=True).returncode
