"""What aotriton.autotune refuses, by the name of the argument; and what it takes of a module, and of a text."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import autotuned
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

import aotriton
from aotriton.codegen import cuda
from aotriton.rules import expression as words
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.provider import Provider
from aotriton.tune.autotune.device_source import device_source
from aotriton.tune.autotune.notation import expression, operand, spelled
from aotriton.tune.autotune.source import slice_of
from aotriton.tune.autotune.user_kernel import read_kernel

GIVEN: dict[str, Any] = {
    "inputs": {"x": "fp32[n]", "count": "n", "shift": 0.5, "steps": 1},
    "results": {"out": "fp32[n]"},
    "sizes": {"n": 1024},
    "reference": autotuned.of_scaled,
    "grid": "cdiv(n, BLOCK)",
    "space": {"BLOCK": (64, 128), "num_warps": (1, 4)},
}


def inputs(**changes: object) -> dict[str, object]:
    return {**GIVEN["inputs"], **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": None}, "inputs: it must be given"),
        ({"sizes": None}, "sizes: it must be given"),
        ({"inputs": inputs(x="fp64[n]")}, r"x: 'fp64\[n\]' is no tensor: write its type, fp16 or bf16 or fp32"),
        ({"inputs": inputs(x="fp32[n, 3]")}, r"x: 'fp32\[n, 3\]' is no tensor"),
        ({"inputs": {"count": "n"}}, r"inputs: there must be a tensor, as bf16\[rows, columns\]"),
        ({"inputs": inputs(x="fp32[m]")}, "x: sizes does not say what m is"),
        ({"inputs": inputs(shift=float("nan"))}, "inputs: shift is nan: neither a tensor, nor an expression, nor a"),
        ({"inputs": inputs(shift=[1])}, r"inputs: shift is \[1\]: neither"),
        ({"inputs": inputs(steps=1 << 40)}, "inputs: steps is 1099511627776, and whole numbers have 32 bits"),
        ({"inputs": inputs(shift="n / 2")}, "shift: 'n / 2' is no expression of .* n, steps: n / 2 is unknown"),
        ({"inputs": inputs(more=2)}, "inputs: scaled takes no more, but x, out, count, shift, steps, BLOCK"),
        ({"inputs": {"x": "fp32[n]", "count": "n", "shift": 0.5}}, "steps: scaled takes it, and it is neither in"),
        ({"results": {}}, "results: there must be a tensor"),
        ({"results": {"out": 3}}, "out: 3 is no tensor"),
        ({"results": {"out": "fp32[n]", "x": "fp16[n]"}}, "results: x is an input, too, and is declared there as"),
        ({"results": {"out": "fp32[n]", "shift": "fp32[n]"}}, "results: shift is an input, too, and is declared"),
        ({"sizes": {"n": 0}}, "sizes: n must be a whole number above 0, or several of them, not 0"),
        ({"sizes": {"n": ()}}, r"sizes: n must be a whole number above 0, or several of them, not \(\)"),
        ({"sizes": {"n": 1024, "m": 2}}, "sizes: no tensor has the dimension m"),
        (
            {
                "inputs": inputs(x="fp32[n, a, b, c]"),
                "results": {"out": "fp32[n, d]"},
                "sizes": dict.fromkeys("nabcd", (2, 4)),
            },
            "scaled: 5 tuning keys of scaled, and there is room for 4",
        ),
        ({"sizes": {"n n": 4}}, "sizes: a name is 'n n', which is no name"),
        ({"space": {}}, "space: there is nothing to choose from"),
        ({"space": {"BLOCK": 64}}, "space: BLOCK must be several numbers, .* or types of Triton, not 64"),
        ({"space": {"BLOCK": ([],)}}, r"space: BLOCK must be several numbers, .*, not \(\[\],\)"),
        ({"space": {"num_warps": (4,)}}, "BLOCK: a constexpr must be in space, in inputs, or be one of the sizes"),
        ({"space": {"BLOCK": (64,), "WARPS": (4,)}}, "space: WARPS is no constexpr of scaled, nor among num_warps,"),
        ({"grid": ()}, "grid: how many programs of scaled are there"),
        ({"grid": (1, 1, 1, 1)}, r"grid: \(1, 1, 1, 1\) is not one to three expressions"),
        ({"grid": lambda meta: (1,)}, "grid: .* is not one to three expressions"),
        ({"grid": "cdiv(n, num_warps)"}, "grid: .* num_warps is unknown"),
        ({"grid": "n +"}, "grid: 'n [+]' is no expression of whole numbers"),
        ({"reference": autotuned.of_gate}, "reference: it takes gate, and is given inputs by name: x, shift, steps"),
        ({"prepare": autotuned.of_gate}, "prepare: it takes gate, and is given inputs by name: x, shift, steps"),
        ({"prepare": print}, "prepare: (it takes args, and is given inputs by name|no signature found)"),
        ({"reference": autotuned.lambda_}, "<lambda>: autotune takes functions that are defined by `def` at the top"),
        ({"kernel": autotuned.INNER}, "nested.<locals>.inner: autotune takes functions that are defined by `def`"),
        ({"kernel": 7}, "kernel: 7 is neither a triton.jit function, nor a file, nor a Python function"),
        ({"kernel": autotuned.needy}, "needy: OTHER is a Python function, which device code cannot call"),
        ({"kernel": "scaled.hip"}, "kernel: who compiles scaled.hip"),
        ({"kernel": "nowhere.cu"}, "kernel: nowhere.cu: No such file"),
        ({"provider": "somebody"}, "provider: somebody compiles a file, and the kernel is"),
        ({"folder": "/tmp/not-a-name"}, "the name of the folder, which is the family's, is 'not-a-name'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    """Whatever is wrong with an argument is said of it at once, before anything is written or run."""
    described = GIVEN | {"kernel": autotuned.scaled} | changes
    kernel = described.pop("kernel")
    with pytest.raises(ValueError, match=message):
        aotriton.autotune(**described)(kernel)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": "n"}, "grid: doubled is a Python function, and launches what it likes"),
        ({"inputs": {"x": "fp32[n]", "bias": "n"}}, "bias: a Python function is given tensors, plain numbers and its"),
        ({"space": {"CHUNK": (1,), "WARPS": (4,)}}, "space: WARPS is no argument of doubled"),
        ({"inputs": {"x": "fp32[n]"}}, "bias: doubled takes it, and it is neither in inputs"),
    ],
)
def test_a_python_function_is_given_less(changes: dict[str, Any], message: str) -> None:
    """It launches by itself, and knows its sizes from its tensors."""
    fits = {"inputs": {"x": "fp32[n]", "bias": 0.5}, "space": {"CHUNK": (1, 2), "num_warps": (4,)}, "grid": ()}
    with pytest.raises(ValueError, match=message):
        aotriton.autotune(**GIVEN | fits | {"reference": autotuned.of_doubled} | changes)(autotuned.doubled)


KERNEL = 'extern "C" __global__ void __launch_bounds__(THREADS) scale({}) {{ WIDTH; }} // __global__ void x('


def parameters(text: str, *space: str) -> list[tuple[str, str]]:
    return list(cuda.parameters("scale", KERNEL.format(text), space or ("THREADS", "WIDTH", "maxnreg")))


def test_arguments_of_cuda_are_read() -> None:
    """Pointers and numbers come with their types, in whatever spelling."""
    text = "const float *__restrict__ x, __nv_bfloat16* const y, half* z, int n, /* a, b */ long long m,\n float f"
    kinds = {"x": "*fp32", "y": "*bf16", "z": "*fp16", "n": "i32", "m": "i64", "f": "fp32"}
    assert parameters(text) == list(kinds.items())
    assert parameters("") == []


@pytest.mark.parametrize(
    ("text", "space", "message"),
    [
        ("double x", (), "scale.cu: 'double x' is nothing that images are given"),
        ("float** x", (), "is nothing that images are given"),
        ("__half x", (), "is nothing that images are given"),
        ("int n", ("WIDTH",), "space: THREADS says how many threads a program of scale.cu has, and must be there"),
        ("int n", ("THREADS", "WIDHT"), "space: scale.cu has nothing called WIDHT"),
    ],
)
def test_what_cuda_takes_is_checked(text: str, space: tuple[str, ...], message: str) -> None:
    """A type that images are not given, or a config that would not reach the source."""
    with pytest.raises(ValueError, match=message):
        parameters(text, *space)


def test_a_cuda_file_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel under another name, or with a mangled one, or files of its own that it includes, are refused; so is a
    type that is not the declared one.
    """
    for source, message in (
        ("__global__ void scale(float* x) {}", r'scale.cu has no extern "C" __global__ void scale\(...\)'),
        (f'#include "own.h"\n{KERNEL}', "scale.cu includes own.h, of whose changes no image's name would tell"),
    ):
        with pytest.raises(ValueError, match=message):
            cuda.parameters("scale", source, ("THREADS",))
    monkeypatch.setattr(cuda, "version", lambda: "99.1.2")
    path = tmp_path / "scale.cu"
    declared = {"space": {"THREADS": (64,)}, "grid": "n", "inputs": {"x": "fp32[n]", "count": "n"}}
    for text, message in (
        ("const __nv_bfloat16* x, float* out, int count", "x: scale takes [*]bf16, it is declared as [*]fp32"),
        ("const float* x, float* out, float count", "count: scale takes fp32, it is declared as i32 or i64"),
    ):
        path.write_text(KERNEL.format(text))
        with pytest.raises(ValueError, match=message):
            aotriton.autotune(**GIVEN | declared)(path)
    path.write_text(KERNEL.format("const float* x, float* out, long long count"))
    kernel = aotriton.autotune(**GIVEN | declared)(str(path))._description
    assert (kernel.arguments[2].dtype, kernel.provider) == ("i64", Provider("aotriton.codegen.cuda", "99.1.2", "cu"))
    assert not kernel.guards, "nvcc is told of no multiples"


def test_what_ptxas_says_is_read() -> None:
    """Of the kernel, not of a function before it; a stack without spills is no reason to drop an image."""
    said = """ptxas info    : Compiling entry function 'other' for 'sm_90a'
    96 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 99 registers
ptxas info    : Compiling entry function 'scale' for 'sm_90a'
    64 bytes stack frame, {} bytes spill stores, {} bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers"""
    assert cuda.resources("scale", said.format(0, 0)) == {"registers": 24, "spills": 0, "stack": 0}
    assert cuda.resources("scale", said.format(8, 16)) == {"registers": 24, "spills": 24, "stack": 64}
    with pytest.raises(RuntimeError, match="ptxas did not tell what scale needs: 'nothing'"):
        cuda.resources("scale", "nothing")


@pytest.mark.parametrize("module", ["not a module", "no.1"])
def test_a_provider_is_a_module(module: str) -> None:
    """Its name is a module's, and its version is told."""
    with pytest.raises(ValueError, match="a part of a provider's module is"):
        Provider(module, "1", "cu")
    with pytest.raises(ValueError, match="version and suffix must be given"):
        Provider("module", "", "cu")


def test_a_slice_has_what_a_function_needs() -> None:
    """Helpers, constants and imports that it names, directly or not, and nothing else; decorators of ours are left
    out.
    """
    doubled: Any = autotuned.doubled
    called = slice_of(doubled)
    assert "from functools import cache" in called
    assert "@cache\ndef twice()" in called
    assert "TOLD: list[object] = []" in called
    assert "triton" not in called.replace("aotriton.autotune", "")


def test_device_code_is_one_file() -> None:
    """A kernel has the functions, constants and imports that it names, as they are in this process, each of them before
    it is needed; decorators of ours are left out.
    """
    found = ast.parse(device_source(autotuned.decorated.kernel))
    assert [ast.unparse(node).splitlines()[0] for node in found.body[1:]] == [
        "from __future__ import annotations",
        "import triton",
        "import triton.language as tl",
        "FACTOR = triton.language.constexpr(3.0)",
        "@triton.jit",
        "@triton.jit",
    ]
    assert [node.name for node in found.body if isinstance(node, ast.FunctionDef)] == ["helper", "decorated"]


MODULE = """import os, sys as system
from math import sqrt, pi as other
from string import *
if True:
    NUMBER = os.getpid()
else:
    NUMBER = 0

if True:
    def size(): return 1

class Base:
    def scale(self): return system.maxsize

def made(x, sqrt=1):
    y = other
    def inner(a): return a + x
    return y, Base, NUMBER, inner, size

y = 3
"""


def module_of(tmp_path: Path, text: str) -> Any:
    """The function ``made`` of a module with this text."""
    path = tmp_path / "made.py"
    path.write_text(text)
    found: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), found)
    return found["made"]


def test_a_slice_takes_of_a_line_what_is_needed(tmp_path: Path) -> None:
    """Of an import the names that are used; blocks and classes whole, but constants by their values; nothing that only
    looks like a name of the module's: an argument, or what the function stores.
    """
    found = slice_of(module_of(tmp_path, MODULE))
    wanted = ["import sys as system", "from math import pi as other", "from string import *", f"NUMBER = {os.getpid()}"]
    assert found.splitlines()[2:9:2] == wanted
    assert found.endswith(MODULE[MODULE.rindex("if True") :].replace("\n\ny = 3", ""))
    again: dict[str, Any] = {}
    exec(found, again)
    assert again["made"](1)[0] > 3


def test_a_slice_is_of_a_file(tmp_path: Path) -> None:
    """What is in no file cannot be taken, nor what is named by where its module is."""
    function = module_of(tmp_path, "def made(): return helper()")
    (tmp_path / "made.py").write_text("from . import helper\ndef made(): return helper()")
    with pytest.raises(ValueError, match=r"made: `from \. import helper` means nothing elsewhere"):
        slice_of(function)
    (tmp_path / "made.py").unlink()
    with pytest.raises(ValueError, match="made: its source is in no file"):
        slice_of(function)


def test_a_kernel_is_known_by_what_it_is() -> None:
    """Constexprs of Triton's functions are told from arguments; a Python function is called."""
    found = read_kernel(autotuned.scaled)
    assert dict(found.arguments) == dict.fromkeys(("x", "out", "count", "shift", "steps"), "") | {"BLOCK": "constexpr"}
    assert (found.provider, found.gluon, found.called) == (None, False, False)
    assert read_kernel(autotuned.doubled).called


NAMES = {"n": words.size("n"), "m": words.size("m"), "BLOCK": words.tunable("BLOCK"), "steps": words.scalar("steps")}
NUMBERS = {"n": 37, "m": 4, "BLOCK": 8, "steps": 3}
LEAVES = st.sampled_from([*NAMES, "0", "1", "16"])
TEXTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda one: f"({one[0]} {one[1]} {one[2]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda one: f"{one[0]}({one[1]}, {one[2]})"),
        st.tuples(inner, st.sampled_from(["BLOCK", "16"])).map(lambda one: f"triton.cdiv({one[0]}, {one[1]})"),
    ),
    max_leaves=8,
)


class Triton:
    @staticmethod
    def cdiv(a: int, b: int) -> int:
        return -(-a // b)


@drawn(TEXTS)
def test_an_expression_is_what_python_makes_of_its_text(text: str) -> None:
    """The text's value is Python's, and the spelled expression is the same expression."""
    found = expression("grid", text, NAMES)
    sizes = {name: NUMBERS[name] for name in ("n", "m")}
    environment = Environment(sizes=sizes, scalars={"steps": 3}, tunables={"BLOCK": 8})
    assert evaluate(found, environment) == eval(text, {"triton": Triton}, dict(NUMBERS))
    assert eval(spelled(found), vars(words).copy()) == found


def test_a_tensor_is_spelled_by_type_and_sizes() -> None:
    """Its sizes are named, outermost first; it is contiguous and aligned."""
    found = operand("x", " bf16 [rows, columns]", written=True)
    assert (found.dtype, found.dims, found.written) == ("bf16", ("rows", "columns"), True)
    assert (found.contiguous, found.alignment) == (True, 16)
