"""Claims about lookup tables: bins, godel numbers and indices mean the same in Python and in C++."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import pytest
from fp8_cases import types_of
from hypothesis import given
from hypothesis import strategies as st
from test_golden import COMPILE
from toy.rules import PORTABLE
from toy_database import database, spec, usual

from aotriton.codegen import cxx
from aotriton.codegen.lut import lut
from aotriton.codegen.plan import Cell, FunctionalPlan, plan
from aotriton.codegen.program import LIMITS
from aotriton.codegen.render import render
from aotriton.rules.arch import arch_spec
from aotriton.rules.binning import TuningKey
from aotriton.rules.family import IN_TREE, family
from aotriton.rules.kernel import KernelDescription

KERNELS = [kernel for name in IN_TREE for kernel in family(name).kernels]

representatives = st.sets(st.integers(1, 2**31 - 1), min_size=1, max_size=6).map(lambda found: tuple(sorted(found)))


def cxx_bin_of(representatives: tuple[int, ...], value: int) -> int:
    """Lut::bin_of of lut.h, word for word; test_cxx_lookup_agrees runs the original."""
    bin = 0
    while bin + 1 < len(representatives) and value > representatives[bin]:
        bin += 1
    return bin


@given(representatives, st.data())
def test_bin_edges(edges: tuple[int, ...], data: st.DataObject) -> None:
    """A value, at edges too, falls in the first bin whose representative is not smaller; the last bin is open-ended."""
    key = TuningKey("n", edges)
    edge = data.draw(st.sampled_from(edges))
    for value in (edge - 1, edge, edge + 1, data.draw(st.integers(0, 2**40))):
        assert key.bin_of(value) == cxx_bin_of(edges, value)
    assert edges[key.bin_of(edge)] == edge


def _of_arch(values: Mapping[str, Any], arch: str) -> bool:
    """Whether the arch has the way to reach tensors and the type of 8 bits that these values of choices name."""
    spec = arch_spec(arch)
    return values.get("ADDRESSING", "general") in spec.addressing and types_of(values) <= {spec.fp8}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_godel_numbers_are_bijective(kernel: KernelDescription) -> None:
    """Over its archs, functionals and the numbers 0 .. functional_count - 1 map one to one, ascending on each arch, but
    for the numbers of functionals that no call has.
    """
    numbers: dict[str, int] = {}
    for arch in ("sm_90", "gfx942"):
        of_arch = {str(functional): functional.godel_number for functional in kernel.functionals(arch)}
        assert list(of_arch.values()) == sorted(of_arch.values())
        assert all(numbers.get(text, number) == number for text, number in of_arch.items())
        numbers |= of_arch
    assert len(set(numbers.values())) == len(numbers)
    assert set(numbers.values()) <= set(range(kernel.functional_count))
    names = [choice.name for choice in kernel.choices]
    every = [dict(zip(names, values, strict=True)) for values in product(*(one.values for one in kernel.choices))]
    called = [one for one in every if not any(row.items() <= one.items() for row in kernel.impossible)]
    of_some = [one for one in called if any(map(partial(_of_arch, one), ("sm_90", "gfx942")))]
    assert len(numbers) == len(of_some)


def test_too_many_images(toy: KernelDescription) -> None:
    """A functional with more images than a uint8_t can name is an error that says which and how many."""
    (table,) = plan([PORTABLE], usual("sm_90"), "full", database(toy)[0], {}).tables
    planned = table.functionals[0]
    specs = [spec(planned.functional, 32 + n) for n in range(257)]
    many = tuple(Cell((64, 1), given, given.name, "predicted", "", 0.0, ()) for given in specs)
    assert len(lut(FunctionalPlan(planned.functional, (many[:100], many[100:256]))).entries) == 256
    with pytest.raises(ValueError, match=r"scale_rows sm_90 F0 \(T=bf16 .*\): 257 images, and the index can name 256"):
        lut(FunctionalPlan(planned.functional, (many[:100], many[100:])))


def test_entries_are_distinct_and_used(toy: KernelDescription) -> None:
    """Each image of a functional is one entry, every entry serves a cell, and each cell has its own runners-up. Cells
    share origins that are alike.
    """
    for table in plan([PORTABLE], usual("sm_90", "gfx942"), "default", *database(toy)).tables:
        for planned in table.functionals:
            made = lut(planned)
            flat = [entry for one in made.products for entry in one.entries]
            found = [origin for one in made.products for origin in one.origins_of_cells]
            assert set(flat) == set(range(len(made.entries)))
            assert len({entry.image for entry in made.entries}) == len(made.entries)
            for cell, entry, origin in zip(planned.cells, flat, found, strict=True):
                assert made.entries[entry].image == cell.spec.name
                assert made.runners_up[origin.first : origin.first + origin.count] == cell.runners_up


def test_cxx_lookup_agrees(tmp_path: Path) -> None:
    """Lut::cell of lut.h finds Python's cell for values at, beside and far beyond every edge of every kernel's keys."""
    lines = ['#include "program/lut.h"', "using namespace aotriton::v2;", "int main() {", "  int bad = 0;"]
    for kernel in KERNELS:
        lines.append("  {")
        for place, key in enumerate(kernel.tuning_keys):
            lines.append(f"    static constexpr int32_t k{place}[] = {{{', '.join(map(str, key.representatives))}}};")
        names = ", ".join(f"k{place}" for place in range(len(kernel.tuning_keys)))
        lines.append(f"    static constexpr std::span<const int32_t> bins[] = {{{names}}};")
        lines.append('    constexpr Lut lut{"", bins, {}, {}};')
        for values in beside_edges(kernel):
            cell = 0
            for key, value in zip(kernel.tuning_keys, values, strict=True):
                cell = cell * len(key.representatives) + key.bin_of(value)
            keys = ", ".join(map(str, values))
            lines.append(f"    {{ const int64_t keys[] = {{{keys}}}; bad += lut.cell(keys) != {cell}; }}")
        lines.append("  }")
    (tmp_path / "main.cc").write_text("\n".join([*lines, "  return bad != 0;", "}\n"]))
    (tmp_path / "program_limits.h").write_text(render("program_limits.h", limits=LIMITS))
    subprocess.run([*COMPILE, f"-I{tmp_path}", tmp_path / "main.cc", "-o", tmp_path / "main"], check=True)
    subprocess.run([tmp_path / "main"], check=True)


def beside_edges(kernel: KernelDescription) -> Iterator[list[int]]:
    """Values of the tuning keys, one of them at or beside an edge of its bins or far beyond the last."""
    for place, moved in enumerate(kernel.tuning_keys):
        for edge in (*moved.representatives, 2**33):
            for value in (edge - 1, edge, edge + 1):
                values = [key.representatives[0] + 1 for key in kernel.tuning_keys]
                values[place] = value
                yield values


@given(st.text())
def test_string_literals_survive(text: str) -> None:
    """A literal spells just its text's UTF-8: nothing ends it early, forms a trigraph or runs into a longer escape."""
    spelled = cxx.string(text)
    assert spelled.isascii()
    assert spelled.isprintable()
    assert "??" not in spelled
    assert spelled[1:-1].replace("\\?", "?").encode().decode("unicode_escape").encode("latin-1") == text.encode()


@given(st.floats(0, 1e9))
def test_float_literals(value: float) -> None:
    """A time is spelled as a C++ float, not an integer with a suffix, to six digits."""
    spelled = cxx.literal(value)
    assert spelled.endswith("f")
    assert "." in spelled or "e" in spelled
    assert float(spelled[:-1]) == pytest.approx(value, rel=1e-5)


def test_other_literals() -> None:
    """Infinities are spelled so that they need no header, truth values and whole numbers as C++ has them; None is 0."""
    assert [cxx.literal(value) for value in (inf, -inf)] == ["__builtin_inff()", "-__builtin_inff()"]
    assert [cxx.literal(value) for value in (True, False, 7, -7, None, 0.0)] == [
        "true",
        "false",
        "7",
        "-7",
        "0.0f",
        "0.0f",
    ]
