"""Claims about families: where they are found, what makes one wrong, and that child processes know them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from toy.rules import FAST, KERNEL, OPERATOR
from toy_database import FOLDER

from aotriton.codegen.compile import CompiledImage, ImageStore, compile_images
from aotriton.rules import family as module
from aotriton.rules.family import IN_TREE, VARIABLE, add, families, family, kernel, operator, operator_of, source_module
from aotriton.rules.image import ImageSpec
from aotriton.tune.measure.requests import Device
from aotriton.tune.problem.family import tuning
from aotriton.tune.workers.gpu_process import GpuProcess

ROOT = Path(__file__).resolve().parents[2]

DESCRIPTIONS = """
from dataclasses import replace

from toy.rules import KERNEL, PORTABLE

from aotriton.rules.operators import Backend

KERNEL = replace(KERNEL, name={kernel!r}, family={family!r})
OPERATORS = (replace(PORTABLE, name={operator!r}, family={family!r}, backends=(Backend("portable", (KERNEL,)),)),)
"""

Maker = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    """Makes families of one kernel in a folder; they are forgotten when the test is over."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def make(name: str, family: str = "", operator: str = "", kernel: str = "", where: str = ".") -> Path:
        folder = tmp_path / where / name
        (folder / "rules").mkdir(parents=True)
        names = {"family": family or name, "operator": operator or f"{name}_all", "kernel": kernel or f"{name}_one"}
        (folder / "rules" / "__init__.py").write_text(DESCRIPTIONS.format(**names))
        return folder

    yield make
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_folder_outside_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is added its operators and kernels are found by name, and its modules beside each other in the folder."""
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(ValueError, match="unknown kernel 'scale_rows': choose from attn_fwd"):
        kernel("scale_rows")
    found = add(FOLDER)
    assert [one.name for one in families()] == [*IN_TREE, "toy"]
    assert (found.name, found.place, found.in_tree) == ("toy", str(FOLDER), False)
    assert found == family("toy") == add(str(FOLDER))
    assert (operator("scale"), kernel("scale_rows"), operator_of(FAST)) == (OPERATOR, KERNEL, OPERATOR)
    assert source_module(KERNEL) == "toy.tritonsrc.scale_rows"
    assert found.module("tune") == "toy.tune"
    assert os.environ[VARIABLE] == str(FOLDER)


@pytest.mark.parametrize("name", IN_TREE)
def test_a_family_of_the_tree(name: str) -> None:
    """It is named by its name; its modules stand under it at each stop, and each kernel has its device code there."""
    found = family(name)
    assert (found.place, found.in_tree) == (name, True)
    assert found.module("tune") == f"aotriton.tune.{name}"
    for one in found.kernels:
        assert one.family == operator_of(one).family == name
        path = ROOT.joinpath(*source_module(one).split(".")[1:]).with_suffix(".py")
        assert path.parent == ROOT / "tritonsrc" / name / "kernels"
        assert path.is_file()


def test_what_is_no_family_is_named(made: Maker, tmp_path: Path) -> None:
    """A folder that is not there, or has no rules/__init__.py; nothing is added."""
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(ValueError, match=f"{folder}: no family, it has no rules/__init__.py"):
            add(folder)
    assert os.environ[VARIABLE] == ""
    os.environ[VARIABLE] = str(tmp_path / "none")
    with pytest.raises(ValueError, match=f"{tmp_path / 'none'}: no family"):
        families()


def test_names_are_there_once(made: Maker) -> None:
    """A family, an operator or a kernel of a name that is taken is refused by that name, and the others stay usable."""
    first = add(made("first"))
    for wrong, twice in (
        (made("second", operator="first_all"), "first_all"),
        (made("third", kernel="first_one"), "first_one"),
        (made("fourth", kernel="attn_fwd"), "attn_fwd"),
        (made("fifth", operator="attn_bwd"), "attn_bwd"),
    ):
        with pytest.raises(ValueError, match=f"^{twice}: a family, operator or kernel of this name is there twice"):
            add(wrong)
        assert families()[-1] == first


def test_a_package_of_the_same_name_is_told(made: Maker, tmp_path: Path) -> None:
    """Two folders of one name cannot both be imported; nor can one that is called as some other package."""
    add(made("sixth"))
    for folder in (made("sixth", where="elsewhere"), made("json", where="elsewhere")):
        with pytest.raises(ValueError, match=f"another package is called {folder.name}"):
            add(folder)
    assert [one.name for one in families()] == [*IN_TREE, "sixth"]


def test_a_folder_of_the_same_name_is_no_package(made: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that Python would look into first, such as a build's where the family's program is built, takes no part: not
    in this process, and not in one that runs there.
    """
    folder = made("eleventh")
    for name in ("rules", "tune"):
        (tmp_path / "build" / "eleventh" / name).mkdir(parents=True)
        (tmp_path / "build" / "eleventh" / name / "__init__.py").write_text("raise RuntimeError('of a build')\n")
    (tmp_path / "build" / "eleventh" / "more.py").write_text("")
    (folder / "tune").mkdir()
    (folder / "tune" / "__init__.py").write_text("TUNING = 'its own'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "build"))
    assert add(folder).folder == folder
    own: Any = tuning("eleventh")
    assert own == "its own"
    with pytest.raises(ImportError):
        importlib.import_module("eleventh.more")
    script = "from aotriton.rules.family import families; print(families()[-1].folder)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "test")])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path / "build", capture_output=True, text=True
    )
    assert done.stdout.split() == [str(folder)], done.stderr


def test_descriptions_are_of_their_family(made: Maker) -> None:
    """Operators and kernels that name another family than their folder are refused, with both names."""
    with pytest.raises(ValueError, match=r"must be of family 'seventh', not \['other'\]"):
        add(made("seventh", family="other"))


def test_a_family_without_operators(made: Maker) -> None:
    """A package whose rules do not say them, or say that there are none."""
    for name, text, message in (
        ("twelfth", "OPERATOR = ()", "twelfth: rules/__init__.py has no OPERATORS"),
        ("thirteenth", "OPERATORS = ()", r"must be of family 'thirteenth', not \[\]"),
    ):
        folder = made(name)
        (folder / "rules" / "__init__.py").write_text(text)
        with pytest.raises(ValueError, match=message):
            add(folder)


def test_two_kernels_of_one_name_in_a_family(made: Maker) -> None:
    """They are refused by name, though they are of different operators."""
    folder = made("eighth")
    path = folder / "rules" / "__init__.py"
    more = (
        "OPERATORS += (replace(OPERATORS[0], name='more', backends=(Backend('x', (replace(KERNEL, gluon=True),)),)),)\n"
    )
    path.write_text(path.read_text() + more)
    with pytest.raises(ValueError, match="two kernels are called eighth_one"):
        add(folder)


def test_a_process_takes_families_from_the_environment(made: Maker) -> None:
    """Any number of them, in order, wherever the process runs."""
    folders = [made("ninth"), made("tenth")]
    script = "from aotriton.rules.family import families\nprint(*(one.name for one in families()))"
    environment = os.environ | {VARIABLE: os.pathsep.join(map(str, folders))}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(FOLDER.parent)])
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=folders[0], capture_output=True, text=True
    )
    assert done.stdout.split() == [*IN_TREE, "ninth", "tenth"], done.stderr


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_compile_workers_know_what_was_added(arch: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The pool compiles every kernel of a family outside for each arch, from the family's own device code."""
    monkeypatch.setenv(VARIABLE, "")
    specs = []
    for one in (one for one in add(FOLDER).kernels if arch in one.archs):
        functional = list(one.functionals(arch))[-1]
        vendor = functional.arch_spec.vendor
        tunables = {name: values[0] for name, values in one.tunable_values(vendor).items()}
        compile_options = {name: values[0] for name, values in one.compile_option_values(vendor).items()}
        specs.append(ImageSpec.of(functional, tunables, compile_options))
    results = list(compile_images(specs, ImageStore(tmp_path), 1))
    assert len(results) == len(specs) >= 3
    for spec, image in results:
        assert isinstance(image, CompiledImage), image
        assert image.metadata["entry"] == spec.functional.kernel.name
        assert image.metadata["functional"] == str(spec.functional)


class KnowingLauncher:
    """A launcher that says what its process knows."""

    def device(self) -> Device:
        return Device("sm_90", " ".join(one.name for one in module.families()), "none", "none", 132)


def test_tuner_workers_know_what_was_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's child process, which is not forked, has the same families."""
    monkeypatch.setenv(VARIABLE, "")
    add(FOLDER)
    worker = GpuProcess("test_family:KnowingLauncher", "0")
    try:
        assert worker.device().name.split() == [*IN_TREE, "toy"]
    finally:
        worker.close()
