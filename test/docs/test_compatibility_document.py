"""docs/compatibility.md: what it says of refused calls of attention is what the checks in v2src/flash/ say."""

from __future__ import annotations

import re

from page import DOCS

TEXT = (DOCS / "compatibility.md").read_text()
FLASH = DOCS.parent / "v2src" / "flash"
FAIL = re.compile(r"fail\(\s*Error::(\w+),\s*((?:\"[^\"]*\"|PRId64|\s)+)")
PLACE = re.compile(r"%(?:s|d|g|ld)")  # PRId64 is read as ld
ROW = re.compile(r"^\| [^|]+ \| `(\w+)` \| ([^|]+?)(?: \(or [^|]+\))? \|$", re.MULTILINE)


def refusals() -> dict[str, str]:
    """The error of each message with which a check of attention refuses a call, without the operator in front of it."""
    found = {}
    for path in sorted(FLASH.glob("*.cc")):
        for error, text in FAIL.findall(path.read_text()):
            message = "".join(re.findall(r'"([^"]*)"', text.replace("PRId64", '"ld"')))
            found[re.sub(r"^(%s|\w+): ", "", message)] = error
    return found


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


def test_features_are_fields_of_the_header() -> None:
    """The table of features names all fields of `aotriton_attn_features` but those that are refused."""
    header = (FLASH.parent / "include" / "aotriton" / "c.h").read_text()
    (struct,) = re.findall(
        r"typedef struct aotriton_attn_features \{(.*?)\} aotriton_attn_features;", header, re.DOTALL
    )
    bare = re.sub(r"/\*.*?\*/", "", struct, flags=re.DOTALL)
    names = {name for one in bare.split(";") for name in re.findall(r"(\w+)(?:\[\d+\])?\s*(?:,|$)", one)}
    served = re.findall(r"^\| [^|]+ \| (`[^|]+) \| [^|]+ \| [^|]+ \|$", TEXT, re.MULTILINE)
    named = {name for names in served for name in re.findall(r"`(\w+)`", names)}
    assert named - names == {"causal", "dbias", "dsinks"}
    assert names - named == {"q_descale", "k_descale", "v_descale", "reserved"}
