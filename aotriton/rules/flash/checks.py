"""The checks of attention's calls, as the library makes them: ``v2src/flash/checks.cc`` and ``band.cc`` in Python, of
what the calls of models have. ``test/runtime/test_model_coverage.py`` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aotriton.rules.flash import common as c
from aotriton.rules.flash import features as f


def refusal(operator: str, sizes: Mapping[str, int], features: int) -> str | None:
    """What the checks say against a call; None where nothing."""
    if sizes["heads_q"] % sizes["heads_k"]:
        multiple = f"must be a multiple of the {sizes['heads_k']} of k"
        return f"{operator}: q has {sizes['heads_q']} heads, which {multiple}"
    most = c.MOST_HEAD_DIM
    for operand, name in (("q", "head_dim"), ("v", "head_dim_v")):
        if not 1 <= sizes[name] <= most:
            return f"{operator}: {operand} has {name} {sizes[name]}, which must be from 1 to {most}"
    if together := f.refusal(features):
        return f"{operator}: {together}"
    for operand, name in (("q", "head_dim"), ("v", "head_dim_v")):
        if features & f.PAGES.bit and sizes[name] > c.MOST_PLAIN:
            found = f"{operand} has {name} {sizes[name]}, which must be from 1 to {c.MOST_PLAIN}"
            return f"{operator}: with {f.PAGES.asked}, {found}"
    return None


def band(own: Mapping[str, Any], sizes: Mapping[str, int], features: int, dtype: str) -> dict[str, int]:
    """The scalars that the checks make of masks and windows, as set_level of v2src/flash/band.cc."""
    plain = not features and _may_be_plain(sizes, dtype)
    rows, keys = sizes["seqlen_q"], sizes["seqlen_k"]
    left, right = own.get("window_left", -1), own.get("window_right", -1)
    causal, windowed = bool(own.get("causal")), left >= 0 or right >= 0

    def made(level: int, triangle: bool, lo: int, hi: int) -> dict[str, int]:
        return {"level": level, "causal": int(triangle), "lo": lo, "hi": hi, "features": features & ~f.FP8_KEYS.bit}

    if plain and not windowed and (not causal or rows == keys):
        return made(c.PLAIN, causal, 0, 0)
    last = own.get("causal_variant") == "bottom_right" and (causal or windowed)
    found_by_kernel = bool(features & f.OF_LENGTHS)
    own_key = keys - rows if last and not found_by_kernel else 0
    most = max(rows, keys)
    behind = 0 if causal else most if right < 0 else min(right, most)
    before = most if left < 0 else min(left, most)
    level = c.PAGED if features & f.PAGES.bit else c.FULL if features & f.OF_FULL else c.GENERAL
    if found_by_kernel:
        features |= f.OWN_LAST.bit if last else 0
        return made(level, False, -before, behind)
    lo, hi = (min(max(end, -rows), keys) for end in (own_key - before, own_key + behind))
    if not plain:
        return made(level, False, lo, hi)
    if lo <= 1 - rows and hi >= keys - 1:
        return made(c.PLAIN, False, 0, 0)
    if lo <= 1 - rows and hi == 0 and rows == keys:
        return made(c.PLAIN, True, 0, 0)
    return made(c.BANDED, False, lo, hi)


def self_attention(operator: str, sizes: Mapping[str, int], features: int) -> int:
    """The scalar of that name, of sequences that are not packed."""
    return int(operator == "attn_bwd" and sizes["seqlen_q"] == sizes["seqlen_k"] and not features & f.OF_LENGTHS)


def _may_be_plain(sizes: Mapping[str, int], dtype: str) -> bool:
    """Whether calls of this type and these head dims have images without features."""
    width, of_v = sizes["head_dim"], sizes["head_dim_v"]
    return dtype != "fp32" and width == of_v <= c.MOST_PLAIN and not width % c.WIDTH.multiple_of
