"""Claims about programs: the numbers mean what the names in the descriptions said, in Python and in C++."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from toy.rules import OPERATOR

from aotriton.codegen import program
from aotriton.codegen.program import Code, KernelProgram, OperatorProgram, launch_program, operator_program, steps_of
from aotriton.rules.arch import ADDRESSING, DTYPES
from aotriton.rules.expression import LEAVES, OPERATIONS, Expression
from aotriton.rules.family import IN_TREE, family
from aotriton.rules.flash.common import MOST_PACKED
from aotriton.rules.flash.forward import OPERATOR as FORWARD
from aotriton.rules.flash.split import Keys
from aotriton.rules.kernel import MOST_COUNTED, Number, Stride, Tensor
from aotriton.rules.operators import Operator
from aotriton.tune.problem import dtypes

ROOT = Path(__file__).resolve().parents[2]

OPERATORS = [OPERATOR, *(operator for name in IN_TREE for operator in family(name).operators)]
EVERY_OPERATOR = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)


class Reader:
    """From the numbers of a program back to names."""

    def __init__(self, whole: OperatorProgram, tunables: tuple[str, ...]) -> None:
        self.sizes, self.tunables = whole.sizes, tunables
        self.scalars = tuple(one.name for one in whole.scalars)
        self.slots = tuple(one.name for one in (*whole.operands, *whole.workspace))

    def postfix(self, code: tuple[Code, ...]) -> list[tuple[str, str | int]]:
        names = {"size": self.sizes, "scalar": self.scalars, "tunable": self.tunables}
        names |= dict.fromkeys(("present", "transposed", "other_dtype"), self.slots)
        return [
            (one, names[one][number] if one in names else number if one == "constant" else "") for one, number in code
        ]

    def says(self, code: tuple[Code, ...], expression: Expression) -> bool:
        return self.postfix(code) == expression.postfix()


def read(whole: OperatorProgram, kernel: str) -> tuple[KernelProgram, Reader]:
    made = next(one for one in whole.kernels if one.name == kernel)
    return made, Reader(whole, made.tunables)


@EVERY_OPERATOR
def test_every_kernel_is_numbered_and_fits(operator: Operator) -> None:
    """Each kernel of each family, once, within the runner's limits; every number is a place that there is."""
    whole = operator_program(operator)
    assert [kernel.name for kernel in whole.kernels] == [kernel.name for kernel in operator.kernels]
    assert len(whole.operands) + len(whole.workspace) <= program.MAX_OPERANDS
    assert len(whole.sizes) <= program.MAX_SIZES
    assert len(whole.scalars) <= program.MAX_SCALARS
    assert 1 <= len(whole.backends) <= program.MAX_BACKENDS
    for one in (*whole.operands, *whole.workspace):
        assert len(one.dims) <= program.MAX_RANK
    for backend in whole.backends:
        assert 1 <= len(backend.kernels) <= program.MAX_KERNELS
        assert 0 <= backend.tunables_of < len(backend.kernels)
    assert len(whole.choices) <= program.MAX_CHOICES
    for kernel in whole.kernels:
        assert len(kernel.tunables) <= program.MAX_TUNABLES
        assert len(kernel.keys) <= program.MAX_KEYS


@EVERY_OPERATOR
def test_operands_and_backends_mean_what_they_said(operator: Operator) -> None:
    """Sizes by operand, types, layouts and scalars; workspace tensors and derived sizes by backend."""
    whole = operator_program(operator)
    assert whole.sizes[: whole.given_sizes] == operator.sizes
    assert whole.sizes[whole.given_sizes :] == operator.derived_sizes
    tensors = (*operator.operands, *operator.workspace)
    for made, given in zip((*whole.operands, *whole.workspace), tensors, strict=True):
        assert (made.name, tuple(whole.sizes[dim] for dim in made.dims)) == (given.name, given.dims)
        assert DTYPES[made.dtype] == {"T": "none"}.get(given.dtype, given.dtype)
        assert (made.layout == "contiguous", made.layout == "strided") == (given.contiguous, given.strided)
        assert (made.written, made.optional) == (given.written, given.optional)
        assert (made.alignment, made.if_empty) == (given.alignment, given.if_empty)
    for made_scalar, scalar in zip(whole.scalars, operator.scalars, strict=True):
        assert (made_scalar.name, made_scalar.type, made_scalar.default) == (scalar.name, scalar.dtype, scalar.default)
    for made_backend, backend in zip(whole.backends, operator.backends, strict=True):
        assert (made_backend.name, made_backend.kernels) == (backend.name, tuple(k.name for k in backend.kernels))
        slots = [tensors[slot].name for slot in made_backend.workspace]
        assert slots == [one.name for one in backend.workspace]
        _, reader = read(whole, made_backend.kernels[made_backend.tunables_of])
        for (size, code), derived in zip(made_backend.sizes, backend.sizes, strict=True):
            assert whole.sizes[size] == derived.name
            assert reader.says(code, derived.value)


def ways(arguments: Iterable[Tensor | Stride | Number]) -> Iterator[tuple[Tensor | Stride | Number, bool]]:
    """Each argument, and again where images of some levels take a pointer in place of a descriptor."""
    pointed = {one.name for one in arguments if isinstance(one, Tensor) and one.by_pointer}
    for one in arguments:
        yield one, False
        if (one.tensor if isinstance(one, Stride) else one.name) in pointed:
            yield one, True


@EVERY_OPERATOR
def test_kernels_mean_what_they_said(operator: Operator) -> None:
    """Arguments in order, with their levels, and the expressions of numbers, grid, guards, choices and keys, name by
    name. Of which tensors addressing asks for strides and alignment: of all that are not general.
    """
    whole = operator_program(operator)
    for kernel in operator.kernels:
        made, reader = read(whole, kernel.name)
        assert (made.tunables, made.begins_early) == (kernel.tunable_names, kernel.begins_early)
        assert made.steered == kernel.steered
        tensors = {one.name: one for one in kernel.arguments if isinstance(one, Tensor)}
        passed = [one for one in kernel.arguments if isinstance(one, Tensor | Stride | Number)]
        for one, (argument, by_pointer) in zip(made.arguments, ways(passed), strict=True):
            if isinstance(argument, Tensor):
                assert (one.kind, reader.slots[one.slot]) == ("tensor", argument.operand.name)
                assert one.block == (argument.block is not None and not by_pointer)
            elif isinstance(argument, Stride):
                tensor = tensors[argument.tensor]
                assert (one.kind, reader.slots[one.slot], one.dim) == ("stride", tensor.operand.name, argument.dim)
                assert one.block == (tensor.block is not None and not by_pointer)
            elif argument.dtype == "fp32":
                assert (one.kind, reader.scalars[one.slot]) == ("fp32", argument.value.name)
            else:
                assert one.kind == argument.dtype
                assert reader.says(one.value, argument.value)
            levels = list(argument.levels or range(8))
            if isinstance(argument, Tensor | Stride):
                pointed = (tensors[argument.tensor] if isinstance(argument, Stride) else argument).by_pointer
                levels = [level for level in levels if (level in pointed) == by_pointer]
            assert one.levels == sum(1 << level for level in levels)
        strided = {one.tensor for one in kernel.arguments if isinstance(one, Stride)}
        addressed = [one for one in tensors.values() if not one.general]
        uses = [(one.operand.name, one.block is not None or one.name in strided) for one in addressed]
        assert [(reader.slots[slot], follows) for slot, follows in made.uses] == uses
        assert all(reader.says(code, axis) for code, axis in zip(made.grid, kernel.grid, strict=True))
        for guard, wanted in zip(made.guards, kernel.all_guards(operator.sizes), strict=True):
            assert guard.why == wanted.why
            assert reader.says(guard.condition, wanted.condition)
        for one_choice, choice in zip(made.choices, kernel.choices, strict=True):
            assert (one_choice.name, one_choice.round_up) == (choice.name, choice.round_up)
            assert one_choice.values == tuple(choice.number(value) for value in choice.values)
            assert [choice.read(text) for text in one_choice.texts] == list(choice.values)
            assert (one_choice.default < 0) == (choice.default is None)
            assert one_choice.default < 0 or choice.values[one_choice.default] == choice.default
            assert reader.says(one_choice.value, choice.source)
        for key, wanted_key in zip(made.keys, kernel.tuning_keys, strict=True):
            assert key.name == wanted_key.name
            assert reader.says(key.value, wanted_key.quantity)


@EVERY_OPERATOR
def test_steps_are_what_choosing_asks_for(operator: Operator) -> None:
    """Unwound, they are the expressions of guards, choices, keys and work, all but those of one kernel's addressing."""
    whole = operator_program(operator)
    steps, roots = steps_of(whole.shared)
    assert len(set(steps)) == len(steps) <= program.MAX_STEPS

    def unwound(number: int) -> list[Code]:
        step = steps[number]
        assert all(operand < number for operand in step.operands)
        return [*(code for operand in step.operands for code in unwound(operand)), (step.code, step.value)]

    assert all(tuple(unwound(root)) == code for code, root in roots.items())
    for kernel in whole.kernels:
        conditions = [one.condition for one in kernel.guards]
        choices, keys = [one.value for one in kernel.choices], [one.value for one in kernel.keys]
        for code in (*conditions, *choices, *keys, *kernel.work):
            assert (code in roots) == ("addressing" not in dict(code))
        for choice in kernel.choices:
            assert (choice in whole.choices) == (choice.value in roots)


@EVERY_OPERATOR
def test_what_the_binding_takes_is_plain_data(operator: Operator) -> None:
    """launch_program survives json, and says of kernel and operator what the operator's own program says."""
    whole = json.loads(json.dumps(asdict(operator_program(operator))))
    for kernel in operator.kernels:
        made = json.loads(json.dumps(launch_program(kernel, operator)))
        assert made["kernel"] == next(one for one in whole["kernels"] if one["name"] == kernel.name)
        assert all(whole[name] == value for name, value in made["operator"].items())
        assert made["operator"]["name"] == operator.name


def enumeration(file: str, name: str) -> list[str]:
    """The enumerators of a C++ enumeration, in order."""
    body = re.search(rf"enum class {name}[^{{]*{{(.*?)}};", (ROOT / file).read_text(), re.DOTALL)
    assert body, f"{file} has no {name}"
    return re.findall(r"^\s*(\w+)\s*(?:=[^,]*)?,", re.sub(r"//.*", "", body[1]), re.MULTILINE)


def constant(file: str, name: str) -> int:
    found = re.search(rf"constexpr \w+ {name} = (\d+);", (ROOT / file).read_text())
    assert found, f"{file} has no {name}"
    return int(found[1])


def test_codes_and_types_are_in_the_order_of_cxx() -> None:
    """What generated code calls by name or by number: codes, ways to pass, layouts, element types, and the binding's
    words for them.
    """
    assert tuple(enumeration("v2src/program/expression.h", "Code")) == program.CODES
    assert len(program.CODES) == len(LEAVES) + len(OPERATIONS) + 1
    types = ["none", *(dtypes.NAMES[name].replace("bool", "boolean") for name in DTYPES[1:])]
    assert enumeration("v2src/include/aotriton/types.h", "DType") == types
    assert ADDRESSING == ("general", "offset32", "descriptor")
    assert enumeration("v2src/program/program.h", "Pass") == ["tensor", "stride", "i32", "i64", "fp32"]
    assert enumeration("v2src/program/program.h", "Layout") == ["rows", "contiguous", "strided"]
    binding = (ROOT / "v2src" / "python" / "owned_program.cc").read_text()
    assert set(re.findall(r'{"(\w+)", Code::(\w+)}', binding)) == {(code, code) for code in program.CODES}


def test_limits_are_those_of_cxx() -> None:
    """What the runner's own headers have as well, program_limits.h does not contradict."""
    assert constant("v2src/call/expressions.h", "kStackDepth") == program.DEPTH
    assert constant("v2src/call/operands.h", "kMostPacked") == MOST_PACKED
    assert constant("v2src/include/aotriton/explain.h", "kMaxKernels") == program.MAX_KERNELS


@EVERY_OPERATOR
def test_every_size_that_is_passed_in_32_bits_is_guarded(operator: Operator) -> None:
    """No kernel is launched with a size whose last tile ends beyond 32 bits: a guard or a choice's values bound it."""
    whole = operator_program(operator)
    for kernel in whole.kernels:
        passed = {one.value for one in kernel.arguments if one.kind == "i32" and len(one.value) == 1}
        sizes = {value for value in passed if value[0][0] == "size" and value[0][1] < whole.given_sizes}
        bounded = {(step,) for one in kernel.choices if one.round_up for step in one.value if step[0] == "size"}
        conditions = {one.condition for one in kernel.guards}
        for value in sizes - bounded:
            assert (*value, ("constant", MOST_COUNTED), ("at_most", 0)) in conditions, (kernel.name, value)


def test_what_is_counted_ends_before_32_bits_do() -> None:
    """The end of the last tile of any side up to 1024 is counted in 32 bits, for the largest size and not for more."""
    for side in 1 << np.arange(11):
        most = np.array([MOST_COUNTED, MOST_COUNTED + 1024], np.int64)
        tiles = (most + side - 1) // side
        with np.errstate(over="ignore"):
            counted = (most.astype(np.int32) + np.int32(side - 1)) // np.int32(side) * np.int32(side)
        assert (counted[0], counted[1] == tiles[1] * side) == (tiles[0] * side, False)


def test_values_of_a_box_say_of_which_dimension_they_are() -> None:
    """Packed heads are the second dimension's, and rows the third one's, of images with pages alone."""
    kernel = next(one for one in operator_program(FORWARD).kernels if one.name == "attn_fwd_hopper_planned")
    boxes = [(one.dim, one.levels) for one in kernel.arguments if one.kind == "tensor" and one.block and one.value]
    pages, of_8_bits = 1 << Keys.pages, 1 << Keys.pages_fp8e4nv
    assert boxes == [(1, 255), (2, pages), (2, pages), (2, of_8_bits), (2, of_8_bits)]
