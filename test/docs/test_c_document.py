"""docs/c.md: its program is built by its command, a C compiler's, against an installed tree, and prints what the page
says.

Run by ctest, which installs first and says where.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from ctest_environment import from_ctest
from page import DOCS, snippet
from test_install import pkg_config_flags

TEXT = (DOCS / "c.md").read_text()
CC = (os.environ.get("CC", "cc"), "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


def test_the_program_is_built_by_a_c_compiler_alone(tmp_path: Path) -> None:
    """With the flags of the installed .pc file; without a GPU it says which kernel it would be, and what is missing."""
    assert re.search(r"^cc -std=c99 attention\.c \$\(.* aotriton_v2\) -o attention$", snippet(TEXT, "sh"), re.MULTILINE)
    (tmp_path / "attention.c").write_text(snippet(TEXT, "c"))
    (file,) = Path(from_ctest("AOTRITON_INSTALL")).rglob("pkgconfig/aotriton_v2.pc")
    flags = [pkg_config_flags(file)]
    if tool := shutil.which("pkg-config"):
        environment = os.environ | {"PKG_CONFIG_PATH": str(file.parent)}
        told = subprocess.run(
            [tool, "--cflags", "--libs", "aotriton_v2"], capture_output=True, text=True, env=environment
        )
        flags.append(told.stdout.split())
    for found in flags:
        command = [*CC, "attention.c", *found, "-o", "attention"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said = subprocess.run(["./attention"], cwd=tmp_path, capture_output=True, text=True)
        first, second = said.stdout.splitlines()
        assert re.fullmatch(r"attn_fwd_hopper of backend hopper, \d+\.\d us", first)
        assert second.startswith(("no_driver: ", "no_context: "))


def test_what_it_says_of_versions_is_in_the_header() -> None:
    """The macros, and the functions whose text has a lifetime."""
    header = (DOCS.parent / "v2src" / "include" / "aotriton" / "c.h").read_text()
    for name in re.findall(r"`(aotriton_\w+)(?:\(\))?`", TEXT):
        assert name == "aotriton_v2" or re.search(rf"\b{name}\b", header), name
