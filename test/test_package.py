"""What the project says of itself, what its packages hold, and what a type checker is told of the binding."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

import aotriton

ROOT = Path(__file__).resolve().parent.parent


def test_the_version_is_written_once() -> None:
    """In the package; the library that was built has the same."""
    pyaotriton = pytest.importorskip("pyaotriton", reason="pyaotriton is not on PYTHONPATH: build the binding first")
    assert pyaotriton.version() == aotriton.__version__
    for file in ("CMakeLists.txt", "pyproject.toml"):
        assert not re.search(r"\b" + re.escape(aotriton.__version__) + r"\b", (ROOT / file).read_text()), file


def test_the_licence_is_the_one_that_the_metadata_names() -> None:
    """pyproject.toml's SPDX expression and the text of LICENSE agree; what CONTRIBUTING.md links to is there."""
    project = (ROOT / "pyproject.toml").read_text()
    assert '\nlicense = "MIT"\n' in project
    assert '\nlicense-files = ["LICENSE"]\n' in project
    assert (ROOT / "LICENSE").read_text().startswith("MIT License\n\nCopyright (c) ")
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "CONTRIBUTING.md").read_text()):
        assert (ROOT / target).is_file(), target


def built(what: str, folder: Path, settings: str = "{}") -> Path:
    """The sdist or wheel that the build backend makes."""
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
    code = f"import scikit_build_core.build as b; print(b.build_{what}({str(folder)!r}, {settings}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def test_the_sdist_has_each_file_once(tmp_path: Path) -> None:
    """And what it takes to build from it: the links inside of the package stay links, and lead to what is there."""
    with tarfile.open(built("sdist", tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
        files = [one for one in archive.getmembers() if one.isfile() and one.size > 200]
        digests = Counter(hashlib.sha256(archive.extractfile(one).read()).hexdigest() for one in files)  # type: ignore[union-attr]
    assert len(files) > 250
    assert max(digests.values()) == 1
    (tree,) = tmp_path.glob("aotriton_v2-*/")
    for name in ("rules", "tune", "codegen", "tritonsrc"):
        assert (tree / "aotriton" / name).resolve() == tree / name
        assert (tree / name / "__init__.py").is_file()
    for name in ("LICENSE", "README.md", "CMakeLists.txt", "rules/tuning_database.sqlite3", "v2src/run.cc"):
        assert (tree / name).is_file(), name
    assert not (tree / "build").exists()


def test_the_wheel_has_one_importable_name(tmp_path: Path) -> None:
    """The package, with every module once and as a file; no database. What cmake adds is in that package, too."""
    with zipfile.ZipFile(built("wheel", tmp_path, "{'wheel.cmake': 'false'}")) as wheel:
        names = wheel.namelist()
        wheel.extractall(tmp_path / "site")
    assert {name.partition("/")[0] for name in names} == {"aotriton", f"aotriton_v2-{aotriton.__version__}.dist-info"}
    assert len(names) == len(set(names))
    package = {name.removeprefix("aotriton/") for name in names if name.startswith("aotriton/")}
    modules = {
        f"{stop}/{path.relative_to(ROOT / stop)}"
        for stop in ("rules", "tune", "codegen", "tritonsrc")
        for path in (ROOT / stop).rglob("*")
        if path.suffix in (".py", ".j2")
    }
    assert modules | {"__init__.py", "installed.py", "py.typed"} <= package
    assert not [name for name in package if ".sqlite3" in name or "__pycache__" in name]
    assert 'wheel.install-dir = "aotriton"\n' in (ROOT / "pyproject.toml").read_text()
    for statement, status in (("import aotriton.rules.family", 0), ("import rules", 1), ("import tune", 1)):
        command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, 'site'); {statement}"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == status, statement


def signature(function: ast.FunctionDef) -> str:
    """The arguments as the binding's docstrings write them: ``(a, b=None, *, c=1.0)``, without types."""
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    function.args.kwarg = None
    return f"({ast.unparse(function.args)})"


def test_the_stub_is_the_bindings(prefix: Path) -> None:
    """Whatever the binding has, the stub that is installed has, with the same arguments and defaults; and nothing else
    but what the package itself has.
    """
    pyaotriton = pytest.importorskip("pyaotriton", reason="pyaotriton is not on PYTHONPATH: build the binding first")
    stub = ast.parse((prefix / "share" / "aotriton" / "python" / "aotriton" / "__init__.pyi").read_text())
    functions = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name for node in stub.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}
    assert {*functions, *classes} == {name for name in dir(pyaotriton) if not name.startswith("_")}
    of_operators = {
        f"{name}{tail}" for name in pyaotriton.operators() for tail in ("", "_supported", "_workspace_size")
    }
    for name, function in functions.items():
        doc = getattr(pyaotriton, name).__doc__
        if name in of_operators:
            assert re.sub("_(supported|workspace_size)$", "", name) + signature(function) in doc, name
        else:
            (own,) = ast.parse(f"def {doc.splitlines()[0]}: ...").body
            assert isinstance(own, ast.FunctionDef)
            assert signature(function) == signature(own), name
    imported = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {None} == {"autotune", "get_include"}
