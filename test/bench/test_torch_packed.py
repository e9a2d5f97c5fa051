"""The benchmark of training on packed documents at toy sizes: its documents, its contenders, and a record's tables."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import packed_training as packed  # noqa: E402 - they are no package
from pytorch import FA2, TORCH  # noqa: E402

TOY = packed.TOY
OTHER_DRAWS = TORCH + packed.OTHER_DRAWS


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """As the program has it at these sizes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_toy_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A run writes a record with each contender, with dropout and without, and prints its tables; so does the record
    by itself. The model is one graph.
    """
    path = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", ["packed_training.py", "--toy", "--mode", "eager", "--json", str(path)])
    packed.main()
    record = json.loads(path.read_text())
    assert record["sizes"]["window"] == TOY.window
    assert record["graphs"] == {packed.FUNCTION: {"graphs": 1, "breaks": 0}}
    runs = {run: modes["eager"] for run, modes in record["train"].items()}
    assert list(runs["dropout"]) == [TORCH, OTHER_DRAWS, packed.FUNCTION]
    assert list(runs["no dropout"]) == [TORCH, packed.FUNCTION]
    for found in runs.values():
        for one in found.values():
            assert one["tokens_per_s"] > 0
            assert [len(of_seed) for of_seed in one["losses"]] == [TOY.steps]
    printed = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["packed_training.py", "--from", str(path)])
    packed.main()
    assert capsys.readouterr().out == printed


def test_documents_fill_a_row() -> None:
    """Rows have documents of several lengths up to the longest; places begin anew in each of them, and no token is to
    be told from another document.
    """
    sizes = replace(TOY, steps=40)
    first, again = (packed.rows(sizes, "cpu", seed) for seed in (1, 1))
    counts = [row.starts.diff() for row in first]
    assert {int(count.sum()) for count in counts} == {sizes.seqlen}
    assert int(torch.cat(counts).max()) == sizes.longest
    assert len({len(count) for count in counts}) > 3
    for row, other in zip(first, again, strict=True):
        assert torch.equal(row.tokens, other.tokens)
        assert torch.equal(row.documents.bincount(), row.starts.diff())
        begins = row.starts[:-1].long()
        assert torch.equal((row.places[0] == 0).nonzero()[:, 0], begins)
        assert torch.equal((row.next == -100).nonzero()[:, 0], row.starts[1:].long() - 1)
        inside = row.next != -100
        assert torch.equal(row.next[:-1][inside[:-1]], row.tokens[0, 1:][inside[:-1]])


@pytest.mark.parametrize("who", [packed.FUNCTION, packed.FLEX])
def test_contenders_compute_the_same(who: str) -> None:
    """Documents, causal, and windows in every second layer alone: the same logits in each row."""
    sizes = replace(TOY, seqlen=160, longest=90, median=30, window=20, head_dim=16, steps=3)
    dense, other = (packed.packed_gpt(sizes, one, 0.0) for one in (TORCH, who))
    other.load_state_dict(dense.state_dict())
    tell, tell_other = (packed.block_of(one).telling(sizes, "cpu") for one in (TORCH, who))
    run = torch.compile(other, backend="aot_eager", fullgraph=True)  # FlexAttention's kernel for CPUs wants q apart
    with torch.no_grad():
        for row in packed.rows(sizes, "cpu", 0):
            logits = dense(row.tokens, row.places, tell(row))
            with torch.compiler.set_stance("force_eager"):  # compiled, the masks would take half a minute
                told = tell_other(row)
            torch.testing.assert_close(run(row.tokens, row.places, told), logits)
            full, windowed = tell(row)
            for masks in ((full, full), (windowed, windowed)):
                assert not torch.allclose(dense(row.tokens, row.places, masks), logits, atol=1e-3)


@pytest.mark.parametrize("dropout", [0.0, packed.DROPOUT])
@pytest.mark.parametrize("who", [packed.FUNCTION, FA2])
def test_one_graph_serves_all_rows(who: str, dropout: float) -> None:
    """The model is compiled once, without a graph break, forward and backward, though each row has another number of
    documents; torch's operator, which no CPU has, on tensors without data.
    """
    device = "meta" if who == FA2 else "cpu"
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = packed.packed_gpt(TOY, who, dropout).to(device)
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    rows = packed.rows(replace(TOY, steps=4), device, 0)
    assert len({len(row.starts) for row in rows}) > 1
    for row in rows:
        run(row.tokens, row.places, row.starts).float().sum().backward()
    assert counters["stats"]["unique_graphs"] == 1
    assert all(block.qkv.weight.grad is not None for block in model.blocks)


def test_who_computes_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the first step are compared before anything is timed: a window that is forgotten ends the run."""

    class Forgetful(packed.FunctionBlock):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.left = self.right = -1

    sizes = replace(TOY, steps=4, seqlen=160, longest=90, median=30)
    found = packed.train("eager", 0.0, sizes, "cpu", 1)
    assert found[TORCH]["gradients_apart"] == 0
    assert 0 < found[packed.FUNCTION]["gradients_apart"] < 0.03
    monkeypatch.setitem(packed.BLOCKS, packed.FUNCTION, Forgetful)
    with pytest.raises(RuntimeError, match="gradients are far from those of torch: aotriton's flash_attn_varlen_func"):
        packed.train("eager", 0.0, sizes, "cpu", 1)


def test_tables() -> None:
    """Tokens/s beside the first contender's, distances of losses by seed, and how far seeds are from each other."""
    row = {"tokens_per_s": 1000, "losses": [[1.0, 2.0], [3.0, 3.0]]}
    other = {"tokens_per_s": 1100, "losses": [[1.5, 2.0], [4.0, 4.0]]}
    record = {
        "machine": {"gpu": "none"},
        "graphs": {"other": {"graphs": 1, "breaks": 0}},
        "stats": {"forward": {"aotriton": 3, "torch": {}}, "backward": {"aotriton": 2, "torch": {"a reason": 1}}},
        "train": {"dropout": {"compiled": {"torch": row, "other": other}}},
    }
    lines = packed.table(record).splitlines()
    assert "aotriton in torch's operator, forward: 3 calls, on torch's own kernel none" in lines
    assert "aotriton in torch's operator, backward: 2 calls, on torch's own kernel {'a reason': 1}" in lines
    assert lines[-5:] == [
        "|---|---|---|---|---|",
        "| torch | 1,000 | 1.000 | 0, 0 | 2.500 |",
        "| other | 1,100 | 1.100 | 0.25, 1 | 3.000 |",
        "",
        "Seeds of the first one: 1.5 apart",
    ]
