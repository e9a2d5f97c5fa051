"""NVIDIA's management library about one GPU: its power limit, clock, temperature, driver version and processes.

Every answer is None where the library is missing, as it is beside ROCm, or does not know.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SM_CLOCK, GPU_SENSOR = 1, 0  # NVML_CLOCK_SM and NVML_TEMPERATURE_GPU
NOT_FOUND, INSUFFICIENT_SIZE = 6, 7  # NVML_ERROR_...
MOST_PROCESSES = 64
BEFORE = 2.0  # seconds: what NVML knows of a process's computing comes up to 1 s late
# The name of a tuner's process that owns a GPU. Of several tuners the GPU's lock lets one launch at a time: another
# one's process only waits.
TUNER = "aotriton-gpu"


class Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t: of a while until ``time``, in microseconds of the Unix time, in percent."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class ManagedGpu:
    """The GPU with this ``uuid``, as the driver spells it: of several in a machine, the one that kernels run on."""

    def __init__(self, uuid: str) -> None:
        self.uuid: str | None = None
        self.driver: str | None = None
        self._handle = ctypes.c_void_p()
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        text = ctypes.create_string_buffer(96)
        if self._library.nvmlInit_v2():  # each function returns 0 if it could do what it was asked for
            return
        if not self._library.nvmlSystemGetDriverVersion(text, len(text)):
            self.driver = text.value.decode() or None
        if not self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._handle)):
            self.uuid = uuid

    @property
    def power_limit(self) -> int | None:
        """In watts."""
        milliwatts = self._number("nvmlDeviceGetPowerManagementLimit")
        return None if milliwatts is None else milliwatts // 1000

    @property
    def sm_clock(self) -> int | None:
        """In MHz, at this moment."""
        return self._number("nvmlDeviceGetClockInfo", SM_CLOCK)

    @property
    def temperature(self) -> int | None:
        """In °C, at this moment."""
        return self._number("nvmlDeviceGetTemperature", GPU_SENSOR)

    def others(self, since: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Processes on the GPU, by number and name: those that computed since then, by ``time.time()``, or just before;
        and those of which it is not known, where the driver does not tell, as under MIG. An idle one is neither.

        Nor is this one, one above it, which waits for it, or a tuner's. In a container processes may have numbers of
        the host: this one is not found among them then, and one of them is this one.
        """
        numbers = self._processes()
        known = os.getpid() in numbers
        named = {number: str(number) for number in numbers}
        if known:
            above = set(_line(os.getpid()))
            names = {number: _about(number).get("Name", "unknown") for number in numbers if number not in above}
            named = {number: f"{number} ({name})" for number, name in names.items() if name != TUNER}
        own = 0 if known else 1
        if len(named) <= own:
            return (), ()
        computed = self._computed(int(1e6 * (since - BEFORE)))
        if computed is None:
            return (), tuple(named.values())[own:]
        return tuple(text for number, text in named.items() if number in computed)[own:], ()

    def _processes(self) -> list[int]:
        """Those that compute, or could."""
        if self.uuid is None:
            return []
        running = getattr(self._library, "nvmlDeviceGetComputeRunningProcesses_v3", None)  # drivers before 510 lack it
        found, count = (Process * MOST_PROCESSES)(), ctypes.c_uint(MOST_PROCESSES)
        if running is None or running(self._handle, ctypes.byref(count), found):
            return []
        return [found[place].pid for place in range(count.value)]

    def _computed(self, since: int) -> set[int] | None:
        """The processes that computed since then, in microseconds; None where the library does not tell."""
        ask = getattr(self._library, "nvmlDeviceGetProcessUtilization", None)
        if ask is None:
            return None
        count = ctypes.c_uint()
        status = ask(self._handle, None, ctypes.byref(count), ctypes.c_ulonglong(since))
        found = (Sample * count.value)()
        if status == INSUFFICIENT_SIZE:
            status = ask(self._handle, found, ctypes.byref(count), ctypes.c_ulonglong(since))
        if status == NOT_FOUND:
            return set()
        if status:
            return None
        # Drivers also return samples that are older, or of more than 100 %.
        return {one.pid for one in found[: count.value] if 0 < one.sm <= 100 and one.time > since}

    def _number(self, function: str, *arguments: int) -> int | None:
        if self.uuid is None:
            return None
        value = ctypes.c_uint()
        failed = getattr(self._library, function)(self._handle, *arguments, ctypes.byref(value))
        return None if failed else value.value


def _line(process: int) -> Iterator[int]:
    """The process and those above it."""
    while process > 0:
        yield process
        process = int(_about(process).get("PPid", 0))


def _about(process: int) -> dict[str, str]:
    """What Linux says of a process; nothing where it is gone."""
    with suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {}
