"""docs/compatibility.md: what it says of features is what their table and the backends say, and what it says of refused
calls of attention what the checks in v2src/flash/ say.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import Any

import pytest
from page import DOCS

from aotriton import feature_table
from aotriton.rules.flash import features
from aotriton.rules.kernel import Argument, Number, Tensor

TEXT = (DOCS / "compatibility.md").read_text()
FLASH = DOCS.parent / "v2src" / "flash"
FAIL = re.compile(r"fail\(\s*Error::(\w+),\s*((?:\"[^\"]*\"|PRId64|\s)+)")
PLACE = re.compile(r"%(?:s|d|g|ld|zu)")  # PRId64 is read as ld
ROW = re.compile(r"^\| [^|]+ \| `(\w+)` \| ([^|]+?)(?: \(or [^|]+\))? \|$", re.MULTILINE)


def refusals() -> dict[str, str]:
    """The error of each message with which a check of attention refuses a call, without the operator in front of it."""
    found = {}
    for path in sorted(FLASH.glob("*.cc")):
        for error, text in FAIL.findall(path.read_text()):
            message = "".join(re.findall(r'"([^"]*)"', text.replace("PRId64", '"ld"')))
            found[re.sub(r"^(%s|\w+): ", "", message)] = error
    found.pop("%s")  # of two features, which the table has
    return found | {str(features.refusal(features.bits(pair))): "not_supported" for pair in features.NOT_TOGETHER}


def matches(message: str, said: str) -> bool:
    """Whether a check's message, with anything in its places, is what the page says."""
    return re.fullmatch(r"\S+".join(map(re.escape, PLACE.split(message))), said) is not None


def test_each_refusal_of_the_page_is_a_check() -> None:
    """A row's message is that of a check, with the row's error."""
    rows, checks = ROW.findall(TEXT), refusals()
    assert len(rows) > 20
    for error, said in rows:
        assert {checks[message] for message in checks if matches(message, said)} == {error}, said


def test_each_check_is_on_the_page() -> None:
    """Every message of a check has a row."""
    said = [one for _, one in ROW.findall(TEXT)]
    checks = refusals()
    assert len(checks) > 20
    assert [message for message in checks if not any(matches(message, one) for one in said)] == []


@cache
def table() -> feature_table.Table:
    return feature_table.read(feature_table.DATABASE)


def test_the_tables_of_features_are_those_of_today() -> None:
    """They are what `python3 -m aotriton.feature_table --write docs/compatibility.md` makes of them."""
    assert feature_table.rewritten(TEXT, table()) == TEXT


def test_the_table_knows_what_serves_what() -> None:
    """Softcap is not Hopper's, pages are for the forward alone, and fp32 is for the portable backend."""
    served = table().served
    assert [*served["capped scores", "attn_bwd", "sm_90"]] == ["portable"]
    assert not served["keys and values in pages", "attn_bwd", "sm_90"]
    assert served["keys and values in pages", "attn_fwd", "sm_90"]
    wide = {
        name for backends in served.values() for name, of in backends.items() if "fp32" in {dtype for dtype, _ in of}
    }
    assert wide == {"portable"}


def test_no_backend_ignores_a_feature() -> None:
    """Where guards let a call with a feature through, some kernel of the backend takes what the call gives for it."""
    seen = 0
    operators = {one.name: one for one in feature_table.OPERATORS}
    for (says, name, _), backends in table().served.items():
        of_operator = operators[name]
        given = {one.name for one in of_operator.operands} | {one.name for one in of_operator.scalars}
        asked = [one for one in features.FEATURES if one.says == says and one.bit and given & {*one.fields}]
        kernels = {one.name: one.kernels for one in of_operator.backends}
        for backend, one in product(backends, asked):
            taken = {of for kernel in kernels[backend] for argument in kernel.arguments for of in _names(argument)}
            assert taken & {*one.fields}, f"{name}: {backend} serves {one.name}, and takes nothing of it"
            seen += 1
    assert seen > 50


def _names(argument: Argument) -> set[str]:
    """The operands and scalars that an argument is made of."""
    if isinstance(argument, Tensor):
        return {argument.operand.name}
    return {str(name) for _, name in argument.value.postfix()} if isinstance(argument, Number) else set()


def test_what_explain_chooses_is_in_the_table() -> None:
    """A call with one feature runs on a backend of the feature's row, in both directions, on every arch."""
    binding = pytest.importorskip("aotriton._binding", reason="the binding is not on PYTHONPATH: build it first")
    sizes = {"batch": 2, "heads": 16, "seqlen_q": 1000, "seqlen_k": 1000, "head_dim": 64}
    asked: dict[features.Feature, dict[str, Any]] = {
        features.WINDOW: {"causal": True, "window_left": 300},
        features.SOFTCAP: {"softcap": 30.0},
        features.SINKS: {"sinks": True},
        features.USED_K: {"seqused_k": True, "sequences": 2},
        features.ALIBI: {"alibi_slopes": True},
        features.BIAS: {"bias": True},
        features.DROPOUT: {"dropout": 0.1, "dropout_seed": True, "dropout_offset": True},
    }
    for feature, arguments in asked.items():
        for operator, arch in product(("attn_fwd", "attn_bwd"), ("sm_90", "gfx942")):
            first = binding.explain(operator, arch=arch, dtype="bf16", **sizes, **arguments)[0]
            assert first["backend"] in table().served[feature.says, operator, arch]
