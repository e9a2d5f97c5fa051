"""What may win is checked at sizes that are no multiples of a tile, too: of every problem of the families in the tree,
and by the launcher.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest

from aotriton.rules.family import family
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.flash.split import OF_PAGES
from aotriton.rules.gemm.operator import GEMM
from aotriton.rules.kernel import Functional
from aotriton.tune.flash import stored_keys
from aotriton.tune.flash.tuning import FEW_HEADS
from aotriton.tune.problem.family import Data, results_of, tuning
from aotriton.tune.problem.problems import Problem, Wish, at, belongs, problems, shape_of


@pytest.mark.parametrize("name", ["flash", "gemm"])
@pytest.mark.parametrize(("arch", "multiprocessors"), [("sm_90", 132), ("gfx942", 304)])
def test_every_problem_has_ragged_sizes(name: str, arch: str, multiprocessors: int) -> None:
    """They are of its cell, no larger than what the cell is measured at, and equal where data is shared. Nothing but
    rows of 16 bytes, and pages, keeps them from being odd.
    """
    own: Any = tuning(name)
    of_data = defaultdict(set)
    for problem in problems(family(name).kernels, arch, multiprocessors, Wish()):
        sizes, ragged, functional = problem.sizes, own.ragged(problem), problem.functional
        of_data[own.data_key(problem)].add(shape_of(**ragged))
        assert all(0 < ragged[one] <= sizes[one] for one in sizes)
        if name == "flash":
            lengths = {one: ragged[one] for one in ("seqlen_q", "seqlen_k")}
            assert belongs(problem, {**sizes, **lengths})
            assert ragged["batch"] * ragged["heads"] <= FEW_HEADS
            paged = stored_keys.stored_as(functional) in OF_PAGES
            assert ragged["seqlen_q"] % 2
            assert ragged["seqlen_k"] % (2 * stored_keys.PAGE) == stored_keys.PAGE if paged else ragged["seqlen_k"] % 2
        else:
            assert belongs(problem, ragged)
            assert all(ragged[one] % 16 for one in "mnk")
            if functional.addressing == "general":
                assert all(ragged[one] % 2 for one in "mnk")
            else:  # rows of a and b, and of d, whose elements have 2 bytes
                assert ragged["n"] % 8 == 0
                assert ragged["m" if functional.get("TRANS_A", False) else "k"] % 8 == 0
                assert functional.get("TRANS_B", True) is False or ragged["k"] % 8 == 0
    assert {len(one) for one in of_data.values()} == {1}


def cell_of(kernel: Any, sizes: dict[str, int], **choices: Any) -> Problem:
    """A problem of small sizes, in the first cell of a functional."""
    asked = Wish({name: (value,) for name, value in choices.items()})
    functional = next(one for one in kernel.functionals("sm_90") if asked.has(one))
    return Problem(functional, next(iter(kernel.cells())), shape_of(**sizes))


PLAIN = {"T": "fp16", "CAUSAL": False, "BLOCK_DMODEL": 32, "LEVEL": 0, "ADDRESSING": "descriptor"}
ATTENTION = {"batch": 2, "heads": 2, "seqlen_q": 64, "seqlen_k": 64, "head_dim": 32}
FEW = {"batch": 1, "heads": 3, "seqlen_q": 37, "seqlen_k": 37}
PRODUCT = {"batch": 1, "m": 16, "n": 512, "k": 64}
CASES = [
    (cell_of(ATTN_FWD, ATTENTION, **PLAIN), FEW),
    (cell_of(ATTN_FWD, ATTENTION, **PLAIN | {"CAUSAL": True}), FEW),
    (cell_of(GEMM, PRODUCT, T="fp16", TRANS_B=False, ADDRESSING="descriptor"), {"m": 11, "n": 488, "k": 40}),
    (cell_of(GEMM, PRODUCT, T="fp16", ADDRESSING="general"), {"m": 11, "n": 485, "k": 37}),
]


def further_of(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> dict[str, Data]:
    """What a family's problem is checked on further, on a CPU."""
    own: Any = tuning(problem.kernel.family)
    name = "data_on" if problem.kernel.family == "flash" else "product_on"
    made: Callable[..., Data] = getattr(own, name)
    with monkeypatch.context() as patch:
        patch.setattr(type(own), name, lambda _, device, *rest, **how: made("cpu", *rest, **how))
        return {"": own.data(problem), **own.further(problem)}


@pytest.mark.parametrize(("problem", "sizes"), CASES, ids=str)
def test_the_launcher_finds_what_is_wrong_there(
    problem: Problem, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that computes whole tiles of 16 alone is right at a representative's sizes and on other numbers, and
    wrong at the ragged ones; the message says where. A right one passes.
    """
    torch = pytest.importorskip("torch", reason="the reference needs torch, which only tuning machines have")
    from aotriton.tune.measure.launcher import REPETITIONS, GpuLauncher

    data = further_of(problem, monkeypatch)
    where = at({**problem.sizes, **sizes})
    assert list(data) == ["", "on other numbers", where]
    assert data[where].tensors.keys() == data[""].tensors.keys()
    tile = [1]

    def launch(_: Any, operands: Any, scalars: Any, sizes: Any, stream: int) -> None:
        rows = operands["q" if "q" in operands else "a"].shape[-2] // tile[0] * tile[0]
        if "a" in operands:
            operands["d"][:, :rows] = (operands["a"].float() @ operands["b"].float())[:, :rows].to(operands["d"].dtype)
            return
        q, k, v = (operands[name].double() for name in "qkv")
        scores = q @ k.mT * scalars["sm_scale"]
        if scalars["causal"]:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        operands["out"][:, :, :rows] = (scores.softmax(-1) @ v)[:, :, :rows].half()
        operands["logsumexp"][:, :, :rows] = scores.logsumexp(-1)[:, :, :rows].float()

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    launcher: Any = GpuLauncher.__new__(GpuLauncher)  # without a GPU
    launcher.torch, launcher.binding = torch, SimpleNamespace(launch=launch)
    launcher._data, launcher._further = data[""], {name: one for name, one in data.items() if name}
    for one in data.values():
        for argument in results_of(problem.kernel):
            one.expect(problem.kernel, argument)
    opened = launcher._on(launcher._data, "candidate", problem.kernel, {})
    found = launcher.check_further(opened)
    assert (launcher.check(opened).wrong, found[0].wrong, found[1]) == (None, None, REPETITIONS + 2)
    tile[0] = 16
    assert launcher.check(opened).wrong is None
    assert str(launcher.check_further(opened)[0].wrong).startswith(f"{where}: ")


def test_data_of_ragged_sizes_takes_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the reference needs torch, which only tuning machines have")
    for problem, _ in CASES:
        data = list(further_of(problem, monkeypatch).values())
        elements = [sum(prod(tensor.shape) for tensor in one.tensors.values()) for one in data]
        assert elements[2] < elements[0]


FUNCTIONALS: list[Functional] = [problem.functional for problem, _ in CASES]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(one) for one in FUNCTIONALS])
def test_device_code_is_right_there(launch: Any, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Triton's interpreter makes of the data passes."""
    pytest.importorskip("torch", reason="the reference needs torch, which only tuning machines have")
    from test_untimed import Launched, interpret, wrongs

    problem, _ = CASES[number]
    *_, data = further_of(problem, monkeypatch).values()
    opened = Launched(data, problem.functional).opened
    for argument in results_of(problem.kernel):
        data.expect(problem.kernel, argument)
    before = {name: one.tensor.clone() for name, one in opened.results.items()}
    assert wrongs(data, problem.kernel, before), "nothing was written"
    interpret(launch, problem.functional, data, opened)
    results = {name: one.tensor for name, one in opened.results.items()}
    assert wrongs(data, problem.kernel, results) == []
