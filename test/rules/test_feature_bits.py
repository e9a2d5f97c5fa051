"""Attention's features are in one table: device code has its bits and levels, and c.h its fields and refusals."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

from aotriton.rules.flash import common
from aotriton.rules.flash import features as table
from aotriton.tritonsrc.flash.lib import features, sequence

V2SRC = Path(__file__).resolve().parents[2] / "v2src"
HEADER = (V2SRC / "include" / "aotriton" / "c.h").read_text()
BITS = {one.name.upper(): one.bit for one in table.FEATURES if one.bit}


def test_bits_of_features_are_those_of_device_code() -> None:
    """Each bit of the table has its name in lib/features.py, with the same value, and there are no others.

    That keys are in pages or of 8 bits is for the runtime alone: it gives such calls kernels of their own.
    """
    own = {name: value.value for name, value in vars(features).items() if name.isupper() and hasattr(value, "value")}
    unused = own.pop("UNUSED")
    assert own.pop("FULL") == table.FULL
    assert own == {name: bit for name, bit in BITS.items() if name not in ("PAGES", "FP8_KEYS")}
    assert len(set(BITS.values())) == len(BITS)
    assert all(bit & (bit - 1) == 0 and bit < unused for bit in BITS.values())


def test_guards_compare_bits_in_their_order() -> None:
    """At the level of bands and lengths, only sinks' bit is below that of packed sequences, and none is above softcap's
    but those that are for the runtime.
    """
    general = {one for one in table.FEATURES if one.bit and one.level != table.FULL}
    assert {one for one in general if one.bit < common.PACKED_BIT} == {table.SINKS}
    assert {one for one in general if one.bit > common.SOFTCAP_BIT} == {table.PAGES, table.FP8_KEYS}
    assert all(one.bit < common.SOFTCAP_BIT for one in table.FEATURES if one.level == table.FULL)


def test_the_runtime_has_the_most_columns_of_device_code() -> None:
    """What images have registers for is the same number in the runtime and in device code."""
    (most,) = re.findall(r"kMostColumns = (\d+)", (V2SRC / "flash" / "band.cc").read_text())
    assert int(most) == sequence.MOST_COLUMNS.value


def test_fields_are_those_of_the_header() -> None:
    """The table has all fields of `aotriton_attn_features`, and gradients of the backward."""
    (struct,) = re.findall(
        r"typedef struct aotriton_attn_features \{(.*?)\} aotriton_attn_features;", HEADER, re.DOTALL
    )
    bare = re.sub(r"/\*.*?\*/", "", struct, flags=re.DOTALL)
    names = {name for one in bare.split(";") for name in re.findall(r"(\w+)(?:\[\d+\])?\s*(?:,|$)", one)}
    fields = {name for one in table.FEATURES for name in one.fields}
    assert fields - names == {"dbias", "dsinks"}
    assert names - fields == {"reserved"}


def test_the_header_tells_each_pair_that_no_kernel_has() -> None:
    """`AOTRITON_NOT_SUPPORTED: softcap together with bias, alibi_slopes or dropout; ...`, and no other pair."""
    (said,) = re.findall(r"AOTRITON_NOT_SUPPORTED: (softcap .*?), or\s+\*?\s*in a backward", HEADER, re.DOTALL)
    told = set()
    for clause in re.sub(r"\s+\*?\s*", " ", said).split("; "):
        first, others = clause.split(" together with ")
        told |= {frozenset((first, one)) for one in re.split(", | or ", others)}
    assert told == {frozenset(one.asked for one in pair) for pair in table.NOT_TOGETHER}


def test_a_refusal_names_a_pair_and_what_is_served() -> None:
    """Whatever is asked for together is refused where a pair of it is in the way, with the first one's names; without
    any of what the message leaves out, and with all that it leaves, it is served.
    """
    by_name = {one.asked: one for one in table.PAIRED}
    refused = 0
    for count in range(len(table.PAIRED) + 1):
        for chosen in combinations(table.PAIRED, count):
            pairs = [pair for pair in table.NOT_TOGETHER if {*pair} <= {*chosen}]
            said = table.refusal(table.bits((*chosen, table.SINKS, table.USED_K)))
            assert (said is None) == (not pairs)
            if not said:
                continue
            refused += 1
            first, second = pairs[0]
            way, _, served = said.partition("; served ")
            assert way == f"no kernel has {first.asked} together with {second.asked} yet"
            for words in served.split(", or "):
                left_out = [by_name[name] for name in words.removeprefix("without ").split(" and ")]
                assert table.refusal(table.bits(set(chosen) - set(left_out))) is None
                assert all(
                    table.refusal(table.bits(set(chosen) - set(fewer)))
                    for fewer in combinations(left_out, len(left_out) - 1)
                )
    assert refused == len(table.refusals())
    assert max(map(len, table.refusals().values())) < 400  # a message has 1,024 bytes
