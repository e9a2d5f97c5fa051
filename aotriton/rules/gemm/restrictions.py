"""The candidates of the portable kernel that are not worth compiling. The values themselves stand in operator.py."""

from __future__ import annotations

from collections.abc import Mapping

from aotriton.rules.kernel import Config, Functional, Restriction

ELEMENT = 2  # bytes of fp16 and bf16
FULL_TILE = 128 * 128


def rounds(functional: Functional, keys: Mapping[str, int]) -> float:
    """How often tiles of 128 x 128 fill the GPU."""
    return keys["m"] * keys["columns"] / FULL_TILE / functional.arch_spec.multiprocessors


def _taller_than_d(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    smallest = min(functional.kernel.tunable_values(functional.arch_spec.vendor)["BLOCK_M"])
    return config["BLOCK_M"] > max(keys["m"], smallest)


def _small_tiles(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return rounds(functional, keys) >= 4 and config["BLOCK_M"] * config["BLOCK_N"] < FULL_TILE


def _other_steps(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["BLOCK_K"] != (32 if functional.addressing == "general" else 64)


def _accumulators(functional: Functional, keys: Mapping[str, int], config: Config) -> float:
    return config["BLOCK_M"] * config["BLOCK_N"] / (config["num_warps"] * functional.arch_spec.warp_size)


def _likely_spill(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return _accumulators(functional, keys, config) > functional.arch_spec.thread_registers / 2


def _certain_spill(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return _accumulators(functional, keys, config) > functional.arch_spec.thread_registers


def _idle_threads(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    fewest = min(functional.kernel.compile_option_values(functional.arch_spec.vendor)["num_warps"])
    return config["num_warps"] > fewest and _accumulators(functional, keys, config) < 32


def _too_much_shared(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    # The AMD pipeliner keeps one of its stages in registers.
    stages = config["num_stages"] - (functional.arch_spec.vendor == "hip")
    tiles = stages * (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * ELEMENT
    return tiles > functional.arch_spec.shared_limit


RESTRICTIONS = (
    # Rows beyond D are masked: work that is thrown away.
    Restriction("BLOCK_M is larger than m", _taller_than_d),
    Restriction("tiles are small, though large ones fill the GPU", _small_tiles, certain=False),
    # Long steps save loop overhead; loads that are not vectors need their registers.
    Restriction("BLOCK_K is 32 for general addressing, and 64 else", _other_steps, certain=False),
    Restriction("the accumulators take more than half of the registers", _likely_spill, certain=False),
    Restriction("more warps than the tile has work for", _idle_threads, certain=False),
    Restriction("the tiles do not fit in shared memory", _too_much_shared),
    Restriction("the accumulators do not fit in the registers", _certain_spill),
)
