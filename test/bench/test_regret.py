"""The benchmark of the choice: what it compares. No GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from aotriton.rules.family import operator

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import regret  # the benchmarks are no package

CHOICES: dict[str, Any] = {"T": "bf16", "BLOCK_DMODEL": 128, "CAUSAL": False, "ADDRESSING": "descriptor"}


def test_what_refuses_a_call_is_left_out_and_named() -> None:
    """A backend whose guards refuse a shape cannot be timed on it: it is no candidate there, and the result says so."""
    attn_bwd = operator("attn_bwd")
    functional = attn_bwd.lead.functional("sm_90", **CHOICES)
    short = {"batch": 2, "heads_q": 16, "heads_k": 16, "seqlen_q": 100, "seqlen_k": 100, "head_dim": 128}
    found, refusing = regret.serving(attn_bwd, functional, short, 132)
    assert refusing == []
    assert "hopper_heads" in {one.name for one in found}
    found, refusing = regret.serving(attn_bwd, functional, short | {"seqlen_q": 8192, "seqlen_k": 8192}, 132)
    assert refusing == ["hopper_heads"]
    assert "hopper_heads" not in {one.name for one in found}
    cell = {
        "operator": "attn_bwd", "dtype": "bf16", "causal": False, "sizes": short, "best_us": 10.0, "best": "portable",
        "chosen_us": 11.0, "chosen": "portable", "cells_us": 12.0, "predicted_us": 10.5, "refusing": refusing,
    }  # fmt: skip
    assert "hopper_heads refuses 1 of the shapes by its guards." in regret.summary([cell])


def test_backends_of_other_levels_are_no_candidates() -> None:
    """The backend of queries of 8 bits has images, and none of them serves a call of bf16."""
    attn_fwd = operator("attn_fwd")
    functional = attn_fwd.lead.functional("sm_90", **CHOICES)
    sizes = {"batch": 2, "heads_q": 16, "heads_k": 16, "seqlen_q": 4096, "seqlen_k": 4096, "head_dim": 128}
    found, refusing = regret.serving(attn_fwd, functional, sizes, 132)
    assert {"portable", "hopper"} <= {one.name for one in found}
    assert not {"hopper_fp8", "hopper_features"} & {*refusing, *(one.name for one in found)}
