"""Keys and values of a case in floats of 8 bits: codes, scales for each sequence and head, and what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from attention_cases import VALUES, Case

from aotriton.rules.flash.common import FP8
from aotriton.rules.flash.features import FP8_KEYS, bits, refusal


def _numbers(bias: int, nan: int) -> np.ndarray:
    """The number of each code: 4 bits of exponent with this bias and 3 of mantissa."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - bias - 3), mantissa * 2.0 ** (1 - bias - 3))
    made = np.where(code & 128, -size, size)
    made[[nan, nan | 128]] = np.nan
    return made


# Micikevicius et al., FP8 Formats for Deep Learning (2022); without infinities. The second one has no minus zero: its
# code is the only one that is no number.
NUMBERS = {"fp8e4nv": _numbers(7, 0x7F), "fp8e4b8": _numbers(8, 0x80)}
NO_NUMBER = {"fp8e4nv": 0x7F, "fp8e4b8": 0x80}
NUMBERS["fp8e4b8"][0x7F] = 240.0


def encode(dtype: str, values: np.ndarray) -> np.ndarray:
    """The codes of the nearest numbers; minus zero keeps its sign where the type has it."""
    numbers = NUMBERS[dtype]
    order = np.argsort(numbers)[: np.isfinite(numbers).sum()]
    ascending = numbers[order]
    place = np.clip(np.searchsorted(ascending, values), 1, len(order) - 1)
    lower = values - ascending[place - 1] <= ascending[place] - values
    codes = np.where(np.isnan(values), NO_NUMBER[dtype], order[place - lower])
    zero = np.where(np.signbit(values) & (numbers[128] == 0), 128, 0)
    return np.where(numbers[codes] == 0, zero, codes).astype(np.uint8)


def types_of(values: Mapping[str, Any]) -> set[str]:
    """The types of 8 bits that values of a kernel's choices name."""
    return {one for value in values.values() for one in FP8 if str(value).endswith(one)}


def of_fp8(case: Case) -> Case:
    """What calls with keys of 8 bits have of the case: no weights, and head dims that fill vectors."""
    without: dict[str, Any] = {one.name: values[0] for one, values in VALUES.items() if refusal(bits((one, FP8_KEYS)))}
    dims = {name: -(-getattr(case, name) // 16) * 16 for name in ("head_dim", "head_dim_v")}
    dtype = "bf16" if case.dtype == "fp32" else case.dtype
    layout = "rows" if case.layout == "rows" else "heads"
    return replace(case, **dims, **without, dtype=dtype, layout=layout)


@dataclass(frozen=True)
class Quantised:
    """``codes`` of a tensor's shape, ``scale`` fp32 [sequences, heads_k], and the ``values`` that they stand for."""

    codes: np.ndarray
    scale: np.ndarray
    values: np.ndarray


def quantised(case: Case, dtype: str, x: np.ndarray, exact: bool) -> Quantised:
    """k or v, [batch, heads_k, rows, width], of a case. ``exact``: values are numbers of 16 bits, too, because scales
    are powers of two.
    """
    rng = np.random.default_rng(case.number)
    shape = (len(case.lengths_k), x.shape[1])
    scale = 2.0 ** rng.integers(-3, 3, shape) if exact else rng.uniform(0.01, 3, shape)
    scale = scale.astype(np.float32)
    of_rows = np.repeat(scale, [*case.lengths_k], 0).T if case.packed else None  # [heads_k, rows]
    if of_rows is not None:
        beyond = np.ones((x.shape[1], case.beyond), np.float32)
        factor = np.concatenate([of_rows, beyond], 1)[None, :, :, None]
    else:
        factor = scale[:, :, None, None]
    codes = encode(dtype, x / factor)
    return Quantised(codes, scale, NUMBERS[dtype][codes] * factor)
