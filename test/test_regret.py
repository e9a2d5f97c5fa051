"""The benchmark of the choice: what it compares. No GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from aotriton.rules.family import operator

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("regret", ROOT / "bench" / "regret.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "regret", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    return module


def test_what_refuses_a_call_is_left_out_and_named(bench: ModuleType) -> None:
    """A backend whose guards refuse a shape cannot be timed on it: it is no candidate there, and the result says so."""
    attn_bwd = operator("attn_bwd")
    choices = {"T": "bf16", "BLOCK_DMODEL": 128, "CAUSAL": False, "ADDRESSING": "descriptor"}
    functional = attn_bwd.lead.functional("sm_90", **choices)
    short = {"batch": 2, "heads_q": 16, "heads_k": 16, "seqlen_q": 100, "seqlen_k": 100, "head_dim": 128}
    found, refusing = bench.serving(attn_bwd, functional, short, 132)
    assert refusing == []
    assert "hopper_heads" in {one.name for one in found}
    found, refusing = bench.serving(attn_bwd, functional, short | {"seqlen_q": 8192, "seqlen_k": 8192}, 132)
    assert refusing == ["hopper_heads"]
    assert "hopper_heads" not in {one.name for one in found}
    cell = {
        "operator": "attn_bwd", "dtype": "bf16", "causal": False, "sizes": short, "best_us": 10.0, "best": "portable",
        "chosen_us": 11.0, "chosen": "portable", "cells_us": 12.0, "predicted_us": 10.5, "refusing": refusing,
    }  # fmt: skip
    assert "hopper_heads refuses 1 of the shapes by its guards." in bench.summary([cell])
