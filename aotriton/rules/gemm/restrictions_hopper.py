"""What of the space of the Hopper kernels is not worth compiling."""

from __future__ import annotations

from collections.abc import Mapping

from aotriton.rules.gemm.restrictions import ELEMENT, FULL_TILE, rounds
from aotriton.rules.kernel import Config, Functional, Restriction

STAGED = 8192  # elements of its tile that a consumer stages at a time, on their way to D
BARRIERS = 512  # bytes
ACCUMULATORS = 64 * 256  # of a consumer: half of the registers of its 128 threads
CORNER = 64 * 64  # of a tile, the most that steps of 128 pay for


def _of_x(config: Config) -> int:
    """Rows of X in a tile."""
    return config["ROWS"] * (1 if config["TURNS"] else config["CONSUMERS"])


def _area(config: Config) -> int:
    return _of_x(config) * config["COLUMNS"]


def _alone(config: Config) -> bool:
    """Whether two programs share a multiprocessor."""
    return config["CONSUMERS"] == 1 and config["ROWS"] == 128


def _odd_turns(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    large = config["CONSUMERS"] == 2 and config["ROWS"] == config["COLUMNS"] == 128
    return large != bool(config["TURNS"])


def _too_many_accumulators(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    most = ACCUMULATORS // 2 if config["CONSUMERS"] == 3 else ACCUMULATORS
    return config["ROWS"] * config["COLUMNS"] > most


def _odd_consumers(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    rows, columns = config["ROWS"], config["COLUMNS"]
    if config["CONSUMERS"] == 1:
        return columns != 128 if rows == 128 else columns == 256
    return config["CONSUMERS"] == 3 and columns != 128


def _other_steps(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    small = config["ROWS"] == 64 and config["ROWS"] * config["COLUMNS"] <= CORNER
    return config["BLOCK_K"] != (128 if small else 64)


def _shared_bytes(config: Config) -> int:
    staged = config["CONSUMERS"] * min(config["ROWS"] * config["COLUMNS"], STAGED)
    slots = config["STAGES"] * config["BLOCK_K"] * (_of_x(config) + config["COLUMNS"])
    return ELEMENT * (staged + slots) + BARRIERS


def _too_much_shared(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return _shared_bytes(config) > functional.arch_spec.shared_limit // (2 if _alone(config) else 1)


def _too_few_stages(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    values = functional.kernel.tunable_values("cuda")["STAGES"]
    return any(
        stages > config["STAGES"] and not _too_much_shared(functional, keys, {**config, "STAGES": stages})
        for stages in values
    )


def _other_registers(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["maxnreg"] != (168 if config["CONSUMERS"] == 2 or config["COLUMNS"] == 256 else 128)


def _lone_turns(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return bool(config["TURNS"]) and config["CONSUMERS"] != 2


def _larger_than_d(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    of_m, of_n = (config["COLUMNS"], _of_x(config)) if config["SWAP"] else (_of_x(config), config["COLUMNS"])
    smallest = 16 if config["SWAP"] else 64
    return (of_m >= 2 * keys["m"] and of_m > smallest) or of_n > keys["columns"]


def _small_tiles(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    full = rounds(functional, keys)
    fewest = FULL_TILE if full >= 8 else FULL_TILE // 2 if full >= 2 else FULL_TILE // 4 if full >= 0.5 else 0
    return _area(config) < fewest


HOPPER_RESTRICTIONS = (
    # Consumers that share a tile halve what each loads; two tiles hide one's end behind the other's products.
    Restriction("two consumers take turns at tiles of 128 x 128, and at no others", _odd_turns, certain=False),
    Restriction("the accumulators do not fit in the registers", _too_many_accumulators),
    Restriction("not a tile for this number of consumers", _odd_consumers, certain=False),
    Restriction("BLOCK_K is 128 for tiles up to 64 x 64, and 64 else", _other_steps, certain=False),
    Restriction("the tiles do not fit in shared memory", _too_much_shared),
    # An idle stage costs nothing but shared memory, which nothing else asks for.
    Restriction("more stages fit", _too_few_stages, certain=False),
    Restriction("maxnreg leaves registers unused, or asks for too many", _other_registers),
    Restriction("the tile is larger than D", _larger_than_d),
    Restriction("tiles are small, though large ones fill the GPU", _small_tiles, certain=False),
    Restriction("only two consumers can take turns", _lone_turns),
)
