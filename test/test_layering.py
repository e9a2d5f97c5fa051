"""The import table: which part may import what. Everything else is found by reading every file's syntax tree."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

# What a folder's modules may import, besides the standard library.
TABLE = {
    "rules": {"aotriton.rules", "sqlite_utils"},
    "tritonsrc": {"aotriton.tritonsrc", "triton"},
    "tune": {
        "aotriton.tune",
        "aotriton.rules",
        "aotriton.tritonsrc",
        "aotriton.codegen.compile",
        "torch",
        "pyaotriton",
    },
    "codegen": {"aotriton", "aotriton.codegen", "aotriton.rules", "jinja2", "triton"},
}


def imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Each imported module, as "a.b", and whether it is put off: in a function, or only there for a type checker."""
    inner = {child for node in ast.walk(tree) if put_off(node) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in inner) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((f"{node.module}.{alias.name}", node in inner) for alias in node.names)


def put_off(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")


FILES = [
    pytest.param(folder, path, id=f"{folder}/{path.name}")
    for folder in TABLE
    for path in sorted((ROOT / folder).rglob("*.py"))
]


@pytest.mark.parametrize(("folder", "path"), FILES)
def test_imports_follow_the_table(folder: str, path: Path) -> None:
    """A module imports what the table allows its folder, and nothing else."""
    for module, _ in imports(ast.parse(path.read_text())):
        package = module.partition(".")[0]
        if package in sys.stdlib_module_names and folder != "tritonsrc":
            continue
        allowed = [name for name in TABLE[folder] if module == name or module.startswith(f"{name}.")]
        assert any(name != "aotriton" or module == name for name in allowed), (
            f"{path}: {folder} may not import {module}"
        )


@pytest.mark.parametrize("path", sorted((ROOT / "codegen").glob("*.py")), ids=lambda path: path.name)
def test_triton_is_imported_in_one_place(path: Path) -> None:
    """In codegen only compile.py imports Triton, and only inside functions, which run in worker processes."""
    places = [inside for module, inside in imports(ast.parse(path.read_text())) if module.partition(".")[0] == "triton"]
    assert all(places) if path.name == "compile.py" else not places


def test_tuning_starts_without_a_gpu() -> None:
    """Importing tune_flash.py imports neither torch nor the binding nor Triton, through whichever of our modules."""
    waiting, seen = ["aotriton.tune.tune_flash"], set()
    while waiting:
        name = waiting.pop()
        path = ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")
        if name in seen or not path.is_file():
            continue
        seen.add(name)
        for module, inside in imports(ast.parse(path.read_text())):
            if not inside:
                assert module.partition(".")[0] not in ("torch", "pyaotriton", "triton"), f"{path} imports {module}"
                waiting += [module, module.rpartition(".")[0]]
    assert len(seen) > 1


def test_the_table_sees_violations() -> None:
    """The reader of imports tells `import a.b`, `from a import b` and an import inside a function apart."""
    tree = ast.parse("import a.b\nfrom c import d\ndef f():\n    from e.f import g\nif TYPE_CHECKING:\n    import h\n")
    assert sorted(imports(tree)) == [("a.b", False), ("c.d", False), ("e.f.g", True), ("h", True)]
