"""aotriton.autotune on a GPU: both examples and a Python function are tuned, and their best configs are right.

Other tests may compute on the GPU meanwhile, so ``crowded_launcher`` stands in: it does not look for other processes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from example_module import example

import aotriton
from aotriton.codegen.compile import ImageStore
from aotriton.codegen.program import launch_program
from aotriton.rules import family
from aotriton.rules.database import TuningDatabase
from aotriton.tune.autotune.tuned import DATABASE, Tuned
from aotriton.tune.autotune.tuning import DrawnData
from aotriton.tune.measure.launcher import visible_gpus

pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
pytest.importorskip("torch", reason="torch is not installed")
import torch


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Families and a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("AOTRITON_IMAGE_STORE", raising=False)
    monkeypatch.setenv(family.VARIABLE, "")


def options() -> tuple[str, ...]:
    return "--launcher", "crowded_launcher:CrowdedLauncher", "--gpus", *visible_gpus()


def verdicts(one: Tuned) -> set[str]:
    with TuningDatabase(one.folder / DATABASE, readonly=True) as database:
        return {outcome.status for outcome in database.evidence.outcomes()}


def test_a_softmax_in_triton() -> None:
    """Every config is right or pruned, and the winners of both sizes give torch's softmax, at other sizes, too."""
    one = example("autotune/softmax.py").softmax
    one._options = options()
    assert [best.sizes["columns"] for best in one.winners] == [1024, 8192]
    assert verdicts(one) <= {"ok", "pruned"}
    assert all(0 < best.median_us < 1000 for best in one.winners)
    for rows, columns in ((4096, 1024), (7, 8192), (33, 5000)):
        x = torch.randn(rows, columns, device="cuda").bfloat16()
        out = torch.full_like(x, torch.nan)
        one(x, out)
        torch.testing.assert_close(out, x.double().softmax(-1).bfloat16(), rtol=2**-7, atol=1e-6)


def test_a_softmax_in_a_compiled_function() -> None:
    """torch.compile has the call as one operator, without a graph break, between what it compiles itself."""
    one = example("autotune/softmax.py").softmax
    one._options = options()

    def double(x: Any) -> Any:
        out = torch.empty_like(x)
        one(x + 1, out)
        return 2 * out

    compiled = torch.compile(double, fullgraph=True)
    for rows in (4096, 33, 7):
        x = torch.randn(rows, 1024, device="cuda").bfloat16()
        torch.testing.assert_close(compiled(x), double(x), rtol=2**-7, atol=1e-6)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc, which compiles CUDA C++, is not in PATH")
def test_a_kernel_in_cuda() -> None:
    """Every config is right or pruned. The winner's image, launched by the library's own host code, which passes more
    arguments than the kernel takes, gives what torch gives; also where a thread has less than its width.
    """
    one = example("autotune/swiglu.py").tuned(options=options())
    assert verdicts(one) <= {"ok", "pruned"}
    (best,) = one.winners
    (kernel,) = family.add(one.folder).kernels
    image = ImageStore().get(best.image)
    assert image
    program = launch_program(kernel, family.operator_of(kernel))
    candidate = aotriton.Candidate(program, image.binary, image.metadata, best.config)
    for rows, columns in ((4096, 8192), (3, 77)):
        gate, up = (torch.randn(rows, columns, device="cuda").bfloat16() for _ in range(2))
        out = torch.full_like(gate, torch.nan)
        stream = torch.cuda.current_stream().cuda_stream
        aotriton.launch(candidate, {"gate": gate, "up": up, "out": out}, {}, stream=stream)
        wide = torch.nn.functional.silu(gate.double()) * up.double()
        torch.testing.assert_close(out, wide.bfloat16(), rtol=2**-7, atol=1e-6)
    aotriton.release(candidate)


def halves(x: Any, out: Any, PARTS: int) -> None:
    """Half of x, in so many launches."""
    for a, b in zip(x.chunk(PARTS), out.chunk(PARTS), strict=True):
        b.copy_(a * 0.5)


def wrong(x: Any, out: Any, PARTS: int) -> None:
    """Half of x, but for the last element of many parts."""
    out.copy_(x * 0.5)
    out[-1] += PARTS > 1


def half(x: Any) -> Any:
    return x * 0.5


def test_a_python_function() -> None:
    """It is called and timed as it is: one launch takes less time than many."""
    space, tensors = {"PARTS": (1, 16)}, {"inputs": {"x": "fp32[n]"}, "results": {"out": "fp32[n]"}}
    one = aotriton.autotune(halves, reference=half, space=space, sizes={"n": 1 << 24}, options=options(), **tensors)
    assert one.config == {"PARTS": 1}
    assert verdicts(one) == {"ok"}
    x = torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    one(x, out)
    assert torch.equal(out, x / 2)


def logarithms(x: Any, out: Any, PARTS: int) -> None:
    """The logarithm of x, which must be above 0."""
    torch.log(x, out=out)


def logarithm(x: Any) -> Any:
    return x.log()


def positive(x: Any) -> Any:
    return {"x": x.abs() + 0.5}


def shorter(x: Any) -> Any:
    return {"x": x[1:]}


def first(x: Any) -> Any:
    return x[:1]


def test_inputs_are_prepared() -> None:
    """Inputs may be made of those that are drawn; what is not as declared is an error that names it."""
    given: dict[str, Any] = {"inputs": {"x": "fp32[n]"}, "results": {"out": "fp32[n]"}, "space": {"PARTS": (1,)}}
    given |= {"reference": logarithm, "sizes": {"n": 1 << 20}, "options": options()}
    one = aotriton.autotune(logarithms, prepare=positive, **given)
    assert verdicts(one) == {"ok"}
    for reference, prepare, message in (
        (logarithm, shorter, r"prepare: x of torch.float32 \[7\] is no input as it is declared"),
        (first, positive, r"reference: it gives \[1\] for out, which is \[8\]"),
    ):
        with pytest.raises(ValueError, match=message):
            DrawnData(one._operator, {"n": 8}, reference, prepare, 0.0, "cuda")


def test_what_is_wrong_does_not_win() -> None:
    """A config whose result is off in one element is recorded as wrong."""
    space, tensors = {"PARTS": (1, 2)}, {"inputs": {"x": "fp32[n]"}, "results": {"out": "fp32[n]"}}
    one = aotriton.autotune(wrong, reference=half, space=space, sizes={"n": 1 << 20}, options=options(), **tensors)
    assert one.config == {"PARTS": 1}
    assert verdicts(one) == {"ok", "wrong"}
