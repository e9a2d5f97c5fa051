"""The wheel that pip makes in an environment with torch: its operators are in it, and compute."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed: the preset torch has it", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]


def must(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=os.environ | environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_pip_makes_a_wheel_with_torchs_operators(tmp_path: Path) -> None:
    """Without being told: they are in the one wheel, beside the library that they share with the binding, and run as
    the release's are checked. Without kernels, which tensors of a CPU have no need of.
    """
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    must(*pip, "--wheel-dir", tmp_path, "-C", "cmake.define.AOTRITON_COVERAGE=none", ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert "aotriton/libaotriton_torch.so" in names
    assert len([name for name in names if name.startswith("aotriton/libaotriton_torch_autograd-")]) == 1
    printed = must(
        sys.executable, ROOT / "test" / "package" / "wheel" / "check_torch.py", PYTHONPATH=str(tmp_path / "site")
    )
    assert printed.startswith("torch's operators of the wheel are right")
