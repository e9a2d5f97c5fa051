"""Marks every test below this folder `gpu`, and skips it, with the reason, where no GPU is.

The tests need torch with CUDA and a binding of default or full coverage on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from functools import cache
from pathlib import Path
from random import Random

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


@pytest.fixture(autouse=True, scope="session")
def current_gpu() -> None:
    """A GPU is current in each process of tests, also for a test that asks the library first which one it is."""
    if not missing():
        import torch

        torch.zeros(1, device="cuda")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by the marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if count := config.getoption("--sample"):
        of_function = defaultdict(list)
        for item in items:
            of_function[item.nodeid.partition("[")[0]].append(item)
        draw = Random(config.getoption("--random-seed"))
        kept = {one for all_ in of_function.values() for one in draw.sample(all_, min(count, len(all_)))}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            if reason := missing():
                item.add_marker(pytest.mark.skip(reason=reason))
