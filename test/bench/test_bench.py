"""Benchmarks of the host's time without a GPU: what is timed in which order, and the tables of records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ctest_environment import from_ctest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import contenders  # noqa: E402 - it is no package
import latency  # noqa: E402 - it is no package
import stored  # noqa: E402 - it is no package

IN_CPP = """
import ctypes, json, sys
from types import SimpleNamespace
import latency
library = latency.load(latency.Path(sys.argv[1]))
noted = ctypes.CDLL("libcuda.so.1").fake_cuda_calls
noted.restype = ctypes.c_char_p
seen = {}
problem = latency.Problem(*(n << 20 for n in range(1, 6)), 0x55, 1, 2, 128, 64, 0.125, True)
call = latency.CppCall(library, problem)
call()
seen["call"] = noted().decode()
to_return, to_end = call.host(None)
assert 0 < to_return <= to_end, (to_return, to_end)
seen["host"] = noted().decode()
call.events(None, SimpleNamespace(cuda_event=0x71), SimpleNamespace(cuda_event=0x72))
seen["events"] = noted().decode()
problem.q = None
try:
    call()
except RuntimeError as error:
    seen["error"] = str(error)
print(json.dumps(seen))
"""


def test_the_cpp_side_times_one_call_of_the_library() -> None:
    """Each sample is a call and a wait, then the timed call with a wait after it or events right around it."""
    module = from_ctest("AOTRITON_BENCH_LATENCY")
    environment = {
        "LD_LIBRARY_PATH": from_ctest("AOTRITON_STANDINS"),
        "PYTHONPATH": os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", IN_CPP, module], capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)

    def steps(what: str) -> list[str]:
        calls = (call.split() for call in seen[what].split(";") if call)
        return [" ".join(call[:2]) if call[0] == "record" else call[0]
                for call in calls if call[0] in ("launch", "synchronize", "record")]  # fmt: skip

    assert steps("call") == ["launch"]
    assert steps("host") == ["launch", "synchronize", "launch", "synchronize"]
    assert steps("events") == ["launch", "synchronize", "record 0x71", "launch", "record 0x72", "synchronize"]
    assert "null_pointer: attn_fwd: q " in seen["error"]


def test_the_python_side_times_the_same_steps() -> None:
    """As in C++; what selects a peer's backend is entered before the sample and left after it."""
    steps: list[str] = []

    @contextmanager
    def selection() -> Iterator[None]:
        steps.append("select")
        yield
        steps.append("restore")

    def event(name: str) -> Any:
        return SimpleNamespace(record=lambda stream: steps.append(name))

    stream = SimpleNamespace(synchronize=lambda: steps.append("synchronize"))
    call = latency.PythonCall(lambda: steps.append("call"), selection)
    to_return, to_end = call.host(stream)
    assert 0 <= to_return <= to_end
    assert steps == ["select", "call", "synchronize", "call", "synchronize", "restore"]
    steps.clear()
    call.events(stream, event("start"), event("end"))
    assert steps == ["select", "call", "synchronize", "start", "call", "end", "synchronize", "restore"]


def test_turns_rotate_and_keep_every_round() -> None:
    """Each contender is first, second, and so on equally often; warming up leaves no samples."""
    turns: list[str] = []

    def made_up(name: str, us: int) -> Any:
        def host(stream: object) -> tuple[int, int]:
            turns.append(name)
            return 1000 * us, 2000 * us

        return SimpleNamespace(host=host, events=lambda *arguments: None)

    calls = {"a": made_up("a", 1), "b": made_up("b", 2), "c": made_up("c", 3)}
    start = SimpleNamespace(elapsed_time=lambda end: 0.007)
    samples = latency.take_turns(calls, None, start, None, 6)
    assert samples["return"] == {"a": [1.0] * 6, "b": [2.0] * 6, "c": [3.0] * 6}
    assert samples["complete"] == {"a": [2.0] * 6, "b": [4.0] * 6, "c": [6.0] * 6}
    assert samples["events"]["a"] == [7.0] * 6
    measured = turns[3 * latency.WARM_UP :]
    assert [measured[i::3].count(name) for i in range(3) for name in calls] == [2] * 9


def record() -> dict[str, Any]:
    """A cell where the library is below its peers by the host's clocks, but not by those of the GPU."""
    us = dict(zip(latency.ROWS, (5.0, 20.0, 30.0, 25.0, 35.0, 8.0, 0.1), strict=True))
    cell: dict[str, Any] = {"batch": 1, "heads": 16, "seqlen": 512, "head_dim": 128, "causal": True}
    cell["us"] = {clock: dict(us) for clock in latency.CLOCKS}
    cell["us"]["events"][contenders.CUDNN] = 5.4
    cell["us"]["gpu"] |= {contenders.FA2: 5.5, latency.FA2_SDPA: 4.0, contenders.CUDNN: 5.2}
    cell["quartiles_us"] = {
        clock: {who: [time - 0.25, time + 0.25] for who, time in rows.items()} for clock, rows in cell["us"].items()
    }
    cell["ratio"] = {
        clock: {peer: rows[peer] / rows[contenders.LIBRARY] for peer in latency.THROUGH_TORCH}
        for clock, rows in cell["us"].items()
    }
    names = ("gpu", "cpu", "driver", "torch", "cudnn", "date")
    return {"machine": {name: f"this {name}" for name in names}, "rounds": 11, "cells": [cell]}


def test_a_record_becomes_a_table(tmp_path: Path) -> None:
    """Every contender by every clock, and for each clock whether the library is below all that goes through torch."""
    file = tmp_path / "latency.json"
    file.write_text(json.dumps(record()))
    done = subprocess.run(
        [sys.executable, str(BENCH / "latency.py"), "--from", str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "this gpu, this cpu, driver this driver, torch this torch, cuDNN this cudnn, this date"
    columns = lines[3].count("|")
    assert [line.count("|") for line in lines[3:]] == [columns] * (3 + len(latency.ROWS))
    assert lines[3].startswith("| B1 H16 S512 D128 causal |")
    assert lines[4].strip("|-") == ""
    assert lines[5] == "| aotriton, C++ API |" + " 5.0 (4.8 to 5.2) |" * 4
    answers = [answer.strip() for answer in lines[-1].split("|")[2:-1]]
    mixed = "no; level: FA2, cuDNN; above: FA2 SDPA (× 0.80)"
    assert answers == ["yes (× 4.00)", "yes (× 4.00)", "no; level: cuDNN (× 1.08)", mixed]


def test_a_plot_is_smaller_and_draws_the_same_lines() -> None:
    """Behind M a point alone means a line to it; curves and marks that others use by their names keep theirs."""
    svg = """<metadata>
 <a/>
</metadata>
<g id="line_1">
 <path id="mark" d="M 0.1234 0 
L 10 5.6789 
L -1 2 
C 0 1 2 3 4 5 
L 7 8 
z
"/>
</g>
 <g clip-path="url(#p)">
  <path d="M 1 9 
L 3 9 
L 3 2 
L 1 2 
z
" style="fill: #ffffff"/>
 </g>
 <text style="font-size: 8px" transform="translate(5 6)">D64</text>"""
    drawn = """<path id="mark" d="M 0.1 0 10 5.7 -1 2 \nC 0 1 2 3 4 5 \nL 7 8 z"/>
<g clip-path="url(#p)">
<path d="M 1 9 H 3 V 2 H 1 z" fill="#ffffff"/>
</g>
<text font-size="8px" x="5" y="6">D64</text>"""
    assert stored.smaller(svg) == drawn


def test_launches_of_several_processes_are_medians_with_ranges(tmp_path: Path) -> None:
    """Each process writes a record of its own; ratios are medians of ratios, not ratios of medians."""
    program, result = tmp_path / "bench-launch", tmp_path / "result.json"
    times = [(4.0, 3.0, 2.0), (3.0, 2.5, 2.0), (9.0, 8.0, 3.0)]
    program.write_text(f"""#!{sys.executable}
import json, pathlib, sys
count = pathlib.Path(__file__).with_suffix(".count")
turn = len(count.read_text()) if count.exists() else 0
count.write_text("x" * (turn + 1))
library, prepared, bare = {times}[turn % 3]
case = dict(call="forward", launches=1, library_us=library, prepared_us=prepared, bare_us=bare)
case |= dict(library=library / bare, prepared=prepared / bare)
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(dict(gpu="a GPU", cases=[case])))
""")
    program.chmod(0o755)
    options = ["--program", str(program), "--json", str(result)]
    done = subprocess.run([sys.executable, BENCH / "launch.py", *options], capture_output=True, text=True, check=True)
    record = json.loads(result.read_text())
    (case,) = record["cases"]
    assert (record["gpu"], record["processes"]) == ("a GPU", 9)
    assert (case["library_us"], case["bare_us"], case["library"], case["prepared"]) == (4.0, 2.0, 2.0, 1.5)
    assert (case["library_range"], case["prepared_range"]) == ([1.5, 3.0], [1.25, 8 / 3])
    assert "2.000 (1.500 to 3.000)" in done.stdout
