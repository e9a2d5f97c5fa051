"""A made-up build: what the generator writes for every family, from made-up winners, with made-up images.

The C++ tests are built over it, so that they need neither a compiler of kernels nor what was measured. As a program,
writes it into a folder.
"""

from __future__ import annotations

import argparse
import json
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
from aotriton.codegen.costs import Models  # noqa: E402
from aotriton.codegen.plan import Plan, TablePlan, plan  # noqa: E402
from aotriton.codegen.program import MAX_STEPS, steps_of  # noqa: E402
from aotriton.codegen.render import write_if_changed  # noqa: E402
from aotriton.codegen.store import CompiledImage  # noqa: E402
from aotriton.rules import family  # noqa: E402
from aotriton.rules.arch import DTYPE_BYTES  # noqa: E402
from aotriton.rules.binning import bin_text  # noqa: E402
from aotriton.rules.database import Model, Product, Winner  # noqa: E402
from aotriton.rules.expression import LEAVES, OPERATIONS, Environment, Expression, arity, constant, evaluate  # noqa: E402
from aotriton.rules.flash.common import BF16_PRODUCTS  # noqa: E402
from aotriton.rules.flash.restrictions import LEAST_OF_HALVES  # noqa: E402
from aotriton.rules.image import ImageSpec  # noqa: E402
from aotriton.rules.kernel import Functional, KernelDescription, Value  # noqa: E402
from aotriton.rules.operators import Operator  # noqa: E402
from aotriton.rules.work import BAND, FORM, FORMS, TERMS, Work, terms  # noqa: E402

TOY = ROOT / "test" / "toy"

# By family or kernel, values of choices. Functionals that this build leaves out, as one of less coverage does:
UNCOVERED: dict[str, dict[str, Value]] = {"flash": {"BLOCK_DMODEL": 32}}
# and those that another backend than the first was never measured in:
UNMEASURED: dict[str, dict[str, Value]] = {
    "attn_fwd_hopper": {"BLOCK_DMODEL": 64},
    "attn_bwd_hopper_pair": {"BLOCK_DMODEL": 64, "CAUSAL": False},
    "attn_bwd_hopper_shares": {},
    "attn_bwd_hopper_heads": {},
    "attn_bwd_hopper_parts": {"CAUSAL": False},
    "attn_bwd_hopper_dk_dv_parts": {"CAUSAL": False},
    "gemm_hopper": {"TRANS_A": True},
}
# Those in which it lies between the first one and another one.
BETWEEN: dict[str, dict[str, Value]] = {
    "attn_bwd_hopper_pair": {"BLOCK_DMODEL": 128, "CAUSAL": True},
    "gemm_hopper": {"TRANS_B": True},
}

# The first of an arch is its usual one. On the other sm_90 the configs of all cells are exchanged, and the first
# backend is the fastest one.
PRODUCTS = {
    "sm_90": (
        Product("NVIDIA H100 80GB HBM3", "sm_90", 132, 80 << 30),
        Product("NVIDIA H200", "sm_90", 132, 141 << 30),
    ),
    "gfx942": (Product("AMD Instinct MI300X", "gfx942", 304, 192 << 30),),
}

# Microseconds of a kernel of an operator's first backend, and of a kernel of another one in the first bin of its
# first key and beyond it: there it is faster, even where it takes one kernel more, which is faster than one that lies
# between.
FIRST_US, BETWEEN_US, SLOW_US, FAST_US = 10.0, 9.0, 30.0, 4.0

# By config, the microseconds of kernels on one product: so many, and so many more for each of a term. Others have no
# models, nor has the last config of each kernel, which wins cells.
PREDICTED_ON = PRODUCTS["sm_90"][1].name
ALL_PROGRAMS, WALK = "programs, by multiprocessor", "steps of the longest program"
PREDICTED: dict[str, dict[str, tuple[float, float, str]]] = {
    "scale_rows": {
        "BLOCK_M=32 num_warps=4": (4.0, 1.0, ALL_PROGRAMS),
        "BLOCK_M=64 num_warps=4": (6.0, 1.0, ALL_PROGRAMS),
    },
    "scale_rows_fast": {"BLOCK_M=64 num_warps=4": (1.5, 0.25, WALK)},
    "scale_rows_weigh": {"num_warps=4": (4.0, 0.0, WALK)},
    "scale_rows_apply": {"BLOCK_M=64 MOST_SPLITS=4 num_warps=4": (1.0, 0.5, ALL_PROGRAMS)},
    # Alone: nothing is known of the first backend, so cells decide, and it runs where a hint asks for it.
    "attn_fwd_hopper_slim": {
        "BLOCK_N=64 CONSUMERS=2 STAGES=2 GROUP_ROUNDS=0 Q_SLOTS=1 Q_IN_REGISTERS=0 num_warps=4 maxnreg=168": (
            2.0,
            0.0,
            WALK,
        )
    },
}
# By family, the choices of what is predicted, where a kernel has them.
PREDICTED_OF: dict[str, dict[str, Value]] = {
    "toy": {"BLOCK_DMODEL": 32, "HAS_BIAS": False, "ADDRESSING": "descriptor"},
    "flash": {"BLOCK_DMODEL": 192, "CAUSAL": False, "ADDRESSING": "descriptor"},
}
PREDICTED_ERROR = 0.03125

WORKS = 600  # random ones, whose terms C++ is to work out too
EXPRESSIONS = 2000  # random ones, to be evaluated in C++ too
INT64 = range(-(2**63), 2**63)


def operators() -> list[Operator]:
    """Those of every family of the tree, and of the made-up one."""
    family.add(TOY)
    return [operator for one in family.families() for operator in one.operators]


def excepted(table: Mapping[str, Mapping[str, Value]], functional: Functional) -> bool:
    """Whether ``table`` lists the functional."""
    kernel, own = functional.kernel, functional.as_dict().items()
    return any(table[name].items() <= own for name in (kernel.family, kernel.name) if name in table)


def spec(functional: Functional, last: bool) -> ImageSpec:
    """The first config that the tuner may pick, or the last one."""
    kernel, vendor = functional.kernel, functional.arch_spec.vendor
    tunables, compile_options = (
        {name: values[-last] for name, values in table.items()}
        for table in (of_halves(kernel, vendor), kernel.compile_option_values(vendor))
    )
    return ImageSpec.of(functional, tunables, compile_options)


def of_halves(kernel: KernelDescription, vendor: str) -> dict[str, tuple[int, ...]]:
    """The values of tunables, without those that are for fp32 alone."""
    rows, columns = LEAST_OF_HALVES[vendor].get(kernel.function, (0, 0))
    least = {"BLOCK_M": rows, "BLOCK_N": columns}
    found = {
        name: tuple(value for value in values if value >= least.get(name, 0))
        for name, values in kernel.tunable_values(vendor).items()
    }
    return found | ({BF16_PRODUCTS: (0,)} if BF16_PRODUCTS in found else {})


def winner(product: Product, cell: tuple[int, ...], specs: tuple[ImageSpec, ImageSpec], first_backend: bool) -> Winner:
    """The first config where a key is in its first bin, else the last one; the other way round on an unusual product.

    cuda is measured: bf16 here, and other types borrow from it. hip is predicted.
    """
    unusual = product is not PRODUCTS[product.arch][0]
    functional, keys = specs[0].functional, specs[0].functional.kernel.tuning_keys
    short = [value == key.representatives[0] for key, value in zip(keys, cell, strict=True)]
    chosen, other = specs[any(short) == unusual], specs[any(short) != unusual]
    row: dict[str, Any] = {"provenance": "predicted", "source": "static model"}
    if functional.arch_spec.vendor == "cuda" and functional.get("T", "bf16") == "bf16":
        fast = BETWEEN_US if excepted(BETWEEN, functional) else FAST_US
        median = FIRST_US if first_backend else SLOW_US if short[0] or unusual else fast
        row = {"provenance": "measured", "median_us": median, "runners_up": ((other.config, median + 1.5),)}
        row |= {"low_us": median - 0.5, "high_us": median + 0.5, "measured": "2026-11-21"}
        row |= {"shape": json.dumps({key.name: value for key, value in zip(keys, cell, strict=True)})}
    elif functional.arch_spec.vendor == "cuda":
        row = {"provenance": "borrowed", "source": "T=bf16 in the same bin"}
    return Winner(
        arch=functional.arch,
        product=product.name,
        kernel=functional.kernel.name,
        functional=str(functional),
        bin=bin_text(keys, cell),
        image=chosen.name,
        config=chosen.config,
        **row,
    )


def winners(operator: Operator) -> list[Winner]:
    first = operator.backends[0].kernels
    found = []
    for kernel in operator.kernels:
        for functional in (one for arch in kernel.archs for one in kernel.functionals(arch)):
            if kernel in first or not excepted(UNMEASURED, functional):
                specs = spec(functional, False), spec(functional, True)
                for product in PRODUCTS[functional.arch]:
                    found += [winner(product, cell, specs, kernel in first) for cell in kernel.cells()]
    return found


def predicted() -> Models:
    """The models of PREDICTED."""
    found, configs = [], {}
    for operator in operators():
        for kernel in (one for one in operator.kernels if one.name in PREDICTED):
            wanted = PREDICTED_OF[kernel.family]
            own = {one.name: wanted[one.name] for one in kernel.choices if one.name in wanted}
            functional = kernel.functional("sm_90", T="bf16", **own)
            for place, (config, (one, each, term)) in enumerate(PREDICTED[kernel.name].items()):
                image = ImageSpec.parse(functional, config).name
                configs[image] = config
                values = {"one": one, term: each}
                made = Model(
                    arch="sm_90",
                    product=PREDICTED_ON,
                    operator=operator.name,
                    kernel=kernel.name,
                    functional=str(functional),
                    image=image,
                    form=FORM,
                    occupancy=2,
                    coefficients=tuple(values.get(name, 0.0) for name in TERMS),
                    error=PREDICTED_ERROR,
                    samples=100,
                    saves=0.5 - place / 10,
                )
                found.append(made)
    return Models(found, configs, PRODUCTS)


def planned() -> Plan:
    """The plan of the made-up build: every cell has its own winner, whatever is predicted."""
    rows = [row for operator in operators() for row in winners(operator)]
    made = plan(operators(), PRODUCTS, "full", rows, {}, models=predicted())

    def covered(table: TablePlan) -> TablePlan:
        kept = [one for one in table.functionals if not excepted(UNCOVERED, one.functional)]
        return replace(table, functionals=tuple(kept))

    return replace(made, tables=tuple(map(covered, made.tables)))


def descriptor(type_: str) -> dict[str, Any]:
    """How Triton wants the descriptor of this type encoded: rows of a box are 128 bytes at most, and swizzled so, but
    for a layout without.
    """
    dtype, _, tile = type_.removeprefix("tensordesc<").partition("[")
    block = [int(side) for side in tile.partition("]")[0].split(",")]
    if "swizzle_byte_width=0" in type_:
        return {"rank": len(block), "swizzle": 0, "block": block}
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
    entry, parameters = functional.function, " ".join(map(str, parameter_sizes(signature)))
    path = folder / made.name
    path.write_bytes(f"{made.name[-16:]}\n{entry}\n{parameters}\n".encode() + bytes(300))
    return CompiledImage(
        made.name,
        {
            "name": made.name,
            "functional": str(functional),
            "level": functional.level,
            "config": made.config,
            "entry": entry,
            "threads": functional.arch_spec.warp_size * dict(made.compile_options)["num_warps"],
            "shared": 60000 if last else 40000,  # above what CUDA gives without being asked, and below
            "global_scratch": 0,
            "descriptors": [descriptor(type_) for type_ in signature.values() if type_.startswith("tensordesc")],
            "registers": 0,
            "spills": 0,
        },
        path,
    )


def certificates(last: bool) -> list[dict[str, float]]:
    """The last image of a functional was checked on two products, the others on the second one."""
    second = {"product": 1, "day": 20261124, "problems": 12, "checks": 20, "error": 0.0021, "allowed": 0.0047}
    first = {"product": 0, "day": 20261121, "problems": 1, "checks": 2, "error": 0.0024, "allowed": 0.0048}
    return [first, second] if last else [second]


def write_images(made: Plan, out: Path, zlib: bool) -> None:
    """The images of every table; those for hip are never compressed, so that both ways of storing are there."""
    with tempfile.TemporaryDirectory() as folder:
        for table in made.tables:
            if table.functionals:
                last = {spec(one.functional, True).name for one in table.functionals}
                images = [image(one, name in last, Path(folder)) for name, one in table.images.items()]
                vendor = table.functionals[0].functional.arch_spec.vendor
                known = {one.name: certificates(one.name in last) for one in images} if vendor == "cuda" else {}
                cuda = zlib and vendor == "cuda"
                pack.write(out, table.kernel.family, table.kernel.name, table.arch, images, cuda, known)


def random_expression(chance: random.Random, depth: int) -> Expression:
    """Over eight sizes, scalars and tunables, numbered by their names."""
    if depth == 0 or chance.random() < 0.2:
        code = chance.choice([*LEAVES, "constant"])
        if code in ("size", "scalar", "tunable", "present"):
            return Expression(code, name=str(chance.randrange(8)))
        small = chance.choice([0, 1, 2, 7, 64, 1000, 2**31 - 1])
        return Expression(code) if code == "multiprocessors" else constant(chance.choice([1, -1]) * small)
    code = chance.choice(list(OPERATIONS))
    return Expression(code, tuple(random_expression(chance, depth - 1) for _ in range(arity(code))))


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
// Made by test/fake_build.py: random expressions, what they name, and what Python makes of them.
#pragma once

#include <cstdint>

#include "program/expression.h"

namespace aotriton::v2 {{

constexpr int64_t kSizes[] = {{{sizes}}};
constexpr int64_t kScalars[] = {{{scalars}}};
constexpr int32_t kTunables[] = {{{tunables}}};
constexpr bool kPresent[] = {{{present}}};
constexpr int kMultiprocessors = {multiprocessors};

{codes}

struct Case {{
  Expression code;
  std::span<const Step> steps;
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
    sizes, scalars, tunables = ([chance.choice(numbers) for _ in range(8)] for numbers in (wide, wide, narrow))

    def by_name(values: list[int]) -> dict[str, int]:
        return {str(i): value for i, value in enumerate(values)}

    environment = Environment(by_name(sizes), by_name(scalars), by_name(tunables), {"0", "3", "5"}, multiprocessors=132)
    codes, rows = [], []
    for i in range(EXPRESSIONS):
        expression = random_expression(chance, chance.randrange(6))
        code = ", ".join(f"{{Code::{one}, {number or 0}}}" for one, number in expression.postfix())
        value = value_in_64_bits(expression, environment)
        codes.append(f"constexpr Instruction kCode{i}[] = {{{code}}};")
        steps, _ = steps_of([tuple((one, int(number or 0)) for one, number in expression.postfix())])
        if len(steps) <= MAX_STEPS:
            spelled_steps = (
                f"{{Code::{one.code}, {{{', '.join(map(str, one.operands))}}}, {one.value}}}" for one in steps
            )
            codes.append(f"constexpr Step kSteps{i}[] = {{{', '.join(spelled_steps)}}};")
        of_steps = f"kSteps{i}" if len(steps) <= MAX_STEPS else "{}"
        rows.append(
            f"    {{{{kCode{i}}}, {of_steps}, {'true' if value is not None else 'false'}, {spelled(value or 0)}}},"
        )
    text = EXPRESSIONS_H.format(
        sizes=", ".join(map(spelled, sizes)),
        scalars=", ".join(map(spelled, scalars)),
        tunables=", ".join(map(spelled, tunables)),
        present=", ".join("01"[str(i) in environment.present] for i in range(8)),
        multiprocessors=environment.multiprocessors,
        codes="\n".join(codes),
        rows="\n".join(rows),
    )
    write_if_changed(out / "expressions.h", text)


WORKS_H = """\
// Made by test/fake_build.py: random works of a call, tiles and GPUs, and the terms that Python makes of them.
#pragma once

#include "program/cost.h"

namespace aotriton::v2 {{

struct WorkCase {{
  WorkOfCall work;
  Cost cost;
  double terms[kTerms];
}};
constexpr WorkCase kWorks[] = {{
{rows}
}};

}}  // namespace aotriton::v2
"""


def random_work(chance: random.Random, form: int) -> tuple[Work, int, int]:
    """One with any numbers that a call may have, a GPU's multiprocessors, and the programs that fit on one of them."""

    def number(most: int) -> Expression:
        return constant(max(1, int(most ** chance.random())))

    traffic = number(1 << 40), number(1 << 40)
    one = Work(
        rows=number(1 << 20),
        row_tile=constant(1 << chance.randrange(9)),
        outer=number(4096),
        columns=number(1 << 14),
        column_tile=constant(8 * chance.randrange(1, 33)),
        depth=number(1 << 20),
        depth_tile=constant(chance.choice([1, 16, 32, 48, 64, 128])),
        packed=constant(chance.choice([1, 1, 2, 16])),
        repeat=constant(chance.choice([1, 1, 2, 8])),
        parts=constant(chance.choice([1, 1, 1, 2, 5, 132])),
        form=constant(form),
        traffic=traffic,
        slow=constant(chance.randrange(2)),
        programs=constant(chance.choice([1, 1, 2, 3])),
        sorted_rounds=constant(chance.choice([0, 1, 2, 8])),
        hiding_rows=constant(chance.choice([0, 256])),
    )
    multiprocessors, occupancy = chance.choice([1, 7, 66, 132, 304]), chance.randrange(1, 9)
    if form == BAND:
        begin, end = sorted(chance.choice([-1, 0, 1]) * number(1 << 20).value for _ in range(2))
        one = replace(one, band=(constant(begin), constant(end)))
    return one, multiprocessors, occupancy


def write_works(out: Path) -> None:
    """Random works of all forms with their terms in Python, as C++ data."""
    chance, rows = random.Random(2), []
    for i in range(WORKS):
        one, multiprocessors, occupancy = random_work(chance, i % len(FORMS))
        environment = Environment(multiprocessors=multiprocessors)
        number = {name: evaluate(getattr(one, name), environment) for name in
                  ("outer", "rows", "packed", "columns", "depth", "repeat", "parts", "slow", "form")}  # fmt: skip
        pairs = (evaluate(end, environment) for end in (*one.band, *one.traffic))
        of_call = [*list(number.values())[:7], *pairs, number["slow"], number["form"], multiprocessors]
        of_tile = (evaluate(side, environment) for side in one.of_tile)
        wanted = ", ".join(f"{value!r}" for value in terms(one, environment, occupancy))
        tile = ", ".join(map(str, (*of_tile, occupancy)))
        rows.append(f'    {{{{{", ".join(map(str, of_call))}}}, {{{tile}, 0, "", {{}}}}, {{{wanted}}}}},')
    write_if_changed(out / "works.h", WORKS_H.format(rows="\n".join(rows)))


def write(out: Path, zlib: bool) -> None:
    """The made-up build in folder ``out``."""
    made = planned()
    shared = {one.name: one.shared for one in family.families()}
    generate.write(made, operators(), out, models=predicted(), shared=shared)
    write_images(made, out, zlib)
    write_expressions(out)
    write_works(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the made-up build")
    parser.add_argument("--compress", choices=("zlib", "none"), default="zlib", help="how images for cuda are embedded")
    options = parser.parse_args()
    write(options.out, options.compress == "zlib")


if __name__ == "__main__":
    main()
