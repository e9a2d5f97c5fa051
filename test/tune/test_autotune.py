"""aotriton.autotune without a GPU: kernels in Triton, CUDA C++ and Python become families, which a stand-in times.

nvcc is a stand-in, too, but for one test, which wants the real one. What is refused is in test_autotune_errors.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import autotuned
import numpy as np
import pytest
from example_module import EXAMPLES, example
from kernel_package import descriptors
from test_install import compiler
from test_kernels import round_to

import aotriton
from aotriton.codegen import cuda, stamp
from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, compile_images
from aotriton.rules import family
from aotriton.rules.database import TuningDatabase
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Number
from aotriton.rules.provider import Provider
from aotriton.tune.autotune import device
from aotriton.tune.autotune import tuned as program
from aotriton.tune.autotune.tuned import DATABASE, Tuned
from aotriton.tune.measure.launcher import GpuLauncher
from aotriton.tune.measure.requests import Request

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("--launcher", "standin_launcher:StandinLauncher", "--jobs", "2")

# Writes down what it is asked as if that were a cubin. What is 8 wide spills.
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 99.1, V99.1.2"; exit; fi
for word; do out=$last; last=$word; done
echo "$@" | sed "s: [^ ]*/: :g" > "$last"
case "$*" in *WIDTH=8*) spills=16;; *) spills=0;; esac
echo "ptxas info    : Compiling entry function 'swiglu' for 'sm_90a'" >&2
echo "    64 bytes stack frame, $spills bytes spill stores, $spills bytes spill loads" >&2
echo "ptxas info    : Used 24 registers, used 0 barriers" >&2
"""


@pytest.fixture(autouse=True)
def surroundings(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A cache folder, a GPU and families of this test's own; images are compiled for all tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AOTRITON_IMAGE_STORE", str(tmp_path_factory.getbasetemp() / "images"))
    monkeypatch.setenv(family.VARIABLE, "")
    monkeypatch.setattr(program, "product_here", lambda: "stand-in")
    yield
    cuda.version.cache_clear()


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in for nvcc, first in PATH."""
    tool = tmp_path / "bin" / "nvcc"
    tool.parent.mkdir()
    tool.write_text(NVCC)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    cuda.version.cache_clear()
    return tool


def softmax() -> Tuned:
    """The example's, timed by the stand-in."""
    found: Tuned = example("autotune/softmax.py").softmax
    return Tuned(found.kernel, found._described, found.folder, None, OPTIONS)


def scaled(**changes: Any) -> Tuned:
    """A kernel in Triton with every kind of argument."""
    given: dict[str, Any] = {
        "kernel": autotuned.scaled,
        "inputs": {"x": "fp32[n]", "count": "n", "shift": 0.5, "steps": 1},
        "results": {"out": "fp32[n]"},
        "sizes": {"n": (1000, 4096)},
        "reference": autotuned.of_scaled,
        "grid": "cdiv(n, BLOCK)",
        "space": {"BLOCK": (64, 128), "num_warps": (1, 4)},
        "options": OPTIONS,
    }
    given |= changes
    kernel = given.pop("kernel")
    made: Tuned = aotriton.autotune(**given)(kernel)
    return made


def doubled(**changes: Any) -> Tuned:
    """A Python function."""
    given = {
        "kernel": autotuned.doubled,
        "inputs": {"x": "fp32[n]", "bias": 0.25},
        "sizes": {"n": 1024},
        "reference": autotuned.of_doubled,
        "grid": (),
        "space": {"CHUNK": (64, 256), "num_warps": (2, 4)},
    }
    return scaled(**given | changes)


def tuned_in(one: Tuned, phase: str = "sweep") -> Counter[str]:
    """How often each verdict was recorded."""
    with TuningDatabase(one.folder / DATABASE, readonly=True) as database:
        return Counter(outcome.status for outcome in database.evidence.outcomes() if outcome.phase == phase)


def test_the_driver_is_asked_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's, then AMD's; one that does not start has no GPU."""

    class Driver:
        def __init__(self, prefix: str, status: int) -> None:
            setattr(self, f"{prefix}Init", lambda flags: status)
            setattr(self, f"{prefix}DeviceGet", lambda device, ordinal: ordinal)
            setattr(self, f"{prefix}DeviceGetName", self.name)

        def name(self, buffer: Any, size: int, device: object) -> int:
            buffer.value = b"A GPU"
            return 0

    def opened(found: dict[str, Driver]) -> None:
        def open_(name: str) -> Driver:
            if name not in found:
                raise OSError(name)
            return found[name]

        monkeypatch.setattr(ctypes, "CDLL", open_)

    opened({"libamdhip64.so": Driver("hip", 0)})
    assert device.product_here() == "A GPU"
    opened({"libcuda.so.1": Driver("cu", 100), "libamdhip64.so": Driver("hip", 0)})
    assert device.product_here() == "A GPU"
    opened({"libcuda.so.1": Driver("cu", 100)})
    assert device.product_here() is None


@pytest.fixture
def no_tuner(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, it leaves nothing to run the tuner with."""

    def forbid(*command: object, **more: object) -> None:
        raise AssertionError("the tuner was run")

    return lambda: monkeypatch.setattr(subprocess, "run", forbid)


def test_the_package_is_imported_without_what_tuning_needs() -> None:
    """`import aotriton` and `aotriton.autotune` leave torch, Triton and every other package alone."""
    heavy = ("torch", "triton", "numpy", "jinja2", "scipy", "aotriton._binding")
    text = f"import aotriton, sys; aotriton.autotune; print([one for one in {heavy} if one in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", text], text=True, cwd=ROOT) == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'autotuned'"):
        _ = aotriton.autotuned


def test_the_softmax_example_is_tuned(no_tuner: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every config is measured at both sizes, the stand-in's favourite wins, and the next run of the same program takes
    it from the database. Families that the program has otherwise are no concern of it.
    """
    monkeypatch.setenv(family.VARIABLE, "/nowhere")
    one = softmax()
    assert [best.sizes for best in one.winners] == [{"rows": 4096, "columns": 1024}, {"rows": 4096, "columns": 8192}]
    assert {best.config["num_warps"] for best in one.winners} == {1}
    assert tuned_in(one) == {"ok": 2 * 4 * 4}
    no_tuner()
    assert softmax().winners == one.winners


def test_sizes_have_the_names_that_an_author_gives_them() -> None:
    """A size may be named as a constexpr but for the case, or as an option of the tuner."""
    one: Tuned = aotriton.autotune(
        inputs={"x": "bf16[seed, columns]", "rows": "seed", "COLUMNS": "next_power_of_2(columns)"},
        results={"out": "bf16[seed, columns]"}, sizes={"seed": 256, "columns": (512, 1000)},
        reference=autotuned.of_softmax, grid="cdiv(seed, ROWS)", space={"ROWS": (4,), "num_warps": (4,)},
        options=OPTIONS,
    )(descriptors.softmax)  # fmt: skip
    assert [best.sizes for best in one.tune().winners] == [
        {"seed": 256, "columns": 512},
        {"seed": 256, "columns": 1000},
    ]
    assert tuned_in(one) == {"ok": 2}


def test_what_is_added_is_measured_and_nothing_else(tmp_path: Path) -> None:
    """A value more in the space: its configs are measured, those known before are not measured again. A value less: it
    does not win, by an error where its measurements are, by other measurements where nobody chose the folder.
    """
    first = scaled(folder=tmp_path / "kept").tune()
    assert tuned_in(first) == {"ok": 2 * 2 * 2}
    more = scaled(folder=tmp_path / "kept", space={"BLOCK": (64, 128), "num_warps": (1, 2, 4)})
    assert more.best(n=4096).config["num_warps"] == 1
    assert tuned_in(first) == {"ok": 2 * 2 * 3}
    fewer = {"BLOCK": (64, 128), "num_warps": (4,)}
    with pytest.raises(
        RuntimeError, match="scaled: num_warps=1 won at n=1000, and is tried no more: take another folder"
    ):
        scaled(folder=tmp_path / "kept", space=fewer).best(n=4096)
    assert scaled().folder != scaled(space=fewer).folder


def test_a_tuning_that_fails_is_no_tuning(no_tuner: Callable[[], None]) -> None:
    """A tuner that cannot begin is an error, and leaves nothing that counts as tuned; nor does a database that is
    gone.
    """
    with pytest.raises(RuntimeError, match="doubled: tuning ended with status 2"):
        doubled(options=(*OPTIONS, "--time-budget", "0")).tune()
    one = doubled().tune()
    assert one.config == doubled().config
    (one.folder / DATABASE).unlink()
    no_tuner()
    with pytest.raises(AssertionError, match="the tuner was run"):
        doubled().tune()


def test_nothing_may_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no config is right, the error counts verdicts and tells in whole what is said of the last one."""
    lies = [f"CHUNK={chunk} num_warps={warps}" for chunk in (64, 256) for warps in (2, 4)]
    monkeypatch.setenv("AOTRITON_STANDIN", json.dumps({"lie": lies[1:], "raise": lies[:1]}))
    last = "CHUNK=256 num_warps=4: wrong: out is off by 0.2, allowed 0.004"
    message = rf"doubled: no config won at n=1024: \d \w+, \d \w+; {last}"
    with pytest.raises(RuntimeError, match=message):
        doubled().tune()


def test_another_gpu_is_another_matter(no_tuner: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What one product measured does not count on another; without a GPU it is what there is."""
    here = doubled().tune().winners
    no_tuner()
    with pytest.raises(AssertionError, match="the tuner was run"):
        doubled(product="NVIDIA H20").tune()
    monkeypatch.setattr(program, "product_here", lambda: "NVIDIA H20")
    with pytest.raises(AssertionError, match="the tuner was run"):
        doubled().tune()
    monkeypatch.setattr(program, "product_here", lambda: None)
    assert doubled().winners == here


def test_a_cluster_tunes_for_the_product_that_it_is_asked_for(
    no_tuner: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's GPU does not matter then."""
    here = doubled().tune().winners
    no_tuner()
    monkeypatch.setattr(program, "product_here", lambda: "NVIDIA L4")
    cluster = (*OPTIONS, "--scheduler", "tcp://nowhere:1")
    assert doubled(options=cluster).winners == here
    assert doubled(options=(*cluster, "--product=Stand-in")).winners == here
    for other in ({"options": (*cluster, "--product", "h200")}, {"options": cluster, "product": "NVIDIA H200"}):
        with pytest.raises(AssertionError, match="the tuner was run"):
            doubled(**other).tune()


def test_a_size_has_the_winner_of_the_next_one() -> None:
    """Sizes between two that were measured go to the larger, beyond the last to the last; others are refused."""
    one = scaled().tune()
    small, large = one.winners
    assert (small.sizes, large.sizes) == ({"n": 1000}, {"n": 4096})
    assert [one.best(n=n) for n in (1, 1000, 1001, 10**6)] == [small, small, large, large]
    with pytest.raises(ValueError, match="scaled: its sizes are n, not rows"):
        one.best(rows=4)
    with pytest.raises(ValueError, match="scaled has 2 winners"):
        _ = one.config
    only = doubled().tune()
    assert (only.config, only.median_us) == (only.best(n=1).config, only.winners[0].median_us)


ROW_SUM: dict[str, Any] = {
    "kernel": autotuned.row_sum,
    "inputs": {"x": "bf16[rows, columns]"},
    "results": {"out": "fp32[rows]"},
    "sizes": {"rows": 64, "columns": (32, 128)},
    "reference": autotuned.of_rows,
    "grid": "cdiv(rows, ROWS)",
    "space": {"ROWS": (2, 4)},
}


def test_a_size_may_be_compiled_in() -> None:
    """A size that is a constexpr is a choice: images are made for each value, and for no other."""
    one = scaled(**ROW_SUM).tune()
    assert [(choice.name, choice.values) for choice in one._description.choices[1:]] == [("columns", (32, 128))]
    assert len({best.image for best in one.winners}) == 2
    assert one.best(rows=7, columns=128) == one.winners[1]
    with pytest.raises(ValueError, match=r"row_sum: columns is 64, and there are images for \(32, 128\)"):
        one.best(rows=7, columns=64)


def test_the_description_says_what_the_kernel_takes() -> None:
    """Arguments are in the kernel's order; what all measured sizes are a multiple of, is told and guarded."""
    tensors = {"inputs": {"x": "fp32[m, n]", "count": "m * n + 1", "shift": 0.5, "steps": 1}}
    one = scaled(**tensors, results={"out": "fp32[m, n]"}, sizes={"m": (8, 2**16), "n": 2**15})
    kernel = one._description
    assert [argument.name for argument in kernel.arguments] == ["x", "out", "count", "shift", "steps", "BLOCK"]
    numbers = {argument.name: argument for argument in kernel.arguments if isinstance(argument, Number)}
    assert {name: number.dtype for name, number in numbers.items()} == {"count": "i64", "shift": "fp32", "steps": "i32"}
    assert not kernel.guards
    (guard,) = scaled(sizes={"n": (1024, 4096)})._description.guards
    assert guard.why == "count must be a multiple of 16, as where it was tuned"
    assert [evaluate(guard.condition, Environment(sizes={"n": n})) for n in (15, 16, 17, 4096)] == [0, 1, 0, 1]
    assert not scaled(sizes={"n": (1024, 1000)})._description.guards
    assert [one.name for one in kernel.compile_options] == ["num_warps"]
    assert [evaluate(axis, Environment(sizes={"n": 129}, tunables={"BLOCK": 64})) for axis in kernel.grid] == [3, 1, 1]


def test_compilers_are_given_their_own_options() -> None:
    """Of a space the registers are CUDA's, the waves AMD's."""
    one = scaled(space={"BLOCK": (64,), "num_warps": (1,), "num_stages": (2,), "maxnreg": (64,), "waves_per_eu": (2,)})
    kernel = one._description
    assert list(kernel.compile_option_values("cuda")) == ["num_warps", "num_stages", "maxnreg"]
    assert list(kernel.compile_option_values("hip")) == ["num_warps", "num_stages", "waves_per_eu"]


def test_the_softmax_example_is_right(launch: Any) -> None:
    """Its kernel, as it stands in the family, run by Triton's interpreter as the family describes it."""
    one = softmax()
    one.write()
    family.add(one.folder)
    x = round_to("bf16", 4 * np.random.default_rng(0).standard_normal((3, 400)))
    found = launch("softmax", {"x": x}, {"out": x.shape}, {"T": "bf16", "BLOCK": 256, "ADDRESSING": "general"})["out"]
    wide = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, wide / wide.sum(1, keepdims=True), rtol=2**-7)  # the interpreter cuts off


class Recorder:
    """A kernel that remembers how it was launched."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launched(**given: object) -> None:
            self.launched = grid, given

        return launched


def tensor(*shape: int, contiguous: bool = True) -> Any:
    return SimpleNamespace(shape=shape, is_contiguous=lambda: contiguous)


def test_a_decorated_kernel_is_launched_with_its_best_config() -> None:
    """What follows from the sizes is worked out, a number that is not given is the one that was measured."""
    found = autotuned.decorated
    one = Tuned(Recorder(), found._described, found.folder, None, OPTIONS)
    x, out = tensor(1500), tensor(1500)
    one(x, out, steps=2)
    best = one.best(n=1500).config
    given = {"x": x, "out": out, "count": 1500, "shift": 0.5, "steps": 2}
    assert one.kernel.launched == ((-(-1500 // best["BLOCK"]), 1, 1), {**given, **best})
    for arguments, error, message in (
        ((x, tensor(7)), ValueError, "out has n 7, others have 1500"),
        ((tensor(1500, contiguous=False), out), ValueError, r"x must be contiguous, \[n\]"),
        ((tensor(1500, 1), out), ValueError, "x must be contiguous"),
        ((x,), TypeError, "out is not given"),
        ((x, out, 1.0, 2, 3), TypeError, "it takes x, out, shift, steps"),
    ):
        with pytest.raises(error, match=f"decorated: {message}"):
            one(*arguments)
    with pytest.raises(TypeError, match="it takes x, out, shift, steps, not x, y"):
        one(x, y=out)


def test_cuda_is_tuned(nvcc: Path) -> None:
    """The example's: a config is macros for nvcc, THREADS goes into the launch, and what spills is pruned."""
    one = example("autotune/swiglu.py").tuned(options=OPTIONS)
    assert tuned_in(one) == {"ok": 4 * 3, "pruned": 4}
    assert one.config["WIDTH"] == 4
    image = ImageStore().get(one.winners[0].image)
    assert image
    threads = one.config["THREADS"]
    told = "-cubin -gencode=arch=compute_90a,code=sm_90a -std=c++17 -Xptxas=-v"
    assert image.binary.decode().startswith(f"{told} -DTHREADS={threads} -DWIDTH=4 swiglu.cu ")
    wanted = {"entry": "swiglu", "threads": threads, "registers": 24, "spills": 0, "stack": 0, "shared": 0}
    assert {name: image.metadata[name] for name in wanted} == wanted
    assert image.metadata["aotriton.codegen.cuda"] == "99.1.2"


def swiglu(**changes: Any) -> Tuned:
    """The example's kernel, not tuned yet."""
    given = {
        "kernel": EXAMPLES / "autotune" / "swiglu.cu",
        "inputs": {"gate": "bf16[n]", "up": "bf16[n]", "count": "n"},
        "results": {"out": "bf16[n]"},
        "sizes": {"n": 4096},
        "reference": autotuned.of_gate,
        "grid": "cdiv(n, THREADS * WIDTH)",
        "space": {"THREADS": (128,), "WIDTH": (2,)},
    }
    return scaled(**given | changes)


def spec_of(one: Tuned) -> ImageSpec:
    """The first config of the family, which becomes the only one that is known."""
    one.write()
    os.environ[family.VARIABLE] = ""
    (kernel,) = family.add(one.folder).kernels
    tables = kernel.tunable_values("cuda"), kernel.compile_option_values("cuda")
    tunables, compile_options = ({name: values[0] for name, values in table.items()} for table in tables)
    spec = ImageSpec.of(next(kernel.functionals("sm_90")), tunables, compile_options)
    assert spec.name
    return spec


def compiled(spec: ImageSpec, tmp_path: Path) -> CompiledImage | CompileFailure:
    ((_, result),) = compile_images([spec], ImageStore(tmp_path / "store"), 1)
    return result


def test_an_image_is_named_by_source_and_compiler(nvcc: Path, tmp_path: Path) -> None:
    """Its name covers the .cu file and nvcc's version. Another nvcc than the description's does not compile it."""
    source = tmp_path / "swiglu.cu"
    shutil.copy(EXAMPLES / "autotune" / "swiglu.cu", source)
    first = spec_of(swiglu(kernel=source, folder=tmp_path / "once"))
    again = spec_of(swiglu(kernel=source, folder=tmp_path / "again"))
    assert first.name == again.name
    assert swiglu(kernel=source).folder != swiglu().folder, "kernels of one name in two files"
    result = compiled(again, tmp_path)
    assert isinstance(result, CompiledImage)
    source.write_text(source.read_text() + "// changed")
    changed = spec_of(swiglu(kernel=source, folder=tmp_path / "changed"))
    nvcc.write_text(NVCC.replace("99.1", "99.2"))
    refused = compiled(changed, tmp_path)
    assert isinstance(refused, CompileFailure)
    assert "aotriton.codegen.cuda 99.1.2 is needed, this is 99.2.2: measurements are tied to it" in refused.message
    cuda.version.cache_clear()
    newer = spec_of(swiglu(kernel=source, folder=tmp_path / "newer"))
    assert len({first.name, changed.name, newer.name}) == 3


def test_what_nvcc_says_is_told(nvcc: Path, tmp_path: Path) -> None:
    """A source that does not compile fails its image with nvcc's words; no arch but CUDA's is tried."""
    nvcc.write_text(NVCC.replace("for word", "echo 'swiglu.cu(3): error: no' >&2; exit 2; for word"))
    spec = spec_of(swiglu(folder=tmp_path / "broken"))
    result = compiled(spec, tmp_path)
    assert isinstance(result, CompileFailure)
    assert "nvcc: swiglu.cu(3): error: no" in result.message
    with pytest.raises(RuntimeError, match="nvcc compiles nothing for gfx942"):
        cuda.compile(ImageSpec.of(next(spec.functional.kernel.functionals("gfx942")), dict(spec.tunables), {}), Path())


def test_without_nvcc_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says what is missing; CUDA_HOME may say where nvcc is."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    cuda.version.cache_clear()
    with pytest.raises(RuntimeError, match="there is no nvcc here, which compiles CUDA"):
        swiglu()
    tool = tmp_path / "toolkit" / "bin" / "nvcc"
    tool.parent.mkdir(parents=True)
    tool.write_text(NVCC)
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tool.parent.parent))
    assert swiglu()._described.kernel.provider == Provider("aotriton.codegen.cuda", "99.1.2", "cu")


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc, which compiles CUDA C++, is not in PATH")
def test_nvcc_compiles_the_cuda_example(tmp_path: Path) -> None:
    """The real one makes a cubin with the kernel in it, the same each time, and tells its registers."""
    spec = spec_of(swiglu(folder=tmp_path / "real"))
    first, second = compiled(spec, tmp_path), compiled(spec, tmp_path / "again")
    assert isinstance(first, CompiledImage)
    assert isinstance(second, CompiledImage)
    assert first.binary.startswith(b"\x7fELF")
    assert b".text.swiglu\0" in first.binary
    assert (first.metadata["threads"], first.spills) == (128, False)
    assert 8 <= first.metadata["registers"] <= 64
    assert first.metadata["sha256"] == second.metadata["sha256"]


def test_a_kernel_in_gluon_is_one_in_triton(tmp_path: Path) -> None:
    """It is told from Triton's own, and its images are made."""
    inputs, grid = {"x": "fp32[n]", "y": "fp32[n]", "count": "n"}, "cdiv(n, BLOCK)"
    kernel = {"kernel": autotuned.swapped, "reference": autotuned.of_gluon}
    spec = spec_of(scaled(**kernel, inputs=inputs, grid=grid, folder=tmp_path / "lower"))
    assert spec.functional.kernel.gluon
    assert isinstance(compiled(spec, tmp_path), CompiledImage)


def test_a_python_function_is_called() -> None:
    """It is tuned as it is, and a build can not have it."""
    one = doubled().tune()
    assert one.config["num_warps"] == 2
    assert tuned_in(one) == {"ok": 4}
    with TuningDatabase(one.folder / DATABASE, readonly=True) as database:
        assert database.evidence.failures("doubled", one._judge) == []
    image = ImageStore().get(one.winners[0].image)
    assert image
    assert (image.path.suffix, image.binary) == (".py", (one.folder / "tritonsrc" / "doubled.py").read_bytes())
    x, out = tensor(9), tensor(9)
    autotuned.TOLD.clear()
    one(x, out)
    (told,) = autotuned.TOLD
    assert told == (x, out, 0.25, one.config["CHUNK"], 2.0)
    with pytest.raises(ValueError, match="doubled: a Python function has no image that a build could have"):
        one.export(one.folder.parent / "exported")
    options = ("--arch", "sm_90", "--alone", "--family", str(one.folder), "--database", str(one.folder / DATABASE))
    command = (sys.executable, "-m", "aotriton.codegen.generate", *options, "--out", str(one.folder.parent / "out"))
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: doubled is a Python function: it can be tuned, but a build can not have it\n"


def test_the_launcher_calls_a_python_function(tmp_path: Path) -> None:
    """With the inputs, its results, the numbers and the config; there is nothing to load and nothing to release."""
    one = doubled(folder=tmp_path / "called")
    spec = spec_of(one)
    launcher: Any = GpuLauncher.__new__(GpuLauncher)  # without a GPU
    launcher.torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=0)))
    launcher._data = SimpleNamespace(
        tensors={"x": "the input"},
        scalars={"bias": 0.25},
        result=lambda kernel, argument, tunables: ("the result", 0.0),
    )
    opened = launcher.open(Request(spec.name, "doubled", spec.config, Path(), {}, dict(spec.tunables)))
    opened.launch()
    module = sys.modules["called.tritonsrc.doubled"]
    assert module.TOLD == [("the input", "the result", 0.25, 64, 2.0)]
    launcher.close(opened)


def test_a_family_is_exported(nvcc: Path, tmp_path: Path) -> None:
    """What was tuned becomes a folder that CMake can have: a header, tables and the winners' images, by their names."""
    fixed = {"kernel": autotuned.whole, "grid": 1, "sizes": {"columns": (32, 128)}, "space": {"num_warps": (1, 2)}}
    tensors = {"inputs": {"x": "bf16[columns]"}, "results": {"out": "bf16[columns]"}}
    made = [softmax(), scaled(**ROW_SUM), scaled(**ROW_SUM | fixed | tensors)]
    all_ = [*(one.tune() for one in made), example("autotune/swiglu.py").tuned(options=OPTIONS)]
    folders = [one.export(tmp_path / f"exported_{place}") for place, one in enumerate(all_)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), family.VARIABLE: os.pathsep.join(map(str, folders))}

    def run(what: str, *words: object) -> None:
        command = [sys.executable, "-m", f"aotriton.codegen.{what}", *map(str, words)]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)

    out = tmp_path / "generated"
    archs = ("--arch", "sm_90", "--arch", "gfx942", "--coverage", "full", "--database", DATABASE.name)
    run("generate", *archs, "--alone", "--out", out, *(word for one in folders for word in ("--family", one)))
    packs = json.loads((out / "images.json").read_text())["packs"]
    names = {image["name"] for pack in packs for image in pack["images"]}
    assert names == {best.image for one in all_ for best in one.winners}
    assert "Tensor<2> gate;  // [rows, columns], contiguous" in (out / "swiglu.h").read_text()
    assert "namespace exported_3 {" in (out / "swiglu.h").read_text()
    flags = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{out}")
    headers = [f"-I{ROOT / 'v2src' / part}" for part in ("include", "")]
    files, kinds = (out / "generated.txt").read_text().split(), (".call.cc", ".operator.cc", ".lut.cc")
    sources = [str(out / name) for name in files if name.endswith(kinds)]
    assert len(sources) == 3 * len(all_)
    subprocess.run([compiler(), *flags, *headers, *sources], check=True)
    known = stamp.digest((), folders[3:], ())
    with (folders[3] / "tritonsrc" / "swiglu.cu").open("a") as file:
        file.write("// more")
    assert stamp.digest((), folders[3:], ()) != known, "the generator would not see that the source has changed"
    shutil.copy(EXAMPLES / "autotune" / "swiglu.cu", folders[3] / "tritonsrc")
    assert stamp.digest((), folders[3:], ()) == known
    run("compile", "--list", out / "images.json", "--out", out, "--compress", "none")
    assert (out / "swiglu.sm_90.images.bin").stat().st_size > 0
    with pytest.raises(ValueError, match="the name of the folder, which is the family's, is 'not a name'"):
        all_[0].export(tmp_path / "not a name")
    with pytest.raises(ValueError, match="the family is there already"):
        all_[0].export(all_[0].folder)
