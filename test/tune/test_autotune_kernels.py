"""aotriton.autotune takes kernels as people have them: from a package, with its decorators, arguments and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_package import functions, kernels, other
from triton.language import constexpr

import aotriton
from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images
from aotriton.rules import family
from aotriton.rules.image import ImageSpec
from aotriton.tune.autotune.device_source import device_source
from aotriton.tune.autotune.tuned import Tuned


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder and families of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    tables = kernel.psel_values("cuda"), kernel.copt_values("cuda")
    psels, copts = ({name: values[0] for name, values in table.items()} for table in tables)
    return ImageSpec.of(next(kernel.functionals("sm_90")), psels, copts)


def compiled(one: Tuned, tmp_path: Path) -> CompiledImage:
    """The image of the first config."""
    spec = spec_of(one, tmp_path / one._name)
    ((_, result),) = compile_images([spec], ImageStore(tmp_path / "store"), 1)
    assert isinstance(result, CompiledImage), result.message
    return result


def test_device_functions_of_other_modules_come_along(tmp_path: Path, launch: Any) -> None:
    """Whichever branch defined them, under whatever name they are imported; the file needs nothing of the package."""
    one = described(kernels.imported)
    image = compiled(one, tmp_path)
    assert image.binary.startswith(b"\x7fELF")
    source = (one.folder / "tritonsrc" / "imported.py").read_text()
    assert "kernel_package" not in source.replace("kernels.py", "")
    x = np.arange(100.0)
    values = {"T": "fp32", "BLOCK": 64, "ADDRESSING": "general"}
    found = launch("imported", {"x": x}, {"out": x.shape}, values)["out"]
    np.testing.assert_allclose(found, 3 * x + 0.5 + 0.5 + 1)


def test_what_a_function_of_the_package_is_names_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant of another module counts by its value, a function by its code."""
    before = device_source(kernels.imported)
    monkeypatch.setattr(functions, "WEIGHT", constexpr(4))
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
    monkeypatch.setattr(kernels, "WEIGHT", constexpr(5))
    with pytest.raises(ValueError, match="imported: two things are called WEIGHT"):
        device_source(kernels.imported)
    monkeypatch.setattr(kernels, "WEIGHT", functions.WEIGHT)
    monkeypatch.setattr(kernels, "larger", functions.root)
    monkeypatch.setattr(kernels, "apart", other.root)
    with pytest.raises(ValueError, match="imported: two things are called root"):
        device_source(kernels.imported)
