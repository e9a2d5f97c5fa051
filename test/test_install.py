"""The installed tree from outside: CMake package, pkg-config file, headers, aotriton-explain; wherever it is moved to.

Run by ctest, which installs first and says where.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aotriton.rules import flash

CONSUMER = Path(__file__).resolve().parent / "consumer"
WARNINGS = ("-std=c++20", "-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the installed tree: nothing in it may depend on where it was installed."""
    installed = os.environ.get("AOTRITON_INSTALL")
    if not installed:
        if "DASHBOARD_TEST_FROM_CTEST" in os.environ:
            pytest.fail("ctest does not set AOTRITON_INSTALL")
        pytest.skip("AOTRITON_INSTALL is not set: run this through ctest")
    return Path(shutil.copytree(installed, tmp_path_factory.mktemp("moved") / "aotriton"))


def run(*command: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env)


def must(*command: str | Path) -> str:
    """The standard output of a command that succeeds."""
    done = run(*command)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def has_gpu() -> bool:
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def compiler() -> str:
    return os.environ.get("CXX", "c++")


def test_a_cmake_project_finds_and_links_the_library(prefix: Path, tmp_path: Path) -> None:
    """A project with find_package(aotriton) builds and runs: right with a GPU, no_driver without."""
    cmake = os.environ.get("CMAKE_COMMAND", "cmake")
    must(cmake, "-G", "Ninja", "-S", CONSUMER, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}",
         f"-DCMAKE_CXX_COMPILER={compiler()}")  # fmt: skip
    must(cmake, "--build", tmp_path)
    done = run(tmp_path / "consumer")
    if has_gpu():
        assert done.returncode == 0, done.stderr
        assert "the README's example is right" in done.stdout
    else:
        assert done.returncode == 3, done.stderr
        assert "no_driver: " in done.stderr
        assert "libcuda.so.1" in done.stderr


def pkg_config_flags(prefix: Path) -> list[str]:
    """Compiler and linker flags of the .pc file, worked out as pkg-config does."""
    (file,) = prefix.rglob("pkgconfig/aotriton_v2.pc")
    variables, fields = {"pcfiledir": str(file.parent)}, {}
    for line in file.read_text().splitlines():
        for name, value in variables.items():
            line = line.replace(f"${{{name}}}", value)
        if ":" in line and line.split(":")[0].isidentifier():
            fields[line.split(":")[0]] = line.split(":", 1)[1]
        elif "=" in line:
            variables[line.split("=")[0]] = line.split("=", 1)[1]
    assert "${" not in "".join(fields.values()), fields
    return f"{fields['Cflags']} {fields['Libs']}".split()


def test_the_pkg_config_file_gives_flags_that_build(prefix: Path, tmp_path: Path) -> None:
    """The README's example compiles and links with the flags of aotriton_v2.pc alone, as pkg-config reads them."""
    flags = pkg_config_flags(prefix)
    main = tmp_path / "main.cc"
    main.write_text(
        "bool attention(void*, void*, void*, void*, void*);\nint main() { return attention(0, 0, 0, 0, 0); }\n"
    )
    program = tmp_path / "example"
    must(compiler(), *WARNINGS, main, CONSUMER / "readme_example.cc", *flags, "-o", program)
    done = run(program)
    assert done.returncode == 0, "null pointers are refused, so attention() is false"
    assert "null_pointer: attn_fwd: q " in done.stderr
    if tool := shutil.which("pkg-config"):
        (folder,) = prefix.rglob("pkgconfig")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
        answer = run(tool, "--cflags", "--libs", "aotriton_v2", env=environment)
        assert answer.returncode == 0, answer.stderr
        libraries = {flag for flag in flags if flag.startswith("-l")}
        assert {flag for flag in answer.stdout.split() if flag.startswith("-l")} == libraries


def test_each_public_header_stands_alone(prefix: Path) -> None:
    """Every installed header compiles by itself, without warnings, and includes no header that is not installed."""
    headers = sorted((prefix / "include" / "aotriton").glob("*.h"))
    assert {header.name for header in headers} >= {"flash.h", "types.h", "runtime.h", "explain.h"}
    for header in headers:
        include = ("-I", prefix / "include", "-include", header)
        must(compiler(), *WARNINGS, "-pedantic", "-fsyntax-only", *include, "-x", "c++", os.devnull)


EXAMPLE = (
    "--dtype",
    "bf16",
    "--head-dim",
    "64",
    "--seqlen-q",
    "1024",
    "--seqlen-k",
    "1024",
    "--batch",
    "2",
    "--heads",
    "16",
)


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
@pytest.mark.parametrize("op", ["attn_fwd", "attn_bwd"])
def test_explain_answers_in_text_and_json(prefix: Path, arch: str, op: str) -> None:
    """aotriton-explain names functional, godel number, bin, image, psels, copts and provenance, alike in both forms."""
    command = (prefix / "bin" / "aotriton-explain", "--op", op, "--arch", arch, *EXAMPLE, "--causal")
    text, kernels = must(*command), json.loads(must(*command, "--json"))
    # Which backend a call gets is the database's to say.
    backends = next(operator.backends for operator in flash.OPERATORS if operator.name == op)
    assert [kernel["kernel"] for kernel in kernels] in [[k.name for k in backend.kernels] for backend in backends]
    for kernel in kernels:
        assert kernel["arch"] == arch
        assert kernel["provenance"] in ("measured", "borrowed", "predicted", "imported")
        for name in ("functional", "image", "psels", "copts", "provenance"):
            assert kernel[name], name
            assert kernel[name] in text, name
        assert f"godel number {kernel['godel_number']}" in text
        assert kernel["keys"][0]["name"] == "max_seqlen_q"
        assert kernel["keys"][0]["value"] == 1024
        assert kernel["keys"][0]["representative"] >= 1024
        for runner_up in kernel["runners_up"]:
            assert runner_up["config"] in text
    if op == "attn_fwd":
        assert "CAUSAL=True" in kernels[0]["functional"]


def test_explain_refuses_an_unknown_arch(prefix: Path) -> None:
    """An arch that the build lacks is an error that lists those it has."""
    done = run(prefix / "bin" / "aotriton-explain", "--op", "attn_fwd", "--arch", "sm_42", *EXAMPLE)
    assert done.returncode == 1
    assert "unknown_arch: " in done.stderr
    assert "sm_42" in done.stderr
    assert "sm_90" in done.stderr
