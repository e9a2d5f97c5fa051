"""The benchmark of unseen shapes without a GPU: what is drawn, who takes part, and the tables of a record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import contenders  # they are no package
import unseen


def test_a_seed_says_which_problems() -> None:
    """The same ones each time, others for another seed; odd lengths, groups of 1, 4 and 8, all head dims."""
    drawn = unseen.problems(200, 7)
    assert drawn == unseen.problems(200, 7)
    assert drawn != unseen.problems(200, 8)
    assert {one["head_dim"] for one in drawn} == set(unseen.HEAD_DIMS)
    assert {one["heads"] // one["heads_k"] for one in drawn} == set(unseen.GROUPS)
    for one in drawn:
        assert one["seqlen"] % 2
        assert unseen.SEQLENS[0] <= one["seqlen"] <= unseen.SEQLENS[1] + 1
        assert one["heads"] <= unseen.MOST_HEADS
        assert one["batch"] <= unseen.MOST_BATCH


def test_a_peer_that_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told on stderr, with what it says; one that is not installed is not."""

    def made(*_: Any) -> contenders.Contender:
        return contenders.Contender(lambda: (1,), lambda: (1, 2, 3))

    def refuses(*_: Any) -> Any:
        raise RuntimeError("head dim 200 is not taken\nat all")

    class Heads:
        shape = (1, 2, 3, 200)

    monkeypatch.setattr(contenders, "_library", made)
    monkeypatch.setattr(contenders, "_cudnn", made)
    monkeypatch.setattr(contenders, "_fa2", refuses)
    monkeypatch.setattr(contenders, "flash_attention_4", lambda: None)
    found = contenders.contenders(Heads, Heads, Heads, Heads, True)
    assert list(found) == [contenders.LIBRARY, contenders.CUDNN]
    assert capsys.readouterr().err == "FA2 refuses the forward of (1, 2, 3, 200) on 2: head dim 200 is not taken\n"
    monkeypatch.setattr(contenders, "_fa2", lambda *_: contenders.Contender(lambda: (1,), refuses))
    assert contenders.contenders(Heads, Heads, Heads, Heads, True)[contenders.FA2].backward is None
    assert capsys.readouterr().err == "FA2 refuses the backward of (1, 2, 3, 200) on 2: head dim 200 is not taken\n"


def test_tables() -> None:
    """Geometric mean, tenth percentile and worst of all and of each class; the worst problems first, with the peer."""
    problem = {"batch": 1, "heads": 8, "heads_k": 2, "seqlen": 101, "head_dim": 64, "causal": True, "flops": 1e9}
    more = {"us": {}, "tflops": 10.0, "best": "FA4", "images": ["attn_fwd_hopper_sm_90_01", "finish_sm_90_02"]}
    cells = [
        problem | more | {"direction": direction, "ratio": ratio}
        for direction, ratios in (("forward", (1.0, 4.0)), ("backward", (0.5, 2.0)))
        for ratio in ratios
    ]
    lines = unseen.summary(cells).splitlines()
    assert lines[2] == "| all | 2.00 | 1.00 | 1.00 | 1.00 | 0.50 | 0.50 |"
    assert [line.split("|")[1].strip() for line in lines[3:]] == [
        "head dim 64",
        "mask causal",
        "group 4",
        "size below 0.1 TFLOP",
    ]
    worst = unseen.table(cells, most=1).splitlines()
    assert worst[2] == "| forward | 64 | causal | 101 | 1 × 8 / 2 | 1 | 10 | 1.00 | FA4 | attn_fwd_hopper, finish |"
    assert worst[3].startswith("| backward | 64 | causal | 101 |")
    assert len(worst) == 4
