"""Loads libaotriton_torch.so, which defines ``torch.ops.aotriton``, and attention's autograd and autocast in C++, where
they were built with this release of torch.
"""

from __future__ import annotations

from pathlib import Path

import torch

import aotriton

NAME = "libaotriton_torch.so"


AUTOGRAD = f"libaotriton_torch_autograd-{'.'.join(torch.__version__.split('.')[:2])}.so"


def first(name: str, folders: list[str]) -> Path | None:
    """The file in the first of the folders that has it. None where none has."""
    return next((path for path in (Path(folder) / name for folder in folders) if path.is_file()), None)


def find(folders: list[str]) -> Path:
    """The library in the first of the folders that has it. ImportError where none has."""
    if path := first(NAME, folders):
        return path
    raise ImportError(
        f"aotriton.torch needs {NAME}, which is in none of {', '.join(folders)}. Built from source, a wheel has it "
        "where torch 2.11 or newer was there before: pip install --force-reinstall --no-deps . in the source tree. "
        "A build of cmake has it with -DAOTRITON_TORCH=ON, when its folder python is on PYTHONPATH"
    )


if not hasattr(torch.ops.aotriton, "attn_fwd"):  # a program may have loaded it before
    torch.ops.load_library(str(find(list(aotriton.__path__))))

# Of attn_fwd and attn_bwd; in other releases, kernels in Python do the same.
HAS_AUTOGRAD = False
if path := first(AUTOGRAD, list(aotriton.__path__)):
    torch.ops.load_library(str(path))
    HAS_AUTOGRAD = True
