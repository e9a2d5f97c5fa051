"""What the project says of itself, what its packages hold, and what a type checker is told of the binding."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import aotriton

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_written_once() -> None:
    """In the package; the library that was built has the same, and so have the macros of c.h."""
    binding = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
    assert binding.version() == aotriton.__version__
    header = (ROOT / "v2src" / "include" / "aotriton" / "c.h").read_text()
    numbers = re.findall(r"^#define AOTRITON_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.MULTILINE)
    assert ".".join(numbers) == aotriton.__version__, "those of c.h, without which cmake does not go on"
    for file in ("CMakeLists.txt", "pyproject.toml"):
        assert not re.search(r"\b" + re.escape(aotriton.__version__) + r"\b", (ROOT / file).read_text()), file


def test_the_licence_is_the_one_that_the_metadata_names() -> None:
    """pyproject.toml's SPDX expression and the text of LICENSE agree."""
    project = (ROOT / "pyproject.toml").read_text()
    assert '\nlicense = "MIT"\n' in project
    assert '\nlicense-files = ["LICENSE"]\n' in project
    assert (ROOT / "LICENSE").read_text().startswith("MIT License\n\nCopyright (c) ")


def built(what: str, folder: Path, settings: str = "{}") -> Path:
    """The sdist or wheel that the build backend makes."""
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
    code = f"import scikit_build_core.build as b; print(b.build_{what}({str(folder)!r}, {settings}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def test_the_sdist_has_each_file_once(tmp_path: Path) -> None:
    """And what it takes to build from it: the links to the package's folders stay links, and lead to what is there."""
    with tarfile.open(built("sdist", tmp_path)) as archive:
        # Python 3.10.12 and 3.11.4 have filters, and 3.14 has this one without being told.
        options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **options)
        files = [one for one in archive.getmembers() if one.isfile() and one.size > 200]
        digests: Counter[str] = Counter()
        for one in files:
            content = archive.extractfile(one)
            assert content
            digests[hashlib.sha256(content.read()).hexdigest()] += 1
    assert len(files) > 250
    assert max(digests.values()) == 1
    (tree,) = (one for one in tmp_path.glob("aotriton_v2-*") if one.is_dir())
    for name in ("rules", "tune", "codegen", "tritonsrc"):
        assert (tree / name).is_symlink()
        assert (tree / name).resolve() == tree / "aotriton" / name
        assert (tree / name / "__init__.py").is_file()
    for name in ("LICENSE", "README.md", "CMakeLists.txt", "rules/tuning_database.sqlite3", "v2src/launch/run.cc"):
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
        str(path.relative_to(ROOT / "aotriton"))
        for path in (ROOT / "aotriton").rglob("*")
        if path.suffix in (".py", ".j2")
    }
    assert modules | {"__init__.py", "installed.py", "py.typed"} <= package
    assert not [name for name in package if ".sqlite3" in name or "__pycache__" in name]
    assert 'wheel.install-dir = "aotriton"\n' in (ROOT / "pyproject.toml").read_text()
    for statement, status in (("import aotriton.rules.family", 0), ("import rules", 1), ("import tune", 1)):
        command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, 'site'); {statement}"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == status, statement


def test_workflows_run_what_is_run_here() -> None:
    """The forge's workflows call the scripts of .ci, which are there and executable."""
    called = set()
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        called |= set(re.findall(r"run: (\.ci/\w+)", workflow.read_text()))
    assert called == {".ci/run", ".ci/wheel", ".ci/docs"}
    for script in called:
        assert os.access(ROOT / script, os.X_OK), script


def test_a_registry_shows_a_readme_whose_links_lead_somewhere(tmp_path: Path) -> None:
    """In the wheel's metadata: no link or picture that is relative to a file which is not there, code as it is, and
    each file that is named in a link's stead is in the sdist.
    """
    with zipfile.ZipFile(built("wheel", tmp_path, "{'wheel.cmake': 'false'}")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = wheel.read(name).decode()
    head, _, readme = metadata.partition("\n\n")
    assert "\nDescription-Content-Type: text/markdown\n" in f"{head}\n"
    assert readme.startswith("# aotriton_v2\n")
    fence = r"^```.*?^```$"
    own = (ROOT / "README.md").read_text()
    assert re.findall(fence, readme, re.M | re.S) == re.findall(fence, own, re.M | re.S)
    prose = re.sub(fence, "", readme, flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)]*)\)", prose)
    assert targets, "those of other projects"
    assert all(target.startswith("https://") for target in targets), targets
    assert "![" not in prose
    linked = set(re.findall(r"\]\(((?!https?:|bench/results/)[^)#]+)", re.sub(fence, "", own, flags=re.M | re.S)))
    assert len(linked) > 10
    with tarfile.open(built("sdist", tmp_path)) as archive:
        there = {one.name.partition("/")[2] for one in archive.getmembers()}
    for target in linked:
        assert f"`{target}`" in prose, target
        assert target.rstrip("/") in there or any(one.startswith(target) for one in there), target


def test_dir_lists_what_the_package_has() -> None:
    """The library's names, what else the package brings, and its modules that are imported; nothing that it imports."""
    pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
    statement = "import json, aotriton.rules.family; from aotriton import _binding; aotriton.explain"
    printed = "json.dumps([dir(aotriton), dir(_binding)])"
    command = [sys.executable, "-c", f"{statement}; print({printed})"]
    listed, library = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    own = {"autotune", "get_include", "hints", "rules", "service"}
    assert {name for name in listed if not name.startswith("__")} == own | {
        name for name in library if not name.startswith("_")
    }
    assert "__version__" in listed


def test_a_decorated_kernel_has_a_type() -> None:
    """autotune says what it returns: a Tuned of a kernel, and without one what makes a Tuned of any. Any would leave
    a strict user with an untyped decorator.
    """
    module = ast.parse((ROOT / "tune" / "autotune" / "autotune.py").read_text())
    forms = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "autotune"]
    returned = {}
    for form in forms[:-1]:
        assert [ast.unparse(one) for one in form.decorator_list] == ["overload"]
        kernel = form.args.args[0].annotation
        assert kernel is not None
        assert form.returns is not None
        returned[ast.unparse(kernel)] = ast.unparse(form.returns)
    assert returned == {"None": "Callable[[Any], Tuned]", "object": "Tuned"}


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
    binding = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
    stub = ast.parse((prefix / "share" / "aotriton" / "python" / "aotriton" / "__init__.pyi").read_text())
    functions = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name for node in stub.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}
    assert {*functions, *classes} == {name for name in dir(binding) if not name.startswith("_")}
    tails = ("", "_supported", "_workspace_size", "_hint_outcomes")
    of_operators = {f"{name}{tail}" for name in binding.operators() for tail in tails}
    for name, function in functions.items():
        doc = getattr(binding, name).__doc__
        if name in of_operators:
            assert re.sub("_(supported|workspace_size|hint_outcomes)$", "", name) + signature(function) in doc, name
        else:
            (own,) = ast.parse(f"def {doc.splitlines()[0]}: ...").body
            assert isinstance(own, ast.FunctionDef)
            assert signature(function) == signature(own), name
    imported = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {None} == {"autotune", "get_include", "hints", "service"}


def test_without_a_binding_it_says_which_there_are(tmp_path: Path) -> None:
    """The package and its modules are imported without one; the first function that is asked for is an ImportError."""
    (tmp_path / "aotriton").mkdir()
    (tmp_path / "aotriton" / "_binding.cpython-27.so").touch()
    code = "import aotriton; from aotriton import rules; assert not hasattr(aotriton, '__wrapped__'); aotriton.gemm"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (
        f"ImportError: aotriton has no binding for Python {here} here: there is _binding.cpython-27.so in"
        in done.stderr
    )


PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(aotriton CONFIG REQUIRED)
add_executable(user main.cc)
target_link_libraries(user PRIVATE aotriton::aotriton_v2)
"""
C_MAIN = "#include <aotriton/c.h>\nint main(void) { return aotriton_version()[0] == '0' ? 0 : 1; }\n"
MAIN = "#include <aotriton/runtime.h>\nint main() { return aotriton::v2::version()[0] == '0' ? 0 : 1; }\n"


def test_programs_are_built_with_what_aotriton_config_prints(prefix: Path, tmp_path: Path) -> None:
    """By a compiler's line, in C++ and C, and by CMake, in a tree that is laid out as a wheel's: the installed one
    inside of the package. Where there is none, it says so.
    """
    package = Path(shutil.copytree(prefix, tmp_path / "site" / "aotriton"))

    def config(option: str, site: Path = package.parent) -> subprocess.CompletedProcess[str]:
        code = (
            f"import sys; from aotriton.installed import config; sys.argv[1:] = {option.split()!r}; sys.exit(config())"
        )
        environment = os.environ | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
        )

    for file in (ROOT / "aotriton").glob("*.py"):
        shutil.copy(file, package)
    (tmp_path / "main.cc").write_text(MAIN)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    assert config("--version").stdout == f"{aotriton.__version__}\n"
    assert config("--includedir").stdout == f"{package / 'include'}\n"
    compiler, cmake = os.environ.get("CXX", "c++"), os.environ.get("CMAKE_COMMAND", "cmake")
    flags = [*config("--cflags").stdout.split(), "main.cc", *config("--libs").stdout.split()]
    folder = f"-Daotriton_DIR={config('--cmakedir').stdout.strip()}"
    for command in (
        [compiler, "-std=c++17", *flags, "-o", "program"],
        ["./program"],
        [cmake, "-G", "Ninja", "-S", ".", "-B", "build", folder, f"-DCMAKE_CXX_COMPILER={compiler}"],
        [cmake, "--build", "build"],
        ["build/user"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    (tmp_path / "main.c").write_text(C_MAIN)
    for kind in ("", "--static"):
        libs = config(f"--libs {kind}".strip()).stdout.split()
        command = [os.environ.get("CC", "cc"), "-std=c99", *config("--cflags").stdout.split(), "main.c", *libs]
        done = subprocess.run([*command, "-o", "c_program"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert subprocess.run(["./c_program"], cwd=tmp_path).returncode == 0
    shared = config("--libs --shared")
    assert (shared.returncode, shared.stdout) == (1, "")
    assert f"{package / 'libaotriton_runtime.so'} is missing" in shared.stderr, "that only a wheel has"
    missing = config("--libs", ROOT)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"aotriton-config: {ROOT / 'aotriton' / 'include'} is missing" in missing.stderr
    assert config("--help").returncode == 0
