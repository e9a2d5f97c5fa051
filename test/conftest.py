"""What tests share: import path, golden-file switch, the installed tree, the made-up family, Triton's interpreter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from ctest_environment import enter_build, from_ctest

enter_build()

from toy_database import toy  # noqa: E402, F401 (a fixture of every test)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write test/golden/ instead of comparing with it")
    parser.addoption("--random-calls", type=int, default=0, metavar="COUNT", help="more of random calls on a GPU")
    parser.addoption("--random-seed", type=int, default=100, help="of these calls, and the sample")
    parser.addoption("--sample", type=int, default=0, metavar="COUNT", help="of GPU tests, so many of each function")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="module")
def launch() -> Iterator[Any]:
    """interpreted.launch in a process of its own, so that other tests of this process compile kernels as ever."""
    before = os.environ.get("TRITON_INTERPRET")
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")  # products of tiles are too small for threads, which only wait
        yield lambda *args: pool.submit(_launch, *args).result()
    assert os.environ.get("TRITON_INTERPRET") == before


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the installed tree: nothing in it may depend on where it was installed."""
    return Path(shutil.copytree(from_ctest("AOTRITON_INSTALL"), tmp_path_factory.mktemp("moved") / "aotriton"))


def _launch(*args: Any) -> Any:
    import interpreted

    return interpreted.launch(*args)
