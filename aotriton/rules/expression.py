"""Expressions: whole numbers that follow from a call, as data that Python and the C++ runner evaluate alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

# The operation of each code on the numbers before it in a postfix program; v2src/call/expressions.cc does the same.
OPERATIONS: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "ceil_divide": lambda a, b: -(-a // b),
    "minimum": min,
    "maximum": max,
    "at_most": lambda a, b: int(a <= b),
    "equal": lambda a, b: int(a == b),
    "both": lambda a, b: int(bool(a) and bool(b)),
    "negate": lambda a: int(not a),
    "lowest_bit": lambda a: a & -a,
    "choose": lambda condition, a, b: a if condition else b,
}
ARITY = {"negate": 1, "lowest_bit": 1, "choose": 3}  # operands of an operation, where they are not two
# Values of a call, a candidate and a GPU. The first five and other_dtype have a name.
LEAVES = ("size", "scalar", "tunable", "present", "transposed", "dtype", "other_dtype", "addressing", "multiprocessors")


def arity(code: str) -> int:
    """The number of operands of a code; 0 for a leaf."""
    return ARITY.get(code, 2) if code in OPERATIONS else 0


@dataclass(frozen=True)
class Expression:
    """``code`` is one of OPERATIONS with ``operands``, one of LEAVES with ``name``, or "constant" with ``value``."""

    code: str
    operands: tuple[Expression, ...] = ()
    name: str = ""
    value: int = 0

    def __post_init__(self) -> None:
        if self.code not in (*OPERATIONS, *LEAVES, "constant"):
            raise ValueError(f"unknown code {self.code!r}")

    def __add__(self, other: Expression | int) -> Expression:
        return _operation("add", self, other)

    def __sub__(self, other: Expression | int) -> Expression:
        return _operation("subtract", self, other)

    def __mul__(self, other: Expression | int) -> Expression:
        return _operation("multiply", self, other)

    def __le__(self, other: Expression | int) -> Expression:
        return _operation("at_most", self, other)

    def __ge__(self, other: Expression | int) -> Expression:
        return _operation("at_most", other, self)

    def __and__(self, other: Expression | int) -> Expression:
        return _operation("both", self, other)

    def __invert__(self) -> Expression:
        return _operation("negate", self)

    @cached_property
    def function(self) -> Callable[[Environment], int]:
        """What ``evaluate`` calls."""
        return _function(self)

    def __reduce__(self) -> tuple[object, ...]:
        """Without ``function``, which cannot be pickled."""
        return Expression, (self.code, self.operands, self.name, self.value)

    def postfix(self) -> list[tuple[str, str | int]]:
        """The program of a stack machine: (code, name or constant), operands before their operation."""
        argument = self.value if self.code == "constant" else self.name
        return [step for operand in self.operands for step in operand.postfix()] + [(self.code, argument)]

    def with_other(self, part: Expression, other: Expression) -> Expression:
        """The expression with ``other`` in place of each ``part``."""
        if self == part:
            return other
        return replace(self, operands=tuple(operand.with_other(part, other) for operand in self.operands))


def _operation(code: str, *operands: Expression | int) -> Expression:
    return Expression(code, tuple(constant(one) if isinstance(one, int) else one for one in operands))


def constant(value: int) -> Expression:
    return Expression("constant", value=value)


def size(name: str) -> Expression:
    """A size of the operator, or one that its backend derives."""
    return Expression("size", name=name)


def scalar(name: str) -> Expression:
    """A scalar of the operator that is a whole number or a truth value."""
    return Expression("scalar", name=name)


def tunable(name: str) -> Expression:
    """A tunable of the kernel; in a derived size, of the backend's first kernel that has a tunable of this name."""
    return Expression("tunable", name=name)


def present(operand: str) -> Expression:
    """1 if the caller gave the operand, else 0."""
    return Expression("present", name=operand)


def transposed(operand: str) -> Expression:
    """1 if the second-to-last dimension of a ``strided`` operand is the contiguous one, else 0."""
    return Expression("transposed", name=operand)


def dtype() -> Expression:
    """The element type of the operands of type "T", as an index into ``arch.DTYPES``."""
    return Expression("dtype")


def other_dtype(operand: str) -> Expression:
    """The element type of an operand of type "T" that has one of its other types instead, as an index into
    ``arch.DTYPES``; 0 if it has the call's type or is not given.
    """
    return Expression("other_dtype", name=operand)


def addressing() -> Expression:
    """The addressing that the arch can use for the kernel's tensors, as an index into ``arch.ADDRESSING``."""
    return Expression("addressing")


def multiprocessors() -> Expression:
    """The number of multiprocessors of the GPU."""
    return Expression("multiprocessors")


def ceil_divide(a: Expression | int, b: Expression | int) -> Expression:
    """a / b, rounded up; b must be positive."""
    return _operation("ceil_divide", a, b)


def minimum(a: Expression | int, b: Expression | int) -> Expression:
    return _operation("minimum", a, b)


def maximum(a: Expression | int, b: Expression | int) -> Expression:
    return _operation("maximum", a, b)


def equal(a: Expression | int, b: Expression | int) -> Expression:
    return _operation("equal", a, b)


def lowest_bit(a: Expression) -> Expression:
    """The largest power of two that divides a; 0 for 0."""
    return _operation("lowest_bit", a)


def quotient(a: Expression, b: Expression) -> Expression:
    """a / b, rounded down, of numbers that are not negative."""
    return ceil_divide(a + 1, b) - 1


def choose(condition: Expression, a: Expression | int, b: Expression | int) -> Expression:
    """a if the condition is not 0, else b. Both are evaluated."""
    return _operation("choose", condition, a, b)


def tiles(of: str, rows: str | int) -> Expression:
    """The number of tiles of ``rows``, a tunable or a number, that cover the size ``of``."""
    return ceil_divide(size(of), tunable(rows) if isinstance(rows, str) else rows)


@dataclass(frozen=True)
class Environment:
    """The values that an expression may name; only those that it names are needed."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, int] = field(default_factory=dict)
    tunables: Mapping[str, int] = field(default_factory=dict)
    present: Set[str] = frozenset()
    multiprocessors: int = 0
    other_dtypes: Mapping[str, int] = field(default_factory=dict)


def evaluate(expression: Expression, environment: Environment) -> int:
    """The expression's value; KeyError if the environment lacks a name, ValueError if only a call knows the value."""
    return expression.function(environment)


def _unknown(code: str) -> int:
    raise ValueError(f"{code} follows from the tensors of a call")


# A leaf's value in an environment, as Python.
_VALUES = {
    "constant": "{value}",
    "size": "int(environment.sizes[{name!r}])",
    "scalar": "int(environment.scalars[{name!r}])",
    "tunable": "int(environment.tunables[{name!r}])",
    "present": "int({name!r} in environment.present)",
    "other_dtype": "environment.other_dtypes.get({name!r}, 0)",
    "multiprocessors": "environment.multiprocessors",
}


def _function(expression: Expression) -> Callable[[Environment], int]:
    """Works out once what is the same in several places: models are fitted to millions of values."""
    variables: dict[str, str] = {}  # by what they are

    def variable(one: Expression) -> str:
        if one.operands:
            text = f"{one.code}({', '.join(map(variable, one.operands))})"
        else:
            text = _VALUES.get(one.code, "unknown({code!r})").format(code=one.code, name=one.name, value=int(one.value))
        return variables.setdefault(text, f"v{len(variables)}")

    result = variable(expression)
    lines = [f"    {name} = {text}\n" for text, name in variables.items()]
    space: dict[str, Any] = {**OPERATIONS, "unknown": _unknown}
    exec(f"def function(environment):\n{''.join(lines)}    return {result}\n", space)
    return space["function"]  # type: ignore[no-any-return]
