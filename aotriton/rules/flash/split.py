"""The backend of attention forward for few queries, whose keys are split between programs."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

from aotriton.rules.expression import (
    Expression,
    ceil_divide,
    choose,
    constant,
    equal,
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
from aotriton.rules.flash.restrictions import DECODE_RESTRICTIONS, SPLIT_RESTRICTIONS
from aotriton.rules.kernel import (
    MOST_COUNTED,
    Argument,
    Choice,
    Guard,
    KernelDescription,
    Number,
    Operand,
    Tensor,
    by_vendor,
    strides,
)
from aotriton.rules.operators import Backend, DerivedSize
from aotriton.rules.work import BAND, NONE, WHOLE, Work
from aotriton.tritonsrc.flash.lib import constants

# Rows of the query heads that share a key head: a decoding step's, those of some tiles of them, and the most that may
# be split, as partial results of more are too much memory.
DECODED_ROWS, ROWS_OF_TILES, MOST_ROWS = 16, 64, 1024
ROWS = scalar("longest_q") * c.GROUP
# Keys of these 8 bits have a kernel of their own on Hopper, up to ROWS_OF_TILES: tiles of the same keys run together,
# and find them in the L2 cache.
_OF_HOPPER = c.is_of(c.FORWARD_K, "fp8e4nv")
_BY_REGISTERS = _OF_HOPPER & (ROWS <= ROWS_OF_TILES)

# Keys are split so that as few rounds of programs as possible are nearly full: of 18 calls on an H200 this takes 0.9 %
# more than the best number of splits in the mean, and 7 % at most (bench/notes/attention.md).
STEP, FEWEST_STEPS = 64, 2  # keys, and steps of a split
MOST_ROUNDS, NEARLY_FULL = 4, (17, 20)
# Sequences of different lengths leave programs without keys: more of them fill the rounds that remain, as long as what
# they hand on is a sixteenth of what they read, of a decoding step's rows and of more. By registers a step takes half
# as long, and a program as long to begin.
ROUNDS_OF_LENGTHS = choose(_BY_REGISTERS, 4, 8)
FEWEST_STEPS_OF_LENGTHS = choose(_BY_REGISTERS, 32, choose(ROWS <= DECODED_ROWS, 8, 32))
# Programs of a multiprocessor, by their registers.
_AT_ONCE = multiprocessors() * choose(_BY_REGISTERS, 2, choose(size("head_dim") <= 64, 3, 2))

_HEADS = c.ALL_SEQUENCES * size("heads_k")
_TILES = maximum(_HEADS * ceil_divide(ROWS, 64), 1)
# The most keys that a tile sees: a band has so many for each row.
_SEEN = choose(
    scalar("level"), minimum(scalar("longest_k"), c.END - c.BEGIN + scalar("longest_q")), scalar("longest_k")
)
_STEPS = maximum(ceil_divide(_SEEN, STEP), 1)


def _splits_of_rounds(rounds: int = 1) -> Expression:
    """The splits of each tile that fill so many rounds, or more where these are not nearly full."""
    room = _AT_ONCE * rounds
    splits = quotient(room, _TILES)
    if rounds == MOST_ROUNDS:
        return splits
    full = room * NEARLY_FULL[0] <= splits * _TILES * NEARLY_FULL[1]
    return choose(full, splits, _splits_of_rounds(rounds + 1))


_OF_LENGTHS = minimum(
    quotient(_AT_ONCE * ROUNDS_OF_LENGTHS, _TILES),
    quotient(_STEPS, FEWEST_STEPS_OF_LENGTHS),
)
_OF_CALL = maximum(_splits_of_rounds(), choose(c.LENGTHS_ON_HOST, 1, _OF_LENGTHS))
_WISHED = minimum(maximum(_OF_CALL, 1), ceil_divide(_STEPS, FEWEST_STEPS))
KEYS_OF_SPLIT = ceil_divide(_STEPS, _WISHED) * STEP
SPLITS = ceil_divide(_STEPS * STEP, KEYS_OF_SPLIT)

PARTIAL = Operand("partial", ("partial_splits", "partial_rows", "head_dim_v"), "fp32", contiguous=True, alignment=16)
PARTIAL_LSE = Operand("partial_lse", PARTIAL.dims[:2], "fp32", contiguous=True, alignment=16)
ROWS_OF_ALL = size("batch") * size("heads_q") * size("seqlen_q")
SIZES = (
    DerivedSize("partial_splits", choose(equal(SPLITS, 1), 0, SPLITS)),  # one leaves nothing to combine
    DerivedSize("partial_rows", ROWS_OF_ALL),
)

# Of a call without a band the one that hides nothing.
BAND_OF_ANY = (
    Number("lo", "i32", choose(scalar("level"), c.BEGIN, NONE - size("seqlen_q"))),
    Number("hi", "i32", choose(scalar("level"), c.END, size("seqlen_k"))),
)
FEATURES_OF_ANY = replace(c.FEATURES, levels=())
CU_SEQLENS_Q_OF_ANY = Tensor("CuSeqlensQ", c.CU_SEQLENS_Q, general=True)
SEQUSED_Q_OF_ANY = Tensor("SequsedQ", c.SEQUSED_Q, general=True)
SINKS_OF_ANY = Tensor("Sinks", c.SINKS, general=True)
LONGEST = Number("longest", "i32", scalar("longest_q"))


class Keys(IntEnum):
    """How keys and values are stored, and maybe queries: the levels of kernels that serve caches or 8 bits."""

    rows = 0
    pages = 1
    fp8e4nv = 2
    pages_fp8e4nv = 3
    fp8e4b8 = 4
    pages_fp8e4b8 = 5
    q_fp8e4nv = 6  # and queries, in rows

    def __str__(self) -> str:
        return self.name


OF_CACHES = tuple(one for one in Keys if one != Keys.q_fp8e4nv)
# Levels borrow from that of rows until they are measured. Queries of 8 bits have keys of their type, say the checks.
KEYS = Choice(
    "KEYS",
    OF_CACHES,
    present("block_table")
    + c.is_of(c.FORWARD_K, "fp8e4nv") * Keys.fp8e4nv
    + c.is_of(c.FORWARD_K, "fp8e4b8") * Keys.fp8e4b8
    + c.is_of(c.FORWARD_Q, "fp8e4nv") * (Keys.q_fp8e4nv - Keys.fp8e4nv),
    default=Keys.rows,
    borrows=True,
    levels=True,
)
OF_FP8: dict[int, str] = {one: one.name.removeprefix("pages_") for one in OF_CACHES if one >= Keys.fp8e4nv}
OF_8_BITS: dict[int, str] = {**OF_FP8, Keys.q_fp8e4nv: "fp8e4nv"}
OF_16_BITS = Keys.rows, Keys.pages
OF_PAGES = tuple(one for one in Keys if one.name.startswith("pages"))
_PAGE_SIZE = size("page_size")
# See tritonsrc/flash/lib/pages.py; constants have 32 bits.
_MAGIC = ceil_divide(constant(2**30) * 2, maximum(ceil_divide(_PAGE_SIZE, constants.PAGE_STEP), 1))

IN_ROWS = tuple(one for one in OF_CACHES if one not in OF_PAGES)
SEQUENCES_OF_ANY = (
    SINKS_OF_ANY,
    CU_SEQLENS_Q_OF_ANY,
    Tensor("CuSeqlensK", c.CU_SEQLENS_K, general=True, levels=IN_ROWS),
    SEQUSED_Q_OF_ANY,
    Tensor("SequsedK", c.SEQUSED_K, general=True),
)
PAGES: tuple[Argument, ...] = (
    Tensor("BlockTable", c.BLOCK_TABLE, general=True, levels=OF_PAGES),
    *strides("b", "BlockTable", levels=OF_PAGES),
    Number("page_size", "i32", _PAGE_SIZE, multiple_of=constants.PAGE_STEP, levels=OF_PAGES),
    Number("magic", "i64", _MAGIC, levels=OF_PAGES),
)

# Vectors of 16 bytes.
FP8_WIDTHS = tuple(
    Number(f"width_{of}", "i32", size(name), multiple_of=16, levels=tuple(OF_FP8))
    for of, name in (("qk", "head_dim"), ("v", "head_dim_v"))
)

GUARD_LEVEL = Guard(maximum(present("block_table"), scalar("level") <= c.GENERAL), "it has bias, ALiBi or dropout")
_FROM_SOFTCAP = quotient(scalar("features"), constant(c.SOFTCAP_BIT))  # bits; the next one says that keys are in pages
GUARD_NO_SOFTCAP = Guard(_FROM_SOFTCAP - quotient(_FROM_SOFTCAP, constant(2)) * 2 <= 0, "it has softcap")
GUARDS = (
    GUARD_LEVEL,
    Guard(ROWS_OF_ALL <= MOST_COUNTED, f"q has more than {MOST_COUNTED} rows"),
    c.GUARD_BAND,
)

# Models are of keys in rows. What they choose for fewer bytes is a tenth faster there, and as much slower from pages
# (bench/notes/choice.md).
_READ_K = choose(present("block_table"), scalar("longest_k"), c.USED_K)
# Of rows that only the longest sequence has, the programs of the others end at once: about a quarter of their time.
_IDLE_ROWS = quotient(scalar("longest_q") - c.EXPECTED_Q, constant(4))

ATTN_FWD_SPLIT = KernelDescription(
    name="attn_fwd_split",
    family=c.FAMILY,
    arguments=(
        # Of calls whose lengths are in device memory the checks say that q is not aligned, where they are to have no
        # descriptors (v2src/flash/band.cc).
        Tensor("Q", c.FORWARD_Q, general=True),
        Tensor("K", c.FORWARD_K, dtypes=OF_FP8),
        Tensor("V", c.FORWARD_V, dtypes=OF_FP8),
        Tensor("Out", c.OUT),
        Tensor("L", c.LOGSUMEXP),
        Tensor("Partial", PARTIAL, does="write"),
        Tensor("PartialL", PARTIAL_LSE, does="write"),
        c.STORE_LSE,
        c.SM_SCALE,
        *strides("bhs", "Q", "K", "V", "Out"),
        *c.LENGTHS,
        *(replace(one, levels=OF_16_BITS) for one in (c.WIDTH_OF_QK, c.WIDTH_OF_V)),
        *FP8_WIDTHS,
        *BAND_OF_ANY,
        FEATURES_OF_ANY,
        Number("softcap", "fp32", scalar("softcap")),
        *SEQUENCES_OF_ANY,
        LONGEST,
        Number("rows_of_all", "i32", ROWS_OF_ALL),
        Number("splits", "i32", SPLITS),
        Number("keys_of_split", "i32", KEYS_OF_SPLIT, multiple_of=STEP),
        *PAGES,
        *c.descales(*OF_FP8),
        *c.constexprs("BLOCK_M", "BLOCK_N", "BLOCK_DMODEL", "EARLY"),
    ),
    sources={
        Keys.pages: "attn_fwd_split_paged",
        **{one: "attn_fwd_split_paged_fp8" if one in OF_PAGES else "attn_fwd_split_fp8" for one in OF_FP8},
    },
    choices=(c.T, c.HEAD_DIM, c.CAUSAL.narrowed(False), c.ACCESS.narrowed("offset32", "descriptor"), KEYS),
    # A step of fewer keys begins earlier, which counts where there is one of them.
    tunables=by_vendor(
        {"EARLY": 0},
        cuda={"BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128), "EARLY": (1,)},
        hip={"BLOCK_M": (32, 64), "BLOCK_N": (32, 64), "EARLY": (0,)},
    ),
    compile_options=by_vendor(
        more={"cuda": {"num_stages": (5, 6)}},
        cuda={"num_warps": (1, 2, 4, 8), "num_stages": (2, 3, 4)},
        hip={"num_warps": (4, 8), "num_stages": (1,), "waves_per_eu": (1, 2)},
    ),
    tuning_keys=(c.MAX_SEQLEN_Q, c.MAX_SEQLEN_K, c.waves("q")),
    grid=(ceil_divide(ROWS, tunable("BLOCK_M")) * _HEADS * SPLITS, constant(1), constant(1)),
    work=Work(
        rows=(c.EXPECTED_Q + _IDLE_ROWS) * c.GROUP,
        row_tile=tunable("BLOCK_M"),
        packed=c.GROUP,
        outer=_HEADS,
        depth=scalar("longest_k"),
        depth_tile=tunable("BLOCK_N"),
        parts=SPLITS,
        form=choose(scalar("level"), BAND, WHOLE),
        band=c.expected_band(scalar("longest_k")),
        traffic=c.traffic(2, 2, _READ_K),
        slow=c.PARTIAL_SECTORS,
        hiding_rows=c.HIDING_ROWS,
    ),
    guards=(
        *GUARDS,
        c.GUARD_INVARIANT,
        Guard(DECODED_ROWS + 1 <= ROWS, f"at most {DECODED_ROWS} rows of q share a head of k"),
        # No other backend serves pages or keys of 8 bits; more tiles leave fewer splits.
        Guard(maximum(KEYS.source, ROWS <= MOST_ROWS), f"more than {MOST_ROWS} rows of q share a head of k"),
    ),
    restrictions=SPLIT_RESTRICTIONS,
)

# Each step of a decoding model is this call: what suits many rows is up to a tenth slower for it.
ATTN_FWD_DECODE = replace(
    ATTN_FWD_SPLIT,
    name="attn_fwd_decode",
    source=ATTN_FWD_SPLIT.name,
    sources={
        **ATTN_FWD_SPLIT.sources,
        Keys.fp8e4nv: "attn_fwd_hopper_decode",
        Keys.pages_fp8e4nv: "attn_fwd_hopper_decode_paged",
    },
    tunables=by_vendor(
        {"EARLY": 0},
        cuda={"BLOCK_M": (DECODED_ROWS,), "BLOCK_N": (32, 64, 128, 256), "EARLY": (1,)},
        hip={"BLOCK_M": (DECODED_ROWS,), "BLOCK_N": (32, 64), "EARLY": (0,)},
    ),
    guards=(
        *GUARDS,
        c.GUARD_INVARIANT,
        Guard(
            choose(_OF_HOPPER, ROWS_OF_TILES, DECODED_ROWS) >= ROWS,
            f"more than {DECODED_ROWS} rows of q share a head of k, or {ROWS_OF_TILES} where it has 8 bits",
        ),
    ),
    restrictions=DECODE_RESTRICTIONS,
)

ATTN_FWD_COMBINE = KernelDescription(
    name="attn_fwd_combine",
    family=c.FAMILY,
    arguments=(
        Tensor("Partial", PARTIAL, does="read"),
        Tensor("PartialL", PARTIAL_LSE, does="read"),
        Tensor("Out", c.OUT, general=True),
        Tensor("L", c.LOGSUMEXP),
        c.STORE_LSE,
        *strides("bhs", "Out"),
        c.HEADS_Q,
        c.SEQLEN_Q,
        Number("head_dim_v", "i32", size("head_dim_v")),
        FEATURES_OF_ANY,
        SINKS_OF_ANY,
        CU_SEQLENS_Q_OF_ANY,
        SEQUSED_Q_OF_ANY,
        LONGEST,
        Number("rows_of_all", "i32", size("partial_rows")),
        Number("splits", "i32", size("partial_splits")),
        *c.constexprs("AT_ONCE", "BLOCK_DMODEL", "EARLY"),
    ),
    choices=(c.T, c.HEAD_DIM),
    tunables=by_vendor(
        {"EARLY": 0}, cuda={"AT_ONCE": (8, 16, 32), "EARLY": (1,)}, hip={"AT_ONCE": (8, 16, 32), "EARLY": (0,)}
    ),
    compile_options=by_vendor(
        cuda={"num_warps": (2, 4), "num_stages": (1,)},
        hip={"num_warps": (2, 4), "num_stages": (1,), "waves_per_eu": (0,)},
    ),
    tuning_keys=ATTN_FWD_SPLIT.tuning_keys,
    grid=(
        choose(size("partial_splits"), scalar("longest_q"), 0) * size("heads_q") * c.ALL_SEQUENCES,
        constant(1),
        constant(1),
    ),
    work=Work(
        rows=choose(equal(SPLITS, 1), 0, size("seqlen_q") * size("heads_q")),
        row_tile=constant(1),
        outer=size("batch"),
        depth=SPLITS,
        depth_tile=tunable("AT_ONCE"),
        traffic=(SPLITS * ROWS_OF_ALL * size("head_dim") * 4, c.traffic(1, 0)[0]),
    ),
    begins_early=True,
)


def splits_keys(kernel: KernelDescription) -> bool:
    """Whether the kernel makes or combines results of parts of the keys."""
    return any(isinstance(one, Tensor) and one.operand == PARTIAL for one in kernel.arguments)


DECODE, SPLIT = (
    Backend(name, (kernel, ATTN_FWD_COMBINE), (PARTIAL, PARTIAL_LSE), SIZES, own_shapes=True)
    for name, kernel in (("decode", ATTN_FWD_DECODE), ("split", ATTN_FWD_SPLIT))
)
