"""Claims about results that are put into another state: they are if every call runs the images that it ran."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import same_images

MACHINE = {"gpu": "NVIDIA H100 80GB HBM3", "multiprocessors": "132"}
CELL = {"direction": "backward", "batch": 2, "heads": 8, "heads_k": 4, "seqlen": 300, "head_dim": 64, "causal": True}


@pytest.mark.parametrize("images", [["one", "two"], [["one", "predicted"], ["two", "borrowed"]]])
def test_a_call_that_runs_other_images_is_named(monkeypatch: pytest.MonkeyPatch, images: list[Any]) -> None:
    """What is asked is the call that was timed, on its product; images may stand alone or with their provenance."""
    asked = []

    def explain(op: str, **call: Any) -> list[dict[str, str]]:
        asked.append((op, call))
        return [{"image": name} for name in ("one", chosen)]

    monkeypatch.setattr("aotriton.explain", explain, raising=False)
    record = {"machine": MACHINE, "cells": [CELL | {"images": images}]}
    chosen = "two"
    assert same_images.others(record) == []
    monkeypatch.setattr(same_images, "names_today", lambda _: {"two": "three"})  # the same bits
    assert same_images.others(record) == ["backward, 2 × 8 heads, 300 rows, D 64"]
    chosen = "three"
    assert same_images.others(record) == []
    monkeypatch.setattr(same_images, "names_today", lambda _: {})
    assert same_images.others(record) == ["backward, 2 × 8 heads, 300 rows, D 64"]
    sizes = {"batch": 2, "heads_q": 8, "heads_k": 4, "seqlen_q": 300, "seqlen_k": 300, "head_dim": 64, "causal": True}
    place = {"arch": "sm_90", "product": "NVIDIA H100 80GB HBM3", "multiprocessors": 132, "dtype": "bf16"}
    assert asked == [("attn_bwd", sizes | place)] * 4
