"""NVIDIA's management library about one GPU: its power limit, clock, temperature and driver version.

Every answer is None where the library is missing, as it is beside ROCm, or does not know.
"""

from __future__ import annotations

import ctypes

SM_CLOCK, GPU_SENSOR = 1, 0  # NVML_CLOCK_SM and NVML_TEMPERATURE_GPU


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

    def _number(self, function: str, *arguments: int) -> int | None:
        if self.uuid is None:
            return None
        value = ctypes.c_uint()
        failed = getattr(self._library, function)(self._handle, *arguments, ctypes.byref(value))
        return None if failed else value.value
