"""C++ of formulas: from the terms of a cost, traced for each form, to the functions that the runtime inlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from aotriton.rules.formula import Real, Symbol, variable
from aotriton.rules.work import FORMS, TERMS, OfCall, OfTile, formulas

BINARY = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<"}
CALLS = {"minimum": "std::min", "maximum": "std::max"}  # up() and down() are those of v2src/program/rounding.h


@dataclass(frozen=True)
class FormSource:
    """The C++ of one form: statements, and a name or a literal for each of TERMS."""

    name: str
    statements: tuple[str, ...]
    terms: tuple[str, ...]


def form_sources() -> list[FormSource]:
    """All forms of rules/work.py, in the order of the C++ enumeration."""
    call = OfCall(*(variable(f"work.{one.name}") for one in fields(OfCall)))
    tile = OfTile(*(variable(f"cost.{one.name}.value") for one in fields(OfTile)))
    # A product with an inverse takes a quarter of a quotient's time: the inverses of a tile's sides are data.
    inverses = {f"cost.{one.name}.value": f"cost.{one.name}.inverse" for one in fields(OfTile)}
    return [_source(name, formulas(form, call, tile), inverses) for form, name in enumerate(FORMS)]


def _source(name: str, made: Sequence[Real], inverses: dict[str, str]) -> FormSource:
    assert len(made) == len(TERMS)
    writer = _Writer(inverses)
    terms = tuple(map(writer.name_of, made))
    return FormSource(name, tuple(writer.statements), terms)


class _Writer:
    """The statements of a formula: one for each computed value, even if several terms use it."""

    def __init__(self, inverses: dict[str, str]) -> None:
        self.statements: list[str] = []
        self._inverses = inverses
        self._names: dict[str, str] = {}  # of the computed values, by their C++

    def name_of(self, one: Real) -> str:
        """A name or a literal that has the value of ``one``."""
        if not isinstance(one, Symbol):
            return repr(float(one))
        if one.code == "variable":
            return one.name
        if one.code == "divide" and (inverse := self._inverse(one.operands[1])):
            return self._product(self.name_of(one.operands[0]), inverse)
        operands = [self.name_of(operand) for operand in one.operands]
        if one.code in BINARY:
            return self._computed(f" {BINARY[one.code]} ".join(operands), condition=one.code == "less")
        if one.code == "choose":
            return self._computed("{} ? {} : {}".format(*operands))
        function = CALLS.get(one.code, one.code)
        return self._computed(f"{function}({', '.join(operands)})")

    def _inverse(self, one: Real) -> str:
        """The name of 1 / ``one``, if it is known or the same for all images; else empty."""
        if not isinstance(one, Symbol):
            return repr(1 / one)
        if one.code == "variable":
            return self._inverses.get(one.name) or self._computed(f"1.0 / {one.name}")
        if one.code == "multiply":
            factors = [self._inverse(factor) for factor in one.operands]
            return self._product(*factors) if all(factors) else ""
        if one.code == "divide" and (inverse := self._inverse(one.operands[0])):
            return self._product(self.name_of(one.operands[1]), inverse)
        return ""

    def _product(self, a: str, b: str) -> str:
        return self._computed(f"{a} * {b}")

    def _computed(self, text: str, condition: bool = False) -> str:
        if text not in self._names:
            self._names[text] = name = f"t{len(self.statements)}"
            self.statements.append(f"const {'bool' if condition else 'double'} {name} = {text};")
        return self._names[text]
