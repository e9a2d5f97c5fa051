"""Winners that AOTriton publishes: what our descriptions can say of them is imported, and everything else is counted.

The tables here are made up; they have the columns of AOTriton's, and none of its rows.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from aotriton.codegen.compile import ImageStore
from aotriton.rules.database import TuningDatabase, TuningDatabaseError, Winner
from aotriton.rules.family import family
from aotriton.rules.flash.backward import ATTN_BWD_DQ
from aotriton.rules.flash.forward import ATTN_FWD
from aotriton.rules.kernel import Functional
from aotriton.tune.cli.main import main
from aotriton.tune.dataset.published import Imported, put, read

FLASH = family("flash")
ROW: dict[str, object] = {
    "gpu": "gfx942_mod0",
    "inputs$Q_dtype": "torch.bfloat16",
    "inputs$Max_seqlen_q": 512,
    "inputs$Max_seqlen_k": 2048,
    "inputs$CAUSAL_TYPE": 0,
    "inputs$BLOCK_DMODEL": 64,
    "inputs$ENABLE_DROPOUT": 0,
    "inputs$PADDED_HEAD": 0,
    "inputs$BIAS_TYPE": 0,
    "inputs$USE_ALIBI": None,
    "tuned_kernel$PERSISTENT_TYPE": 0,
    "tuned_kernel$GRID_CU_MULTIP": 2,
    "tuned_kernel$BLOCK_M": 64,
    "tuned_kernel$BLOCK_N": 32,
    "tuned_kernel$PRE_LOAD_V": 0,
    "compiler_options$waves_per_eu": 2,
    "compiler_options$num_warps": 2,
    "compiler_options$num_stages": 1,
}
ONLY_FORWARD = ("tuned_kernel$PERSISTENT_TYPE", "tuned_kernel$GRID_CU_MULTIP", "tuned_kernel$PRE_LOAD_V")
TUNABLES = {"BLOCK_M": 64, "BLOCK_N": 32}
COMPILE_OPTIONS = {"num_warps": 2, "num_stages": 1, "waves_per_eu": 2}


def row(**changes: object) -> dict[str, object]:
    """The row, with what a column's name ends in replaced."""
    made = dict(ROW)
    for name, value in changes.items():
        (column,) = (one for one in made if one.rpartition("$")[2] == name)
        made[column] = value
    return made


def backward(**changes: object) -> dict[str, object]:
    """As its tables of the backward's kernels have it: other columns, and other letters."""
    made = {name: value for name, value in row(**changes).items() if name not in ONLY_FORWARD}
    return {name.replace("Max_", "max_"): value for name, value in made.items()}


def published(path: Path, tables: dict[str, Sequence[dict[str, object]]]) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for table, given in tables.items():
            columns = ", ".join(f'"{name}"' for name in given[0])
            connection.execute(f'CREATE TABLE "{table}" ({columns})')
            marks = ", ".join("?" * len(given[0]))
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', [list(one.values()) for one in given])
        connection.commit()
    return path


def functionals(arch: str = "gfx942") -> list[Functional]:
    return [one for kernel in FLASH.kernels for one in kernel.functionals(arch)]


def found_in(tmp_path: Path, *rows: dict[str, object], table: str = "FLASH$attn_fwd") -> Imported:
    (tmp_path / "theirs.sqlite3").unlink(missing_ok=True)
    return read(published(tmp_path / "theirs.sqlite3", {table: rows}), FLASH, functionals())


def test_a_row_serves_every_cell_that_it_speaks_of(tmp_path: Path) -> None:
    """Its table asks neither for waves nor for the addressing, so it is the winner whatever they are; it has no time,
    and its source is the file.
    """
    found = found_in(tmp_path, row())
    digest = hashlib.sha256((tmp_path / "theirs.sqlite3").read_bytes()).hexdigest()[:12]
    assert {(winner.functional, winner.bin) for winner, _ in found.winners} == {
        (f"T=bf16 BLOCK_DMODEL=64 CAUSAL=False ADDRESSING={addressing}", f"max_seqlen_q=512 max_seqlen_k=2048 {waves}")
        for addressing in ("general", "offset32")
        for waves in ("waves=1", "waves=8")
    }
    for winner, spec in found.winners:
        assert (winner.arch, winner.product, winner.kernel) == ("gfx942", "AMD Instinct MI300X", ATTN_FWD.name)
        assert (winner.config, winner.image) == (spec.config, spec.name)
        assert (winner.provenance, winner.median_us, winner.low_us, winner.measured) == ("imported", 0.0, 0.0, "")
        assert winner.source == f"AOTriton's theirs.sqlite3, sha256 {digest}"
    assert (found.rows, found.left) == (1, {})


def test_a_backward_kernel_is_found_by_its_own_table(tmp_path: Path) -> None:
    """CAUSAL_TYPE 3 is causal, float16 is fp16."""
    found = found_in(tmp_path, backward(CAUSAL_TYPE=3, Q_dtype="torch.float16"), table="FLASH$bwd_kernel_dq")
    assert {winner.kernel for winner, _ in found.winners} == {ATTN_BWD_DQ.name}
    assert {(spec.functional["T"], spec.functional["CAUSAL"]) for _, spec in found.winners} == {("fp16", True)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "gfx90a_mod0"}, "of gfx90a, which we do not have"),
        ({"gpu": "gfx942_mod1"}, "of another product, gfx942_mod1"),
        ({"Q_dtype": "torch.float32"}, "of element type torch.float32"),
        ({"ENABLE_DROPOUT": 1}, "with ENABLE_DROPOUT"),
        ({"BIAS_TYPE": 1}, "with BIAS_TYPE"),
        ({"PADDED_HEAD": 1}, "with PADDED_HEAD"),
        ({"USE_ALIBI": 1}, "with USE_ALIBI"),
        ({"CAUSAL_TYPE": 1}, "with CAUSAL_TYPE 1"),
        ({"BLOCK_DMODEL": 48}, "of a head dim that we pad"),
        ({"Max_seqlen_q": 256}, "of lengths within a bin, of which another row is the representative"),
        ({"Max_seqlen_k": 1024}, "of lengths within a bin, of which another row is the representative"),
        ({"PRE_LOAD_V": 1}, "with PRE_LOAD_V, which our kernel does not have"),
        ({"PERSISTENT_TYPE": 2}, "with PERSISTENT_TYPE, which our kernel does not have"),
    ],
)
def test_what_cannot_be_said_is_counted(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    """With why, and the row beside it is taken."""
    found = found_in(tmp_path, row(**change), row())
    assert found.left == {reason: 1}
    assert (found.rows, len(found.winners)) == (1, 4)


def test_the_choice_among_its_backends_is_none_of_ours(tmp_path: Path) -> None:
    """Not even where it has a throughput: without batch and heads no time follows from it."""
    inputs = {name: value for name, value in backward().items() if name.startswith(("gpu", "inputs"))}
    found = found_in(tmp_path, inputs | {"op$backend": 2, "op$tflops": 300.0}, table="FLASH$op_attn_bwd")
    assert found.left == {"which of AOTriton's own backends serves a call": 1}
    assert not found.winners
    found = found_in(tmp_path, backward(), table="FLASH$bwd_kernel_fuse")
    assert found.left == {"of a kernel that we do not have": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(), row(BLOCK_M="wide")], r"row 2: tuned_kernel\$BLOCK_M is 'wide', which is no number"),
        ([row(num_warps=-1)], r"row 1: compiler_options\$num_warps is -1"),
        ([row(Max_seqlen_q=None)], r"row 1: inputs\$max_seqlen_q is None"),
        ([{name: value for name, value in ROW.items() if name != "gpu"}], "row 1: there is no column gpu"),
        ([{name: value for name, value in ROW.items() if name[-7:] != "BLOCK_N"}], "row 1: attn_fwd gfx942: expected"),
        ([row(), row(BLOCK_M=128)], "row 2: an earlier row has the same inputs"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, rows: list[dict[str, object]], message: str) -> None:
    """With the table, the row and the column."""
    with pytest.raises(TuningDatabaseError, match=rf"theirs\.sqlite3: table FLASH\$attn_fwd, {message}"):
        found_in(tmp_path, *rows)


def test_other_files_are_refused(tmp_path: Path) -> None:
    """A SQLite file of somebody else, one of ours, a damaged one, and any for a family that knows nobody's tables."""
    with pytest.raises(TuningDatabaseError, match="a SQLite file, but without a table of AOTriton's"):
        found_in(tmp_path, {"a": 1}, table="notes")
    ours, broken = tmp_path / "ours.sqlite3", tmp_path / "broken.sqlite3"
    TuningDatabase(ours).close()
    with pytest.raises(TuningDatabaseError, match="another tuning database is for --merge"):
        read(ours, FLASH, ())
    broken.write_bytes(b"SQLite format 3\0" + b"?" * 100)
    with pytest.raises(TuningDatabaseError, match=r"broken\.sqlite3: damaged"):
        read(broken, FLASH, ())
    with pytest.raises(TuningDatabaseError, match="the family gemm knows no other project's tables"):
        read(ours, family("gemm"), ())


CELL = "max_seqlen_q=512 max_seqlen_k=2048 waves=1"
OFFSET32 = "T=bf16 BLOCK_DMODEL=64 CAUSAL=False ADDRESSING=offset32"


def standing(path: Path, provenance: str) -> None:
    """A database with a winner of one of the cells that the row speaks of."""
    with TuningDatabase(path) as database:
        of = ("gfx942", "AMD Instinct MI300X", ATTN_FWD.name, OFFSET32, CELL)
        median_us = 5.0 if provenance == "measured" else 0.0
        database.put_winners([Winner(*of, "mine", "", provenance, median_us=median_us)])


@pytest.mark.parametrize(
    ("provenance", "over", "stays"),
    [
        ("measured", ("predicted",), True),
        ("predicted", (), True),
        ("predicted", ("predicted",), False),
        ("imported", (), False),
    ],
)
def test_winners_of_our_own_stay(tmp_path: Path, provenance: str, over: tuple[str, ...], stays: bool) -> None:
    """A measured one whatever is asked for, a predicted one unless it is; and the image's facts are known then."""
    path = tmp_path / "tuning.sqlite3"
    standing(path, provenance)
    found = read(
        published(tmp_path / "theirs.sqlite3", {"FLASH$attn_fwd": [row()]}),
        FLASH,
        [one for one in functionals() if str(one) == OFFSET32],
    )
    with TuningDatabase(path) as database:
        written = put(database, found, ImageStore(tmp_path / "store"), 1, over)
        winners = {one.bin: one.provenance for one in database.winners()}
        image = found.winners[0][0].image
        assert database.evidence.spills()[image] == 0
    assert written == (1 if stays else 2)
    assert winners == {CELL: provenance if stays else "imported", CELL.replace("=1", "=8"): "imported"}
    assert sum(found.dropped.values()) == stays
    if stays:
        assert next(iter(found.dropped)).startswith(f"the cell has a {provenance} winner")


def test_an_image_that_is_not_fit_serves_no_cell(tmp_path: Path) -> None:
    """One that does not compile, and one that spills: a build would stop at either."""
    odd, large = row(BLOCK_M=48), row(BLOCK_DMODEL=256, BLOCK_M=128, BLOCK_N=128)
    found = read(
        published(tmp_path / "theirs.sqlite3", {"FLASH$attn_fwd": [odd, large]}),
        FLASH,
        [one for one in functionals() if one.addressing == "offset32"],
    )
    with TuningDatabase(tmp_path / "tuning.sqlite3") as database:
        assert put(database, found, ImageStore(tmp_path / "store"), 1, ()) == 0
        assert database.winners() == []
    assert found.dropped == {"the image does not compile": 2, "the image is pruned, spills": 2}


def test_the_command_tells_what_became_of_each_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts by reason, then what was written; a selection takes only what was asked for."""
    monkeypatch.setenv("AOTRITON_IMAGE_STORE", str(tmp_path / "store"))
    theirs = published(tmp_path / "theirs.sqlite3", {"FLASH$attn_fwd": [row(), row(BIAS_TYPE=1), row(BIAS_TYPE=2)]})
    path = tmp_path / "tuning.sqlite3"
    standing(path, "predicted")
    arguments = ["--database", str(path), "--import", str(theirs), "--addressing", "offset32", "--jobs", "1"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "left 2 rows: with BIAS_TYPE",
        "left 1 winners: the cell has a predicted winner, which --over-predicted replaces",
        "1 rows can be said in our words: 2 winners, of which 1 were written",
    ]
    assert main([*arguments, "--over-predicted"]) == 0
    assert capsys.readouterr().out.endswith("2 winners, of which 2 were written\n")
    with pytest.raises(SystemExit):
        main(["--over-predicted"])
    assert "unrecognized arguments: --over-predicted" in capsys.readouterr().err
