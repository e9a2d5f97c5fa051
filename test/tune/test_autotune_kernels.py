"""aotriton.autotune takes kernels as people have them: from a package, with its decorators, arguments and types."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernel_package import functions, kernels, other
from test_measure import FakeGpu
from triton import language as tl

import aotriton
from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images
from aotriton.rules import family
from aotriton.rules.database import TuningDatabase
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.image import ImageSpec
from aotriton.rules.kernel import Constexpr, Number, Tensor
from aotriton.tune.autotune import tuned as program
from aotriton.tune.autotune.device_source import device_source
from aotriton.tune.autotune.tuned import DATABASE, Tuned
from aotriton.tune.autotune.tuning import DrawnTuning
from aotriton.tune.measure.clock import GpuClock
from aotriton.tune.measure.launcher import GpuLauncher, Opened, Result
from aotriton.tune.problem.accuracy import Check
from aotriton.tune.problem.family import tuning
from aotriton.tune.problem.problems import Wish, problems

OPTIONS = ("--launcher", "standin_launcher:StandinLauncher", "--jobs", "2")


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder, a GPU and families of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(program, "product_here", lambda: "stand-in")
    monkeypatch.setenv(family.VARIABLE, "")


def of_x(x: Any) -> Any:
    return 3 * x


def described(kernel: Any, **changes: Any) -> Tuned:
    """A kernel from x to out, in blocks."""
    given: dict[str, Any] = {
        "inputs": {"x": "fp32[n]"},
        "results": {"out": "fp32[n]"},
        "sizes": {"n": (1024, 4096)},
        "reference": of_x,
        "grid": "cdiv(n, BLOCK)",
        "space": {"BLOCK": (64,), "num_warps": (4,)},
    }
    made: Tuned = aotriton.autotune(**given | changes)(kernel)
    return made


def spec_of(one: Tuned, folder: Path) -> ImageSpec:
    """The first config of the family in ``folder``, which becomes the only one that is known."""
    one.folder = folder
    one._described = one._described.named(folder.name)
    one.write()
    (kernel,) = family.add(folder).kernels
    tables = kernel.tunable_values("cuda"), kernel.compile_option_values("cuda")
    tunables, compile_options = ({name: values[0] for name, values in table.items()} for table in tables)
    return ImageSpec.of(next(kernel.functionals("sm_90")), tunables, compile_options)


def constants_of(one: Tuned) -> dict[str, tuple[str, ...]]:
    """The values of constexprs as the description spells them."""
    return {each.name: each.values for each in one._description.arguments if isinstance(each, Constexpr)}


def compiled(one: Tuned, tmp_path: Path) -> CompiledImage:
    """The image of the first config."""
    spec = spec_of(one, tmp_path / f"compiled_{one._name}")
    ((_, result),) = compile_images([spec], ImageStore(tmp_path / "store"), 1)
    assert isinstance(result, CompiledImage), result.message
    return result


def test_device_functions_of_other_modules_come_along(tmp_path: Path) -> None:
    """Whichever branch defined them, under whatever name they are imported; the file needs nothing of the package."""
    one = described(kernels.imported)
    assert compiled(one, tmp_path).binary.startswith(b"\x7fELF")
    source = (one.folder / "tritonsrc" / "imported.py").read_text()
    assert "kernel_package" not in source.replace("kernels.py", "")


def test_what_a_function_of_the_package_is_names_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant of another module counts by its value, a function by its code."""
    before = device_source(kernels.imported)
    monkeypatch.setattr(functions, "WEIGHT", tl.constexpr(4))
    monkeypatch.setattr(kernels, "WEIGHT", functions.WEIGHT)
    assert device_source(kernels.imported) == before.replace("constexpr(3)", "constexpr(4)") != before
    monkeypatch.setattr(functions, "root", functions.apart)
    assert "root = apart" in device_source(kernels.imported)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (kernels.by_module, "by_module: `kernel_package.functions` is a module of another package: .* by their names"),
        (kernels.confused, "confused: plain is a Python function, which device code cannot call"),
    ],
)
def test_what_device_code_cannot_have_is_named(kernel: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        described(kernel)


def test_two_things_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One file has all of the device code: values and functions."""
    monkeypatch.setattr(kernels, "WEIGHT", tl.constexpr(5))
    with pytest.raises(ValueError, match="imported: two things are called WEIGHT"):
        device_source(kernels.imported)
    monkeypatch.setattr(kernels, "WEIGHT", functions.WEIGHT)
    monkeypatch.setattr(kernels, "larger", functions.root)
    monkeypatch.setattr(kernels, "apart", other.root)
    with pytest.raises(ValueError, match="imported: two things are called root"):
        device_source(kernels.imported)


CONSTANTS: dict[str, Any] = {
    "inputs": {
        "x": "bf16[rows, n]",
        "bias": None,
        "step": "1",
        "KIND": "absolute",
        "HAS_BIAS": False,
        "EPS": 0.25,
        "SHIFT": -1,
        "ACC": tl.float32,
        "BLOCK": "min(n, 64)",
        "WHOLE": "next_power_of_2(n)",
    },
    "results": {"out": "fp32[rows, n]"},
    "sizes": {"rows": 8, "n": (100, 200, 1000)},
    "grid": "rows",
    "space": {"num_warps": (1, 2)},
}


def test_constants_are_compiled_in(tmp_path: Path) -> None:
    """Numbers of either sign, truth values, text, types, what is left out, and a power of two that follows from sizes,
    which serves smaller ones.
    """
    one = described(kernels.constant, **CONSTANTS)
    assert constants_of(one) == {
        "bias": ("None",), "step": ("1",), "KIND": ("'absolute'",), "HAS_BIAS": ("False",), "EPS": ("0.25",),
        "SHIFT": ("-1",), "ACC": ("tl.dtype('fp32')",), "BLOCK": (), "WHOLE": (), "SCALE": ("2",),
    }  # fmt: skip
    choices = {choice.name: choice for choice in one._description.choices}
    assert (choices["BLOCK"].values, choices["BLOCK"].round_up) == ((64,), False)
    assert (choices["WHOLE"].values, choices["WHOLE"].round_up) == ((128, 256, 1024), True)
    assert compiled(one, tmp_path).binary.startswith(b"\x7fELF")


def test_kernels_are_right(tmp_path: Path, launch: Any) -> None:
    """As they stand in their families, run by Triton's interpreter as these describe them."""
    for one in (described(kernels.imported), described(kernels.constant, **CONSTANTS)):
        one.folder = tmp_path / f"right_{one._name}"
        one._described = one._described.named(one.folder.name)
        one.write()
        family.add(one.folder)
    x = np.arange(100.0)
    common = {"BLOCK": 64, "ADDRESSING": "general"}
    found = launch("imported", {"x": x}, {"out": x.shape}, common | {"T": "fp32"})["out"]
    np.testing.assert_allclose(found, 3 * x + 0.5 + 0.5 + 1)
    x = -np.ones((2, 100))
    found = launch("constant", {"x": x}, {"out": x.shape}, common | {"T": "bf16", "WHOLE": 128})["out"]
    np.testing.assert_allclose(found, np.full(x.shape, 2 + 0.25 - 1))


def test_constants_name_the_image(tmp_path: Path) -> None:
    """Values that Python calls equal are different constants."""
    names = set()
    for place, changes in enumerate(({}, {"HAS_BIAS": 0}, {"SHIFT": -1.0}, {"ACC": tl.float16}, {"KIND": "double"})):
        one = described(kernels.constant, **CONSTANTS | {"inputs": CONSTANTS["inputs"] | changes})
        names.add(spec_of(one, tmp_path / f"constants_{place}").name)
        os.environ[family.VARIABLE] = ""
    assert len(names) == 5


def test_any_constants_are_tried(tmp_path: Path) -> None:
    """Types, text, truth values and negative numbers; the winner's config has them as they were given."""
    space = {"ACC": (tl.float32, tl.float16), "MODE": ("double", "single"), "EVEN": (True, False), "SHIFT": (-1, 1)}
    declared = {"space": space, "grid": "cdiv(n, 64)", "sizes": {"n": 1024}, "options": OPTIONS}
    one = described(kernels.chosen, **declared)
    config = one.tune().config
    assert config == {"ACC": tl.float32, "MODE": "double", "EVEN": False, "SHIFT": -1}
    assert (config["EVEN"], type(config["SHIFT"])) == (False, int)
    fewer = described(kernels.chosen, **declared | {"space": space | {"MODE": ("single",)}, "folder": one.folder})
    with TuningDatabase(one.folder / DATABASE, readonly=True) as database:
        assert len(database.evidence.outcomes()) >= 16
    assert fewer.tune().config["MODE"] == "single"


def test_the_authors_configs_are_the_space() -> None:
    """What triton.autotune has is tried, and no other combination; triton.heuristics are what they say of the call."""
    declared = {"sizes": {"n": 1024}, "options": OPTIONS, "space": None}
    inputs = {"x": "fp32[n]", "bias": None, "WIDTH": 8}
    one = described(kernels.wrapped, **declared | {"inputs": inputs}).tune()
    with TuningDatabase(one.folder / DATABASE, readonly=True) as database:
        assert {outcome.config for outcome in database.evidence.outcomes()} == {
            "BLOCK=64 num_warps=2 num_stages=3",
            "BLOCK=128 num_warps=4 num_stages=2",
        }
    assert one.config == {"BLOCK": 128, "num_warps": 4, "num_stages": 2}
    values = constants_of(one)
    assert (values["HAS_BIAS"], values["TWICE"], values["bias"]) == (("False",), ("16",), ("None",))
    biased = described(kernels.wrapped, **declared | {"inputs": inputs | {"bias": "fp32[n]"}})
    assert constants_of(biased)["HAS_BIAS"] == ("True",)
    assert one.folder != biased.folder


@pytest.mark.parametrize(
    ("kernel", "changes", "message"),
    [
        (kernels.chosen, {}, "ACC: a constexpr must be in space, in inputs, or be one of the sizes"),
        (kernels.chosen, {"space": {"MODE": "double"}}, "space: MODE must be several numbers, .*, not 'double'"),
        (kernels.chosen, {"space": {"MODE": (object(),)}}, "space: MODE must be several numbers"),
        (kernels.chosen, {"space": "all"}, "space: 'all' is neither values by name nor a list of configs"),
        (
            kernels.chosen,
            {"space": [{"MODE": "single"}, {"EVEN": True}]},
            "space: its configs differ in names: MODE and EVEN",
        ),
        (kernels.chosen, {"space": {"num_warps": (-4,)}}, "space: num_warps must be whole numbers from 0 on"),
        (kernels.chosen, {"inputs": {"x": "fp32[n]", "ACC": "n / 2"}}, "ACC: 'n / 2' is no expression"),
        (kernels.chosen, {"inputs": {"x": "fp32[n]", "ACC": [1]}}, r"inputs: ACC is \[1\], which is no constant"),
        (
            kernels.chosen,
            {"inputs": {"x": "fp32[n]", "MODE": "single"}, "space": {"MODE": ("single",)}},
            "space: MODE is an input, too",
        ),
        (
            kernels.guessing,
            {"inputs": {"x": "fp32[n]", "ACC": tl.float32, "MODE": "double", "SHIFT": 1}},
            "EVEN: its heuristic reads n, which differs between calls or configs: say in inputs or in space what EVEN",
        ),
    ],
)
def test_what_is_no_constant_is_named(kernel: Any, changes: dict[str, Any], message: str) -> None:
    declared = {"inputs": {"x": "fp32[n]"}, "space": {"num_warps": (1,)}, "grid": "n"}
    with pytest.raises(ValueError, match=message):
        described(kernel, **declared | changes)


STRIDED: dict[str, Any] = {
    "inputs": {"x": "bf16[rows, columns]", "x_row": "x.stride(0)", "x_column": "x.stride(-1)", "count": "x.shape[0]"},
    "results": {"out": "bf16[rows, pair, columns]"},
    "sizes": {"rows": 16, "pair": 2, "columns": (48, 64)},
    "grid": "out.size(0)",
}


def test_strides_follow_from_the_tensors(tmp_path: Path) -> None:
    """What a kernel is told of a tensor is asked of the tensor; a stride of 1 is compiled in, as the JIT does."""
    inputs = STRIDED["inputs"] | {"out_row": "out.stride(0)"}
    one = described(kernels.strided, **STRIDED | {"inputs": inputs})
    numbers = {each.name: each for each in one._description.arguments if isinstance(each, Number)}
    at = Environment(sizes={"rows": 16, "pair": 2, "columns": 48})
    assert {name: evaluate(each.value, at) for name, each in numbers.items()} == {
        "x_row": 48, "out_row": 96, "count": 16, "columns": 48,
    }  # fmt: skip
    assert {name for name, each in numbers.items() if each.multiple_of == 16} == {
        "x_row",
        "out_row",
        "count",
        "columns",
    }
    assert constants_of(one)["x_column"] == ("1",)
    assert evaluate(one._description.grid[0], at) == 16
    assert compiled(one, tmp_path).binary.startswith(b"\x7fELF")
    for text in ("x.stride(2)", "y.stride(0)", "x.numel"):
        with pytest.raises(ValueError, match=r"out_row: .* is unknown"):
            described(kernels.strided, **STRIDED | {"inputs": inputs | {"out_row": text}})


UPDATED: dict[str, Any] = {
    "inputs": {"x": "fp32[n]", "y": "fp32[n]"},
    "results": {"out": "fp32[n]", "x": "fp32[n]"},
    "space": None,
    "options": OPTIONS,
}


def of_updated(x: Any, y: Any) -> Any:
    """It writes to its arguments, as references may."""
    before = x.clone()
    x += y
    return before, x


def test_what_is_read_and_written_is_one_operand(tmp_path: Path) -> None:
    """An input that is a result, too; results are in the order in which they are declared."""
    one = described(kernels.accumulate, **UPDATED | {"reference": of_updated})
    operands = one._operator.operands
    assert [(each.name, each.written, each.updated) for each in operands] == [
        ("y", False, False),
        ("out", True, False),
        ("x", True, True),
    ]
    assert compiled(one, tmp_path).binary.startswith(b"\x7fELF")
    assert (
        described(kernels.accumulate, **UPDATED | {"reference": of_updated}).tune().best(n=1024).config["BLOCK"] == 64
    )
    with pytest.raises(ValueError, match=r"results: x is reset or restored by the kernel's triton.autotune"):
        described(kernels.accumulate, **UPDATED | {"results": {"out": "fp32[n]"}})


class Memory:
    """A tensor, as far as the launcher uses one."""

    def __init__(self, value: float) -> None:
        self.value = value

    def fill_(self, value: float) -> None:
        self.value = value

    def copy_(self, other: Memory) -> None:
        self.value = other.value


def test_what_is_updated_is_restored_before_each_launch(tmp_path: Path) -> None:
    """Before the launch that is checked, and before each that is timed, where other results keep what they hold."""
    spec = spec_of(described(kernels.accumulate, **UPDATED | {"reference": of_updated}), tmp_path / "restored")
    kernel = spec.functional.kernel
    tensors = {each.name: each for each in kernel.arguments if isinstance(each, Tensor)}
    x, out = Memory(1.0), Memory(0.0)
    results = {"out": Result(tensors["out"], out, math.nan), "x": Result(tensors["x"], x, Memory(1.0))}
    seen: list[tuple[float, float]] = []

    def launched() -> None:
        seen.append((x.value, out.value))
        x.value, out.value = x.value + 2, x.value

    opened = Opened(None, kernel, {}, launched, results)
    launcher: Any = GpuLauncher.__new__(GpuLauncher)  # without a GPU
    launcher.torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    launcher._data = SimpleNamespace(check=lambda *_: Check(0.0, 1.0))
    launcher._clock = GpuClock(FakeGpu())
    launcher.check(opened)
    assert (seen[0][0], math.isnan(seen[0][1])) == (1.0, True)
    assert len(launcher.round([opened, opened])) == 2
    assert seen[1:] == [(1.0, 1.0), (1.0, 1.0)]


TYPED: dict[str, Any] = {
    "inputs": {"labels": "int64[n]", "flags": "bool[n]", "small": "float8_e4m3fn[n]", "x": "bf16[n]"},
    "results": {"codes": "i8[n]", "count": "i32[n]", "out": "fp32[n]"},
    "sizes": {"n": 256},
}


def of_typed(labels: Any, flags: Any, small: Any, x: Any) -> Any:
    value = x[labels % len(x)] * flags + small
    return value > 0, flags, value


def test_tensors_have_any_type(tmp_path: Path) -> None:
    """Whole numbers, truth values and 8 bits, by Triton's names or torch's; a call's own type is a float's."""
    one = described(kernels.typed, **TYPED | {"reference": of_typed})
    types = {each.name: each.dtype for each in one._operator.operands}
    assert types == {
        "labels": "i64", "flags": "i1", "small": "fp8e4nv", "x": "T", "codes": "i8", "count": "i32", "out": "fp32",
    }  # fmt: skip
    assert one._description.choices[0].values == ("bf16",)
    assert compiled(one, tmp_path).binary.startswith(b"\x7fELF")
    without = described(kernels.typed, **TYPED | {"inputs": TYPED["inputs"] | {"x": "int64[n]"}, "reference": of_typed})
    assert without._description.choices[0].values == ("fp32",)


class Recorder:
    """A kernel that remembers how it was launched."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **named: self.launched.append((grid, arguments, named))


def tensor(*shape: int, dtype: str = "float32") -> Any:
    return SimpleNamespace(shape=shape, is_contiguous=lambda: True, dtype=f"torch.{dtype}")


def recorded(kernel: Any, **changes: Any) -> tuple[Tuned, Recorder, Recorder]:
    """A tuned kernel, what stands for that of triton.jit, and for that of its author."""
    one, inner, author = described(kernel, **{"options": OPTIONS} | changes), Recorder(), Recorder()
    return Tuned(inner, one._described, one.folder, None, OPTIONS, original=author), inner, author


def test_the_tuned_kernel_stands_where_the_jits_stood() -> None:
    """``kernel[grid](...)`` with all arguments: the config is the best one, whatever the caller has, and so is the
    grid.
    """
    inputs = {"x": "fp32[n]", "bias": None, "WIDTH": 8}
    space = {"BLOCK": (64,), "num_warps": (1,)}
    one, inner, author = recorded(kernels.wrapped, inputs=inputs, space=space)
    x, out = tensor(1000), tensor(1000)
    best = {"BLOCK": 64, "num_warps": 1}
    given = {"x": x, "bias": None, "out": out, "n": 1000, "WIDTH": 8, "HAS_BIAS": False, "TWICE": 16}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one[lambda meta: (9,)](x, None, out, 1000, WIDTH=8)
        one[(3,)](x, None, out, 1000, 8, BLOCK=512, num_warps=8, launch_pdl=True)
    assert inner.launched == [((16, 1, 1), (), given | best), ((16, 1, 1), (), given | best | {"launch_pdl": True})]
    assert not author.launched


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"x": tensor(1000, dtype="float16")}, "x is of float16, and was tuned as float32"),
        ({"x": tensor(999)}, "out has n 1000, others have 999"),
        ({"x": tensor(1000, 1)}, r"x must be contiguous, \[n\]"),
        ({"bias": tensor(1000)}, "bias is a tensor, and was tuned as None"),
        ({"n": 999}, "n is 999, and was tuned as 1000"),
        ({"WIDTH": 9}, "WIDTH is 9, and was tuned as 8"),
        ({"x": None}, "'NoneType' object has no attribute 'shape'"),
    ],
)
def test_another_call_is_launched_as_it_is(changes: dict[str, Any], why: str) -> None:
    """By its author's kernel, with all that the caller gave, and a warning that says what is other."""
    inputs = {"x": "fp32[n]", "bias": None, "WIDTH": 8}
    one, inner, author = recorded(kernels.wrapped, inputs=inputs, space={"BLOCK": (64,), "num_warps": (1,)})
    one._winners = ()
    given = {"x": tensor(1000), "bias": None, "out": tensor(1000), "n": 1000, "WIDTH": 8} | changes
    with pytest.warns(UserWarning, match=f"wrapped: .*{why}.*: this call is launched with its own config"):
        one[(3,)](given["x"], BLOCK=512, **{name: value for name, value in given.items() if name != "x"})
    others = {name: value for name, value in given.items() if name != "x"}
    assert author.launched == [((3,), (given["x"],), {"BLOCK": 512, **others})]
    assert not inner.launched


def test_a_size_that_is_compiled_in_is_another_call() -> None:
    """There is an image for each measured value, and none for others."""
    one, inner, author = recorded(kernels.constant, **CONSTANTS)
    row = {"bias": None, "step": 1, "KIND": "absolute", "HAS_BIAS": False, "EPS": 0.25, "SHIFT": -1, "ACC": tl.float32}
    x, out = tensor(8, 150, dtype="bfloat16"), tensor(8, 150)
    one[(8,)](x=x, out=out, n=150, WHOLE=256, BLOCK=64, **row)
    ((grid, _, named),) = inner.launched
    assert (grid, named["WHOLE"], named["BLOCK"], named["SCALE"]) == ((8, 1, 1), 256, 64, 2)
    with pytest.warns(UserWarning, match="constant: WHOLE is 512, and was tuned as 256"):
        one[(8,)](x=x, out=out, n=150, WHOLE=512, BLOCK=64, **row)
    assert len(author.launched) == 1


def test_there_may_be_many_sizes() -> None:
    """Four of them are tuning keys; others must have one measured value, which stands for all."""
    tensors = {"inputs": {"x": "fp32[a, b, c]", "n": "a * b"}, "results": {"out": "fp32[d, e]"}}
    sizes = {"a": 2, "b": (2, 4), "c": 4, "d": 8, "e": 16}
    declared = {**tensors, "sizes": sizes, "grid": 1, "space": {"BLOCK": (64,), "num_warps": (1, 2)}}
    one = described(kernels.imported, **declared, options=OPTIONS).tune()
    assert [key.name for key in one._description.tuning_keys] == ["a", "b", "c", "d"]
    assert [best.sizes["b"] for best in one.winners] == [2, 4]
    assert one.best(a=2, b=3, c=4, d=8, e=99) is one.winners[1]


FOLLOWING: dict[str, Any] = {
    "inputs": {"x": "fp32[n, two]", "n": "n", "LABEL": ""},
    "results": {"out": "fp32[n, two]", "sums": "fp32[parts]"},
    "sizes": {"n": (128, 1000), "two": "2", "parts": "cdiv(n, 8 * two)"},
}


def test_sizes_follow_from_others(tmp_path: Path) -> None:
    """Such a size has no values of its own: it is neither a key, nor another one in a smaller call, which the kernel
    would refuse.
    """
    with pytest.raises(ValueError, match=r"sizes: parts: 'cdiv\(n, 8 [*] two\)' .*: two is unknown"):
        described(kernels.labelled, **FOLLOWING)
    sizes = FOLLOWING["sizes"] | {"parts": "cdiv(n, 16)"}
    one = described(kernels.labelled, **FOLLOWING | {"sizes": sizes, "options": OPTIONS})
    assert [key.name for key in one._description.tuning_keys] == ["n"]
    spec_of(one, tmp_path / "following")
    own, kernel = tuning("following"), one._description
    assert isinstance(own, DrawnTuning)
    found = {one.sizes["n"]: one for one in problems(family.add(one.folder).kernels, "sm_90", 132, Wish())}
    for n, parts in ((128, 8), (1000, 63)):
        problem = found[n]
        assert problem.sizes == {"n": n, "two": 2, "parts": parts}
        smaller = problem.sizes | {"n": n - 1, "parts": -(-(n - 1) // 16)}
        assert own.smaller(problem) == smaller
        for wrong in ({"two": 1}, {"parts": parts + 1}):
            given = Environment(problem.sizes | wrong)
            said = [guard.why for guard in kernel.guards if not evaluate(guard.condition, given)]
            (name,) = wrong
            assert said == [f"{name} must be {sizes[name]}, as where it was tuned"]
    assert one.tune().best(n=200, two=2, parts=13).sizes == {"n": 1000, "two": 2, "parts": 63}
    assert one.best(n=100) is one.winners[0]
    with pytest.raises(ValueError, match="labelled: parts is 12, and 13 follows from the other sizes"):
        one.best(n=200, two=2, parts=12)


def test_a_smaller_call_has_the_same_constants(tmp_path: Path) -> None:
    """What is compiled in for a size is not checked at another one."""
    inputs = FOLLOWING["inputs"] | {"LABEL": "n"}
    one = described(kernels.labelled, **FOLLOWING | {"inputs": inputs, "sizes": {"n": 128, "two": 2, "parts": 8}})
    spec_of(one, tmp_path / "same")
    (problem,) = problems(family.add(one.folder).kernels, "sm_90", 132, Wish())
    own = tuning("same")
    assert isinstance(own, DrawnTuning)
    assert own.smaller(problem) == {"n": 128, "two": 1, "parts": 7}
