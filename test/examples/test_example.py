"""examples/rms_norm from a copy outside of the tree, as docs/adding.md walks through it: tuned, built and run.

Run by ctest, which installs first and says where. A stand-in times candidates, and later takes the GPU's place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from ctest_environment import from_ctest
from test_install import compiler, has_gpu

from aotriton.codegen.plan import plan
from aotriton.rules import family
from aotriton.rules.borrow import filled
from aotriton.rules.database import TuningDatabase, Winner
from aotriton.rules.image import config_values

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE, DATABASE = ROOT / "examples" / "rms_norm", "tuning_database.sqlite3"
FEWEST = {"WIDTH=1024": 1, "WIDTH=4096": 2, "WIDTH=8192": 4}  # warps
CMAKE = os.environ.get("CMAKE_COMMAND", "cmake")
# What the static model chooses from for gfx942: the images of many rows take long.
FEWER = (
    ('hip={"ROWS": (1, 2, 4)}', 'hip={"ROWS": (1,)}'),
    ('hip={"num_warps": (1, 2, 4, 8, 16), ', 'hip={"num_warps": (4, 8, 16), '),
)
# A CUDA runtime on the host, which computes what the launch was for where ARITHMETIC is set. The driver is a stand-in,
# too, and says what it was told.
RUNTIME = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static uint16_t *made[8], *filled[8];
static size_t sizes[8];
static int makes, fills;
int cudaGetDeviceCount(int* count) { return *count = 1, 0; }
int cudaMalloc(void** memory, size_t size) {
  *memory = made[makes++] = aligned_alloc(256, (size + 255) / 256 * 256);
  memset(*memory, 0, size);
  return 0;
}
int cudaMemcpy(void* to, const void* from, size_t size, int kind) {
  if (kind == 1) sizes[fills] = size / 2, filled[fills++] = to;
  return memcpy(to, from, size), 0;
}
static float number(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  return memcpy(&value, &wide, 4), value;
}
int cudaDeviceSynchronize(void) {
  const char* (*calls)(void) = (const char* (*)(void))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_calls");
  fprintf(stderr, "%s", calls());
  if (!getenv("ARITHMETIC")) return 0;
  uint16_t *x = filled[0], *weight = filled[1], *out = made[0];
  for (int i = 0; i < makes; ++i) if (made[i] != x && made[i] != weight) out = made[i];
  const size_t width = sizes[1], rows = sizes[0] / width;
  for (size_t row = 0; row < rows; ++row) {
    double squares = 1e-6 * width;
    for (size_t i = 0; i < width; ++i) squares += pow(number(x[row * width + i]), 2);
    for (size_t i = 0; i < width; ++i) {
      const float value = number(x[row * width + i]) / sqrt(squares / width) * number(weight[i]);
      uint32_t bits;
      memcpy(&bits, &value, 4);
      out[row * width + i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
  }
  return 0;
}
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command that sees nothing of this source tree but what ``env`` has."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "AOTRITON_FAMILIES")}
    words = [str(part) for part in command]
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=kept | (env or {}))


def must(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """The standard output of a command that succeeds."""
    done = run(*command, cwd=cwd, env=env)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def copy(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's folder elsewhere, tuned there with what is installed: sm_90 by the stand-in, gfx942 predicted."""
    folder: Path = tmp_path_factory.mktemp("outside") / "rms_norm"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "build", "tuning_database.*"))
    rules = folder / "rules" / "__init__.py"
    for old, new in FEWER:
        assert old in rules.read_text()
        rules.write_text(rules.read_text().replace(old, new))
    launchers = folder.parent / "launchers"
    launchers.mkdir()
    shutil.copy(ROOT / "test" / "standin_launcher.py", launchers)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(prefix / "share" / "aotriton" / "python"), str(launchers)]),
        "AOTRITON_IMAGE_STORE": str(folder.parent / "store"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for options in (("--launcher", "standin_launcher:StandinLauncher"), ("--arch", "gfx942", "--predict")):
        command = (sys.executable, "-m", "aotriton.tune.tune", "--family", "rms_norm", *options)
        must(*command, cwd=folder.parent, env=environment)
    return folder


@pytest.fixture(scope="module")
def program(prefix: Path, copy: Path) -> Path:
    """The example's program, built in its folder against what is installed, and once more when that is all done."""
    environment = {"AOTRITON_IMAGE_STORE": str(copy.parent / "store")}
    options = (
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler()}",
        f"-DAOTRITON_PYTHON={sys.executable}",
    )
    for _ in range(2):
        must(CMAKE, "-B", "build", "-G", "Ninja", *options, cwd=copy, env=environment)
        told = must(CMAKE, "--build", "build", cwd=copy, env=environment)
    assert "no work to do" in told
    return copy / "build" / "example"


def everywhere(database: TuningDatabase) -> list[Winner]:
    """The winner of each cell on each product, borrowed ones among them."""
    (kernel,), products = family.add(EXAMPLE).kernels, database.products()
    return [
        row
        for one in products
        for row in filled(kernel, one.arch, one.name, database.winners(one.arch, kernel.name), products)
    ]


def test_it_comes_with_what_a_gpu_measured() -> None:
    """Measured on a GPU, with winners for every cell of both archs, so that the folder builds as it is."""
    one = family.add(EXAMPLE)
    with TuningDatabase(EXAMPLE / "rules" / DATABASE, readonly=True) as database:
        winners = database.winners()
        rows = everywhere(database)
        products = {arch: database.products(arch) for arch in ("gfx942", "sm_90")}
        sessions = database._file.value("SELECT count(*) FROM evidence.session")
    assert {(row.product, row.provenance) for row in winners} == {
        ("NVIDIA H200", "measured"),
        ("AMD Instinct MI300X", "predicted"),
    }
    assert len(rows) == 2 * 12 * 2, "archs, functionals, bins"
    assert plan(one.operators, products, "full", rows, {}).tables
    assert sessions


def test_it_is_tuned_from_its_folder(copy: Path) -> None:
    """Every candidate of sm_90 is measured, and each functional of both archs has its winners."""
    with TuningDatabase(copy / "rules" / DATABASE, readonly=True) as database:
        outcomes, winners = database.evidence.outcomes(), database.winners()
        (options,) = {row["options"] for row in database._file._db.query("SELECT options FROM evidence.session")}
    assert options == "family=rms_norm launcher=standin_launcher:StandinLauncher"
    assert {(one.arch, one.kernel) for one in outcomes} == {("sm_90", "rms_norm")}
    swept = Counter(one.status for one in outcomes if one.phase == "sweep")
    assert set(swept) <= {"ok", "pruned"}
    assert swept.total() == 128
    assert swept["ok"] >= 100
    found = {(one.arch, one.functional.split()[0], one.provenance) for one in winners}
    assert found == {
        ("sm_90", "T=bf16", "measured"),
        ("gfx942", "T=bf16", "predicted"),
        ("gfx942", "T=fp16", "predicted"),
    }
    assert len(winners) == 12 + 2 * 12, "what sm_90 borrows is derived"
    # Fewer warps are faster, says the stand-in.
    best = {
        one.functional: config_values(one.config)["num_warps"]
        for one in winners
        if one.arch == "sm_90" and "T=bf16" in one.functional
    }
    assert {name.split()[1]: warps for name, warps in best.items()} == FEWEST


def test_its_program_is_built_for_both_archs(program: Path) -> None:
    """With a pack of images each, the winners', and a header of its own; no file of it names this source tree."""
    generated = program.parent / "rms_norm"
    packs = json.loads((generated / "images.json").read_text())["packs"]
    assert {(pack["kernel"], pack["arch"]) for pack in packs} == {("rms_norm", "sm_90"), ("rms_norm", "gfx942")}
    with TuningDatabase(program.parent.parent / "rules" / DATABASE, readonly=True) as database:
        winners = {one.image for one in everywhere(database)}
    assert {image["name"] for pack in packs for image in pack["images"]} == winners
    assert "struct rms_norm_params" in (generated / "rms_norm.h").read_text()
    for path in generated.glob("*.cc"):
        assert str(ROOT) not in path.read_text(), path


def winner(program: Path) -> tuple[str, int, int]:
    """Image, ROWS and warps of the winner for 1000 rows of 4096."""
    with TuningDatabase(program.parent.parent / "rules" / DATABASE, readonly=True) as database:
        (found,) = [
            one
            for one in database.winners("sm_90", "rms_norm")
            if (one.functional, one.bin) == ("T=bf16 WIDTH=4096 ADDRESSING=descriptor", "rows=8192")
        ]
    values = config_values(found.config)
    return found.image, values["ROWS"], values["num_warps"]


def test_its_program_runs_where_it_is(program: Path) -> None:
    """It says what an H100 would run; with a GPU its rows are right, and without it says that there is none."""
    done = run(program, cwd=program.parent)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    image, rows, warps = winner(program)
    assert first == f"on an H100: {image}, ROWS={rows} num_warps={warps}"
    assert last == "no GPU here: nothing was run" or (has_gpu() and last.endswith("right"))


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("10", "9000"), 1, "explain: no_winner: rms_norm sm_90: T=bf16 WIDTH=9000 ADDRESSING=descriptor"),
        (("0", "4096"), 2, "usage: example [ROWS WIDTH]"),
        (("10",), 2, "usage: example [ROWS WIDTH]"),
    ],
)
def test_its_program_names_what_is_wrong(program: Path, arguments: tuple[str, ...], status: int, message: str) -> None:
    """A width that is beyond the family's, and sizes that are none."""
    done = run(program, *arguments, cwd=program.parent)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(message)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in for CUDA's runtime."""
    folder: Path = tmp_path_factory.mktemp("runtime")
    (folder / "runtime.c").write_text(RUNTIME)
    flags = ("-shared", "-fPIC", "-O2", "-x", "c", "runtime.c", "-x", "none", "-o", "libcudart.so", "-lm", "-ldl")
    must(compiler(), *flags, cwd=folder)
    return folder


@pytest.mark.parametrize("arithmetic", [True, False], ids=["right", "wrong"])
def test_its_program_on_a_standin(program: Path, runtime: Path, arithmetic: bool) -> None:
    """It launches the winner once, on as many programs as its rows take, and tells right results from wrong ones."""
    environment = {"LD_LIBRARY_PATH": os.pathsep.join([str(runtime), from_ctest("AOTRITON_STANDINS")])}
    done = run(program, cwd=program.parent, env=environment | ({"ARITHMETIC": "1"} if arithmetic else {}))
    assert done.returncode == (0 if arithmetic else 1), done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(rf"1000 x 4096: largest relative error \d\.\d+, {'right' if arithmetic else 'WRONG'}", last)
    _, rows, warps = winner(program)
    launches = [call.split() for call in done.stderr.split(";") if call.startswith("launch")]
    assert [launch[2:4] for launch in launches] == [[f"{-(-1000 // rows)},1,1", f"{32 * warps},1,1"]]
    assert "function 0x200 rms_norm" in done.stderr


@pytest.mark.skipif(has_gpu(), reason="there is a driver, and it has a GPU")
def test_its_program_without_a_driver(program: Path, runtime: Path) -> None:
    """Status 1, and the library's own words."""
    done = run(program, cwd=program.parent, env={"LD_LIBRARY_PATH": str(runtime)})
    assert done.returncode == 1
    assert re.match(r"rms_norm: no_\w+: .*libcuda\.so\.1", done.stderr), done.stderr


def test_the_library_itself_takes_it_in(copy: Path, tmp_path: Path) -> None:
    """This project's own build with -DAOTRITON_FAMILIES has its tables and its images beside those of the tree."""
    cache = {
        "AOTRITON_FAMILIES": copy,
        "AOTRITON_COVERAGE": "small",
        "AOTRITON_ARCHS": "sm_90",
        "AOTRITON_PYTHON": sys.executable,
        "CMAKE_BUILD_TYPE": "Debug",
        "CMAKE_CXX_FLAGS_DEBUG": "-O1",  # compiles in half the time of -g
        "CMAKE_CXX_COMPILER": compiler(),
    }
    if database := os.environ.get("AOTRITON_DATABASE"):
        cache["AOTRITON_DATABASE"] = database
    must(
        CMAKE,
        "-S",
        ROOT,
        "-B",
        tmp_path,
        "-G",
        "Ninja",
        *(f"-D{name}={value}" for name, value in cache.items()),
        cwd=ROOT,
    )
    must(CMAKE, "--build", tmp_path, "--target", "aotriton-explain", cwd=ROOT)
    explain = tmp_path / "aotriton-explain"
    listed = [line.split()[0] for line in must(explain, "--help", cwd=tmp_path).splitlines() if line.startswith("  ")]
    assert {"attn_fwd", "gemm", "rms_norm"} <= set(listed)
    options = ("--device", "stand-in", "--dtype", "bf16", "--json")
    (told,) = json.loads(must(explain, "--op", "rms_norm", "--rows", "1000", "--width", "4096", *options, cwd=tmp_path))
    image, rows, warps = winner(copy / "build" / "example")
    assert (told["image"], told["tunables"], told["compile_options"]) == (image, f"ROWS={rows}", f"num_warps={warps}")
    assert told["provenance"] == "measured"
    archive = (tmp_path / "libaotriton_v2.a").read_bytes()
    assert image.encode() in archive
