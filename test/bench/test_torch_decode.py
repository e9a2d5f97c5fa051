"""What the benchmark of decoding holds answers against, and who takes part, with tensors of a CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import decode_calls  # noqa: E402 - it is no package
from decode_calls import Cell  # noqa: E402

CELLS = (Cell(2, 6, 2, 1, 33, 16), Cell(2, 4, 4, 5, 40, 8), Cell(3, 14, 2, 4, 50, 16, used=True))


def tensors(cell: Cell) -> tuple[Any, Any, Any]:
    torch.manual_seed(cell.keys)
    of_keys = cell.batch, cell.keys, cell.heads_k, cell.head_dim
    q = torch.randn(cell.batch, cell.queries, cell.heads, cell.head_dim).bfloat16()
    return q, torch.randn(of_keys).bfloat16(), torch.randn(of_keys).bfloat16()


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_truth_is_that_of_torch(cell: Cell) -> None:
    """SDPA in fp64 of each sequence by itself, with a mask whose last row sees the last key that counts."""
    q, k, v = tensors(cell)
    true = decode_calls.truth(cell, q, k, v)
    for i, length in enumerate(cell.lengths):
        one, keys, values = (x[i, :n].double().transpose(0, 1) for x, n in ((q, None), (k, length), (v, length)))
        seen = torch.ones(cell.queries, length, dtype=torch.bool).tril(length - cell.queries)
        keys, values = (x.repeat_interleave(cell.heads // cell.heads_k, 0) for x in (keys, values))
        expected = torch.nn.functional.scaled_dot_product_attention(one, keys, values, attn_mask=seen)
        torch.testing.assert_close(true[i].double(), expected.transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_an_error_in_one_sequence_counts() -> None:
    """As much as in all of them; and an element that nobody wrote does."""
    true = torch.ones(8, 1, 4, 16)
    out = true.bfloat16()
    assert decode_calls.error(out, true) == 0
    out[3] *= 1.5
    assert decode_calls.error(out, true) == pytest.approx(0.5)
    out[5, 0, 2, 7] = torch.nan
    assert not decode_calls.error(out, true) <= 1e9


def test_only_right_answers_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that refuses or is wrong is absent with its reason; a library that is wrong ends the program."""
    cell = CELLS[0]
    q, k, v = tensors(cell)
    right = decode_calls.truth(cell, q, k, v).bfloat16()

    def refuses(*_: Any) -> Any:
        raise RuntimeError("no such head dim\nat all")

    def answers(out: Any) -> Any:
        return lambda *_: lambda: out

    makers = {
        "aotriton": answers(right), "FA3": answers(right), "cuDNN": refuses, "FA4": answers(1.1 * right),
        "FA2": answers(torch.full_like(right, torch.nan)),
    }  # fmt: skip
    monkeypatch.setattr(decode_calls, "MAKERS", makers)
    calls, errors, absent = decode_calls.contenders(cell, q, k, v, None)
    assert list(calls) == list(errors) == ["aotriton", "FA3"]
    assert 0 < errors["FA3"] < 0.004
    assert absent["cuDNN"] == "no such head dim"
    assert absent["FA4"].startswith("its answer is off by 1.")
    assert absent["FA2"] == "its answer is off by nan"
    makers["aotriton"] = makers["FA4"]
    with pytest.raises(SystemExit, match=r"2 × 6:2 heads, 1 query on 33 keys, D 16: aotriton's answer is off by"):
        decode_calls.contenders(cell, q, k, v, None)
    makers["aotriton"] = refuses
    with pytest.raises(RuntimeError, match="no such head dim"):
        decode_calls.contenders(cell, q, k, v, None)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_peers_of_torch_know_their_arguments(cell: Cell) -> None:
    """By the shapes that their operators give tensors without data."""
    q, k, v = (tensor.to("meta") for tensor in tensors(cell))
    used = torch.tensor(cell.lengths, dtype=torch.int32, device="meta") if cell.used else None
    for who in ("cuDNN", "FA2") if cell.queries == 1 else ("FA2",):
        assert decode_calls.MAKERS[who](cell, q, k, v, used)().shape == q.shape


@pytest.mark.parametrize("can_split", [False, True])
def test_flash_attention_4_splits_where_it_can(monkeypatch: pytest.MonkeyPatch, can_split: bool) -> None:
    """Where it refuses its own number of splits, it is called with one."""
    seen = []

    def forward(q: Any, k: Any, v: Any, num_splits: int, **asked: Any) -> Any:
        assert can_split or num_splits == 1, "no splits on this GPU"
        assert asked["causal"] is True
        seen.append(num_splits)
        return q, None

    monkeypatch.setattr(decode_calls, "flash_attention_4", lambda: SimpleNamespace(_flash_attn_fwd=forward))
    q, k, v = tensors(CELLS[1])
    assert decode_calls.MAKERS["FA4"](CELLS[1], q, k, v, None)() is q
    assert seen == ([0, 0] if can_split else [1])


def test_peers_say_why_they_take_no_part() -> None:
    """Those that are not installed, and those whose mask or lengths are others."""
    more, used = CELLS[1:]
    with pytest.raises(ValueError, match="aligns its causal mask at the first key"):
        decode_calls.MAKERS["cuDNN"](more, *tensors(more), None)
    with pytest.raises(ValueError, match="no used lengths"):
        decode_calls.MAKERS["cuDNN"](used, *tensors(used), torch.tensor(used.lengths))
    with pytest.raises(ImportError, match="fa3_fwd"):
        decode_calls.MAKERS["FA3"](more, *tensors(more), None)
