"""Attention's features, each once, and which of them no kernel has together.

From here come the runtime's bits, levels and refusals (``SHARED``), the checks of calls that models make (checks.py),
the tables of docs/compatibility.md, and the features and exclusions of the tests' covering array. Which backends serve
a feature follows from their descriptions: aotriton/feature_table.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from aotriton.rules.family import Shared
from aotriton.tritonsrc.flash.lib import constants

# What an image computes; rules/flash/common.py says more.
LEVELS = PLAIN, BANDED, GENERAL, FULL, PAGED = 0, 2, 4, 5, 6

# The head dims of keys and of values that are the keys' first columns (rules/flash/latent.py).
LATENT_DIMS = constants.LATENT + constants.ROPE, constants.LATENT


@dataclass(frozen=True)
class Feature:
    """What a call may ask for beyond the plain softmax. A call has it where it gives ``fields`` of c.h.

    ``says``: what the documents call it; two features may share a row. ``level``: the lowest one whose images compute
    it. ``bit``: of the number ``features`` of a call, as device code has it; 0 where images
    need not be told. ``asked``: the operand or scalar by which refusals name it, by default the first field. No
    ``fields``: the checks find it in others.
    """

    name: str
    says: str
    level: int
    bit: int
    fields: tuple[str, ...]
    asked: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "asked", self.asked or next(iter(self.fields), ""))


WINDOW = Feature(
    "window",
    "causal with unequal lengths, aligned at the first or at the last key; sliding windows",
    BANDED,
    0,
    ("causal_variant", "windowed", "window_left", "window_right"),
)
# Bands count from the key that is as far from the last one as the row is; the kernel finds it.
OWN_LAST = Feature("own_last", "", BANDED, 32, ())
SOFTCAP = Feature("softcap", "capped scores", GENERAL, 512, ("softcap",))
SINKS = Feature("sinks", "attention sinks, with their gradient", GENERAL, 2, ("sinks", "dsinks"))
PACKED = Feature(
    "packed",
    "packed sequences of different lengths",
    GENERAL,
    4,
    ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
    asked="cu_seqlens",
)
USED_Q, USED_K = (
    Feature(f"used_{side}", "used lengths", GENERAL, bit, (f"seqused_{side}",)) for side, bit in (("q", 8), ("k", 16))
)
PAGES = Feature("pages", "keys and values in pages", PAGED, 1024, ("block_table",))
ALIBI = Feature("alibi", "ALiBi", FULL, 1, ("alibi_slopes",))
BIAS, DBIAS = (
    Feature(name, "a bias or a mask, with its gradient", FULL, bit, (name,))
    for name, bit in (("bias", 64), ("dbias", 256))
)
DROPOUT = Feature("dropout", "dropout", FULL, 128, ("dropout", "dropout_seed", "dropout_offset"))
FP8_KEYS = Feature(
    "fp8_keys", "keys and values of 8 bits, with scales", GENERAL, 2048, ("k_descale", "v_descale"), asked="k of 8 bits"
)
FP8_Q = Feature("fp8_q", "queries of 8 bits, too", GENERAL, 0, ("q_descale",), asked="q of 8 bits")

FEATURES = (
    WINDOW,
    OWN_LAST,
    SOFTCAP,
    SINKS,
    PACKED,
    USED_Q,
    USED_K,
    PAGES,
    ALIBI,
    BIAS,
    DBIAS,
    DROPOUT,
    FP8_KEYS,
    FP8_Q,
)

# Pairs that no kernel has. FULL images have no softcap, images of pages have what GENERAL ones have, and a bias has
# rows of batches.
NOT_TOGETHER = (
    (SOFTCAP, BIAS),
    (SOFTCAP, ALIBI),
    (SOFTCAP, DROPOUT),
    (BIAS, PACKED),
    (BIAS, PAGES),
    (ALIBI, PAGES),
    (DROPOUT, PAGES),
    (BIAS, FP8_KEYS),
    (ALIBI, FP8_KEYS),
    (DROPOUT, FP8_KEYS),
)
PAIRED = tuple(dict.fromkeys(one for pair in NOT_TOGETHER for one in pair))


def bits(features: Iterable[Feature]) -> int:
    """The number ``features`` of a call with these."""
    return sum({one.bit for one in features})


OF_FULL = bits(one for one in FEATURES if one.level == FULL)
OF_LENGTHS = bits((PACKED, USED_Q, USED_K))  # these are in device memory, where the host does not read them


def refusal(features: int) -> str | None:
    """What the checks say of a call with these features, as bits; None where some kernel has them together."""
    return refusals().get(features & bits(PAIRED))


@cache
def refusals() -> Mapping[int, str]:
    """What the checks say of each set of PAIRED features that no kernel has together: the first pair that is in the
    way, and the nearest calls that are served, which lack as few features as they can.
    """
    found = {}
    for chosen in _sets(PAIRED):
        if pair := _in_the_way(chosen):
            ways = [left_out for left_out in _sets(chosen) if not _in_the_way(set(chosen) - set(left_out))]
            nearest = [way for way in ways if len(way) == len(ways[0])]
            without = ", or ".join("without " + " and ".join(one.asked for one in way) for way in nearest)
            first, second = pair
            found[bits(chosen)] = f"no kernel has {first.asked} together with {second.asked} yet; served {without}"
    return found


def _sets(features: tuple[Feature, ...]) -> list[tuple[Feature, ...]]:
    """All sets of these, small ones first."""
    return [one for count in range(len(features) + 1) for one in combinations(features, count)]


def _in_the_way(features: Iterable[Feature]) -> tuple[Feature, Feature] | None:
    return next((pair for pair in NOT_TOGETHER if {*pair} <= {*features}), None)


def _constant(name: str) -> str:
    """The name of a constant of C++: kOwnLast for own_last."""
    return "k" + "".join(word.capitalize() for word in name.split("_"))


# What the runtime takes from here (Family.shared).
SHARED: Shared = {
    **{_constant(one.name): one.bit for one in FEATURES if one.bit},
    **dict(zip(("kPlain", "kBanded", "kGeneral", "kFull", "kPaged"), LEVELS, strict=True)),
    "kLatentDim": LATENT_DIMS[0],
    "kLatentDimV": LATENT_DIMS[1],
    "kOfFull": OF_FULL,
    "kOfLengths": OF_LENGTHS,
    "kPaired": bits(PAIRED),
    "kRefusals": refusals(),
}
