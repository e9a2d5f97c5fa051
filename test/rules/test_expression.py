"""Claims about expressions: what they are worth, and that their postfix program is worth the same."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotriton.rules import expression as e
from aotriton.rules.expression import LEAVES, OPERATIONS, Environment, Expression, arity, evaluate

ENVIRONMENT = Environment(
    sizes={"rows": 1000, "batch": 3, "none": 0},
    scalars={"times": 7, "flag": 1, "off": 0},
    tunables={"BLOCK": 64, "SPLITS": 4},
    present={"bias"},
    multiprocessors=132,
)
ROWS, BATCH, NONE = e.size("rows"), e.size("batch"), e.size("none")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (e.constant(-5), -5),
        (ROWS, 1000),
        (e.scalar("times"), 7),
        (e.tunable("BLOCK"), 64),
        (e.present("bias"), 1),
        (e.present("mask"), 0),
        (e.multiprocessors(), 132),
        (ROWS + 24, 1024),
        (BATCH - ROWS, -997),
        (ROWS * BATCH, 3000),
        (e.ceil_divide(ROWS, 64), 16),
        (e.ceil_divide(960, e.tunable("BLOCK")), 15),
        (e.ceil_divide(NONE, 64), 0),
        (e.ceil_divide(NONE - 65, 64), -1),
        (e.minimum(ROWS, 512), 512),
        (e.maximum(1, NONE), 1),
        (ROWS <= 1000, 1),
        (ROWS <= 999, 0),
        (ROWS >= 1000, 1),
        (ROWS >= 1001, 0),
        (e.equal(BATCH, 3), 1),
        (e.equal(BATCH, ROWS), 0),
        ((ROWS >= 1) & e.scalar("flag"), 1),
        ((ROWS >= 1) & NONE, 0),
        (ROWS & BATCH, 1),
        (~e.scalar("flag"), 0),
        (~NONE, 1),
        (e.choose(e.scalar("flag"), ROWS, BATCH), 1000),
        (e.choose(e.scalar("off"), ROWS, BATCH), 3),
        (e.tiles("rows", "BLOCK"), 16),
        (e.tiles("rows", 128), 8),
    ],
    ids=lambda given: repr(given) if isinstance(given, int) else given.code,
)
def test_each_code_has_its_value(expression: Expression, value: int) -> None:
    """Whole numbers; truth is 1 or 0, whatever the operands; a division rounds up, below zero too."""
    found = evaluate(expression, ENVIRONMENT)
    assert found == value
    assert type(found) is int


def test_postfix_has_operands_before_what_takes_them() -> None:
    """A program of (code, name or constant), as a stack machine takes it."""
    tiles = e.tiles("rows", "BLOCK") * BATCH
    assert tiles.postfix() == [
        ("size", "rows"),
        ("tunable", "BLOCK"),
        ("ceil_divide", ""),
        ("size", "batch"),
        ("multiply", ""),
    ]
    assert (BATCH - 1).postfix() == [("size", "batch"), ("constant", 1), ("subtract", "")]
    assert (BATCH >= 2).postfix() == [("constant", 2), ("size", "batch"), ("at_most", "")]


def test_an_evaluated_expression_goes_to_other_processes() -> None:
    expression = e.tiles("rows", "BLOCK") * BATCH
    assert evaluate(expression, ENVIRONMENT) == 48
    assert pickle.loads(pickle.dumps(expression)) == copy.deepcopy(expression) == expression


def test_what_is_not_known_is_an_error() -> None:
    """A code that does not exist; a name that the environment lacks; and what only the tensors of a call tell."""
    with pytest.raises(ValueError, match="unknown code 'modulo'"):
        Expression("modulo", (ROWS, BATCH))
    for missing in (e.size("columns"), e.scalar("columns"), e.tunable("columns")):
        with pytest.raises(KeyError, match="columns"):
            evaluate(missing + 1, ENVIRONMENT)
    for leaf in (e.dtype(), e.addressing(), e.transposed("bias")):
        with pytest.raises(ValueError, match=f"{leaf.code} follows from the tensors of a call"):
            evaluate(leaf + 1, ENVIRONMENT)


def leaves() -> st.SearchStrategy[Expression]:
    names = {"size": ENVIRONMENT.sizes, "scalar": ENVIRONMENT.scalars, "tunable": ENVIRONMENT.tunables}
    named = [Expression(code, name=name) for code, among in names.items() for name in among]
    named += [e.present("bias"), e.present("mask"), e.multiprocessors()]
    return st.one_of(st.sampled_from(named), st.integers(-(2**31), 2**31 - 1).map(e.constant))


def larger(operands: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    made = [
        st.tuples(*[operands] * arity(code)).map(lambda given, code=code: Expression(code, given))
        for code in OPERATIONS
        if code != "ceil_divide"
    ]
    divided = st.tuples(operands, st.integers(1, 2**20)).map(lambda given: e.ceil_divide(*given))
    return st.one_of(*made, divided)


def run(program: list[tuple[str, str | int]]) -> int:
    """What is left on the stack of a machine of its own, which evaluates leaf by leaf."""
    stack: list[int] = []
    for code, argument in program:
        if code in OPERATIONS:
            first = len(stack) - arity(code)
            operands, stack[first:] = stack[first:], []
            stack.append(int(OPERATIONS[code](*operands)))
        elif code == "constant":
            stack.append(int(argument))
        else:
            stack.append(evaluate(Expression(code, name=str(argument)), ENVIRONMENT))
    (result,) = stack
    return result


@given(st.recursive(leaves(), larger, max_leaves=20))
def test_postfix_is_worth_what_the_expression_is(expression: Expression) -> None:
    """Whatever is built from leaves and operations: the stack ends with one number, and it is the expression's."""
    assert run(expression.postfix()) == evaluate(expression, ENVIRONMENT)


def test_expressions_are_values() -> None:
    """Two that are built alike are equal and hash alike, so that descriptions that hold them can be compared."""
    one, other = e.tiles("rows", "BLOCK") * BATCH, e.tiles("rows", "BLOCK") * BATCH
    assert one == other
    assert len({one, other, one + 1}) == 2
    assert not set(OPERATIONS) & set(LEAVES)
