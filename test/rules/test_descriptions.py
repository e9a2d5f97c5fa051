"""Claims about wrong descriptions: each is refused with the operator or kernel, and with the name that is off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from toy.rules import ACCESS, APPLY, FAST, KERNEL, OPERATOR, PARTIAL, PORTABLE, ROWS, WAVES, WEIGH, WIDTH, X

from aotriton.codegen import program
from aotriton.codegen.program import operator_program
from aotriton.rules import expression as e
from aotriton.rules.binning import TuningKey
from aotriton.rules.kernel import (
    Choice,
    Constexpr,
    Guard,
    KernelDescription,
    Number,
    Operand,
    Parameter,
    Stride,
    Tensor,
    strides,
)
from aotriton.rules.operators import Backend, DerivedSize, Operator, Scalar

Wrong = tuple[Callable[[], object], str]


def kernel(**changes: Any) -> Callable[[], object]:
    return lambda: replace(KERNEL, **changes)


def operator(**changes: Any) -> Callable[[], object]:
    return lambda: replace(OPERATOR, **changes)


def with_argument(*more: object) -> Callable[[], object]:
    return kernel(arguments=(*KERNEL.arguments, *more))


def adding(of: KernelDescription) -> KernelDescription:
    """The kernel, adding to what it writes."""
    arguments = (
        replace(one, does="add") if isinstance(one, Tensor) and one.access == "write" else one for one in of.arguments
    )
    return replace(of, arguments=tuple(arguments))


UNROLL = Parameter("UNROLL", {"cuda": (1, 2)})
HIP_UNROLL = Parameter("UNROLL", {"hip": (1,)})

DESCRIPTIONS: dict[str, Wrong] = {
    "an argument twice": (with_argument(KERNEL.arguments[0]), r"scale_rows: an argument name appears twice in \['X', "),
    "a choice twice": (kernel(choices=(*KERNEL.choices, ACCESS)), r"scale_rows: .* appears twice in \[.*'ADDRESSING'"),
    "several configs, and not timed": (
        kernel(timed=False),
        "scale_rows: it is not timed, so BLOCK_M has one value",
    ),
    "a tunable and a compile option of one name": (
        kernel(compile_options=(*KERNEL.compile_options, UNROLL)),
        r"scale_rows: a choice, tunable or compile option appears twice in \[.*'UNROLL'",
    ),
    "a constexpr of nothing": (
        with_argument(Constexpr("BLOCK_Z")),
        "scale_rows: constexpr BLOCK_Z is neither a choice nor a tunable",
    ),
    "a constexpr that is a compile option": (
        with_argument(Constexpr("num_warps")),
        "scale_rows: constexpr num_warps is neither a choice nor a tunable",
    ),
    "a schedule of an unknown tunable": (
        lambda: operator_program(
            replace(PORTABLE, backends=(Backend("portable", (replace(KERNEL, schedule=e.tunable("ORDER")),)),))
        ),
        "scale: scale_rows names tunable ORDER, but there are: BLOCK_M, UNROLL",
    ),
    "a source of a level that is none": (
        kernel(sources={4: "scale_rows_fast"}),
        r"scale_rows: sources of \[4\], of the levels \[0\]",
    ),
    "a level beyond": (
        kernel(choices=(*KERNEL.choices, Choice("LEVEL", (0, 8), e.scalar("times"), default=0, levels=True))),
        r"scale_rows: sources of \[\], of the levels \[0, 8\]",
    ),
    "two choices of levels": (
        kernel(
            choices=(
                *KERNEL.choices,
                *(Choice(name, (0, 1), e.scalar("times"), levels=True) for name in ("LEVEL", "PAGED")),
            )
        ),
        "scale_rows: two choices are its levels",
    ),
    "an argument of levels that are none": (
        kernel(arguments=(*KERNEL.arguments, Number("more", "i32", e.scalar("times"), levels=(4,)))),
        r"scale_rows: more is of levels that it has none of: \(4,\)",
    ),
    "a number of a level beyond": (
        lambda: Number("times", "i32", e.scalar("times"), levels=(8,)),
        r"times: levels are from 0 to 7, got \(8,\)",
    ),
    "a cut that a result has not": (operator(cut="taps"), r"scale: y cannot be cut along taps, it has \('batch', "),
    "a cut that an operand has twice": (
        operator(operands=(*OPERATOR.operands, Operand("pairs", ("batch", "batch"))), cut="batch"),
        r"scale: pairs cannot be cut along batch, it has \('batch', 'batch'\)",
    ),
    "a sum in any order that no call can refuse": (
        operator(
            backends=(
                *PORTABLE.backends,
                Backend("split", (adding(WEIGH), APPLY), (PARTIAL,), OPERATOR.backends[2].sizes),
            )
        ),
        "scale: scale_rows_weigh adds in any order, and there is no scalar deterministic",
    ),
    "a stride of no tensor": (
        with_argument(Stride("Z", 0, "b")),
        "scale_rows: stride_z_b is of no dimension of a tensor",
    ),
    "a stride of a fifth dimension": (with_argument(Stride("X", 4, "z")), "scale_rows: stride_x_z is of no dimension"),
    "a block of an unknown name": (
        with_argument(Tensor("Z", X, block=(1, 1, "BLOCK_Z", 32))),
        "scale_rows: BLOCK_Z in Z's block is neither a choice nor a tunable",
    ),
    "a block of an unknown name in an expression": (
        with_argument(Tensor("Z", X, block=(1, 1, e.tunable("BLOCK_Z") * 2, 32))),
        "scale_rows: BLOCK_Z in Z's block is neither a choice nor a tunable",
    ),
    "a block of a size": (
        with_argument(Tensor("Z", X, block=(1, 1, e.size("rows"), 32))),
        "scale_rows: rows in Z's block is neither a choice nor a tunable",
    ),
    "a block of three sides": (
        with_argument(Tensor("Z", X, block=(1, "BLOCK_M", 32))),
        "scale_rows: Z's block has not 4 sides",
    ),
    "an impossible value of an unknown choice": (
        kernel(impossible=({"BLOCK_DMODEL": 32, "TRANS": True},)),
        r"scale_rows: {'BLOCK_DMODEL': 32, 'TRANS': True} is impossible, but is no combination of its choices",
    ),
    "an impossible value that is not there": (
        kernel(impossible=({"BLOCK_DMODEL": 48},)),
        r"scale_rows: {'BLOCK_DMODEL': 48} is impossible, but is no combination of its choices",
    ),
    "a tunable without values on a vendor": (
        kernel(tunables=(KERNEL.tunables[0], UNROLL)),
        "scale_rows: tunable UNROLL has neither values for hip nor a default",
    ),
    "a tunable without values on the other vendor": (
        lambda: replace(FAST, tunables=(FAST.tunables[0], HIP_UNROLL)),
        "scale_rows_fast: tunable UNROLL has neither values for cuda nor a default",
    ),
    "an operand of an unknown type": (
        lambda: replace(X, dtype="fp8"),
        r"operand x: dtype must be T or among \('fp16', 'bf16', 'fp32', 'i32', 'i64', .*\), not 'fp8'",
    ),
    "an operand of two layouts": (
        lambda: replace(X, contiguous=True, strided=True),
        "operand x: contiguous or strided, not both",
    ),
    "a tensor that is used in an unknown way": (
        lambda: Tensor("Partial", PARTIAL, does="sum"),
        "Partial: does must be read, write, add or scratch, not 'sum'",
    ),
    "a general tensor that is reached by blocks": (
        lambda: Tensor("X", X, block=(1, 1, "BLOCK_M", "BLOCK_DMODEL"), general=True),
        "X: general addressing has no block",
    ),
    "a box with rows of its own, of packed heads": (
        lambda: Tensor("X", X, block=(1, 1, 16, 1, 32), packed=e.constant(2), box_rows=e.constant(32)),
        "X: a box with rows of its own has four dimensions, a block and nothing packed",
    ),
    "a tensor of an unknown level": (
        lambda: Tensor("X", X, levels=(0, 8)),
        r"X: levels are from 0 to 7, got \(0, 8\)",
    ),
    "a stride that other levels have than its tensor": (
        lambda: replace(
            KERNEL, arguments=(*KERNEL.arguments, Tensor("Z", X, levels=(0,)), *strides("bhs", "Z", levels=(0, 1)))
        ),
        "scale_rows: stride_z_b is of other levels than Z",
    ),
    "a tunable of an unknown vendor": (
        lambda: Parameter("UNROLL", {"rocm": (1, 2)}),
        r"UNROLL: 'rocm' must be a vendor with values, got \(1, 2\)",
    ),
    "a compile option without values": (
        lambda: Parameter("num_warps", {"cuda": ()}),
        r"num_warps: 'cuda' must be a vendor with values, got \(\)",
    ),
    "a grid of two axes": (kernel(grid=KERNEL.grid[:2]), "scale_rows: the grid has 2 axes, not 3"),
    "an unknown capability": (kernel(needs=("tmem",)), r"needs \('tmem',\), but there are: tma, wgmma, buffer"),
    "an unknown arch": (kernel(archs=("sm_90", "sm_42")), "unknown arch 'sm_42': choose from sm_90, gfx942"),
    "a number of an unknown type": (
        lambda: Number("n", "i8", e.size("rows")),
        "n: dtype must be i32, i64 or fp32, not 'i8'",
    ),
    "a real number that is no scalar": (
        lambda: Number("n", "fp32", e.scalar("factor") * 2),
        "n: a number of type fp32 must be a scalar of the operator",
    ),
    "a choice of nothing": (
        lambda: replace(WIDTH, values=()),
        "choice BLOCK_DMODEL: values must be distinct and not empty",
    ),
    "a choice of a value twice": (
        lambda: replace(WIDTH, values=(32, 64, 64)),
        r"choice BLOCK_DMODEL: values must be distinct and not empty, got \(32, 64, 64\)",
    ),
    "another default": (
        lambda: replace(WIDTH, default=48),
        r"choice BLOCK_DMODEL: 48 is not among its values \(32, 64\)",
    ),
    "another small value": (lambda: replace(WIDTH, small=48), "choice BLOCK_DMODEL: 48 is not among its values"),
    "another value to measure": (
        lambda: replace(WIDTH, measured_as=48),
        "choice BLOCK_DMODEL: 48 is not among its values",
    ),
    "values that round up and do not ascend": (
        lambda: replace(WIDTH, values=(64, 32)),
        r"choice BLOCK_DMODEL: values that round up must ascend, got \(64, 32\)",
    ),
    "an unknown element type": (
        lambda: Choice("T", ("bf16", "fp8"), e.dtype()),
        r"choice T: 'fp8' is not among \('none', 'fp16', 'bf16', 'fp32', 'i32', 'i64', .*\)",
    ),
    "an unknown addressing": (
        lambda: Choice("A", ("far",), e.addressing()),
        r"choice A: 'far' is not among \('general', 'offset32', 'descriptor'\)",
    ),
    "a text for a number": (lambda: Choice("N", ("many",), e.size("rows")), "choice N: 'many' is not a number"),
    "a value that no choice has": (lambda: WIDTH.read("48"), r"BLOCK_DMODEL must be among \(32, 64\), not 48"),
    "bins that do not ascend": (lambda: TuningKey("rows", (512, 64)), "rows: representatives must ascend strictly"),
    "a key without bins": (lambda: TuningKey("rows", ()), "rows: representatives must ascend strictly"),
    "a scalar of an unknown type": (lambda: Scalar("s", "i64"), "scalar s: dtype must be fp32, i32 or bool, not 'i64'"),
    "a scalar called as a size": (
        operator(scalars=(*OPERATOR.scalars, Scalar("rows", "i32"))),
        r"scale: a size, operand, workspace tensor or scalar appears twice in \[.*'rows'",
    ),
    "a derived size that is given": (
        operator(
            backends=(
                *PORTABLE.backends,
                Backend("split", (WEIGH, APPLY), (PARTIAL,), (DerivedSize("rows", e.size("taps")),)),
            )
        ),
        r"scale: a size, operand, workspace tensor or scalar appears twice in \[.*'rows'",
    ),
    "a derived size that is derived twice": (
        operator(
            backends=(
                *PORTABLE.backends,
                Backend("split", (WEIGH, APPLY), (PARTIAL,), (DerivedSize("splits", e.size("taps")),) * 2),
            )
        ),
        "scale: backend split derives a size twice",
    ),
    "a choice that the lead lacks": (
        operator(backends=(Backend("first", (WEIGH,), (PARTIAL,)), *PORTABLE.backends)),
        "scale: scale_rows has a choice or a tuning key that scale_rows_weigh lacks",
    ),
    "a key that the lead lacks": (
        lambda: replace(
            PORTABLE, backends=(*PORTABLE.backends, Backend("x", (replace(FAST, tuning_keys=(TuningKey("n", (1,)),)),)))
        ),
        "scale: scale_rows_fast has a choice or a tuning key that scale_rows lacks",
    ),
    "a key of other bins": (
        lambda: replace(
            PORTABLE,
            backends=(
                *PORTABLE.backends,
                Backend("x", (replace(FAST, tuning_keys=(replace(ROWS, representatives=(64,)),)),)),
            ),
        ),
        "scale: scale_rows_fast has a choice or a tuning key that scale_rows lacks",
    ),
    "a tensor that the operator has not": (
        operator(operands=tuple(one for one in OPERATOR.operands if one.name != "bias")),
        "scale: Bias of scale_rows is no operand of the operator, nor a workspace tensor of backend portable",
    ),
    "a workspace tensor that the backend has not": (
        operator(backends=(*PORTABLE.backends, Backend("split", (WEIGH, APPLY)))),
        "scale: Partial of scale_rows_weigh is no operand of the operator, nor a workspace tensor of backend split",
    ),
    "an operand that is another one of the same name": (
        operator(operands=(replace(X, alignment=16), *OPERATOR.operands[1:])),
        "scale: X of scale_rows is no operand of the operator",
    ),
    "no backend": (operator(backends=()), r"scale: backends must have names of their own, got \[\]"),
    "two backends of one name": (
        operator(backends=(*PORTABLE.backends, Backend("portable", (FAST,)))),
        r"scale: backends must have names of their own, got \['portable', 'portable'\]",
    ),
    "a backend without a kernel": (
        operator(backends=(*PORTABLE.backends, Backend("split", ()))),
        "scale: backend split has no kernel",
    ),
    "a first kernel that begins early": (
        operator(
            backends=(*PORTABLE.backends, Backend("split", (replace(WEIGH, begins_early=True), APPLY), (PARTIAL,)))
        ),
        "scale: scale_rows_weigh begins early, and is the first of backend split",
    ),
    "two kernels of one name": (
        lambda: replace(PORTABLE, backends=(*PORTABLE.backends, Backend("x", (replace(KERNEL, gluon=True),)))).kernels,
        "two kernels are called scale_rows",
    ),
}


@pytest.mark.parametrize("what", DESCRIPTIONS)
def test_a_wrong_description_is_refused(what: str) -> None:
    """At once, when it is made; the right ones that they begin with are fine."""
    make, message = DESCRIPTIONS[what]
    with pytest.raises(ValueError, match=message):
        make()


def test_an_optional_result_may_lack_the_size_of_the_cut() -> None:
    """Calls that do not ask for it are cut; what is only read may lack the size, too."""
    sums = Operand("sums", ("heads",), written=True, optional=True)
    made = replace(OPERATOR, operands=(*OPERATOR.operands, sums, Operand("mean", ("heads",))))
    assert operator_program(made).cut == made.sizes.index("batch")
    with pytest.raises(ValueError, match=r"scale: sums cannot be cut along batch, it has \('heads',\)"):
        replace(made, operands=(*OPERATOR.operands, replace(sums, optional=False)))


def test_options_have_names() -> None:
    """Those that are not given are called as the choice or the key."""
    assert Choice("HAS_BIAS", (False, True), e.present("bias")).option == "has-bias"
    assert TuningKey("max_rows", (64,)).option == "max-rows"
    assert (WIDTH.option, WIDTH.narrowed(32).option, ROWS.option) == ("width", "width", "rows")


def numbered(**changes: Any) -> Callable[[], object]:
    """The program of the operator whose first kernel is changed."""
    made = replace(PORTABLE, backends=(Backend("portable", (replace(KERNEL, **changes),)),))
    return lambda: operator_program(made)


def numbered_operator(**changes: Any) -> Callable[[], object]:
    made: Operator = replace(OPERATOR, **changes)
    return lambda: operator_program(made)


def many(count: int, **changes: Any) -> tuple[Operand, ...]:
    """The operands, and so many more."""
    made = tuple(Operand(f"more{n}", ("batch",), **changes) for n in range(count))
    return (*OPERATOR.operands, *made)


def backend(name: str, count: int) -> Backend:
    """A backend of so many kernels."""
    return Backend(name, tuple(replace(KERNEL, name=f"{name}{n}") for n in range(count)))


DEEP = e.size("rows")
for _ in range(program.DEPTH):
    DEEP = e.size("batch") + DEEP

NAMES: dict[str, Wrong] = {
    "a size in the grid": (
        numbered(grid=(e.tiles("columns", "BLOCK_M"), e.constant(1), e.constant(1))),
        "scale: scale_rows names size columns, but there are: batch, heads, rows, width, taps$",
    ),
    "a tunable in the grid": (
        numbered(grid=(e.tiles("rows", "BLOCK_Z"), e.constant(1), e.constant(1))),
        "scale: scale_rows names tunable BLOCK_Z, but there are: BLOCK_M, UNROLL$",
    ),
    "a compile option in the grid": (
        numbered(grid=(e.tiles("rows", "num_warps"), e.constant(1), e.constant(1))),
        "scale: scale_rows names tunable num_warps, but there are: BLOCK_M, UNROLL$",
    ),
    "a scalar in a guard": (
        numbered(guards=(Guard(e.scalar("often") <= 1, "it is often"),)),
        "scale: scale_rows names scalar often, but there are: factor, times$",
    ),
    "an operand in a choice": (
        numbered(choices=(*KERNEL.choices, Choice("MASK", (0, 1), e.present("mask")))),
        "scale: scale_rows names present mask, but there are: x, w, bias, y$",
    ),
    "a size in a key": (
        numbered(tuning_keys=(*KERNEL.tuning_keys, TuningKey("n", (1,), e.size("columns")))),
        "scale: scale_rows names size columns, but there are",
    ),
    "a size in a number": (
        numbered(arguments=(*KERNEL.arguments, Number("n", "i32", e.size("columns")))),
        "scale: scale_rows names size columns, but there are",
    ),
    "a size that no backend derives": (
        numbered(arguments=(*KERNEL.arguments, Number("n", "i32", e.size("splits")))),
        "scale: scale_rows names size splits, but there are: batch, heads, rows, width, taps$",
    ),
    "a scalar in a real number": (
        numbered(arguments=(*KERNEL.arguments, Number("n", "fp32", e.scalar("slope")))),
        "scale: scale_rows names scalar slope, but there are: factor, times$",
    ),
    "a tunable in a derived size": (
        numbered_operator(
            backends=(
                *PORTABLE.backends,
                Backend("split", (WEIGH, APPLY), (PARTIAL,), (DerivedSize("splits", e.tunable("BLOCK_Z")),)),
            )
        ),
        r"scale: no kernel of split has the tunables \['BLOCK_Z'\]",
    ),
    "a size in a derived size": (
        numbered_operator(
            backends=(
                *PORTABLE.backends,
                Backend("split", (WEIGH, APPLY), (PARTIAL,), (DerivedSize("splits", e.size("columns")),)),
            )
        ),
        "scale: splits names size columns, but there are: batch, heads, rows, width, taps$",
    ),
    "a size that another backend derives": (
        numbered_operator(
            backends=(
                Backend("portable", (replace(KERNEL, grid=(e.size("splits"), e.constant(1), e.constant(1))),)),
                *OPERATOR.backends[2:],
            )
        ),
        "scale: scale_rows names size splits, but there are: batch, heads, rows, width, taps$",
    ),
    "a size that is derived later": (
        numbered_operator(
            backends=(
                *PORTABLE.backends,
                Backend(
                    "split",
                    (WEIGH, APPLY),
                    (PARTIAL,),
                    (DerivedSize("half", e.size("splits")), DerivedSize("splits", e.size("taps"))),
                ),
            )
        ),
        "scale: half names size splits, but there are: batch, heads, rows, width, taps$",
    ),
    "too many sizes": (
        numbered_operator(operands=(*OPERATOR.operands, *(Operand(f"o{n}", (f"d{n}",)) for n in range(19)))),
        "scale: 25 sizes, and there is room for 24",
    ),
    "too many operands": (
        numbered_operator(operands=many(24)),
        "scale: 29 operands and workspace tensors, .* room for 28",
    ),
    "too many scalars": (
        numbered_operator(scalars=(*OPERATOR.scalars, *(Scalar(f"s{n}", "i32") for n in range(23)))),
        "scale: 25 scalars, and there is room for 24",
    ),
    "too many backends": (
        numbered_operator(backends=(*OPERATOR.backends, *(backend(name, 1) for name in "bcdefghijk"))),
        "scale: 13 backends, and there is room for 12",
    ),
    "too many kernels": (
        numbered_operator(backends=(*OPERATOR.backends, backend("b", 9))),
        "scale: 9 kernels of b, and there is room for 8",
    ),
    "too many tunables": (
        numbered(tunables=(*KERNEL.tunables, *(Parameter(f"P{n}", {}, 1) for n in range(11)))),
        "scale: 13 tunables of scale_rows, and there is room for 12",
    ),
    "too many keys": (
        numbered(tuning_keys=(ROWS, WAVES, *(TuningKey(f"k{n}", (1,)) for n in range(3)))),
        "scale: 5 tuning keys of scale_rows, and there is room for 4",
    ),
    "too many dimensions": (
        numbered_operator(operands=(*OPERATOR.operands, Operand("o", ("batch", "heads", "rows", "width", "taps")))),
        "scale: 5 dimensions of o, and there is room for 4",
    ),
    "too many steps": (
        numbered(guards=tuple(Guard(e.size("rows") * (n + 300) + n <= n + 700, f"it is {n}") for n in range(60))),
        rf"scale: \d+ steps to choose, and there is room for {program.MAX_STEPS}",
    ),
    "too many choices": (
        numbered(choices=(*KERNEL.choices, *(Choice(f"c{n}", (0, 1), e.scalar("times")) for n in range(30)))),
        "scale: 33 choices that kernels share, and there is room for 32",
    ),
    "too many numbers": (
        numbered(arguments=(*KERNEL.arguments, *(Number(f"n{n}", "i32", e.size("rows")) for n in range(48)))),
        r"scale: \d+ numbers of scale_rows, and there is room for 48",
    ),
    "too many arguments": (
        numbered(arguments=(*KERNEL.arguments, *(Number(f"n{n}", "fp32", e.scalar("factor")) for n in range(704)))),
        r"scale: \d+ arguments of portable, and there is room for 704",
    ),
    "a constant beyond 32 bits": (
        numbered(guards=(Guard(e.size("rows") <= 2**31, "it has many rows"),)),
        "scale_rows: 2147483648 does not fit in 32 bits",
    ),
    "an expression that is too deep": (
        numbered(grid=(DEEP, e.constant(1), e.constant(1))),
        "scale_rows: an expression needs a stack of 17, and there is room for 16",
    ),
}


@pytest.mark.parametrize("what", NAMES)
def test_a_program_has_every_name_and_fits(what: str) -> None:
    """Names in expressions are looked up, and what the runner has room for is counted, when a program is made."""
    make, message = NAMES[what]
    with pytest.raises(ValueError, match=message):
        make()


def test_what_just_fits_is_taken() -> None:
    """As many as there is room for: of sizes, tensors, scalars, backends, kernels, tunables, keys and stack."""
    sizes = (*OPERATOR.operands, *(Operand(f"o{n}", (f"d{n}",)) for n in range(18)))
    assert len(operator_program(replace(OPERATOR, operands=sizes)).sizes) == program.MAX_SIZES
    full = operator_program(replace(OPERATOR, operands=many(23)))
    assert len(full.operands) + len(full.workspace) == program.MAX_OPERANDS
    scalars = (*OPERATOR.scalars, *(Scalar(f"s{n}", "i32") for n in range(22)))
    assert len(operator_program(replace(OPERATOR, scalars=scalars)).scalars) == program.MAX_SCALARS
    others = (backend("b", 8), *(backend(name, 1) for name in "cdefghij"))
    wide = operator_program(replace(OPERATOR, backends=(*OPERATOR.backends, *others)))
    assert len(wide.backends) == program.MAX_BACKENDS
    assert len(wide.backends[3].kernels) == program.MAX_KERNELS
    assert DEEP.operands[1].code == "add"
    tunables = (*KERNEL.tunables, *(Parameter(f"P{n}", {}, 1) for n in range(10)))
    keys = (ROWS, WAVES, TuningKey("k", (1,)), TuningKey("l", (1,)))
    made = replace(
        KERNEL, tunables=tunables, tuning_keys=keys, grid=(DEEP.operands[1], e.constant(-(2**31)), e.constant(1))
    )
    (row,) = operator_program(replace(PORTABLE, backends=(Backend("portable", (made,)),))).kernels
    assert (len(row.tunables), len(row.keys)) == (program.MAX_TUNABLES, program.MAX_KEYS)
