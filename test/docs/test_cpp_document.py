"""docs/cpp.md: its program is built by its command, against an installed tree, and prints what the page says.

Run by ctest, which installs first and says where.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from ctest_environment import from_ctest
from page import DOCS, snippet
from test_install import WARNINGS, pkg_config_flags

TEXT = (DOCS / "cpp.md").read_text()


def built(folder: Path, more: str = "") -> Path:
    """The program, with the flags that the installed .pc file has for it, and ``more`` behind its classes."""
    program = snippet(TEXT, "cpp")
    if more:
        program = program[: program.index("int main()")] + more
    source = folder / "layer.cc"
    source.write_text(program)
    prefix = Path(from_ctest("AOTRITON_INSTALL"))
    (file,) = prefix.rglob("pkgconfig/aotriton_v2.pc")
    made = str(folder / "layer")
    command = [os.environ.get("CXX", "c++"), *WARNINGS, str(source), *pkg_config_flags(file), "-o", made]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "layer"


def test_the_program_says_what_would_run(tmp_path: Path) -> None:
    """The page's command builds it; without a GPU it says which kernel it would be, and what is missing."""
    assert "pkg-config --cflags --libs aotriton_v2) -o layer" in snippet(TEXT, "sh")
    done = subprocess.run([built(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"attn_fwd_hopper of backend hopper, \d+\.\d us", first)
    assert second.startswith(("no_driver: ", "no_context: "))


LAUNCHES = """
#include <dlfcn.h>

#include <cstdint>

int main() {
  const auto calls = reinterpret_cast<const char* (*)()>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_calls"));
  const auto at = [](uintptr_t number) { return reinterpret_cast<void*>(number << 24); };
  Layer layer(2, 16, 1024, 64, Buffers{at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9)});
  const Stream stream{at(11)};
  layer.load(stream);
  calls();
  layer.forward(stream);
  layer.backward(at(10), layer.workspace_size(stream), stream);
  std::printf("%s\\n", calls());
}
"""


def test_the_layer_launches(tmp_path: Path) -> None:
    """On the stand-in driver forward is one kernel and backward three, and all that they need is loaded before."""
    given = os.environ | {"LD_LIBRARY_PATH": from_ctest("AOTRITON_STANDINS")}
    done = subprocess.run([built(tmp_path, LAUNCHES)], capture_output=True, text=True, env=given)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\blaunch ", done.stdout)) == 4
    assert not re.findall(r"\bload ", done.stdout)
