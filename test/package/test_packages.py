"""The library as distributions and integrators package it: shared, in folders of their own, under another name.

All of it on one more build, without kernels, whose folder ctest names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ctest_environment import from_ctest
from test_install import pkg_config_flags

from aotriton import __version__

ROOT = Path(__file__).resolve().parents[2]
SUFFIX = "_own"
CMAKE = os.environ.get("CMAKE_COMMAND", "cmake")
CC, CXX = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")


def must(*command: str | Path, **environment: str) -> str:
    """The standard output of a command that succeeds."""
    text = [str(part) for part in command]
    done = subprocess.run(text, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, f"{' '.join(text)}\n{done.stdout}{done.stderr}"
    return done.stdout


def installed(prefix: Path, *folders: str) -> Path:
    """The shared library with a suffix, without kernels, installed under ``prefix`` with these folders."""
    build = Path(from_ctest("AOTRITON_PACKAGED"))
    must(CMAKE, "-G", "Ninja", "-S", ROOT, "-B", build, f"-DCMAKE_CXX_COMPILER={CXX}", "-DCMAKE_BUILD_TYPE=Debug",
         "-DCMAKE_CXX_FLAGS_DEBUG=-O1", "-DAOTRITON_COVERAGE=none", f"-DAOTRITON_PYTHON={sys.executable}",
         "-DBUILD_SHARED_LIBS=ON", f"-DAOTRITON_NAME_SUFFIX={SUFFIX}", f"-DCMAKE_INSTALL_PREFIX={prefix}",
         *(f"-DCMAKE_INSTALL_{folder}" for folder in folders))  # fmt: skip
    must(CMAKE, "--build", build, "--target", "aotriton_v2")
    must(CMAKE, "--install", build, "--component", "library")
    return prefix


@pytest.fixture(scope="module")
def multiarch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed as Debian does, and moved afterwards: nothing in it may depend on where it was installed."""
    folder = tmp_path_factory.mktemp("multiarch")
    prefix = installed(folder / "before", "LIBDIR=lib/x86_64-linux-gnu", "INCLUDEDIR=include/own")
    return prefix.rename(folder / "after")


def library(prefix: Path) -> Path:
    return prefix / "lib" / "x86_64-linux-gnu" / f"libaotriton{SUFFIX}_v2.so"


def test_the_shared_library_exports_the_c_functions_alone(multiarch: Path) -> None:
    """What c.h declares, under the suffixed names, and not a symbol more."""
    header = (ROOT / "v2src" / "include" / "aotriton" / "c.h").read_text()
    declared = re.findall(r"^AOTRITON_API [^(;]*?\b(aotriton_\w+)\(", header, re.MULTILINE)
    assert len(declared) == header.count("\nAOTRITON_API ") > 20
    symbols = must("nm", "-D", "--defined-only", "--format=posix", library(multiarch)).splitlines()
    renamed = {name.replace("aotriton", f"aotriton{SUFFIX}") for name in declared}
    assert {line.split()[0] for line in symbols} == renamed


def test_the_soname_has_the_version_of_the_interface(multiarch: Path) -> None:
    """major.minor, as before 1.0 a minor version may change the interface; the file itself has the whole version."""
    version = re.findall(r'^__version__ = "(.*)"', (ROOT / "aotriton" / "__init__.py").read_text(), re.MULTILINE)[0]
    name = library(multiarch)
    soname = f"{name.name}.{version.rpartition('.')[0]}"
    assert f"soname: [{soname}]" in must("readelf", "-d", name)
    assert name.resolve().name == f"{name.name}.{version}"
    assert name.with_name(soname).resolve() == name.resolve()


PROGRAM = """
#include <aotriton/flash.h>
#include <aotriton_own/flash.h>
#include <aotriton_own/gemm.h>
#include <aotriton_own/runtime.h>
#include <cstdio>
int main() {
  aotriton::v2::attn_fwd_params theirs;
  if (aotriton::v2::attn_fwd(theirs, aotriton::v2::Stream{nullptr}) != 4711) return 1;
  aotriton_own::v2::attn_fwd_params ours;
  if (aotriton_own::v2::attn_fwd(ours, {}) == aotriton_own::v2::Error::success) return 2;
  static_assert(AOTRITON_OWN_NULL_POINTER == 1 && AOTRITON_NULL_POINTER == 4712, "each has its own macros");
  std::printf("%s %s\\n", aotriton_own::v2::version(), aotriton_own::v2::last_error_message());
}
"""

# As much of ROCm's AOTriton as has our names: folder and file of headers, namespace, types, macros, library.
THEIR_HEADER = """
#ifndef AOTRITON_FLASH_H
#define AOTRITON_FLASH_H
#define AOTRITON_C_H
#define AOTRITON_API __attribute__((visibility("default")))
#define AOTRITON_NULL_POINTER 4712
namespace aotriton::v2 {
struct Stream { void* stream; };
struct attn_fwd_params { int version = 3; };
AOTRITON_API int attn_fwd(attn_fwd_params params, Stream stream);
AOTRITON_API const char* version();
}
#endif
"""
THEIR_SOURCE = """
#include <aotriton/flash.h>
extern "C" AOTRITON_API int aotriton_attn_fwd() { return 4713; }
namespace aotriton::v2 {
int attn_fwd(attn_fwd_params params, Stream) { return aotriton_attn_fwd() - 5 + params.version; }
const char* version() { return "theirs"; }
}
"""


def test_it_lives_beside_rocms_aotriton(multiarch: Path, tmp_path: Path) -> None:
    """One program includes and links a stand-in for ROCm's library, which has our names, and ours with a suffix; calls
    of each go to its own.
    """
    theirs = tmp_path / "theirs"
    (theirs / "include" / "aotriton").mkdir(parents=True)
    (theirs / "include" / "aotriton" / "flash.h").write_text(THEIR_HEADER)
    (tmp_path / "theirs.cc").write_text(THEIR_SOURCE)
    (tmp_path / "main.cc").write_text(PROGRAM)
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", theirs / "include")
    must(CXX, *flags, "-shared", "-fPIC", tmp_path / "theirs.cc", "-o", theirs / "libaotriton_v2.so")
    must(CXX, *flags, tmp_path / "main.cc", "-I", multiarch / "include" / "own", theirs / "libaotriton_v2.so",
         library(multiarch), "-o", tmp_path / "program")  # fmt: skip
    paths = f"{theirs}:{library(multiarch).parent}"
    assert must(tmp_path / "program", LD_LIBRARY_PATH=paths).startswith(f"{__version__} attn_fwd: q ")


USER = """
#include <aotriton_own/runtime.h>
int main() { return aotriton_own::v2::version()[0] == '0' ? 0 : 1; }
"""
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(aotriton_own {version} CONFIG REQUIRED COMPONENTS {components})
add_executable(user main.cc)
target_link_libraries(user PRIVATE aotriton_own::aotriton_own_v2)
"""


C_USER = """
#include <aotriton_own/c.h>
int main(void) { return aotriton_own_version()[0] == '0' && AOTRITON_OWN_VERSION_MAJOR == 0 ? 0 : 1; }
"""
C_PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(aotriton_own CONFIG REQUIRED)
add_executable(user main.c)
target_link_libraries(user PRIVATE aotriton_own::aotriton_own_v2)
"""


def test_a_c_compiler_alone_uses_the_shared_library(multiarch: Path, tmp_path: Path) -> None:
    """By a CMake project whose only language is C, and by the flags of the .pc file."""
    (tmp_path / "main.c").write_text(C_USER)
    (tmp_path / "CMakeLists.txt").write_text(C_PROJECT)
    must(CMAKE, "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={multiarch}",
         f"-DCMAKE_C_COMPILER={CC}")  # fmt: skip
    must(CMAKE, "--build", tmp_path / "build")
    must(tmp_path / "build" / "user")
    flags = pkg_config_flags(library(multiarch).parent / "pkgconfig" / f"aotriton{SUFFIX}_v2.pc")
    must(CC, "-std=c99", "-Wall", "-Werror", tmp_path / "main.c", *flags, "-o", tmp_path / "user")
    must(tmp_path / "user", LD_LIBRARY_PATH=str(library(multiarch).parent))


def cmake_user(prefix: Path, folder: Path, components: str = "") -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    (folder / "main.cc").write_text(USER)
    (folder / "CMakeLists.txt").write_text(
        PROJECT.format(version=__version__.rpartition(".")[0], components=components)
    )
    command = [CMAKE, "-G", "Ninja", "-S", folder, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}",
               f"-DCMAKE_CXX_COMPILER={CXX}"]  # fmt: skip
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def builds_a_user(prefix: Path, pkg_config: Path, tmp_path: Path) -> None:
    """A CMake project and the flags of the .pc file each give a program that runs."""
    done = cmake_user(prefix, tmp_path / "cmake")
    assert done.returncode == 0, done.stderr
    must(CMAKE, "--build", tmp_path / "cmake")
    must(tmp_path / "cmake" / "user")
    flags = pkg_config_flags(pkg_config / f"aotriton{SUFFIX}_v2.pc")
    must(CXX, "-std=c++17", tmp_path / "cmake" / "main.cc", *flags, "-o", tmp_path / "user")
    (libraries,) = (flag[2:] for flag in flags if flag.startswith("-L"))
    must(tmp_path / "user", LD_LIBRARY_PATH=libraries)


def test_debians_folders_are_right(multiarch: Path, tmp_path: Path) -> None:
    """With lib/x86_64-linux-gnu and include/own, and after the tree was moved."""
    builds_a_user(multiarch, multiarch / "lib" / "x86_64-linux-gnu" / "pkgconfig", tmp_path)


def test_absolute_folders_are_right(tmp_path: Path) -> None:
    """With library and headers outside of the prefix."""
    prefix = installed(tmp_path / "prefix", f"LIBDIR={tmp_path}/libraries", f"INCLUDEDIR={tmp_path}/headers")
    assert not list(tmp_path.glob("prefix/**/*.so*"))
    builds_a_user(tmp_path / "libraries" / "cmake", tmp_path / "libraries" / "pkgconfig", tmp_path)
    assert prefix.is_dir(), "what is neither, the Python package, is in the prefix"


def test_a_component_is_an_arch(multiarch: Path, tmp_path: Path) -> None:
    """One whose images are in the build is found; another one is refused, with those that there are."""
    assert cmake_user(multiarch, tmp_path / "there", "sm_90 gfx942").returncode == 0
    refused = cmake_user(multiarch, tmp_path / "missing", "sm_90 sm_100")
    assert refused.returncode != 0
    words = " ".join(refused.stderr.split())
    assert "There are no images for sm_100 in this build of aotriton_own: it has sm_90, gfx942." in words


def test_the_archive_defines_no_name_without_aotriton() -> None:
    """So that a suffix changes all of them: C functions and what is in the namespace; templates of others are weak."""
    archive = from_ctest("AOTRITON_ARCHIVE")
    lines = [
        line.split() for line in must("nm", "--defined-only", "--extern-only", "--format=posix", archive).splitlines()
    ]
    symbols = {line[0] for line in lines if len(line) > 1 and line[1] not in "WVu"}
    assert len(symbols) > 100
    declared = (ROOT / "v2src" / "include" / "aotriton" / "c.h").read_text()
    for symbol in symbols:
        assert f" {symbol}(" in declared or re.match(r"_ZT?[A-Z]*K?8aotriton2v2", symbol), symbol
