"""The GPU launcher for tests that tune beside other processes that compute, such as other tests: they do not count.

Tests look at who is right and who wins by far, not at times.
"""

from __future__ import annotations

from dataclasses import replace

from aotriton.tune.measure.launcher import GpuLauncher
from aotriton.tune.measure.requests import Conditions


class CrowdedLauncher(GpuLauncher):
    def conditions(self, since: float) -> Conditions:
        return replace(super().conditions(since), others=())
