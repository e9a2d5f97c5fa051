"""The Python signatures of a build's operators: from their descriptions to the values that aotriton.pyi.j2 places."""

from __future__ import annotations

from typing import Any

from aotriton.rules.operators import Operator

TYPES = {"fp32": float, "i32": int, "bool": bool}


def values(operator: Operator) -> dict[str, Any]:
    """Tensors with whether they may be left out, as everything behind one that may; scalars with type and default."""
    tensors, optional = [], False
    for operand in operator.operands:
        optional = optional or operand.optional
        tensors.append((operand.name, optional))
    if operator.workspace:
        tensors.append(("workspace", True))
    scalars = [
        (scalar.name, TYPES[scalar.dtype].__name__, TYPES[scalar.dtype](scalar.default))
        if scalar.default is not None
        else (scalar.name, f"{TYPES[scalar.dtype].__name__} | None", None)
        for scalar in operator.scalars
        if not scalar.internal
    ]
    return {"name": operator.name, "tensors": tensors, "scalars": scalars}
