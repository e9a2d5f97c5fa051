"""What may not be in a database or a description is named by file, table, row and column, and goes nowhere."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_database import BIN, begin, problem, winner
from test_golden import COMPILE
from toy.rules import KERNEL, ROWS, X

from aotriton.codegen import cxx, pack
from aotriton.codegen.store import CompiledImage
from aotriton.rules.database import Measurement, Model, SequenceTiming, TuningDatabase, TuningDatabaseError, archive
from aotriton.rules.database.local import NAME
from aotriton.rules.expression import constant, size
from aotriton.rules.kernel import Choice, Parameter
from aotriton.rules.operators import Backend, DerivedSize, Scalar

NAN, INFINITE = float("nan"), float("inf")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A winner, and a measurement that it could come from."""
    made = tmp_path / "tuning.sqlite3"
    with TuningDatabase(made) as database:
        database.put_winners([winner()])
        image = database.evidence.image_id("attn_fwd_sm_90_1", "BLOCK_M=64 num_warps=4", "0" * 64, 64, 0, 1024)
        session = begin(database)
        database.evidence.record(Measurement(problem(database), image, session, "sweep", "ok", 10.0, [10.0]))
        database.evidence.add_sample(
            session, "gemm", "T=bf16", {"m": 1}, [SequenceTiming("portable", ("gemm_1",), 1.0, 0.1, 9)]
        )
        model = Model("sm_90", "stand-in", "gemm", "gemm", "T=bf16", "gemm_1", "waves", 2, (1.0, 2.0), 0.1, 9)
        database.put_models([model], ("sm_90", "stand-in", "gemm"))
    return made


def change(path: Path, sql: str, *values: object) -> None:
    """As another program would, which knows nothing of what a column may hold."""
    connection = sqlite3.connect(path)
    for table in ("measurement", "sample", "timing"):
        connection.execute(f"DROP TRIGGER IF EXISTS {table}_is_not_changed")
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute(sql, values)
    connection.commit()
    connection.close()


def local(path: Path) -> Path:
    return archive.folder_of(path) / NAME


BAD_WINNERS = [
    *(("median_us", value) for value in (INFINITE, -1.0, 1e30, "soon", b"10")),
    *(("image", value) for value in ("a b", "", "x; int y", 'x"', "x\n")),
    *(("config", value) for value in ("A", "A=1.5", "A=x", "A=", "=1", "A=4294967296", "a-b=1", "for=1", "A=1=2")),
    ("config", b"A=1"),
    *(("runners_up", value) for value in (INFINITE, -1.0, "soon")),
    ("provenance", "guessed"),
    ("source", b"bytes"),
    *((column, value) for column in ("low_us", "high_us") for value in (INFINITE, -1.0, "soon")),
    ("shape", b"{}"),
    ("measured", b"2026"),
]


@pytest.mark.parametrize(("column", "value"), BAD_WINNERS)
def test_a_winner_that_will_not_do_is_named(path: Path, column: str, value: object) -> None:
    """File, table, row and column, whatever is wrong with the value."""
    tables = {"image": "image_row", "config": "config", "shape": "shape", "runners_up": "runner_up"}
    tables |= dict.fromkeys(("provenance", "source", "measured"), "provenance")
    table = tables.get(column, "winner_row")
    if column == "image":
        change(path, "UPDATE image_prefix SET prefix = '' WHERE id IN (SELECT prefix FROM image_row)")
    where = " WHERE id IN (SELECT config FROM image_row)" if column == "config" else ""
    named = {"image": "digest", "runners_up": "median_us"}.get(column, column)
    change(path, f"UPDATE {table} SET {named} = ?{where}", value)
    with TuningDatabase(path, readonly=True) as database, pytest.raises(TuningDatabaseError) as caught:
        database.winners()
    assert f"{path}: table winner, row sm_90 stand-in attn_fwd T=bf16 {BIN}: " in str(caught.value)
    assert column in str(caught.value)


BAD_SAMPLES = [
    *(("sample", "shape", value) for value in ("[]", "{", '{"a b": 1}', '{"m": NaN}', '{"m": Infinity}', '{"m": [1]}')),
    ("sample", "functional", b"T=bf16"),
    *(("timing", "median_us", value) for value in (INFINITE, -1.0, 0.0, "soon")),
    *(("timing", "spread", value) for value in (INFINITE, -1.0, "soon")),
    ("timing", "rounds", -1),
]


@pytest.mark.parametrize(("table", "column", "value"), BAD_SAMPLES)
def test_a_sample_that_will_not_do_is_named(path: Path, table: str, column: str, value: object) -> None:
    """File, table and row, of the sample and the sequence, and the column."""
    change(local(path), f"UPDATE {table} SET {column} = ?", value)
    row = "1 1" if table == "timing" else "1"
    with TuningDatabase(path, readonly=True) as database, pytest.raises(TuningDatabaseError) as caught:
        database.evidence.samples("sm_90", "gemm")
    assert f"{path}: table {table}, row {row}: " in str(caught.value)
    assert column in str(caught.value) or "m in shape" in str(caught.value)


@pytest.mark.parametrize(("column", "value"), [("images", "[]"), ("images", '["a b"]'), ("backend", "a b")])
def test_a_sequence_that_will_not_do_is_named(path: Path, column: str, value: object) -> None:
    """By the timing that it is of."""
    change(local(path), f"UPDATE sequence SET {column} = ?", value)
    with (
        TuningDatabase(path, readonly=True) as database,
        pytest.raises(TuningDatabaseError, match=f"row 1 1: .*{column}"),
    ):
        database.evidence.samples("sm_90", "gemm")


BAD_MODELS = [
    *(("coefficients", value) for value in ("{}", "[NaN]", "[-1]", "[Infinity]", '["1"]', "[", b"[]")),
    *(("error", value) for value in (INFINITE, -1.0, "small")),
    ("form", "int x;"),
    ("image", 'x"'),
    ("occupancy", 1 << 40),
    ("samples", -1),
    ("source", b"bytes"),
]


@pytest.mark.parametrize(("column", "value"), BAD_MODELS)
def test_a_model_that_will_not_do_is_named(path: Path, column: str, value: object) -> None:
    """File, table, row and column."""
    change(path, f"UPDATE model_row SET {'digest' if column == 'image' else column} = ?", value)
    with TuningDatabase(path, readonly=True) as database, pytest.raises(TuningDatabaseError) as caught:
        database.models()
    assert f"{path}: table model, row sm_90 stand-in gemm gemm T=bf16 " in str(caught.value)
    assert column in str(caught.value)


@pytest.mark.parametrize("value", [None, 0.0, INFINITE, -1.0, 1e30, "soon"])
def test_a_measurement_that_will_not_do_is_named(path: Path, value: object) -> None:
    """A median that is none; SQLite keeps a NaN as no value."""
    change(local(path), "UPDATE measurement SET median_us = ?", value)
    message = r"tuning\.sqlite3: table measurement, row 1: median_us is "
    with TuningDatabase(path, readonly=True) as database, pytest.raises(TuningDatabaseError, match=message):
        database.evidence.outcomes()


@pytest.mark.parametrize(
    ("column", "value"), [("sha256", "abc"), ("sha256", "0" * 63 + "G"), ("spills", "8 bytes"), ("spills", -1)]
)
def test_an_image_that_will_not_do_is_named(path: Path, column: str, value: object) -> None:
    change(path, f"UPDATE image_row SET {column} = ? WHERE timed", value)
    message = f"table image, row attn_fwd_sm_90_1: {column} is "
    with TuningDatabase(path, readonly=True) as database, pytest.raises(TuningDatabaseError, match=message):
        database.checksums() if column == "sha256" else database.spills()


@pytest.mark.parametrize("value", [NAN, INFINITE, -INFINITE, -1.0, 1e30])
def test_no_such_time_is_recorded(path: Path, value: float) -> None:
    """Neither as median nor among the samples, and nothing of what came with it stays."""
    with TuningDatabase(path) as database:
        session, image = begin(database), database.evidence.image_id("b", "c")
        good = Measurement(1, image, session, "sweep", "ok", 1.0, [1.0])
        for bad in (replace(good, phase="race", median_us=value), replace(good, phase="race", samples=[1.0, value])):
            with pytest.raises(TuningDatabaseError, match="table measurement, row "):
                database.evidence.record(good, bad)
        assert len(database.evidence.outcomes()) == 1


WRITE = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = " + sys.argv[2])
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
for number in range(2000):
    connection.execute("INSERT INTO bin (bin) VALUES (?)", (f"{number}" + "x" * 200,))
if sys.argv[2] == "WAL":
    connection.execute("COMMIT")
os._exit(9)
"""


@pytest.mark.parametrize(("mode", "suffix"), [("DELETE", "-journal"), ("WAL", "-wal")])
def test_a_hot_journal_is_named(path: Path, mode: str, suffix: str) -> None:
    """A reader is told which file a killed writer left, and what to do; a writer finishes or undoes it, and then all is
    well.
    """
    assert subprocess.run([sys.executable, "-c", WRITE, path, mode]).returncode == 9
    left = path.with_name(path.name + suffix)
    assert left.stat().st_size
    with pytest.raises(TuningDatabaseError, match=f"{left.name} is beside it: .* opening it for writing"):
        TuningDatabase(path, readonly=True)
    path.chmod(0o444)
    with pytest.raises(TuningDatabaseError, match=f"{left.name} is beside it"):
        TuningDatabase(path)
    path.chmod(0o644)
    with TuningDatabase(path) as database:
        bins = database._file.value("SELECT count(*) FROM bin")
    assert bins == (2001 if mode == "WAL" else 1)
    with TuningDatabase(path, readonly=True) as database:
        assert len(database.evidence.outcomes()) == 1
    assert sorted(entry.name for entry in path.parent.iterdir()) == [archive.folder_of(path).name, path.name]


INJECTED = 'x"; int y; //', "a b", "x\ny", "x*/", "été", "1x", "", "class", "template", "x??/"


@pytest.mark.parametrize("name", INJECTED)
def test_names_are_identifiers(name: str) -> None:
    """What becomes a name in C++ is one, wherever in a description it stands."""
    makers: list[Callable[[], object]] = [
        lambda: replace(KERNEL, name=name),
        lambda: replace(KERNEL, family=name),
        lambda: replace(X, name=name),
        lambda: replace(X, dims=("batch", name)),
        lambda: replace(ROWS, name=name),
        lambda: Choice(name, (1,), constant(1)),
        lambda: Parameter(name, {"cuda": (1,)}),
        lambda: Scalar(name, "i32"),
        lambda: DerivedSize(name, size("rows")),
        lambda: Backend(name, (KERNEL,)),
    ]
    for make in makers:
        with pytest.raises(ValueError, match="which is "):
            make()


@pytest.mark.parametrize("value", ["a b", "x\ny", "a=b", "", "*/", 'x"', "été"])
def test_values_of_choices_are_words(value: str) -> None:
    """A functional's name is words of name=value."""
    with pytest.raises(ValueError, match="cannot be spelled"):
        Choice("C", (value,), constant(1))


TEXTS = (
    "end\\",
    "end??/",
    "a\nint y = 1 +;",
    "a\r\v\f\x00\x1b\u2028int z;",
    "*/ /* */",
    ')" R"(',
    '"; #error',
    "\\u000aint w;",
    "été 世界 \udc80".encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
    "%s {{ x }} {% y %}",
)


def test_no_text_leaves_its_comment_or_literal(tmp_path: Path) -> None:
    """Behind // and between quotation marks, in C++17 with trigraphs too, the program is the one without the text."""
    lines = ["#include <cstring>", "int main() {", "  int bad = 0;"]
    for text in TEXTS:
        lines += [f"  // {cxx.comment(text)}", "  ++bad;", "  --bad;"]
        spelled = ", ".join(str(byte) for byte in (*text.encode(), 0))
        size = len(text.encode()) + 1
        lines += ["  {", f"    const unsigned char bytes[] = {{{spelled}}};"]
        lines += [f"    bad += std::memcmp(bytes, {cxx.string(text)}, {size}) != 0;", "  }"]
    (tmp_path / "main.cc").write_text("\n".join([*lines, "  return bad;", "}\n"]))
    options = ["-trigraphs", "-Wno-trigraphs", "-Wno-comment"]
    subprocess.run([*COMPILE, *options, tmp_path / "main.cc", "-o", tmp_path / "main"], check=True)
    subprocess.run([tmp_path / "main"], check=True)
    assert "\n" not in "".join(map(cxx.comment, TEXTS))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "x{}; int y"),
        ("config", ["A=1"]),
        ("shared", "1}; int y{1"),
        ("threads", -1),
        ("spills", 1.5),
        ("descriptors", [{"rank": "4", "swizzle": 3, "block": [1]}]),
        ("descriptors", [{"rank": 1, "swizzle": 3, "block": ["1}"]}]),
    ],
)
def test_metadata_of_a_store_is_checked(tmp_path: Path, key: str, value: object) -> None:
    """The store is a folder that others write: what is no name and no number there does not reach C++."""
    metadata: dict[str, Any] = {
        "name": "image",
        "functional": "T=bf16",
        "config": "A=1",
        "entry": "kernel",
        "descriptors": [],
    }
    metadata |= dict.fromkeys(("threads", "shared", "global_scratch", "registers", "spills"), 1) | {key: value}
    (tmp_path / "image").write_bytes(b"image")
    with pytest.raises(ValueError, match=" is "):
        pack.write(tmp_path, "toy", "kernel", "sm_90", [CompiledImage("image", metadata, tmp_path / "image")], False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["image"]


def test_configuring_leaves_git_alone() -> None:
    """Nothing of the build calls git; the command that shows the database as text is the user's to give."""
    root = Path(__file__).resolve().parents[2]
    files = [root / "CMakeLists.txt", *(root / "cmake").iterdir()]
    assert not [path for path in files if "git config" in path.read_text() or "GIT_EXECUTABLE" in path.read_text()]
    command = 'git config diff.tuning_database.textconv "python3 rules/dump.py"'
    assert command in (root / "docs" / "tuning.md").read_text()
