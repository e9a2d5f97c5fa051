"""The benchmark for PyTorch at toy sizes: what is measured, and the tables of a record."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: the preset torch has it")
pytest.importorskip(
    "aotriton.torch", reason="libaotriton_torch.so is not built: the preset torch does", exc_type=ImportError
)

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import pytorch  # noqa: E402 - they are no package
from losses import spread  # noqa: E402


def test_host_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A run writes a record with each contender in each mode, in order of quartiles, and prints its table; so does the
    record by itself.
    """
    path = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", ["pytorch.py", "--toy", "--only", "host", "--json", str(path)])
    pytorch.main()
    host = json.loads(path.read_text())["host"]
    assert list(host) == ["inference_mode", "no_grad", "no gradient asked for", "gradient recorded"]
    for cells in host.values():
        assert list(cells) == ["torch", "aotriton's operator"]
        assert all(0 < low <= middle <= high for low, middle, high in cells.values())
    printed = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["pytorch.py", "--from", str(path)])
    pytorch.main()
    assert capsys.readouterr().out == printed
    assert len([line for line in printed.splitlines() if line.startswith("| ")]) == 5


def test_training_is_the_same_for_all() -> None:
    """Contenders begin with the same weights and see the same tokens: the first loss is the same within roundings, and
    a model with another attention learns as well.
    """
    first, second = pytorch.train("eager", pytorch.TOY, "cpu", 2).values()
    assert first["parameters"] == second["parameters"]
    for one, other in zip(first["losses"], second["losses"], strict=True):
        assert len(one) == pytorch.TOY.steps
        assert spread(one, other) < 0.01
    assert spread(*first["losses"]) > 0.01  # of two seeds


def test_tables() -> None:
    """Tokens/s of each contender and mode, with the mean distances of its losses from those of the first one."""
    row = {"tokens_per_s": 1000, "losses": [[1.0, 2.0], [3.0]]}
    other = row | {"losses": [[1.5, 2.0], [4.0]]}
    record = {"machine": {"gpu": "none"}, "train": {"eager": {"torch": row, "other": other}}}
    assert pytorch.table(record).splitlines()[-2:] == ["| torch | 1,000 (0) |", "| other | 1,000 (0.25 to 1) |"]
