"""CUDA C++ as a provider: from a kernel's .cu file and a config to a cubin, through nvcc.

The source gets a config as macros. The macro THREADS is the number of threads of a program. ``maxnreg`` limits the
registers of a thread.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from aotriton.codegen.ptxas import serialised
from aotriton.rules.image import ImageSpec

TYPES = {
    "float": "fp32",
    "half": "fp16",
    "__half": "fp16",
    "__nv_bfloat16": "bf16",
    "int": "i32",
    "int32_t": "i32",
    "int64_t": "i64",
    "long long": "i64",
}


@cache
def version() -> str:
    """As ``aotriton.rules.provider.Compiler``."""
    said = subprocess.run([_nvcc(), "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bV(\d+(?:\.\d+)+)", said)
    if not found:
        raise RuntimeError(f"{_nvcc()} --version does not say which it is: {said.strip()!r}")
    return found[1]


def parameters(name: str, source: str, space: Collection[str]) -> list[tuple[str, str]]:
    """As ``aotriton.rules.provider.Compiler``."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    if own := re.search(r'#\s*include\s*"([^"]*)"', code):
        raise ValueError(
            f"{name}.cu includes {own[1]}, of whose changes no image's name would tell: put it in the file"
        )
    bounds = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
    found = re.search(rf'extern\s+"C"\s+__global__\s+{bounds}void\s+{bounds}{name}\s*\(([^)]*)\)', code)
    if not found:
        raise ValueError(f'{name}.cu has no extern "C" __global__ void {name}(...)')
    if "THREADS" not in space:
        raise ValueError(f"space: THREADS says how many threads a program of {name}.cu has, and must be there")
    for one in space:
        if one not in ("THREADS", "maxnreg") and not re.search(rf"\b{re.escape(one)}\b", code):
            raise ValueError(f"space: {name}.cu has nothing called {one}")
    return [_parameter(name, one) for one in found[1].split(",") if one.strip()]


def _parameter(kernel: str, text: str) -> tuple[str, str]:
    words = re.findall(r"\w+|\*", re.sub(r"\bconst\b|\b__restrict__\b|\b__restrict\b", " ", text))
    *of_type, name = words
    stars = of_type.count("*")
    kind = TYPES.get(" ".join(word for word in of_type if word != "*"))
    if kind is None or stars > 1 or (not stars and kind not in ("i32", "i64", "fp32")):
        raise ValueError(f"{kernel}.cu: {text.strip()!r} is nothing that images are given: {', '.join(TYPES)} and *")
    return name, "*" * stars + kind


def compile(spec: ImageSpec, source: Path) -> tuple[bytes, dict[str, Any]]:
    """As ``aotriton.rules.provider.Compiler``."""
    functional, config = spec.functional, dict(spec.tunables)
    if functional.arch_spec.vendor != "cuda":
        raise RuntimeError(f"nvcc compiles nothing for {functional.arch}")
    compute = functional.arch_spec.compiler_target
    options = [f"-D{name}={value}" for name, value in config.items()]
    if "maxnreg" in config:
        options.append(f"-maxrregcount={config['maxnreg']}")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "image.cubin"
        architecture = f"-gencode=arch=compute_{compute}a,code=sm_{compute}a"
        done = subprocess.run(
            [_nvcc(), "-cubin", architecture, "-std=c++17", "-Xptxas=-v", *options, str(source), "-o", str(cubin)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"nvcc: {done.stderr.strip()}")
        binary = cubin.read_bytes()
    return binary, {
        "entry": functional.kernel.name,
        "threads": config["THREADS"],
        "shared": 0,
        **resources(functional.kernel.name, done.stderr),
        "serialised": serialised(done.stderr),
    }


def resources(kernel: str, said: str) -> dict[str, int]:
    """The registers and the spilled bytes of the kernel, from the messages ``said`` of ptxas.

    A stack without spills holds arrays and counts as none.
    """
    of_kernel = said.partition(f"Compiling entry function '{kernel}'")[2]
    numbers = [
        re.search(pattern, of_kernel)
        for pattern in (r"Used (\d+) registers", r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes")
    ]
    if not all(numbers):
        raise RuntimeError(f"ptxas did not tell what {kernel} needs: {said.strip()!r}")
    registers, frame = (tuple(map(int, one.groups())) for one in numbers if one)
    spills = frame[1] + frame[2]
    return {"registers": registers[0], "spills": spills, "stack": frame[0] if spills else 0}


def _nvcc() -> str:
    """nvcc of PATH, of $CUDA_HOME, or of pip's package."""
    if found := shutil.which("nvcc"):
        return found
    package = importlib.util.find_spec("nvidia")
    places = [Path(os.environ["CUDA_HOME"]) / "bin" / "nvcc"] if os.environ.get("CUDA_HOME") else []
    places += [one for root in (package and package.submodule_search_locations) or () for one in _below(root)]
    for place in places:
        if os.access(place, os.X_OK):
            return str(place)
    raise RuntimeError(
        "there is no nvcc here, which compiles CUDA C++: install the CUDA toolkit, and set PATH or CUDA_HOME"
    )


def _below(root: str) -> list[Path]:
    return sorted(Path(root).glob("*/bin/nvcc"))
