"""The candidates of the portable kernels that are not worth compiling. The values stand with the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

from aotriton.rules.arch import DTYPE_BYTES
from aotriton.rules.flash.common import BF16_PRODUCTS, FULL, WIDE, tiled_side
from aotriton.rules.kernel import Argument, Config, Functional, KernelDescription, Restriction, Tensor
from aotriton.tritonsrc.flash.lib import constants

# The least rows and columns of tiles in 16 bits; on Hopper half of them of WIDE ones. Smaller ones are for fp32.
LEAST_OF_HALVES = {
    "cuda": {"attn_fwd": (64, 32), "attn_bwd_dk_dv": (32, 32), "attn_bwd_dq": (32, 32)},
    "hip": {"attn_fwd": (64, 16), "attn_bwd_dk_dv": (16, 32), "attn_bwd_dq": (32, 16)},
}
MOST_OF_FP32 = 2048  # scores of a tile; a fourth of them in WIDE ones
MOST_ROWS_OF_FEW = 32  # of a tile that is worth trying with one or two warps
WIDE_ROWS_OF_DQ = 64  # on gfx942
MOST_KEYS_OF_STEP = 128
MOST_BYTES_OF_STEP = 2**14  # of keys, and as many of values, that the registers of four warps hold
BAND_REGISTERS = 64  # of a thread, beside its accumulators: the least with which images with a band spill nothing


def _head_dim(functional: Functional) -> int:
    return int(functional["BLOCK_DMODEL"])


def _taller_than_queries(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    smallest = min(functional.kernel.tunable_values(functional.arch_spec.vendor)["BLOCK_M"])
    return config["BLOCK_M"] > max(keys["max_seqlen_q"], smallest)


def _wider_than_keys(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    if "BLOCK_N" not in config or "max_seqlen_k" not in keys:
        return False
    smallest = min(functional.kernel.tunable_values(functional.arch_spec.vendor)["BLOCK_N"])
    return config["BLOCK_N"] > max(keys["max_seqlen_k"], smallest)


def _more_stages_than_iterations(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    if "BLOCK_N" not in config:
        return False  # no loop
    streamed, block = (
        ("max_seqlen_k", "BLOCK_N") if tiled_side(functional.kernel) == "q" else ("max_seqlen_q", "BLOCK_M")
    )
    iterations = -(-keys[streamed] // config[block])
    return config["num_stages"] > max(
        iterations, min(functional.kernel.compile_option_values(functional.arch_spec.vendor)["num_stages"])
    )


def _idle_warps(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    if functional.arch_spec.vendor != "cuda" or "BLOCK_N" not in config:
        return False
    if _head_dim(functional) >= 128 or functional.level == FULL:
        return False
    rows = config["BLOCK_M"] if tiled_side(functional.kernel) == "q" else max(config["BLOCK_M"], config["BLOCK_N"])
    return config["num_warps"] * 16 > rows


def _accumulators(function: str, head_dim: int, config: Config) -> int:
    """fp32 values that one program keeps in registers across its loop and at its widest point within."""
    if "BLOCK_N" not in config:
        return 0
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    score = rows * columns
    return {
        "attn_fwd": rows * head_dim + score,
        "attn_fwd_split": rows * head_dim + score,
        "attn_bwd_dq": rows * head_dim + 2 * score,
        "attn_bwd_dk_dv": 2 * columns * head_dim + 2 * score,
    }.get(function, 0)


def _certain_spill(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    threads = config["num_warps"] * functional.arch_spec.warp_size
    needed = _accumulators(functional.kernel.function, _head_dim(functional), config) / threads
    of_band = BAND_REGISTERS if functional.level else 0
    return needed + of_band > functional.arch_spec.thread_registers


def _wide(functional: Functional) -> bool:
    return functional["T"] == "fp32"


def _products_of_halves(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config.get(BF16_PRODUCTS, 0) > 0 and not _wide(functional)


def _small_tile(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    if "BLOCK_N" not in config or _wide(functional):
        return False
    vendor, function = functional.arch_spec.vendor, functional.kernel.function
    rows, columns = LEAST_OF_HALVES[vendor].get(function, (0, 0))
    wide = _head_dim(functional) == WIDE
    if wide and vendor == "hip" and function == "attn_bwd_dq":
        rows = WIDE_ROWS_OF_DQ
    share = 2 if wide and vendor == "cuda" else 1
    return config["BLOCK_M"] * share < rows or config["BLOCK_N"] * share < columns


def _not_of_wide(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    if "BLOCK_N" not in config or _head_dim(functional) < WIDE:
        return False
    if functional.arch_spec.vendor == "hip":
        return config["num_warps"] != 4 or config["waves_per_eu"] > 1
    return config["num_warps"] != 8 or config["num_stages"] > 2


def _large_for_fp32(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    if "BLOCK_N" not in config or not _wide(functional):
        return False
    of_products = config.get(BF16_PRODUCTS, 0) and (tiled_side(functional.kernel) == "k" or config["BLOCK_M"] < 64)
    most = MOST_OF_FP32 // (4 if _head_dim(functional) == WIDE else 1)
    return bool(of_products) or config["BLOCK_M"] * config["BLOCK_N"] > most or config["num_stages"] > 2


def _small_for_fp32(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    if "BLOCK_N" not in config or not _wide(functional) or functional.arch_spec.vendor != "hip":
        return False
    width = _head_dim(functional)
    least = MOST_OF_FP32 // (2 if width <= 128 else 4 if width < WIDE else 8)
    return config["BLOCK_M"] * config["BLOCK_N"] < least or config["waves_per_eu"] > 1


def _has_blocks(kernel: KernelDescription) -> bool:
    """Whether the kernel has descriptors where tensors are aligned; others have pointers."""
    return any(isinstance(one, Tensor) and one.block for one in kernel.arguments)


def _is_keys(argument: Argument) -> TypeGuard[Tensor]:
    return isinstance(argument, Tensor) and argument.operand.name == "k"


def _shared_bytes(functional: Functional, config: Config) -> int:
    """The least shared memory that the kernel can do with."""
    if "BLOCK_N" not in config:
        return 0
    kept, streamed = config["BLOCK_M"], config["BLOCK_N"]
    if tiled_side(functional.kernel) == "k":
        kept, streamed = streamed, kept
    kind = next((functional.dtype_of(one) for one in functional.kernel.arguments if _is_keys(one)), functional["T"])
    row = _head_dim(functional) * DTYPE_BYTES[str(kind)]
    stage = 2 * streamed * row  # two tensors are streamed: K and V, or Q and DO
    # TMA moves everything through shared memory, the program's own tiles too.
    if functional.addressing == "descriptor" and _has_blocks(functional.kernel):
        own = (1 if functional.kernel.function == "attn_fwd" else 2) * kept * row
        return own + config["num_stages"] * stage
    return max(1, config["num_stages"] - 1) * stage  # tiles of its own, and the newest stage, may be in registers


def _warps_of_split(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return (config["num_warps"] == 8) != (config["BLOCK_M"] * _head_dim(functional) >= 64 * 256)


def _few_warps_of_split(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["num_warps"] < 4 and (not functional.level or config["BLOCK_M"] > MOST_ROWS_OF_FEW)


def _by_registers(functional: Functional) -> bool:
    """Whether it is decoding's on Hopper, whose keys and values go to registers."""
    return functional.function.startswith("attn_fwd_hopper_decode")


def _not_of_warps(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    few = min(functional.kernel.compile_option_values("cuda")["num_stages"])
    return _by_registers(functional) and (
        config["BLOCK_N"] < constants.PAGE_STEP * config["num_warps"] or config["num_stages"] != few
    )


def _other_step(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    if not _by_registers(functional):
        return config["BLOCK_N"] > MOST_KEYS_OF_STEP
    most = MOST_BYTES_OF_STEP // _head_dim(functional)
    return not most // 2 <= config["BLOCK_N"] <= most or config["num_warps"] != 4


def _too_much_shared(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return _shared_bytes(functional, config) > functional.arch_spec.shared_limit


RESTRICTIONS = (
    Restriction("only fp32 is a sum of several numbers of bf16", _products_of_halves),
    # Tensor cores of 16 bits want more at once; fp32 fits in registers only so.
    Restriction("tiles as small as this are for fp32", _small_tile, certain=False),
    # What spills, compiled for sm_90: most tiles, and products of bf16 unless 64 rows are a warp group's.
    Restriction("fp32 does not fit in the registers", _large_for_fp32, certain=False),
    # Four waves of gfx942 have twice the registers of eight; Hopper has shared memory for two stages of such tiles.
    Restriction("columns this wide take all registers, and two stages of shared memory", _not_of_wide, certain=False),
    # No GPU measures these: the static model compiles each, and ranks the larger ones first.
    Restriction("a tile of fp32 is smaller than it must be", _small_for_fp32, certain=False),
    # Rows beyond the sequence are masked: work that is thrown away.
    Restriction("BLOCK_M is larger than max_seqlen_q", _taller_than_queries),
    Restriction("BLOCK_N is larger than max_seqlen_k", _wider_than_keys),
    # The pipeline is never full, so the image is one of fewer stages with more shared memory.
    Restriction("more stages than the loop has iterations", _more_stages_than_iterations),
    # A warp holds 16 rows of a matrix product (a warp group 64). Beyond head dim 128 more warps are still worth having:
    # they share the accumulators. Bias and dropout want registers, too.
    Restriction("more warps than the tile has rows of 16", _idle_warps, certain=False),
    # The accumulators alone need more registers than a thread has.
    Restriction("the accumulators do not fit in the registers", _certain_spill),
    # The tiles under way do not fit, whatever else does.
    Restriction("the tiles do not fit in shared memory", _too_much_shared),
)

SPLIT_RESTRICTIONS = (
    Restriction("BLOCK_M is larger than max_seqlen_q", _taller_than_queries),
    Restriction("BLOCK_N is larger than max_seqlen_k", _wider_than_keys),
    # Warps share the columns of a tile with few rows.
    Restriction("eight warps are for large accumulators, and four for others", _warps_of_split, certain=False),
    # Numbers of 8 bits are converted, and pages found, by each warp for itself: where rows are few, more programs of
    # fewer warps each have more loads under way.
    Restriction("one or two warps are for pages and keys of 8 bits, and few rows", _few_warps_of_split, certain=False),
    Restriction("the accumulators do not fit in the registers", _certain_spill),
    Restriction("the tiles do not fit in shared memory", _too_much_shared),
)

DECODE_RESTRICTIONS = (
    *SPLIT_RESTRICTIONS,
    # Stages make no other image there.
    Restriction("each warp has 16 keys of a step, or more, and registers for the next step", _not_of_warps),
    # Of more keys a step has more bytes under way, as long as registers last.
    Restriction("a step has the bytes that registers or shared memory hold", _other_step, certain=False),
)
