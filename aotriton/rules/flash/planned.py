"""The backend of attention forward on Hopper whose programs take the items of a plan, made on the device."""

from __future__ import annotations

from aotriton.rules.expression import (
    ceil_divide,
    choose,
    constant,
    lowest_bit,
    maximum,
    minimum,
    multiprocessors,
    present,
    quotient,
    scalar,
    size,
    tunable,
)
from aotriton.rules.flash import common as c
from aotriton.rules.flash import split
from aotriton.rules.flash.restrictions_hopper import PLANNED_RESTRICTIONS
from aotriton.rules.kernel import Guard, KernelDescription, Number, Operand, Tensor, by_vendor, strides
from aotriton.rules.operators import Backend, DerivedSize
from aotriton.rules.work import BAND, NONE, WHOLE, Work
from aotriton.tritonsrc.flash.lib import constants

TILE_ROWS, STEP = constants.PLAN_TILE_ROWS, constants.PLAN_STEP
FIELDS, COUNTS = constants.PLAN_FIELDS, constants.PLAN_COUNTS
CACHED = 2**24  # bytes of keys and values that the L2 cache holds beside what else goes through it
PROGRAMS = multiprocessors()
# Of 8 bits, those that Hopper converts.
OF_FP8 = {one: of for one, of in split.OF_FP8.items() if of == "fp8e4nv"}
KEYS = split.KEYS.narrowed(split.Keys.rows, split.Keys.pages, *OF_FP8)
# All query heads that share a key head, where they are not too many.
PACKED = choose(c.GROUP <= c.MOST_PACKED, c.GROUP, c.PACKED)
_POSITIONS = quotient(constant(TILE_ROWS // 2), PACKED) * 2  # of a tile
_HEADS = ceil_divide(size("heads_q"), PACKED)
# Packed sequences have one tile more than their rows fill, each.
_TILES = (ceil_divide(size("seqlen_q"), _POSITIONS) + (c.SEQUENCES - 1)) * size("batch") * _HEADS
_PLACES = PROGRAMS * 4

ITEMS = Operand("items", ("plan_items", "plan_fields"), "i32", contiguous=True, alignment=16)
SPLIT_TILES = Operand("split_tiles", ("plan_tiles", "plan_fields"), "i32", contiguous=True, alignment=16)
COUNTED = Operand("counts", ("plan_counts",), "i32", contiguous=True, alignment=16)
PARTS = Operand("parts", ("part_places", "part_rows", "head_dim_v"), "fp32", contiguous=True, alignment=16)
PARTS_LSE = Operand("parts_lse", PARTS.dims[:2], "fp32", contiguous=True, alignment=16)
SIZES = (
    DerivedSize("plan_items", _TILES + _PLACES),
    DerivedSize("plan_fields", constant(FIELDS)),
    DerivedSize("plan_tiles", PROGRAMS * 2),
    DerivedSize("plan_counts", constant(COUNTS)),
    DerivedSize("part_places", _PLACES),
    DerivedSize("part_rows", constant(TILE_ROWS)),
)

# About as the plan has them where all tiles are alike, for the model of the time: as many parts of a tile as nearly
# fill one round of programs, or else as many as the plan makes at most.
_WIDEST, _NEARLY_FULL = maximum(_TILES, 1), (17, 20)
_FEW, _MANY = quotient(PROGRAMS, _WIDEST), ceil_divide(PROGRAMS * 8, _WIDEST * 5)
_WISHED = choose(PROGRAMS * _NEARLY_FULL[0] <= _FEW * _WIDEST * _NEARLY_FULL[1], _FEW, _MANY)
_PARTS = maximum(minimum(_WISHED, ceil_divide(scalar("longest_k"), constants.PLAN_LEAST * STEP)), 1)
_SPLIT = choose(_PARTS <= 1, 0, _TILES)  # tiles
_BOX = minimum(lowest_bit(maximum(size("page_size"), 1)), tunable("BLOCK_N"))
# By the bytes of a number: columns that are swizzled together.
_PAGE_TILES = {
    bytes: (1, 1, constants.PAGE_STEP, minimum(tunable("BLOCK_DMODEL"), constant(constants.SWIZZLED * 2 // bytes)))
    for bytes in (1, 2)
}
_KEYS = (c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("q"))
_WIDTH_V = Number("head_dim_v", "i32", size("head_dim_v"), multiple_of=8)

ATTN_FWD_PLAN = KernelDescription(
    name="attn_fwd_plan",
    family=c.FAMILY,
    arguments=(
        Tensor("Q", c.FORWARD_Q, general=True, unread=True),
        Tensor("K", c.FORWARD_K, general=True, unread=True),
        Tensor("BlockTable", c.BLOCK_TABLE, general=True, unread=True),
        Tensor("Items", ITEMS, does="write"),
        Tensor("Splits", SPLIT_TILES, does="write"),
        Tensor("Counts", COUNTED, does="write"),
        Number("sequences", "i32", c.ALL_SEQUENCES),
        Number("heads", "i32", _HEADS),
        Number("packed", "i32", PACKED),
        Number("positions", "i32", _POSITIONS),
        c.SEQLEN_Q,
        c.SEQLEN_K,
        *split.BAND_OF_ANY,
        split.FEATURES_OF_ANY,
        split.CU_SEQLENS_Q_OF_ANY,
        Tensor("CuSeqlensK", c.CU_SEQLENS_K, general=True),
        split.SEQUSED_Q_OF_ANY,
        Tensor("SequsedK", c.SEQUSED_K, general=True),
        Number("paged", "i32", present("block_table")),
        Number("programs", "i32", PROGRAMS),
        Number("keys_in_cache", "i32", quotient(constant(CACHED), maximum(size("head_dim") * 4, 1))),
        *c.constexprs("AT_ONCE", "EARLY"),
    ),
    choices=(c.T,),
    tunables=by_vendor(cuda={"AT_ONCE": (128, 256), "EARLY": (1,)}),
    compile_options=by_vendor(cuda={"num_warps": (4,), "num_stages": (1,)}),
    tuning_keys=_KEYS,
    grid=(c.ALL_SEQUENCES, constant(1), constant(1)),
    work=Work(rows=c.ALL_SEQUENCES, row_tile=constant(1), traffic=((_TILES + _PLACES) * (FIELDS * 4), NONE)),
    needs=("tma", "wgmma"),
)

ATTN_FWD_HOPPER_PLANNED = KernelDescription(
    name="attn_fwd_hopper_planned",
    family=c.FAMILY,
    arguments=(
        Tensor("Items", ITEMS, does="read"),
        Tensor("Counts", COUNTED, does="read"),
        Tensor("Q", c.FORWARD_Q, c.PACKED_ROWS, packed=PACKED),
        *(
            Tensor(name, operand, c.K_TILE, levels=split.IN_ROWS, dtypes=OF_FP8)
            for name, operand in (("K", c.FORWARD_K), ("V", c.FORWARD_V))
        ),
        *(
            Tensor(f"{of}Pages{more}", operand, _PAGE_TILES[bytes], box_rows=_BOX, levels=(level,), dtypes=OF_FP8)
            for level, bytes, more in ((split.Keys.pages, 2, ""), (split.Keys.pages_fp8e4nv, 1, "Fp8"))
            for of, operand in (("K", c.FORWARD_K), ("V", c.FORWARD_V))
        ),
        Tensor("Out", c.OUT),
        Tensor("L", c.LOGSUMEXP),
        Tensor("Parts", PARTS, does="write"),
        Tensor("PartsL", PARTS_LSE, does="write"),
        c.STORE_LSE,
        c.SM_SCALE,
        *strides("bhs", "Out"),
        *c.LENGTHS,
        _WIDTH_V,
        Number("packed", "i32", PACKED),
        *split.BAND_OF_ANY,
        split.FEATURES_OF_ANY,
        *split.SEQUENCES_OF_ANY,
        *split.PAGES,
        Number("pages", "i32", size("pages"), levels=split.OF_PAGES),
        Number("box", "i32", _BOX, multiple_of=constants.PAGE_STEP, levels=split.OF_PAGES),
        *c.descales(*OF_FP8),
        *c.constexprs("BLOCK_N", "STAGES", "BLOCK_DMODEL"),
    ),
    sources={
        split.Keys.pages: "attn_fwd_hopper_planned_paged",
        split.Keys.fp8e4nv: "attn_fwd_hopper_planned_fp8",
        split.Keys.pages_fp8e4nv: "attn_fwd_hopper_planned_paged_fp8",
    },
    choices=(
        c.T,
        c.HEAD_DIM,
        c.CAUSAL.narrowed(False),
        c.DESCRIPTOR,
        KEYS,
    ),
    tunables=by_vendor(cuda={"BLOCK_N": (64, 128), "STAGES": (2, 3, 4, 5, 6)}),
    # Four warps are the first consumer; the compiler adds the others.
    compile_options=by_vendor(cuda={"num_warps": (4,), "maxnreg": (168,)}),
    tuning_keys=_KEYS,
    grid=(PROGRAMS, constant(1), constant(1)),
    work=Work(
        rows=c.EXPECTED_Q * c.GROUP,
        row_tile=constant(TILE_ROWS),
        packed=c.GROUP,
        outer=c.ALL_SEQUENCES * size("heads_k"),
        depth=c.EVENED_K,
        depth_tile=tunable("BLOCK_N"),
        parts=_PARTS,
        form=choose(scalar("level"), BAND, WHOLE),
        band=c.expected_band(c.EVENED_K),
        traffic=c.traffic(2, 2),
        slow=c.PARTIAL_SECTORS,
        hiding_rows=c.HIDING_ROWS,
    ),
    guards=(
        split.GUARD_LEVEL,
        c.GUARD_BAND,
        c.GUARD_INVARIANT,
        split.GUARD_NO_SOFTCAP,
        # Fewer are a decoding step.
        Guard(split.DECODED_ROWS + 1 <= split.ROWS, f"at most {split.DECODED_ROWS} rows of q share a head of k"),
        Guard(_TILES + _PLACES <= (2**31 - 1) // FIELDS, "it has more items than are counted in 32 bits"),
    ),
    restrictions=PLANNED_RESTRICTIONS,
    needs=("tma", "wgmma"),
    gluon=True,
    begins_early=True,
)

ATTN_FWD_PLANNED_COMBINE = KernelDescription(
    name="attn_fwd_planned_combine",
    family=c.FAMILY,
    arguments=(
        Tensor("Splits", SPLIT_TILES, does="read"),
        Tensor("Counts", COUNTED, does="read"),
        Tensor("Parts", PARTS, does="read"),
        Tensor("PartsL", PARTS_LSE, does="read"),
        Tensor("Out", c.OUT),
        Tensor("L", c.LOGSUMEXP),
        c.STORE_LSE,
        *strides("bhs", "Out"),
        c.HEADS_Q,
        c.SEQLEN_Q,
        _WIDTH_V,
        split.FEATURES_OF_ANY,
        split.SINKS_OF_ANY,
        split.CU_SEQLENS_Q_OF_ANY,
        split.SEQUSED_Q_OF_ANY,
        *c.constexprs("ROWS", "BLOCK_DMODEL", "EARLY"),
    ),
    choices=(c.T, c.HEAD_DIM, c.DESCRIPTOR),
    tunables=by_vendor(cuda={"ROWS": (8, 16, 32), "EARLY": (1,)}),
    compile_options=by_vendor(cuda={"num_warps": (2, 4), "num_stages": (1,)}),
    tuning_keys=_KEYS,
    grid=(PROGRAMS * 2 * ceil_divide(TILE_ROWS, tunable("ROWS")), constant(1), constant(1)),
    work=Work(
        rows=constant(TILE_ROWS),
        row_tile=tunable("ROWS"),
        outer=maximum(_SPLIT, 1),
        depth=_PARTS,
        traffic=(_SPLIT * _PARTS * TILE_ROWS * size("head_dim") * 4, _SPLIT * TILE_ROWS * size("head_dim") * 2),
    ),
    needs=("tma", "wgmma"),
    begins_early=True,
)

PLANNED = Backend(
    "hopper_planned",
    (ATTN_FWD_PLAN, ATTN_FWD_HOPPER_PLANNED, ATTN_FWD_PLANNED_COMBINE),
    (ITEMS, SPLIT_TILES, COUNTED, PARTS, PARTS_LSE),
    SIZES,
    own_shapes=True,
)
