"""The GPU launcher with two real faults: one candidate's launch never ends, another's writes to an illegal address.

Run it as ``PYTHONPATH=test:$PYTHONPATH python tune/tune_flash.py --launcher faulty_launcher:FaultyLauncher ...``.
AOTRITON_TEST_HANG and AOTRITON_TEST_CRASH hold the configs that misbehave, as the database spells them.
"""

from __future__ import annotations

import os
from typing import Any

from aotriton.tune.measure.launcher import GpuLauncher, Opened
from aotriton.tune.measure.requests import Request

HANG = "BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=2"
CRASH = "BLOCK_M=64 BLOCK_N=32 num_warps=4 num_stages=2"


class Wild:
    """A tensor whose data lies where nothing is mapped; those of other places lie elsewhere."""

    def __init__(self, tensor: Any, place: int) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.stride = tensor.stride
        self._place = place

    def data_ptr(self) -> int:
        return (1 << 40) + (self._place << 36)

    def fill_(self, value: float) -> None:
        pass


class FaultyLauncher(GpuLauncher):
    def open(self, request: Request) -> Opened:
        opened = super().open(request)
        if request.config == os.environ.get("AOTRITON_TEST_HANG", HANG):
            opened.launch = self._hang
        if request.config == os.environ.get("AOTRITON_TEST_CRASH", CRASH):
            for place, result in enumerate(opened.results.values()):
                result.tensor = Wild(result.tensor, place)
            tensors = {name: result.tensor for name, result in opened.results.items()}
            opened.launch = self.bind(opened.kernel, opened.candidate, tensors)
        return opened

    def _hang(self) -> None:
        self.torch.cuda._sleep(1 << 62)  # spins on the GPU until a clock that will take a century
