"""Element types of tensors, by the names that descriptions have (``rules/arch.py``: ``DTYPES``)."""

from __future__ import annotations

from typing import Any

NAMES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "i32": "int32",
    "i64": "int64",
    "i1": "bool",
    "i8": "int8",
    "u8": "uint8",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp8e4b8": "float8_e4m3fnuz",
}


def torch_dtype(name: str) -> Any:
    """torch's element type; KeyError if no description has the name."""
    import torch

    return getattr(torch, NAMES[name])
