"""The name of the first GPU that a program sees, by the driver."""

from __future__ import annotations

import ctypes
from typing import Any


def product_here() -> str | None:
    """The product of the first visible GPU; None where there is none. Makes no context."""
    for library, prefix in (("libcuda.so.1", "cu"), ("libamdhip64.so", "hip")):
        try:
            driver = ctypes.CDLL(library)
        except OSError:
            continue
        device, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
        asked: list[tuple[str, tuple[Any, ...]]] = [
            ("Init", (0,)),
            ("DeviceGet", (ctypes.byref(device), 0)),
            ("DeviceGetName", (name, len(name), device)),
        ]
        if all(getattr(driver, prefix + function)(*arguments) == 0 for function, arguments in asked):
            return name.value.decode()
    return None
