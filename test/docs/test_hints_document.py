"""docs/hints.md: its commands and snippets run, and its tables are true.

Run by ctest, which says where the binding and the installed tree are.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from ctest_environment import from_ctest
from page import DOCS, snippet

from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.family import IN_TREE, family
from aotriton.rules.kernel import BFS, DFS, KernelDescription

ROOT = Path(__file__).resolve().parents[2]
TEXT = (DOCS / "hints.md").read_text()
HINTS = re.findall(r"^\| `(\w+)` \| ", TEXT.partition("## As text")[0], re.MULTILINE)


def test_the_python_snippet_runs() -> None:
    """It asserts that its schedule is honoured."""
    pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
    names: dict[str, object] = {}
    exec(snippet(TEXT, "python"), names)
    assert "kernel" in names


def test_the_command_runs() -> None:
    """It says what became of both of its hints."""
    program, *arguments = shlex.split(snippet(TEXT, "sh"))
    assert program == "aotriton-explain"
    done = subprocess.run([from_ctest("AOTRITON_EXPLAIN"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^    hints        workspace_limit: honoured", done.stdout, re.MULTILINE)
    assert re.search(r"^                 schedule: not honoured, ", done.stdout, re.MULTILINE)


def test_the_cxx_snippet_compiles(tmp_path: Path) -> None:
    """As C++17, with the public headers alone."""
    source = tmp_path / "snippet.cc"
    source.write_text("#include <aotriton/flash.h>\n\n#include <cstdio>\n\n" + snippet(TEXT, "cpp"))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/v2src/include", "-fsyntax-only"]
    subprocess.run([os.environ.get("CXX", "g++"), *flags, source], check=True)


def is_known(name: str) -> bool:
    """Whether the library knows a hint of this name: an unknown one is told as such, a wrong value of a known one is
    refused.
    """
    aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
    sizes = {"batch": 4, "heads": 16, "seqlen": 1024, "head_dim": 64}
    try:
        (kernel,) = aotriton.explain("attn_fwd", arch="sm_90", dtype="bf16", hints=f"{name}=0", **sizes)
    except (ValueError, aotriton.AotritonError):
        return True
    return bool(kernel["hints"].get(name, {}).get("why") != "there is no hint of this name")


def test_every_hint_of_the_table_is_known() -> None:
    """The library knows each of them, and has no field beside them."""
    assert len(HINTS) == 9
    assert all(map(is_known, HINTS))
    assert not is_known("colour")
    header = (ROOT / "v2src" / "include" / "aotriton" / "c.h").read_text()
    struct = header.partition("typedef struct aotriton_hints {")[2].partition("} aotriton_hints;")[0]
    struct = re.sub(r"/\*.*?\*/", "", struct, flags=re.DOTALL)
    fields = set(re.findall(r"(\w+)(?:\[\d+\])?;", struct)) - {"size", "reserved", "unknown", "workspace_limited"}
    assert fields == {name for name in HINTS if name not in ("latency", "throughput")} | {"objective"}


def test_the_table_of_orders_is_the_descriptions() -> None:
    """Kernels that walk slices run depth first, but for the causal groups of the forward for Hopper."""
    both = re.compile(r"causal \| `bfs` with a `GROUP_ROUNDS` of 2 or more")
    assert both.search(TEXT)
    described: list[KernelDescription] = []
    for kernel in (one for name in IN_TREE for of in family(name).operators for one in of.kernels):
        if kernel.schedule is None:
            continue
        described.append(kernel)
        for causal in (0, 1):
            for rounds in (0, 1, 2, 16):
                scalars = {"causal": causal, "hi": 0 if causal else 9}
                environment = Environment(scalars=scalars, tunables={"GROUP_ROUNDS": rounds})
                of_causal = ("attn_fwd_hopper", "attn_fwd_hopper_slim", "attn_fwd_hopper_fp8")
                of_groups = kernel.name in of_causal and causal
                grouped = (of_groups or kernel.name == "attn_fwd_hopper_features") and rounds > 1
                assert evaluate(kernel.schedule, environment) == (BFS if grouped else DFS).value
    assert {kernel.name for kernel in described if kernel.work} >= {
        "attn_fwd",
        "attn_bwd_dq",
        "attn_bwd_hopper_pair",
        "gemm",
    }
