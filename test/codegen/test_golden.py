"""Claims about the generated files: their text, that they compile, and that writing them again changes nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ctest_environment import from_ctest
from toy.rules import OPERATOR
from toy_database import OTHER, database, modelled, on_another, usual, with_fast, with_split

from aotriton.codegen import pack
from aotriton.codegen.generate import certificate_rows, write
from aotriton.codegen.plan import Plan, TablePlan, plan
from aotriton.codegen.store import CompiledImage
from aotriton.rules.arch import ARCHS
from aotriton.rules.database import Product
from aotriton.rules.database.rows import Certificate
from aotriton.rules.family import Shared, families
from aotriton.rules.kernel import KernelDescription
from aotriton.rules.operators import Operator

ROOT = Path(__file__).resolve().parents[2]

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CERTIFICATE = Certificate("", OTHER, "2026-11-24", 12, 20, 0.0021, 0.0047)
COMPILE = ("g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/v2src/include", f"-I{ROOT}/v2src")


def planned(
    kernel: KernelDescription,
    archs: Sequence[str] = ("sm_90", "gfx942"),
    backwards: bool = False,
    operator: Operator = OPERATOR,
) -> Plan:
    winners, timings = database(kernel)
    winners = on_another(with_split(with_fast(winners)))
    if backwards:
        winners, timings = winners[::-1], dict(reversed(timings.items()))
    products = usual(*archs)
    if "sm_90" in archs:
        products["sm_90"].append(Product(OTHER, "sm_90", 78, 96 << 30))
    return plan([operator], products, "default", winners, timings, models=modelled(products))


def written(made: Plan, out: Path, added: bool = False, operator: Operator = OPERATOR) -> list[str]:
    kept = {name: [CERTIFICATE] for table in made.tables for name in certified(table)}
    return write(made, [operator], out, added=added, models=modelled(made.products), certificates=kept)


def certified(table: TablePlan) -> list[str]:
    """The images that have a certificate."""
    return list(table.images)[1:3] if table.arch == "sm_90" else []


def packed(tables: tuple[TablePlan, ...], out: Path, folder: Path, compress: bool) -> None:
    """Packs made-up binaries under the names of the planned images."""
    for table in (table for table in tables if table.functionals):
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
                "descriptors": [descriptor] if spec.functional.addressing == "descriptor" else [],
                "registers": 64,
                "spills": 0,
            }
            images.append(CompiledImage(name, metadata, path))
        rows = certificate_rows([CERTIFICATE], [Product(OTHER, "sm_90", 78)])
        kept = {name: rows for name in certified(table)}
        pack.write(out, table.kernel.family, table.kernel.name, table.arch, images, compress, kept)


def test_generated_text(toy: KernelDescription, tmp_path: Path, update_golden: bool) -> None:
    """Every generated file is, byte for byte, the one beside this test; `pytest --update-golden` accepts a change."""
    made = planned(toy)
    out = GOLDEN if update_golden else tmp_path / "out"
    written(made, out)
    packed(made.tables, out, tmp_path, compress=False)
    if update_golden:
        return
    assert {path.name for path in out.iterdir()} == {path.name for path in GOLDEN.iterdir()}
    for path in sorted(out.iterdir()):
        assert path.read_bytes() == (GOLDEN / path.name).read_bytes(), f"{path.name} differs: pytest --update-golden"


def test_a_kernel_that_begins_early(toy: KernelDescription, tmp_path: Path) -> None:
    """That is one word of the operator's description: images have the same names, and no other file differs."""
    *others, split = OPERATOR.backends
    weigh, apply = split.kernels
    backends = (*others, replace(split, kernels=(weigh, replace(apply, begins_early=True))))
    early = replace(OPERATOR, backends=backends)
    written(planned(toy), tmp_path / "plain")
    written(planned(toy, operator=early), tmp_path / "early", operator=early)
    plain = {path.name: path.read_text() for path in (tmp_path / "plain").iterdir()}
    expected = plain["scale.operator.cc"].split('info{"scale_rows_apply"')
    expected[1] = expected[1].replace("0x16, false,", "0x16, true,")
    plain["scale.operator.cc"] = 'info{"scale_rows_apply"'.join(expected)
    assert {path.name: path.read_text() for path in (tmp_path / "early").iterdir()} == plain
    assert "0x16, true," in plain["scale.operator.cc"]


def test_second_run_writes_nothing(toy: KernelDescription, tmp_path: Path) -> None:
    """Two runs over the same rows, in whatever order they come, give the same bytes, and the second touches no file."""
    made = planned(toy)
    assert written(made, tmp_path / "a")
    packed(made.tables, tmp_path / "a", tmp_path, compress=True)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    shuffled = planned(toy, ("gfx942", "sm_90"), backwards=True)
    assert written(shuffled, tmp_path / "a") == []
    packed(shuffled.tables, tmp_path / "a", tmp_path, compress=True)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()} == before


def test_stale_files_go(toy: KernelDescription, tmp_path: Path) -> None:
    """Files of an arch that left the build are removed, packed images included; a stranger's file stays."""
    made = planned(toy)
    written(made, tmp_path / "out")
    packed(made.tables, tmp_path / "out", tmp_path, compress=True)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    written(planned(toy, ["sm_90"]), tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "scale_rows.sm_90.images.bin" in names
    assert "notes.txt" in names
    assert not {name for name in names if "gfx942" in name}


def test_duplicate_output_is_refused(toy: KernelDescription, tmp_path: Path) -> None:
    """Two tables for one kernel and arch would write one file twice: an error that names the file."""
    made = planned(toy)
    with pytest.raises(ValueError, match=r"scale_rows\.gfx942\.lut\.cc would be written twice"):
        written(replace(made, tables=(*made.tables, made.tables[0])), tmp_path)


def test_generated_cxx_compiles(toy: KernelDescription, tmp_path: Path) -> None:
    """g++ -Wall -Wextra -Werror takes every generated source, packed images included, with the runtime's headers."""
    made = planned(toy)
    written(made, tmp_path / "out")
    packed(made.tables, tmp_path / "out", tmp_path, compress=True)
    sources = sorted((tmp_path / "out").glob("*.cc"))
    # An operator's description, backends and calls; families and products; tables and images of one kernel on two archs
    # and of three on one.
    assert len(sources) == 3 + 2 + 2 * 5
    subprocess.run([*COMPILE, "-I.", "-fsyntax-only", *sources], check=True, cwd=tmp_path / "out")


def test_a_family_of_its_own_compiles(toy: KernelDescription, tmp_path: Path) -> None:
    """So does the source that registers families beside an installed library; the header of calls needs C++17 and the
    public headers only.
    """
    written(planned(toy), tmp_path, added=True)
    assert "add_family" in (tmp_path / "families.cc").read_text()
    subprocess.run([*COMPILE, f"-I{tmp_path}", "-fsyntax-only", tmp_path / "families.cc"], check=True)
    (tmp_path / "user.cc").write_text('#include "scale.h"\ntoy::scale_params made() { return {}; }\n')
    public = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/v2src/include", "-fsyntax-only"]
    subprocess.run(["g++", *public, tmp_path / "user.cc"], check=True)


def test_what_a_family_shares_with_its_own_cxx_compiles(toy: KernelDescription, tmp_path: Path) -> None:
    """Whole numbers are constants, texts by numbers a table; a family that shares none has no file."""
    shared: dict[str, Shared] = {
        "toy": {"kStep": 3, "kTexts": {1: 'a "b"', -2: "c"}},
        "other": {},
    }
    write(planned(toy), [OPERATOR], tmp_path, shared=shared)
    assert [path.name for path in tmp_path.glob("*.shared.h")] == ["toy.shared.h"]
    (tmp_path / "user.cc").write_text(
        '#include "toy.shared.h"\n'
        "using namespace aotriton::v2::toy;\n"
        "static_assert(kStep == 3 && kTexts[1].number == -2 && kTexts[0].text[2] == '\"');\n"
    )
    subprocess.run([*COMPILE, f"-I{tmp_path}", "-fsyntax-only", tmp_path / "user.cc"], check=True)


def test_embedded_images_are_the_packed_ones(toy: KernelDescription, tmp_path: Path) -> None:
    """A program that links the image files finds each image's bytes where the Image says; -I is all they need."""
    tables = [table for table in planned(toy, ["sm_90"]).tables if table.kernel is toy]
    out = tmp_path / "out"
    out.mkdir()
    packed(tuple(tables), out, tmp_path, compress=False)
    names = list(tables[0].images)
    lines = ['#include "program/image.h"', "namespace aotriton::v2::inline abi1::toy {"]
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
    """For every functional of every kernel, the build's choices give Python's godel number; a value that is not there
    none. A kernel without choices has the number 0.
    """
    operators = [operator for family in families() for operator in family.operators]
    lines = [f'#include "{operator.name}.operator.h"' for operator in operators]
    described = ", ".join(f"&{operator.family}::{operator.name}_operator" for operator in operators)
    (tmp_path / "main.cc").write_text("\n".join([*lines, NUMBER_OF.replace("OPERATORS", described)]))
    cases = []
    for place, operator in enumerate(operators):
        for kernel in operator.kernels:
            wanted = {f.godel_number: f for row in ARCHS for f in kernel.functionals(row.arch)}
            for number, functional in wanted.items():
                pairs = zip(kernel.choices, functional.values, strict=True)
                words = [f"{choice.number(value)} {value}" for choice, value in pairs]
                cases.append(" ".join([f"{place} {kernel.name} {number} {len(words)}", *words]))
            none = " ".join(["1000000000 -"] * len(kernel.choices))
            cases.append(f"{place} {kernel.name} {-1 if kernel.choices else 0} {len(kernel.choices)} {none}")
    archive, generated = from_ctest("AOTRITON_ARCHIVE"), from_ctest("AOTRITON_GENERATED")
    linked = [archive, "-ldl", "-lpthread", *(["-lz"] if b"uncompress" in Path(archive).read_bytes() else [])]
    subprocess.run([*COMPILE, f"-I{generated}", tmp_path / "main.cc", *linked, "-o", tmp_path / "main"], check=True)
    done = subprocess.run([tmp_path / "main"], input="\n".join(cases), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{len(cases)} cases"]


# Reads cases: an operator's place, a kernel, the number that is right, and each choice's value and text. Prints those
# of another number, which is -1 where a value is not there, and -2 where a text differs.
NUMBER_OF = """
#include <iostream>
#include <string>
#include <utility>
#include <vector>
using namespace aotriton::v2;
int number_of(const KernelInfo& kernel, const std::vector<std::pair<int64_t, std::string>>& values) {
  int number = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const ChoiceInfo& choice = kernel.choices[i];
    size_t place = 0;
    while (place < choice.values.size() && choice.values[place] != values[i].first) ++place;
    if (place == choice.values.size()) return -1;
    if (choice.texts[place] != values[i].second) return -2;
    number = number * static_cast<int>(choice.values.size()) + static_cast<int>(place);
  }
  return number;
}
int main() {
  const OperatorInfo* const operators[] = {OPERATORS};
  size_t place, count;
  std::string name;
  int wanted, cases = 0;
  for (; std::cin >> place >> name >> wanted >> count; ++cases) {
    std::vector<std::pair<int64_t, std::string>> values(count);
    for (auto& [value, text] : values) std::cin >> value >> text;
    bool agrees = false;
    for (const BackendInfo& backend : operators[place]->backends)
      for (const KernelInfo* kernel : backend.kernels)
        agrees |= kernel->name == name && kernel->choices.size() == count && number_of(*kernel, values) == wanted;
    if (!agrees) std::cout << name << " has not the number " << wanted << std::endl;
  }
  std::cout << cases << " cases" << std::endl;
}
"""
