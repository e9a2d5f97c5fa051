"""The user's notation of tensors and expressions: ``bf16[rows, columns]`` and ``cdiv(columns, BLOCK)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from math import isfinite

from aotriton.rules import expression as words
from aotriton.rules.arch import DTYPES
from aotriton.rules.expression import Expression, constant, size
from aotriton.rules.kernel import Operand
from aotriton.tune.problem.dtypes import NAMES

# The names of element types: ours, and torch's.
SPELLINGS = {name: name for name in DTYPES[1:]} | {theirs: name for name, theirs in NAMES.items()}
OPERATORS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply"}
FUNCTIONS = {"cdiv": "ceil_divide", "min": "minimum", "max": "maximum"}


def is_tensor(text: str) -> bool:
    """Whether a text means to spell a tensor."""
    return re.match(r"\s*\w+\s*\[", text) is not None


def operand(where: str, text: object, written: bool, updated: bool = False) -> Operand:
    """The contiguous, 16-byte aligned tensor that ``text`` spells: its type and its sizes' names, outermost first."""
    found = re.fullmatch(r"\s*(\w+)\s*\[([\w\s,]+)\]\s*", text) if isinstance(text, str) else None
    dtype = SPELLINGS.get(found[1], "") if found else ""
    dims = tuple(one.strip() for one in found[2].split(",")) if found else ()
    if not dtype or not all(one.isidentifier() for one in dims):
        raise ValueError(
            f"{where}: {text!r} is no tensor: write its type, {' or '.join(DTYPES[1:])}, and the names of its sizes, as"
            " bf16[rows, columns]"
        )
    return Operand(where, dims, dtype, written, contiguous=True, alignment=16, updated=updated)


def expression(where: str, text: object, names: Mapping[str, Expression]) -> Expression:
    """What ``text`` spells: numbers, +, -, *, cdiv, min, max, and ``names``, some of which ask a tensor."""
    if type(text) is int:
        text = str(text)
    try:
        if not isinstance(text, str):
            raise ValueError("it is no text")
        return _read(ast.parse(text.strip(), mode="eval").body, names)
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"{where}: {text!r} is no expression of whole numbers, +, -, *, cdiv, min, max and"
            f" {', '.join(filter(str.isidentifier, names))}: {error}"
        ) from None


def of_tensor(one: Operand) -> dict[str, Expression]:
    """What may be asked of a tensor, by the text of the question: its strides, in elements, and its sizes."""
    found: dict[str, Expression] = {}
    stride = constant(1)
    for dim, name in reversed([*enumerate(one.dims)]):
        for place in (dim, dim - len(one.dims)):
            found[f"{one.name}.stride({place})"] = stride
            found |= dict.fromkeys((f"{one.name}.size({place})", f"{one.name}.shape[{place}]"), size(name))
        stride = size(name) if stride == constant(1) else size(name) * stride
    return found | {f"{one.name}.numel()": stride}


def _read(node: ast.expr, names: Mapping[str, Expression]) -> Expression:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return constant(node.value)
    if (text := ast.unparse(node)) in names:
        return names[text]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return Expression(OPERATORS[type(node.op)], (_read(node.left, names), _read(node.right, names)))
    if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        name = FUNCTIONS.get(ast.unparse(node.func).rpartition(".")[2])  # triton.cdiv, too
        if name:
            return Expression(name, (_read(node.args[0], names), _read(node.args[1], names)))
    raise ValueError(f"{ast.unparse(node)} is unknown")


def constant_text(value: object) -> str | None:
    """The Python code that makes a constant, as ``Constexpr.values`` has it; None where it is none: finite numbers,
    truth values, text, None, and Triton's types.
    """
    if value is None or type(value) in (bool, int, str) or (type(value) is float and isfinite(value)):
        return repr(value)
    if type(value).__module__ == "triton.language.core" and type(value).__name__ == "dtype":
        return f"tl.dtype({value.name!r})"  # type: ignore[attr-defined] # Triton's
    return None


def spelled(one: Expression) -> str:
    """The Python code that makes the expression, in the words of ``aotriton.rules.expression``."""
    if one.code == "constant":
        return f"constant({one.value})"
    signs = {"add": "+", "subtract": "-", "multiply": "*"}
    operands = [spelled(operand) for operand in one.operands]
    if one.code in signs:
        return f"({f' {signs[one.code]} '.join(operands)})"
    assert hasattr(words, one.code)
    return f"{one.code}({', '.join(operands) or repr(one.name)})".replace("'", '"')
