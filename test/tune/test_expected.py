"""What descriptions say of configs before they are compiled."""

from __future__ import annotations

from aotriton.rules.family import kernel
from aotriton.rules.image import ImageSpec
from aotriton.tune.coordinator.expected import expected

SIZES = {"batch": 1, "m": 4096, "n": 4096, "k": 4096}
SMALL = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8}


def test_rounds_steps_and_work_follow_from_the_tile() -> None:
    """4096³ in tiles of 128 x 64: 2,048 programs, in 16 rounds of 132 with 64 steps each, the last one not full."""
    functional = kernel("gemm").functional("sm_90", T="fp16", TRANS_A=False, TRANS_B=True, ADDRESSING="descriptor")
    spec = ImageSpec.of(functional, SMALL, {"num_warps": 4, "num_stages": 3})
    config = spec.tunables + spec.compile_options
    found = expected(functional, SIZES, [config])[config]
    assert (found["rounds"], found["steps"]) == (16, 16 * 64)
    assert found["work"] == 16 * 64 * 128 * 64 * 64
    assert round(found["share"] / found["work"], 6) == round(2048 / 132 / 16, 6)
    assert (found["tile"], found["warp"]) == (128 * 64, 128 * 16)
    assert found["edge"] == 4096 / 128 + 4096 / 64


def test_a_kernel_without_a_described_work_says_nothing() -> None:
    """The sum of splits has none, so nothing is known of its configs."""
    functional = kernel("gemm_reduce").functional("sm_90", T="fp16", ADDRESSING="descriptor")
    assert expected(functional, SIZES, [(("num_warps", 4),)]) == {}
