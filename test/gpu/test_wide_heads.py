"""Attention of head dims from 257 to 512, of keys, of values or of both, against float64, forward and backward."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")
aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

import torch  # noqa: E402 - where it is installed
from attention_cases import OPTIONS, Case, covering, random_cases  # noqa: E402
from gpu.gpu_problem import bits  # noqa: E402
from gpu.test_features import FORWARD, Prepared  # noqa: E402

NARROW, WIDE = 256, 512
LAST: dict[str, Any] = {"causal": True, "causal_variant": "bottom_right"}


def widened(case: Case, choose: random.Random) -> Case:
    """The case with head dims that are wide on one side or on both."""
    step = choose.choice((1, 8, 8))
    wide = step * choose.randint(NARROW // step + 1, WIDE // step)
    of_v = choose.choice((0, 0, step * choose.randint(1, WIDE // step)))
    if of_v and choose.random() < 0.3:
        wide, of_v = min(of_v, NARROW), wide
    return replace(case, head_dim=wide, head_dim_v=of_v)


def random_wide(count: int, seed: int, longest: int) -> list[Case]:
    choose = random.Random(seed)
    return [widened(case, choose) for case in random_cases(count, seed, longest)]


# Every pair of what calls may have, in 16 and 32 bits.
HEAD_DIMS: dict[str, tuple[Any, ...]] = {"head_dim": (257, 288, 384, 500, 512), "head_dim_v": (0, 64, 300, 512)}
COVERING = covering(100, {**OPTIONS, **HEAD_DIMS, "addressing": ("general",)})
LONG = [
    *(Case((700,) * 2, (700,) * 2, group=2, head_dim=d, head_dim_v=d_v, dtype=dtype, causal=causal, number=d + d_v)
      for d, d_v in ((288, 0), (512, 0), (384, 512), (512, 40), (64, 512))
      for dtype in ("fp16", "bf16", "fp32")
      for causal in (False, True)),
    Case((1,) * 4, (3000,) * 4, heads_k=2, group=8, head_dim=512, dtype="bf16", used_k=(3000, 1, 0, 1777), number=1),
    Case((1, 0, 500, 3, 129), (900, 5, 500, 64, 129), packed=True, beyond=9, group=4, head_dim=512, dtype="bf16",
         dropout=0.1, sinks=True, number=2, **LAST),
    Case((513,), (1500,), group=4, head_dim=512, dtype="bf16", window=(512, 0), causal_variant="bottom_right",
         softcap=50.0, spread=8.0, number=3),
    Case((600,), (500,), bias="hiding", alibi="heads", dropout=0.1, head_dim=320, number=4),
]  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        count, seed = (metafunc.config.getoption(name) for name in ("--random-calls", "--random-seed"))
        cases = dict.fromkeys([*COVERING, *LONG, *random_wide(60 + count, seed + 3, longest=150)])
        metafunc.parametrize("case", cases, ids=str)


def test_forward_and_backward_are_as_accurate_as_ordinary_low_precision(case: Case) -> None:
    """Each result of each call is as near to float64 as ordinary low precision is; what counts not is not read, and
    what is nobody's is not written.
    """
    prepared = Prepared(case)
    prepared.launch()
    torch.cuda.synchronize()
    prepared.check()


def test_the_same_call_gives_the_same_bits() -> None:
    """All results repeat: nothing is added up in memory."""
    one, again = (Prepared(replace(LONG[2], number=7)) for _ in range(2))
    for prepared in (one, again):
        prepared.launch()
    for name in (*FORWARD, "dq", "dk", "dv"):
        first, second = (bits(prepared.results[name].view.contiguous()) for prepared in (one, again))
        assert torch.equal(first, second), name
