"""The import table: which part may import what; and that nothing outside of a family knows the family.

Everything is found by reading every file: its syntax tree, or its text.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from aotriton.rules.arch import ARCHS
from aotriton.rules.family import IN_TREE

ROOT = Path(__file__).resolve().parent.parent

# What a folder's modules may import, besides the standard library. A family's own modules have their package in
# addition, and no other family's; its descriptions have the numbers that its device code shares with them.
TABLE = {
    "rules": {"aotriton.rules", "sqlite_utils"},
    "tritonsrc": {"triton"},
    "tune": {
        "aotriton.tune",
        "aotriton.rules",
        "aotriton.codegen.compile",
        "aotriton.codegen.program",
        "aotriton.codegen.shipped_images",
        "aotriton.codegen.store",
        "jinja2",
        "torch",
        "numpy",
        "scipy",
        "sklearn",
        "pyarrow",
        "aotriton._binding",
        "dask",
        "distributed",
        "rich",
        "triton",
    },
    "codegen": {
        "aotriton",
        "aotriton.codegen",
        "aotriton.model_calls",  # no family's folder has them, and codegen knows no family: they say what is called
        "aotriton.model_coverage",
        "aotriton.rules",
        "jinja2",
        "triton",
    },
    "torch": {"aotriton", "aotriton.torch", "torch"},
}
FAMILIES = ("flash", "gemm")

PACKAGE = ROOT / "aotriton"

# torch's operators are those of the families in the tree, and written by hand, as c.h is.
TORCH = (ROOT / "v2src" / "torch", PACKAGE / "torch", ROOT / "v2src" / "torch" / "release")


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


def family_of(path: Path) -> str:
    """The family in whose folder the file is; empty for what all families share."""
    return next((part for part in path.relative_to(ROOT).parts[1:-1] if part in FAMILIES), "")


def allowed(folder: str, family: str, module: str) -> bool:
    """Whether a module of ``family`` in ``folder`` may import ``module``."""
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names and folder != "tritonsrc":
        return True
    for other in FAMILIES:
        stops = [f"aotriton.{stop}.{other}" for stop in TABLE if stop != "torch"]  # a module for each family
        if any(module == stop or module.startswith(f"{stop}.") for stop in stops) and other != family:
            return False
    own = {f"aotriton.{folder}.{family}"} if family else set()
    own |= {f"aotriton.tritonsrc.{family}.lib.constants"} if family and folder == "rules" else set()
    names = [name for name in TABLE[folder] | own if module == name or module.startswith(f"{name}.")]
    return any(name != "aotriton" or module == name for name in names)


FILES = [
    pytest.param(folder, path, id=str(path.relative_to(ROOT)))
    for folder in TABLE
    for path in sorted((PACKAGE / folder).rglob("*.py"))
]


@pytest.mark.parametrize(("folder", "path"), FILES)
def test_imports_follow_the_table(folder: str, path: Path) -> None:
    """A module imports what the table allows its folder and its family, and nothing else."""
    for module, _ in imports(ast.parse(path.read_text())):
        assert allowed(folder, family_of(path), module), f"{path}: may not import {module}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "codegen").glob("*.py")), ids=lambda path: path.name)
def test_triton_is_imported_in_one_place(path: Path) -> None:
    """In codegen only compile.py imports Triton, and only inside functions, which run in worker processes."""
    places = [inside for module, inside in imports(ast.parse(path.read_text())) if module.partition(".")[0] == "triton"]
    assert all(places) if path.name == "compile.py" else not places


@pytest.mark.parametrize("path", sorted((PACKAGE / "tritonsrc").glob("*/lib/constants.py")), ids=family_of)
def test_descriptions_need_no_triton(path: Path) -> None:
    """The numbers that descriptions take from device code, and the packages around them, import nothing."""
    folders = [folder for folder in path.parents if folder.is_relative_to(PACKAGE / "tritonsrc")]
    for module in (path, *(folder / "__init__.py" for folder in folders)):
        assert not list(imports(ast.parse(module.read_text()))), module


def own_module(name: str, modules: Collection[str]) -> str:
    """The module of ours that an import names: itself, or what one of its names is imported from; or empty."""
    return name if name in modules else parent if (parent := name.rpartition(".")[0]) in modules else ""


def circles(graph: Mapping[str, Collection[str]]) -> list[set[str]]:
    """The groups of modules that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        reached[start] = found = set[str]()
        waiting = list(graph[start])
        while waiting:
            if (one := waiting.pop()) not in found:
                found.add(one)
                waiting += graph.get(one, ())
    return [{start, *(one for one in reached[start] if start in reached.get(one, ()))} for start in graph
            if start in reached[start]]  # fmt: skip


def test_no_imports_go_in_a_circle() -> None:
    """Neither at the top of modules nor inside of functions; only type checkers may."""
    paths = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    names = {path: name.removesuffix(".__init__") for path, name in paths.items()}
    graph: dict[str, set[str]] = {}
    for path, name in names.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        found = {own_module(module, {*names.values()}) for module, _ in imports(tree)}
        graph[name] = found - {"", name}
    assert len(graph) > 250
    assert not circles(graph)


def test_circles_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}, {"b", "c"}]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_tuning_starts_without_a_gpu() -> None:
    """Importing the tuner, and a family for it, imports neither torch nor the binding, Triton, numpy, scipy,
    scikit-learn or Dask, through whichever of our modules.
    """
    waiting, seen = ["aotriton.tune.tune_flash"], set()
    heavy = {"torch", "aotriton._binding", "triton", "numpy", "scipy", "sklearn", "pyarrow", "dask", "distributed"}
    heavy |= {"rich"}
    waiting += [f"aotriton.{stop}.{family}" for stop in ("rules", "tune") for family in IN_TREE]
    while waiting:
        name = waiting.pop()
        folder = ROOT.joinpath(*name.split("."))
        path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        if name in seen or not path.is_file():
            continue
        seen.add(name)
        for module, inside in imports(ast.parse(path.read_text())):
            if not inside:
                assert module.partition(".")[0] not in heavy, f"{path} imports {module}"
                waiting += [module, module.rpartition(".")[0]]
    assert {"aotriton.tune.cli.main", "aotriton.tune.workers.gpu_process", "aotriton.rules.kernel"} <= seen


def test_the_table_sees_violations() -> None:
    """The reader of imports tells `import a.b`, `from a import b` and an import inside a function apart; the table
    tells a family's own modules from another's.
    """
    tree = ast.parse("import a.b\nfrom c import d\ndef f():\n    from e.f import g\nif TYPE_CHECKING:\n    import h\n")
    assert sorted(imports(tree)) == [("a.b", False), ("c.d", False), ("e.f.g", True), ("h", True)]
    assert allowed("tritonsrc", "flash", "aotriton.tritonsrc.flash.lib.tile")
    assert allowed("tune", "flash", "aotriton.rules.flash.common")
    assert allowed("rules", "flash", "aotriton.tritonsrc.flash.lib.constants")
    for folder, family, module in (
        ("tritonsrc", "gemm", "aotriton.tritonsrc.flash.lib.tile"),
        ("tritonsrc", "flash", "os"),
        ("tune", "", "aotriton.rules.flash.common"),
        ("codegen", "", "aotriton.rules.flash"),
        ("rules", "", "aotriton.codegen.plan"),
        ("rules", "flash", "aotriton.tune.problem.accuracy"),
        ("tune", "", "aotriton.codegen.compile_pool"),
        ("rules", "", "numpy"),
        ("rules", "flash", "aotriton.tritonsrc.flash.lib.plan"),
        ("rules", "gemm", "aotriton.tritonsrc.flash.lib.constants"),
        ("codegen", "", "aotriton.tune.problem.candidates"),
    ):
        assert not allowed(folder, family, module), (folder, family, module)


# The rooms of tune/ by floor. A module imports from its own room and from floors below; rooms of one floor do not know
# each other.
TUNE_FLOORS = (
    {"tune", "tune_flash", "serve", "schedule"},  # the commands
    {"cli"},
    {"coordinator"},
    {"workers", "autotune", *FAMILIES},
    {"winners", "costmodel", "dataset"},
    {"measure", "search"},
    {"problem"},
)


def climbing(room: str, imported: Iterable[str]) -> list[str]:
    """The modules of ``imported`` that a module of a room of tune/ may not import: those of its floor and above."""
    floor = {name: number for number, names in enumerate(TUNE_FLOORS) for name in names}
    rooms = {name: name.split(".")[2] for name in imported if name.startswith("aotriton.tune.")}
    return [name for name, other in rooms.items() if other != room and floor[other] <= floor[room]]


@pytest.mark.parametrize("path", sorted((PACKAGE / "tune").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_from_floors_below(path: Path) -> None:
    """A module of tune/ imports from its own room and from rooms on floors below, also in functions and for types."""
    room = path.relative_to(PACKAGE / "tune").parts[0].removesuffix(".py")
    climbs = climbing(room, [module for module, _ in imports(ast.parse(path.read_text()))])
    assert not climbs, f"{path}: may not import {', '.join(climbs)} from {room}"


def test_every_room_has_a_floor_and_says_what_it_is() -> None:
    """Each module and folder of tune/ has one place in TUNE_FLOORS, and each folder a docstring of its own."""
    names = [path for path in (PACKAGE / "tune").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    rooms = [path for path in names if path.stem != "__init__"]
    assert sorted(path.stem for path in rooms) == sorted(name for floor in TUNE_FLOORS for name in floor)
    for folder in (path for path in rooms if path.is_dir()):
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_climbing_imports_are_seen() -> None:
    """An import from a floor above, or from another room of the same floor, is named; one from below is not."""
    above, beside = "aotriton.tune.coordinator.session.tune", "aotriton.tune.costmodel.fit.fit"
    below = ["aotriton.tune.measure.clock", "aotriton.tune.winners.decide", "aotriton.rules.kernel", "json"]
    assert climbing("winners", [above, beside, *below]) == [above, beside]


# What would tell a family from outside of it.
WORDS = re.compile(
    r"attn|attention|flash|softmax|logsumexp|seqlen|head.?dim|heads|causal|gemm|matmul|rms.?norm", re.IGNORECASE
)
SHARED = ("v2src", "cmake", "aotriton/__init__.py", "aotriton/installed.py", "aotriton/py.typed", "aotriton/rules",
          "aotriton/codegen", "aotriton/tune", "aotriton/torch", "CMakeLists.txt", "CMakePresets.json")  # fmt: skip

# Lines that may: a file, what the line has, and why.
EXCEPTIONS = {
    (
        "v2src/include/aotriton/c.h",
        "",
    ): "the C functions of the operators in the tree are written by hand, in one header",
    ("aotriton/tune/tune_flash.py", ""): "the command of one family, kept for those who type it",
    ("aotriton/tune/cli/main.py", 'default: str = "flash"'): "the family that is tuned where none is named",
    ("aotriton/rules/family.py", "IN_TREE = ("): "the list of the families in the tree",
    ("cmake/install.cmake", "aotriton-explain: what a bf16 forward"): "what the default build shows when it is done",
    ("cmake/install.cmake", "--op attn_fwd"): "the same",
    ("cmake/install.cmake", "--head-dim 128"): "the same",
}


def shared_files() -> list[Path]:
    """The files that belong to no family, of whatever kind but the database and what Python keeps."""
    own = {ROOT / "v2src" / "include" / "aotriton" / f"{family}.h" for family in FAMILIES}
    places = [ROOT / place for place in SHARED]
    found = [path for place in places for path in (place, *sorted(place.rglob("*"))) if path.is_file()]
    text = [path for path in found if path.suffix not in (".pyc", ".xz") and ".sqlite3" not in path.name]
    known = {TORCH[0] / "tensor.h", TORCH[0] / "tensor.cc", TORCH[1] / "transforms.py"}
    return [
        path for path in text if not family_of(path) and path not in own and (path in known or path.parent not in TORCH)
    ]


def test_nothing_shared_names_a_family() -> None:
    """No file outside of the families' folders, nor a public header that all share, speaks of attention, of a kernel or
    of what only one family has. Each exception is a line that is there.
    """
    assert set(IN_TREE) <= set(FAMILIES)
    told: list[str] = []
    used: set[tuple[str, str]] = set()
    files = shared_files()
    names = {str(path.relative_to(ROOT)) for path in files}
    assert {f"v2src/include/aotriton/{name}.h" for name in ("types", "explain", "runtime", "operator")} <= names
    assert {
        "v2src/launch/run.cc",
        "v2src/python/tensor.cc",
        "v2src/driver/cuda.cc",
        "aotriton/codegen/template/lut.cc.j2",
    } <= names
    assert {
        "cmake/family.cmake",
        "cmake/aotriton_v2.pc.in",
        "aotriton/tune/measure/launcher.py",
        "CMakeLists.txt",
    } <= names
    assert {"v2src/torch/tensor.cc", "aotriton/torch/transforms.py", "cmake/torch.cmake"} <= names
    assert not names & {"v2src/flash/attn_fwd.cc", "aotriton/rules/gemm/common.py", "aotriton/tune/flash/tuning.py"}
    for path in files:
        name = str(path.relative_to(ROOT))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not WORDS.search(line):
                continue
            excepted = {key for key in EXCEPTIONS if key[0] == name and key[1] in line}
            used |= excepted
            told += [] if excepted else [f"{name}:{number}: {line.strip()}"]
    assert not told, "\n".join(told)
    assert used == set(EXCEPTIONS)


# Code that names an arch, a vendor's name of one or a product, beside the records of rules/arch.py, and why.
NAMED_ARCHS = {
    ("aotriton/rules/database/older.py", "SELECT arch, CASE arch"): "databases of before there were products",
    ("aotriton/tune/flash/estimate.py", 'functional("gfx942"'): "what is published of an MI300X is compared with it",
}


def strings_of(tree: ast.Module) -> Iterator[ast.Constant]:
    """The texts of a module's code: no docstring."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node


def test_an_arch_is_one_record() -> None:
    """No module but rules/arch.py names an arch or a product of one in its code: what a new arch needs is its record,
    and values for its vendor where that is new. Kernels ask for capabilities.
    """
    names = {name for one in ARCHS for name in (one.arch, one.product)}
    told: list[str] = []
    used: set[tuple[str, str]] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name == "aotriton/rules/arch.py":
            continue
        text = path.read_text()
        for node in strings_of(ast.parse(text)):
            assert isinstance(node.value, str)
            if not any(one in node.value for one in names):
                continue
            line = text.splitlines()[node.lineno - 1]
            excepted = {key for key in NAMED_ARCHS if key[0] == name and (key[1] in line or key[1] in node.value)}
            used |= excepted
            told += [] if excepted else [f"{name}:{node.lineno}: {line.strip()}"]
    assert not told, "\n".join(told)
    assert used == set(NAMED_ARCHS)
    for family in IN_TREE:
        for path in sorted((PACKAGE / "rules" / family).glob("*.py")):
            assert "archs=" not in path.read_text(), f"{path}: a kernel needs capabilities"


def test_the_search_sees_violations() -> None:
    """The words are found in whatever spelling, inside of names too."""
    for text in (
        "attn_fwd",
        "Attention",
        "num_heads_q",
        "--head-dim",
        "BLOCK_HEADDIM",
        "max_seqlen_q",
        "GemmParams",
        "CAUSAL",
        "rms_norm",
        "RmsNorm",
        "softmax",
    ):
        assert WORDS.search(text), text
    for text in ("ahead of time", "header", "the head of the list", "overhead", "terms", "normal"):
        assert not WORDS.search(text), text


# The rooms of the runtime, by floor: a file includes files of its own room and of rooms on lower floors.
FLOORS = (
    {"base", "program"},  # errors and locks; what operators, kernels and tables are, as data
    {"driver", "call"},  # the vendors' drivers; one call: its tensors, checks, hints and place
    {"dispatch"},  # which backend and which images serve a call, and why
    {"launch"},  # devices, loading, arguments, the memo, and what can be done with a call
    {"api", "explain", "python", "torch", *FAMILIES},  # the faces: C, the program, Python, PyTorch; operators
)
GENERATED = re.compile(r"archs\.h|program_limits\.h|cost_formulas\.h|\w+\.(operator|shared)\.h")


def climbs(room: str, included: str) -> str:
    """What is wrong with a file of ``room`` that includes ``included``; empty where nothing is."""
    floors = {name: floor for floor, names in enumerate(FLOORS) for name in names}
    other = included.partition("/")[0]
    if GENERATED.fullmatch(included) or other == room:
        return ""
    if other not in floors:
        return f"{included} is in no room"
    return "" if floors[other] < floors[room] else f"{included} is not on a lower floor than {room}"


RUNTIME = [path for path in sorted((ROOT / "v2src").rglob("*.*")) if path.suffix in (".h", ".cc")]
RUNTIME = [path for path in RUNTIME if path.relative_to(ROOT).parts[1] != "include"]


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_include_climbs(path: Path) -> None:
    """A file of the runtime includes its own room and rooms below it, by room and name."""
    room = path.relative_to(ROOT / "v2src").parts[0]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := re.match(r'#include "([^"]+)"', line):
            wrong = climbs(room, found[1])
            assert not wrong, f"{path}:{number}: {wrong}"


def test_the_floors_see_a_climb() -> None:
    """An include that climbs, one beside its own room and one of no room are told apart from those that go down."""
    assert not climbs("launch", "dispatch/select.h")
    assert not climbs("flash", "flash/checks.h")
    assert not climbs("program", "cost_formulas.h")
    assert climbs("call", "dispatch/select.h") == "dispatch/select.h is not on a lower floor than call"
    assert climbs("call", "driver/driver.h") == "driver/driver.h is not on a lower floor than call"
    assert climbs("api", "error.h") == "error.h is in no room"
    assert {path.relative_to(ROOT / "v2src").parts[0] for path in RUNTIME} == set().union(*FLOORS)
