"""What of the space of the Hopper kernels is not worth compiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aotriton.rules.flash.features import FULL
from aotriton.rules.flash.split import OF_FP8
from aotriton.rules.kernel import Config, Functional, Restriction

ELEMENT = 2  # bytes of fp16 and bf16
ROWS = 64  # of one consumer, a warp group of 128 threads
THREADS = 128
REGISTERS = {1: 232, 2: 240, 3: 160}  # of a consumer's thread, once the producer has given up its own
OTHER_REGISTERS = 24  # addresses, row sums, barriers
KEYS = 128  # of a program of the backward
MOST_ROWS = 512  # of K in all stages: more bring nothing
FEWEST_KEYS_OF_TURNS = 512
BARRIERS = 512  # bytes beside the tiles


Rule = Callable[[Functional, Mapping[str, int], Config], bool]


def _idle_consumer(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return ROWS * (config["CONSUMERS"] - 1) >= keys["max_seqlen_q"]


def _lone_consumer(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["CONSUMERS"] == 1 and keys["waves"] > 1 and keys["max_seqlen_q"] > ROWS


def _wider_than_keys(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["BLOCK_N"] > max(keys["max_seqlen_k"], ROWS)


def _too_many_stages(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    steps = -(-keys["max_seqlen_k"] // config["BLOCK_N"]) + 1  # step i takes key tile i and value tile i - 1
    return config["STAGES"] > max(steps, 2) or config["STAGES"] * config["BLOCK_N"] > MOST_ROWS


def _too_few_stages(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    more = {**config, "STAGES": config["STAGES"] + 1}
    possible = more["STAGES"] in functional.kernel.tunable_values("cuda")["STAGES"]
    return possible and not any(rule(functional, keys, more) for rule in (_too_many_stages, _too_much_shared))


def _other_registers(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["maxnreg"] != (128 if config["CONSUMERS"] == 3 else 168)  # for 16 warps with padding, or 8 and 12


def _kept_apart(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["Q_SLOTS"] == 2 and (bool(config["Q_IN_REGISTERS"]) or keys["waves"] == 1)


def _one_place(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    two = {**config, "Q_SLOTS": 2}
    possible = not any(rule(functional, keys, two) for rule in (_kept_apart, _too_much_shared))
    return config["Q_SLOTS"] == 1 and possible


def _needless_pieces(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["OUT_PIECES"] == 2 and not _too_much_shared(functional, keys, {**config, "OUT_PIECES": 1})


def _passes_too_many(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    passed = (ROWS * config["CONSUMERS"] - 1) // config["BLOCK_N"] if functional["CAUSAL"] else 0
    return passed * (2 if config["RING"] else 1) >= config["STAGES"]


def _one_order(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    if not functional["CAUSAL"]:
        return config["GROUP_ROUNDS"] != 0
    several = keys["waves"] > 1 and keys["max_seqlen_q"] > ROWS * config["CONSUMERS"]
    return config["GROUP_ROUNDS"] == 0 or (not several and config["GROUP_ROUNDS"] != 1)


def _needless_turns(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return bool(config["TURNS"]) and config["CONSUMERS"] == 1


def _few_turns(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return bool(config["TURNS"]) and keys["max_seqlen_k"] < FEWEST_KEYS_OF_TURNS


def _certain_spill(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    scores, own = ROWS * config["BLOCK_N"], ROWS * _head_dim(functional)
    words = scores + scores // 2 + own  # S and Out in fp32, P in 16 bits
    words += own // 2 if config["Q_IN_REGISTERS"] else 0
    return words // THREADS + OTHER_REGISTERS > REGISTERS[config["CONSUMERS"]]


def _too_much_shared(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    own = config["CONSUMERS"] * ROWS
    of_slot = config["BLOCK_N"] * (1 if config["RING"] else 2)
    rows = own * config["Q_SLOTS"] + own // config["OUT_PIECES"] + config["STAGES"] * of_slot
    return rows * _head_dim(functional) * ELEMENT + BARRIERS > functional.arch_spec.shared_limit


def _needless_ring(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    pairs = {**config, "RING": 0, "STAGES": 3}
    needed = config["STAGES"] > 2 and _too_much_shared(functional, keys, pairs)
    return bool(config["RING"]) and not needed


def _head_dim(functional: Functional) -> int:
    return int(functional["BLOCK_DMODEL"])


def _taller_than_queries(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["BLOCK_M"] > max(keys["max_seqlen_q"], ROWS)


def _backward_shared(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    # K and V, two stages of Q and DO, two of dS, and each consumer's dQ in fp32.
    rows, head_dim = config["BLOCK_M"], _head_dim(functional)
    own = (2 * KEYS + 4 * rows) * head_dim + 2 * KEYS * rows + 2 * 2 * ROWS * min(head_dim, ROWS)
    return own * ELEMENT > functional.arch_spec.shared_limit


def _other_half(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["BLOCK_M"] * _head_dim(functional) != 64 * 128


def _other_step(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return _head_dim(functional) == 64 and (config["BLOCK_M"] == 128) == (functional.level == FULL)


PAIR_RESTRICTIONS = (
    Restriction("BLOCK_M is larger than max_seqlen_q", _taller_than_queries),
    Restriction("the tiles do not fit in shared memory", _backward_shared),
)

# In all cells that were measured 128 rows take 0.81 to 0.94 of the time of 64.
FEATURES_BACKWARD_RESTRICTIONS = (
    *PAIR_RESTRICTIONS,
    Restriction("at head dim 64 steps of 128 rows are faster, and with dropout they spill", _other_step),
)

PARTS_RESTRICTIONS = (
    Restriction("each consumer has a tile of 64 x 64 of dq: 128 rows at head dim 64, 64 at 128", _other_half),
)

FORWARD_RESTRICTIONS = (
    Restriction("a consumer has no row below max_seqlen_q", _idle_consumer),
    # More consumers share each tile of K and V. One alone makes more tiles, for a GPU that has programs to spare.
    Restriction("one consumer is for short queries or a GPU that is not full", _lone_consumer, certain=False),
    Restriction("BLOCK_N is larger than max_seqlen_k", _wider_than_keys),
    Restriction("more stages than the loop fills", _too_many_stages, certain=False),
    # An idle stage costs nothing but shared memory, which nothing else asks for.
    Restriction("one more stage fits", _too_few_stages, certain=False),
    Restriction("maxnreg leaves registers unused, or asks for too many", _other_registers),
    Restriction("Q in registers leaves its place, and a program with one tile needs no other", _kept_apart),
    # The next tile's Q is then there early.
    Restriction("there is room for a second place of Q", _one_place, certain=False),
    Restriction("there is room for all of Out", _needless_pieces, certain=False),
    Restriction("a consumer lets more steps pass than there are slots", _passes_too_many),
    Restriction("GROUP_ROUNDS is 0 where tiles are alike, and 1 where there is one round of them", _one_order),
    Restriction("one consumer has nobody to take turns with", _needless_turns),
    # With few steps a tile, what consumers do at its ends keeps them apart.
    Restriction("turns are for many keys", _few_turns, certain=False),
    # A spill makes every matrix product wait for the one before.
    Restriction("the accumulators do not fit in the registers", _certain_spill),
    Restriction("the tiles do not fit in shared memory", _too_much_shared),
    Restriction("a ring has three slots or more, where three of keys and values do not fit", _needless_ring),
)


def _of_plain(rule: Rule) -> Rule:
    """A rule of the plain forward for images with features, which have fewer tunables."""

    def applies(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
        return rule(functional, keys, {"Q_IN_REGISTERS": 0, "RING": 0, "TURNS": 0, **config})

    return applies


def _too_few_features_stages(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    more = {**config, "STAGES": config["STAGES"] + 1}
    possible = more["STAGES"] in functional.kernel.tunable_values("cuda")["STAGES"]
    rules = (_too_many_stages, _of_plain(_too_much_shared))
    return possible and not any(rule(functional, keys, more) for rule in rules)


def _one_place_of_features(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["Q_SLOTS"] == 1 and not _of_plain(_too_much_shared)(functional, keys, {**config, "Q_SLOTS": 2})


def _few_stages(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["CONSUMERS"] > config["STAGES"]


FEATURES_RESTRICTIONS = (
    Restriction("a consumer has no row below max_seqlen_q", _idle_consumer),
    Restriction("one consumer is for short queries or a GPU that is not full", _lone_consumer, certain=False),
    Restriction("BLOCK_N is larger than max_seqlen_k", _wider_than_keys),
    Restriction("more stages than the loop fills", _too_many_stages, certain=False),
    Restriction("one more stage fits", _too_few_features_stages, certain=False),
    Restriction("maxnreg leaves registers unused, or asks for too many", _other_registers),
    Restriction("there is room for a second place of Q", _one_place_of_features, certain=False),
    Restriction("there is room for all of Out", _of_plain(_needless_pieces), certain=False),
    Restriction("a consumer lets more steps pass than there are slots", _few_stages),
    Restriction("the accumulators do not fit in the registers", _of_plain(_certain_spill)),
    Restriction("the tiles do not fit in shared memory", _of_plain(_too_much_shared)),
)


def _planned(rule: Rule) -> Rule:
    """A rule of the plain forward for images of the planned one, whose constants are no tunables."""

    def applies(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
        return rule(functional, keys, {"CONSUMERS": 2, "Q_IN_REGISTERS": 0, **config})

    return applies


def _planned_in_shared(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    of_keys = 2 * config["BLOCK_N"]
    rows = 2 * ROWS + config["STAGES"] * of_keys
    if functional["KEYS"] in OF_FP8:
        rows += (1 if _head_dim(functional) > 128 else 2) * of_keys // ELEMENT  # byte_stages of planned_fp8.py
    return rows * _head_dim(functional) * ELEMENT + BARRIERS > functional.arch_spec.shared_limit


def _too_few_planned_stages(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    more = {**config, "STAGES": config["STAGES"] + 1}
    possible = more["STAGES"] in functional.kernel.tunable_values("cuda")["STAGES"]
    return possible and not any(rule(functional, keys, more) for rule in (_too_many_stages, _planned_in_shared))


PLANNED_RESTRICTIONS = (
    Restriction("BLOCK_N is larger than max_seqlen_k", _wider_than_keys),
    Restriction("more stages than the loop fills", _too_many_stages, certain=False),
    Restriction("one more stage fits", _too_few_planned_stages, certain=False),
    Restriction("the accumulators do not fit in the registers", _planned(_certain_spill)),
    Restriction("the tiles do not fit in shared memory", _planned_in_shared),
)


def _fp8_shared(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    own = config["CONSUMERS"] * ROWS
    bytes_of_rows = own * (config["Q_SLOTS"] + ELEMENT) + config["STAGES"] * config["BLOCK_N"] * 2
    return bytes_of_rows * _head_dim(functional) + BARRIERS > functional.arch_spec.shared_limit


def _fp8_spill(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    scores, own = ROWS * config["BLOCK_N"], ROWS * _head_dim(functional)
    words = scores + scores // 4 + own  # S and Out in fp32, P in 8 bits
    return words // THREADS + OTHER_REGISTERS + 16 > REGISTERS[config["CONSUMERS"]]


def _fp8_one_place(functional: Functional, keys: Mapping[str, int], config: Config) -> bool:
    return config["Q_SLOTS"] == 1 and keys["waves"] > 1 and not _fp8_shared(functional, keys, {**config, "Q_SLOTS": 2})


FP8_RESTRICTIONS = (
    Restriction("a consumer has no row below max_seqlen_q", _idle_consumer),
    Restriction("one consumer is for short queries or a GPU that is not full", _lone_consumer, certain=False),
    Restriction("BLOCK_N is larger than max_seqlen_k", _wider_than_keys),
    Restriction("more stages than the loop fills", _too_many_stages, certain=False),
    Restriction("maxnreg leaves registers unused, or asks for too many", _other_registers),
    Restriction("a program with one tile needs no other place of Q", _of_plain(_kept_apart)),
    Restriction("there is room for a second place of Q", _fp8_one_place, certain=False),
    Restriction("a consumer lets more steps pass than there are slots", _of_plain(_passes_too_many)),
    Restriction("GROUP_ROUNDS is 0 where tiles are alike, and 1 where there is one round of them", _one_order),
    Restriction("one consumer has nobody to take turns with", _needless_turns),
    Restriction("turns are for many keys", _few_turns, certain=False),
    Restriction("the accumulators do not fit in the registers", _fp8_spill),
    Restriction("the tiles do not fit in shared memory", _fp8_shared),
)
