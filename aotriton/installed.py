"""What pip installs: where headers, archive and CMake package are, and the programs that come with them."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path

import aotriton


def get_include() -> str:
    """The folder for a compiler's -I, with ``aotriton/`` in it; FileNotFoundError where pip did not install us."""
    return str(_there("include"))


def config() -> int:
    """``aotriton-config``: prints what compiler, linker or CMake must be told to use the archive; the exit status."""
    parser = argparse.ArgumentParser(
        prog="aotriton-config", description="Tells how to build with the library, in C or C++."
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--static", action="store_true", help="the archive, which --libs is of unless --shared is given")
    kind.add_argument("--shared", action="store_true", help="--libs is of the shared library that the package runs on")
    parser.add_argument("--version", action="store_true", help="of the library")
    parser.add_argument("--includedir", action="store_true", help="folder of the headers")
    parser.add_argument("--cflags", action="store_true", help="for the compiler")
    parser.add_argument("--libs", action="store_true", help="for the linker, behind what calls it; in C as in C++")
    parser.add_argument("--cmakedir", action="store_true", help="for -Daotriton_DIR=, and find_package(aotriton)")
    options = vars(parser.parse_args())
    asked = [name for name, given in options.items() if given and name not in ("static", "shared")]
    if not asked:
        parser.error("say what to print: --help lists it")
    try:
        answers = {
            "includedir": get_include(),
            "cflags": f"-I{get_include()}",
            "libs": _shared() if options["shared"] else f"-L{_there('lib')} {_libraries()}",
            "cmakedir": str(_there("lib/cmake/aotriton")),
        }
    except FileNotFoundError as error:
        print(f"aotriton-config: {error}", file=sys.stderr)
        return 1
    told = {"version": aotriton.__version__} | answers
    print(*(told[name] for name in asked))
    return 0


def explain() -> int:
    """``aotriton-explain``: runs the program in this process's place; the exit status, where it is not there.

    ``--model FILE`` is about the calls of a model, which ``model_calls`` lists.
    """
    if sys.argv[1:2] == ["--model"]:
        return int(import_module("aotriton.model_calls").main(sys.argv[2:]))
    try:
        program = _there("bin/aotriton-explain")
    except FileNotFoundError as error:
        print(f"aotriton-explain: {error}", file=sys.stderr)
        return 1
    os.execv(program, [str(program), *sys.argv[1:]])


def tune() -> int:
    """``aotriton-tune``: the tuner; the exit status."""
    program = "aotriton-tune"
    try:
        return int(import_module("aotriton.tune.tune").main(prog=program))
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("aotriton"):
            raise
        print(f"{program}: {missing.name} is missing: pip install 'aotriton-v2[tune]'", file=sys.stderr)
        return 2


def _libraries() -> str:
    """What the pkg-config file names for the linker."""
    lines = _there("lib/pkgconfig/aotriton_v2.pc").read_text().splitlines()
    (libraries,) = (line for line in lines if line.startswith("Libs: "))
    return libraries.removeprefix("Libs: -L${libdir} ")


def _shared() -> str:
    """How to link the shared library, and where programs find it."""
    folder = _there("libaotriton_runtime.so").parent
    return f"-L{folder} -laotriton_runtime -Wl,-rpath,{folder}"


def _there(place: str) -> Path:
    folders = [Path(folder) for folder in aotriton.__path__]  # more than one where pip installed an editable tree
    for folder in folders:
        if (folder / place).exists():
            return folder / place
    raise FileNotFoundError(f"{folders[0] / place} is missing: `pip install` installs headers, archive and programs")
