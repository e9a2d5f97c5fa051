"""The Python signatures of a build's operators: from their descriptions to the values that aotriton.pyi.j2 places."""

from __future__ import annotations

from typing import Any

from aotriton.rules.operators import Operator, Scalar

TYPES = {"fp32": float, "i32": int, "bool": bool}


def values(operator: Operator) -> dict[str, Any]:
    """The values of the template: tensors, features, scalars, and whether a scalar's values have names.

    A tensor comes with whether the caller may leave it out, as with every tensor behind such a one. Features are the
    operands that are given by name only and may all be left out. A scalar comes with its type and its default, as
    Python writes them.
    """
    tensors, optional = [], False
    for operand in operator.plain_operands:
        optional = optional or operand.optional
        tensors.append((operand.name, optional))
    if operator.takes_workspace:
        tensors.append(("workspace", True))
    features = [operand.name for operand in operator.operands[len(operator.plain_operands) :]]
    scalars = [(scalar.name, *_typed(scalar)) for scalar in operator.scalars if not scalar.internal]
    named = any(scalar.values for scalar in operator.scalars if not scalar.internal)
    made = {"name": operator.name, "tensors": tensors, "features": features, "scalars": scalars}
    return made | {"names_values": named}


def _typed(scalar: Scalar) -> tuple[str, str]:
    kind = TYPES[scalar.dtype]
    if scalar.default is None:
        return f"{kind.__name__} | None", "None"
    if scalar.values:
        names = ", ".join(f'"{value}"' for value in scalar.values)
        return f"Literal[{names}] | {kind.__name__}", f'"{scalar.values[int(scalar.default)]}"'
    return kind.__name__, repr(kind(scalar.default))
