"""Tensor descriptors of kernels that aotriton.autotune describes: those that a kernel makes itself, in scratch memory,
and those that its caller passes.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import triton
from ctest_environment import on_standin_driver
from kernel_package import descriptors, kernels
from test_autotune_kernels import OPTIONS, Recorder, described, surroundings, tensor
from triton.runtime import _allocation

from aotriton.codegen import operator_source, stub
from aotriton.codegen.compile import CompiledImage, CompileFailure, ImageStore, compile_images
from aotriton.codegen.program import launch_program
from aotriton.codegen.render import render
from aotriton.rules import family
from aotriton.rules.image import ImageSpec
from aotriton.tune.autotune.tuned import Best, Tuned
from aotriton.tune.autotune.tuning import DrawnTuning
from aotriton.tune.measure.launcher import GpuLauncher
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Wish, problems

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


@pytest.mark.parametrize("needed", [4096, 0])
def test_the_tuner_brings_scratch_memory(tmp_path: Path, needed: int) -> None:
    """As much as the binding says, allocated once for each image that is opened; kernels that make no descriptors are
    launched without.
    """
    made: list[Any] = []
    launched: list[Any] = []

    def empty(size: int, **named: Any) -> str:
        made.append((size, named))
        return f"{size} bytes"

    def launch(*_: Any, **named: Any) -> None:
        launched.append(named)

    launcher = GpuLauncher.__new__(GpuLauncher)
    cuda = SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=7))
    launcher.torch = cast(Any, SimpleNamespace(cuda=cuda, empty=empty, uint8="uint8"))
    launcher.binding = cast(Any, SimpleNamespace(launch=launch, workspace_size=lambda *_, stream: needed))
    data = SimpleNamespace(tensors={"x": "x"}, scalars={}, sizes={"rows": 256, "columns": 256})
    brings = {"workspace": f"{needed} bytes"}
    for kernel, declared, brought in ((kernels.by_descriptors, MADE, brings), (kernels.imported, {}, {})):
        description = described(kernel, **declared)._description
        bound = launcher.bind(description, "candidate", {"out": "out"}, data)
        bound()
        bound()
        assert launched == [{"stream": 7, **brought}] * 2
        launched.clear()
    assert made == [(needed, {"dtype": "uint8", "device": "cuda"})]


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


def product(a: Any, b: Any) -> Any:
    return a @ b.T


PRODUCT: dict[str, Any] = {
    "inputs": {"a": "bf16[M, K]", "b": "bf16[N, K]"},
    "results": {"c": "bf16[M, N]"},
    "sizes": {"M": 512, "N": (256, 512), "K": 128},
    "reference": product,
    "grid": ("cdiv(M, BLOCK_M)", "cdiv(N, BLOCK_N)"),
    "space": {"BLOCK_M": (64, 128), "BLOCK_N": (64,), "BLOCK_K": (64,), "num_warps": (4,)},
    "options": OPTIONS,
}
BLOCKS = {"a": ["BLOCK_M", "BLOCK_K"], "b": ["BLOCK_N", "BLOCK_K"], "c": ["BLOCK_M", "BLOCK_N"]}
TILES = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64}


@pytest.mark.parametrize("name", ["persistent", "softmax"])
def test_real_kernels_make_descriptors(tmp_path: Path, name: str) -> None:
    """A persistent product with three of them, and a softmax with two, need 128 bytes for each."""
    if name == "persistent":
        space = {"PROGRAMS": (132,), **PRODUCT["space"]}
        one = described(
            descriptors.persistent, **PRODUCT | {"space": space, "grid": "PROGRAMS"}, folder=tmp_path / "made_c"
        )
        config = {"PROGRAMS": 132, **TILES}
    else:
        rows = {"rows": 256, "columns": 1000}
        inputs, space = {"x": "bf16[rows, columns]", "COLUMNS": "next_power_of_2(columns)"}, {"ROWS": (4,)}
        changes = {"inputs": inputs, "sizes": rows, "space": space, "grid": "cdiv(rows, ROWS)"}
        one, config = described(descriptors.softmax, **MADE | changes, folder=tmp_path / "made_out"), {"ROWS": 4}
    (image,) = images_of(one, tmp_path / "store", config, "sm_90")
    assert image.metadata["global_scratch"] == (384 if name == "persistent" else 256)


PASSED = """
import ctypes, json
import aotriton
from test_binding import Tensor

driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_calls.restype = ctypes.c_char_p
given = json.loads({given!r})
candidate = aotriton.Candidate(given["program"], open(given["binary"], "rb").read(), given["metadata"], given["config"])
seen = []
# A map, two sizes and two strides for each, then M, N and K: K is the last of them.
ctypes.c_int.in_dll(driver, "fake_cuda_argument").value = 17
for m, n, k in ((496, 256, 128), (496, 256, 120), (496, 256, 124)):
    shapes = {{"a": (m, k), "b": (n, k), "c": (m, n)}}
    operands = {{name: Tensor(*shape, address=(1 + place) << 32) for place, (name, shape) in enumerate(shapes.items())}}
    driver.fake_cuda_calls()
    try:
        aotriton.launch(candidate, operands)
        seen.append([one.decode(errors="replace").split() for one in driver.fake_cuda_calls().split(b";")])
    except aotriton.AotritonError as error:
        seen.append(str(error))
print(json.dumps(seen))
"""


def test_callers_descriptors_are_tensor_maps(tmp_path: Path) -> None:
    """The image has the blocks of its config, in boxes as wide as a swizzled row; the binding makes the maps. A tensor
    whose rows a map cannot describe is refused, and so is an arch without tensor maps.
    """
    pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
    one = described(descriptors.by_host, **PRODUCT, descriptors=BLOCKS, folder=tmp_path / "passed")
    assert one._description.archs == ("sm_90",)
    (image,) = images_of(one, tmp_path / "store", TILES, "sm_90")
    assert image.metadata["global_scratch"] == 0
    assert [row["block"] for row in image.metadata["descriptors"]] == [[128, 64], [64, 64], [128, 64]]
    binary = tmp_path / "image"
    binary.write_bytes(image.binary)
    (operator,) = family.add(one.folder).operators
    program = launch_program(operator.lead, operator)
    given = {"program": program, "binary": str(binary), "metadata": image.metadata, "config": TILES}
    whole, aligned, refused = on_standin_driver(PASSED.format(given=json.dumps(given)))
    assert isinstance(whole, list), whole
    (launch,) = (call for call in whole if call and call[0] == "launch")
    assert (launch[2], launch[6]) == ("4,4,1", "128")
    assert sum(call[:1] == ["encode"] for call in whole) == 3
    assert "K must be a multiple of 16" in aligned
    assert "has ADDRESSING=descriptor, the call has 0" in refused  # which is general


def test_further_checks_keep_rows_that_a_map_describes(tmp_path: Path) -> None:
    """Also where the kernel takes no number of which all images know that it is a multiple of 16. It is tuned."""
    declared = MADE | {"grid": ("cdiv(rows, 32)", "cdiv(columns, BLOCK)"), "space": {"BLOCK": (64,)}}
    blocks = {"x": [32, "BLOCK"], "out": [32, "BLOCK"]}
    one = described(descriptors.scaled, **declared, descriptors=blocks, folder=tmp_path / "scaled").tune()
    assert one.config == {"BLOCK": 64}
    made = family.add(one.folder)
    own = tuning(made.name)
    assert isinstance(own, DrawnTuning)
    (problem,) = problems(made.kernels, "sm_90", 132, Wish())
    assert own.smaller(problem) == {"rows": 255, "columns": 240}


def test_blocks_must_be_described() -> None:
    """What is wrong with ``descriptors`` is said at once."""
    space = PRODUCT["space"] | {"KIND": ("one", "two")}
    for changes, message in (
        ({"descriptors": {"d": ["BLOCK_M", 64]}}, "descriptors: d is no tensor of inputs or results"),
        ({"descriptors": {"a": ["BLOCK_M"]}}, "descriptors: a has 2 dimensions, and its block is"),
        ({"descriptors": {"a": "BLOCK_M"}}, "descriptors: a has 2 dimensions, and its block is 'BLOCK_M'"),
        ({"descriptors": {"a": ["BLOCK_M", "M"]}}, "descriptors: a: 'M' is no expression"),
        ({"descriptors": {"a": ["BLOCK_M", "KIND"]}, "space": space}, "space: KIND is no constexpr of by_host"),
        (
            {"descriptors": BLOCKS, "inputs": {"a": "i32[M, K]", "b": "bf16[N, K]"}},
            "descriptors: a is of i32, and may be of fp16, bf16, fp32",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            described(descriptors.by_host, **PRODUCT | changes)


def test_an_authors_hook_sets_the_blocks_that_are_described() -> None:
    """Hooks of configs are checked, and not run: those that do anything else are refused."""
    given = PRODUCT | {"space": None}
    one = described(descriptors.with_hooks, **given, descriptors=BLOCKS)
    assert [config["BLOCK_M"] for config in one._declared.configs] == [64, 128, 128]
    wrong = BLOCKS | {"c": ["BLOCK_M", 64]}
    for kernel, blocks, message in (
        (descriptors.with_hooks, {}, "kernel: its configs have a pre_hook, which may only set the blocks"),
        (descriptors.with_hooks, wrong, r"makes the block of c \[128, 128\], and `descriptors` says \[128, 64\]"),
        (
            descriptors.with_hooks,
            {"a": BLOCKS["a"]},
            "may only set the block_shape of tensors that `descriptors` names",
        ),
        (descriptors.clearing, BLOCKS, "may only set the block_shape .* has no attribute 'zero_'"),
    ):
        with pytest.raises(ValueError, match=message):
            described(kernel, **given, descriptors=blocks)


def test_a_call_takes_tensors_or_descriptors() -> None:
    """The kernel gets descriptors with the blocks of the best config, whatever blocks the caller's have."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from triton.tools.tensor_descriptor import TensorDescriptor

    inner = Recorder()
    one = tuned(descriptors.by_host, inner, {**TILES, "num_warps": 4}, **PRODUCT, descriptors=BLOCKS)
    a, b, c = (torch.zeros(*shape, dtype=torch.bfloat16) for shape in ((512, 128), (256, 128), (512, 256)))
    of_a, of_b, of_c = (TensorDescriptor.from_tensor(one, [16, 16]) for one in (a, b, c))
    flat = TensorDescriptor(a.view(-1), [512, 128], [128, 1], [1, 16])
    one(a, b, c)
    one(of_a, of_b, c=of_c)
    one(flat, b, c)
    one[(1,)](of_a, of_b, of_c, 512, 256, 128, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64)
    with pytest.raises(ValueError, match="a: it has no tensor descriptor: strides must be 16-byte aligned"):
        one(a.view(-1)[: 512 * 124].view(512, 124), b.view(-1)[: 256 * 124].view(256, 124), c)
    assert len(inner.launched) == 4
    for grid, _, named in inner.launched:
        assert grid == (4, 4, 1)
        assert [named[name].block_shape for name in "abc"] == [[128, 64], [64, 64], [128, 64]]
        assert [tuple(named[name].shape) for name in "abc"] == [(512, 128), (256, 128), (512, 256)]
        assert [named[name].base.data_ptr() for name in "abc"] == [one.data_ptr() for one in (a, b, c)]
    assert of_a.block_shape == [16, 16]


def test_a_descriptor_that_was_not_described_is_refused() -> None:
    """Where the kernel takes pointers; of other fixed blocks; with another padding."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, out = (torch.zeros(240, 256, dtype=torch.bfloat16) for _ in range(2))
    made = tuned(kernels.by_descriptors, Recorder(), {"BLOCK": 64, "MAKES": True}, **MADE)
    with pytest.raises(ValueError, match="x is a tensor descriptor, and `descriptors` does not name it"):
        made(TensorDescriptor.from_tensor(x, [32, 64]), out)
    declared = MADE | {"grid": ("cdiv(rows, 32)", "cdiv(columns, BLOCK)"), "space": {"BLOCK": (64,)}}
    blocks = {"x": [32, "BLOCK"], "out": [32, "BLOCK"]}
    inner = Recorder()
    fixed = tuned(descriptors.scaled, inner, {"BLOCK": 64}, **declared, descriptors=blocks)
    fixed(TensorDescriptor.from_tensor(x, [32, 16]), out)
    assert [inner.launched[0][2][name].block_shape for name in ("x", "out")] == [[32, 64]] * 2
    with pytest.raises(ValueError, match=r"x has blocks of \[16, 64\], and was tuned with 32 along dimension 0"):
        fixed(TensorDescriptor.from_tensor(x, [16, 64]), out)
    with pytest.raises(ValueError, match="x is padded with nan, and was tuned with zero"):
        fixed(TensorDescriptor.from_tensor(x, [32, 64], padding="nan"), out)
    fixed._original = author = Recorder()
    of_x, of_out = TensorDescriptor.from_tensor(x, [16, 64]), TensorDescriptor.from_tensor(out, [32, 64])
    with pytest.warns(UserWarning, match=r"x has blocks of \[16, 64\]"):
        fixed[(1,)](of_x, of_out, BLOCK=64)
    assert len(author.launched) == 1
