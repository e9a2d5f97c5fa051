"""Tuning spaces made from a formula, with what makes real ones hard: cliffs, interactions, failures and noise.

A stand-in for a tiled product of matrices: programs fill a GPU in rounds, shared memory limits how many of them run
side by side, registers spill, and every config has a bit of luck of its own, most of which it has on all problems.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from itertools import product

Config = tuple[tuple[str, int], ...]

PARAMETERS = {
    "BLOCK_M": (32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (32, 64, 128),
    "GROUP": (1, 4, 8, 16),
    "num_warps": (2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5),
}
DEFAULTS = {"GROUP": 1, "num_warps": 4, "num_stages": 2}
SHARED, REGISTERS, UNITS = 232448, 65536, 132


def problem(draw: random.Random) -> dict[str, float]:
    """Sizes of a product of matrices."""
    return {name: float(2 ** draw.randint(7, 13)) for name in ("rows", "columns", "depth")}


def configs(parameters: Mapping[str, tuple[int, ...]] = PARAMETERS) -> tuple[Config, ...]:
    return tuple(tuple(zip(parameters, values, strict=True)) for values in product(*parameters.values()))


def facts(config: Config) -> dict[str, float]:
    """Registers of a thread and bytes of shared memory."""
    c = dict(config)
    accumulators = c["BLOCK_M"] * c["BLOCK_N"] / (32 * c["num_warps"])
    shared = c["num_stages"] * (c["BLOCK_M"] + c["BLOCK_N"]) * c["BLOCK_K"] * 2
    return {"registers": float(round(40 + 1.1 * accumulators)), "shared": float(shared)}


def time_us(config: Config, sizes: Mapping[str, float], kernel: str) -> float | None:
    """The config's true time; None where it cannot run."""
    c: Mapping[str, int] = dict(config)
    known = facts(config)
    if known["shared"] > SHARED or known["registers"] > 512:
        return None
    resident = min(SHARED // known["shared"], REGISTERS // (known["registers"] * 32 * c["num_warps"]), 8)
    resident = max(1, resident)
    programs = math.ceil(sizes["rows"] / c["BLOCK_M"]) * math.ceil(sizes["columns"] / c["BLOCK_N"])
    rounds = math.ceil(programs / (UNITS * resident))
    tile = c["BLOCK_M"] * c["BLOCK_N"] * c["BLOCK_K"]
    math_s = tile / 4096 * (1 + 64 / c["BLOCK_M"] * 0.3) * (1 + 64 / c["BLOCK_N"] * 0.2) * (1 + 24 / c["BLOCK_K"])
    math_s *= 1 + 0.15 * abs(math.log2(c["BLOCK_M"] * c["BLOCK_N"] / c["num_warps"] / 2048))
    load_s = (c["BLOCK_M"] + c["BLOCK_N"]) * c["BLOCK_K"] / 64 * (1.3 - 0.1 * min(c["GROUP"], programs**0.5 / 4, 3))
    step = max(math_s, load_s) + min(math_s, load_s) / (c["num_stages"] * resident) ** 0.8
    spilled = 1 + 2 * max(0.0, known["registers"] / 255 - 1)
    steps = math.ceil(sizes["depth"] / c["BLOCK_K"])
    time: float = 3 + rounds * resident**0.8 * (steps * step * spilled + 200 + tile / 4000) / 400
    luck = random.Random(f"{kernel} {config}").gauss(0, 0.02) + random.Random(f"{config} {sizes}").gauss(0, 0.01)
    return time * math.exp(luck + _twist(c, kernel))


def _twist(config: Mapping[str, int], kernel: str) -> float:
    """What a kernel has of its own: pairs of values that go well or badly together."""
    items = sorted(config.items())
    pairs = [(one, other) for place, one in enumerate(items) for other in items[place + 1 :]]
    return sum(random.Random(f"{kernel} {pair}").gauss(0, 0.01) for pair in pairs)
