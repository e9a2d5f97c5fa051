"""Keys and values of new tokens into a cache: the operator, and its one kernel."""

from __future__ import annotations

from enum import IntEnum

from aotriton.rules.binning import TuningKey
from aotriton.rules.expression import ceil_divide, constant, minimum, present, scalar, size, tunable
from aotriton.rules.flash import common as c
from aotriton.rules.kernel import (
    MOST_COUNTED,
    Choice,
    Guard,
    KernelDescription,
    Number,
    Operand,
    Tensor,
    by_vendor,
    strides,
)
from aotriton.rules.operators import Backend, Operator, Scalar

K = Operand("k", ("batch", "heads_k", "seqlen_new", "head_dim"))
V = Operand("v", (*K.dims[:-1], "head_dim_v"))
# As attention's forward has them, of a sequence for each that is appended to; with a block table in pages. They may be
# of 8 bits.
K_CACHE, V_CACHE = (
    Operand(
        f"{name}_cache",
        ("sequences", "heads_k", "seqlen_k", width),
        written=True,
        updated=True,
        paged_dims=("pages", "heads_k", "page_size", width),
        other_dtypes=c.FP8,
        typed_as="k_cache",
    )
    for name, width in (("k", "head_dim"), ("v", "head_dim_v"))
)
SEQUSED_K = Operand(c.SEQUSED_K.name, c.SEQUSED_K.dims, "i32")
Q = Operand("q", ("batch", "heads_q", "seqlen_new", "head_dim"), written=True, updated=True, optional=True)
ROTARY_COS, ROTARY_SIN = (
    Operand(f"rotary_{one}", ("positions", "rotary_pairs"), "fp32", optional=True) for one in ("cos", "sin")
)


class Cache(IntEnum):
    """Whether the cache has the type of keys and values, or which other one: the kernel's levels."""

    same = 0
    fp8e4nv = 1
    fp8e4b8 = 2

    def __str__(self) -> str:
        return self.name


_DTYPES: dict[int, str] = {one: one.name for one in Cache if one}
CACHE = Choice(
    "CACHE",
    tuple(Cache),
    c.is_of(K_CACHE, "fp8e4nv") * Cache.fp8e4nv + c.is_of(K_CACHE, "fp8e4b8") * Cache.fp8e4b8,
    default=Cache.same,
    levels=True,
)


def _sizes(*names: str) -> tuple[Number, ...]:
    return tuple(Number(name, "i32", size(name)) for name in names)


_TOKENS = size("batch") * size("seqlen_new")
_HEADS = size("heads_q") + size("heads_k") * 2

# Sizes of operands that are not given are 0; the checks set page_size where there is no block table. Nothing is tuned:
# a decoding step moves a few rows of each head, which takes less time than the launch does, and a prompt's rows are
# little beside what else is done with them.
KV_APPEND = KernelDescription(
    name="kv_append",
    family=c.FAMILY,
    arguments=(
        Tensor("K", K, general=True),
        Tensor("V", V, general=True),
        Tensor("KCache", K_CACHE, general=True, dtypes=_DTYPES),
        Tensor("VCache", V_CACHE, general=True, dtypes=_DTYPES),
        Tensor("SequsedK", SEQUSED_K, general=True),
        Tensor("Q", Q, general=True),
        Tensor("RotaryCos", ROTARY_COS, general=True),
        Tensor("RotarySin", ROTARY_SIN, general=True),
        Tensor("CuSeqlensK", c.CU_SEQLENS_K, general=True),
        Tensor("BlockTable", c.BLOCK_TABLE, general=True),
        *strides("bhs", "K", "V", "KCache", "VCache", "Q"),
        *strides("s", "RotaryCos", "RotarySin"),
        *strides("b", "BlockTable"),
        c.HEADS_Q,
        c.HEADS_K,
        *_sizes("seqlen_new"),
        Number("tokens", "i32", _TOKENS),
        *_sizes("sequences"),
        Number("packed", "i32", present(c.CU_SEQLENS_K.name)),
        *_sizes("pages_of_sequence", "page_size", "pages", "positions", "rotary_pairs", "head_dim", "head_dim_v"),
        Number("rotary_interleaved", "i32", scalar("rotary_interleaved")),
        *c.descales(),
        *c.constexprs("ROWS", "PAIRS"),
    ),
    choices=(c.T_PORTABLE, CACHE),
    tunables=by_vendor(cuda={"ROWS": (4,), "PAIRS": (64,)}, hip={"ROWS": (4,), "PAIRS": (64,)}),
    compile_options=by_vendor(
        cuda={"num_warps": (2,), "num_stages": (1,)}, hip={"num_warps": (2,), "num_stages": (1,), "waves_per_eu": (0,)}
    ),
    tuning_keys=(TuningKey("tokens", (1024,), _TOKENS),),
    grid=(ceil_divide(_TOKENS, tunable("ROWS")) * _HEADS * minimum(size("page_size"), 1), constant(1), constant(1)),
    guards=(Guard(_TOKENS <= MOST_COUNTED, f"k has more than {MOST_COUNTED} rows"),),
    timed=False,
)

OPERATOR = Operator(
    name="kv_append",
    family=c.FAMILY,
    operands=(
        K,
        V,
        K_CACHE,
        V_CACHE,
        SEQUSED_K,
        Q,
        ROTARY_COS,
        ROTARY_SIN,
        c.CU_SEQLENS_K,
        c.BLOCK_TABLE,
        c.K_DESCALE,
        c.V_DESCALE,
    ),
    scalars=(Scalar("rotary_interleaved", "bool"),),
    backends=(Backend("portable", (KV_APPEND,)),),
    checked=True,
    written=True,
    block_table=c.BLOCK_TABLE.name,
)
