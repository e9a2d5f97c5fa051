"""The C++ of an operator's description: from its program to the values that operator.h.j2 and operator.cc.j2 place."""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import Any

from aotriton.codegen.program import (
    ALL_LEVELS,
    ChoiceProgram,
    Code,
    KernelProgram,
    OperatorProgram,
    operator_program,
    step_of,
    steps_of,
)
from aotriton.rules.arch import ARCHS
from aotriton.rules.kernel import Number
from aotriton.rules.operators import Operator


def values(operator: Operator, tables: Collection[str], backend_tables: Collection[str]) -> dict[str, Any]:
    """The values of the two templates. ``tables`` and ``backend_tables`` are the names of this build's tables."""
    program = operator_program(operator)
    expressions: dict[tuple[Code, ...], str] = {}
    rows = []
    steps, roots = steps_of(program.shared)
    for code, tunables in _expressions(program):
        if code not in expressions:
            expressions[code] = f"e{len(expressions)}"
            # What is evaluated by itself, too; a single instruction is as fast in the interpreter.
            compiled = code not in roots and len(code) > 1
            rows.append((expressions[code], code, step_of(code, steps), compiled, _text(code, program, tunables)))

    def existing(stem: str, tail: str, among: Collection[str]) -> list[str | None]:
        """The name of each arch's table, ``<stem>_<arch>_<tail>``, or None if it is not ``among`` the names."""
        return [name if (name := f"{stem}_{row.arch}_{tail}") in among else None for row in ARCHS]

    guards = program.guards
    numbers = {kernel.name: number for number, kernel in enumerate(filter(_is_of_kind, program.kernels))}
    of_kernels = {kernel.name: existing(kernel.name, "table", tables) for kernel in program.kernels}
    return {
        "operator": operator,
        "program": program,
        "expressions": rows,
        "names": expressions,
        "steps": steps,
        "kept_steps": {step for _, _, step, _, _ in rows} | {roots[choice.value] for choice in program.choices},
        "first_steps": len(steps_of(program.first_shared)[0]),
        "rounded": _rounded(program),
        "choice_steps": list(dict.fromkeys(roots[choice.value] for choice in program.choices)),
        "uses": _bits({use for kernel in program.kernels for use in kernel.uses}),
        "tensors": (*program.operands, *program.workspace),
        "all_levels": ALL_LEVELS,
        "most": _most(operator),
        "multiples": _multiples(operator),
        "kernels": [
            {
                "program": kernel,
                "tables": of_kernels[kernel.name],
                "number": numbers.get(kernel.name),
                "uses": _bits(set(kernel.uses)),
                "guard_bits": sum(1 << guards.index(one.condition) for one in kernel.guards),
            }
            for kernel in program.kernels
        ],
        "kernel_tables": [name for names in of_kernels.values() for name in names if name],
        "backend_tables": existing(operator.name, "backends", backend_tables),
    }


def _is_of_kind(kernel: KernelProgram) -> bool:
    """Whether no choice of the kernel follows from its addressing and from the call together."""
    codes = [tuple(name for name, _ in choice.value) for choice in kernel.choices]
    return all(code == ("addressing",) or "addressing" not in code for code in codes)


def _bits(uses: Set[tuple[int, bool]]) -> dict[str, int]:
    """The slots of ``uses``, and those whose strides are followed, as bits."""
    slots, strided = {slot for slot, _ in uses}, {slot for slot, follows in uses if follows}
    return {"all": sum(1 << slot for slot in slots), "strided": sum(1 << slot for slot in strided)}


def _rounded(program: OperatorProgram) -> dict[ChoiceProgram, int]:
    """The choices that round a value up to others than the lead's choice of that name does, and the place of that."""
    of_lead = program.lead.choices
    places = {one.name: place for place, one in enumerate(of_lead) if one.round_up}
    return {
        one: places[one.name]
        for one in program.choices
        if one.round_up and one.name in places and one != of_lead[places[one.name]]
    }


def _most(operator: Operator) -> dict[str, int]:
    """The largest value of each size that the lead's kernels round up to a size with images."""
    return {
        name: max(map(int, choice.values))
        for choice in operator.lead.choices
        if choice.round_up
        for name in choice.sizes
    }


def _multiples(operator: Operator) -> dict[str, int]:
    """The divisor of each size that kernels of the lead's backend assume, if only where their tensors are aligned."""
    return {
        argument.value.name: argument.multiple_of
        for argument in operator.lead.arguments
        if isinstance(argument, Number) and argument.value.code == "size" and argument.multiple_of > 1
    }


def _expressions(program: OperatorProgram) -> list[tuple[tuple[Code, ...], tuple[str, ...]]]:
    """Every expression, with the tunables that it may name."""
    found = [(code, kernel.tunables) for kernel in program.kernels for code in _of_kernel(kernel)]
    found += [(program.flops, ())] if program.flops else []
    by_name = {kernel.name: kernel for kernel in program.kernels}
    for backend in program.backends:
        tunables = by_name[backend.kernels[backend.tunables_of]].tunables
        found += [(code, tunables) for _, code in backend.sizes]
    return found


def _of_kernel(kernel: KernelProgram) -> list[tuple[Code, ...]]:
    return [
        *(argument.value for argument in kernel.arguments if argument.value),
        *kernel.grid,
        *kernel.choosing,
        *([kernel.schedule] if kernel.schedule else []),
    ]


def _text(code: tuple[Code, ...], program: OperatorProgram, tunables: tuple[str, ...]) -> str:
    """The text of the expression for readers of the generated file."""
    slots = tuple(one.name for one in (*program.operands, *program.workspace))
    names = {
        "size": program.sizes,
        "scalar": tuple(one.name for one in program.scalars),
        "tunable": tunables,
        "present": slots,
        "other_dtype": slots,
        "transposed": slots,
    }
    return " ".join(
        names[one][number] if one in names else str(number) if one == "constant" else one for one, number in code
    )
