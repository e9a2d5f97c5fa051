"""Tensor descriptors of kernels that aotriton.autotune describes: those that a kernel makes, in scratch memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import triton
from ctest_environment import on_standin_driver
from kernel_package import kernels
from test_autotune_kernels import OPTIONS, Recorder, described, surroundings, tensor
from triton.runtime import _allocation

from aotriton.codegen import operator_source, stub
from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, compile_images
from aotriton.codegen.program import launch_program
from aotriton.codegen.render import render
from aotriton.rules import family
from aotriton.rules.image import ImageSpec
from aotriton.tune.autotune.tuned import Best, Tuned

pytestmark = pytest.mark.usefixtures(surroundings.__name__)

MADE: dict[str, Any] = {
    "inputs": {"x": "bf16[rows, columns]"},
    "results": {"out": "bf16[rows, columns]"},
    "sizes": {"rows": 256, "columns": 256},
    "grid": ("cdiv(rows, BLOCK)", "cdiv(columns, BLOCK)"),
    "space": {"BLOCK": (64,), "MAKES": (True, False)},
    "options": OPTIONS,
}


def images_of(one: Tuned, store: Path, config: dict[str, int], *archs: str) -> list[CompiledImage]:
    """The images of a config on some archs."""
    one.write()
    (kernel,) = family.add(one.folder).kernels
    options = {"num_warps": 4} if "num_warps" in one._declared.tried else {}
    specs = [ImageSpec.of(next(kernel.functionals(arch)), config, options) for arch in archs]
    found = dict(compile_images(specs, ImageStore(store), 2))
    for made in found.values():
        assert isinstance(made, CompiledImage), made.message
    return [found[spec] for spec in specs]  # type: ignore[misc] # they are, see above


def test_descriptors_that_a_kernel_makes_need_scratch_memory(tmp_path: Path) -> None:
    """On NVIDIA, 128 bytes each for every program; none on AMD, nor where a config makes none. Both configs compile."""
    one = described(kernels.by_descriptors, **MADE, folder=tmp_path / "descriptors")
    making, plain = {"BLOCK": 64, "MAKES": 1}, {"BLOCK": 64, "MAKES": 0}
    on_cuda, on_hip = images_of(one, tmp_path / "store", making, "sm_90", "gfx942")
    (without,) = images_of(one, tmp_path / "store", plain, "sm_90")
    assert [image.metadata["global_scratch"] for image in (on_cuda, on_hip, without)] == [256, 0, 0]
    assert one.tune().winners
    assert not one._failures(one.winners[0].sizes).startswith("compile")


def test_an_image_with_scratch_memory_must_be_described(tmp_path: Path) -> None:
    """A description without ``scratch`` has no workspace for it, and the error says so."""
    one = described(kernels.by_descriptors, **MADE, folder=tmp_path / "undescribed")
    one.write()
    rules = one.folder / "rules" / "__init__.py"
    text = rules.read_text()
    assert text.count("    scratch=True,") == 1
    rules.write_text("\n".join(line for line in text.splitlines() if "scratch=True" not in line))
    (kernel,) = family.add(one.folder).kernels
    spec = ImageSpec.of(next(kernel.functionals("sm_90")), {"BLOCK": 64, "MAKES": 1}, {})
    ((_, made),) = compile_images([spec], ImageStore(tmp_path / "store"), 1)
    assert isinstance(made, CompileFailure)
    assert "it needs 256 bytes of scratch memory for each program" in made.message
    assert "its description must say scratch=True" in made.message


def test_generated_functions_take_a_workspace() -> None:
    """A family whose images may need scratch memory has a workspace in its struct, and others have none."""
    for kernel, declared, takes in ((kernels.by_descriptors, MADE, True), (kernels.wrapped, {}, False)):
        inputs = {} if declared else {"inputs": {"x": "fp32[n]", "bias": None, "WIDTH": 8}}
        operator = described(kernel, **declared | inputs)._operator
        values = operator_source.values(operator, (), ())
        header, source, call = (render(name, **values) for name in ("call.h", "operator.cc", "call.cc"))
        assert ("void* workspace = nullptr;" in header) == (f"{operator.name}_workspace_size(" in header) == takes
        assert ("call.workspace = p.workspace;" in call) == takes
        assert (".scratch = true," in source) == takes
        assert (("workspace", True) in stub.values(operator)["tensors"]) == takes


LAUNCHED = """
import ctypes, json
import aotriton
from test_binding import Tensor

driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_calls.restype = ctypes.c_char_p
given = json.loads({given!r})
candidate = aotriton.Candidate(given["program"], open(given["binary"], "rb").read(), given["metadata"], given["config"])
x, out = (Tensor(240, 256, address=place << 32) for place in (1, 2))
operands = {{"x": x, "out": out}}
needed = aotriton.workspace_size(candidate, operands)
seen = {{"needed": needed, "refused": [], "passed": []}}
for bytes_ in (None, needed - 1, needed):
    workspace = bytes_ and Tensor(bytes_, dtype="uint8", address=(3 << 32) + 0x5000)
    for argument in (4, 5):
        ctypes.c_int.in_dll(driver, "fake_cuda_argument").value = argument
        driver.fake_cuda_calls()
        try:
            aotriton.launch(candidate, operands, workspace=workspace)
        except aotriton.AotritonError as error:
            seen["refused"].append(str(error))
        calls = driver.fake_cuda_calls().split(b";")
        seen["passed"] += [one.split()[-2].decode() for one in calls if one.startswith(b"launch")]
print(json.dumps(seen))
"""


def test_launches_get_scratch_memory(tmp_path: Path) -> None:
    """The binding says how much each launch needs, and passes it behind the kernel's own arguments. A launch without
    it, or with less, is refused.
    """
    pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
    one = described(kernels.by_descriptors, **MADE, folder=tmp_path / "launched")
    config = {"BLOCK": 64, "MAKES": 1}
    (image,) = images_of(one, tmp_path / "store", config, "sm_90")
    binary = tmp_path / "image"
    binary.write_bytes(image.binary)
    (operator,) = family.add(one.folder).operators
    program = launch_program(operator.lead, operator)
    given = {"program": program, "binary": str(binary), "metadata": image.metadata, "config": config}
    seen = on_standin_driver(LAUNCHED.format(given=json.dumps(given)))
    assert seen["needed"] == 4 * 4 * 256
    assert [text.partition(": ")[2] for text in seen["refused"][::2]] == [
        "workspace is null, 4096 bytes are needed",
        "workspace has 4095 bytes, 4096 are needed",
    ]
    assert [int(text) for text in seen["passed"]] == [0x5000, 0]  # of the last two launches; a profile has none


class Asking(Recorder):
    """A launch of the JIT that asks for scratch memory, as Triton's launcher does."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.given: list[Any] = []
        self.fails = fails

    def __getitem__(self, grid: Any) -> Any:
        def launch(**named: Any) -> None:
            self.launched.append((grid, (), named))
            self.given.append(_allocation._allocator.get()(4096, 128, 7))
            if self.fails:
                raise RuntimeError("out of resources")

        return launch


def tuned(kernel: Any, inner: Any, config: dict[str, Any], **declared: Any) -> Tuned:
    one = described(kernel, **declared)
    made = Tuned(inner, one._described, one.folder, original=kernel)
    made._winners = tuple(Best(sizes, config, 1.0, "image") for sizes in one._declared.shapes)
    return made


def test_the_jit_gets_scratch_memory_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a launch of the tuned kernel, in both forms. A program's own allocator is there again after it, and after
    an error; a kernel that makes no descriptors is launched with it.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed")
    asked = []

    def empty(size: int, **named: Any) -> str:
        asked.append((size, named))
        return "memory"

    monkeypatch.setattr(torch, "empty", empty)
    inner = Asking()
    one = tuned(kernels.by_descriptors, inner, {"BLOCK": 64, "MAKES": True}, **MADE)
    x, out = (tensor(250, 256, dtype="bfloat16") for _ in range(2))

    def own(size: int, alignment: int, stream: int | None) -> Any:
        return "own"

    before = _allocation._allocator.get()
    triton.set_allocator(own)
    try:
        one(x, out)
        one[(1,)](x, out, 250, 256, 64, True)
        assert inner.given == ["memory"] * 2
        assert [size for size, _ in asked] == [4096] * 2
        assert all(named == {"dtype": torch.uint8, "device": "cuda"} for _, named in asked)
        assert _allocation._allocator.get() is own
        with pytest.raises(RuntimeError, match="out of resources"):
            tuned(kernels.by_descriptors, Asking(fails=True), {"BLOCK": 64, "MAKES": True}, **MADE)(x, out)
        assert _allocation._allocator.get() is own
        plain, inputs = Asking(), {"x": "fp32[n]", "bias": None, "WIDTH": 8}
        tuned(kernels.wrapped, plain, {"BLOCK": 64, "num_warps": 4}, inputs=inputs)(tensor(1000), tensor(1000))
        assert plain.given == ["own"]
    finally:
        triton.set_allocator(before)
