"""From an image to launches through the library's own C++ host code, and to the check of what they wrote."""

from __future__ import annotations

import ctypes
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

from aotriton.codegen.program import launch_program
from aotriton.rules.commands import in_source_tree
from aotriton.rules.family import kernel as description
from aotriton.rules.family import operator_of, source_module
from aotriton.rules.kernel import KernelDescription, Tensor
from aotriton.tune.measure.clock import Clocks, GpuClock, Sample
from aotriton.tune.measure.launch_sequences import Sequences
from aotriton.tune.measure.nvml import ManagedGpu
from aotriton.tune.measure.requests import Conditions, Device, Draw, Request, Timed
from aotriton.tune.problem.accuracy import Check
from aotriton.tune.problem.family import Data, further_data, results_of, scratch_of, sizes_of, tuning
from aotriton.tune.problem.problems import Problem

NO_BINDING = "the library's Python binding is missing: " + (
    "build it with `cmake --preset tune && cmake --build --preset tune` and set PYTHONPATH=build/tune/python"
    if in_source_tree()
    else "run a Python that it was built for"
)


def visible_gpus() -> list[str]:
    """Entries for ``CUDA_VISIBLE_DEVICES`` or ``HIP_VISIBLE_DEVICES``, one a GPU. Makes no context."""
    for library, variable, initialise, count in (
        ("libcuda.so.1", "CUDA_VISIBLE_DEVICES", "cuInit", "cuDeviceGetCount"),
        ("libamdhip64.so", "HIP_VISIBLE_DEVICES", "hipInit", "hipGetDeviceCount"),
    ):
        try:
            driver = ctypes.CDLL(library)
        except OSError:
            continue
        found = ctypes.c_int(0)
        if getattr(driver, initialise)(0) == 0 and getattr(driver, count)(ctypes.byref(found)) == 0 and found.value:
            given = [entry.strip() for entry in os.environ.get(variable, "").split(",") if entry.strip()]
            return given[: found.value] or [str(index) for index in range(found.value)]
    return []


REPETITIONS = 20  # launches whose bits are compared
KEPT = 0.25  # of the GPU's memory: data of problems that may come again


@dataclass
class Result:
    """A tensor that a kernel writes or adds to, and what it holds before a checked launch: a number or a tensor."""

    argument: Tensor
    tensor: Any
    before: Any

    def restore(self) -> None:
        if isinstance(self.before, (int, float)):
            self.tensor.fill_(self.before)
        else:
            self.tensor.copy_(self.before)


@dataclass
class Opened:
    """A loaded image, and what it leaves behind by operand."""

    candidate: Any
    kernel: KernelDescription
    tunables: Mapping[str, int]
    launch: Callable[[], None]
    results: dict[str, Result]

    def restore(self) -> None:
        """Gives tensors that the kernel reads and writes what they held before the first launch."""
        for one in self.results.values():
            if one.argument.operand.updated:
                one.restore()


class GpuLauncher:
    """``worker.Launcher`` for the one GPU that this process sees."""

    def __init__(self) -> None:
        import torch

        try:
            from aotriton import _binding
        except ImportError as error:
            raise RuntimeError(f"{NO_BINDING} ({error})") from error
        self.torch: ModuleType = torch
        self.binding: ModuleType = _binding
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the context current, which the binding takes up
        self._clock = GpuClock()
        self._managed = ManagedGpu(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        # Data, its fingerprint and further data, the latest last.
        self._kept: dict[tuple[object, ...], tuple[Any, list[int], dict[str, Data]]] = {}
        self._data: Any = None
        self._further: dict[str, Data] = {}
        self._sequences: Sequences | None = None

    def device(self) -> Device:
        properties = self.torch.cuda.get_device_properties(0)
        return Device(
            arch=self.binding.arch(),
            name=properties.name,
            driver=self._managed.driver or "unknown",
            torch=str(self.torch.__version__),  # its own type would have the parent import torch
            multiprocessors=properties.multi_processor_count,
            uuid=self._managed.uuid,
            memory=properties.total_memory,
            power_limit=self._managed.power_limit,
        )

    def conditions(self, since: float) -> Conditions:
        others, silent = self._managed.others(since)
        return Conditions(self._managed.sm_clock, self._managed.temperature, others=others, silent=silent)

    def sm_clock(self) -> int | None:
        return self._managed.sm_clock

    def prepare(self, problem: Problem) -> None:
        kernel, own = problem.kernel, tuning(problem.kernel.family)
        key = kernel.family, own.data_key(problem)
        # The kernels of one shape follow each other and share data; searches take turns at problems.
        self._data, self._fingerprint, self._further = self._kept.pop(key, (None, [], {}))
        if self._data is None or not self.intact():
            self._data, self._further = None, {}
            self._make_room()
            self._data = own.data(problem)
            self._fingerprint = self._fingerprint_now()
            self._further = further_data(own, problem)
        self._kept[key] = self._data, self._fingerprint, self._further
        for data in (self._data, *self._further.values()):
            for argument in results_of(kernel):
                data.expect(kernel, argument)

    def _make_room(self) -> None:
        """Drops the data that was used the longest ago, until KEPT of the memory holds what is left."""
        room = KEPT * self.torch.cuda.get_device_properties(0).total_memory
        while self._kept and self.torch.cuda.memory_allocated() > room:
            self._kept.pop(next(iter(self._kept)))
        self.torch.cuda.empty_cache()

    def open(self, request: Request) -> Opened:
        kernel = description(request.kernel)
        candidate: Any
        if kernel.called:
            candidate = partial(
                getattr(importlib.import_module(source_module(kernel)), kernel.function), **request.tunables
            )
        else:
            program = launch_program(kernel, operator_of(kernel))
            candidate = self.binding.Candidate(program, request.path.read_bytes(), request.metadata, request.tunables)
        return self._on(self._data, candidate, kernel, request.tunables)

    def _on(self, data: Any, candidate: Any, kernel: KernelDescription, tunables: Mapping[str, int]) -> Opened:
        """The loaded image with results of its own on some data."""
        results = {}
        for argument in results_of(kernel):
            tensor, before = data.result(kernel, argument, tunables)
            results[argument.operand.name] = Result(argument, tensor, before)
        tensors = {name: result.tensor for name, result in results.items()}
        for argument in scratch_of(kernel):
            tensor, fill = data.result(kernel, argument, tunables)
            tensors[argument.operand.name] = tensor.fill_(fill)
        return Opened(candidate, kernel, tunables, self.bind(kernel, candidate, tensors, data), results)

    def bind(
        self, kernel: KernelDescription, candidate: Any, results: Mapping[str, Any], data: Any = None
    ) -> Callable[[], None]:
        """A call that launches ``candidate`` once on tensors, this problem's where no other data is given, and torch's
        current stream.
        """
        data = data or self._data
        given = {**data.tensors, **results}
        taken = [one.operand for one in kernel.arguments if isinstance(one, Tensor)]
        operands = {one.name: given[one.name] for one in taken if one.name in given or not one.optional}
        # An image may be for calls whose other operands have some type.
        steps = (step for choice in kernel.choices for step in choice.source.postfix())
        operands |= {str(name): given[name] for code, name in steps if code == "other_dtype" and name in given}
        scalars, stream = data.scalars, self.torch.cuda.current_stream().cuda_stream
        if kernel.called:
            return partial(candidate, **operands, **scalars)
        sizes = sizes_of(data)
        launch = partial(self.binding.launch, candidate, operands, scalars, sizes, stream=stream)
        if not kernel.scratch:
            return launch
        needed = self.binding.workspace_size(candidate, operands, scalars, sizes, stream=stream)
        # Launches follow each other on one stream, and each program begins anew, so they may share it.
        return partial(launch, workspace=self.torch.empty(needed, dtype=self.torch.uint8, device="cuda"))

    def check(self, opened: Opened) -> Check:
        return self._check(opened, self._data)

    def _check(self, opened: Opened, data: Any) -> Check:
        self._launch(opened)
        tensors = {name: one.tensor for name, one in opened.results.items()}
        checks = [data.check(opened.kernel, one.argument, opened.tunables, tensors) for one in opened.results.values()]
        worst: Check = max(checks, key=lambda check: check.badness)
        return worst

    def _launch(self, opened: Opened) -> None:
        """Launches once, over results that are poisoned."""
        for result in opened.results.values():
            result.restore()
        opened.launch()
        self.torch.cuda.synchronize()

    def check_further(self, opened: Opened) -> tuple[Check, int]:
        checks = [self._check_bits(opened)]
        for what, data in self._further.items():
            check = self._check(self._on(data, opened.candidate, opened.kernel, opened.tunables), data)
            checks.append(replace(check, wrong=check.wrong and f"{what}: {check.wrong}"))
        return max(checks, key=lambda check: check.badness), REPETITIONS + len(self._further)

    def _check_bits(self, opened: Opened) -> Check:
        """Whether REPETITIONS launches leave the same bits. Where programs add to a result, the order is free, and one
        that is read and written may be added to.
        """
        compared = {
            name: one.tensor
            for name, one in opened.results.items()
            if one.argument.access != "add" and not one.argument.operand.updated
        }
        self._launch(opened)
        first = {name: self._words(tensor).clone() for name, tensor in compared.items()}
        for number in range(2, REPETITIONS + 1):
            self._launch(opened)
            for name, tensor in compared.items():
                if not self.torch.equal(self._words(tensor), first[name]):
                    return Check(None, None, f"{name} has other bits after launch {number} on the same inputs")
        return Check(None, None)

    def _words(self, tensor: Any) -> Any:
        """The tensor's bits, as integers."""
        torch = self.torch
        kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return tensor.view(kinds[tensor.element_size()])

    def intact(self) -> bool:
        return self._fingerprint_now() == self._fingerprint

    def _fingerprint_now(self) -> list[int]:
        """A number for each input, which changes where the input does."""
        torch = self.torch
        words = map(self._words, self._data.tensors.values())
        sums: list[int] = torch.stack([word.sum(dtype=torch.int64) for word in words]).tolist()
        return sums

    def round(self, opened: Sequence[Opened]) -> list[Sample]:
        return self._clock.round([one.launch for one in opened], restore=[one.restore for one in opened])

    def close(self, opened: Opened) -> None:
        if not opened.kernel.called:
            self.binding.release(opened.candidate)

    def sequences(self, draw: Draw) -> Timed:
        self._data, self._further = None, {}
        self._kept.clear()
        self.torch.cuda.empty_cache()
        if self._sequences is None:
            self._sequences = Sequences(self.torch, self.binding, self._clock, self.device().multiprocessors)
        began, clocks = time.time(), Clocks(self.sm_clock)
        timings = self._sequences.time(draw, clocks)
        return Timed(timings, self.conditions(began).of(clocks))

    def healthy(self) -> bool:
        try:
            self.torch.cuda.synchronize()
            return float(self.torch.ones(1, device="cuda").sum()) == 1.0
        except Exception:
            return False
