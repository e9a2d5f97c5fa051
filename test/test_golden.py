"""Claims about the generated files: their text, that they compile, and that writing them again changes nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from toy import OPERATOR, database, with_fast

from aotriton.codegen import pack
from aotriton.codegen.generate import main, write
from aotriton.codegen.plan import Plan, TablePlan, plan
from aotriton.codegen.store import CompiledImage
from aotriton.rules import flash, target
from aotriton.rules.kernel import KernelDescription, Value

GOLDEN = Path(__file__).parent / "golden"
COMPILE = ("g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/v2src/include", f"-I{ROOT}/v2src")


def planned(kernel: KernelDescription, archs: Sequence[str] = ("sm_90", "gfx942"), backwards: bool = False) -> Plan:
    winners, timings = database(kernel)
    winners = with_fast(winners)
    if backwards:
        winners, timings = winners[::-1], dict(reversed(timings.items()))
    return plan([OPERATOR], archs, "default", winners, timings)


def packed(tables: tuple[TablePlan, ...], out: Path, folder: Path, compress: bool) -> None:
    """Packs made-up binaries under the names of the planned images."""
    for table in tables:
        images = []
        for place, (name, spec) in enumerate(table.images.items()):
            path = folder / f"{name}.bin"
            path.write_bytes(bytes([place]) * (100 + place))
            descriptor = {"rank": 4, "swizzle": 3, "block": [1, 1, 64, 32]}
            metadata = {
                "name": name,
                "functional": str(spec.functional),
                "config": spec.config,
                "entry": table.kernel.name,
                "threads": 128,
                "shared": 4096,
                "global_scratch": 0,
                "descriptors": [descriptor] if spec.functional["ADDRESSING"] == "descriptor" else [],
                "registers": 64,
                "spills": 0,
            }
            images.append(CompiledImage(name, metadata, path))
        pack.write(out, table.kernel.family, table.kernel.name, table.arch, images, compress)


def test_generated_text(toy: KernelDescription, tmp_path: Path, update_golden: bool) -> None:
    """Every generated file is, byte for byte, the one beside this test; `pytest --update-golden` accepts a change."""
    made = planned(toy)
    out = GOLDEN if update_golden else tmp_path / "out"
    write(made, out)
    packed(made.tables, out, tmp_path, compress=False)
    if update_golden:
        return
    assert {path.name for path in out.iterdir()} == {path.name for path in GOLDEN.iterdir()}
    for path in sorted(out.iterdir()):
        assert path.read_bytes() == (GOLDEN / path.name).read_bytes(), f"{path.name} differs: pytest --update-golden"


def test_second_run_writes_nothing(toy: KernelDescription, tmp_path: Path) -> None:
    """Two runs over the same rows, in whatever order they come, give the same bytes, and the second touches no file."""
    made = planned(toy)
    assert write(made, tmp_path / "a")
    packed(made.tables, tmp_path / "a", tmp_path, compress=True)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    shuffled = planned(toy, ("gfx942", "sm_90"), backwards=True)
    assert write(shuffled, tmp_path / "a") == []
    packed(shuffled.tables, tmp_path / "a", tmp_path, compress=True)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()} == before


def test_stale_files_go(toy: KernelDescription, tmp_path: Path) -> None:
    """Files of an arch that left the build are removed, packed images included; a stranger's file stays."""
    made = planned(toy)
    write(made, tmp_path / "out")
    packed(made.tables, tmp_path / "out", tmp_path, compress=True)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    write(planned(toy, ["sm_90"]), tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "scale_rows.sm_90.images.bin" in names
    assert "notes.txt" in names
    assert not {name for name in names if "gfx942" in name}


def test_duplicate_output_is_refused(toy: KernelDescription, tmp_path: Path) -> None:
    """Two tables for one kernel and arch would write one file twice: an error that names the file."""
    made = planned(toy)
    with pytest.raises(ValueError, match=r"scale_rows\.gfx942\.lut\.cc would be written twice"):
        write(replace(made, tables=(*made.tables, made.tables[0])), tmp_path)


def test_generated_cxx_compiles(toy: KernelDescription, tmp_path: Path) -> None:
    """g++ -Wall -Wextra -Werror takes every generated source, packed images included, with the runtime's headers."""
    made = planned(toy)
    write(made, tmp_path / "out")
    packed(made.tables, tmp_path / "out", tmp_path, compress=True)
    sources = sorted((tmp_path / "out").glob("*.cc"))
    assert len(sources) == 11
    subprocess.run([*COMPILE, "-I.", "-fsyntax-only", *sources], check=True, cwd=tmp_path / "out")


def test_embedded_images_are_the_packed_ones(toy: KernelDescription, tmp_path: Path) -> None:
    """A program that links the image files finds each image's bytes where the Image says; -I is all they need."""
    tables = [table for table in planned(toy, ["sm_90"]).tables if table.kernel is toy]
    out = tmp_path / "out"
    out.mkdir()
    packed(tuple(tables), out, tmp_path, compress=False)
    names = list(tables[0].images)
    lines = ['#include "image.h"', "namespace aotriton::v2::inline abi1::toy {"]
    lines += [f"extern Image {name};" for name in names]
    lines += ["}", "using namespace aotriton::v2;", "int main() {"]
    for place, name in enumerate(names):
        wrong = f"toy::{name}.size != {100 + place} || toy::{name}.data[{99 + place}] != {place}"
        lines.append(f"  if ({wrong}) return {place + 1};")
    (out / "main.cc").write_text("\n".join([*lines, "}\n"]))
    subprocess.run(
        [*COMPILE, f"-I{out}", out / "main.cc", out / "scale_rows.sm_90.images.cc", "-o", out / "main"],
        check=True,
        cwd=tmp_path,
    )
    subprocess.run([out / "main"], check=True)


def test_godel_numbers_agree(tmp_path: Path) -> None:
    """For every functional of every kernel, C++ gives Python's godel number, and -1 for a choice that is not one."""
    archs = [word for row in target.TARGETS for word in ("--arch", row.arch)]
    assert main(["--database", str(tmp_path / "none"), *archs, "--coverage", "none", "--out", str(tmp_path)]) == 0
    lines = [f'#include "{kernel.name}.shim.h"' for kernel in flash.KERNELS]
    lines += ["using namespace aotriton::v2;", "int main() {", "  int bad = 0;"]
    for kernel in flash.KERNELS:
        kind = "flash::" + "".join(part.title() for part in kernel.name.split("_")) + "Functional"
        for row in target.TARGETS:
            for functional in kernel.functionals(row.arch):
                values = ", ".join(spelled(name, value) for name, value in functional.as_dict().items())
                lines.append(f"  bad += {kind}{{{values}}}.godel_number() != {functional.godel_number};")
    for odd in ("DType::float32, 64", "DType::none, 64", "DType::float16, 96", "DType::float16, 0"):
        lines.append(f"  bad += flash::AttnFwdFunctional{{{odd}, false, Addressing::general}}.godel_number() != -1;")
    (tmp_path / "main.cc").write_text("\n".join([*lines, "  return bad != 0;", "}\n"]))
    # The kernels' collect() needs the runtime, which is not linked: sections that nothing reaches are dropped.
    options = ["-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", f"-I{tmp_path}"]
    sources = sorted(tmp_path.glob("*.shim.cc"))
    subprocess.run([*COMPILE, *options, tmp_path / "main.cc", *sources, "-o", tmp_path / "main"], check=True)
    subprocess.run([tmp_path / "main"], check=True)


def spelled(choice: str, value: Value) -> str:
    """The value in C++, by a table of its own rather than the generator's."""
    if choice == "T":
        return {"fp16": "DType::float16", "bf16": "DType::bfloat16"}[str(value)]
    if choice == "ADDRESSING":
        return f"Addressing::{value}"
    return str(value).lower()
