"""The backend "aotriton" of ``torch.nn.functional.scaled_dot_product_attention``.

``torch.nn.attention.activate_flash_attention_impl("aotriton")`` has what SDPA gives its flash backend and cuDNN, which
it prefers on Hopper, and calls with a mask that it gives its memory-efficient backend, run on this library, wherever
that supports it, and on the kernel that torch chose elsewhere, without a line of Python in between. So do
``varlen_attn`` and SDPA of jagged tensors. Who disables the flash backend, as ``sdpa_kernel`` does, has this library
disabled, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import register_flash_attention_impl

from aotriton.torch import library  # noqa: F401 (defines the operators)

OPS = torch.ops.aotriton


class _Active:
    """What ``restore_flash_attention_impl`` ends."""

    def remove(self) -> None:
        OPS._restore()


def _activate() -> _Active:
    OPS._activate("CUDA")
    return _Active()


def stats() -> dict[str, dict[str, Any]]:
    """How many of SDPA's calls ran where since the process began: of ``forward`` and of ``backward``, under
    ``aotriton`` how many ran on this library, and under ``torch`` how many went on to torch's own kernel, for each
    reason. Under ``hints``, how many calls of each operator were told which.

    Calls of the operators, such as of ``attention``, are none of SDPA's; those of ``varlen_attn`` count as SDPA's. What
    SDPA computes by its formula, as with the backend MATH, is not seen.
    """
    found: dict[str, dict[str, Any]] = {name: {"aotriton": 0, "torch": {}} for name in ("forward", "backward")}
    found["hints"] = {}
    for line in OPS._counted().splitlines():
        name, what, why, count = line.split("\t")
        if what == "aotriton":
            found[name]["aotriton"] = int(count)
        elif what == "torch":
            found[name]["torch"][why] = int(count)
        else:
            found["hints"].setdefault(name, {})[why] = int(count)
    return found


register_flash_attention_impl("aotriton", register_fn=_activate)
