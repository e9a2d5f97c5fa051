"""Loads libaotriton_torch.so, which defines ``torch.ops.aotriton``."""

from __future__ import annotations

from pathlib import Path

import torch

import aotriton

NAME = "libaotriton_torch.so"


def find(folders: list[str]) -> Path:
    """The library in the first of the folders that has it. ImportError where none has."""
    for folder in folders:
        path = Path(folder) / NAME
        if path.is_file():
            return path
    raise ImportError(
        f"aotriton.torch needs {NAME}, which is in none of {', '.join(folders)}. Built from source, a wheel has it "
        "where torch 2.11 or newer was there before: pip install --force-reinstall --no-deps . in the source tree. "
        "A build of cmake has it with -DAOTRITON_TORCH=ON, when its folder python is on PYTHONPATH"
    )


if not hasattr(torch.ops.aotriton, "attn_fwd"):  # a program may have loaded it before
    torch.ops.load_library(str(find(list(aotriton.__path__))))
