"""The wheel as its users meet it: run by the Python that it was installed into, by .ci/wheel.

``python check.py MYPY``: from imports to programs that are built against it; what does not hold ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distribution, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
CALL = {"arch": "sm_90", "dtype": "bf16", "batch": 2, "heads": 16, "seqlen": 1024, "head_dim": 64}

# A user's program, for a type checker.
PROGRAM = """
import aotriton

class Tensor:
    def data_ptr(self) -> int:
        return 0

def forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> str:
    if not aotriton.attn_fwd_supported(q, k, v, out, causal=True):
        return "refused"
    aotriton.attn_fwd(q, k, v, out, sm_scale=0.125, causal=True)
    kernels = aotriton.explain("attn_fwd", arch="sm_90", dtype="bf16", batch=1, heads=1, seqlen=64, head_dim=64)
    return str(kernels[0]["kernel"]) + aotriton.get_include() + aotriton.__version__
"""
WRONG = "import aotriton\naotriton.attn_fwd(1, 2, 3)\naotriton.attn_forward()\n"
MAIN = "bool attention(void*, void*, void*, void*, void*);\nint main() { return attention(0, 0, 0, 0, 0); }\n"
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(aotriton CONFIG REQUIRED COMPONENTS sm_90 gfx942)
add_executable(user main.cc readme_example.cc)
target_link_libraries(user PRIVATE aotriton::aotriton_v2)
"""


def told(*command: str | Path, status: int = 0) -> str:
    """What a command prints, wherever."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def python(code: str, status: int = 0) -> str:
    return told(sys.executable, "-c", code, status=status)


def seconds(code: str) -> float:
    started = time.perf_counter()
    python(code)
    return time.perf_counter() - started


def one_name_is_importable() -> None:
    files = distribution("aotriton-v2").files or []
    top = {file.parts[0] for file in files if file.parts[0] != ".."}
    assert top == {"aotriton", f"aotriton_v2-{version('aotriton-v2')}.dist-info"}, top
    for name in ("rules", "tune", "codegen", "tritonsrc", "pyaotriton", "_binding"):
        assert "ModuleNotFoundError" in python(f"import {name}", status=1), name


def importing_is_light() -> None:
    """Below 0.2 s with the library's tables, and without what only the tuner needs."""
    python("import aotriton")  # compiles its modules
    heavy = ["triton", "torch", "sqlite3", "sqlite_utils", "numpy", "jinja2"]
    code = f"import sys, aotriton; print(aotriton.operators()); assert not set({heavy}) & set(sys.modules), sys.modules"
    bare, whole = (min(seconds(one) for _ in range(5)) for one in ("pass", code))
    print(f"import and operators(): {(whole - bare) * 1e3:.0f} ms, beside {bare * 1e3:.0f} ms of Python's own")
    assert whole - bare < 0.2


def a_call_is_explained() -> None:
    import aotriton

    assert aotriton.__version__ == aotriton.version() == version("aotriton-v2")
    (choice,) = aotriton.explain("attn_fwd", **CALL)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in CALL.items()]
    text = told(BIN / "aotriton-explain", "--op", "attn_fwd", *options)
    assert text.startswith(choice["kernel"])
    assert choice["image"] in text
    print(text.splitlines()[0])


def the_tuner_says_what_is_missing() -> None:
    text = told(BIN / "aotriton-tune", "--dry-run", status=2)
    assert text == "aotriton-tune: sqlite_utils is missing: pip install 'aotriton-v2[tune]'\n", text


def types_are_known(mypy: str, folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM)
    (folder / "wrong.py").write_text(WRONG)
    check = (mypy, "--strict", "--python-executable", sys.executable, f"--cache-dir={folder / 'cache'}")
    told(*check, folder / "program.py")
    wrong = told(*check, folder / "wrong.py", status=1)
    assert 'Missing positional argument "out" in call to "attn_fwd"' in wrong, wrong
    assert 'Module has no attribute "attn_forward"' in wrong, wrong


def programs_are_built(folder: Path) -> None:
    """By the flags that aotriton-config prints, in C++ and, with the archive and the shared library, in C; and by
    CMake. Those in C++ refuse null pointers, as they should.
    """
    main, example = folder / "main.cc", folder / "readme_example.cc"
    main.write_text(MAIN)
    example.write_bytes((ROOT / "test" / "package" / "consumer" / example.name).read_bytes())
    (folder / "CMakeLists.txt").write_text(PROJECT)
    config = BIN / "aotriton-config"
    cflags, libs = (told(config, option).split() for option in ("--cflags", "--libs"))
    compiler = os.environ.get("CXX", "c++")
    told(compiler, "-std=c++17", *cflags, main, example, *libs, "-o", folder / "by_flags")
    page = (ROOT / "docs" / "c.md").read_text()
    c_source = folder / "attention.c"
    c_source.write_text(page.partition("\n```c\n")[2].partition("\n```\n")[0] + "\n")
    for kind in ("--static", "--shared"):
        c_libs = told(config, "--libs", kind).split()
        told(os.environ.get("CC", "cc"), "-std=c99", *cflags, c_source, *c_libs, "-o", folder / "c_by_flags")
        assert "of backend hopper, " in told(folder / "c_by_flags"), kind
        assert kind == "--static" or "libaotriton_runtime.so" in told("readelf", "-d", folder / "c_by_flags")
    cmakedir = told(config, "--cmakedir").strip()
    told("cmake", "-S", folder, "-B", folder / "build", f"-Daotriton_DIR={cmakedir}")
    told("cmake", "--build", folder / "build")
    for program in (folder / "by_flags", folder / "build" / "user"):
        assert "null_pointer: attn_fwd: q " in told(program), program


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # away from a source tree
        one_name_is_importable()
        importing_is_light()
        a_call_is_explained()
        the_tuner_says_what_is_missing()
        types_are_known(sys.argv[1], Path(folder))
        programs_are_built(Path(folder))
        assert not list(Path(folder).glob("*.sqlite3"))
    print(f"the wheel is right on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
