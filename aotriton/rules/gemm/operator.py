"""GEMM: its operator, and the kernels of each backend."""

from __future__ import annotations

from collections.abc import Mapping

from aotriton.rules.expression import (
    Environment,
    ceil_divide,
    choose,
    constant,
    equal,
    maximum,
    minimum,
    multiprocessors,
    quotient,
    size,
    tunable,
)
from aotriton.rules.gemm import common as c
from aotriton.rules.gemm.restrictions import RESTRICTIONS
from aotriton.rules.gemm.restrictions_hopper import HOPPER_RESTRICTIONS, STAGED
from aotriton.rules.kernel import (
    DFS,
    Config,
    Constexpr,
    Functional,
    Guard,
    KernelDescription,
    Number,
    Operand,
    Parameter,
    Restriction,
    Tensor,
    by_vendor,
    strides,
)
from aotriton.rules.operators import Backend, DerivedSize, Operator, Scalar, derived_sizes
from aotriton.rules.work import FEWEST_STEPS, MOST_SPLITS, SPLIT

ONE = constant(1)

GEMM = KernelDescription(
    name="gemm",
    family=c.FAMILY,
    arguments=(
        Tensor("A", c.A, c.stored("TRANS_A", "BLOCK_M", "BLOCK_K")),
        Tensor("B", c.B, c.stored("TRANS_B", "BLOCK_K", "BLOCK_N")),
        Tensor("D", c.D, (1, "BLOCK_M", "BLOCK_N")),
        Tensor("Bias", c.BIAS),
        c.ALPHA,
        c.ACTIVATION,
        *c.BIAS_STRIDES,
        *strides("bmk", "A"),
        *strides("bkn", "B"),
        *strides("bmn", "D"),
        *c.SIZES,
        *map(Constexpr, ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "TRANS_A", "TRANS_B", "ADDRESSING")),
    ),
    choices=(c.T, c.TRANS_A, c.TRANS_B, c.ACCESS),
    tunables=by_vendor(
        {"GROUP_M": 8},
        {"cuda": {"BLOCK_M": (16, 32, 256), "BLOCK_N": (32, 256), "BLOCK_K": (128,), "GROUP_M": (1, 16)}},
        cuda={"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "BLOCK_K": (32, 64), "GROUP_M": (8,)},
        hip={"BLOCK_M": (16, 64, 128, 256), "BLOCK_N": (64, 128, 256), "BLOCK_K": (32, 64), "GROUP_M": (8,)},
    ),
    compile_options=by_vendor(
        more={"cuda": {"num_warps": (2, 16), "num_stages": (2, 3, 5, 6)}},
        cuda={"num_warps": (4, 8), "num_stages": (4,)},
        hip={"num_warps": (4, 8), "num_stages": (2,), "waves_per_eu": (0,)},
    ),
    tuning_keys=c.KEYS,
    grid=(c.tiles("BLOCK_M", "BLOCK_N"), ONE, ONE),
    work=c.work(tunable("BLOCK_M"), tunable("BLOCK_N")),
    impossible=c.IMPOSSIBLE,
    restrictions=RESTRICTIONS,
    schedule=DFS,
)

# Rows of X in a tile, and what of D that and COLUMNS are.
X_ROWS = tunable("ROWS") * choose(tunable("TURNS"), 1, tunable("CONSUMERS"))
TILE_M = choose(tunable("SWAP"), tunable("COLUMNS"), X_ROWS)
TILE_N = choose(tunable("SWAP"), X_ROWS, tunable("COLUMNS"))
TILES = c.tiles(TILE_M, TILE_N)
# What a consumer stages of its tile at a time.
STAGED_COLUMNS = minimum(tunable("COLUMNS"), ceil_divide(STAGED, tunable("ROWS")))
# Two programs fit in a multiprocessor where a lone consumer has a large tile, for which the space leaves memory.
RESIDENT = choose(equal(tunable("CONSUMERS"), 1) & equal(tunable("ROWS"), 128), 2, 1)
PROGRAMS = multiprocessors() * RESIDENT

BOX_M = choose(tunable("SWAP"), tunable("COLUMNS"), tunable("ROWS"))
BOX_N = choose(tunable("SWAP"), tunable("ROWS"), tunable("COLUMNS"))
OPERANDS = (
    Tensor("A", c.A, c.stored("TRANS_A", BOX_M, "BLOCK_K")),
    Tensor("B", c.B, c.stored("TRANS_B", "BLOCK_K", BOX_N)),
    Tensor(
        "D",
        c.D,
        (
            1,
            choose(tunable("SWAP"), STAGED_COLUMNS, tunable("ROWS")),
            choose(tunable("SWAP"), tunable("ROWS"), STAGED_COLUMNS),
        ),
    ),
    Tensor("Bias", c.BIAS),
)
CONSTEXPRS = tuple(
    map(Constexpr, ("ROWS", "COLUMNS", "BLOCK_K", "CONSUMERS", "TURNS", "STAGES", "SWAP", "TRANS_A", "TRANS_B"))
)
CHOICES = (c.T, c.TRANS_A, c.TRANS_B, c.DESCRIPTOR)
TUNABLES: tuple[Parameter, ...] = by_vendor(
    more={"cuda": {"STAGES": (2, 7)}},
    cuda={
        "ROWS": (64, 128),
        "COLUMNS": (16, 32, 64, 128, 256),
        "BLOCK_K": (64, 128),
        "CONSUMERS": (1, 2, 3),
        "TURNS": (0, 1),
        "STAGES": (3, 4, 5, 6, 8),
        "SWAP": (0, 1),
    },
)
# Four warps are the first consumer; the compiler adds the others. Each thread begins with maxnreg registers: the
# consumers take over what the producer does not need.
COMPILE_OPTIONS = by_vendor(cuda={"num_warps": (4,), "maxnreg": (128, 168)})
# The smallest tiles are the most, and a round of programs lies beyond the last.
FEW_TILES = Guard(c.tiles(16, 64) <= (2**31 - 1) // 32, "it has more tiles than are counted in 32 bits")

GEMM_HOPPER = KernelDescription(
    name="gemm_hopper",
    family=c.FAMILY,
    arguments=(
        *OPERANDS,
        c.ALPHA,
        c.ACTIVATION,
        *c.BIAS_STRIDES,
        *c.SIZES,
        Number("batch", "i32", size("batch")),
        *CONSTEXPRS,
    ),
    choices=CHOICES,
    tunables=TUNABLES,
    compile_options=COMPILE_OPTIONS,
    tuning_keys=c.KEYS,
    grid=(minimum(TILES, PROGRAMS), ONE, ONE),
    work=c.work(TILE_M, TILE_N, programs=RESIDENT),
    guards=(FEW_TILES,),
    restrictions=HOPPER_RESTRICTIONS,
    needs=("tma", "wgmma"),
    gluon=True,
    schedule=DFS,
)

# The backend with split tiles. Rounds of tiles that fill the GPU stay whole. The tiles that are left are split, as far
# as that gives each program one part at most, and each part MOST_SPLITS and a few steps at least.
REDUCE_ROWS, REDUCE_COLUMNS = 16, 64  # what a program of gemm_reduce takes of a tile


OF_D_TILES = c.tiles(size("tile_m"), size("tile_n"))
STEPS = ceil_divide(size("k"), tunable("BLOCK_K"))
PARTIAL = Operand("partial", ("split_tiles", "splits", "tile_m", "tile_n"), "fp32", alignment=16)
PARTIAL_SIZES = (
    DerivedSize("tile_m", TILE_M),
    DerivedSize("tile_n", TILE_N),
    DerivedSize("tiles_left", OF_D_TILES - quotient(OF_D_TILES, PROGRAMS) * PROGRAMS),
    DerivedSize(
        "splits",
        minimum(
            minimum(quotient(PROGRAMS, maximum(size("tiles_left"), 1)), MOST_SPLITS),
            maximum(quotient(STEPS, constant(FEWEST_STEPS)), 1),
        ),
    ),
    DerivedSize("split_tiles", choose(equal(size("splits"), 1), 0, size("tiles_left"))),
)


def _splits_nothing(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    sizes = {"batch": 1, "m": keys["m"], "n": keys["columns"], "k": keys["k"]}
    environment = Environment(sizes=sizes, tunables=config, multiprocessors=functional.arch_spec.multiprocessors)
    return derived_sizes(HOPPER_SPLIT, environment)["split_tiles"] == 0


def _narrow_parts(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return not config["SWAP"] and config["COLUMNS"] < REDUCE_COLUMNS


SPLIT_TILES, PARTS = size("split_tiles"), size("splits")
SPLIT_NUMBERS = (
    Number("whole_tiles", "i32", OF_D_TILES - SPLIT_TILES),
    Number("splits", "i32", PARTS),
)

GEMM_HOPPER_SPLIT = KernelDescription(
    name="gemm_hopper_split",
    family=c.FAMILY,
    arguments=(
        *OPERANDS,
        Tensor("Partial", PARTIAL, does="write"),
        c.ALPHA,
        c.ACTIVATION,
        *c.BIAS_STRIDES,
        *c.SIZES,
        Number("batch", "i32", size("batch")),
        *SPLIT_NUMBERS,
        *CONSTEXPRS,
    ),
    choices=CHOICES,
    tunables=TUNABLES,
    compile_options=COMPILE_OPTIONS,
    tuning_keys=c.KEYS,
    grid=(minimum(OF_D_TILES - SPLIT_TILES + SPLIT_TILES * PARTS, PROGRAMS), ONE, ONE),
    work=c.work(TILE_M, TILE_N, programs=RESIDENT, form=SPLIT),
    guards=(FEW_TILES,),
    restrictions=(
        *HOPPER_RESTRICTIONS,
        Restriction("gemm_reduce takes more columns at a time", _narrow_parts),
        Restriction("no tile of this cell is split", _splits_nothing),
    ),
    needs=("tma", "wgmma"),
    gluon=True,
    schedule=DFS,
)

GEMM_REDUCE = KernelDescription(
    name="gemm_reduce",
    family=c.FAMILY,
    arguments=(
        Tensor("Partial", PARTIAL, does="read"),
        Tensor("D", c.D),
        Tensor("Bias", c.BIAS),
        c.ALPHA,
        c.ACTIVATION,
        *c.BIAS_STRIDES,
        *strides("bm", "D"),
        *c.SIZES[:2],
        Number("tile_m", "i32", size("tile_m"), multiple_of=16),
        Number("tile_n", "i32", size("tile_n"), multiple_of=16),
        *SPLIT_NUMBERS,
        *map(Constexpr, ("ROWS", "COLUMNS")),
    ),
    choices=(c.T, c.DESCRIPTOR),
    tunables=by_vendor(cuda={"ROWS": (REDUCE_ROWS,), "COLUMNS": (REDUCE_COLUMNS,)}),
    compile_options=by_vendor(cuda={"num_warps": (4,)}),
    tuning_keys=c.KEYS,
    grid=(
        SPLIT_TILES * ceil_divide(size("tile_m"), tunable("ROWS")) * ceil_divide(size("tile_n"), tunable("COLUMNS")),
        ONE,
        ONE,
    ),
    guards=(FEW_TILES,),
    needs=("tma", "wgmma"),
)

HOPPER_SPLIT = Backend("hopper_split", (GEMM_HOPPER_SPLIT, GEMM_REDUCE), workspace=(PARTIAL,), sizes=PARTIAL_SIZES)

OPERATOR = Operator(
    name="gemm",
    family=c.FAMILY,
    operands=(c.A, c.B, c.D, c.BIAS),
    scalars=(
        Scalar("alpha", "fp32", 1),
        Scalar("activation", "i32", values=("none", "relu", "gelu", "silu")),
        Scalar("swapped", "i32", internal=True),
    ),
    backends=(
        Backend("portable", (GEMM,)),
        Backend("hopper", (GEMM_HOPPER,)),
        HOPPER_SPLIT,
    ),
    checked=True,
    written=True,
    cut="batch",
    flops=size("batch") * size("m") * size("n") * size("k") * 2,
    exact_cells=True,
)
