"""Formulas over real numbers: written once as a Python function, evaluated with floats, or traced into C++.

A function that uses only the operators of ``Symbol`` and the functions below takes floats and returns a float, or takes
symbols and returns a symbol: a tree of what it computes. ``codegen/formulas.py`` writes such trees as C++.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import TypeAlias


@dataclass(frozen=True)
class Symbol:
    """A number that is known when C++ runs.

    ``code`` is what computes it of ``operands``: "add", "subtract", "multiply", "divide", or a function below; or it is
    "variable", the number that C++ calls ``name``.
    """

    code: str
    operands: tuple[Real, ...] = ()
    name: str = ""

    def __add__(self, other: Real) -> Symbol:
        return Symbol("add", (self, other))

    def __radd__(self, other: float) -> Symbol:
        return Symbol("add", (other, self))

    def __sub__(self, other: Real) -> Symbol:
        return Symbol("subtract", (self, other))

    def __rsub__(self, other: float) -> Symbol:
        return Symbol("subtract", (other, self))

    def __mul__(self, other: Real) -> Symbol:
        return Symbol("multiply", (self, other))

    def __rmul__(self, other: float) -> Symbol:
        return Symbol("multiply", (other, self))

    def __truediv__(self, other: Real) -> Symbol:
        return Symbol("divide", (self, other))

    def __rtruediv__(self, other: float) -> Symbol:
        return Symbol("divide", (other, self))

    def __bool__(self) -> bool:
        raise TypeError("a traced number is known only at run time: use choose() instead of `if`, minimum() of `min`")


Real: TypeAlias = "float | Symbol"


def variable(name: str) -> Symbol:
    """The number that C++ calls ``name``."""
    return Symbol("variable", name=name)


def up(value: Real) -> Real:
    """The least whole number that is not below ``value``."""
    return Symbol("up", (value,)) if isinstance(value, Symbol) else float(ceil(value))


def down(value: Real) -> Real:
    """The greatest whole number that is not above ``value``."""
    return Symbol("down", (value,)) if isinstance(value, Symbol) else float(floor(value))


def minimum(a: Real, b: Real) -> Real:
    """The lesser of two numbers."""
    return Symbol("minimum", (a, b)) if isinstance(a, Symbol) or isinstance(b, Symbol) else min(a, b)


def maximum(a: Real, b: Real) -> Real:
    """The greater of two numbers."""
    return Symbol("maximum", (a, b)) if isinstance(a, Symbol) or isinstance(b, Symbol) else max(a, b)


def less(a: Real, b: Real) -> Real:
    """1 where ``a`` is below ``b``, else 0."""
    return Symbol("less", (a, b)) if isinstance(a, Symbol) or isinstance(b, Symbol) else float(a < b)


def choose(condition: Real, a: Real, b: Real) -> Real:
    """``a`` where ``condition`` is not 0, else ``b``. Both are computed."""
    return Symbol("choose", (condition, a, b)) if isinstance(condition, Symbol) else a if condition else b
