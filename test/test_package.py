"""What the project says of itself, and what its packages hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aotriton

ROOT = Path(__file__).resolve().parent.parent


def test_the_version_is_written_once() -> None:
    """In the package; the library that was built has the same."""
    pyaotriton = pytest.importorskip("pyaotriton", reason="pyaotriton is not on PYTHONPATH: build the binding first")
    assert pyaotriton.version() == aotriton.__version__
    for file in ("CMakeLists.txt", "pyproject.toml"):
        assert not re.search(r"\b" + re.escape(aotriton.__version__) + r"\b", (ROOT / file).read_text()), file


def test_the_licence_is_the_one_that_the_metadata_names() -> None:
    """pyproject.toml's SPDX expression and the text of LICENSE agree; what CONTRIBUTING.md links to is there."""
    project = (ROOT / "pyproject.toml").read_text()
    assert '\nlicense = "MIT"\n' in project
    assert '\nlicense-files = ["LICENSE"]\n' in project
    assert (ROOT / "LICENSE").read_text().startswith("MIT License\n\nCopyright (c) ")
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "CONTRIBUTING.md").read_text()):
        assert (ROOT / target).is_file(), target
