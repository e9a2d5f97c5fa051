"""What the attention kernels share: operands, choices, tuning keys and the numbers that they are passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from aotriton.rules.arch import ADDRESSING, DTYPES
from aotriton.rules.binning import TuningKey
from aotriton.rules.expression import (
    Expression,
    addressing,
    ceil_divide,
    choose,
    constant,
    dtype,
    equal,
    lowest_bit,
    maximum,
    minimum,
    multiprocessors,
    other_dtype,
    present,
    quotient,
    scalar,
    size,
    tiles,
    tunable,
)
from aotriton.rules.flash import features
from aotriton.rules.kernel import (
    MOST_COUNTED,
    Argument,
    Choice,
    Constexpr,
    Guard,
    KernelDescription,
    Number,
    Operand,
    Side,
    Stride,
    Tensor,
    Value,
    by_vendor,
    of_vendor,
    strides,
)
from aotriton.rules.operators import Scalar
from aotriton.rules.work import BAND, GROWING, NONE, ONE, SHRINKING, WHOLE, Work

FAMILY = "flash"

Q_DIMS = ("batch", "heads_q", "seqlen_q", "head_dim")
K_DIMS = ("batch", "heads_k", "seqlen_k", "head_dim")
V_DIMS, OUT_DIMS = ((*dims[:-1], "head_dim_v") for dims in (K_DIMS, Q_DIMS))
ROW_DIMS = ("batch", "heads_q", "seqlen_q")
ROW_ALIGNMENT = 16  # bytes: kernels access rows in vectors

Q = Operand("q", Q_DIMS)
K, V = (
    Operand(name, dims, paged_dims=("pages", dims[1], "page_size", dims[3]))
    for name, dims in (("k", K_DIMS), ("v", V_DIMS))
)

# The forward's, also in the floats of 8 bits that caches have.
FP8 = ("fp8e4nv", "fp8e4b8")
FORWARD_K, FORWARD_V = replace(K, other_dtypes=FP8), replace(V, other_dtypes=FP8, typed_as=K.name)
FORWARD_Q = replace(Q, other_dtypes=FP8[:1])

T = Choice("T", ("fp16", "bf16"), dtype(), measured_as="bf16", small="bf16", option="dtype")
T_PORTABLE = replace(T, values=("fp16", "bf16", "fp32"), apart=("fp32",))
# Of q and k, or of v where that is larger: the columns that tiles of all tensors have. They are equal in plain calls.
WIDEST = maximum(size("head_dim"), size("head_dim_v"))
# The head dim, padded to the next of these.
HEAD_DIM = Choice("BLOCK_DMODEL", (32, 64, 128, 256), WIDEST, round_up=True, small=64, option="head-dim")
# Of a kernel whose columns are in two parts, each a power of two. A call that rounds up to less above is not its own.
HEAD_DIM_SLIM = replace(HEAD_DIM, values=(96, 192), small=None)
# Of the portable kernels. WIDE images have features, as those of fp32 do: few calls are so wide, and a mask costs them
# little beside products of so many columns.
WIDE = 512
HEAD_DIM_PORTABLE = replace(HEAD_DIM, values=(*HEAD_DIM.values, WIDE))
MOST_PLAIN, MOST_HEAD_DIM = int(HEAD_DIM.values[-1]), WIDE
CAUSAL = Choice("CAUSAL", (False, True), scalar("causal"), option="causal")
# The features of attention that an image computes; a call runs on the lowest level that serves it. PLAIN: causal with
# equal lengths, or nothing hidden, as CAUSAL says. A BANDED call gives the keys that a row sees, as the interval
# [row + lo, row + hi], and is never CAUSAL; GENERAL images serve it, and softcap, sinks and sequences of different
# lengths. FULL ones have bias, ALiBi and dropout in place of softcap; they take registers and time. Calls with a block
# table are PAGED, and otherwise as GENERAL ones: only kernels with a choice of their own serve them.
PLAIN, BANDED, GENERAL, FULL, PAGED = features.LEVELS
FEATURED = (GENERAL, FULL)  # the levels whose images have features
LEVEL = Choice("LEVEL", (PLAIN, *FEATURED), scalar("level"), round_up=True, default=PLAIN, borrows=True, levels=True)
PLAIN_ONLY = LEVEL.narrowed(PLAIN)
# What the operators' checks make of a call of fp32: one with a band, whose images address by pointers. A WIDE one has a
# band, too, and at the level FULL pointers: others would be too many images for what few calls ask.
NO_FP32_HAS: tuple[Mapping[str, Value], ...] = (
    {"T": "fp32", "ADDRESSING": "descriptor"},
    {"T": "fp32", HEAD_DIM.name: WIDE, "ADDRESSING": "offset32"},
)
NO_CALL_HAS: tuple[Mapping[str, Value], ...] = (
    *({"LEVEL": level, "CAUSAL": True} for level in FEATURED),
    {"T": "fp32", "LEVEL": PLAIN},
    {HEAD_DIM.name: WIDE, "LEVEL": PLAIN},
    *({HEAD_DIM.name: WIDE, "LEVEL": FULL, "ADDRESSING": one} for one in ("offset32", "descriptor")),
    *NO_FP32_HAS,
)
ACCESS = Choice("ADDRESSING", ADDRESSING, addressing(), borrows=True, option="addressing")
DESCRIPTOR = ACCESS.narrowed("descriptor")

REFERENCE_TILE = 128  # rows of the tile that `waves` counts; fixed, so that the key does not depend on the candidate

MAX_SEQLEN_Q = TuningKey("max_seqlen_q", (64, 512, 2048, 8192), size("seqlen_q"), "seqlen-q")
MAX_SEQLEN_K = TuningKey("max_seqlen_k", (64, 512, 2048, 8192), size("seqlen_k"), "seqlen-k")


def waves(side: str) -> TuningKey:
    """How often batch x heads x tiles fill the GPU, rounded up; ``side`` is "q" or "k": whose rows the grid walks."""
    count = size("batch") * size(f"heads_{side}") * tiles(f"seqlen_{side}", REFERENCE_TILE)
    return TuningKey("waves", (1, 8), ceil_divide(count, multiprocessors()), "waves")


def grid(of: str, rows: str | int, heads: str) -> tuple[Expression, Expression, Expression]:
    """A program for each tile of each head of each batch, all along x, which has room for two thousand million."""
    return tiles(of, rows) * size(heads) * size("batch"), constant(1), constant(1)


def grid_of_sequences(of: str, rows: str, heads: str) -> tuple[Expression, Expression, Expression]:
    """As ``grid``, with as many tiles of each sequence as the longest one has; ``of`` is "q" or "k"."""
    each = ceil_divide(scalar(f"longest_{of}"), tunable(rows))
    return each * size(heads) * ALL_SEQUENCES, constant(1), constant(1)


def grid_of_packed(of: str, rows: Expression, heads: str) -> tuple[Expression, Expression, Expression]:
    """As ``grid_of_sequences``, but for packed sequences."""
    each = ceil_divide(scalar(f"longest_{of}"), rows) * size("batch")
    tiles = choose(present(f"cu_seqlens_{of}"), packed_tiles(size(f"seqlen_{of}"), rows), each)
    return tiles * size(heads), constant(1), constant(1)


def packed_tiles(all_rows: Expression, rows: Expression) -> Expression:
    """The tiles of packed sequences in each head, hardly more than their rows fill: those of tile_of_sequences of
    tritonsrc/flash/lib/packed_tiles.py.
    """
    return quotient(all_rows, rows) + SEQUENCES


SEQUENCES = scalar("packed_sequences")  # of a packed call, whose batch is 1; of any other call 1
SELF = scalar("self_attention")  # 1 where each sequence has its keys in the rows of its queries: known on the host
BEGIN, END = scalar("lo"), scalar("hi")  # of the band: row i sees keys from i + BEGIN to i + END


def has_feature(first: features.Feature, last: features.Feature | None = None) -> Expression:
    """Not 0 where the call has the feature, or one from ``first`` to ``last``, in the order of their bits."""
    asked, beyond = scalar("features"), 2 * (last or first).bit
    return quotient(asked, constant(first.bit)) - quotient(asked, constant(beyond)) * (beyond // first.bit)


# What times are predicted of where lengths are in device memory: sequences that are all alike.
ALL_SEQUENCES = size("batch") * SEQUENCES


def _mean(of: str) -> Expression:
    return ceil_divide(size(f"seqlen_{of}"), maximum(SEQUENCES, 1))


def _part_of_longest(of: str) -> Expression:
    """A third of what the longest sequence has more than the mean one."""
    return quotient(scalar(f"longest_{of}") - _mean(of), constant(3))


_LONGEST_K = scalar("longest_k")
# Of several sequences that use a part of their keys, half of the longest one's.
USED_K = choose(present("seqused_k") & (constant(2) <= ALL_SEQUENCES), ceil_divide(_LONGEST_K, 2), _LONGEST_K)
# The sequence of a row is longer than the mean one, and has as many keys more. Where no plan evens out what differs,
# programs with most keys end last, and if all begin at once, the longest sequence's.
EXPECTED_Q = _mean("q")
_LONGER = _part_of_longest("q")
_ALL_AT_ONCE = size("heads_q") * tiles("seqlen_q", REFERENCE_TILE) <= multiprocessors()
SEEN_K = choose(present("cu_seqlens_k"), _mean("k") + _part_of_longest("k"), _LONGEST_K)  # whenever a row is done
EXPECTED_K = choose(_ALL_AT_ONCE, _LONGEST_K, SEEN_K)
EVENED_K = choose(present("cu_seqlens_k"), _mean("k") + _LONGER, USED_K)


def expected_band(keys: Expression) -> tuple[Expression, Expression]:
    """BEGIN and END, which are relative to the last key where the kernel finds it, of so many keys. Rows are in the
    middle of longer sequences.
    """
    own = has_feature(features.OWN_LAST) * (keys - EXPECTED_Q - _LONGER) + quotient(_LONGER, constant(2))
    return BEGIN + own, END + own


def _seen(end: Expression) -> Expression:
    """The pairs of a row i of a sequence and a key that is at most i + ``end``."""

    def ramp(steps: Expression) -> Expression:
        """1 + 2 + ... + steps."""
        positive = maximum(steps, 0)
        return ceil_divide(positive * (positive + 1), 2)

    beyond = end - SEEN_K
    return ramp(end + EXPECTED_Q) - ramp(end) - ramp(beyond + EXPECTED_Q) + ramp(beyond)


def flops(of_qk: int, of_v: int) -> Expression:
    """The operations of so many products of seqlen_q x seqlen_k x head_dim, and x head_dim_v, for each query head.

    A causal call has half of them, a call with a band those of the pairs in it.
    """
    each = size("batch") * size("heads_q") * 2 * (size("head_dim") * of_qk + size("head_dim_v") * of_v)
    one = each * (size("seqlen_q") * size("seqlen_k"))
    begin, end = expected_band(SEEN_K)
    banded = each * SEQUENCES * (_seen(end) - _seen(begin - 1))
    return choose(scalar("level"), banded, choose(scalar("causal"), ceil_divide(one, 2), one))


GROUP = ceil_divide(size("heads_q"), size("heads_k"))  # query heads that share a key head

SECTOR = 16  # elements: 32 bytes, which memory moves at once
# Rows then begin within sectors, so that some are moved twice.
PARTIAL_SECTORS = ~equal(ceil_divide(size("head_dim"), SECTOR) * SECTOR, size("head_dim"))

# For each element of a row, keys and values are 4 bytes, and 4 operations for each query. An H100 computes 217 times as
# many operations as it moves bytes, and an H200 155 times.
HIDING_ROWS = constant(217)


def work(
    of: str,
    rows: str | Expression | int,
    depth: str | int,
    *,
    tensors: tuple[int, int],
    parts: Expression = ONE,
    packed: Expression = ONE,
    banded: bool = False,
) -> Work:
    """A program for each tile of ``rows`` of ``of``, "q" or "k", which walks the other one in steps of ``depth``; that
    of keys does so for every query head which shares them; or ``parts`` programs share its steps. ``tensors`` of the
    size of q and of k are read or written, those of k for each part. ``packed`` heads count as one. ``banded``: if a
    call has a band, the kernel walks only the steps in it.
    """
    queries = of == "q"
    other = "k" if queries else "q"
    expected = {"q": EXPECTED_Q, "k": EXPECTED_K}
    rows_of, heads = expected[of], size(f"heads_{of}")
    if packed != ONE:
        rows_of, heads = rows_of * packed, ceil_divide(heads, packed)
    of_k = _bytes("k") * tensors[1]
    form = choose(scalar("causal"), GROWING if queries else SHRINKING, WHOLE)
    begin, end = expected_band(EXPECTED_K)
    band = (begin, end) if queries else (NONE - end, NONE - begin)
    return Work(
        rows=rows_of,
        row_tile=_side(rows),
        packed=packed,
        outer=ALL_SEQUENCES * heads,
        depth=expected[other],
        depth_tile=_side(depth),
        repeat=ONE if queries else GROUP,
        parts=parts,
        form=choose(scalar("level"), BAND, form) if banded else form,
        band=band if banded else (NONE, NONE),
        traffic=(_bytes("q") * tensors[0], of_k if parts == ONE else of_k * parts),
        slow=PARTIAL_SECTORS,
    )


def packed_key_work(depth: str, *, tensors: tuple[int, int]) -> Work:
    """As ``work`` of tiles of 128 keys, banded, where packed keys have hardly more tiles than they fill, in an order
    that evens out what differs. The keys are as many as the mean sequence's, in the middle of one with more queries.
    Keys before a sequence's own bring no queries: the more of them, the nearer are its queries to the mean.
    """
    plain = work("k", 128, depth, tensors=tensors, banded=True)
    keys = choose(present("cu_seqlens_k"), _mean("k"), _LONGEST_K)
    longer = quotient(_LONGER * EXPECTED_Q, maximum(maximum(keys, EXPECTED_Q), 1))
    ahead = quotient(longer, constant(2)) - has_feature(features.OWN_LAST) * (keys - EXPECTED_Q)
    return replace(plain, rows=keys, depth=EXPECTED_Q + longer, band=(ahead - END, ahead - BEGIN))


def persistent_work(*, banded: bool = False) -> Work:
    """That of a forward on Hopper whose programs take tile after tile, in the order that GROUP_ROUNDS says."""
    plain = work("q", tunable("CONSUMERS") * 64, "BLOCK_N", tensors=(2, 2), packed=PACKED, banded=banded)
    return replace(plain, sorted_rounds=tunable("GROUP_ROUNDS"), hiding_rows=HIDING_ROWS)


def traffic(of_q: int, of_k: int, used: Expression = USED_K) -> tuple[Expression, Expression]:
    """The bytes of so many tensors of the size of q, and of k, of which each sequence has ``used`` keys."""
    return _bytes("q") * of_q, _bytes("k", used) * of_k


def row_work(rows: str, *, of: str = "q", tensors: int, of_k: int = 0) -> Work:
    """A program for each tile of rows of ``of``, "q" or "k", which reads or writes so many tensors of its size. With
    ``of_k`` it is one of q, and there are those of k, too, and so many of its size: what is walked of both is counted
    as if tiles had rows of several heads.
    """
    tile = tunable(rows)
    if not of_k:
        heads, traffic = size("batch") * size(f"heads_{of}"), (_bytes(of) * tensors, NONE)
        return Work(rows=size(f"seqlen_{of}"), row_tile=tile, outer=heads, traffic=traffic, slow=PARTIAL_SECTORS)
    both = size("heads_q") * size("seqlen_q") + size("heads_k") * size("seqlen_k")
    traffic = _bytes("q") * tensors, _bytes("k") * of_k
    return Work(rows=both, row_tile=tile, outer=size("batch"), traffic=traffic, slow=PARTIAL_SECTORS)


def _side(rows: str | Expression | int) -> Expression:
    return tunable(rows) if isinstance(rows, str) else constant(rows) if isinstance(rows, int) else rows


def _bytes(of: str, used: Expression = USED_K) -> Expression:
    """Of all rows, of which each sequence has ``used`` keys."""
    rows = size("batch") * size(f"seqlen_{of}")
    if of == "k":
        rows = choose(present("cu_seqlens_k"), rows, ALL_SEQUENCES * used)
    return size(f"heads_{of}") * rows * size("head_dim") * 2


Q_TILE = (1, 1, "BLOCK_M", "BLOCK_DMODEL")
K_TILE = (1, 1, "BLOCK_N", "BLOCK_DMODEL")
MOST_PACKED = 16
# Query heads that count as one, with their rows side by side: the largest power of two that divides a group.
PACKED = minimum(lowest_bit(GROUP), MOST_PACKED)
LOG2_PACKED = (PACKED >= 2) + (PACKED >= 4) + (PACKED >= 8) + (PACKED >= 16)
PACKED_ROWS = (1, 1, 64, 1, "BLOCK_DMODEL")
Q_ROWS = (1, 1, 64, "BLOCK_DMODEL")  # what a warp group of Hopper multiplies at once


def tiles_of_packed(rows: Expression | int) -> Expression:
    """All tiles of so many rows of packed heads."""
    return ceil_divide(size("seqlen_q") * PACKED, rows) * ceil_divide(size("heads_q"), PACKED) * size("batch")


# Columns of two parts.
FIRST = choose(tunable("BLOCK_DMODEL") <= 128, constant(64), constant(128))
REST = tunable("BLOCK_DMODEL") - FIRST

SM_SCALE = Number("sm_scale", "fp32", scalar("sm_scale"))
HEADS_Q = Number("num_heads_q", "i32", size("heads_q"))
SEQLEN_Q = Number("max_seqlen_q", "i32", size("seqlen_q"))
WIDTH = Number("head_dim", "i32", size("head_dim"), multiple_of=8)
WIDTH_V = replace(WIDTH, value=size("head_dim_v"))  # of a kernel that has no other tensors than v's, out's and dout's
HEADS_K = Number("num_heads_k", "i32", size("heads_k"))
SEQLEN_K = Number("max_seqlen_k", "i32", size("seqlen_k"))
LENGTHS = (HEADS_Q, HEADS_K, SEQLEN_Q, SEQLEN_K)
SIZES = (*LENGTHS, WIDTH)
# With features. The checks send a call whose head dims are no such multiples to general addressing.
WIDTH_OF_QK, WIDTH_OF_V = (
    Number(f"head_dim_{of}", "i32", size(name), multiple_of=8, if_aligned=True, levels=FEATURED)
    for of, name in (("qk", "head_dim"), ("v", "head_dim_v"))
)
SIZES_OF_LEVELS = (*LENGTHS, replace(WIDTH, levels=(PLAIN,)), WIDTH_OF_QK, WIDTH_OF_V)

ONES = ("one",)  # the dimension of a number in device memory
BIAS = Operand("bias", ("batch", "heads_q", "seqlen_q", "seqlen_k"), optional=True)
DBIAS = Operand("dbias", BIAS.dims, written=True, optional=True)
ALIBI_SLOPES = Operand("alibi_slopes", ("batch", "heads_q"), "fp32", optional=True)
SINKS = Operand("sinks", ("heads_q",), "fp32", optional=True)
DSINKS = Operand("dsinks", ("heads_q",), "fp32", written=True, optional=True)
CU_SEQLENS_Q, CU_SEQLENS_K = (Operand(f"cu_seqlens_{one}", ("starts",), "i32", optional=True) for one in "qk")
SEQUSED_Q, SEQUSED_K = (Operand(f"seqused_{one}", ("sequences",), "i32", optional=True) for one in "qk")
# The pages of each sequence, in the order of its keys.
BLOCK_TABLE = Operand("block_table", ("sequences", "pages_of_sequence"), "i32", optional=True)
# What keys and values of 8 bits are multiplied by, for each sequence.
K_DESCALE, V_DESCALE, Q_DESCALE = (
    Operand(f"{one}_descale", ("sequences", "heads_k"), "fp32", optional=True, strided=True) for one in "kvq"
)


DESCALES = present(K_DESCALE.name) + present(V_DESCALE.name) * 2


def descales(*levels: int) -> tuple[Argument, ...]:
    """The arguments of scales, of images of these levels, or of all."""
    return (
        Tensor("KDescale", K_DESCALE, general=True, levels=levels),
        Tensor("VDescale", V_DESCALE, general=True, levels=levels),
        *strides("bh", "KDescale", "VDescale", levels=levels),
        Number("descales", "i32", DESCALES, levels=levels),
    )


def is_of(operand: Operand, name: str) -> Expression:
    """Whether an operand has this one of its other types."""
    return equal(other_dtype(operand.typed_as or operand.name), DTYPES.index(name))


DROPOUT_SEED, DROPOUT_OFFSET = (Operand(f"dropout_{one}", ONES, "i64", optional=True) for one in ("seed", "offset"))
# What both operators may be given beside the tensors of a plain call.
FEATURE_OPERANDS = (
    BIAS,
    ALIBI_SLOPES,
    SINKS,
    CU_SEQLENS_Q,
    CU_SEQLENS_K,
    SEQUSED_Q,
    SEQUSED_K,
    DROPOUT_SEED,
    DROPOUT_OFFSET,
)


FEATURES = Number("features", "i32", scalar("features"), levels=FEATURED)
PACKED_BIT, SOFTCAP_BIT = features.PACKED.bit, features.SOFTCAP.bit


LENGTHS_ON_HOST = equal(has_feature(features.PACKED, features.USED_K), 0)
# Calls of the level FULL have no other kernel for Hopper, whatever their lengths are.
GUARD_LENGTHS = Guard(
    choose(scalar("level") <= GENERAL, LENGTHS_ON_HOST, constant(1)), "it has sequences or used lengths"
)
# At the level GENERAL no bit is above SOFTCAP.
GUARD_SOFTCAP = Guard(scalar("features") <= SOFTCAP_BIT - 1, "it has softcap")


GUARD_BIAS = Guard(present("bias") <= 0, "it has a bias")
GUARD_WEIGHTS = Guard(
    equal(has_feature(features.ALIBI) + has_feature(features.BIAS) + has_feature(features.DBIAS), 0),
    "it has ALiBi or a bias",
)


def _featured(name: str, operand: Operand) -> Tensor:
    return Tensor(name, operand, general=True, levels=FEATURED)


# Of images of the level FULL alone.
OF_ALIBI: tuple[Argument, ...] = (
    Tensor("AlibiSlopes", ALIBI_SLOPES, general=True, levels=(FULL,)),
    *strides("b", "AlibiSlopes", levels=(FULL,)),
)
OF_DROPOUT: tuple[Number | Tensor, ...] = (
    Number("dropout", "fp32", scalar("dropout"), levels=(FULL,)),
    Tensor("DropoutSeed", DROPOUT_SEED, general=True, levels=(FULL,)),
    Tensor("DropoutOffset", DROPOUT_OFFSET, general=True, levels=(FULL,)),
)


def of_features(of: str, *, sinks: bool = False) -> tuple[Argument, ...]:
    """The arguments of an image with features, whose grid walks the rows of ``of``, "q" or "k"."""
    return (
        *(Number(one.name, "i32", one, levels=FEATURED) for one in (BEGIN, END)),
        FEATURES,
        Number("softcap", "fp32", scalar("softcap"), levels=FEATURED),
        _featured("AlibiSlopes", ALIBI_SLOPES),
        *strides("b", "AlibiSlopes", levels=FEATURED),
        *((_featured("Sinks", SINKS),) if sinks else ()),
        _featured("CuSeqlensQ", CU_SEQLENS_Q),
        _featured("CuSeqlensK", CU_SEQLENS_K),
        _featured("SequsedQ", SEQUSED_Q),
        _featured("SequsedK", SEQUSED_K),
        Number("longest", "i32", scalar(f"longest_{of}"), levels=FEATURED),
        _featured("Bias", BIAS),
        *strides("bhs", "Bias", levels=FEATURED),
        *(replace(one, levels=FEATURED) for one in OF_DROPOUT),
    )


def of_lengths(of: str, *, sinks: bool = False) -> tuple[Argument, ...]:
    """The arguments of an image with bands, sinks and sequences of different lengths, but no other features."""
    others = ("softcap", "AlibiSlopes", "Bias", "dropout", "DropoutSeed", "DropoutOffset")
    every = of_features(of, sinks=sinks)
    return tuple(one for one in every if not isinstance(one, Stride) and one.name not in others)


# Scalars of both operators. From what the caller asks for, their checks compute the level and the band.
SCALARS = (
    Scalar("sm_scale", "fp32", None),
    Scalar("causal", "bool"),
    Scalar("causal_variant", "i32", values=("top_left", "bottom_right")),
    Scalar("window_left", "i32", -1),
    Scalar("window_right", "i32", -1),
    Scalar("softcap", "fp32"),
    Scalar("dropout", "fp32"),
    Scalar("max_seqlen_q", "i32"),
    Scalar("max_seqlen_k", "i32"),
    Scalar("level", "i32", internal=True),
    # Bands are measured as causal ones, in which every row sees a key.
    Scalar(BEGIN.name, "i32", internal=True, measured=NONE - size("seqlen_q")),
    Scalar(END.name, "i32", internal=True, measured=maximum(size("seqlen_k") - size("seqlen_q"), 0)),
    Scalar("features", "i32", internal=True),
    Scalar("longest_q", "i32", internal=True, measured=size("seqlen_q")),
    Scalar("longest_k", "i32", internal=True, measured=size("seqlen_k")),
    Scalar(SEQUENCES.name, "i32", internal=True, measured=constant(1)),
    Scalar(SELF.name, "i32", internal=True, measured=equal(size("seqlen_q"), size("seqlen_k"))),
)


def rows(name: str, *, written: bool = False, optional: bool = False, if_empty: float = 0.0) -> Operand:
    """A contiguous fp32 number for each row of q."""
    return Operand(name, ROW_DIMS, "fp32", written, optional, True, alignment=ROW_ALIGNMENT, if_empty=if_empty)


# The forward's results.
OUT = Operand("out", OUT_DIMS, written=True)
LOGSUMEXP = rows("logsumexp", written=True, optional=True, if_empty=-inf)
STORE_LSE = Number("store_lse", "i32", present("logsumexp"))


def constexprs(*names: str) -> tuple[Constexpr, ...]:
    return tuple(Constexpr(name) for name in names)


def tile(*tunables: str) -> tuple[Constexpr, ...]:
    """The constexprs of a portable kernel."""
    return (
        *constexprs(*tunables, "BLOCK_DMODEL"),
        Constexpr("CAUSAL", levels=(PLAIN,)),
        Constexpr("LEVEL", levels=FEATURED),
        Constexpr(BF16_PRODUCTS, levels=FEATURED),
        Constexpr("ADDRESSING"),
    )


# Products of bf16 that together are one of fp32 (tritonsrc/flash/lib/product.py); 0: there is none.
BF16_PRODUCTS = "BF16_PRODUCTS"
PRODUCTS_OF_FP32 = by_vendor({BF16_PRODUCTS: 0}, cuda={BF16_PRODUCTS: (0, 6)}, hip={BF16_PRODUCTS: (0,)})


def tiled_side(kernel: KernelDescription) -> str:
    """ "q" or "k": whose rows the kernel's grid walks, of both the first one that it names, or whose heads; those of q,
    where the grid follows a plan.
    """
    named = (name for axis in kernel.grid for _, name in axis.postfix())
    return next((str(name)[-1] for name in named if name in ("seqlen_q", "seqlen_k", "heads_q", "heads_k")), "q")


GUARD_BAND = Guard(
    choose(scalar("level"), size("seqlen_q") + size("seqlen_k"), 0) <= MOST_COUNTED,
    f"with a band, seqlen_q and seqlen_k together are more than {MOST_COUNTED}",
)

# Of every backend of the forward but one, as images, splits and plans follow the sizes of the whole call; what that one
# serves.
GUARD_INVARIANT = Guard(
    ~scalar("batch_invariant"),
    f"the hint batch_invariant is for fp16 and bf16 in rows of 16 bytes, head dims up to {MOST_PLAIN}, without bias,"
    " ALiBi and dropout",
)

GUARD_PACKED_Q = Guard(
    size("seqlen_q") * PACKED <= MOST_COUNTED,
    f"seqlen_q, times the heads that are packed, is more than {MOST_COUNTED}",
)


def in_two_parts(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """A kernel's arguments with two descriptors for each, of the first part of the columns and of the rest, in place of
    BLOCK_DMODEL.
    """
    whole = [one for one in arguments if isinstance(one, Tensor) and one.block]

    def boxes(suffix: str, columns: Expression) -> list[Tensor]:
        def side(one: Side) -> Side:
            named = tunable(one) if isinstance(one, str) else one
            return named.with_other(tunable("BLOCK_DMODEL"), columns) if isinstance(named, Expression) else one

        return [replace(one, name=one.name + suffix, block=tuple(map(side, one.block or ()))) for one in whole]

    return (*boxes("", FIRST), *boxes("Rest", REST), *(one for one in arguments if one not in whole))


def stored(name: str, operand: Operand, block: tuple[Side, ...]) -> Tensor:
    """A result of a portable kernel. Of sequences in one tensor it is written by pointer: a descriptor's store would go
    on behind the end of one.
    """
    return Tensor(name, operand, block, by_pointer=(GENERAL,))


def portable_slim(kernel: KernelDescription) -> KernelDescription:
    """The portable kernel with columns in two parts, for archs with buffer instructions: where there are descriptors,
    they reach what it would serve.
    """
    return replace(
        kernel,
        name=f"{kernel.name}_slim",
        source=kernel.name,
        sources={},
        arguments=tuple(
            replace(one, by_pointer=()) if isinstance(one, Tensor) else one
            for one in kernel.arguments
            if one.levels != FEATURED
        ),
        choices=(PLAIN_ONLY, T, HEAD_DIM_SLIM, CAUSAL, ACCESS.narrowed("general", "offset32")),
        impossible=(),
        guards=(),
        tunables=of_vendor("hip", (one for one in kernel.tunables if one.name != BF16_PRODUCTS)),
        compile_options=of_vendor("hip", kernel.compile_options),
        needs=("buffer",),
    )
