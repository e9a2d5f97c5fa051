"""C++ spellings: from Python values, names and Triton types to the text that stands for them in generated code."""

from __future__ import annotations

from aotriton.rules.kernel import Choice, Value

ADDRESSING = "ADDRESSING"  # the choice whose values are spelled as enumerators of Addressing in archs.h

DTYPES = {"fp16": "DType::float16", "bf16": "DType::bfloat16", "fp32": "DType::float32"}

SCALARS = {"i32": "int32_t", "i64": "int64_t", "fp32": "float"}


def camel(name: str) -> str:
    """``attn_bwd_dk_dv`` as a type's name: ``AttnBwdDkDv``."""
    return "".join(part.capitalize() for part in name.split("_"))


def string(text: str) -> str:
    """``text`` as a string literal; what is not printable ASCII is escaped in octal, of three digits at most."""
    plain = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("?"): "\\?"}
    spelled = (plain.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode())
    return f'"{"".join(spelled)}"'


def literal(value: int | float | bool | None) -> str:
    """A number or truth value; None, an unknown time, is 0."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return f"{value or 0.0:.6g}" + ("f" if any(c in f"{value or 0.0:.6g}" for c in ".e") else ".0f")


def choice_type(choice: Choice) -> str:
    """The type of a functional's field."""
    if choice.kind == "type":
        return "DType"
    if choice.name == ADDRESSING:
        return "Addressing"
    if all(isinstance(value, bool) for value in choice.values):
        return "bool"
    if all(isinstance(value, int) for value in choice.values):
        return "int32_t"
    raise ValueError(f"choice {choice.name}: no C++ type for the values {choice.values}")


def choice_value(choice: Choice, value: Value) -> str:
    """One value of a choice, of type ``choice_type``."""
    if choice.kind == "type":
        return DTYPES[str(value)]
    if choice.name == ADDRESSING:
        return f"Addressing::{value}"
    assert isinstance(value, int)
    return literal(value)
