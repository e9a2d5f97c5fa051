"""The Python binding without a GPU: what it asks of its arguments, candidates from descriptions, and explanations.

Run by ctest, which says where the binding is.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ctest_environment import from_ctest, on_standin_driver
from toy.rules import OPERATOR

from aotriton.codegen.program import launch_program
from aotriton.rules.arch import arch_spec
from aotriton.rules.family import IN_TREE, family, operator
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Functional, KernelDescription
from aotriton.rules.operators import Operator, Scalar

aotriton = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")

OPERATORS = [OPERATOR, *(operator for name in IN_TREE for operator in family(name).operators)]
EVERY_KERNEL = pytest.mark.parametrize(
    ("kernel", "of"), [pytest.param(kernel, of, id=kernel.name) for of in OPERATORS for kernel in of.kernels]
)


class Tensor:
    """What the binding asks of a tensor, with made-up memory."""

    def __init__(self, *shape: int, dtype: str = "bfloat16", gpu: int | None = 0, address: int = 1 << 32) -> None:
        self.shape, self.dtype, self.address = shape, f"torch.{dtype}", address
        self.device = SimpleNamespace(index=gpu)
        self.is_cuda = gpu is not None
        self.itemsize = {"float32": 4, "int32": 4, "int64": 8, "uint8": 1}.get(dtype, 2)

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        steps = [1]
        for size in self.shape[:0:-1]:
            steps.append(steps[-1] * size)
        return tuple(steps[::-1])


def forward() -> dict[str, Any]:
    """A right call of attn_fwd, with the results apart from each other."""
    made = {name: Tensor(2, 4, 48, 64, address=(1 + place) << 32) for place, name in enumerate(("q", "k", "v", "out"))}
    return made | {"logsumexp": Tensor(2, 4, 48, dtype="float32", address=9 << 32)}


def refused(error: type[Exception], message: str, **changes: Any) -> None:
    with pytest.raises(error, match=message):
        aotriton.attn_fwd(**forward() | changes)


def test_tensors_are_looked_at_first() -> None:
    """A tensor of the host, of another GPU or rank, or that is none at all, is named before anything else happens."""
    refused(ValueError, "^k is not on a GPU", k=Tensor(2, 4, 48, 64, gpu=None))
    refused(ValueError, r"^v is on GPU 1, \w+ on GPU 0", v=Tensor(2, 4, 48, 64, gpu=1))
    refused(ValueError, "^out has 3 dimensions, not 4", out=Tensor(4, 48, 64))
    refused(ValueError, "^q has more than 4 dimensions", q=Tensor(1, 2, 4, 48, 64))
    refused(TypeError, r"^q must have data_ptr\(\) or __dlpack__\(\), got list", q=[1.0])
    refused(ValueError, "^q is not on a GPU", q=SimpleNamespace(__dlpack__=None, __dlpack_device__=lambda: (1, 0)))
    for message, given in (
        (r"^workspace is on GPU 1, q on GPU 0", Tensor(64, dtype="uint8", gpu=1)),
        ("^workspace must be a 1-D tensor of bytes", Tensor(8, 8, dtype="uint8")),
        ("^workspace must be a 1-D tensor of bytes", Tensor(64)),
        ("^workspace is not on a GPU", Tensor(64, dtype="uint8", gpu=None)),
    ):
        with pytest.raises(ValueError, match=message):
            aotriton.attn_bwd(q=Tensor(2, 4, 48, 64), workspace=given)


def test_arguments_are_the_operators() -> None:
    """One that is missing, unknown, there twice or of a wrong type is a TypeError with its name."""
    refused(TypeError, "attn_fwd has no argument heads", heads=4)
    tensors = list(forward().values())
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: aotriton.attn_fwd(*tensors[:3]), "attn_fwd misses its tensor out"),
        (lambda: aotriton.attn_fwd(*tensors, q=tensors[0]), "attn_fwd got a tensor twice"),
        (lambda: aotriton.attn_fwd(*tensors, *tensors[:2]), "attn_fwd takes 6 tensors by position, got 7"),
        (lambda: aotriton.attn_bwd(*tensors, *tensors, tensors[0]), "attn_bwd takes 10 tensors by position, got 11"),
        (lambda: aotriton.attn_fwd(*tensors, sm_scale=None, causal=[]), "list"),
    ]
    for call, message in calls:
        with pytest.raises(TypeError, match=message):
            call()


def test_errors_of_the_library_have_a_code() -> None:
    """What the library refuses is an AotritonError with the error's name; so is that there is no GPU."""
    for code, message, changes in (
        ("invalid_shape", "v has seqlen_k 49, k has 48", {"v": Tensor(2, 4, 49, 64)}),
        ("invalid_dtype", "q has dtype int32", {"q": Tensor(2, 4, 48, 64, dtype="int32")}),
        ("null_pointer", "k has no data", {"k": Tensor(2, 4, 48, 64, address=0)}),
        ("misaligned_pointer", "logsumexp is at 0x4", {"logsumexp": Tensor(2, 4, 48, dtype="float32", address=4)}),
        ("invalid_argument", "sm_scale is -1", {"sm_scale": -1.0}),
        ("invalid_argument", "causal_variant is 2", {"causal_variant": 2}),
        (
            "not_supported",
            "q has head_dim 513",
            {n: Tensor(2, 4, 48, 513, address=(i + 1) << 32) for i, n in enumerate(("q", "k", "v", "out"))},
        ),
        ("invalid_shape", "out has head_dim_v 64, v has 72", {"v": Tensor(2, 4, 48, 72)}),
    ):
        with pytest.raises(aotriton.AotritonError, match=message) as raised:
            aotriton.attn_fwd(**forward() | changes)
        assert raised.value.code == code
        assert not aotriton.attn_fwd_supported(**forward() | changes) or code == "null_pointer"


def test_each_operator_has_its_functions() -> None:
    """One that runs it, and one each that asks how much workspace it needs, whether it would run, and what becomes of
    its hints, told apart by text.
    """
    names = [operator.name for name in IN_TREE for operator in family(name).operators]
    assert aotriton.operators() == names
    for name in names:
        text = getattr(aotriton, name).__doc__
        of = operator(name)
        public = [scalar.name for scalar in of.scalars if not scalar.internal]
        assert all(f"{one.name}: [{', '.join(one.dims)}]" in text for one in of.operands)
        assert all(f"{scalar}=" in text for scalar in public)
        assert ("workspace=None" in text) == bool(of.workspace)
        assert hasattr(aotriton, f"{name}_workspace_size")
        assert hasattr(aotriton, f"{name}_supported")
        assert hasattr(aotriton, f"{name}_hint_outcomes")


def test_defaults_are_spelled_as_python_does() -> None:
    """A docstring has the signature, with features by name only, where a whole number's default is whole or a name, a
    real one's is not, a flag's a flag, and None stands for what the operator works out.
    """
    spelled = {"fp32": float, "i32": int, "bool": bool}

    def default_of(scalar: Scalar) -> Any:
        if scalar.default is None or not scalar.values:
            return None if scalar.default is None else spelled[scalar.dtype](scalar.default)
        return scalar.values[int(scalar.default)]

    seen = set()
    for of in (one for name in IN_TREE for one in family(name).operators):
        scalars = [scalar for scalar in of.scalars if not scalar.internal]
        defaults = [f"{one.name}={default_of(one)!r}" for one in scalars]
        given = [f"{one.name}=None" if one.optional else one.name for one in of.operands]
        workspace = ["workspace=None"] if of.workspace else []
        plain = len(of.plain_operands)
        arguments = [*given[:plain], *workspace, "*", *given[plain:], *defaults, "hints=None", "stream=None"]
        signature = f"{of.name}({', '.join(arguments)})"
        for function in (of.name, *(f"{of.name}_{more}" for more in ("workspace_size", "supported", "hint_outcomes"))):
            assert signature in getattr(aotriton, function).__doc__
        seen |= {one.dtype for one in scalars}
    assert seen == set(spelled)
    for name, start in (
        ("attn_fwd", "q, k, v, out, logsumexp=None, workspace=None, *, bias=None, "),
        ("attn_bwd", "q, k, v, out, dout, logsumexp, dq, dk, dv, workspace=None, *, bias=None, "),
        ("gemm", "a, b, d, bias=None, workspace=None, *, "),
    ):
        assert getattr(aotriton, name).__doc__.splitlines()[2].startswith(f"{name}({start}")


def functionals(kernel: KernelDescription) -> list[Functional]:
    """The first functional of the kernel on each of its archs, and the last."""
    return [
        one for arch in kernel.archs for one in list(kernel.functionals(arch))[:: max(1, kernel.functional_count - 1)]
    ]


def arguments_of(functional: Functional, of: Operator) -> dict[str, Any]:
    """What a candidate is made of, as the tuner gives it."""
    kernel, vendor = functional.kernel, functional.arch_spec.vendor
    tunables = {name: values[0] for name, values in kernel.tunable_values(vendor).items()}
    compile_options = {name: values[0] for name, values in kernel.compile_option_values(vendor).items()}
    spec = ImageSpec.of(functional, tunables, compile_options)
    metadata: dict[str, Any] = {
        "name": "an image",
        "entry": kernel.name,
        "arch": functional.arch,
        "functional": str(functional),
    }
    metadata |= {"shared": 1024, "global_scratch": 0, "threads": 128, "descriptors": []}
    program = launch_program(kernel, of)
    return {"program": program, "binary": b"binary", "metadata": metadata, "tunables": dict(spec.tunables)}


@EVERY_KERNEL
def test_candidates_come_from_descriptions(kernel: KernelDescription, of: Operator) -> None:
    """The binding takes the program of every kernel, of a family that it does not know too, and functionals as they are
    spelled, choices at their defaults left out.
    """
    for functional in functionals(kernel):
        candidate = aotriton.Candidate(**arguments_of(functional, of))
        assert candidate.name == "an image"


def test_a_wrong_candidate_is_refused() -> None:
    """An unknown word, a tunable that is missing, a choice that the kernel does not have: ValueError."""
    kernel = OPERATOR.backends[0].kernels[0]
    functional = next(iter(kernel.functionals("sm_90")))
    right = arguments_of(functional, OPERATOR)

    def wrong(message: str, **changes: Any) -> None:
        with pytest.raises(ValueError, match=message):
            aotriton.Candidate(**right | changes)

    wrong("the binary is empty", binary=b"")
    wrong("scale_rows takes 2 tunables", tunables={"BLOCK_M": 32})
    wrong("tunable UNROLL must be given", tunables={"BLOCK_M": 32, "BLOCK_N": 32})
    wrong("unknown arch, sm_42", metadata=right["metadata"] | {"arch": "sm_42"})
    for text, message in (
        ("T=bf16 BLOCK_DMODEL=32", "the functional does not say ADDRESSING"),
        (f"{functional} CAUSAL=True", "the functional has an unknown choice, CAUSAL=True"),
        (str(functional).replace("32", "48"), "the functional has an unknown choice, BLOCK_DMODEL=48"),
    ):
        wrong(message, metadata=right["metadata"] | {"functional": text})
    text = json.dumps(right["program"])
    for old, new, message in (
        ('"ceil_divide"', '"modulo"', "a program with an unknown word, modulo"),
        ('"strided"', '"twisted"', "a program with an unknown word, twisted"),
        ('"slot": 3', '"slot": 300', "a program with a number that is out of range"),
    ):
        assert old in text
        wrong(message, program=json.loads(text.replace(old, new)))


def test_launches_take_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands, scalars and sizes that the candidate's operator has not are a ValueError with their name."""
    kernel = OPERATOR.backends[0].kernels[0]
    candidate = aotriton.Candidate(**arguments_of(next(iter(kernel.functionals("sm_90"))), OPERATOR))
    with pytest.raises(ValueError, match="an image: scale has no operand z"):
        aotriton.launch(candidate, {"z": Tensor(1, 1, 64, 32)})
    with pytest.raises(ValueError, match="an image: scale has no scalar slope"):
        aotriton.launch(candidate, {"x": Tensor(1, 1, 64, 32)}, {"slope": 1.0})
    with pytest.raises(ValueError, match="an image: scale has no size breadth"):
        aotriton.launch(candidate, {"x": Tensor(1, 1, 64, 32)}, {}, {"breadth": 1})
    with pytest.raises(ValueError, match="x has 2 dimensions, not 4"):
        aotriton.launch(candidate, {"x": Tensor(64, 32)})
    of = operator("attn_fwd")
    candidate = aotriton.Candidate(**arguments_of(next(iter(of.lead.functionals("sm_90"))), of))
    with pytest.raises(ValueError, match="an image misses its scalar sm_scale"):
        aotriton.launch(candidate, {}, {"causal": False})


PRODUCT = {"batch": 1, "m": 4095, "n": 4095, "k": 4095}


def test_values_have_names(on_standin: dict[str, Any]) -> None:
    """gemm's activation is a name or its number of c.h, in a call, in explain() and in aotriton-explain. Another name
    is a ValueError that lists them, and the program's misuse; a name where a number belongs is a TypeError.
    """
    for number, name in enumerate(("none", "relu", "gelu", "silu")):
        for given in (name, number):
            (passed,) = (one[6] for one in on_standin["seen"][f"activation {given}"]["calls"] if one[0] == "launch")
            assert int(passed) == number
    assert "gemm: activation is 4, which is none of those" in on_standin["seen"]["activation 4"]["raised"]
    a, b, d = (Tensor(1, 64, 64, address=(1 + place) << 32) for place in range(3))
    every = "gemm: activation is 'tanh', which must be one of none, relu, gelu, silu"
    for call in (aotriton.gemm, aotriton.gemm_supported, aotriton.gemm_workspace_size, aotriton.gemm_hint_outcomes):
        with pytest.raises(ValueError, match=every):
            call(a, b, d, activation="tanh")
    asked = {"arch": "sm_90", "dtype": "bf16", **PRODUCT}
    told = {name: aotriton.explain("gemm", activation=name, **asked) for name in ("none", "gelu", 0, 2)}
    assert told["gelu"] == told[2] == aotriton.explain("gemm", alpha=None, activation="gelu", **asked)
    assert told["none"] == told[0] == aotriton.explain("gemm", **asked)
    with pytest.raises(ValueError, match=every):
        aotriton.explain("gemm", activation="tanh", **asked)
    for wrong, message in (
        ({"alpha": "gelu"}, "gemm: alpha is 'gelu', which must be a number"),
        ({"m": "gelu"}, "explain: m is 'gelu', which must be a number"),
        ({"activation": [2]}, r"explain: activation is \[2\], which must be a number"),
    ):
        with pytest.raises(TypeError, match=message):
            aotriton.explain("gemm", **asked | wrong)
    program = [from_ctest("AOTRITON_EXPLAIN"), "--op", "gemm", "--arch", "sm_90", "--dtype", "bf16", "--json"]
    program += [text for size, n in PRODUCT.items() for text in (f"--{size}", str(n))]
    asked_for = [
        subprocess.run([*program, "--activation", name], capture_output=True, text=True)
        for name in ("gelu", "2", "tanh")
    ]
    assert asked_for[0].stdout == asked_for[1].stdout
    assert [one.returncode for one in asked_for] == [0, 0, 2]
    assert "--activation takes none|relu|gelu|silu, not 'tanh'" in asked_for[2].stderr
    helped = subprocess.run([program[0], "--help"], capture_output=True, text=True, check=True).stdout
    assert "[--activation none|relu|gelu|silu]" in helped
    assert "[--sm-scale X]" in helped


SCALES: dict[str, dict[str, Any]] = {
    "left out": {}, "None": {"sm_scale": None}, "zero": {"sm_scale": 0.0}, "whole zero": {"sm_scale": 0},
    "tiny": {"sm_scale": 1e-60}, "other": {"sm_scale": 0.3}, "NaN": {"sm_scale": float("nan")},
}  # fmt: skip

# Calls on libcuda.so.1 of test/runtime/vendor: GPU 0 is current, contexts are 0x100 and 0x101, and every stream that
# is no default one is on GPU 1. Prints what each call raised and what the driver was told.
ON_STANDIN = """
import ctypes, json, sys, types
from types import SimpleNamespace
import aotriton
from test_binding import SCALES, Tensor, forward

driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_calls.restype = ctypes.c_char_p
asked = []
torch = types.ModuleType("torch")
torch.cuda = SimpleNamespace(
    current_stream=lambda device: asked.append(device) or SimpleNamespace(cuda_stream=0x700 + device)
)
sys.modules["torch"] = torch
Torchs = type("Tensor", (Tensor,), {"__module__": "torch"})

seen = {}
def call(name, gpu, function=aotriton.attn_fwd, kind=Tensor, **changes):
    driver.fake_cuda_calls()
    tensors = forward()
    for tensor in tensors.values():
        tensor.__class__, tensor.device = kind, SimpleNamespace(index=gpu)
    raised, result = "", None
    try:
        result = function(**tensors | changes)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    calls = [one.decode(errors="replace").split() for one in driver.fake_cuda_calls().split(b";") if one]
    seen[name] = {"raised": raised, "result": result, "calls": [one for one in calls if one[0] != "encode"]}

call("first", 0)
call("other", 1)
call("other again", 1)
call("first again", 0)
call("refused", 1, q=Tensor(2, 4, 48, 64, dtype="int32", gpu=1))
call("first after it", 0)
for stream in (1, 2):
    call(f"default stream {stream}", 1, stream=stream)
call("a stream of its GPU", 1, stream=0x777)
call("a stream of another GPU", 0, stream=0x777)
call("supported", 1, aotriton.attn_fwd_supported)
call("not supported", 1, aotriton.attn_fwd_supported, causal=True, k=Tensor(2, 4, 40, 64, gpu=1))
call("torch", 1, kind=Torchs)
call("torch, a default stream", 1, kind=Torchs, stream=0)
call("torch, a stream of another GPU", 0, kind=Torchs)
call("no index", None)
# q is not aligned: pointers to four tensors and logsumexp, whether that is stored, and sm_scale.
ctypes.c_int.in_dll(driver, "fake_cuda_argument").value = 6
askew = {"q": Tensor(2, 4, 48, 64, address=(1 << 32) + 2), "hints": "backend=portable"}
for name, scale in SCALES.items():
    call(f"scale {name}", 0, **askew, **scale)
# As here: three matrices, no bias, alpha and the activation.
ctypes.c_int.in_dll(driver, "fake_cuda_argument").value = 5
a, b, d = (Tensor(1, 64, 64, address=(place << 32) + 2) for place in (1, 2, 3))
def product(activation, **_):
    aotriton.gemm(a, b, d, activation=activation, hints="backend=portable")
for activation in ("none", "relu", "gelu", "silu", 0, 1, 2, 3, 4):
    call(f"activation {activation}", 0, product, activation=activation)
print(json.dumps({"seen": seen, "asked": asked}))
"""


@pytest.fixture(scope="module")
def on_standin() -> dict[str, Any]:
    """What ON_STANDIN saw: "asked" are the GPUs whose current stream torch was asked for."""
    return dict(on_standin_driver(ON_STANDIN))


def steps(on_standin: dict[str, Any], name: str) -> list[str]:
    """What a call did, without its questions to the GPU: contexts entered and left, loads, launches by stream."""
    made = []
    for what, *rest in on_standin["seen"][name]["calls"]:
        if what == "launch":
            made.append(f"launch on {rest[4]}")
        elif what in ("push", "load"):
            made.append(f"{what} {rest[0]}" if what == "push" else what)
        elif what == "pop":
            made.append(what)
    return made


def test_a_call_runs_on_the_gpu_of_its_tensors(on_standin: dict[str, Any]) -> None:
    """Without a stream, or on a default one, that GPU is made current for the call, and the one before it afterwards,
    also where the call is refused. Each GPU loads its own image, once.
    """
    on_other = ["push 0x101", "launch on (nil)", "pop"]
    assert steps(on_standin, "first") == ["load", "launch on (nil)"]
    assert steps(on_standin, "other") == ["push 0x101", "load", "launch on (nil)", "pop"]
    assert steps(on_standin, "other again") == on_other
    assert steps(on_standin, "first again") == steps(on_standin, "first after it") == ["launch on (nil)"]
    assert on_standin["seen"]["refused"]["raised"].startswith("AotritonError: attn_fwd: q has dtype int32")
    assert steps(on_standin, "refused") == ["push 0x101", "pop"]
    for stream in (1, 2):
        assert steps(on_standin, f"default stream {stream}") == ["push 0x101", f"launch on 0x{stream}", "pop"]
    assert [on_standin["seen"][name]["result"] for name in ("supported", "not supported")] == [True, False]
    assert steps(on_standin, "supported") == steps(on_standin, "not supported") == ["push 0x101", "pop"]


def test_a_stream_must_be_of_the_tensors_gpu(on_standin: dict[str, Any]) -> None:
    """One of that GPU is used whichever is current; one of another is a ValueError that names both, and no launch."""
    assert steps(on_standin, "a stream of its GPU")[-2:] == ["launch on 0x777", "pop"]
    for name in ("a stream of another GPU", "torch, a stream of another GPU"):
        assert on_standin["seen"][name]["raised"] == "ValueError: the stream is on GPU 1, logsumexp on GPU 0"
        made = steps(on_standin, name)
        assert not any(step.startswith("launch") for step in made)
        assert made.count("push 0x101") == made.count("pop")
    raised = {name for name, one in on_standin["seen"].items() if one["raised"]}
    assert raised == {"refused", "a stream of another GPU", "torch, a stream of another GPU"} | {
        "scale NaN",
        "activation 4",
    }


def test_a_scale_of_zero_is_zero(on_standin: dict[str, Any]) -> None:
    """Kernels get the scale as it is given, and 1 / sqrt(head_dim) where none is: left out, or None. Not a number is no
    scale.
    """
    passed = {}
    for name in SCALES.keys() - {"NaN"}:
        (bits,) = (one[6] for one in on_standin["seen"][f"scale {name}"]["calls"] if one[0] == "launch")
        (passed[name],) = struct.unpack("f", struct.pack("i", int(bits)))
    assert passed == {
        "left out": 0.125, "None": 0.125, "zero": 0.0, "whole zero": 0.0, "tiny": 0.0,
        "other": pytest.approx(0.3),
    }  # fmt: skip
    assert "sm_scale is nan, which must be finite" in on_standin["seen"]["scale NaN"]["raised"]


def test_torchs_current_stream_is_that_of_the_tensors_gpu(on_standin: dict[str, Any]) -> None:
    """Of tensors of torch, where no stream is given; other tensors, and those that tell no GPU, have the default."""
    assert on_standin["asked"] == [1, 0]
    assert steps(on_standin, "torch")[-2:] == ["launch on 0x701", "pop"]
    assert steps(on_standin, "torch, a default stream") == ["push 0x101", "launch on (nil)", "pop"]
    assert steps(on_standin, "no index") == ["launch on (nil)"]


SIZES = {"batch": 2, "heads_q": 16, "heads_k": 16, "seqlen_q": 1000, "seqlen_k": 1000, "head_dim": 64}


@pytest.mark.parametrize("name", ["attn_fwd", "attn_bwd"])
@pytest.mark.parametrize(
    ("arch", "product"), [("sm_90", None), ("sm_90", "NVIDIA H200"), ("gfx942", "AMD Instinct MI300X")]
)
def test_explanations_are_those_of_the_program(name: str, arch: str, product: str | None) -> None:
    """explain() and aotriton-explain --json answer alike, for sizes by their names or by what names have in common."""
    program = from_ctest("AOTRITON_EXPLAIN")
    choices = aotriton.explain(name, arch=arch, product=product, dtype="bf16", **SIZES, causal=True)
    assert {choice["product"] for choice in choices} == {product or arch_spec(arch).product}
    short = {"batch": 2, "heads": 16, "seqlen": 1000, "head_dim": 64}
    assert aotriton.explain(name, arch=arch, product=product, dtype="bf16", **short, causal=True) == choices
    place = ["--device", product] if product else ["--arch", arch]
    for sizes in (SIZES, short):
        options = [text for size, n in sizes.items() for text in (f"--{size.replace('_', '-')}", str(n))]
        command = [program, "--op", name, *place, "--dtype", "bf16", *options, "--causal", "--json"]
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for choice, other in zip(choices, told, strict=True):
            assert list(choice) == list(other), "the same facts, in the same order"
            measured = ("median_us", "low_us", "high_us", "total_us", "bin_median_us")
            times = (*measured, "predicted_us", "predicted_total_us", "predicted_error")
            timed = (*times, "runners_up", "backends", "certificate")
            assert [choice[field] for field in choice if field not in timed] == [
                other[field] for field in other if field not in timed
            ]
            for field in times:
                assert choice[field] == pytest.approx(other[field], rel=1e-5)
            assert choice["certificate"] is None or arch == "sm_90"
            assert (choice["certificate"] is None) == (other["certificate"] is None)
            for fact, value in (choice["certificate"] or {}).items():
                assert other["certificate"][fact] == (pytest.approx(value, rel=1e-5) if type(value) is float else value)
            for field in ("runners_up", "backends"):
                for row, printed in zip(choice[field], other[field], strict=True):
                    assert list(row) == list(printed)
                    for field_of, fact in row.items():
                        assert printed[field_of] == (pytest.approx(fact, rel=1e-5) if "_us" in field_of else fact)


def test_each_image_has_a_certificate_or_says_that_it_has_none() -> None:
    """--certificates has every image of --list once, alike as text and JSON; --op, --arch and --device leave some."""
    program = from_ctest("AOTRITON_EXPLAIN")

    def told(*options: str) -> str:
        return subprocess.run([program, *options], capture_output=True, text=True, check=True).stdout

    images = json.loads(told("--certificates", "--json"))
    kernels = {
        (kernel["kernel"], kernel["arch"]): kernel["images"]
        for operator in json.loads(told("--list", "--json"))["operators"]
        for backend in operator["backends"]
        for kernel in backend["kernels"]
    }
    assert len({image["image"] for image in images}) == len(images) == sum(kernels.values())
    checked = [image for image in images if image["certificates"]]
    assert {image["arch"] for image in checked} == {"sm_90"}, "nobody has run what is for gfx942"
    text = told("--certificates").splitlines()
    for image in checked:
        for one in image["certificates"]:
            assert 0 <= one["error"] <= one["allowed"]
            problems = f"{one['problems']} problem{'s' if one['problems'] > 1 else ''}"
            numbers = f"error {one['error']:.2g}, allowed {one['allowed']:.2g}"
            assert f"  {image['image']} checked on {one['product']}, {one['day']}, by {problems}: {numbers}" in text
    assert len([line for line in text if line.endswith(" compiled only")]) == len(images) - len(checked)
    assert text[-1] == f"{len(images)} images, of which {len(checked)} were checked"
    for options, kept in (
        (["--op", "gemm"], [image for image in images if image["kernel"].startswith("gemm")]),
        (["--arch", "gfx942"], [image for image in images if image["arch"] == "gfx942"]),
    ):
        assert json.loads(told("--certificates", "--json", *options)) == kept
    on_h200 = json.loads(told("--certificates", "--json", "--device", "h200"))
    assert {one["product"] for image in on_h200 for one in image["certificates"]} == {"NVIDIA H200"}
    done = subprocess.run([program, "--certificates", "--arch", "sm_1"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown arch sm_1" in done.stderr


def test_few_queries_of_many_keys_run_where_keys_are_split() -> None:
    """By predicted time where others have one; of calls with a band, of which they have none, where they are served."""

    def kernels(**changed: Any) -> list[str]:
        asked: dict[str, Any] = {
            "batch": 1,
            "heads_q": 32,
            "heads_k": 8,
            "seqlen_q": 1,
            "seqlen_k": 32768,
            "head_dim": 64,
        }
        choices = aotriton.explain("attn_fwd", arch="sm_90", product="NVIDIA H200", dtype="bf16", **asked | changed)
        return [choice["kernel"] for choice in choices]

    last = {"causal": True, "causal_variant": "bottom_right"}
    decode = ["attn_fwd_decode", "attn_fwd_combine"]
    assert kernels() == decode
    for features in (last | {"seqlen_q": 4}, {"seqused_k": True, "sequences": 1}, {"sinks": True}, {"softcap": 30.0}):
        assert kernels(**features) == decode, features
    for chunk in (kernels(**last, seqlen_q=128), kernels(seqlen_q=128)):
        assert chunk[-1] in ("attn_fwd_combine", "attn_fwd_planned_combine")
    for others in ({"bias": True}, last | {"seqlen_q": 1024}, last | {"seqlen_q": 128, "seqlen_k": 200, "batch": 64}):
        assert "attn_fwd_combine" not in kernels(**others), others
    assert "attn_fwd_combine" not in kernels(seqlen_k=64, batch=64)


def test_an_explanation_tells_the_call_from_what_was_measured() -> None:
    """What is padded, whether the median is of a larger or a smaller problem, and why a backend cannot serve."""
    arguments = {"arch": "sm_90", "dtype": "bfloat16"}
    (choice,) = aotriton.explain("attn_fwd", **SIZES | {"head_dim": 40}, **arguments)
    assert choice["padding"] == [{"choice": "BLOCK_DMODEL", "value": 40, "padded": 64}]
    assert choice["representative_is"] == "larger"
    assert not any(key["beyond_last_bin"] for key in choice["keys"])
    (choice,) = aotriton.explain("attn_fwd", **SIZES | {"seqlen_q": 100000, "seqlen_k": 100000}, **arguments)
    assert choice["padding"] == []
    assert choice["representative_is"] == "smaller"
    assert all(key["beyond_last_bin"] for key in choice["keys"])
    arguments |= {"product": "NVIDIA H200"}  # on which all kernels of the backend were measured
    choices = aotriton.explain("attn_bwd", **SIZES, deterministic=True, **arguments)
    for choice in choices:
        assert choice["total_us"] == pytest.approx(sum(one["bin_median_us"] for one in choices), rel=1e-5)
        backends = {one["name"]: one for one in choice["backends"]}
        assert not backends["portable"]["refusal"]
        assert backends["portable"]["needs_workspace"]
        assert "deterministic" in backends["hopper_pair"]["refusal"]
        assert backends["hopper_pair"]["refusing_kernel"] == "attn_bwd_hopper_pair"
    assert choices == aotriton.explain("attn_bwd", **SIZES, deterministic=True, **arguments | {"dtype": "bf16"})


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({}, "LEVEL=0"),
        ({"bias": False}, "LEVEL=0"),
        ({"logsumexp": True}, "LEVEL=0"),
        ({"sinks": True}, "LEVEL=4"),
        ({"seqused_k": True, "sequences": 2, "softcap": 2.0}, "LEVEL=4"),
        ({"batch": 1, "cu_seqlens_q": True, "cu_seqlens_k": True, "starts": 4, "max_seqlen": 300}, "LEVEL=4"),
        ({"bias": True}, "LEVEL=5"),
        ({"alibi_slopes": True}, "LEVEL=5"),
        ({"dropout": 0.1, "dropout_seed": True, "dropout_offset": True}, "LEVEL=5"),
    ],
)
def test_operands_that_a_call_may_leave_out_are_explained_where_they_are_named(
    given: dict[str, Any], level: str
) -> None:
    """explain() and aotriton-explain have the kernels of the features that are given as tensors."""
    longest = given.get("max_seqlen")
    scalars = {"max_seqlen_q": longest, "max_seqlen_k": longest} if longest else {}
    asked = SIZES | {name: value for name, value in given.items() if name != "max_seqlen"} | scalars
    (choice,) = aotriton.explain("attn_fwd", arch="sm_90", dtype="bf16", **asked)
    found = choice["functional"]
    assert level in found if level != "LEVEL=0" else "LEVEL" not in found
    options = [
        f"--{name.replace('_', '-')}{'' if value is True else f'={int(value) if value is False else value}'}"
        for name, value in asked.items()
    ]
    program = [from_ctest("AOTRITON_EXPLAIN"), "--op", "attn_fwd", "--arch", "sm_90", "--dtype", "bf16", "--json"]
    (told,) = json.loads(subprocess.run([*program, *options], capture_output=True, text=True, check=True).stdout)
    assert told["functional"] == found
    assert told["image"] == choice["image"]


def test_operands_that_are_explained_are_checked_as_in_a_call() -> None:
    """What does not go together is refused by name, and a size that only such an operand has must be named."""
    for given, message in (
        ({"bias": True, "softcap": 30.0}, "no kernel has softcap together with bias"),
        ({"dropout": 0.1}, "dropout is given, dropout_seed is not"),
        ({"cu_seqlens_q": True, "starts": 3}, "cu_seqlens_k is not given, and the other one is"),
        ({"seqused_k": True}, "sequences of attn_fwd is missing"),
        ({"q": True}, "attn_fwd has no q"),
    ):
        with pytest.raises(aotriton.AotritonError, match=message):
            aotriton.explain("attn_fwd", arch="sm_90", dtype="bf16", **SIZES | given)


def test_calls_of_pages_outside_of_the_coverage_are_refused_by_what_it_lacks() -> None:
    """The first backend never serves them: what is named is the kernel that would, unless none would."""
    paged: dict[str, Any] = {name: size for name, size in SIZES.items() if name != "seqlen_k"}
    paged |= {"pages": 9, "page_size": 16, "sequences": 2, "pages_of_sequence": 4, "block_table": True}
    paged |= {"seqused_k": True, "seqlen_q": 1, "arch": "sm_90"}
    (choice,) = aotriton.explain("attn_fwd", dtype="bf16", **paged)
    assert "KEYS=pages" in choice["functional"]
    missing = "attn_fwd_decode sm_90: T=fp16 BLOCK_DMODEL=64 .*KEYS=pages is not in this build's coverage"
    with pytest.raises(aotriton.AotritonError, match=missing):
        aotriton.explain("attn_fwd", dtype="fp16", **paged)
    with pytest.raises(aotriton.AotritonError, match="no kernel has alibi_slopes together with block_table yet"):
        aotriton.explain("attn_fwd", dtype="fp16", **paged, alibi_slopes=True)


def test_an_exact_name_wins() -> None:
    """heads stands for the sizes that are not named themselves."""
    fewer = SIZES | {"heads_k": 4}
    mixed = {name: value for name, value in fewer.items() if name != "heads_q"} | {"heads": 16}
    arguments = {"arch": "sm_90", "dtype": "bf16"}
    assert aotriton.explain("attn_fwd", **mixed, **arguments) == aotriton.explain("attn_fwd", **fewer, **arguments)
    for change, message in (
        ({"heads_k": 5}, "q has 16 heads, which must be a multiple of the 5 of k"),
        ({"seqlen_k": 1.5}, "seqlen_k is 1.5, which must be a whole number"),
        ({"batch": -1}, "batch is -1"),
        ({"width": 1}, "attn_fwd has no width"),
    ):
        with pytest.raises(aotriton.AotritonError, match=message):
            aotriton.explain("attn_fwd", **SIZES | change, **arguments)
    with pytest.raises(aotriton.AotritonError, match="head_dim of attn_fwd is missing"):
        aotriton.explain("attn_fwd", batch=1, heads=1, seqlen=1, **arguments)
    with pytest.raises(aotriton.AotritonError, match="unknown op gemv: choose from attn_fwd, "):
        aotriton.explain("gemv", **arguments)
    with pytest.raises(aotriton.AotritonError, match="unknown dtype fp8"):
        aotriton.explain("attn_fwd", arch="sm_90", dtype="fp8", **SIZES)
