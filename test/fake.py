"""A made-up build: what the generator writes for every family, from made-up winners, with made-up images.

The C++ tests are built over it, so that they need neither a compiler of kernels nor what was measured. As a program,
writes it into a folder.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from aotriton.codegen import generate, pack  # noqa: E402
from aotriton.codegen.plan import Plan, TablePlan, plan  # noqa: E402
from aotriton.codegen.render import write_if_changed  # noqa: E402
from aotriton.codegen.store import CompiledImage  # noqa: E402
from aotriton.rules import family  # noqa: E402
from aotriton.rules.binning import bin_text  # noqa: E402
from aotriton.rules.database import Winner  # noqa: E402
from aotriton.rules.expression import LEAVES, OPERATIONS, Environment, Expression, constant, evaluate  # noqa: E402
from aotriton.rules.image import ImageSpec  # noqa: E402
from aotriton.rules.kernel import Functional, Value  # noqa: E402
from aotriton.rules.operators import Operator  # noqa: E402
from aotriton.rules.target import DTYPE_BYTES, TARGETS  # noqa: E402

TOY = ROOT / "test" / "toy"

# By family or kernel, values of a choice. Functionals that this build leaves out, as one of less coverage does:
UNCOVERED: dict[str, tuple[str, Value]] = {"flash": ("BLOCK_DMODEL", 32)}
# and those that another backend than the first was never measured in:
UNMEASURED: dict[str, tuple[str, Value]] = {
    "attn_fwd_hopper": ("BLOCK_DMODEL", 64),
    "attn_bwd_hopper": ("BLOCK_DMODEL", 64),
    "gemm_hopper": ("TRANS_A", True),
}
# Those in which it lies between the first one and another one.
BETWEEN: dict[str, tuple[str, Value]] = {"gemm_hopper": ("TRANS_B", True)}

# Microseconds of a kernel of an operator's first backend, and of a kernel of another one in the first bin of its
# first key and beyond it: there it is faster, even where it takes one kernel more, which is faster than one that lies
# between.
FIRST_US, BETWEEN_US, SLOW_US, FAST_US = 10.0, 9.0, 30.0, 4.0

EXPRESSIONS = 2000  # random ones, to be evaluated in C++ too
INT64 = range(-(2**63), 2**63)


def operators() -> list[Operator]:
    """Those of every family of the tree, and of the made-up one."""
    family.add(TOY)
    return [operator for one in family.families() for operator in one.operators]


def excepted(table: Mapping[str, tuple[str, Value]], functional: Functional) -> bool:
    """Whether ``table`` lists the functional."""
    kernel = functional.kernel
    return any(functional.get(*table[name]) == table[name][1] for name in (kernel.family, kernel.name) if name in table
               and table[name][0] in functional.as_dict())  # fmt: skip


def spec(functional: Functional, last: bool) -> ImageSpec:
    """The first config that the tuner may pick, or the last one."""
    kernel, vendor = functional.kernel, functional.target.vendor
    psels, copts = (
        {name: values[-last] for name, values in table.items()}
        for table in (kernel.psel_values(vendor), kernel.copt_values(vendor))
    )
    return ImageSpec.of(functional, psels, copts)


def winner(cell: tuple[int, ...], specs: tuple[ImageSpec, ImageSpec], first_backend: bool) -> Winner:
    """The first config where a key is in its first bin, else the last one.

    cuda is measured: bf16 here, and other types borrow from it. hip is predicted.
    """
    functional, keys = specs[0].functional, specs[0].functional.kernel.tuning_keys
    short = [value == key.representatives[0] for key, value in zip(keys, cell, strict=True)]
    chosen, other = specs[not any(short)], specs[any(short)]
    row: dict[str, Any] = {"provenance": "predicted", "source": "static model"}
    if functional.target.vendor == "cuda" and functional["T"] == "bf16":
        fast = BETWEEN_US if excepted(BETWEEN, functional) else FAST_US
        median = FIRST_US if first_backend else SLOW_US if short[0] else fast
        row = {"provenance": "measured", "median_us": median, "runners_up": ((other.config, median + 1.5),)}
    elif functional.target.vendor == "cuda":
        row = {"provenance": "borrowed", "source": "T=bf16 in the same bin"}
    return Winner(
        arch=functional.arch,
        kernel=functional.kernel.name,
        functional=str(functional),
        bin=bin_text(keys, cell),
        image=chosen.name,
        psels=dict(chosen.psels),
        copts=dict(chosen.copts),
        **row,
    )


def winners(operator: Operator) -> list[Winner]:
    first = operator.backends[0].kernels
    found = []
    for kernel in operator.kernels:
        for functional in (one for arch in kernel.archs for one in kernel.functionals(arch)):
            if kernel in first or not excepted(UNMEASURED, functional):
                specs = spec(functional, False), spec(functional, True)
                found += [winner(cell, specs, kernel in first) for cell in kernel.cells()]
    return found


def planned() -> Plan:
    """The plan of the made-up build."""
    rows = [row for operator in operators() for row in winners(operator)]
    made = plan(operators(), [row.arch for row in TARGETS], "default", rows, {})

    def covered(table: TablePlan) -> TablePlan:
        kept = [one for one in table.functionals if not excepted(UNCOVERED, one.functional)]
        return replace(table, functionals=tuple(kept))

    return Plan(tuple(map(covered, made.tables)), made.operators)


def descriptor(type_: str) -> dict[str, Any]:
    """How Triton wants the descriptor of this type encoded: rows of a box are 128 bytes at most, and swizzled so."""
    dtype, _, tile = type_.removeprefix("tensordesc<").partition("[")
    block = [int(side) for side in tile.partition("]")[0].split(",")]
    block[-1] = min(block[-1], 128 // DTYPE_BYTES[dtype])
    swizzle = {32: 1, 64: 2, 128: 3}[block[-1] * DTYPE_BYTES[dtype]]
    return {"rank": len(block), "swizzle": swizzle, "block": block}


def parameter_sizes(signature: Mapping[str, str]) -> list[int]:
    """Bytes of each parameter that Triton compiles from this signature."""
    sizes = []
    for type_ in signature.values():
        if type_.startswith("tensordesc"):
            rank = descriptor(type_)["rank"]
            sizes += [128] + [4] * rank + [8] * rank
        elif type_ != "constexpr":
            sizes.append(4 if type_ in ("i32", "fp32") else 8)
    return [*sizes, 8, 8]  # scratch memory


def image(made: ImageSpec, last: bool, folder: Path) -> CompiledImage:
    """A text for an image: the end of its name, in the 16 bytes that a recording keeps, its entry and parameters."""
    functional, signature = made.functional, made.compiler_request()["signature"]
    entry, parameters = functional.kernel.name, " ".join(map(str, parameter_sizes(signature)))
    path = folder / made.name
    path.write_bytes(f"{made.name[-16:]}\n{entry}\n{parameters}\n".encode() + bytes(300))
    return CompiledImage(
        made.name,
        {
            "name": made.name,
            "functional": str(functional),
            "config": made.config,
            "entry": entry,
            "threads": functional.target.warp_size * dict(made.copts)["num_warps"],
            "shared": 60000 if last else 40000,  # above what CUDA gives without being asked, and below
            "global_scratch": 0,
            "descriptors": [descriptor(type_) for type_ in signature.values() if type_.startswith("tensordesc")],
            "registers": 0,
            "spills": 0,
        },
        path,
    )


def write_images(made: Plan, out: Path, zlib: bool) -> None:
    """The images of every table; those for hip are never compressed, so that both ways of storing are there."""
    with tempfile.TemporaryDirectory() as folder:
        for table in made.tables:
            if table.functionals:
                last = {spec(one.functional, True).name for one in table.functionals}
                images = [image(one, name in last, Path(folder)) for name, one in table.images.items()]
                vendor = table.functionals[0].functional.target.vendor
                pack.write(out, table.kernel.family, table.kernel.name, table.arch, images, zlib and vendor == "cuda")


def random_expression(chance: random.Random, depth: int) -> Expression:
    """Over eight sizes, scalars and psels, numbered by their names."""
    if depth == 0 or chance.random() < 0.2:
        code = chance.choice([*LEAVES, "constant"])
        if code in ("size", "scalar", "psel", "present"):
            return Expression(code, name=str(chance.randrange(8)))
        small = chance.choice([0, 1, 2, 7, 64, 1000, 2**31 - 1])
        return Expression(code) if code == "multiprocessors" else constant(chance.choice([1, -1]) * small)
    code = chance.choice(list(OPERATIONS))
    arity = {"negate": 1, "choose": 3}.get(code, 2)
    return Expression(code, tuple(random_expression(chance, depth - 1) for _ in range(arity)))


def value_in_64_bits(expression: Expression, environment: Environment) -> int | None:
    """As ``evaluate``; None where a number on the way does not fit, or a divisor is not positive."""
    operands = [value_in_64_bits(one, environment) for one in expression.operands]
    fitting = [one for one in operands if one is not None]
    if len(fitting) < len(operands) or (expression.code == "ceil_divide" and fitting[1] <= 0):
        return None
    value = evaluate(replace(expression, operands=tuple(map(constant, fitting))), environment)
    return value if value in INT64 else None


def spelled(value: int) -> str:
    return "INT64_MIN" if value == INT64.start else str(value)


EXPRESSIONS_H = """\
// Made by test/fake.py: random expressions, what they name, and what Python makes of them.
#pragma once

#include <cstdint>

#include "expression.h"

namespace aotriton::v2 {{

constexpr int64_t kSizes[] = {{{sizes}}};
constexpr int64_t kScalars[] = {{{scalars}}};
constexpr int32_t kPsels[] = {{{psels}}};
constexpr bool kPresent[] = {{{present}}};
constexpr int kMultiprocessors = {multiprocessors};

{codes}

struct Case {{
  Expression code;
  bool fits;
  int64_t value;
}};
constexpr Case kExpressions[] = {{
{rows}
}};

}}  // namespace aotriton::v2
"""


def write_expressions(out: Path) -> None:
    """Random expressions with their values in Python, as C++ data."""
    chance = random.Random(1)
    narrow = [0, 1, -1, 2, 3, 64, 127, 65536, 2**31 - 1]
    wide = [*narrow, 2**31, 2**40, -(2**62), 2**63 - 1, -(2**63)]
    sizes, scalars, psels = ([chance.choice(numbers) for _ in range(8)] for numbers in (wide, wide, narrow))

    def by_name(values: list[int]) -> dict[str, int]:
        return {str(i): value for i, value in enumerate(values)}

    environment = Environment(by_name(sizes), by_name(scalars), by_name(psels), {"0", "3", "5"}, multiprocessors=132)
    codes, rows = [], []
    for i in range(EXPRESSIONS):
        expression = random_expression(chance, chance.randrange(6))
        code = ", ".join(f"{{Code::{one}, {number or 0}}}" for one, number in expression.postfix())
        value = value_in_64_bits(expression, environment)
        codes.append(f"constexpr Instruction kCode{i}[] = {{{code}}};")
        rows.append(f"    {{kCode{i}, {'true' if value is not None else 'false'}, {spelled(value or 0)}}},")
    text = EXPRESSIONS_H.format(
        sizes=", ".join(map(spelled, sizes)),
        scalars=", ".join(map(spelled, scalars)),
        psels=", ".join(map(spelled, psels)),
        present=", ".join("01"[str(i) in environment.present] for i in range(8)),
        multiprocessors=environment.multiprocessors,
        codes="\n".join(codes),
        rows="\n".join(rows),
    )
    write_if_changed(out / "expressions.h", text)


def write(out: Path, zlib: bool) -> None:
    """The made-up build in folder ``out``."""
    made = planned()
    generate.write(made, operators(), out)
    write_images(made, out, zlib)
    write_expressions(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the made-up build")
    parser.add_argument("--compress", choices=("zlib", "none"), default="zlib", help="how images for cuda are embedded")
    options = parser.parse_args()
    write(options.out, options.compress == "zlib")


if __name__ == "__main__":
    main()
