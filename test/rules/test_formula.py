"""Claims about formulas: traced and evaluated they are one computation, and what cannot be traced is refused."""

from __future__ import annotations

import random

import pytest
from fake_build import random_work

from aotriton.codegen.formulas import FormSource, form_sources
from aotriton.rules.expression import Environment, evaluate
from aotriton.rules.formula import Real, choose, down, less, maximum, minimum, up, variable
from aotriton.rules.work import FORMS, Work, terms


def computed(source: FormSource, work: Work, environment: Environment, occupancy: int) -> list[float]:
    """The terms that the C++ statements give, read as Python."""
    call_names = ("outer", "rows", "packed", "columns", "depth", "repeat", "parts", "slow")
    values = {f"work.{name}": float(evaluate(getattr(work, name), environment)) for name in call_names}
    pairs = zip(("begin", "end", "near", "far"), (*work.band, *work.traffic), strict=True)
    values |= {f"work.{name}": float(evaluate(one, environment)) for name, one in pairs}
    values |= {"work.multiprocessors": float(environment.multiprocessors)}
    of_tile = "row_tile", "column_tile", "depth_tile", "programs", "sorted_rounds", "hiding_rows"
    sides = zip(of_tile, work.of_tile, strict=True)
    for name, number in (*((name, evaluate(one, environment)) for name, one in sides), ("occupancy", occupancy)):
        values |= {f"cost.{name}.value": float(number), f"cost.{name}.inverse": 1.0 / number if number else 0.0}
    known: dict[str, object] = {"up": lambda a: up(a - 1e-9), "down": lambda a: down(a + 1e-9), "min": min, "max": max}

    def value(text: str) -> float:
        for name in sorted(values, key=len, reverse=True):
            text = text.replace(name, repr(values[name]))
        text = text.replace("std::", "")
        if " ? " in text:
            condition, _, rest = text.partition(" ? ")
            first, _, second = rest.partition(" : ")
            text = f"({first}) if ({condition}) else ({second})"
        return float(eval(text, dict(known)))  # of statements that the generator has just written

    for statement in source.statements:
        name, text = statement.removesuffix(";").split(" = ", 1)
        known[name.split()[-1]] = value(text)
    return [value(term) for term in source.terms]


@pytest.mark.parametrize("form", range(len(FORMS)), ids=FORMS)
def test_the_cxx_of_a_form_computes_its_terms(form: int) -> None:
    """The generated statements of each form, read as Python, give what ``terms`` does, over 200 random works."""
    chance, source = random.Random(form), form_sources()[form]
    for _ in range(200):
        work, multiprocessors, occupancy = random_work(chance, form)
        environment = Environment(multiprocessors=multiprocessors)
        wanted = terms(work, environment, occupancy)
        assert computed(source, work, environment, occupancy) == pytest.approx(wanted, rel=1e-9)


def test_nothing_is_computed_twice() -> None:
    """No two statements of a form are alike, and each is used."""
    for source in form_sources():
        texts = [statement.split(" = ", 1)[1] for statement in source.statements]
        assert len(set(texts)) == len(texts)
        used = " ".join((*texts, *source.terms)).replace(";", " ").replace(",", " ").replace("(", " ").replace(")", " ")
        names = {statement.split(" = ", 1)[0].split()[-1] for statement in source.statements}
        assert names <= set(used.split())


def test_each_code_of_a_number_is_what_it_says() -> None:
    """Of floats the functions give floats: rounding, the lesser, the greater, a comparison and a choice."""
    assert (up(2.1), down(2.9), minimum(1.0, 2.0), maximum(1.0, 2.0)) == (3.0, 2.0, 1.0, 2.0)
    assert (less(1.0, 2.0), less(2.0, 2.0), choose(1.0, 5.0, 7.0), choose(0.0, 5.0, 7.0)) == (1.0, 0.0, 5.0, 7.0)


def test_a_traced_number_is_no_condition() -> None:
    """`if` on a traced number, which would drop a branch of the C++, is a TypeError that names what to use."""

    def formula(number: Real) -> Real:
        return 1.0 if number else 2.0

    assert formula(3.0) == 1.0
    with pytest.raises(TypeError, match=r"choose\(\) instead of `if`"):
        formula(variable("x"))
