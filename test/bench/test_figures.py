"""The figures of the documents: written from results, which say of what state they are. No GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import fingerprints  # noqa: E402
import readme  # noqa: E402 - they are no package
import stored  # noqa: E402
from figures import comparison, page_others, summary  # noqa: E402
from figures.results import Results  # noqa: E402

H200 = "NVIDIA H200"


@pytest.fixture(scope="module")
def every() -> ModuleType:
    """bench/all.py, whose name is a function's."""
    spec = importlib.util.spec_from_file_location("bench_all", BENCH / "all.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_all"] = module
    spec.loader.exec_module(module)
    return module


def test_the_documents_say_what_the_results_do(every: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Every number between the comments is of a result; what is of an older state than this tree is called so, and
    nothing else. `python bench/all.py --readme` makes it so.
    """
    fits = every.check()
    assert fits, capsys.readouterr().out
    for document in readme.DOCUMENTS:
        assert readme.PLACE.search((every.ROOT / document).read_text()), document


@pytest.mark.parametrize("older", [False, True])
def test_a_figure_that_is_not_called_what_it_is_does_not_pass(
    every: ModuleType, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    """Of all results one by one: the documents are wrong when its state is the other one. The page of hints has its
    figures by hand.
    """
    true, results = every.is_older, every.results()
    files = {figure.file for name, figure in every.FIGURES.items() if name != "hints"} | {every.ROWS}
    named = [name for file in files for name in results.ranked(file)]
    assert set(every.quoted()) <= {*named, every.SIZE, *results.ranked("hints")}
    changed = [name for name in named if true(name, results(name)) is not older]
    for result in changed:
        monkeypatch.setattr(
            every, "is_older", lambda name, record, r=result: older if name == r else true(name, record)
        )
        texts = {name: (every.ROOT / name).read_text() for name in readme.DOCUMENTS}
        assert any(readme.written(text, every.results()) != text for text in texts.values()), result


def test_an_older_state_is_told() -> None:
    """Beside the commit and what the result says of itself."""
    results = Results(BENCH / "results", lambda name, record: name.endswith("-launch"))
    assert re.search(r"\d{4}-\d\d-\d\d", page_others.launches(results))
    assert "**of an older state**, commit " in page_others.launches(results)
    assert "older" not in page_others.new_shape(results)


def test_the_newest_result_is_of_this_state_and_then_of_the_latest_day(tmp_path: Path) -> None:
    """Of any GPU, and of this figure alone; one without a date is last of its state."""
    days = {"h100-bf16": "2026-11-25", "h200-bf16": "2026-11-24", "h300-bf16": "2026-11-26", "h400-bf16": ""}
    for name, day in days.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": {"date": day} if day else {}}))
    (tmp_path / "h100-bf16-unseen.json").write_text(json.dumps({"machine": {"date": "2026-11-27"}}))
    older = {"h300-bf16", "h400-bf16"}
    results = Results(tmp_path, lambda name, record: name in older)
    assert results.ranked("bf16") == ["h100-bf16", "h200-bf16", "h300-bf16", "h400-bf16"]
    older.add("h100-bf16")
    assert results.newest("bf16") == "h200-bf16"
    assert not results.has("unseen")


def grid_record(day: str, ratios: dict[str, list[float]]) -> dict[str, Any]:
    """Of the grid: of each peer its ratios in the forward, then in the backward."""
    cells = [
        {"direction": direction, "ratio": {peer: both[place] for peer, both in ratios.items()}}
        for place, direction in enumerate(("forward", "backward"))
    ]
    return {"machine": {"gpu": "a GPU", "date": day}, "cells": cells, "state": {"commit": "abc1234"}}


def test_the_summary_hides_nothing_that_is_behind(tmp_path: Path) -> None:
    """A row for each comparison, the worst first and bold where it is behind; an older result of another GPU has one
    where it has a peer that the newest lacks.
    """

    def store(name: str, record: dict[str, Any]) -> None:
        (tmp_path / f"{name}.json").write_text(json.dumps(record))

    store("h100-bf16", grid_record("2026-11-27", {"FA2": [2.0, 1.6], "cuDNN": [1.2, 1.1]}))
    store("h200-bf16", grid_record("2026-11-26", {"FA2": [2.0, 1.6], "FA4": [1.0, 0.9]}))
    store("h300-bf16", grid_record("2026-11-25", {"FA2": [0.5, 0.5]}))
    store("h200-pytorch-train", {
        "machine": {"date": "2026-11-24"},
        "train": {mode: {who: {"tokens_per_s": 100.0} for who in ("FA2", "cuDNN", comparison.DOOR)} for mode in "ab"},
    })  # fmt: skip
    results = Results(tmp_path, lambda name, record: name.startswith("h200-bf16"))
    assert summary.table(results).splitlines()[2:] == [
        "| attention, a grid of shapes, forward / backward | FA2, FA4 | 1.00 / **0.90** | 1.00 / 0.90 | H200 | older |",
        "| PyTorch, training of a GPT | FA2, cuDNN | 1.00 | 1.00 | H200 | this |",
        "| attention, a grid of shapes, forward / backward | FA2, cuDNN | 1.20 / 1.10 | 1.20 / 1.10 | H100 | this |",
    ]
    assert [line.partition(" (")[0] for line in comparison.also(results, "bf16")] == [
        "Also on an H300",
        "Also on an H200",
    ]


def test_packed_training_is_told_once_it_is_measured(tmp_path: Path) -> None:
    """Tokens/s of all, losses beside what other draws and other seeds do to them, and in the summary the slower one of
    the library's ways.
    """
    results = Results(tmp_path, lambda name, record: False)
    assert page_others.pytorch_packed(results).startswith("Not measured yet: ")
    assert summary.rows(results) == []

    def found(tokens: int, more: float) -> dict[str, Any]:
        losses = [[2.0 + more] * 10, [3.0 - more] * 10]
        return {"tokens_per_s": tokens, "losses": losses, "gradients_apart": more / 10}

    door, function = comparison.PACKED_WAYS
    ours = {door: found(1300, 0.125), function: found(1200, 0.25)}
    dropped = {"FA2": found(1000, 0.0), "FA2, other draws": found(1000, 0.5)} | ours
    plain = {"FA2": found(1000, 0.0), "FlexAttention": found(1100, 0.5)} | ours
    train = {"dropout": {"compiled": dropped}, "no dropout": {"compiled": plain, "eager": plain}}
    record = {"machine": {"gpu": "a GPU", "date": "2026-11-27"}, "state": {"commit": "abc1234"}, "train": train}
    (tmp_path / "h100-pytorch-packed.json").write_text(json.dumps(record))
    text = page_others.pytorch_packed(results)
    assert "| dropout, compiled | 1,000 |  | 1,300 | 1,200 |" in text
    assert "| no dropout, eager | 1,000 | 1,100 | 1,300 | 1,200 |" in text
    assert "`flash_attn_varlen_func` 0.25, 0.25; FA2 once more, which drops other weights 0.5, 0.5" in text
    assert "FA2 with one seed and with another: 1\n" in text
    assert text.endswith("at most 2.5 % from FA2's in any layer")
    dropout, without = (row for row, _ in summary.rows(results))
    assert (dropout.peers, without.peers) == (("FA2",), ("FA2", "FlexAttention"))
    assert dropout.times[""] == [1.3, 1.2]
    assert min(without.times[""]) == pytest.approx(1200 / 1100)


def test_all_that_is_compared_is_in_the_summary(every: ModuleType) -> None:
    """Each figure that times the library beside something has a row in README; the others cost time alone, or are of
    choices.
    """
    without = {figure.file for figure in every.FIGURES.values()} - set(comparison.COMPARISONS)
    assert without == {"regret", "lengths", "hints", "new-shape", "first-call"}
    results = every.results()
    rows = summary.table(results).splitlines()[2:]
    files = filter(results.has, comparison.COMPARISONS)
    newest = [one for file in files for one in comparison.compared(file, results(results.newest(file)))]
    for one in newest:
        assert any(row.startswith(f"| {one.what}") for row in rows), one.what
    assert len(rows) >= len(newest)


def test_figures_have_a_name_and_two_ends() -> None:
    """Else the document would keep numbers of another time, and nobody would see it."""
    results = Results(BENCH / "results", lambda name, record: False)
    for text in (
        "a <!-- figures: nothing -->1<!-- end of nothing --> b",
        "a <!-- figures: launch -->1<!-- end of lunch --> b",
    ):
        with pytest.raises(ValueError, match=r"figures (nothing|launch): of no such name, or without their end"):
            readme.written(text, results)
    inline = readme.written("costs <!-- figures: warm-call -->1 %<!-- end of warm-call --> more", results)
    assert inline.count("\n") == 0
    assert " %<!-- end of warm-call --> more" in inline


def test_images_are_of_what_chooses(tmp_path: Path) -> None:
    """Another coefficient of a model that ships is another state of its operator, and of no other one."""
    database = tmp_path / "tuning_database.sqlite3"
    shutil.copy(fingerprints.DATABASE, database)
    with sqlite3.connect(database) as opened:
        (changed,) = opened.execute(
            "SELECT count(*) FROM model WHERE kernel = 'attn_fwd_hopper' AND product = ?", (H200,)
        ).fetchone()
        assert changed
        opened.execute(
            "UPDATE model_row SET coefficients = replace(coefficients, '[', '[1')"
            " WHERE functional IN (SELECT id FROM functional WHERE kernel = 'attn_fwd_hopper')"
            " AND product = (SELECT id FROM product WHERE name = ?)",
            (H200,),
        )
    opened.close()
    assert fingerprints.images(H200, ("attn_fwd",), database) != fingerprints.images(H200, ("attn_fwd",))
    assert fingerprints.images(H200, ("gemm",), database) == fingerprints.images(H200, ("gemm",))
    with pytest.raises(ValueError, match="NVIDIA H20 is no product of the database: it has "):
        fingerprints.images("NVIDIA H20", ("gemm",))


def test_a_runtime_is_its_code(tmp_path: Path) -> None:
    """A comment or white space changes nothing; a number does. PyTorch's operators count where they are asked for."""
    for folder in ("v2src/launch", "v2src/torch", "v2src/python", "aotriton/torch"):
        (tmp_path / folder).mkdir(parents=True)
    source, operators = tmp_path / "v2src" / "launch" / "run.cc", tmp_path / "v2src" / "torch" / "library.cc"
    source.write_text("int one() { return 1; }\n")
    before = fingerprints.runtime(root=tmp_path)
    source.write_text("// What is one?\nint one() {\n  return 1; /* it is */\n}\n")
    assert fingerprints.runtime(root=tmp_path) == before
    operators.write_text("int two() { return 2; }\n")
    assert fingerprints.runtime(root=tmp_path) == before
    with_operators = fingerprints.runtime(torch=True, root=tmp_path)
    operators.write_text("int two() { return 3; }\n")
    assert fingerprints.runtime(torch=True, root=tmp_path) != with_operators
    source.write_text("int one() { return 2; }\n")
    assert fingerprints.runtime(root=tmp_path) != before


def test_results_are_taken_within_a_time(
    every: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result says of which state it is; one of this commit is not taken again; of a program that fails, or does not
    finish, the result that was there stays, and it is told.
    """

    def writing(text: str, then: str = "") -> Any:
        script = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(sys.argv[2]); " + then
        return lambda run: [sys.executable, "-c", script, run.out, text]

    figures = {
        "grid": every.Figure("bf16", 1, writing('{"cells": []}')),
        "gemm": every.Figure("gemm", 1, writing('{"grid": []}', "sys.exit(3)"), every.GEMM),
        "launch": every.Figure("launch", 1, writing("{}", "time.sleep(60)"), runtime="library"),
        "hints": every.Figure("hints", 1, writing("{}")),
    }
    monkeypatch.setattr(every, "FIGURES", figures)
    monkeypatch.setattr(every, "gpu_word", lambda: "h200")
    every.state_now.cache_clear()
    options = Namespace(build=tmp_path, out=tmp_path, minutes=15 / 60, seed=1, commit="abc1234", again=False)
    (tmp_path / "h200-gemm.json").write_text("what was there")
    missing = every.take([*figures], options)
    assert missing[0] == "gemm: exit status 3"
    assert missing[1].startswith("launch: not finished in the ")
    assert missing[2:] == ["hints: it needs 1 s, and 0 were left"]
    assert (tmp_path / "h200-gemm.json").read_text() == "what was there"
    assert not (tmp_path / "h200-launch.json").exists()
    grid = json.loads((tmp_path / "h200-bf16.json").read_text())
    assert grid["cells"] == []
    assert grid["state"].pop("seconds") >= 0
    assert grid["state"] == {"commit": "abc1234", "images": fingerprints.images(H200, ("attn_fwd", "attn_bwd"))}
    capsys.readouterr()
    assert every.take(["grid"], options) == []
    assert "is of this commit already" in capsys.readouterr().out
    options.commit = "def5678"
    assert every.take(["grid"], options) == []
    assert json.loads((tmp_path / "h200-bf16.json").read_text())["state"]["commit"] == "def5678"
    every.state_now.cache_clear()


@pytest.mark.parametrize(
    "name", ["grid", "unseen", "latency", "regret", "hints", "decode", "gemm", "pytorch", "train", "packed-train"]
)
def test_programs_take_what_they_are_given(every: ModuleType, tmp_path: Path, name: str) -> None:
    """Without a GPU each of them ends for want of one, or of torch, but not because it does not know an option."""
    command = every.FIGURES[name].command(every.Run(tmp_path, tmp_path / "result.json", 1, 60.0))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 1, done.stderr
    assert "usage:" not in done.stderr


def test_long_results_are_compressed(tmp_path: Path) -> None:
    """A result is found by one name, whether it is long or short, and stays one file when it is taken again."""
    path = tmp_path / "h200-bf16.json"
    short, long = {"cells": [1]}, {"cells": list(range(20000))}
    for record, suffix in ((short, ".json"), (long, ".json.xz"), (short, ".json")):
        stored.store(path, record)
        assert [one.name for one in tmp_path.iterdir()] == [f"h200-bf16{suffix}"]
        assert stored.load(path) == record
        assert stored.place(path).name == f"h200-bf16{suffix}"
        assert Results(tmp_path, lambda name, record: False)("h200-bf16") == record
        assert Results(tmp_path, lambda name, record: False).has("bf16")
    stored.store(path, long)
    stored.place(path).write_bytes(b"no xz")
    with pytest.raises(ValueError, match=r"h200-bf16\.json\.xz"):
        stored.load(path)


def test_the_size_is_of_a_default_build(every: ModuleType, tmp_path: Path) -> None:
    """Images of all packs and bytes of the archive; a build for one arch alone is refused."""
    (tmp_path / "generated").mkdir()
    (tmp_path / "libaotriton_v2.a").write_bytes(b"12345")
    packs = [{"arch": "sm_90", "images": [1, 2]}, {"arch": "gfx942", "images": [3]}]
    listed, out = tmp_path / "generated" / "images.json", tmp_path / "size.json"
    listed.write_text(json.dumps({"packs": packs}))
    assert every.build_size(tmp_path, out) == ""
    assert json.loads(out.read_text()) == {"images": 3, "archive_bytes": 5}
    listed.write_text(json.dumps({"packs": packs[:1]}))
    assert "has images for sm_90 alone: build the preset default" in every.build_size(tmp_path, out)
