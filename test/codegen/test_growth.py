"""Claims about growth, and about runs without news or with an error: work by the functional, no file touched."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy.rules import FAST, KERNEL, PORTABLE
from toy_database import FOLDER, cells, database, key, spec, usual, winner

from aotriton.codegen import generate, read_database
from aotriton.codegen.backends import CellKey
from aotriton.codegen.generate import main, write
from aotriton.codegen.plan import Timing, plan
from aotriton.rules.database import TuningDatabase, Winner
from aotriton.rules.expression import scalar
from aotriton.rules.family import Family, family
from aotriton.rules.kernel import Choice, Constexpr, KernelDescription
from aotriton.rules.operators import Backend, Operator


class Number(int):
    """Whose comparisons are calls, so that a search through the values of a choice is seen."""

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    def __hash__(self) -> int:
        return int(self)


def wide(kernel: KernelDescription, values: int) -> KernelDescription:
    """The kernel with one more choice, of so many values."""
    more = Choice("MORE", tuple(map(Number, range(values))), scalar("times"), default=Number(0))
    return replace(kernel, choices=(*kernel.choices, more), arguments=(*kernel.arguments, Constexpr("MORE")))


def grown(values: int) -> tuple[Operator, list[Winner], dict[CellKey, dict[str, Timing]]]:
    """An operator with two backends, of so many times as many functionals, each of them measured."""
    portable, fast = wide(KERNEL, values), wide(FAST, values)
    operator = replace(PORTABLE, backends=(Backend("portable", (portable,)), Backend("fast", (fast,))))
    rows, timings = [], {}
    for kernel in (portable, fast):
        for functional in kernel.functionals("sm_90"):
            for cell in cells(functional):
                specs = [spec(functional, 64, 8), spec(functional, 128, 8)]
                rows.append(winner(specs[0], cell))
                times = {one.config: Timing(one.name, 10.0 + place / 1000) for place, one in enumerate(specs)}
                timings[key(functional, cell)] = times
    return operator, rows, timings


def calls(run: Callable[[], object]) -> int:
    """How many calls of Python functions there are."""
    count = 0

    def seen(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_work_is_linear_in_functionals(toy: KernelDescription, tmp_path: Path) -> None:
    """Four times as many functionals take at most four times as many calls, comparisons of values among them."""

    def work(values: int) -> int:
        operator, rows, timings = grown(values)
        out = tmp_path / str(values)
        return calls(lambda: write(plan([operator], usual("sm_90"), "default", rows, timings), [operator], out))

    work(2)  # what is worked out once for all
    assert work(80) < 4.1 * work(20)


@pytest.fixture
def project(toy: KernelDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the family with winners on sm_90."""
    copy = tmp_path / "toy"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with TuningDatabase(copy / "rules" / "tuning.sqlite3") as opened:
        rows = [row for row in database(toy)[0] if row.arch == "sm_90" and row.provenance != "borrowed"]
        opened.put_winners(rows)
    portable = replace(family("toy"), operators=(PORTABLE,))
    monkeypatch.setattr(Family, "folder", copy)
    monkeypatch.setattr(generate, "add", lambda folder: portable)
    return copy


def arguments(project: Path) -> list[str]:
    given = {"database": project / "rules" / "tuning.sqlite3", "family": project, "out": project / "out"}
    return [f"--{name}={value}" for name, value in given.items()] + ["--arch=sm_90", "--alone"]


def test_a_run_without_news_reads_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second run says the same without opening the database. A change of the database, of the family's code, of the
    options or of a generated file is news.
    """
    reads: list[TuningDatabase] = []
    read = read_database.read

    def counted(opened: TuningDatabase, *more: Any) -> Any:
        reads.append(opened)
        return read(opened, *more)

    monkeypatch.setattr(read_database, "read", counted)

    def run(*more: str) -> tuple[int, str]:
        reads.clear()
        assert main([*arguments(project), *more]) == 0
        return len(reads), capsys.readouterr().out

    assert run()[0] == 1
    assert run() == (0, "8 functionals, 9 images, 0 files written\n")
    out, path = project / "out", project / "rules" / "tuning.sqlite3"
    news: list[Callable[[], object]] = [
        lambda: os.utime(path, ns=(1, 1)),
        lambda: (project / "rules" / "more.py").write_text(""),
        lambda: (out / "scale.operator.cc").unlink(),
        lambda: (out / "scale_rows.sm_90.lut.cc").write_text("mine"),
        lambda: (out / "generated.stamp").write_text("[1]"),
    ]
    for change in news:
        change()
        assert run()[0] == 1
        assert run()[0] == 0
    assert run("--coverage=full")[0] == 1


def test_a_failed_run_leaves_the_folder_as_it_was(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever goes wrong on the way, and however late, no file of the run before is touched."""
    assert main(arguments(project)) == 0
    before = {path.name: path.read_bytes() for path in (project / "out").iterdir()}
    with TuningDatabase(project / "rules" / "tuning.sqlite3") as opened, opened._file.transaction():
        opened._file.execute("UPDATE provenance SET source = 'another'")

    def fails(*_given: object) -> str:
        raise ValueError("the last file cannot be made")

    monkeypatch.setattr(generate, "_image_list", fails)
    assert main(arguments(project)) == 1
    assert "the last file cannot be made" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (project / "out").iterdir()} == before


def test_tables_tell_of_another_binary(project: Path) -> None:
    """Images on the list are `borrowed`, and why; where the list changes or is gone, so do the tables."""
    rebuilt, table = project / "rebuilt.txt", project / "out" / "scale_rows.sm_90.lut.cc"
    told = [*arguments(project), f"--rebuilt={rebuilt}"]
    assert main(told) == 0
    before = table.read_text()
    measured = spec(next(KERNEL.functionals("sm_90")), 128, 8).name
    rebuilt.write_text(f"{measured}\nof another time\n")
    assert main(told) == 0
    changed = '"another binary of this image was measured"'
    assert (before.count(changed), table.read_text().count(changed)) == (0, 3)
    assert table.read_text().replace(f"Provenance::borrowed, {changed}", 'Provenance::measured, ""') == before
    rebuilt.unlink()
    assert main(told) == 0
    assert table.read_text() == before
