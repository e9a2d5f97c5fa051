"""examples/decode from a copy outside of the tree: built against an installed library, and run on a GPU.

The library is that of the build that AOTRITON_BUILD names, or of build/default; it needs CUDA's compiler.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_install import has_gpu

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
CMAKE = os.environ.get("CMAKE_COMMAND", "cmake")
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
BUILD = Path(os.environ.get("AOTRITON_BUILD") or ROOT / "build" / "default")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def must(*command: str | Path) -> str:
    """The standard output of a command that succeeds."""
    done = run(*command)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's program."""
    if not NVCC:
        pytest.skip("there is no nvcc")
    if not (BUILD / "libaotriton_v2.a").is_file():
        pytest.skip(f"{BUILD} has no library: build the preset default, or say where one is by AOTRITON_BUILD")
    folder: Path = tmp_path_factory.mktemp("decode")
    must(CMAKE, "--install", BUILD, "--component", "library", "--prefix", folder / "aotriton")
    shutil.copytree(ROOT / "examples" / "decode", folder / "source")
    options = (f"-DCMAKE_PREFIX_PATH={folder / 'aotriton'}", f"-DCMAKE_CUDA_COMPILER={NVCC}")
    warnings = ("-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror", "-DCMAKE_CUDA_FLAGS=-Xcompiler=-Wall,-Wextra,-Werror")
    must(CMAKE, "-S", folder / "source", "-B", folder / "build", "-G", "Ninja", *options, *warnings)
    must(CMAKE, "--build", folder / "build")
    return folder / "build" / "decode"


@pytest.mark.skipif(not has_gpu(), reason="there is no driver, or it has no GPU")
@pytest.mark.skipif(os.environ.get("AOTRITON_COVERAGE") == "small", reason="it needs images of default coverage")
def test_a_thousand_tokens_are_those_of_float64(program: Path) -> None:
    """Five sequences, of which some end and others begin, decode 1,000 tokens each by one captured graph; nearly all
    are those of float64, and the others are as good as these.
    """
    done = run(program)
    assert done.returncode == 0, done.stdout + done.stderr
    speed, verdict = done.stdout.splitlines()
    assert re.fullmatch(r"5 sequences, 1000 steps by one graph: \d+ tokens per second", speed)
    found = re.fullmatch(r"logits differ from float64 by .*; (\d+) of 5005 tokens agree, .*: right", verdict)
    assert found, verdict
    assert int(found[1]) > 0.95 * 5005


@pytest.mark.parametrize("arguments", [("0",), ("1", "2"), ("many",)], ids=str)
def test_it_says_how_it_is_called(program: Path, arguments: tuple[str, ...]) -> None:
    """Status 2, and its usage."""
    done = run(program, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "usage: decode [STEPS]\n")


@pytest.mark.skipif(has_gpu(), reason="there is a driver, and it has a GPU")
def test_it_names_what_fails(program: Path) -> None:
    """Without a GPU: status 1, the call that failed, and CUDA's own words."""
    done = run(program)
    assert done.returncode == 1
    assert done.stderr.startswith("cudaStreamCreate: ")
