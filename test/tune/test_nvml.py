"""What is asked of NVIDIA's management library, and what is known without it; on a stand-in for it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from aotriton.tune.measure.nvml import TUNER, ManagedGpu


class Library:
    """Two GPUs, of which the second one is asked for; functions in ``refused`` fail, those in ``lacks`` are missing."""

    def __init__(
        self, refused: tuple[str, ...] = (), processes: tuple[int, ...] = (), lacks: tuple[str, ...] = ()
    ) -> None:
        self.processes, self.lacks = processes, lacks
        self.refused, self.uuids = refused, {b"GPU-one": 1, b"GPU-two": 2}

    def __getattr__(self, name: str) -> Any:
        if name in self.lacks:
            raise AttributeError(name)
        known = {
            "nvmlInit_v2": lambda: 0,
            "nvmlSystemGetDriverVersion": self._driver,
            "nvmlDeviceGetHandleByUUID": self._handle,
            "nvmlDeviceGetPowerManagementLimit": lambda gpu, out: self._set(out, 700_999 if gpu.value == 2 else 0),
            "nvmlDeviceGetClockInfo": lambda gpu, kind, out: self._set(out, {1: 1980}[kind] * (gpu.value == 2)),
            "nvmlDeviceGetComputeRunningProcesses_v3": self._running,
            "nvmlDeviceGetTemperature": lambda gpu, sensor, out: self._set(out, {0: 41}[sensor] * (gpu.value == 2)),
        }
        return (lambda *given: 999) if name in self.refused else known[name]

    def _driver(self, text: Any, size: int) -> int:
        text.value = b"580.1"[:size]
        return 0

    def _handle(self, uuid: bytes, out: Any) -> int:
        return self._set(out, self.uuids[uuid]) if uuid in self.uuids else 6

    def _running(self, gpu: Any, count: Any, found: Any) -> int:
        for place, process in enumerate(self.processes):
            found[place].pid = process
        return self._set(count, len(self.processes))

    def _set(self, out: Any, value: int) -> int:
        out._obj.value = value
        return 0


def gpu(monkeypatch: pytest.MonkeyPatch, library: Library, uuid: str = "GPU-two") -> ManagedGpu:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    return ManagedGpu(uuid)


def facts(of: ManagedGpu) -> tuple[object, ...]:
    return of.driver, of.uuid, of.power_limit, of.sm_clock, of.temperature


def test_the_right_gpu_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one with this uuid, of two; the limit in whole watts."""
    assert facts(gpu(monkeypatch, Library())) == ("580.1", "GPU-two", 700, 1980, 41)


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        (("nvmlInit_v2",), (None,) * 5),
        (("nvmlDeviceGetHandleByUUID",), ("580.1", None, None, None, None)),
        (("nvmlSystemGetDriverVersion",), (None, "GPU-two", 700, 1980, 41)),
        (("nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetTemperature"), ("580.1", "GPU-two", None, 1980, None)),
    ],
)
def test_what_is_refused_is_none(
    monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...], expected: tuple[object, ...]
) -> None:
    """And nothing else is: the rest of the answers stands."""
    assert facts(gpu(monkeypatch, Library(refused))) == expected


def test_without_the_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside ROCm: no error."""

    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert facts(ManagedGpu("GPU-two")) == (None,) * 5


@contextmanager
def process(name: str) -> Iterator[int]:
    """Another process that calls itself so."""
    code = f"import ctypes; ctypes.CDLL(None).prctl(15, {name!r}.encode()); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as made:
        assert made.stdout
        made.stdout.readline()
        yield made.pid
        made.communicate(b"\n")


def test_other_processes_on_the_gpu_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not this one, one above it, which waits for it, nor a tuner's that waits for the GPU."""
    with process("someone") as other, process(TUNER) as tuner:
        library = Library(processes=(os.getppid(), os.getpid(), other, tuner))
        assert gpu(monkeypatch, library).others == (f"{other} (someone)",)
    library.processes = (os.getpid(),)
    assert gpu(monkeypatch, library).others == ()


def test_a_process_that_is_gone_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with process("gone") as other:
        pass
    assert gpu(monkeypatch, Library(processes=(os.getpid(), other))).others == (f"{other} (unknown)",)


def test_of_processes_with_numbers_of_the_host_one_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu(monkeypatch, Library(processes=(4_000_001,))).others == ()
    assert gpu(monkeypatch, Library(processes=(4_000_001, 4_000_002))).others == ("4000002",)


def test_without_an_answer_no_process_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    running = "nvmlDeviceGetComputeRunningProcesses_v3"
    assert gpu(monkeypatch, Library((running,), (1, 2))).others == ()
    assert gpu(monkeypatch, Library(processes=(1, 2), lacks=(running,))).others == ()
    assert gpu(monkeypatch, Library(("nvmlInit_v2",), (1, 2))).others == ()
