"""The backends of attention forward whose values are the first columns of the keys: decoding with latent attention."""

from __future__ import annotations

from dataclasses import replace

from aotriton.rules.expression import (
    Expression,
    ceil_divide,
    choose,
    constant,
    equal,
    lowest_bit,
    maximum,
    minimum,
    multiprocessors,
    quotient,
    scalar,
    size,
    tunable,
)
from aotriton.rules.flash import common as c
from aotriton.rules.flash import features, split
from aotriton.rules.flash.invariant import ATTN_FWD_INVARIANT
from aotriton.rules.kernel import Guard, KernelDescription, Number, Tensor, by_vendor, strides
from aotriton.rules.operators import Backend, DerivedSize
from aotriton.tritonsrc.flash.lib import constants

ROWS_OF_TILE = constants.LATENT_TILE_ROWS  # the split of keys counts these; tiles of gfx942 have half as many
# Keys of a step, and steps of a split: what it hands on is then at most a quarter of what it reads.
STEP, FEWEST_STEPS = 64, 4
MOST_ROUNDS, NEARLY_FULL = 4, (17, 20)
ROUNDS_OF_LENGTHS = 2

_HEADS = size("batch") * c.SEQUENCES * size("heads_k")
_TILES = maximum(_HEADS * ceil_divide(split.ROWS, ROWS_OF_TILE), 1)
# The most keys that a tile sees: a band has so many for each row.
_SEEN = minimum(scalar("longest_k"), c.END - c.BEGIN + scalar("longest_q"))
_STEPS = maximum(ceil_divide(_SEEN, STEP), 1)


def _splits_of_rounds(rounds: int = 1) -> Expression:
    """The splits of each tile that fill so many rounds of one program for each multiprocessor, which has shared memory
    for no more, or of more rounds where these are not nearly full.
    """
    room = multiprocessors() * rounds
    splits = quotient(room, _TILES)
    if rounds == MOST_ROUNDS:
        return splits
    full = room * NEARLY_FULL[0] <= splits * _TILES * NEARLY_FULL[1]
    return choose(full, splits, _splits_of_rounds(rounds + 1))


_OF_LENGTHS = quotient(multiprocessors() * ROUNDS_OF_LENGTHS, _TILES)
_OF_CALL = maximum(_splits_of_rounds(), choose(c.LENGTHS_ON_HOST, 1, _OF_LENGTHS))
_WISHED = minimum(maximum(_OF_CALL, 1), ceil_divide(_STEPS, FEWEST_STEPS))
KEYS_OF_SPLIT = ceil_divide(_STEPS, _WISHED) * STEP
SPLITS = ceil_divide(_STEPS * STEP, KEYS_OF_SPLIT)

DIM, DIM_V = features.LATENT_DIMS
GUARD_LATENT = Guard(
    equal(size("head_dim"), DIM) & equal(size("head_dim_v"), DIM_V),
    f"it is for head_dim {DIM} with head_dim_v {DIM_V}",
)

_SPLIT = (
    Number("splits", "i32", SPLITS),
    Number("keys_of_split", "i32", KEYS_OF_SPLIT, multiple_of=STEP),
)

ATTN_FWD_LATENT = KernelDescription(
    name="attn_fwd_latent",
    family=c.FAMILY,
    arguments=tuple(
        own
        for one in ATTN_FWD_INVARIANT.arguments
        if one.name not in ("V", "head_dim_qk", "head_dim_v", "BLOCK_DMODEL") and not one.name.startswith("stride_v_")
        for own in (_SPLIT if one.name == "splits" else (one,))
    ),
    sources={int(True): "attn_fwd_latent_paged"},
    # No choice has the head dims, as the lead's, by which cells are named, has no such ones.
    choices=tuple(one for one in ATTN_FWD_INVARIANT.choices if one.name != c.HEAD_DIM.name),
    tunables=by_vendor(
        {"EARLY": 0},
        cuda={"BLOCK_M": (ROWS_OF_TILE,), "BLOCK_N": (32,), "EARLY": (1,)},
        hip={"BLOCK_M": (ROWS_OF_TILE // 2,), "BLOCK_N": (32,), "EARLY": (0,)},
    ),
    compile_options=by_vendor(
        cuda={"num_warps": (8,), "num_stages": (4,)}, hip={"num_warps": (4,), "num_stages": (1,), "waves_per_eu": (1,)}
    ),
    tuning_keys=(c.MAX_SEQLEN_Q,),
    grid=(ceil_divide(split.ROWS, tunable("BLOCK_M")) * _HEADS * SPLITS, constant(1), constant(1)),
    guards=(*split.GUARDS, c.GUARD_INVARIANT, GUARD_LATENT),
    timed=False,
)

# Keys arrive in boxes of the columns that are swizzled together.
_BOX = minimum(lowest_bit(maximum(size("page_size"), 1)), tunable("BLOCK_N"))

ATTN_FWD_HOPPER_LATENT = KernelDescription(
    name="attn_fwd_hopper_latent",
    family=c.FAMILY,
    arguments=(
        Tensor("Q", c.FORWARD_Q),
        Tensor("K", c.FORWARD_K, (1, 1, tunable("BLOCK_N"), constants.SWIZZLED), levels=split.IN_ROWS),
        Tensor(
            "KPages", c.FORWARD_K, (1, 1, constants.PAGE_STEP, constants.SWIZZLED), box_rows=_BOX, levels=split.OF_PAGES
        ),
        Tensor("Out", c.OUT),
        Tensor("L", c.LOGSUMEXP),
        Tensor("Partial", split.PARTIAL, does="write"),
        Tensor("PartialL", split.PARTIAL_LSE, does="write"),
        c.STORE_LSE,
        c.SM_SCALE,
        *strides("bhs", "Q", "Out"),
        *c.LENGTHS,
        *split.BAND_OF_ANY,
        split.FEATURES_OF_ANY,
        *split.SEQUENCES_OF_ANY,
        split.LONGEST,
        Number("rows_of_all", "i32", split.ROWS_OF_ALL),
        *_SPLIT,
        *split.PAGES,
        Number("pages", "i32", size("pages"), levels=split.OF_PAGES),
        Number("box", "i32", _BOX, multiple_of=constants.PAGE_STEP, levels=split.OF_PAGES),
        *c.constexprs("BLOCK_N", "STAGES", "EARLY"),
    ),
    sources={split.Keys.pages: "attn_fwd_hopper_latent_paged"},
    choices=tuple(c.DESCRIPTOR if one.name == c.DESCRIPTOR.name else one for one in ATTN_FWD_LATENT.choices),
    tunables=by_vendor(cuda={"BLOCK_N": (STEP,), "STAGES": (2,), "EARLY": (1,)}),
    # Four warps are the first consumer; the compiler adds the others.
    compile_options=by_vendor(cuda={"num_warps": (4,), "maxnreg": (168,)}),
    tuning_keys=(c.MAX_SEQLEN_Q,),
    grid=(ceil_divide(split.ROWS, constant(ROWS_OF_TILE)) * _HEADS * SPLITS, constant(1), constant(1)),
    guards=(*ATTN_FWD_LATENT.guards, split.GUARD_NO_SOFTCAP),
    timed=False,
    needs=("tma", "wgmma"),
    gluon=True,
)

ATTN_FWD_LATENT_COMBINE = replace(
    split.ATTN_FWD_COMBINE,
    name="attn_fwd_latent_combine",
    source=split.ATTN_FWD_COMBINE.name,
    choices=(c.T,),
    tunables=by_vendor(
        {"EARLY": 0},
        cuda={"AT_ONCE": (8,), "BLOCK_DMODEL": (DIM_V,), "EARLY": (1,)},
        hip={"AT_ONCE": (8,), "BLOCK_DMODEL": (DIM_V,), "EARLY": (0,)},
    ),
    compile_options=by_vendor(
        cuda={"num_warps": (4,), "num_stages": (1,)},
        hip={"num_warps": (4,), "num_stages": (1,), "waves_per_eu": (0,)},
    ),
    tuning_keys=(c.MAX_SEQLEN_Q,),
    work=None,
    timed=False,
)

LATENT = Backend(
    "latent",
    (ATTN_FWD_LATENT, ATTN_FWD_LATENT_COMBINE),
    (split.PARTIAL, split.PARTIAL_LSE),
    (
        DerivedSize("partial_splits", choose(equal(SPLITS, 1), 0, SPLITS)),  # one leaves nothing to combine
        DerivedSize("partial_rows", split.ROWS_OF_ALL),
    ),
)
HOPPER_LATENT = replace(LATENT, name="hopper_latent", kernels=(ATTN_FWD_HOPPER_LATENT, ATTN_FWD_LATENT_COMBINE))
