"""From an image to launches through the library's own C++ host code, and to the check of what they wrote."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from aotriton.tune.measure import GpuClock
from aotriton.tune.problems import Problem
from aotriton.tune.reference import Attention, Check
from aotriton.tune.worker import Device, Request

NO_BINDING = (
    "pyaotriton, the library's Python binding, is missing: build it with"
    " `cmake --preset tune && cmake --build --preset tune` and set PYTHONPATH=build/tune/python"
)

RESULTS = {
    "attn_fwd": ("out", "lse"),
    "attn_fwd_hopper": ("out", "lse"),
    "attn_bwd_preprocess": ("delta",),
    "attn_bwd_dk_dv": ("dk", "dv"),
    "attn_bwd_dq": ("dq",),
    "attn_bwd_hopper_prepare": ("delta", "dq_cleared"),
    "attn_bwd_hopper": ("dk", "dv", "dq_added"),
    "attn_bwd_hopper_finish": ("dq_of_sum",),
    "attn_bwd_hopper_dk_dv": ("dk", "dv"),
    "attn_bwd_hopper_dq": ("dq",),
}


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


@dataclass
class Opened:
    """A loaded image and the tensors that it writes."""

    candidate: Any
    launch: Callable[[], None]
    results: dict[str, Any]


class GpuLauncher:
    """``worker.Launcher`` for the one GPU that this process sees."""

    def __init__(self) -> None:
        import torch

        try:
            import pyaotriton
        except ImportError as error:
            raise RuntimeError(f"{NO_BINDING} ({error})") from error
        self.torch: ModuleType = torch
        self.binding: ModuleType = pyaotriton
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the context current, which the binding takes up
        self._clock = GpuClock()
        self._data_key: tuple[object, ...] | None = None

    def device(self) -> Device:
        properties = self.torch.cuda.get_device_properties(0)
        return Device(
            arch=self.binding.arch(),
            name=properties.name,
            driver=_driver_version(),
            torch=str(self.torch.__version__),  # its own type would have the parent import torch
            multiprocessors=properties.multi_processor_count,
        )

    def prepare(self, problem: Problem) -> None:
        functional, shape = problem.functional, problem.shape
        self._kernel, self._causal = problem.kernel.name, bool(functional.get("CAUSAL", False))
        key = functional["T"], shape, self._causal
        if key != self._data_key or not self.intact():  # the kernels of one shape follow each other and share data
            self._data_key = None
            self._make_data(problem)
            self._data_key = key
        for name in RESULTS[self._kernel]:
            self._data.expect(name)

    def _make_data(self, problem: Problem) -> None:
        functional, shape = problem.functional, problem.shape
        self._data: Any = None
        self.torch.cuda.empty_cache()
        self._data = Attention(
            batch=shape.batch,
            heads=shape.heads,
            seqlen_q=shape.seqlen_q,
            seqlen_k=shape.seqlen_k,
            head_dim=shape.head_dim,
            causal=self._causal,
            dtype={"fp16": self.torch.float16, "bf16": self.torch.bfloat16}[str(functional["T"])],
            device="cuda",
            truth=self.torch.float32,
        )
        self._fingerprint = self._fingerprint_now()

    def open(self, request: Request) -> Opened:
        data = self._data
        candidate = self.binding.Candidate(request.kernel, request.path.read_bytes(), request.metadata, request.psels)
        like = {"out": data.q, "lse": data.lse, "delta": data.delta, "dq": data.q, "dk": data.k, "dv": data.v}
        like |= {"dq_cleared": data.dq_sum, "dq_added": data.dq_sum, "dq_of_sum": data.q}
        results = {name: self.torch.empty_like(like[name]) for name in RESULTS[request.kernel]}
        return Opened(candidate, self.bind(request.kernel, candidate, results), results)

    def bind(self, kernel: str, candidate: Any, results: dict[str, Any]) -> Callable[[], None]:
        """A call that launches ``candidate`` once on this problem's tensors and torch's current stream."""
        data, binding = self._data, self.binding
        stream = self.torch.cuda.current_stream().cuda_stream
        common = {"sm_scale": data.sm_scale, "causal": self._causal, "stream": stream}
        tensors: Sequence[Any]
        if kernel in ("attn_fwd", "attn_fwd_hopper"):
            tensors = (data.q, data.k, data.v, results["out"], results["lse"])
            return lambda: binding.launch_attn_fwd(candidate, *tensors, **common)
        if kernel == "attn_bwd_preprocess":
            tensors = (data.out, data.dout, results["delta"])
            return lambda: binding.launch_attn_bwd_preprocess(candidate, *tensors, stream=stream)
        if kernel == "attn_bwd_hopper_prepare":
            tensors = (data.out, data.dout, *results.values())
            return lambda: binding.launch_attn_bwd_hopper_prepare(candidate, *tensors, stream=stream)
        if kernel == "attn_bwd_hopper_finish":
            scale = data.sm_scale
            tensors = (data.dq_sum, *results.values())
            return lambda: binding.launch_attn_bwd_hopper_finish(candidate, *tensors, sm_scale=scale, stream=stream)
        tensors = (data.q, data.k, data.v, data.dout, data.lse, data.delta, *results.values())
        if kernel == "attn_bwd_hopper":
            return lambda: binding.launch_attn_bwd_hopper(candidate, *tensors, **common)
        if kernel in ("attn_bwd_dk_dv", "attn_bwd_hopper_dk_dv"):
            return lambda: binding.launch_attn_bwd_dk_dv(candidate, *tensors, **common)
        return lambda: binding.launch_attn_bwd_dq(candidate, *tensors, **common)

    def check(self, opened: Opened) -> Check:
        for name, result in opened.results.items():
            result.fill_(0.0 if name == "dq_added" else self.torch.nan)
        opened.launch()
        self.torch.cuda.synchronize()
        checks = [self._data.check(name, result) for name, result in opened.results.items()]
        return max(checks, key=lambda c: (c.wrong is not None, (c.error or 0.0) / (c.tolerance or 1.0)))

    def intact(self) -> bool:
        return self._fingerprint_now() == self._fingerprint

    def _fingerprint_now(self) -> list[int]:
        data, torch = self._data, self.torch
        words = [tensor.view(torch.int16) for tensor in (data.q, data.k, data.v, data.out, data.dout)]
        words += [tensor.view(torch.int32) for tensor in (data.lse, data.delta)]
        return torch.stack([word.sum(dtype=torch.int64) for word in words]).tolist()

    def time(self, opened: Opened, repetitions: int) -> list[float]:
        return self._clock.time(opened.launch, repetitions)

    def close(self, opened: Opened) -> None:
        self.binding.release(opened.candidate)

    def healthy(self) -> bool:
        try:
            self.torch.cuda.synchronize()
            return float(self.torch.ones(1, device="cuda").sum()) == 1.0
        except Exception:
            return False


def _driver_version() -> str:
    """The version of the installed driver, such as 580.159.04; "unknown" where the management library is missing."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "unknown"
    text = ctypes.create_string_buffer(96)
    library.nvmlInit_v2()
    library.nvmlSystemGetDriverVersion(text, len(text))
    library.nvmlShutdown()
    return text.value.decode() or "unknown"
