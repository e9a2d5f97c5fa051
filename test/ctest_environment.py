"""What ctest tells the tests about the build that they belong to."""

from __future__ import annotations

import os

import pytest


def from_ctest(name: str) -> str:
    """An environment variable that ctest sets; by hand the test is skipped without it, under ctest it fails."""
    if value := os.environ.get(name):
        return value
    if "DASHBOARD_TEST_FROM_CTEST" in os.environ:
        pytest.fail(f"ctest does not set {name}")
    pytest.skip(f"{name} is not set: run this through ctest")
