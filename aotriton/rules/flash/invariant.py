"""The backend of attention forward under the hint `batch_invariant`: one image of each functional for all calls."""

from __future__ import annotations

from aotriton.rules.expression import ceil_divide, choose, constant, equal, scalar, size, tunable
from aotriton.rules.flash import common as c
from aotriton.rules.flash import split
from aotriton.rules.kernel import Guard, KernelDescription, Number, by_vendor
from aotriton.rules.operators import Backend, DerivedSize
from aotriton.tritonsrc.flash.lib import constants

PART = constants.INVARIANT_PART
# Of a call with more rows, results of parts take much memory, and there are tiles enough; where a band hides most
# parts, most programs of parts have nothing to do.
_SEEN = choose(scalar("level"), c.END - c.BEGIN + scalar("longest_q"), scalar("longest_k"))
_SPLIT = (
    (split.ROWS <= split.MOST_ROWS) & (constant(PART + 1) <= scalar("longest_k")) & (scalar("longest_k") <= _SEEN * 4)
)
SPLITS = choose(_SPLIT, ceil_divide(scalar("longest_k"), PART), 1)

# A causal call of equal lengths is one of the plain level, and has a band here.
_BAND = (
    split.BAND_OF_ANY[0],
    Number("hi", "i32", choose(scalar("level"), c.END, choose(scalar("causal"), 0, size("seqlen_k")))),
)
GUARD_ASKED = Guard(scalar("batch_invariant"), "it is for calls with the hint batch_invariant")
# As halved_if_wide of tritonsrc/flash/lib/invariant.py has it.
TILE_ROWS = choose(c.WIDEST <= 128, tunable("BLOCK_M"), ceil_divide(tunable("BLOCK_M"), 2))
_HEADS = size("batch") * c.SEQUENCES * size("heads_k")

ATTN_FWD_INVARIANT = KernelDescription(
    name="attn_fwd_invariant",
    family=c.FAMILY,
    arguments=tuple(
        {"lo": _BAND[0], "hi": _BAND[1], "splits": Number("splits", "i32", SPLITS)}.get(one.name, one)
        for one in split.ATTN_FWD_SPLIT.arguments
        if one.name != "keys_of_split" and (not one.levels or {*one.levels} & {*split.OF_16_BITS})
    ),
    sources={split.Keys.pages: "attn_fwd_invariant_paged"},
    choices=tuple(
        split.KEYS.narrowed(*split.OF_16_BITS) if one == split.KEYS else one
        for one in split.ATTN_FWD_SPLIT.choices
        if one.name != c.CAUSAL.name
    ),
    # One config, as others round differently.
    tunables=by_vendor(
        cuda={"BLOCK_M": (128,), "BLOCK_N": (64,), "EARLY": (1,)},
        hip={"BLOCK_M": (64,), "BLOCK_N": (32,), "EARLY": (0,)},
    ),
    compile_options=by_vendor(
        cuda={"num_warps": (8,), "num_stages": (3,)}, hip={"num_warps": (8,), "num_stages": (1,), "waves_per_eu": (1,)}
    ),
    tuning_keys=(c.MAX_SEQLEN_Q,),
    grid=(ceil_divide(split.ROWS, TILE_ROWS) * _HEADS * SPLITS, constant(1), constant(1)),
    guards=(*split.GUARDS, GUARD_ASKED),
    timed=False,
)

ATTN_FWD_INVARIANT_COMBINE = KernelDescription(
    name="attn_fwd_invariant_combine",
    family=c.FAMILY,
    arguments=tuple(one for one in split.ATTN_FWD_COMBINE.arguments if one.name != "AT_ONCE"),
    choices=split.ATTN_FWD_COMBINE.choices,
    tunables=by_vendor({"EARLY": 0}, cuda={"EARLY": (1,)}, hip={"EARLY": (0,)}),
    compile_options=by_vendor(
        cuda={"num_warps": (1,), "num_stages": (1,)}, hip={"num_warps": (1,), "num_stages": (1,), "waves_per_eu": (0,)}
    ),
    tuning_keys=(c.MAX_SEQLEN_Q,),
    grid=split.ATTN_FWD_COMBINE.grid,
    begins_early=True,
    timed=False,
)

INVARIANT = Backend(
    "invariant",
    (ATTN_FWD_INVARIANT, ATTN_FWD_INVARIANT_COMBINE),
    (split.PARTIAL, split.PARTIAL_LSE),
    (
        DerivedSize("partial_splits", choose(equal(SPLITS, 1), 0, SPLITS)),  # one leaves nothing to combine
        DerivedSize("partial_rows", split.ROWS_OF_ALL),
    ),
)
