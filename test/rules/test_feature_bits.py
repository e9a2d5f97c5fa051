"""Features of attention have the same bits and levels in device code, in descriptions and in the runtime."""

from __future__ import annotations

import re
from pathlib import Path

from aotriton.rules.flash import common
from aotriton.tritonsrc.flash.lib import features, sequence

V2SRC = Path(__file__).resolve().parents[2] / "v2src" / "flash"


def enumerators(file: str) -> dict[str, int]:
    """The constants ``kName = number`` of a C++ file, by names as Python spells them: kOwnLast is OWN_LAST."""
    found = re.findall(r"\bk([A-Z]\w*) = (\d+)[,;]", (V2SRC / file).read_text())
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper(): int(number) for name, number in found}


def test_bits_of_features_are_those_of_device_code() -> None:
    """Each bit that the runtime sets has its name in lib/features.py, with the same value, and there are no others.

    That keys are in pages is for the runtime alone: it gives such calls a kernel of their own.
    """
    bits = enumerators("checks.h")
    assert (bits.pop("PAGES") & sum(bits.values())) == 0
    levels_and_limits = {"UNUSED", "FULL"}
    own = {name: value.value for name, value in vars(features).items() if name.isupper() and hasattr(value, "value")}
    assert bits == {name: value for name, value in own.items() if name not in levels_and_limits}
    assert len(set(bits.values())) == len(bits)
    assert all(value & (value - 1) == 0 and value < own["UNUSED"] for value in bits.values())


def test_levels_are_those_of_the_descriptions() -> None:
    """PLAIN, BANDED, GENERAL, FULL and PAGED are the same numbers in the runtime, the descriptions and the device code,
    and so is the most that images have registers for.
    """
    levels = {name: getattr(common, name) for name in ("PLAIN", "BANDED", "GENERAL", "FULL", "PAGED")}
    assert enumerators("band.cc") == levels | {"MOST_COLUMNS": sequence.MOST_COLUMNS.value}
    assert features.FULL.value == common.FULL
    assert (features.PACKED.value, features.SOFTCAP.value) == (common.PACKED_BIT, common.SOFTCAP_BIT)
