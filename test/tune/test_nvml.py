"""What is asked of NVIDIA's management library, and what is known without it; on a stand-in for it."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from aotriton.tune.measure.nvml import TUNER, ManagedGpu


class Library:
    """Two GPUs, of which the second one is asked for; functions in ``refused`` fail, those in ``lacks`` are missing.
    ``computed``: by process in percent how much, and when; without it all of them do so now.
    """

    def __init__(
        self,
        refused: tuple[str, ...] = (),
        processes: tuple[int, ...] = (),
        lacks: tuple[str, ...] = (),
        computed: Mapping[int, tuple[int, float]] | None = None,
    ) -> None:
        self.processes, self.lacks = processes, lacks
        self.computed = {one: (50, time.time()) for one in processes} if computed is None else computed
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
            "nvmlDeviceGetProcessUtilization": self._utilization,
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

    def _utilization(self, gpu: Any, found: Any, count: Any, since: Any) -> int:
        """A buffer with 32 bytes a sample, as in nvml.h. Old samples are among them if there is a new one."""
        samples = [(one, int(1e6 * at), busy) for one, (busy, at) in self.computed.items()]
        samples = samples if any(at > since.value for _, at, _ in samples) else []
        assert gpu.value == 2
        if samples and found:
            assert count._obj.value >= len(samples)
            packed = b"".join(struct.pack("@IQIIII", one, at, busy, 1, 0, 0) for one, at, busy in samples)
            ctypes.memmove(found, packed, len(packed))
            return self._set(count, len(samples))
        self._set(count, len(samples))
        return 7 if samples else 6

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


def others(monkeypatch: pytest.MonkeyPatch, library: Library) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return gpu(monkeypatch, library).others(time.time())


def test_other_processes_that_compute_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not this one, one above it, which waits for it, nor a tuner's that waits for the GPU."""
    with process("someone") as other, process(TUNER) as tuner:
        library = Library(processes=(os.getppid(), os.getpid(), other, tuner))
        assert others(monkeypatch, library) == ((f"{other} (someone)",), ())
    library.processes = (os.getpid(),)
    assert others(monkeypatch, library) == ((), ())


def test_a_process_that_does_not_compute_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no sample, an old one, or one without work of the multiprocessors, or with more than they can do. One that
    computed just before counts, as samples come late.
    """
    own, now = os.getpid(), time.time()
    computing: tuple[tuple[dict[int, tuple[int, float]], tuple[str, ...]], ...] = (
        ({}, ()),
        ({own: (90, now)}, ()),
        ({4_000_001: (0, now)}, ()),
        ({4_000_001: (90, now - 60)}, ()),
        ({own: (90, now), 4_000_001: (90, now - 60)}, ()),
        ({4_000_001: (4_000, now)}, ()),
        ({own: (90, now), 4_000_001: (1, now - 1)}, ("4000001 (unknown)",)),
    )
    for computed, named in computing:
        library = Library(processes=(own, 4_000_001), computed=computed)
        assert others(monkeypatch, library) == (named, ()), computed


def test_where_the_library_does_not_tell_who_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under MIG, or as an old one: processes are named apart."""
    asked, processes = "nvmlDeviceGetProcessUtilization", (os.getpid(), 4_000_001)
    for library in (Library((asked,), processes), Library(processes=processes, lacks=(asked,))):
        assert others(monkeypatch, library) == ((), ("4000001 (unknown)",))
    assert others(monkeypatch, Library((asked,), processes[:1])) == ((), ())
    assert others(monkeypatch, Library((asked,), (4_000_001, 4_000_002))) == ((), ("4000002",))


def test_a_process_that_is_gone_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with process("gone") as other:
        pass
    assert others(monkeypatch, Library(processes=(os.getpid(), other))) == ((f"{other} (unknown)",), ())


def test_of_processes_with_numbers_of_the_host_one_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = 4_000_001, 4_000_002
    assert others(monkeypatch, Library(processes=processes[:1])) == ((), ())
    assert others(monkeypatch, Library(processes=processes)) == (("4000002",), ())
    assert others(monkeypatch, Library(processes=processes, computed={4_000_002: (90, time.time())})) == ((), ())


def test_without_an_answer_no_process_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    running = "nvmlDeviceGetComputeRunningProcesses_v3"
    assert others(monkeypatch, Library((running,), (1, 2))) == ((), ())
    assert others(monkeypatch, Library(processes=(1, 2), lacks=(running,))) == ((), ())
    assert others(monkeypatch, Library(("nvmlInit_v2",), (1, 2))) == ((), ())
