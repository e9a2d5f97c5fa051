"""The benchmark of public kernels without a GPU: each declaration is right, and the program runs from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import interpreted_kernel
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import public_kernels as program  # noqa: E402 - they are no package
from public.declared import KERNELS, Declared  # noqa: E402

from aotriton.rules import family  # noqa: E402
from aotriton.rules.kernel import Tensor  # noqa: E402
from aotriton.tune.autotune.call import Call  # noqa: E402
from aotriton.tune.autotune.tuning import DrawnData, DrawnTuning  # noqa: E402
from aotriton.tune.measure.launcher import Result  # noqa: E402
from aotriton.tune.problem.family import tuning  # noqa: E402
from aotriton.tune.problem.problems import Wish, problems  # noqa: E402

NAMES = {one.name: one for one in KERNELS}
OPTIONS = {"num_warps", "num_stages"}  # the compiler's
# The interpreter rounds towards zero to 8 bits. The product rounds to bf16 in any case, so it is checked in bf16.
ROUNDED, AS_DECLARED = {"conch_fp8_quantization": 0.03}, {"conch_scaled_gemm"}


def declared(name: str) -> Declared:
    """The kernel, or a skip where its package is not installed."""
    pytest.importorskip("torch", reason="torch is not installed")
    one = NAMES[name]
    for package in (one.package, *(["einops"] if one.package == "fla" else [])):
        pytest.importorskip(package, reason=f"{package} is not installed: bench/public_kernels.py names its wheel")
    return one


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Any]:
    """A process in which Triton interprets, as it does not here."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            pool.submit(os.getpid).result()
        yield lambda *arguments: pool.submit(interpreted_kernel.run, *arguments).result()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:Triton is not supported on current platform")
def test_a_declaration_is_right(name: str, tmp_path: Path, interpreter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """autotune takes it, and the family's kernel computes what the reference does, in fp32, as the interpreter's bf16
    is not that of a GPU. At these sizes and those that are a little smaller.
    """
    monkeypatch.setenv(family.VARIABLE, "")
    one = declared(name)
    tuned, authors = program.described(one, tmp_path / name)
    assert 1 <= authors <= len(tuned._declared.configs)
    assert 4 <= len(tuned._declared.configs) <= 100
    made = one.declaration()
    wide: Any = {} if name in AS_DECLARED else {
        what: {each: text.replace("bf16", "fp32") if isinstance(text, str) else text for each, text in of.items()}
        for what, of in made.items() if what in ("inputs", "results")
    }  # fmt: skip
    tolerance = made.get("tolerance", 0.0) + ROUNDED.get(name, 1e-5)
    tuned, _ = program.described(one, tmp_path / name, sizes=program.small_sizes(one), tolerance=tolerance, **wide)
    tuned.write()
    (problem,) = problems(family.add(tuned.folder).kernels, "sm_90", 132, Wish())
    own = tuning(name)
    assert isinstance(own, DrawnTuning)
    config = {each: value for each, value in tuned._declared.configs[0].items() if each not in OPTIONS}
    for sizes in (problem.sizes, own.smaller(problem)):
        reference = own._function("reference", own.reference)
        prepare = own._function("prepare", own.prepare) if own.prepare else None
        data = DrawnData(tuned._operator, sizes, reference, prepare, tolerance, "cpu")
        written = [each for each in tuned._description.arguments if isinstance(each, Tensor) and each.operand.written]
        results = {each.name: Result(each, *data.result(tuned._description, each, {})) for each in written}
        for each in results.values():
            each.restore()
        tensors = data.tensors | {each: result.tensor for each, result in results.items()}
        call = Call.of(tuned._operator, (), tensors)
        grid, values = call.launch(tuned._declared.configs[0], tuned._described.constants_at(call.sizes))
        file = tuned.folder / "tritonsrc" / f"{tuned._name}.py"
        found = interpreter(file, tuned._name, grid, {**values, **config})
        for argument in written:
            check = data.check(tuned._description, argument, {}, found)
            assert not check.wrong, f"{sizes}: {check.wrong}"


def test_a_run_from_end_to_end(tmp_path: Path) -> None:
    """A stand-in times two configs of each kernel, whose images are real. The record has all kernels, also one whose
    tuning fails; what is there is not measured again.
    """
    names = ["liger_cross_entropy", "conch_silu_and_mul", "fla_chunk_o"]
    for name in names:
        declared(name)
    path = tmp_path / "record.json"
    rows = path.with_suffix(".rows")
    rows.write_text(json.dumps(program.about(NAMES["liger_rope"]) | {"error": "it was lost"}) + "\n")
    python_path = [ROOT, ROOT / "test", *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-W", "ignore", ROOT / "bench" / "public_kernels.py", "--json", path, "--toy"]
    done = subprocess.run(
        [*map(str, command), "--jobs", "2", "--only", *names, "liger_rope"], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, python_path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {row["kernel"]: row for row in json.loads(path.read_text())["rows"]}
    assert list(found) == [name for name in NAMES if name in found]
    assert found.pop("liger_rope")["error"] == "it was lost"
    assert sorted(found) == sorted(names)
    for row in found.values():
        assert "error" not in row, row["error"]
        assert row["verdicts"] == {"ok": 2}
        assert row["configs"] == 2
        assert program.ratio(row) >= 1
    lines = done.stdout.splitlines()
    assert lines[-4].startswith("| liger_rope | ")
    assert "it was lost" in lines[-4]


WORKER = """
import json, os, sys, time
rows, names = sys.argv[sys.argv.index("--json") + 1].replace(".json", ".rows"), sys.argv[sys.argv.index("--only") + 1 :]
for name in names:
    if name == "liger_rope":
        os.abort()
    if name == "liger_swiglu":
        time.sleep(60)
    with open(rows, "a") as file:
        print(json.dumps({"kernel": name, "lines": 1, "error": "measured"}), file=file)
    if name == "liger_softmax":
        sys.exit(3)
"""


def test_a_kernel_that_crashes_or_hangs_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are measured by another worker. A lost GPU is nobody's fault."""
    script, rows = tmp_path / "worker.py", tmp_path / "record.rows"
    script.write_text(WORKER)
    monkeypatch.setattr(program, "__file__", str(script))
    monkeypatch.setattr(program, "PATIENCE", 2.0)
    names = ["liger_rms_norm", "liger_rope", "liger_softmax", "liger_swiglu", "liger_geglu"]
    program.supervise("0", names, rows, time.time() + 100, ())
    assert {name: row["error"] for name, row in program.read(rows).items()} == {
        "liger_rms_norm": "measured",
        "liger_rope": "its process ended with status -6",
        "liger_softmax": "measured",
        "liger_swiglu": "it took more than 2 s",
        "liger_geglu": "measured",
    }
    record = program.record_of(rows, [*names, "fla_matmul"], {})
    assert [row["error"] for row in record["rows"]][-1] == "not measured: the time was up"
    assert program.table(record).count("\n") == 7


def test_parts_are_all_of_the_kernels() -> None:
    parts = [program.chosen_names((), f"{place}/3") for place in range(3)]
    assert sorted(name for part in parts for name in part) == sorted(NAMES)
    assert len(NAMES) >= 20
    assert program.chosen_names(["fla_matmul"], "0/1") == ["fla_matmul"]
