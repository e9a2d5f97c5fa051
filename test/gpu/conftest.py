"""Marks every test below this folder `gpu`, and skips it, with the reason, where no GPU is.

The tests need torch with CUDA and a binding of default or full coverage on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@cache
def missing() -> str | None:
    """What the tests of this folder lack on this machine."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return "torch finds no CUDA GPU"
    if importlib.util.find_spec("aotriton._binding") is None:
        return "the binding is not on PYTHONPATH: build it first"
    return None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by the marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            if reason := missing():
                item.add_marker(pytest.mark.skip(reason=reason))
