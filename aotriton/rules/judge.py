"""The judge of a kernel: a digest of what its results are compared with, and of the call that they are results of.

A verdict, a winner and a certificate are worth what the judge was worth that a measurement names. If a reference, a
tolerance, the inputs or the launch change, the judge is another one, and what the old one said does not count.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

from aotriton.rules.expression import Expression
from aotriton.rules.family import families
from aotriton.rules.image import code_of, source_digest
from aotriton.rules.kernel import KernelDescription, Number, Tensor
from aotriton.rules.operators import Operator

TOLERANCES = Path(__file__).parent.parent / "tune" / "problem" / "accuracy.py"


class Judged(Protocol):
    """What a judge said of a kernel. The ``judge`` is empty where there was none when it was recorded."""

    @property
    def kernel(self) -> str: ...
    @property
    def judge(self) -> str: ...


Verdict = TypeVar("Verdict", bound=Judged)


def judge(kernel: KernelDescription, operator: Operator, sources: Mapping[str, str]) -> str:
    """The judge of a kernel whose results are checked by these ``sources``, modules of Python by their names.

    Their code counts, and so do the tolerances that all families have in common, the grid, the shapes of tensors, the
    numbers that the kernel is given, and the scalars that these and the grid name. What a feature adds for images of
    some levels alone does not count: measured calls do not have it.
    """
    return _digest(kernel, operator, {name: code_of(ast.parse(text)) for name, text in sources.items()})


def judge_of(kernel: KernelDescription) -> str:
    """The judge of a kernel by the files of its family in tune/.

    In the tree, ``reference.py`` with what it imports says what is right; static models and shapes are beside it.
    Outside of the tree each file may say it, so all count.
    """
    return _judge_of(kernel)


@cache
def _judge_of(kernel: KernelDescription) -> str:
    family = next(one for one in families() if one.name == kernel.family)
    operator = next(one for one in family.operators if kernel in one.kernels)
    if family.in_tree:
        package = family.module("tune")
        return _digest(kernel, operator, source_digest(package, f"{package}.reference"))
    folder = family.folder / "tune"
    modules = sorted(folder.rglob("*.py"))
    return judge(kernel, operator, {one.relative_to(folder).as_posix(): one.read_text() for one in modules})


def of_today(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts whose judge is the one of today.

    A verdict that names no judge counts if its kernel is of this tree, whose references were right before judges were
    recorded; so does one of a judge that the family lists as earlier and no less right. Where a kernel is not known,
    all verdicts on it count.
    """
    verdicts = list(verdicts)
    known = {kernel.name: (kernel, family) for family in families() for kernel in family.kernels}
    valid: dict[str, set[str] | None] = {}
    for name in {one.kernel for one in verdicts}:
        valid[name] = None
        if name in known:
            kernel, family = known[name]
            valid[name] = {judge_of(kernel), *family.earlier_judges(name), *([""] if family.in_tree else [])}
    return [one for one in verdicts if (judges := valid[one.kernel]) is None or one.judge in judges]


def _digest(kernel: KernelDescription, operator: Operator, code: object) -> str:
    numbers = {one.name: one.value for one in kernel.arguments if isinstance(one, Number) and not one.levels}
    named = {name for value in (*kernel.grid, *numbers.values()) for code, name in value.postfix() if code == "scalar"}
    tensors = (one for one in kernel.arguments if isinstance(one, Tensor) and not one.levels)
    made_of = {
        "code": code,
        "tolerances": _tolerances(),
        "grid": [_plain(axis) for axis in kernel.grid],
        "tensors": {one.name: one.operand.dims for one in tensors if not one.operand.optional},
        "numbers": {name: _plain(value) for name, value in numbers.items()},
        "scalars": {one.name: one.default for one in operator.scalars if one.name in named},
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: Expression) -> list[list[str | int]]:
    return [list(step) for step in value.postfix()]


@cache
def _tolerances() -> dict[str, float]:
    """The constants of the module that compares results: how far off they may be."""
    found = {}
    for node in ast.parse(TOLERANCES.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            (target,) = node.targets
            found[ast.unparse(target)] = node.value.value
    return found  # type: ignore[return-value] # they are numbers
